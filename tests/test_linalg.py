"""Spectra, pseudo-inverses and flow gains against SciPy and mpmath."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
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


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.floats(1e-12, 1e6), st.one_of(st.just(0.0), st.floats(1e-9, 1e9), st.just(float("inf"))))
def test_flow_gains_against_mpmath(value, t):
    gains = linalg.flow_gains(jnp.asarray([value, 0.0]), jnp.asarray(t))
    exact = -mpmath.expm1(-mpmath.mpf(value) * mpmath.mpf(t)) / mpmath.mpf(value)
    np.testing.assert_allclose(gains, [float(exact), 0 if np.isinf(t) else t], rtol=1e-14)


def test_psd_root_against_scipy(dtype):
    matrix = psd(5, 5, 1).astype(dtype)
    tolerance = 1e-10 if dtype == jnp.float64 else 1e-3
    expected = scipy.linalg.sqrtm(np.asarray(matrix, float))
    np.testing.assert_allclose(linalg.psd_root(matrix), expected, atol=tolerance)
    assert np.all(linalg.psd_root(-jnp.eye(2, dtype=dtype)) == 0)  # rounding below 0 is cut
