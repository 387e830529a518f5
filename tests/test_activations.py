"""Activations by name against their formulas in NumPy and SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from ntkcourse.activations import BY_NAME, SLOPE, resolve

FORMULAS = {
    "relu": lambda z: np.maximum(z, 0),
    "leaky_relu": lambda z: np.where(z > 0, z, z / 100),
    "abs": np.abs,
    "erf": scipy.special.erf,
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
    "gelu": lambda z: z * scipy.special.ndtr(z),
    "identity": lambda z: z,
}


def test_the_names_are_those_of_the_course():
    assert set(BY_NAME) == set(FORMULAS)
    assert SLOPE == 0.01


@pytest.mark.parametrize("name", FORMULAS)
def test_values_by_name(name, dtype):
    z = np.linspace(-4, 4, 81).astype(dtype)
    values = resolve(name)(jnp.asarray(z))
    assert values.dtype == dtype
    np.testing.assert_allclose(values, FORMULAS[name](z), atol=8 * jnp.finfo(dtype).eps, rtol=1e-6)
    slopes = jax.vmap(jax.grad(resolve(name)))(jnp.asarray(z))
    assert np.all(np.isfinite(slopes))


def test_a_function_is_its_own_activation():
    assert resolve(jnp.sinh) is jnp.sinh


@pytest.mark.parametrize("bad", ["swish", "", None, 3, ["relu"]])
def test_unknown_activations_are_refused(bad, user):
    with pytest.raises(ValueError, match=r"expected an activation among relu, .* a JAX function"):
        resolve(bad)
