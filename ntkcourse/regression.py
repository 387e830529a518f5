"""What one can do with a kernel: regression, its gradient flow, Gaussian processes, ensembles.

Everything returned can cross ``jax.jit``, and everything can be differentiated once by the data,
the labels and the parameters of the kernel. Derived in the chapters :ref:`kernels` and :ref:`ntk`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float, PRNGKeyArray

from ntkcourse import checks
from ntkcourse.linalg import flow_solve, inverse_path, psd_root
from ntkcourse.solving import solver
from ntkcourse.tiles import Function, as_kernel, gram

Predictor = Callable[[Array], Array]


def _predict(k, x, weights, x_new):
    return gram(k, checks.points(x_new, "x_new", like=x), x) @ weights


def ridge_regression(
    k: Function, x: Float[Array, "n *d"], y: Float[Array, "n *c"], ridge: float = 0.0
) -> Predictor:
    r"""Kernel ridge regression, :math:`f(x) = k(x, X)(K + \lambda I)^{-1} y`.

    Minimises :math:`\frac12 \sum_i |f(x_i) - y_i|^2 + \frac\lambda2 \|f\|_k^2` with
    :math:`\lambda` = ``ridge``: no 1/n anywhere. With ``ridge=0`` it is the limit
    :math:`\lambda \to 0`, the least-squares fit of minimum norm, also when K is singular.
    Returns f, which maps (m, d) to (m,) or (m, c) like ``y``.
    """
    x, y = checks.data(x, y)
    ridge = checks.number(ridge, "ridge", least=0)
    k = as_kernel(k)
    return Partial(_predict, k, x, solver(gram(k, x), ridge)(y))


def ridge_path(
    K: Float[Array, "n n"],
    K_new: Float[Array, "m n"],
    y: Float[Array, "n *c"],
    ridges: Float[Array, " r"],
) -> tuple[Float[Array, "r m *c"], Float[Array, "r n *c"]]:
    r"""Ridge regression for many ridges at the cost of one, and each point predicted by the others.

    ``K`` is the Gram matrix of the data, ``K_new`` that of new points (rows) with the data. For
    each :math:`\lambda` the predictions :math:`K_{new}(K + \lambda I)^{-1} y`, and at each data
    point the prediction of the fit to all others, :math:`y_i - \alpha_i / ((K + \lambda
    I)^{-1})_{ii}` with :math:`\alpha = (K + \lambda I)^{-1} y`. One eigendecomposition. At
    :math:`\lambda = 0` the first is the fit of minimum norm, also when K is singular, and the
    second asks for a K that is regular.
    """
    K = checks.square(K, "K")
    y = checks.targets(y, K)
    K_new = checks.points(K_new, "K_new", like=K)
    ridges = checks.finite(ridges, "ridges", K.dtype).astype(K.dtype)
    if ridges.ndim != 1 or (checks.known(ridges) and not np.all(np.asarray(ridges) >= 0)):
        raise ValueError(f"expected a list of ridges >= 0, got {ridges}")
    alphas, diagonals = inverse_path(K, ridges, y)
    diagonals = diagonals.reshape(diagonals.shape + (1,) * (y.ndim - 1))
    return jax.vmap(lambda a: K_new @ a)(alphas), y[None] - alphas / diagonals


def descent_path(
    K: Float[Array, "n n"],
    K_new: Float[Array, "m n"],
    y: Float[Array, "n *c"],
    rate: float | Float[Array, ""],
    steps: int,
) -> Float[Array, "records m *c"]:
    r"""Kernel regression after 0, 1, ..., ``steps`` steps of gradient descent from 0,

    .. math:: f_j = K_{new}\,\alpha_j, \qquad \alpha_{j+1} = \alpha_j + \eta\,(y - K\alpha_j),

    which is :math:`K_{new} K^{-1} (I - (I - \eta K)^j)\, y`: descent with ``rate``
    :math:`\eta` on the loss :math:`\frac12\sum_i|f(x_i) - y_i|^2` of a model that is linear in its
    parameters and has the Gram matrices ``K`` on the data, ``K_new`` of new points (rows) with the
    data. From another start :math:`f_0`, as a linearised network has it, give
    :math:`y - f_0(X)` and add :math:`f_0`. Converges for :math:`\eta < 2/\lambda_{max}(K)`.
    """
    K = checks.square(K, "K")
    y = checks.targets(y, K)
    K_new = checks.points(K_new, "K_new", like=K)
    rate = jnp.asarray(checks.number(rate, "rate", above=0), K.dtype)

    def step(alpha, _):
        return alpha + rate * (y - K @ alpha), K_new @ alpha

    return jax.lax.scan(step, jnp.zeros_like(y), length=checks.count(steps, "steps") + 1)[1]


def _predict_over_time(f0, k, x, weights, x_new):
    x_new = checks.points(x_new, "x_new", like=x)
    cross = gram(k, x_new, x)
    learned = jax.vmap(lambda w: cross @ w)(weights)
    return learned if f0 is None else f0(x_new)[None] + learned


def _last(predict, x_new):
    return predict(x_new)[0]


def gradient_flow(
    k: Function,
    x: Float[Array, "n *d"],
    y: Float[Array, "n *c"],
    t: float | Float[Array, "*t"],
    f0: Predictor | None = None,
) -> Predictor:
    r"""Kernel regression stopped at time t of its gradient flow, solved exactly.

    .. math:: f_t(x) = f_0(x) + k(x, X) K^{-1} (I - e^{-Kt}) (y - f_0(X))

    solves :math:`\dot f_t(x) = k(x, X)(y - f_t(X))`, the flow of the loss
    :math:`\frac12 \sum_i |f(x_i) - y_i|^2`. ``f0`` is the function at time 0, None for 0. ``t``
    is a time, infinity included, or a list of times, which puts one axis in front of the result:
    one eigendecomposition serves them all. Where K is singular, its pseudo-inverse is meant.
    """
    x, y = checks.data(x, y)
    t = checks.times(t, x.dtype)
    k, f0 = as_kernel(k), f0 if f0 is None else Partial(f0)
    start = jnp.zeros_like(y) if f0 is None else f0(x)
    if start.shape != y.shape:
        raise ValueError(f"expected f0(x) of shape {y.shape} like y, got shape {start.shape}")
    weights = flow_solve(gram(k, x), jnp.zeros((), x.dtype), jnp.atleast_1d(t), y - start)
    predict = Partial(_predict_over_time, f0, k, x, weights)
    return predict if t.ndim else Partial(_last, predict)


def gaussian_process(
    k: Function, x: Float[Array, "n *d"], y: Float[Array, "n *c"], noise: float = 0.0
) -> Callable[[Array], tuple[Array, Array]]:
    r"""Posterior of a Gaussian process with covariance k, given y = f(X) + noise.

    .. math:: m(x) = k(x, X)(K + \sigma^2 I)^{-1} y, \qquad
              C(x, x') = k(x, x') - k(x, X)(K + \sigma^2 I)^{-1} k(X, x')

    ``noise`` is the variance :math:`\sigma^2`; C is the covariance of f, not of new
    observations. Returns ``posterior``, which maps (m, d) to a mean like ``y`` and an (m, m)
    covariance, the same for each column of ``y``. A variance is the difference of two numbers of
    the size of k(x, x): what rounding leaves below 0 is given as 0.
    """
    x, y = checks.data(x, y)
    noise = checks.number(noise, "noise", least=0)
    k = as_kernel(k)
    solve = solver(gram(k, x), noise)
    return Partial(_posterior, k, x, solve, solve(y))


def _posterior(k, x, solve, alpha, x_new):
    x_new = checks.points(x_new, "x_new", like=x)
    cross = gram(k, x_new, x)
    return cross @ alpha, _covariance(gram(k, x_new) - cross @ solve(cross.T))


def _covariance(matrix):
    """The symmetric part, with variances that are not negative."""
    matrix = (matrix + matrix.T) / 2
    lift = jnp.maximum(-jnp.diagonal(matrix), 0)
    return matrix + jnp.diag(lift)


def log_marginal_likelihood(
    k: Function, x: Float[Array, "n *d"], y: Float[Array, "n *c"], noise: float
) -> Float[Array, ""]:
    r"""The log density of y under a Gaussian process of covariance k and noise of this variance,

    .. math:: -\tfrac12 y^\top (K + \sigma^2 I)^{-1} y - \tfrac12 \log\det(K + \sigma^2 I)
              - \tfrac n2 \log 2\pi,

    summed over the columns of y. Differentiate it by the parameters of k to fit them. There is no
    density, and an error says so (inside ``jax.jit``: the result is NaN), when
    :math:`K + \sigma^2 I` is singular.
    """
    x, y = checks.data(x, y)
    noise = checks.number(noise, "noise", least=0)
    matrix = checks.solvable(gram(k, x)) + noise * jnp.eye(len(x), dtype=x.dtype)
    lower = jnp.linalg.cholesky(matrix)
    half = jax.scipy.linalg.solve_triangular(lower, y.reshape(len(y), -1), lower=True)
    columns = half.shape[1]
    log_root = jnp.sum(jnp.log(jnp.diagonal(lower))) + len(x) * float(np.log(2 * np.pi)) / 2
    value = -jnp.sum(half**2) / 2 - columns * log_root
    if checks.known(value) and not bool(jnp.isfinite(value)):
        raise ValueError("expected a positive definite K + noise I, got a singular one: add noise")
    return value


def trained_ensemble(
    nngp: Function,
    ntk: Function,
    x: Float[Array, "n *d"],
    y: Float[Array, "n *c"],
    x_new: Float[Array, "m *d"],
    t: float | Float[Array, " t"] = jnp.inf,
    ridge: float = 0.0,
) -> tuple[Array, Array]:
    r"""Mean and covariance at ``x_new`` of infinitely wide networks trained for a time t.

    Each network starts at a random :math:`f_0` with covariance :math:`\Sigma` = ``nngp`` and
    follows the gradient flow of :math:`\frac12\sum_i|f(x_i) - y_i|^2 +
    \frac\lambda2|\theta - \theta_0|^2` with tangent kernel :math:`\Theta` = ``ntk``, hence
    :math:`f_t(x) = f_0(x) + A_t (y - f_0(X))` and

    .. math:: A_t = \Theta_{xX} (\Theta + \lambda I)^{-1} (I - e^{-(\Theta + \lambda I) t}),
              \quad \text{mean } A_t y, \quad
              \text{cov } \Sigma_{xx} - A_t\Sigma_{Xx} - \Sigma_{xX}A_t^\top
              + A_t\Sigma_{XX}A_t^\top

    (Lee et al. 2019 for :math:`\lambda = 0`). This is not the posterior of the prior
    :math:`\Sigma` or :math:`\Theta`, except when only the last layer is trained:
    ``trained_ensemble(nngp, nngp, ...)``. The mean
    is shaped like ``y``; the covariance is (m, m), the same for each column of ``y``. A list of
    times puts one axis in front of both.
    """
    x, y = checks.data(x, y)
    x_new = checks.points(x_new, "x_new", like=x)
    t = checks.times(t, x.dtype)
    ridge = jnp.asarray(checks.number(ridge, "ridge", least=0), x.dtype)
    turned = flow_solve(gram(ntk, x), ridge, jnp.atleast_1d(t), gram(ntk, x, x_new))
    prior, cross, train = gram(nngp, x_new), gram(nngp, x_new, x), gram(nngp, x)

    def at(a):  # a is the transpose of A_t
        shared = cross @ a
        return a.T @ y, _covariance(prior - shared - shared.T + a.T @ train @ a)

    return jax.vmap(at)(turned) if t.ndim else at(turned[0])


def gaussian_samples(
    mean: Float[Array, " n"], cov: Float[Array, "n n"], count: int = 1, *, key: PRNGKeyArray
) -> Float[Array, "count n"]:
    """Draws from the normal law N(mean, cov), one per row; ``cov`` may be singular."""
    count = checks.count(count, "count")
    cov = checks.square(cov, "cov")
    mean = checks.targets(mean, cov, "mean")
    normal = jax.random.normal(checks.random_key(key, "samples"), (count, len(cov)), cov.dtype)
    return mean[None] + normal @ psd_root(cov)


def prior_samples(
    k: Function, x: Float[Array, "n *d"], count: int = 1, *, key: PRNGKeyArray
) -> Float[Array, "count n"]:
    """Draws at ``x`` from the Gaussian process of mean 0 and covariance k, one per row."""
    cov = gram(k, x)
    return gaussian_samples(jnp.zeros(len(cov), cov.dtype), cov, count, key=key)
