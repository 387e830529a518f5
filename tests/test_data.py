"""Data sets against scikit-learn and against the geometry they promise."""

import sys

import jax
import numpy as np
import pytest
import sklearn.datasets
from sklearn.preprocessing import StandardScaler

from ntkcourse import data

KEY = jax.random.key(0)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_circle(n):
    x = data.circle(n, 3)
    expected = 3 * np.exp(2j * np.pi * np.arange(n) / n)
    np.testing.assert_allclose(x, np.stack([expected.real, expected.imag], 1), atol=1e-14)
    assert x.dtype == np.float64
    assert not x.weak_type
    np.testing.assert_array_equal(data.circle(n), data.circle(n, 1.0))


@pytest.mark.parametrize("d", [1, 2, 5])
def test_sphere_is_uniform(d):
    n = 20_000
    x = np.asarray(data.sphere(n, d, 2.0, key=KEY))
    assert x.shape == (n, d)
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), 2.0, rtol=1e-13)
    # coordinates have mean 0 and covariance r^2 / d, and x_1^2 variance 2 (d - 1) / (d^2 (d + 2))
    band = 4 * 2 / np.sqrt(n)
    np.testing.assert_allclose(x.mean(0), 0, atol=band)
    np.testing.assert_allclose(x.T @ x / n, 4 / d * np.eye(d), atol=2 * band)
    fourth = np.mean((x[:, 0] / 2) ** 4)
    assert abs(fourth - 3 / (d * (d + 2))) < 4 / np.sqrt(n)


def test_sphere_has_radius_one_and_follows_its_key():
    x = data.sphere(5, 3, key=KEY)
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1, rtol=1e-14)
    np.testing.assert_array_equal(x, data.sphere(5, 3, key=KEY))
    assert not np.any(x == data.sphere(5, 3, key=jax.random.key(1)))


@pytest.mark.parametrize("name", ["diabetes", "wine", "breast_cancer", "digits"])
def test_table_is_as_the_source_has_it(name):
    raw = {"scaled": False} if name == "diabetes" else {}
    x, y = getattr(sklearn.datasets, f"load_{name}")(return_X_y=True, **raw)
    ours, targets = data.table(name)
    assert ours.dtype == np.float64
    np.testing.assert_array_equal(ours, x)
    np.testing.assert_array_equal(targets, y)


@pytest.mark.parametrize("name", ["diabetes", "digits"])
def test_standardise_sees_the_training_rows_only(name):
    x = data.table(name)[0]
    train, test, one = data.standardise(x[:100], x[100:], x[7:8])
    scaler = StandardScaler().fit(x[:100])
    np.testing.assert_allclose(train, scaler.transform(x[:100]), atol=1e-10)
    np.testing.assert_allclose(test, scaler.transform(x[100:]), atol=1e-10)
    np.testing.assert_allclose(one, train[7:8], atol=1e-14)
    # other rows to test on change nothing: no leak
    again = data.standardise(x[:100], 100 * x[100:] + 5)
    np.testing.assert_array_equal(again[0], train)


def test_standardise_centres_a_constant_column(dtype):
    x = jax.numpy.array([[0.1, 1.0], [0.1, 2.0], [0.1, 6.0]], dtype)
    train, other = data.standardise(x, jax.numpy.array([[2.1, 3.0]], dtype))
    assert train.dtype == other.dtype == dtype
    np.testing.assert_allclose(train[:, 0], 0, atol=1e-7)
    np.testing.assert_allclose(other, [[2, 0]], atol=1e-6)
    (alone,) = jax.jit(data.standardise)(x)
    np.testing.assert_allclose(alone, train, rtol=1e-6, atol=1e-7)


def test_a_table_without_scikit_learn_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r'pip install "ntkcourse\[book\]"'):
        data.table("wine")


@pytest.mark.usefixtures("user")
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: data.circle(0), ValueError, "expected n >= 1, got 0"),
        (lambda: data.circle(2.5), TypeError, "expected a whole number for n, got 2.5"),
        (lambda: data.circle(3, 0.0), ValueError, "expected radius > 0, got 0.0"),
        (lambda: data.sphere(0, 2, key=KEY), ValueError, "expected n >= 1"),
        (lambda: data.sphere(2, 0, key=KEY), ValueError, "expected d >= 1"),
        (lambda: data.sphere(2, 2, -1.0, key=KEY), ValueError, "expected radius > 0, got -1.0"),
        (lambda: data.sphere(2, 2, float("nan"), key=KEY), ValueError, "finite number for radius"),
        (lambda: data.sphere(2, 2, key=None), ValueError, "expected a key for sphere, got None"),
        (lambda: data.sphere(2, 2), TypeError, "key"),
        (lambda: data.table("iris"), ValueError, "expected a data set among diabetes, .* 'iris'"),
        (lambda: data.standardise(np.zeros(3)), ValueError, "expected train of shape"),
        (
            lambda: data.standardise(np.zeros((3, 2)), np.zeros((3, 1))),
            ValueError,
            r"expected others with points of shape \(2,\), got points of \(1,\)",
        ),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
