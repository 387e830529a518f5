"""Spectra, pseudo-inverses and flow gains against SciPy and mpmath."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from ntkcourse import linalg


def psd(n, rank, seed, dtype=jnp.float64):
    a = np.random.default_rng(seed).normal(size=(n, rank))
    return jnp.asarray(a @ a.T / rank, dtype)


def test_spectrum_rebuilds_the_matrix(dtype):
    matrix = psd(7, 7, 0, dtype)
    values, vectors = linalg.spectrum(matrix)
    assert values.dtype == vectors.dtype == dtype
    rebuilt = vectors @ jnp.diag(values) @ vectors.T
    np.testing.assert_allclose(rebuilt, matrix, atol=20 * jnp.finfo(dtype).eps)
    np.testing.assert_allclose(values, scipy.linalg.eigvalsh(matrix), rtol=1e-4)


def test_spectrum_sets_rounding_to_zero_and_keeps_the_rest(dtype):
    eps = float(jnp.finfo(dtype).eps)
    values = linalg.spectrum(psd(8, 3, 1, dtype))[0]
    assert np.count_nonzero(values) == 3
    assert np.all(np.asarray(values) >= 0)
    # the floor is n eps max |value|, here 4 eps 100
    diagonal = jnp.asarray([-100.0, 0.5 * 400 * eps, 2 * 400 * eps, 1.0], dtype)
    values = linalg.spectrum(jnp.diag(diagonal))[0]
    np.testing.assert_allclose(values, [0, 0, 800 * eps, 1], rtol=1e-3)
    assert np.all(linalg.spectrum(jnp.zeros((3, 3), dtype))[0] == 0)


def test_inverse_and_scaled(dtype):
    values = jnp.asarray([0.0, 0.25, 4.0], dtype)
    assert linalg.inverse(values).tolist() == [0, 4, 0.25]
    assert np.all(np.isfinite(jax.jacobian(linalg.inverse)(values)))
    rows = jnp.arange(6, dtype=dtype).reshape(3, 2)
    assert linalg.scaled(values, rows).tolist() == [[0, 0], [0.5, 0.75], [16, 20]]
    assert linalg.scaled(values, rows[:, 1]).tolist() == [0, 0.75, 20]


@pytest.mark.parametrize("columns", [(), (1,), (3,)])
@pytest.mark.parametrize("ridge", [0.0, 0.3])
@pytest.mark.parametrize("rank", [2, 6])
def test_solver_is_the_pseudo_inverse(rank, ridge, columns):
    matrix = psd(6, rank, 2)
    b = jnp.asarray(np.random.default_rng(3).normal(size=(6, *columns)))
    expected = scipy.linalg.pinvh(np.asarray(matrix) + ridge * np.eye(6), rtol=1e-12) @ b
    solution = linalg.solver(matrix, ridge)(b)
    assert solution.shape == b.shape
    np.testing.assert_allclose(solution, expected, rtol=1e-9, atol=1e-9)


def test_solver_takes_a_matrix_that_is_nearly_singular_as_it_is(dtype):
    # the second pivot is 16 or 1 times eps, its floor 2 eps times the largest diagonal entry
    eps = float(jnp.finfo(dtype).eps)
    b = jnp.ones(2, dtype)
    regular = linalg.solver(jnp.diag(jnp.asarray([1, 16 * eps], dtype)), 0.0)(b)
    np.testing.assert_allclose(regular, [1, 1 / (16 * eps)], rtol=1e-6)
    singular = linalg.solver(jnp.diag(jnp.asarray([1, eps], dtype)), 0.0)(b)
    np.testing.assert_allclose(singular, [1, 0], atol=1e-6)
    large = linalg.solver(jnp.diag(jnp.asarray([1e6, 1e6 * eps], dtype)), 0.0)(b)
    np.testing.assert_allclose(large, [1e-6, 0], rtol=1e-6)
    assert np.all(linalg.solver(jnp.zeros((2, 2), dtype), 0.0)(b) == 0)


def test_solver_uses_cholesky_when_it_can(monkeypatch):
    matrix, b = psd(5, 5, 4), jnp.ones(5)
    expected = np.linalg.solve(matrix, b)
    monkeypatch.setattr(linalg, "spectrum", lambda m: (jnp.full(5, jnp.nan), m))
    np.testing.assert_allclose(linalg.solver(matrix, 0.0)(b), expected, rtol=1e-10)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.floats(1e-12, 1e6), st.one_of(st.just(0.0), st.floats(1e-9, 1e9), st.just(float("inf"))))
def test_flow_gains_against_mpmath(value, t):
    gains = linalg.flow_gains(jnp.asarray([value, 0.0]), jnp.asarray(t))
    exact = -mpmath.expm1(-mpmath.mpf(value) * mpmath.mpf(t)) / mpmath.mpf(value)
    np.testing.assert_allclose(gains, [float(exact), 0], rtol=1e-14)


def test_psd_root_against_scipy(dtype):
    matrix = psd(5, 5, 1).astype(dtype)
    tolerance = 1e-10 if dtype == jnp.float64 else 1e-3
    expected = scipy.linalg.sqrtm(np.asarray(matrix, float))
    np.testing.assert_allclose(linalg.psd_root(matrix), expected, atol=tolerance)
    assert np.all(linalg.psd_root(-jnp.eye(2, dtype=dtype)) == 0)  # rounding below 0 is cut
