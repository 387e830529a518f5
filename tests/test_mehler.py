"""Mehler's series against integrals on a fine grid; the root and the correlation at their edges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntkcourse import mehler


@pytest.mark.parametrize("c", [-0.999, -0.5, 0.0, 0.3, 0.9, 1.0])
def test_smooth_against_a_grid(c):
    grid = np.linspace(-9, 9, 721)
    z, w = np.meshgrid(grid, grid)
    weight = np.exp(-(z**2 + w**2) / 2) / (2 * np.pi) * (grid[1] - grid[0]) ** 2
    u, v = 0.8 * z, 1.3 * (c * z + np.sqrt(1 - c**2) * w)
    expected = (
        np.sum(weight * np.tanh(u) * np.tanh(v)),
        np.sum(weight / np.cosh(u) ** 2 / np.cosh(v) ** 2),
    )
    q = (jnp.asarray(a) for a in (0.8**2, 0.8 * 1.3 * c, 1.3**2))
    np.testing.assert_allclose(mehler.smooth(jnp.tanh, *q), expected, atol=1e-9)


def test_root_and_correlation_at_their_edges():
    assert mehler.root(jnp.asarray(-1.0)) == 0
    assert mehler.root(jnp.asarray(9.0)) == 3
    assert jax.grad(mehler.root)(0.0) == 0
    zero, one = jnp.asarray(0.0), jnp.asarray(1.0)
    assert mehler.correlation(zero, zero, one) == 0
    assert mehler.correlation(one, one * (1 - 1e-16), one) == 1
    assert mehler.correlation(one, -one, one) == -1


def test_the_rule_is_orthonormal():
    rule = mehler._hermite_rule().reshape(mehler.TERMS, -1)[:40]
    # E h_j h_k = 1 if j = k else 0, with h_j from NumPy
    hermite = np.polynomial.hermite_e.hermevander(mehler.NODES, 9)
    norms = np.sqrt([float(np.prod(np.arange(1.0, k + 1))) for k in range(10)])
    np.testing.assert_allclose(rule[:10] @ (hermite / norms), np.eye(10), atol=1e-9)
