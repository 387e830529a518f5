"""Gaussian processes: posteriors, marginal likelihoods, samples. Derived in :ref:`kernels`."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float, PRNGKeyArray

from ntkcourse import checks
from ntkcourse.grams import gram
from ntkcourse.linalg import psd_root
from ntkcourse.solving import solver
from ntkcourse.tiles import Function, as_kernel


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
    return cross @ alpha, covariance(gram(k, x_new) - cross @ solve(cross.T))


def covariance(matrix):
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
    log_root = jnp.sum(jnp.log(jnp.diagonal(lower))) + len(x) * float(np.log(2 * np.pi)) / 2
    value = -jnp.sum(half**2) / 2 - half.shape[1] * log_root
    if checks.known(value) and not bool(jnp.isfinite(value)):
        raise ValueError("expected a positive definite K + noise I, got a singular one: add noise")
    return value


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
