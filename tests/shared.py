"""What several test files need."""

import jax
import jax.numpy as jnp
import numpy as np


def normal(*shape, seed=0, dtype=jnp.float64):
    """An array of standard normal numbers, drawn by NumPy."""
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


# Programs that are run a few times and are not themselves what is tested: see conftest.py
LITTLE = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def approaches(sample, limit, keys, widths, tolerance):
    """Assert that ``sample(width, key)`` is unbiased up to O(1/width), its error O(width^-1/2)."""

    def of_width(w):
        each = jax.jit(lambda k: jax.lax.map(lambda a: sample(w, a), k), compiler_options=LITTLE)
        return np.asarray(each(keys))

    deviations = [of_width(w) - limit for w in widths]
    rms = np.sqrt(np.mean(np.square(deviations), axis=1))
    slopes = np.polyfit(np.log(widths), np.log(rms), 1)[0]
    assert np.all(np.abs(slopes + 0.5) < tolerance), slopes
    last = deviations[-1]
    assert np.all(np.abs(last.mean(0)) < 4 * last.std(0) / np.sqrt(len(keys)) + 1 / widths[-1])
