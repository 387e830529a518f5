"""Random features against the kernels they estimate, scikit-learn and the flow of their weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp
from scipy.spatial.distance import cdist
from scipy.special import erf
from shared import normal
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import Ridge

from ntkcourse import features, infinite, kernels

EXACT = {
    "rbf": lambda x, y, s: np.exp(-(cdist(x, y) ** 2) / (2 * s**2)),
    "laplace": lambda x, y, s: np.exp(-cdist(x, y, "cityblock") / s),
    "cauchy": lambda x, y, s: np.prod(1 / (1 + ((x[:, None] - y) / s) ** 2), axis=-1),
}
M = 100_000


def within_4_sigma(phi_x, phi_y, exact):
    """Whether sum_i phi_i(x) phi_i(y) is within four standard errors, estimated from its terms."""
    phi_x, phi_y = (np.asarray(p, float) for p in (phi_x, phi_y))
    terms = phi_x[:, None] * phi_y[None]
    error = np.abs(terms.sum(-1) - exact)
    return np.all(error < 4 * terms.std(-1) * np.sqrt(terms.shape[-1]) + 1e-12)


@pytest.mark.parametrize("lengthscale", [0.7, 2.0])
@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("kernel", EXACT)
def test_fourier_features_estimate_their_kernel(kernel, paired, lengthscale, dtype):
    x, y = normal(3, 2, dtype=dtype), normal(4, 2, seed=1, dtype=dtype)
    phi = features.fourier_features(
        2, m=M, kernel=kernel, lengthscale=lengthscale, paired=paired, key=jax.random.key(1)
    )
    assert phi(x).shape == (3, M)
    assert phi(x).dtype == dtype
    exact = EXACT[kernel](np.asarray(x, float), np.asarray(y, float), lengthscale)
    fx, fy = np.asarray(phi(x)), np.asarray(phi(y))
    if paired:  # a cosine and its sine belong together
        fx, fy = (f[:, : M // 2] + 1j * f[:, M // 2 :] for f in (fx, fy))
        terms = np.real(fx[:, None] * np.conj(fy[None]))
        error = np.abs(terms.sum(-1) - exact)
        assert np.all(error < 4 * terms.std(-1) * np.sqrt(M / 2))
    else:
        assert within_4_sigma(fx, fy, exact)


def test_defaults_are_the_unit_rbf_kernel_unpaired():
    key, x = jax.random.key(0), normal(3, 2)
    plain = features.fourier_features(2, m=6, key=key)(x)
    named = features.fourier_features(2, m=6, kernel="rbf", lengthscale=1.0, paired=False, key=key)(
        x
    )
    np.testing.assert_array_equal(plain, named)


def test_paired_features_are_exact_at_equal_points_and_see_differences_only():
    x, key = normal(4, 3), jax.random.key(0)
    phi = features.fourier_features(3, m=10, paired=True, key=key)
    gram = phi(x) @ phi(x).T
    np.testing.assert_allclose(np.diagonal(gram), np.ones(4), rtol=1e-14)
    moved = phi(x + 5.0)
    np.testing.assert_allclose(moved @ moved.T, gram, atol=1e-12)
    other = features.fourier_features(3, m=10, key=key)(x)
    assert np.ptp(np.sum(other**2, 1)) > 0.1


def test_fourier_features_are_as_good_as_those_of_scikit_learn():
    x = np.asarray(normal(20, 3))
    exact = EXACT["rbf"](x, x, 1.5)

    def rms(maps):
        return np.sqrt(np.mean([(f @ f.T - exact) ** 2 for f in maps]))

    peers = [
        RBFSampler(gamma=0.5 / 1.5**2, n_components=200, random_state=s).fit_transform(x)
        for s in range(20)
    ]
    keys = jax.random.split(jax.random.key(0), 20)
    ours = [
        features.fourier_features(3, m=200, lengthscale=1.5, key=k)(jnp.asarray(x)) for k in keys
    ]
    assert 0.8 < rms(ours) / rms(peers) < 1.25


def test_phases_are_uniform_over_the_circle():
    # at x = 0 the features are sqrt(2 / m) cos(b): mean 0, variance 1 / m
    phi = features.fourier_features(1, m=M, key=jax.random.key(2))(jnp.zeros((1, 1)))[0]
    waves = np.asarray(phi) * np.sqrt(M / 2)
    assert abs(waves.mean()) < 4 * np.sqrt(0.5 / M)
    assert abs(np.mean(waves**2) - 0.5) < 4 * np.sqrt(0.125 / M)


def test_waves_and_their_derivatives_are_those_of_numpy(dtype):
    """On small and large angles, at the ends and in the middle of a turn."""
    angles = np.concatenate([np.linspace(-50, 50, 20_001), np.arange(-8, 9) * np.pi / 2])
    turns = jnp.asarray(angles / (2 * np.pi), dtype)
    exact = 2 * np.pi * np.asarray(turns, float)
    eps = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(features._cosine(turns), np.cos(exact), atol=60 * eps)
    slope = jax.vmap(jax.grad(features._cosine))(turns)
    np.testing.assert_allclose(slope, -2 * np.pi * np.sin(exact), atol=600 * eps)


@pytest.mark.parametrize("sigma_b", [0.0, 0.6])
@pytest.mark.parametrize("activation", ["relu", "erf", "gelu"])
def test_random_layer_estimates_the_dual(activation, sigma_b, dtype):
    x, y = normal(3, 4, dtype=dtype), normal(2, 4, seed=1, dtype=dtype)
    phi = features.random_layer(
        4, m=M, activation=activation, sigma_w=1.3, sigma_b=sigma_b, key=jax.random.key(3)
    )
    assert phi(x).dtype == dtype
    nngp = kernels.gram(infinite.nngp(2, activation, 1.3, sigma_b), x, y)
    exact = (np.asarray(nngp, float) - sigma_b**2) / 1.3**2
    assert within_4_sigma(phi(x), phi(y), exact)


def test_random_layer_with_other_laws_and_functions():
    x = normal(3, 2)
    phi = features.random_layer(
        2, m=M, activation=lambda z: z**2, law=jax.random.rademacher, key=jax.random.key(0)
    )
    # w = +-1: E (w.x / sqrt 2)^2 (w.y / sqrt 2)^2 over the four signs
    signs = np.array([[1.0, 1], [1, -1], [-1, 1], [-1, -1]])
    exact = np.mean([np.outer((x @ s) ** 2, (x @ s) ** 2) / 4 for s in signs], axis=0)
    assert within_4_sigma(phi(x), phi(x), exact)
    plain = features.random_layer(2, m=5, activation="erf", key=jax.random.key(1))
    full = features.random_layer(
        2, m=5, activation=jax.scipy.special.erf, sigma_w=1.0, sigma_b=0.0, key=jax.random.key(1)
    )
    np.testing.assert_array_equal(plain(x), full(x))
    weights = scipy.linalg.lstsq(x, np.sqrt(2) * scipy.special.erfinv(np.sqrt(5) * full(x)))[0]
    np.testing.assert_allclose(full(x), erf(x @ weights / np.sqrt(2)) / np.sqrt(5), rtol=1e-8)


def problem(columns=(), n=6, m=9):
    x, y = normal(n, 2), normal(n, *columns, seed=1)
    phi = features.random_layer(2, m=m, activation="tanh", sigma_b=1.0, key=jax.random.key(4))
    return phi, x, y, normal(m, *columns, seed=2)


@pytest.mark.parametrize(
    ("columns", "m", "ridge", "start"),
    [((), 4, 0.0, False), ((2,), 9, 0.2, True), ((), 9, 0.0, True), ((2,), 4, 0.2, False)],
)
def test_feature_regression_solves_its_flow(columns, m, ridge, start):
    phi, x, y, theta0 = problem(columns, m=m)
    design = np.asarray(phi(x))
    begin = np.asarray(theta0) if start else np.zeros((m, *columns))

    def slope(_, theta):
        theta = theta.reshape(begin.shape)
        return (-design.T @ (design @ theta - y) - ridge * (theta - begin)).ravel()

    times = np.array([0.0, 0.5, 20.0])
    run = solve_ivp(slope, (0, 20), begin.ravel(), "DOP853", times, rtol=1e-11, atol=1e-12)
    exact = run.y.T.reshape(-1, *begin.shape)
    given_start = theta0 if start else None
    theta = features.feature_regression(
        phi, x, y, t=jnp.asarray(times), ridge=ridge, theta0=given_start
    )
    assert theta.shape == exact.shape
    np.testing.assert_allclose(theta, exact, atol=1e-9)
    single = features.feature_regression(phi, x, y, t=0.5, ridge=ridge, theta0=given_start)
    np.testing.assert_allclose(single, exact[1], atol=1e-9)


@pytest.mark.parametrize("columns", [(), (2,)])
def test_feature_regression_ends_at_ridge_regression(columns):
    phi, x, y, theta0 = problem(columns)
    design = np.asarray(phi(x))
    ridge = Ridge(alpha=0.05, fit_intercept=False, solver="svd").fit(design, y)
    ours = features.feature_regression(phi, x, y, ridge=0.05)
    np.testing.assert_allclose(ours, ridge.coef_.T, rtol=1e-9)
    shortest = features.feature_regression(phi, x, y)
    np.testing.assert_allclose(shortest, np.linalg.lstsq(design, y, rcond=None)[0], rtol=1e-7)
    nearest = features.feature_regression(phi, x, y, theta0=theta0)
    moved = np.linalg.lstsq(design, y - design @ theta0, rcond=None)[0]
    np.testing.assert_allclose(nearest, theta0 + moved, rtol=1e-7)


@pytest.mark.parametrize("ridge", [0.0, 1e-3])
@pytest.mark.parametrize("t", [0.7, float("inf")])
def test_primal_is_dual_also_for_duplicated_points(t, ridge, dtype):
    phi, x, y, _ = problem(n=5)
    x, y = (jnp.concatenate([a, a[:2]]).astype(dtype) for a in (x, y))
    new = normal(4, 2, seed=5, dtype=dtype)
    k = features.feature_kernel(phi)
    primal = phi(new) @ features.feature_regression(phi, x, y, t=t, ridge=ridge)
    assert primal.dtype == dtype
    if ridge == 0:
        dual = kernels.gradient_flow(k, x, y, t)(new)
    else:
        dual = infinite.trained_ensemble(k, k, x, y, new, t, ridge)[0]
    np.testing.assert_allclose(primal, dual, atol=1e-9 if dtype == jnp.float64 else 2e-3)


def test_small_singular_values_count_when_there_is_a_ridge():
    # s = 1e-9 is below the cut of the pseudo-inverse, but s / (s^2 + ridge) is not small
    design = jnp.diag(jnp.asarray([1.0, 1e-9]))
    theta = features.feature_regression(lambda x: design, jnp.eye(2), jnp.ones(2), ridge=1e-6)
    np.testing.assert_allclose(theta, [1 / (1 + 1e-6), 1e-9 / 1e-6], rtol=1e-9)
    theta = features.feature_regression(lambda x: design, jnp.eye(2), jnp.ones(2))
    assert theta.tolist() == [1, 0]
    design = jnp.diag(jnp.asarray([10.0, 1e-6]))  # above the cut, 2 eps s_max^2
    theta = features.feature_regression(lambda x: design, jnp.eye(2), jnp.ones(2))
    np.testing.assert_allclose(theta, [0.1, 1e6], rtol=1e-9)
    design = jnp.diag(jnp.asarray([10.0, 1.5e-7]))  # below it
    theta = features.feature_regression(lambda x: design, jnp.eye(2), jnp.ones(2))
    np.testing.assert_allclose(theta, [0.1, 0], rtol=1e-9)


@settings(max_examples=5, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.sampled_from(["relu", "abs", "sin"]))
def test_feature_kernel_is_the_inner_product(seed, activation):
    phi = features.random_layer(3, m=7, activation=activation, key=jax.random.key(seed))
    x = normal(5, 3, seed=seed)
    matrix = kernels.gram(features.feature_kernel(phi), x)
    np.testing.assert_allclose(matrix, phi(x) @ phi(x).T, atol=1e-13)
    assert np.linalg.eigvalsh(matrix).min() > -1e-12


def test_law_of_the_trained_feature_model():
    """Weights from N(0, I), trained, against infinite.trained_ensemble of the feature kernel."""
    phi, x, y, _ = problem()
    new, k = normal(3, 2, seed=6), features.feature_kernel(phi)
    theta0 = normal(9, 20_000, seed=7)
    theta = features.feature_regression(
        phi, x, jnp.broadcast_to(y[:, None], (6, 20_000)), t=2.0, theta0=theta0
    )
    f = np.asarray(phi(new) @ theta)
    mean, cov = infinite.trained_ensemble(k, k, x, y, new, 2.0)
    spread = np.sqrt(np.outer(np.diagonal(cov), np.diagonal(cov)) + cov**2)
    assert np.all(np.abs(f.mean(1) - mean) < 4 * np.sqrt(np.diagonal(cov) / 20_000))
    assert np.all(np.abs(np.cov(f) - cov) < 4 * spread / np.sqrt(20_000))


def test_integers_and_lists_are_converted(user):
    key = jax.random.key(0)
    phi = features.fourier_features(2, m=4, lengthscale=np.float64(2.0), key=key)
    x = [[1, 2], [3, 4], [0, 1]]
    np.testing.assert_array_equal(phi(x), phi(jnp.asarray(x, float)))
    theta = features.feature_regression(phi, x, [1, 2, 3], t=[0, 1], theta0=[0, 0, 1, 0])
    assert theta.dtype == jnp.float64
    assert theta[0].tolist() == [0, 0, 1, 0]
    layer = features.random_layer(
        2, m=4, activation="relu", sigma_w=np.float64(1.5), sigma_b=np.float64(0.1), key=key
    )
    assert layer(np.ones((1, 2), np.float32)).dtype == jnp.float32


KEY = jax.random.key(0)
X, Y = np.ones((3, 2)), np.ones(3)


def fourier(d=2, m=4, key=KEY, **options):
    return features.fourier_features(d, m=m, key=key, **options)


def layer(d=2, m=4, activation="relu", key=KEY, **options):
    return features.random_layer(d, m=m, activation=activation, key=key, **options)


def fit(x=X, y=Y, **options):
    return features.feature_regression(fourier(), x, y, **options)


BAD = [
    (lambda: fourier(d=0), ValueError, "d >= 1, got 0"),
    (lambda: fourier(d=1.5), TypeError, "whole number for d, got 1.5"),
    (lambda: fourier(m=0), ValueError, "m >= 1, got 0"),
    (lambda: fourier(m=5, paired=True), ValueError, "even number m of paired features, got 5"),
    (lambda: fourier(kernel="matern"), ValueError, "among rbf, laplace, cauchy, got 'matern'"),
    (lambda: fourier(lengthscale=0.0), ValueError, "lengthscale > 0, got 0.0"),
    (lambda: fourier(key=None), ValueError, "a key for fourier_features, got None"),
    (lambda: features.fourier_features(2, m=4), TypeError, "key"),
    (lambda: fourier()(np.ones(2)), ValueError, r"x of shape \(n, d\)"),
    (lambda: fourier()(np.ones((3, 4))), ValueError, r"x of shape \(n, 2\), got shape \(3, 4\)"),
    (lambda: fourier()(X * np.nan), ValueError, "finite x"),
    (lambda: layer(d=0), ValueError, "d >= 1, got 0"),
    (lambda: layer(m=0), ValueError, "m >= 1, got 0"),
    (lambda: layer(activation="swish"), ValueError, "activation among relu"),
    (lambda: layer(sigma_w=0.0), ValueError, "sigma_w > 0, got 0.0"),
    (lambda: layer(sigma_b=-1.0), ValueError, "sigma_b >= 0, got -1.0"),
    (lambda: layer(key=None), ValueError, "a key for random_layer, got None"),
    (lambda: layer()(np.ones((3, 4))), ValueError, r"x of shape \(n, 2\)"),
    (lambda: fit(x=X[0]), ValueError, r"x of shape \(n, d\)"),
    (lambda: fit(y=Y[:2]), ValueError, r"y of shape \(3,\)"),
    (lambda: fit(y=Y * np.inf), ValueError, "finite y"),
    (lambda: fit(t=-1.0), ValueError, "times t >= 0"),
    (lambda: fit(ridge=-1.0), ValueError, "ridge >= 0, got -1.0"),
    (lambda: fit(theta0=np.ones(5)), ValueError, r"theta0 of shape \(4,\), got \(5,\)"),
    (lambda: fit(theta0=np.ones((4, 1))), ValueError, r"theta0 of shape \(4,\), got \(4, 1\)"),
    (lambda: fit(theta0=np.full(4, np.nan)), ValueError, "finite theta0"),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD)
def test_bad_input(user, call, error, message):
    with pytest.raises(error, match=message):
        call()
