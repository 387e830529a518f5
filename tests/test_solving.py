"""The solver: pseudo-inverses, nearly singular matrices, Cholesky where it can."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from ntkcourse import solving


def psd(n, rank, seed, dtype=jnp.float64):
    a = np.random.default_rng(seed).normal(size=(n, rank))
    return jnp.asarray(a @ a.T / rank, dtype)


@pytest.mark.parametrize("columns", [(), (1,), (3,)])
@pytest.mark.parametrize("ridge", [0.0, 0.3])
@pytest.mark.parametrize("rank", [2, 6])
def test_solver_is_the_pseudo_inverse(rank, ridge, columns):
    matrix = psd(6, rank, 2)
    b = jnp.asarray(np.random.default_rng(3).normal(size=(6, *columns)))
    expected = scipy.linalg.pinvh(np.asarray(matrix) + ridge * np.eye(6), rtol=1e-12) @ b
    solution = solving.solver(matrix, ridge)(b)
    assert solution.shape == b.shape
    np.testing.assert_allclose(solution, expected, rtol=1e-9, atol=1e-9)


def test_solver_takes_a_matrix_that_is_nearly_singular_as_it_is(dtype):
    # the second pivot is 16 or 1 times eps, its floor 2 eps times the largest diagonal entry
    eps = float(jnp.finfo(dtype).eps)
    b = jnp.ones(2, dtype)
    regular = solving.solver(jnp.diag(jnp.asarray([1, 16 * eps], dtype)), 0.0)(b)
    np.testing.assert_allclose(regular, [1, 1 / (16 * eps)], rtol=1e-6)
    singular = solving.solver(jnp.diag(jnp.asarray([1, eps], dtype)), 0.0)(b)
    np.testing.assert_allclose(singular, [1, 0], atol=1e-6)
    large = solving.solver(jnp.diag(jnp.asarray([1e6, 1e6 * eps], dtype)), 0.0)(b)
    np.testing.assert_allclose(large, [1e-6, 0], rtol=1e-6)
    assert np.all(solving.solver(jnp.zeros((2, 2), dtype), 0.0)(b) == 0)


def test_solver_uses_cholesky_when_it_can(monkeypatch):
    matrix, b = psd(5, 5, 4), jnp.ones(5)
    expected = np.linalg.solve(matrix, b)
    monkeypatch.setattr(solving, "_inverse_root", None)
    np.testing.assert_allclose(solving.solver(matrix, 0.0)(b), expected, rtol=1e-10)


def test_a_solver_made_outside_of_jit_works_inside(dtype):
    matrix, b = psd(5, 5, 4, dtype), jnp.ones(5, dtype)
    solve = solving.solver(matrix, 0.1)
    exact = np.linalg.inv(np.asarray(matrix, float) + 0.1 * np.eye(5))
    bound = 1e-4 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(solve(b), exact.sum(1), rtol=bound)
    np.testing.assert_allclose(jax.jit(solve)(b), exact.sum(1), rtol=bound)
    np.testing.assert_allclose(jax.jit(lambda s, b: s(b))(solve, b), exact.sum(1), rtol=bound)
    np.testing.assert_allclose(jax.jacrev(solve)(b), exact, atol=bound * np.abs(exact).max())
    inside = jax.jit(lambda m: solving.solver(m, 0.1)(b))(matrix)
    np.testing.assert_allclose(inside, exact.sum(1), rtol=bound)
