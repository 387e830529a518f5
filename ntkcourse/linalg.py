"""The linear algebra of kernel methods: spectra, pseudo-inverses, the exponential of a flow."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def spectrum(matrix: Float[Array, "n n"]) -> tuple[Float[Array, " n"], Float[Array, "n n"]]:
    """Eigenvalues and eigenvectors of a PSD matrix; eigenvalues that are 0 up to rounding are 0."""
    values, vectors = jnp.linalg.eigh(matrix)
    floor = len(matrix) * jnp.finfo(matrix.dtype).eps * jnp.max(jnp.abs(values))
    return jnp.where(values > floor, values, 0), vectors


def psd_root(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The symmetric root of a PSD matrix: unlike an eigenbasis, it has no free signs."""
    values, vectors = jnp.linalg.eigh(matrix)
    return vectors * jnp.sqrt(jnp.maximum(values, 0))[None] @ vectors.T


def inverse(values: Float[Array, " n"]) -> Float[Array, " n"]:
    """1 / values, and 0 where a value is 0: the eigenvalues of the pseudo-inverse."""
    return jnp.where(values > 0, 1 / jnp.where(values > 0, values, 1), 0)


def scaled(factors: Float[Array, " n"], rows: Float[Array, "n *c"]) -> Float[Array, "n *c"]:
    """Each row, a number or a vector, times its factor."""
    return factors.reshape(-1, *[1] * (rows.ndim - 1)) * rows


def solver(matrix: Float[Array, "n n"], ridge: float) -> Callable[[Array], Array]:
    """The map b -> (K + ridge I)^+ b, by Cholesky unless K + ridge I is singular to rounding."""
    n = len(matrix)
    matrix = matrix + ridge * jnp.eye(n, dtype=matrix.dtype)
    factor = jnp.linalg.cholesky(matrix)
    pivots = jnp.diagonal(factor) ** 2
    floor = n * jnp.finfo(matrix.dtype).eps * jnp.max(jnp.diagonal(matrix))
    regular = jnp.all(pivots > floor)  # False also when the factorisation gave NaN

    def pseudo_inverse(b):
        values, vectors = spectrum(matrix)
        return vectors @ scaled(inverse(values), vectors.T @ b)

    def solve(b):
        columns = b if b.ndim == 2 else b[:, None]
        by_cholesky = partial(jax.scipy.linalg.cho_solve, (factor, True))
        return jax.lax.cond(regular, by_cholesky, pseudo_inverse, columns).reshape(b.shape)

    return solve


def flow_gains(values: Float[Array, " n"], t: Float[Array, ""]) -> Float[Array, " n"]:
    """(1 - e^{-values t}) / values: 1 / values at t = infinity, and 0 where a value is 0."""
    # 0 * inf is NaN, so a value 0 is replaced before it meets the time
    rate = jnp.where(values > 0, values, 1)
    return jnp.where(values > 0, -jnp.expm1(-rate * t), 0) * inverse(values)
