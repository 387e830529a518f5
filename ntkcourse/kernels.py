"""Kernels as functions of two points.

A kernel is a function ``k(x, y)`` of two points of shape (d,) that returns a number; any such
function will do. The kernels made here also add and multiply, ``2 * rbf(0.5) + linear()``. Only
:func:`gram` turns a kernel into a matrix; what one does with that matrix, ridge regression for
example, stands in ``ntkcourse.regression`` and is found here too. Derived in chapter
:ref:`kernels`.
"""

from functools import lru_cache

import jax.numpy as jnp
from jaxtyping import Array, Float

from ntkcourse import checks
from ntkcourse.grams import gram, matvec
from ntkcourse.linalg import root
from ntkcourse.processes import (
    gaussian_process,
    gaussian_samples,
    log_marginal_likelihood,
    prior_samples,
)
from ntkcourse.regression import (
    descent_path,
    gradient_flow,
    ridge_path,
    ridge_regression,
    trained_ensemble,
)
from ntkcourse.tiles import Kernel, as_kernel, difference, of_products

__all__ = ["Kernel", "as_kernel", "cauchy", "descent_path", "gaussian_process",
           "gaussian_samples", "gradient_flow", "gram", "laplace", "linear",
           "log_marginal_likelihood", "matvec", "of_products", "polynomial", "prior_samples",
           "rbf", "ridge_path", "ridge_regression", "trained_ensemble"]  # fmt: skip

# Each family is one formula and one constructor.


def _linear(p):
    return p.xy


def _gaussian(p):
    return jnp.exp(-p.apart / 2)


def _exponential(p):
    return jnp.exp(-root(p.apart))


def _laplace1(lengthscale, x, y):
    return jnp.exp(-jnp.sum(jnp.abs(difference(x, y, lengthscale))))


def _cauchy(lengthscale, x, y):
    return jnp.prod(1 / (1 + difference(x, y, lengthscale) ** 2))


@lru_cache
def _power(degree):
    return lambda offset, p: (p.xy + offset) ** degree


def linear() -> Kernel:
    r"""The kernel of linear regression, :math:`k(x, y) = x \cdot y`."""
    return of_products(_linear)


def polynomial(degree: int, offset: float = 1.0) -> Kernel:
    r"""The polynomial kernel :math:`k(x, y) = (x \cdot y + c)^p`.

    ``degree`` is the whole number p >= 1 and ``offset`` is c >= 0: a negative c would not give a
    kernel. Its features are the monomials of degree at most p (exactly p if c = 0).
    """
    degree = checks.count(degree, "degree")
    return of_products(_power(degree), checks.number(offset, "offset", least=0))


def rbf(lengthscale: float | Float[Array, "*d"] = 1.0) -> Kernel:
    r"""The Gaussian kernel :math:`k(x, y) = e^{-|x - y|^2 / 2 \ell^2}`.

    ``lengthscale``, here and below, is a number or one number per coordinate: then each
    difference of coordinates is divided by its own.
    """
    return of_products(_gaussian, lengthscale=checks.lengthscale(lengthscale))


def laplace(lengthscale: float | Float[Array, "*d"] = 1.0, norm: int = 1) -> Kernel:
    r"""The Laplace kernel :math:`k(x, y) = e^{-|x - y|_q / \ell}` with the norm q = 1 or 2."""
    lengthscale = checks.lengthscale(lengthscale)
    if norm not in (1, 2):
        raise ValueError(f"expected norm 1 or 2, got {norm!r}")
    if norm == 2:
        return of_products(_exponential, lengthscale=lengthscale)
    return Kernel(_laplace1, (lengthscale,))


def cauchy(lengthscale: float | Float[Array, "*d"] = 1.0) -> Kernel:
    r"""The Cauchy kernel :math:`k(x, y) = \prod_j 1 / (1 + (x_j - y_j)^2 / \ell^2)`."""
    return Kernel(_cauchy, (checks.lengthscale(lengthscale),))
