"""What several test files need."""

import jax
import jax.numpy as jnp
import numpy as np


def normal(*shape, seed=0, dtype=jnp.float64):
    """An array of standard normal numbers, drawn by NumPy."""
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def approaches(sample, limit, keys, widths, tolerance):
    """Assert that ``sample(width, key)`` is unbiased up to O(1/width), its error O(width^-1/2)."""
    deviations = [
        np.asarray(jax.jit(lambda k, w=w: jax.lax.map(lambda a: sample(w, a), k))(keys)) - limit
        for w in widths
    ]
    rms = np.sqrt(np.mean(np.square(deviations), axis=1))
    slopes = np.polyfit(np.log(widths), np.log(rms), 1)[0]
    assert np.all(np.abs(slopes + 0.5) < tolerance), slopes
    last = deviations[-1]
    assert np.all(np.abs(last.mean(0)) < 4 * last.std(0) / np.sqrt(len(keys)) + 1 / widths[-1])
