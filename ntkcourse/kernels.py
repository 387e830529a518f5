"""Kernels as functions of two points, and what one can do with their Gram matrix.

A kernel is a function ``k(x, y)`` of two points of shape (d,) that returns a number. Sums and
products of kernels are kernels: write them as ordinary functions, ``lambda x, y: rbf(x, y) +
linear(x, y)``. Only :func:`gram` turns a kernel into a matrix. Derived in chapter :ref:`kernels`.
"""

from collections.abc import Callable
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Float, PRNGKeyArray

from ntkcourse import checks, tiles
from ntkcourse.linalg import flow_gains, psd_root, scaled, solver, spectrum

Kernel = Callable[[Array, Array], Array]
Predictor = Callable[[Array], Array]


# Each family is one formula below and one constructor. The constructor returns a Partial, which
# JAX traces through: changing a lengthscale does not compile anything anew.


def _linear(x, y):
    x, y = checks.pair(x, y)
    return jnp.dot(x, y)


def _polynomial(offset, x, y, *, degree):
    return (_linear(x, y) + offset) ** degree


def _rbf(lengthscale, x, y):
    x, y = checks.pair(x, y)
    return jnp.exp(-jnp.sum(((x - y) / lengthscale) ** 2) / 2)


def _laplace1(lengthscale, x, y):
    x, y = checks.pair(x, y)
    return jnp.exp(-jnp.sum(jnp.abs(x - y)) / lengthscale)


def _laplace2(lengthscale, x, y):
    x, y = checks.pair(x, y)
    square = jnp.sum(((x - y) / lengthscale) ** 2)
    # sqrt has no derivative at 0; the inner where keeps NaN out of the gradient there
    return jnp.exp(-jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1)), 0))


def _cauchy(lengthscale, x, y):
    x, y = checks.pair(x, y)
    return jnp.prod(1 / (1 + ((x - y) / lengthscale) ** 2))


def linear() -> Kernel:
    r"""The kernel of linear regression, :math:`k(x, y) = x \cdot y`."""
    return Partial(_linear)


def polynomial(degree: int, offset: float = 1.0) -> Kernel:
    r"""The polynomial kernel :math:`k(x, y) = (x \cdot y + c)^p`.

    ``degree`` is the whole number p >= 1 and ``offset`` is c >= 0: a negative c would not give a
    kernel. Its features are the monomials of degree at most p (exactly p if c = 0).
    """
    degree = checks.count(degree, "degree")
    offset = checks.number(offset, "offset", least=0)
    return Partial(_power(degree), offset)


def rbf(lengthscale: float = 1.0) -> Kernel:
    r"""The Gaussian kernel :math:`k(x, y) = e^{-|x - y|^2 / 2 \ell^2}`."""
    lengthscale = checks.number(lengthscale, "lengthscale", above=0)
    return Partial(_rbf, lengthscale)


def laplace(lengthscale: float = 1.0, norm: int = 1) -> Kernel:
    r"""The Laplace kernel :math:`k(x, y) = e^{-|x - y|_q / \ell}` with the norm q = 1 or 2."""
    lengthscale = checks.number(lengthscale, "lengthscale", above=0)
    if norm not in (1, 2):
        raise ValueError(f"expected norm 1 or 2, got {norm!r}")
    return Partial(_laplace1 if norm == 1 else _laplace2, lengthscale)


def cauchy(lengthscale: float = 1.0) -> Kernel:
    r"""The Cauchy kernel :math:`k(x, y) = \prod_j 1 / (1 + (x_j - y_j)^2 / \ell^2)`."""
    lengthscale = checks.number(lengthscale, "lengthscale", above=0)
    return Partial(_cauchy, lengthscale)


@lru_cache
def _power(degree):
    # one function per degree, so that JAX recognises a kernel that it has compiled before
    return partial(_polynomial, degree=degree)


def gram(k: Kernel, x: Float[Array, "n *d"], y: Float[Array, "m *d"] | None = None) -> Array:
    r"""The matrix :math:`K_{ij} = k(x_i, y_j)`, of shape (n, m).

    With ``y=None``, the matrix of ``x`` with itself: half of the work, exactly symmetric, and
    each diagonal entry is k evaluated at two equal points. The matrix is filled tile by tile, so
    that the memory beyond the result does not grow with n and m.
    """
    x = checks.points(x)
    symmetric = y is None
    y = x if symmetric else checks.points(y, "y", like=x)
    k = k if isinstance(k, Partial) else Partial(k)
    shape = jax.eval_shape(k, x[0], y[0])
    if shape.shape != ():
        raise ValueError(f"expected k(x, y) to be a number, got an array of shape {shape.shape}")
    return tiles.fill(k, x, y, symmetric)


