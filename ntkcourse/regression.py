"""What one can do with a kernel: regression, its gradient flow, ensembles of networks.

Everything returned can cross ``jax.jit``, and everything can be differentiated once by the data,
the labels and the parameters of the kernel. Derived in the chapters :ref:`kernels` and :ref:`ntk`.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.tree_util import Partial
from jaxtyping import Array, Float

from ntkcourse import checks, solving
from ntkcourse.grams import gram, matvec
from ntkcourse.linalg import flow_solve, inverse_path
from ntkcourse.processes import covariance
from ntkcourse.tiles import Function, as_kernel

Predictor = Callable[[Array], Array]


def _predict(k, x, weights, x_new):
    return gram(k, checks.points(x_new, "x_new", like=x), x) @ weights


def _predict_many(mesh, k, x, weights, x_new):
    return matvec(k, checks.points(x_new, "x_new", like=x), weights, x, mesh=mesh)


def ridge_regression(
    k: Function,
    x: Float[Array, "n *d"],
    y: Float[Array, "n *c"],
    ridge: float = 0.0,
    *,
    solver: str = "cholesky",
    tolerance: float | None = None,
    mesh: Mesh | None = None,
) -> Predictor:
    r"""Kernel ridge regression, :math:`f(x) = k(x, X)(K + \lambda I)^{-1} y`.

    Minimises :math:`\frac12 \sum_i |f(x_i) - y_i|^2 + \frac\lambda2 \|f\|_k^2` with
    :math:`\lambda` = ``ridge``: no 1/n anywhere. With ``ridge=0`` it is the limit
    :math:`\lambda \to 0`, the least-squares fit of minimum norm, also when K is singular.
    Returns f, which maps (m, d) to (m,) or (m, c) like ``y``.

    With ``solver="cg"``, for many points, K is never stored: preconditioned conjugate gradients
    run until :math:`|y - (K + \lambda I)\alpha| \le` ``tolerance`` :math:`|y|` (None: the root of
    the machine precision), on all devices of ``mesh`` if there is one. This needs a ridge > 0, and
    does not work inside ``jax.jit``, ``jax.vmap`` or ``jax.grad``.
    """
    x, y = checks.data(x, y)
    ridge = checks.number(ridge, "ridge", least=0)
    k = as_kernel(k)
    if solver == "cg" and not (checks.known(ridge) and ridge == 0):
        alpha = solving.conjugate_gradients(k, x, y, ridge, tolerance, mesh)
        return Partial(partial(_predict_many, mesh), k, x, alpha)
    if solver != "cholesky" or mesh is not None:
        raise ValueError(
            'expected solver="cholesky" without a mesh, or solver="cg" with a ridge > 0, '
            f"got {solver!r}, ridge {ridge}, mesh {mesh}"
        )
    return Partial(_predict, k, x, solving.solver(gram(k, x), ridge)(y))


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
        return a.T @ y, covariance(prior - shared - shared.T + a.T @ train @ a)

    return jax.vmap(at)(turned) if t.ndim else at(turned[0])
