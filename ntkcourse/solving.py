r"""Solving with a symmetric positive semidefinite matrix, regular or not.

:func:`solver` is right under ``jax.jit``, ``jax.vmap`` and both derivatives, also where the matrix
has no inverse. Used by everything in ``ntkcourse.regression``.
"""

import warnings
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Float

from ntkcourse import checks
from ntkcourse.linalg import inverse, spectrum_cut


class Factor(NamedTuple):
    """A + ridge I taken apart: its Cholesky factor, or the root of its (pseudo-)inverse.

    Of the factor ``lower`` only the lower half counts; it is NumPy's if LAPACK was called itself.
    """

    lower: Float[Array, "n n"] | None
    root: Float[Array, "n n"] | None
    regular: Bool[Array, ""]
    """Whether lower is the one that counts."""
    full: Bool[Array, ""]
    """Whether no eigenvalue was taken as 0."""


def solver(matrix: Float[Array, "n n"], ridge) -> Partial:
    """The map b -> (A + ridge I)^+ b for b (n,) or (n, c), by Cholesky unless that is singular.

    A warning says when the ridge of an A that is singular to rounding is smaller than the rounding
    errors of A; far below them, it counts as 0.
    """
    checks.solvable(matrix)
    fixed = jax.lax.stop_gradient((matrix, jnp.asarray(ridge, matrix.dtype)))
    known = checks.known(matrix) and checks.known(ridge)
    factor = _factor_now(*fixed) if known else _factor(*fixed)
    return Partial(_solve, factor, matrix, jnp.asarray(ridge, matrix.dtype))


def _cholesky(matrix, ridge):
    if checks.known(matrix) and all(d.platform == "cpu" for d in matrix.devices()):
        # XLA copies and transposes around LAPACK, which takes as long as LAPACK itself, and ends
        # the process for float64 and n > 15,000
        from scipy.linalg import get_lapack_funcs

        shifted = np.array(matrix).T  # columns first, as LAPACK has it, without moving anything
        np.fill_diagonal(shifted, np.diagonal(shifted) + np.asarray(ridge))
        largest = shifted.diagonal().max()
        lower, failed = get_lapack_funcs("potrf", (shifted,))(
            shifted, lower=1, overwrite_a=1, clean=0
        )
    else:
        shifted = matrix + ridge * jnp.eye(len(matrix), dtype=matrix.dtype)
        largest = jnp.max(jnp.diagonal(shifted))
        lower, failed = jnp.linalg.cholesky(shifted), 0  # it has NaN instead
    floor = len(matrix) * jnp.finfo(matrix.dtype).eps * largest
    return lower, (lower.diagonal() ** 2 > floor).all() & (failed == 0)


def _inverse_root(matrix, ridge):
    """R with R R^T = (A + ridge I)^+, whether nothing was cut, and the size of rounding errors."""
    values, vectors = jnp.linalg.eigh(matrix)
    rounding = jnp.finfo(matrix.dtype).eps * values[-1]
    gains = jnp.where(
        ridge <= rounding, inverse(spectrum_cut(values)), 1 / (jnp.maximum(values, 0) + ridge)
    )
    return vectors * jnp.sqrt(gains)[None], jnp.all(gains > 0), jnp.maximum(rounding, -values[0])


def _factor_now(matrix, ridge):
    lower, regular = _cholesky(matrix, ridge)
    if regular:
        return Factor(lower, None, regular, regular)
    del lower
    root, full, rounding = _inverse_root(matrix, ridge)
    _warn(matrix.dtype, ridge, rounding)
    return Factor(None, root, regular, full)


# One matrix after the other under vmap: as a batch, both branches would run for every matrix.
@jax.custom_batching.sequential_vmap
def _factor(matrix, ridge):
    lower, regular = _cholesky(matrix, ridge)

    def singular():
        root, full, rounding = _inverse_root(matrix, ridge)
        if matrix.dtype == jnp.float32:  # float64 sees any sensible ridge, and a callback costs
            jax.debug.callback(partial(_warn, matrix.dtype), ridge, rounding)
        return Factor(jnp.eye(len(matrix), dtype=matrix.dtype), root, regular, full)

    nothing = jnp.zeros_like(matrix)
    return jax.lax.cond(regular, lambda: Factor(lower, nothing, regular, regular), singular)


def _warn(dtype, ridge, rounding):
    if 0 < ridge < rounding:
        warnings.warn(
            f"the ridge {float(ridge):.1e} is below the rounding errors of this {dtype} Gram "
            f"matrix, {float(rounding):.1e}: few digits are right. Take a larger ridge, or float64 "
            'points after jax.config.update("jax_enable_x64", True)',
            stacklevel=2,
        )


def _solve(factor, matrix, ridge, b):
    if isinstance(factor.lower, np.ndarray) and checks.known(b):
        from scipy.linalg import cho_solve

        return jnp.asarray(cho_solve((factor.lower, True), np.asarray(b), check_finite=False))
    return _solve_anywhere(factor, matrix, ridge, b)


@jax.custom_jvp
def _solve_anywhere(factor, matrix, ridge, b):
    columns = b if b.ndim == 2 else b[:, None]
    if factor.root is None:
        solved = cho_solve((factor.lower, True), columns)
    elif factor.lower is None:
        solved = factor.root @ (factor.root.T @ columns)
    else:
        solved = jax.lax.cond(
            factor.regular,
            lambda c: cho_solve((factor.lower, True), c),
            lambda c: factor.root @ (factor.root.T @ c),
            columns,
        )
    return solved.reshape(b.shape)


@_solve_anywhere.defjvp
def _solve_jvp(primals, tangents):
    factor, matrix, ridge, b = primals
    _, d_matrix, d_ridge, db = tangents
    solve = partial(_solve_anywhere, factor, matrix, ridge)
    z = solve(b)
    dz = solve(db - d_matrix @ z - d_ridge * z)
    if factor.root is not None:  # the derivative of a pseudo-inverse of constant rank
        outside = b - matrix @ z - ridge * z
        turned = d_matrix @ solve(z)
        range_turns = solve(solve(d_matrix @ outside)) + turned - solve(matrix @ turned)
        dz = dz + jnp.where(factor.full, 0, range_turns)
    return z, dz
