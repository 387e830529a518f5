"""What was wrong under transformations of JAX, and ridges that single precision cannot see."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from shared import normal
from sklearn.linear_model import Ridge

from ntkcourse import data, infinite, kernels

X, Y, NEW = normal(20, 3), normal(20, seed=1), normal(4, 3, seed=2)
TWICE, TWICE_Y = jnp.concatenate([X, X[:1]]), jnp.append(Y, Y[0] + 0.5)
CIRCLE, CIRCLE_Y = data.circle(12), jnp.cos(3 * jnp.arange(12.0))
ON_CIRCLE = NEW[:, :2]


def difference(f, at, step=1e-5):
    return (f(at + step) - f(at - step)) / (2 * step)


def slope_and_difference(f):
    """The derivative of f by its first argument and a difference quotient, in one program.

    Outside jit each of the hundreds of operations of a derivative would be a program of its own.
    """

    def both(at, *rest):
        values = jax.vmap(lambda s: f(s, *rest))  # one copy of f for both sides
        above, below = values(at + jnp.array([1e-5, -1e-5], jnp.float64))
        return jax.grad(f)(at, *rest), (above - below) / 2e-5

    return jax.jit(both)


def test_many_ridges_at_once(user):
    # as one batch, the two branches of the solver once hung in most runs
    x, y = normal(200, 3), normal(200, seed=1)
    ridges = jnp.logspace(-6, 1, 8)
    fit = lambda r: kernels.ridge_regression(kernels.rbf(), x, y, r)(x)  # noqa: E731
    together = jax.jit(jax.vmap(fit))
    for _ in range(10):
        values = together(ridges).block_until_ready()
    one_by_one = np.stack([fit(float(r)) for r in ridges])
    np.testing.assert_allclose(values, one_by_one, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "f",
    [
        lambda s: kernels.ridge_regression(kernels.rbf(s), TWICE, TWICE_Y)(NEW),
        lambda s: kernels.ridge_regression(kernels.rbf(s), TWICE, TWICE_Y, 1e-3)(NEW),
        lambda s: kernels.ridge_regression(kernels.rbf(), TWICE, TWICE_Y, s)(NEW),
        lambda s: kernels.gaussian_process(kernels.rbf(s), TWICE, TWICE_Y)(NEW)[1],
        lambda s: kernels.gradient_flow(kernels.rbf(s), TWICE, TWICE_Y, jnp.inf)(NEW),
    ],
)
def test_derivatives_with_a_point_twice(user, f):
    total = lambda s: jnp.sum(f(s) ** 2)  # noqa: E731
    expected = difference(total, 0.8)
    np.testing.assert_allclose(jax.grad(total)(0.8), expected, rtol=1e-5)  # outside jit, too
    for derivative in (jax.grad(total), jax.jacfwd(total)):
        np.testing.assert_allclose(jax.jit(derivative)(0.8), expected, rtol=1e-5)
    both = jax.jit(jax.vmap(jax.grad(total)))(jnp.array([0.8, 0.9]))
    np.testing.assert_allclose(both[0], expected, rtol=1e-5)


def flow(s, t, x=CIRCLE, y=CIRCLE_Y, new=ON_CIRCLE):
    return jnp.sum(kernels.gradient_flow(kernels.rbf(s), x, y, t)(new) ** 2)


def law(s, t):
    pair = (make(2, "relu", s, 0.3) for make in (infinite.nngp, infinite.ntk))
    mean, cov = kernels.trained_ensemble(*pair, CIRCLE, CIRCLE_Y, ON_CIRCLE, t)
    return jnp.sum(mean**2) + jnp.sum(cov**2)


FLOW, LAW = slope_and_difference(flow), slope_and_difference(law)


@pytest.mark.parametrize("t", [0.0, 0.3, 2.0, 50.0, jnp.inf])
@pytest.mark.parametrize("ell", [0.5, 1.0])
def test_derivatives_of_flows_with_multiple_eigenvalues(user, t, ell):
    for both in (FLOW, LAW):
        np.testing.assert_allclose(*both(ell, t), rtol=1e-6, atol=1e-9)


def test_derivatives_of_flows_in_single_precision(user):
    single = [a.astype(jnp.float32) for a in (CIRCLE, CIRCLE_Y, ON_CIRCLE)]
    slope = jax.jit(jax.grad(flow))(jnp.float32(0.5), jnp.float32(2.0), *single)
    np.testing.assert_allclose(slope, FLOW(0.5, 2.0)[0], rtol=1e-4)


def test_the_flow_may_be_differentiated_by_its_time():
    f = lambda t: jnp.sum(kernels.gradient_flow(kernels.rbf(), X, Y, t)(NEW) ** 2)  # noqa: E731
    np.testing.assert_allclose(*slope_and_difference(f)(2.0), rtol=1e-7)


def test_a_moving_twin_changes_the_flow_smoothly(user):
    # at finite times the mode of eigenvalue 0 is fed as soon as the twins part
    f = lambda s: jnp.sum(  # noqa: E731
        kernels.gradient_flow(kernels.rbf(0.7), TWICE.at[0, 0].add(s), TWICE_Y, 2.0)(NEW) ** 2
    )
    np.testing.assert_allclose(*slope_and_difference(f)(0.0), rtol=1e-6)


@pytest.mark.parametrize("ridge", [1e-4, 1e-6])
def test_a_ridge_below_the_rounding_warns(user, ridge):
    x, y = normal(1000, 2, dtype=jnp.float32), normal(1000, seed=1, dtype=jnp.float32)
    k = infinite.ntk(3, "relu")
    with pytest.warns(UserWarning, match="is below the rounding errors of this float32 Gram"):
        kernels.ridge_regression(k, x, y, ridge)
    kernels.ridge_regression(k, x.astype(float), y.astype(float), ridge)  # any warning is an error


def test_a_ridge_below_the_rounding_warns_inside_jit(user):
    x = normal(300, 1, dtype=jnp.float32)
    fit = jax.jit(lambda r: kernels.ridge_regression(kernels.rbf(), x, x[:, 0], r)(x[:2]))
    with pytest.warns(UserWarning, match="jax_enable_x64"):
        jax.block_until_ready((fit(jnp.float32(1e-7)), jax.effects_barrier()))
    fit(jnp.float32(1e-1)).block_until_ready()


def test_a_ridge_near_the_rounding_is_not_dropped(user):
    # Cholesky fails here in single precision; the ridge must still be felt, as in double
    x, y = normal(1000, 2), jnp.sin(3 * normal(1000, 2)[:, 0]) + 0.5 * normal(1000, seed=1)
    new = normal(200, 2, seed=3)
    k = infinite.ntk(3, "relu")
    exact = np.asarray(kernels.ridge_regression(k, x, y, 1e-3)(new))
    none = np.asarray(kernels.ridge_regression(k, x, y)(new))
    x, y, new = (a.astype(jnp.float32) for a in (x, y, new))
    with pytest.warns(UserWarning, match="few digits"):
        single = np.asarray(kernels.ridge_regression(k, x, y, 1e-3)(new))
    assert np.std(single - exact) < 0.3 * np.std(none - exact)


def test_variances_near_zero(user, dtype):
    x, y = normal(60, 2, dtype=dtype), normal(60, seed=1, dtype=dtype)
    _, cov = kernels.gaussian_process(kernels.rbf(), x, y, noise=1e-4)(x)
    variances = np.diagonal(np.asarray(cov, float))
    exact = kernels.gaussian_process(kernels.rbf(), *(a.astype(float) for a in (x, y)), 1e-4)(
        x.astype(float)
    )[1]
    assert np.all(variances >= 0)
    # each is the difference of two numbers of size 1, solved with condition 60 / 1e-4
    assert (
        np.abs(variances - np.diagonal(exact)).max() < 60 / 1e-4 * float(jnp.finfo(dtype).eps) / 10
    )
    assert np.median(np.diagonal(exact)) < 1e-4


def test_ridge_path_is_ridge_regression(dtype):
    x, y, new = (a.astype(dtype) for a in (X, normal(20, 2, seed=1), NEW))
    ridges = [1e-2, 1.0, 30.0]
    k = kernels.laplace(1.5)
    K, K_new = kernels.gram(k, x), kernels.gram(k, new, x)
    predicted, left_out = kernels.ridge_path(K, K_new, y, jnp.asarray(ridges, dtype))
    tolerance = 1e-9 if dtype == jnp.float64 else 2e-4
    for i, ridge in enumerate(ridges):
        expected = kernels.ridge_regression(k, x, y, ridge)(new)
        np.testing.assert_allclose(predicted[i], expected, atol=tolerance)
        for j in (0, 7):
            rest = jnp.delete(x, j, axis=0), jnp.delete(y, j, axis=0)
            alone = kernels.ridge_regression(k, *rest, ridge)(x[j : j + 1])[0]
            np.testing.assert_allclose(left_out[i, j], alone, atol=tolerance)


def test_ridge_path_against_scikit_learn():
    design = normal(30, 4)
    y, ridges = normal(30, seed=1), jnp.array([0.0, 0.1, 10.0])
    gram = design @ design.T  # of rank 4: at ridge 0 the fit of minimum norm
    predicted, _ = kernels.ridge_path(gram, gram, y, ridges)
    for i, ridge in enumerate(ridges):
        oracle = Ridge(alpha=float(ridge), fit_intercept=False, solver="svd").fit(design, y)
        np.testing.assert_allclose(predicted[i], oracle.predict(design), atol=1e-9)


def test_log_marginal_likelihood_against_scipy(user):
    from scipy.stats import multivariate_normal

    y = normal(20, 2, seed=1)
    cov = np.asarray(kernels.gram(kernels.rbf(), X)) + 0.3 * np.eye(20)
    expected = sum(multivariate_normal(np.zeros(20), cov).logpdf(y[:, j]) for j in range(2))
    value = kernels.log_marginal_likelihood(kernels.rbf(), X, y, 0.3)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    f = lambda s: kernels.log_marginal_likelihood(kernels.rbf(s), X, y, 0.3)  # noqa: E731
    np.testing.assert_allclose(*slope_and_difference(f)(1.2), rtol=1e-7)


def test_no_density_without_noise(user):
    with pytest.raises(ValueError, match="add noise"):
        kernels.log_marginal_likelihood(kernels.rbf(), TWICE, TWICE_Y, 0.0)


def test_predictors_cross_jit(user):
    fitted = (
        kernels.ridge_regression(kernels.rbf(), X, Y, 0.1),
        kernels.gradient_flow(kernels.rbf(), X, Y, 2.0),
        kernels.gradient_flow(lambda a, b: jnp.dot(a, b), X, Y, [1.0, 2.0], f0=lambda x: x[:, 0]),
        kernels.gaussian_process(2 * kernels.rbf() + 1.0, X, Y, 0.1),
    )
    for f in fitted:
        inside = jax.jit(lambda g, x: g(x))(f, NEW)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), inside, f(NEW))
    fit = jax.jit(lambda y: kernels.ridge_regression(kernels.rbf(), X, y, 0.1))  # and comes out
    np.testing.assert_allclose(fit(Y)(NEW), fitted[0](NEW), rtol=1e-12)


@pytest.mark.parametrize("half", [jnp.bfloat16, jnp.float16])
def test_half_precision_says_what_it_needs(user, half):
    with pytest.raises(TypeError, match="expected float32 or float64 to solve with, got"):
        kernels.ridge_regression(kernels.rbf(), X.astype(half), Y.astype(half))
    assert kernels.gram(kernels.rbf(), X.astype(half)).dtype == half


def test_a_small_gram_matrix_is_not_traced_again(user):
    x = normal(5, 2)
    count = {"traces": 0}

    def own(a, b):
        count["traces"] += 1
        return jnp.dot(a, b)

    kernels.gram(own, x)
    first = count["traces"]
    kernels.gram(own, x)
    assert count["traces"] == first > 0


@pytest.mark.parametrize("key", [0, None, jnp.float32(1.0), "seed"])
def test_a_key_is_a_key(user, key):
    with pytest.raises(ValueError, match=r"pass key=jax.random.key\(0\)"):
        kernels.prior_samples(kernels.rbf(), X, key=key)
    for good in (jax.random.key(0), jax.random.PRNGKey(0)):
        assert kernels.prior_samples(kernels.rbf(), X, key=good).shape == (1, 20)


def test_descent_on_a_gram_matrix_is_descent_on_the_weights(user):
    # a linear model whose weights descend, one by one in NumPy
    features, new, y = (
        np.asarray(normal(*s, seed=i)) for i, s in enumerate([(6, 9), (4, 9), (6,)])
    )
    K, K_new = jnp.asarray(features @ features.T), jnp.asarray(new @ features.T)
    rate = 1.7 / np.linalg.eigvalsh(K)[-1]
    weights, expected = np.zeros(9), []
    for _ in range(41):
        expected.append(new @ weights)
        weights = weights + rate * features.T @ (y - features @ weights)
    run = kernels.descent_path(K, K_new, jnp.asarray(y), rate, 40)
    np.testing.assert_allclose(run, expected, rtol=1e-10, atol=1e-12)
    columns = jnp.stack([jnp.asarray(y), 2 * jnp.asarray(y)], axis=1)
    both = jax.jit(jax.vmap(lambda r: kernels.descent_path(K, K_new, columns, r, 40)))
    np.testing.assert_allclose(both(jnp.array([rate]))[0, :, :, 1], 2 * run, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((jnp.eye(3), jnp.eye(2), jnp.ones(3), 0.1, 5), "K_new"),
        ((jnp.eye(3), jnp.eye(3), jnp.ones(2), 0.1, 5), "3"),
        ((jnp.eye(3), jnp.eye(3), jnp.ones(3), 0.0, 5), "rate"),
        ((jnp.eye(3), jnp.eye(3), jnp.ones(3), 0.1, 0), "steps"),
    ],
)
def test_descent_says_what_it_expects(user, arguments, message):
    with pytest.raises(ValueError, match=message):
        kernels.descent_path(*arguments)