def ridge_regression(
    k: Kernel, x: Float[Array, "n *d"], y: Float[Array, "n *c"], ridge: float = 0.0
) -> Predictor:
    r"""Kernel ridge regression, :math:`f(x) = k(x, X)(K + \lambda I)^{-1} y`.

    Minimises :math:`\frac12 \sum_i |f(x_i) - y_i|^2 + \frac\lambda2 \|f\|_k^2` with
    :math:`\lambda` = ``ridge``: no 1/n anywhere. With ``ridge=0`` it is the limit
    :math:`\lambda \to 0`, the least-squares fit of minimum norm, also when K is singular.
    Returns f, which maps (m, d) to (m,) or (m, c) like ``y``.
    """
    x = checks.points(x)
    y = checks.targets(y, x)
    ridge = checks.number(ridge, "ridge", least=0)
    alpha = solver(gram(k, x), ridge)(y)
    return lambda x_new: gram(k, checks.points(x_new, "x_new", like=x), x) @ alpha


def gradient_flow(
    k: Kernel,
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
    x = checks.points(x)
    y = checks.targets(y, x)
    t = checks.times(t, x.dtype)
    values, vectors = spectrum(gram(k, x))
    start = jnp.zeros_like(y) if f0 is None else f0(x)
    if start.shape != y.shape:
        raise ValueError(f"expected f0(x) of shape {y.shape} like y, got shape {start.shape}")
    modes = vectors.T @ (y - start)

    def at(time, cross):
        return cross @ (vectors @ scaled(flow_gains(values, time), modes))

    def f_t(x_new):
        x_new = checks.points(x_new, "x_new", like=x)
        cross = gram(k, x_new, x)
        learned = at(t, cross) if t.ndim == 0 else jax.vmap(lambda s: at(s, cross))(t)
        return learned if f0 is None else jnp.expand_dims(f0(x_new), range(t.ndim)) + learned

    return f_t


def gaussian_process(
    k: Kernel, x: Float[Array, "n *d"], y: Float[Array, "n *c"], noise: float = 0.0
) -> Callable[[Array], tuple[Array, Array]]:
    r"""Posterior of a Gaussian process with covariance k, given y = f(X) + noise.

    .. math:: m(x) = k(x, X)(K + \sigma^2 I)^{-1} y, \qquad
              C(x, x') = k(x, x') - k(x, X)(K + \sigma^2 I)^{-1} k(X, x')

    ``noise`` is the variance :math:`\sigma^2`; C is the covariance of f, not of new
    observations. Returns ``posterior``, which maps (m, d) to a mean like ``y`` and an (m, m)
    covariance, the same for each column of ``y``.
    """
    x = checks.points(x)
    y = checks.targets(y, x)
    noise = checks.number(noise, "noise", least=0)
    solve = solver(gram(k, x), noise)
    alpha = solve(y)

    def posterior(x_new):
        x_new = checks.points(x_new, "x_new", like=x)
        cross = gram(k, x_new, x)
        covariance = gram(k, x_new) - cross @ solve(cross.T)
        return cross @ alpha, (covariance + covariance.T) / 2

    return posterior


def gaussian_samples(
    mean: Float[Array, " n"], cov: Float[Array, "n n"], count: int = 1, *, key: PRNGKeyArray
) -> Float[Array, "count n"]:
    """Draws from the normal law N(mean, cov), one per row; ``cov`` may be singular."""
    count = checks.count(count, "count")
    cov = checks.points(cov, "cov")
    mean = checks.targets(mean, cov, "mean")
    normal = jax.random.normal(checks.random_key(key, "samples"), (count, len(cov)), cov.dtype)
    return mean[None] + normal @ psd_root(cov)


def prior_samples(
    k: Kernel, x: Float[Array, "n *d"], count: int = 1, *, key: PRNGKeyArray
) -> Float[Array, "count n"]:
    """Draws at ``x`` from the Gaussian process of mean 0 and covariance k, one per row."""
    cov = gram(k, x)
    return gaussian_samples(jnp.zeros(len(cov), cov.dtype), cov, count, key=key)
