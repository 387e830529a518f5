"""Kernels, Gram matrices and the three regressions against SciPy and scikit-learn."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.integrate import solve_ivp
from scipy.spatial.distance import cdist
from shared import normal
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics import pairwise

from ntkcourse import convolution, features, infinite, kernels

KERNELS = {
    "linear": (kernels.linear(), pairwise.linear_kernel),
    "cubic": (kernels.polynomial(3, 0.5), lambda x, y: (x @ y.T + 0.5) ** 3),
    "square": (kernels.polynomial(2), lambda x, y: (x @ y.T + 1) ** 2),
    "rbf": (kernels.rbf(1.7), lambda x, y: pairwise.rbf_kernel(x, y, gamma=0.5 / 1.7**2)),
    "laplace": (kernels.laplace(0.6), lambda x, y: np.exp(-cdist(x, y, "cityblock") / 0.6)),
    "laplace2": (kernels.laplace(0.6, norm=2), lambda x, y: np.exp(-cdist(x, y) / 0.6)),
    "cauchy": (
        kernels.cauchy(1.3),
        lambda x, y: np.prod(1 / (1 + (x[:, None] - y[None]) ** 2 / 1.3**2), axis=-1),
    ),
    "unit rbf": (kernels.rbf(), lambda x, y: np.exp(-(cdist(x, y) ** 2) / 2)),
    "unit laplace": (kernels.laplace(), lambda x, y: np.exp(-cdist(x, y, "cityblock"))),
    "unit cauchy": (kernels.cauchy(), lambda x, y: np.prod(1 / (1 + (x[:, None] - y) ** 2), -1)),
}
SMOOTH = ["linear", "cubic", "rbf", "cauchy"]


@pytest.mark.parametrize("name", KERNELS)
def test_formula(name, dtype):
    k, exact = KERNELS[name]
    x, y = normal(6, 3, dtype=dtype), normal(4, 3, seed=1, dtype=dtype)
    matrix = kernels.gram(k, x, y)
    assert matrix.dtype == dtype
    rtol = 1e-13 if dtype == jnp.float64 else 2e-5
    np.testing.assert_allclose(matrix, exact(np.asarray(x, float), np.asarray(y, float)), rtol=rtol)
    np.testing.assert_allclose(k(x[0], y[1]), matrix[0, 1], rtol=rtol)
    diagonal = np.diagonal(exact(np.asarray(x, float), np.asarray(x, float)))
    np.testing.assert_allclose(jnp.diagonal(kernels.gram(k, x)), diagonal, rtol=rtol)


@pytest.mark.parametrize("name", KERNELS)
def test_gradient_at_equal_and_other_points(name, dtype):
    k = KERNELS[name][0]
    x, y = jnp.asarray([1.0, -2.0], dtype), jnp.asarray([0.3, 0.4], dtype)
    for a, b in [(x, y), (x, x), (x, 2 * x), (x, -x), (x, 0 * x), (0 * x, 0 * x)]:
        value, slope = jax.value_and_grad(k)(a, b)
        assert np.isfinite(value)
        assert np.all(np.isfinite(slope))
    if dtype == jnp.float64:
        points = [(x, y), (x, x)] if name in SMOOTH else [(x, y)]
        for a, b in points:
            steps = 1e-6 * jnp.eye(2)
            around = [(k(a + e, b) - k(a - e, b)) / 2e-6 for e in steps]
            np.testing.assert_allclose(jax.grad(k)(a, b), around, rtol=1e-7, atol=1e-8)
        if name.endswith(("rbf", "cauchy", "laplace2")):
            assert jax.grad(k)(x, x).tolist() == [0, 0]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.sampled_from(sorted(KERNELS)), arrays(float, (5, 2), elements=st.floats(-3, 3)))
def test_symmetric_and_positive_semidefinite(name, x):
    matrix = np.asarray(kernels.gram(KERNELS[name][0], jnp.asarray(x)))
    assert np.array_equal(matrix, matrix.T)
    assert np.linalg.eigvalsh(matrix).min() >= -1e-12 * np.trace(matrix)


def test_sums_and_products_are_kernels():
    x, y = normal(5, 2), normal(3, 2, seed=1)
    a, b = kernels.rbf(2.0), kernels.linear()
    ga, gb = kernels.gram(a, x, y), kernels.gram(b, x, y)
    own = lambda u, v: a(u, v) * b(u, v)  # noqa: E731
    for k, expected in (
        (a + b, ga + gb),
        (a * b, ga * gb),
        (own, ga * gb),
        (a + own, ga + ga * gb),
        (own + a, ga + ga * gb),
        (2 * a + 3.0, 2 * ga + 3),
        (a * (b + 1), ga * gb + ga),
    ):
        np.testing.assert_allclose(kernels.gram(k, x, y), expected, rtol=1e-13)
        np.testing.assert_allclose(k(x[0], y[0]), expected[0, 0], rtol=1e-13)
    assert np.all(kernels.gram(lambda u, v: 2.0, x, y) == 2)


def test_sums_of_kernels_keep_the_dtype(dtype):
    x = normal(5, 2, dtype=dtype)
    k = 0.5 * kernels.rbf(2.0) + kernels.laplace(1.5) * kernels.polynomial(2) + 1.0
    assert kernels.gram(k, x).dtype == dtype
    assert k(x[0], x[1]).dtype == dtype
    assert jax.jit(kernels.gram)(k, x).dtype == dtype


@pytest.mark.parametrize(
    "make", [kernels.rbf, kernels.laplace, kernels.cauchy, lambda s: kernels.laplace(s, 2)]
)
def test_one_lengthscale_per_coordinate(user, make, dtype):
    x, y, scales = normal(5, 3, dtype=dtype), normal(4, 3, seed=1, dtype=dtype), [0.5, 1.0, 2.0]
    stretched = [p / np.asarray(scales, dtype)[None] for p in (x, y)]
    expected = kernels.gram(make(1.0), *stretched)
    for lengthscale in (scales, np.asarray(scales), jnp.asarray(scales, dtype)):
        matrix = kernels.gram(make(lengthscale), x, y)
        np.testing.assert_allclose(matrix, expected, rtol=1e-5 if dtype == jnp.float32 else 1e-13)
        assert matrix.dtype == dtype


def test_kernels_of_one_family_share_one_function():
    # that is how JAX knows that it has compiled them before
    for make in (kernels.rbf, kernels.laplace, kernels.cauchy, partial(kernels.polynomial, 3)):
        assert make(0.5).formula == make(2.0).formula


def test_kernels_can_be_differentiated_by_their_parameters(user):
    x = normal(4, 2)
    slope = jax.grad(lambda s: jnp.sum(kernels.gram(kernels.rbf(s), x)))(1.5)
    square = cdist(x, x) ** 2
    assert slope == pytest.approx(np.sum(np.exp(-square / 4.5) * square / 1.5**3), rel=1e-12)


@pytest.mark.parametrize("columns", [(), (2,)])
@pytest.mark.parametrize("ridge", [0.0, 1e-3, 2.0])
def test_ridge_regression_is_kernel_ridge(ridge, columns):
    x, y, new = normal(9, 2), normal(9, *columns, seed=1), normal(5, 2, seed=2)
    oracle = KernelRidge(alpha=ridge, kernel="rbf", gamma=0.5).fit(x, y)
    f = kernels.ridge_regression(kernels.rbf(), x, y, ridge)
    np.testing.assert_allclose(f(new), oracle.predict(new), rtol=1e-7, atol=1e-8)
    assert f(new).shape == (5, *columns)


def test_ridge_regression_of_duplicated_points_is_the_limit(dtype):
    x = normal(4, 2, dtype=dtype)
    x, y = jnp.concatenate([x, x[:2]]), normal(6, seed=1, dtype=dtype)
    new, k = normal(3, 2, seed=2, dtype=dtype), kernels.rbf()
    f = kernels.ridge_regression(k, x, y)(new)
    assert f.dtype == dtype
    x64, y64, new64 = (np.asarray(a, float) for a in (x, y, new))
    exact = pairwise.rbf_kernel(new64, x64, gamma=0.5) @ (
        scipy.linalg.pinvh(pairwise.rbf_kernel(x64, gamma=0.5), rtol=1e-6) @ y64
    )
    np.testing.assert_allclose(f, exact, rtol=1e-10 if dtype == jnp.float64 else 1e-4)
    if dtype == jnp.float64:
        near, nearer = (kernels.ridge_regression(k, x, y, r)(new) - f for r in (1e-5, 1e-6))
        np.testing.assert_allclose(near, 10 * nearer, rtol=1e-3)
    # at a doubled point the fit is the mean of its two targets
    means = np.concatenate([(y64[:2] + y64[4:]) / 2, y64[2:4]])
    fitted = kernels.ridge_regression(k, x, y)(x[:4])
    np.testing.assert_allclose(fitted, means, atol=1e-10 if dtype == jnp.float64 else 1e-4)


def test_integers_are_converted(user, dtype):
    x, y = jnp.asarray([[0.0], [1.0], [2.5]], dtype), np.array([1, 0, 2])
    f = kernels.ridge_regression(kernels.rbf(), x, y, np.float64(0.1))
    exact = kernels.ridge_regression(kernels.rbf(), x, jnp.asarray(y, dtype), 0.1)
    new = np.array([[1], [3]])
    assert f(new).dtype == dtype
    np.testing.assert_array_equal(f(new), exact(jnp.asarray(new, dtype)))
    bytes_ = np.array([[200, 100], [100, 200]], np.uint8)
    assert kernels.gram(kernels.linear(), bytes_)[0, 1] == 40000
    assert kernels.linear()(*bytes_) == 40000
    assert kernels.rbf(100.0)(*bytes_) == pytest.approx(np.exp(-1))
    assert infinite.nngp(1)(*bytes_) == pytest.approx(40000)
    assert kernels.gaussian_process(kernels.rbf(), bytes_, [1, 2])(bytes_)[0].dtype == jnp.float64


def flow(k, x, y, start, times):
    """The flow at x and at new points, as an ordinary differential equation."""
    points = np.concatenate([x, start[0]])
    cross = np.asarray(kernels.gram(k, jnp.asarray(points), x))
    n, shape = len(x), start[1].shape

    def slope(_, f):
        f = f.reshape(shape)
        return (cross @ (y - f[:n])).ravel()

    run = solve_ivp(
        slope, (0, times[-1]), start[1].ravel(), "DOP853", times, rtol=1e-10, atol=1e-12
    )
    return run.y.T.reshape(-1, *shape)[:, n:]


@pytest.mark.parametrize("columns", [(), (2,)])
@pytest.mark.parametrize("start", [None, "cosine"])
def test_gradient_flow_solves_its_equation(columns, start):
    x, y, new = normal(6, 2), normal(6, *columns, seed=1), normal(4, 2, seed=2)
    x = jnp.concatenate([x, x[:1]])  # singular
    y = jnp.concatenate([y, y[:1] + 1])

    def f0(z):
        wave = jnp.cos(3 * z[:, 0])
        return jnp.stack([wave, wave**2], 1) if columns else wave

    times = np.array([0.0, 0.3, 2.0, 10.0])
    points = jnp.concatenate([x, new])
    initial = np.zeros((len(points), *columns)) if start is None else np.asarray(f0(points))
    exact = flow(kernels.rbf(), x, y, (new, initial), times)
    begin = None if start is None else f0
    f = kernels.gradient_flow(kernels.rbf(), x, y, jnp.asarray(times), begin)(new)
    assert f.shape == (4, 4, *columns)
    np.testing.assert_allclose(f, exact, atol=1e-8)
    single = kernels.gradient_flow(kernels.rbf(), x, y, 2.0, begin)(new)
    np.testing.assert_allclose(single, exact[2], atol=1e-8)
    assert np.array_equal(f[0], initial[len(x) :])


def test_gradient_flow_ends_at_the_interpolant(dtype):
    x, y, new = (normal(*s, seed=i, dtype=dtype) for i, s in enumerate([(6, 2), (6,), (4, 2)]))
    k = kernels.laplace()
    end = kernels.gradient_flow(k, x, y, float("inf"))(new)
    late = kernels.gradient_flow(k, x, y, 1e4)(new)
    fit = kernels.ridge_regression(k, x, y)(new)
    tolerance = 1e-12 if dtype == jnp.float64 else 1e-5
    np.testing.assert_allclose(end, fit, atol=tolerance)
    np.testing.assert_allclose(late, fit, atol=tolerance)
    assert end.dtype == dtype

    # with f0 the limit is f0 plus the interpolant of what f0 leaves
    def f0(z):
        return jnp.sin(z[:, 0])

    shifted = kernels.ridge_regression(k, x, y - f0(x))(new) + f0(new)
    moved = kernels.gradient_flow(k, x, y, float("inf"), f0)(new)
    np.testing.assert_allclose(moved, shifted, atol=tolerance)


@pytest.mark.parametrize("columns", [(), (2,)])
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_gaussian_process_is_that_of_scikit_learn(noise, columns):
    x, y, new = normal(7, 2), normal(7, *columns, seed=1), normal(4, 2, seed=2)
    oracle = GaussianProcessRegressor(RBF(1.2), alpha=noise or 1e-13, optimizer=None).fit(x, y)
    mean, cov = oracle.predict(new, return_cov=True)
    ours, ours_cov = kernels.gaussian_process(kernels.rbf(1.2), x, y, noise)(new)
    np.testing.assert_allclose(ours, mean, atol=1e-8)
    np.testing.assert_allclose(ours_cov, cov[..., 0] if columns else cov, atol=1e-8)
    assert np.array_equal(ours_cov, ours_cov.T)


def test_gaussian_process_interpolates_singular_data(dtype):
    x = normal(4, 2, dtype=dtype)
    twice, y = jnp.concatenate([x, x]), jnp.tile(normal(4, seed=1, dtype=dtype), 2)
    mean, cov = kernels.gaussian_process(kernels.rbf(), twice, y)(x)
    tolerance = 1e-11 if dtype == jnp.float64 else 2e-4
    np.testing.assert_allclose(mean, y[:4], atol=tolerance)
    np.testing.assert_allclose(cov, np.zeros((4, 4)), atol=tolerance)


def within_4_sigma(samples, mean, cov):
    """Whether the mean and second moments of the rows are within four standard errors."""
    count = len(samples)
    error = np.abs(samples.mean(0) - mean) / np.sqrt(np.diagonal(cov) / count + 1e-30)
    centred = samples - mean
    variance = np.diagonal(cov)[:, None] * np.diagonal(cov) + cov**2
    spread = np.abs(centred.T @ centred / count - cov) / np.sqrt(variance / count + 1e-30)
    return error.max() < 4 and spread.max() < 4


def test_samples_have_the_law_asked_for(dtype):
    x = normal(4, 2, dtype=dtype)
    x = jnp.concatenate([x, x[:1]])  # singular
    k = kernels.rbf(2.0)
    cov, key = kernels.gram(k, x), jax.random.key(3)
    mean = jnp.arange(5, dtype=dtype)
    for samples, center in [
        (kernels.prior_samples(k, x, 20_000, key=key), 0 * mean),
        (kernels.gaussian_samples(mean, cov, 20_000, key=key), mean),
    ]:
        assert samples.shape == (20_000, 5)
        assert samples.dtype == dtype
        assert within_4_sigma(*(np.asarray(a, float) for a in (samples, center, cov)))
        np.testing.assert_allclose(
            samples[:, 0] - center[0],
            samples[:, 4] - center[4],
            atol=1e-6 if dtype == "float64" else 5e-3,
        )
    assert kernels.prior_samples(k, x, key=key).shape == (1, 5)
    assert kernels.gaussian_samples(mean, cov, key=key).shape == (1, 5)
    # an eigenvalue that is negative by rounding counts as 0
    flat = kernels.gaussian_samples(mean[:2], jnp.diag(jnp.asarray([1, -1e-6], dtype)), 9, key=key)
    assert np.all(flat[:, 1] == 1)


X, Y = np.ones((3, 2)), np.ones(3)
K = kernels.rbf()
BAD = [
    (lambda: kernels.gram(K, np.ones(5)), ValueError, r"x of shape \(n, d\).*\(5,\).*x\[:, None\]"),
    (lambda: kernels.gram(K, 1.0), ValueError, r"x of shape \(n, d\).*got shape \(\)$"),
    (lambda: kernels.gram(K, X, np.ones(5)), ValueError, r"y of shape \(n, d\)"),
    (lambda: kernels.gram(K, np.ones((0, 2))), ValueError, "at least one point in x"),
    (lambda: kernels.gram(K, np.ones((2, 0))), ValueError, "at least one point in x"),
    (lambda: kernels.gram(K, X, np.ones((3, 4))), ValueError, r"points of shape \(2,\).*\(4,\)"),
    (lambda: kernels.gram(K, X * np.nan), ValueError, "finite x, got NaN"),
    (lambda: kernels.gram(K, X, X / 0.0), ValueError, "finite y, got NaN"),
    (lambda: kernels.gram(K, X.astype(str)), TypeError, "x to be an array of numbers"),
    (lambda: kernels.gram(K, np.array([[None]])), TypeError, "x to be an array of numbers"),
    (lambda: kernels.gram(K, X * 1j), TypeError, "expected real x, got dtype complex128"),
    (lambda: kernels.gram(5, X), TypeError, "expected a kernel first"),
    (lambda: kernels.gram(X, K), TypeError, "expected a kernel first"),
    (lambda: kernels.gram(K + -1.0, X), ValueError, "constant kernel >= 0"),
    (
        lambda: kernels.gram(kernels.rbf([1.0, 2.0, 3.0]), X),
        ValueError,
        "one lengthscale for each of",
    ),
    (lambda: kernels.gram(lambda x, y: x, X), ValueError, r"k\(x, y\) to be a number.*\(2,\)"),
    (lambda: K(np.ones(2), np.ones(3)), ValueError, r"one shape.*\(2,\) and \(3,\).*gram"),
    (lambda: kernels.linear()(1.0, 1.0), ValueError, r"two points of one shape"),
    (lambda: kernels.cauchy()(np.ones(0), np.ones(0)), ValueError, r"two points of one shape"),
    (lambda: kernels.laplace()(np.ones(2), np.ones(3)), ValueError, "two points of one shape"),
    (lambda: kernels.laplace(1, 2)(np.ones(2), np.ones(3)), ValueError, "two points of one shape"),
    (lambda: kernels.linear()(np.ones(2), np.ones(2) * np.nan), ValueError, "finite y"),
    (lambda: kernels.linear()(np.ones(2) * np.nan, np.ones(2)), ValueError, "finite x"),
    (lambda: kernels.polynomial(0), ValueError, "degree >= 1, got 0"),
    (lambda: kernels.polynomial(2.0), TypeError, "whole number for degree, got 2.0"),
    (lambda: kernels.polynomial(True), TypeError, "whole number for degree, got True"),
    (lambda: kernels.polynomial(2, -1.0), ValueError, "offset >= 0, got -1.0"),
    (lambda: kernels.rbf(0.0), ValueError, "lengthscale > 0, got 0.0"),
    (lambda: kernels.rbf(float("nan")), ValueError, "finite number for lengthscale, got nan"),
    (lambda: kernels.rbf("wide"), TypeError, "number for lengthscale, got 'wide'"),
    (lambda: kernels.rbf([1.0, -2.0]), ValueError, "lengthscale > 0"),
    (lambda: kernels.rbf([[1.0]]), ValueError, "one per coordinate"),
    (lambda: kernels.rbf(True), TypeError, "number for lengthscale, got True"),
    (lambda: kernels.rbf(None), TypeError, "number for lengthscale, got None"),
    (lambda: kernels.laplace(-1.0), ValueError, "lengthscale > 0, got -1.0"),
    (lambda: kernels.laplace(1.0, norm=3), ValueError, "norm 1 or 2, got 3"),
    (lambda: kernels.cauchy(0), ValueError, "lengthscale > 0, got 0"),
    (lambda: kernels.cauchy(np.inf), ValueError, "finite number for lengthscale, got inf"),
    (lambda: kernels.ridge_regression(K, X, Y, -0.1), ValueError, "ridge >= 0, got -0.1"),
    (lambda: kernels.ridge_regression(K, X[0], Y), ValueError, "x of shape"),
    (
        lambda: kernels.ridge_regression(K, X, np.ones(4)),
        ValueError,
        r"y of shape \(3,\) or \(3, c",
    ),
    (lambda: kernels.ridge_regression(K, X, np.ones((3, 1, 1))), ValueError, r"y of shape \(3,\)"),
    (lambda: kernels.ridge_regression(K, X, 1.0), ValueError, r"y of shape.*got shape \(\)"),
    (lambda: kernels.ridge_regression(K, X, Y * np.nan), ValueError, "finite y, got NaN"),
    (lambda: kernels.ridge_regression(K, X, ["a"] * 3), TypeError, "y to be an array of numbers"),
    (lambda: kernels.ridge_regression(K, X, Y)(np.ones((1, 3))), ValueError, "x_new with points"),
    (lambda: kernels.ridge_regression(K, X, Y)(np.ones(2)), ValueError, "x_new of shape"),
    (lambda: kernels.gradient_flow(K, X, Y, -1.0), ValueError, "times t >= 0, got -1"),
    (lambda: kernels.gradient_flow(K, X, Y, np.nan), ValueError, "times t >= 0, got nan"),
    (
        lambda: kernels.gradient_flow(K, X, Y, [[1.0]]),
        ValueError,
        r"list of times, got.*\(1, 1\)",
    ),
    (lambda: kernels.gradient_flow(K, X, Y[:2], 1.0), ValueError, r"y of shape \(3,\)"),
    (lambda: kernels.gradient_flow(K, X[0], Y, 1.0), ValueError, "x of shape"),
    (lambda: kernels.gradient_flow(K, X, Y, 1.0)(np.ones((1, 3))), ValueError, "x_new with points"),
    (
        lambda: kernels.gradient_flow(K, X, Y, 1.0, f0=lambda z: z),
        ValueError,
        r"f0\(x\) of shape \(3,\) like y, got shape \(3, 2\)",
    ),
    (lambda: kernels.gaussian_process(K, X, Y, -1e-3), ValueError, "noise >= 0, got -0.001"),
    (lambda: kernels.gaussian_process(K, X, Y[:2]), ValueError, r"y of shape \(3,\)"),
    (lambda: kernels.gaussian_process(K, X[0], Y), ValueError, "x of shape"),
    (lambda: kernels.gaussian_process(K, X, Y)(np.ones((1, 3))), ValueError, "x_new with points"),
    (lambda: kernels.prior_samples(K, X, 0, key=jax.random.key(0)), ValueError, "count >= 1"),
    (lambda: kernels.prior_samples(K, X, key=None), ValueError, r"key for samples.*jax.random.key"),
    (lambda: kernels.prior_samples(K, X), TypeError, "key"),
    (lambda: kernels.prior_samples(K, X[0], key=jax.random.key(0)), ValueError, "x of shape"),
    (
        lambda: kernels.gaussian_samples(np.ones(2), np.eye(3), key=jax.random.key(0)),
        ValueError,
        r"mean of shape \(3,\)",
    ),
    (
        lambda: kernels.gaussian_samples(Y, np.eye(3) * np.nan, key=jax.random.key(0)),
        ValueError,
        "finite cov",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD)
def test_bad_input(user, call, error, message):
    with np.errstate(all="ignore"), pytest.raises(error, match=message):
        call()


def test_everything_in_32_bits():
    with jax.enable_x64(False):
        rng = np.random.default_rng(0)
        x, y = jnp.asarray(rng.normal(size=(5, 3))), jnp.asarray(rng.normal(size=5))
        image, key = jnp.asarray(rng.normal(size=(2, 4, 4, 1))), jax.random.key(0)
        phi = features.fourier_features(3, m=6, key=key)
        results = [kernels.gram(k, x) for k, _ in KERNELS.values()]
        results += [
            kernels.gradient_flow(kernels.rbf(), x, y, 1.0)(x),
            kernels.ridge_regression(kernels.rbf(), x, y)(x),
            *kernels.gaussian_process(kernels.rbf(), x, y, 0.1)(x),
            kernels.prior_samples(kernels.rbf(), x, key=key),
            phi(x),
            features.random_layer(3, m=4, activation="relu", key=key)(x),
            features.feature_regression(phi, x, y),
            *infinite.trained_ensemble(infinite.nngp(2), infinite.ntk(2), x, y, x, 1.0),
            *[convolution.ntk(3, "erf", pooling=p)(*image) for p in (True, False)],
        ]
        results += [infinite.ntk(2, a)(x[0], x[1]) for a in ("relu", "erf", "gelu", "sin", "tanh")]
        for result in results:
            assert result.dtype == jnp.float32
            assert np.all(np.isfinite(result))
