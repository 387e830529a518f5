r"""Solving with a symmetric positive semidefinite matrix, regular or not.

:func:`solver` is right under ``jax.jit``, ``jax.vmap`` and both derivatives, also where the matrix
has no inverse; :func:`conjugate_gradients` is for matrices that are too large to be stored.
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
from ntkcourse.grams import gram, product, spread
from ntkcourse.linalg import inverse, spectrum_cut


class Factor(NamedTuple):
    """A + ridge I taken apart: its Cholesky factor, or the root of its (pseudo-)inverse.

    Of a Cholesky factor only the lower half counts; it is NumPy's if LAPACK was called itself.
    ``regular`` says whether it is one, None if that was known before any tracing, and ``full``
    whether no eigenvalue was taken as 0.
    """

    part: Float[Array, "n n"]
    regular: Bool[Array, ""] | None
    full: Bool[Array, ""]


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
        potrf = get_lapack_funcs("potrf", (shifted,))
        lower, failed = potrf(shifted, lower=1, overwrite_a=1, clean=0)
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
    shifted = 1 / (jnp.maximum(values, 0) + ridge)
    gains = jnp.where(ridge <= rounding, inverse(spectrum_cut(values)), shifted)
    return vectors * jnp.sqrt(gains)[None], jnp.all(gains > 0), jnp.maximum(rounding, -values[0])


def _factor_now(matrix, ridge):
    lower, regular = _cholesky(matrix, ridge)
    if regular:
        return Factor(lower, None, regular)
    del lower
    root, full, rounding = _inverse_root(matrix, ridge)
    _warn(matrix.dtype, ridge, rounding)
    return Factor(root, regular, full)


# One matrix after the other under vmap: as a batch, both branches would run for every matrix.
@jax.custom_batching.sequential_vmap
def _factor(matrix, ridge):
    lower, regular = _cholesky(matrix, ridge)

    def singular():
        root, full, rounding = _inverse_root(matrix, ridge)
        if matrix.dtype == jnp.float32:  # float64 sees any sensible ridge, and a callback costs
            jax.debug.callback(partial(_warn, matrix.dtype), ridge, rounding)
        return Factor(root, regular, full)

    return jax.lax.cond(regular, lambda: Factor(lower, regular, regular), singular)


def _warn(dtype, ridge, rounding):
    if 0 < ridge < rounding:
        warnings.warn(
            f"the ridge {float(ridge):.1e} is below the rounding errors of this {dtype} Gram "
            f"matrix, {float(rounding):.1e}: few digits are right. Take a larger ridge, or float64 "
            'points after jax.config.update("jax_enable_x64", True)',
            stacklevel=2,
        )


@jax.custom_jvp
def _solve(factor, matrix, ridge, b):
    if isinstance(factor.part, np.ndarray) and checks.known(b):
        from scipy.linalg import cho_solve as cho_solve_now

        return jnp.asarray(cho_solve_now((factor.part, True), np.asarray(b), check_finite=False))

    def by_cholesky(columns):
        return cho_solve((factor.part, True), columns)

    def by_root(columns):
        return factor.part @ (factor.part.T @ columns)

    columns = b if b.ndim == 2 else b[:, None]
    if factor.regular is None:
        solved = by_cholesky(columns)
    else:
        solved = jax.lax.cond(factor.regular, by_cholesky, by_root, columns)
    return solved.reshape(b.shape)


@_solve.defjvp
def _solve_jvp(primals, tangents):
    factor, matrix, ridge, b = primals
    _, d_matrix, d_ridge, db = tangents
    solve = partial(_solve, factor, matrix, ridge)
    z = solve(b)
    dz = solve(db - d_matrix @ z - d_ridge * z)
    if factor.regular is not None:  # the derivative of a pseudo-inverse of constant rank
        outside = b - matrix @ z - ridge * z
        turned = d_matrix @ solve(z)
        range_turns = solve(solve(d_matrix @ outside)) + turned - solve(matrix @ turned)
        dz = dz + jnp.where(factor.full, 0, range_turns)
    return z, dz


STEPS = 1000
"""Conjugate gradients end after so many steps, with an error if they are not done."""


def conjugate_gradients(k, x, y, ridge, tolerance, mesh=None) -> Array:
    r"""(K + ridge I)^{-1} y with |y - (K + ridge I) alpha| <= tolerance |y|, in each column."""
    if not all(map(checks.known, jax.tree.leaves((k, x, y, ridge)))):
        raise TypeError('expected solver="cholesky" inside jax.jit and other transformations')
    from tqdm import tqdm

    tolerance = float(jnp.finfo(x.dtype).eps) ** 0.5 if tolerance is None else tolerance
    targets = y.reshape(len(y), -1)
    sizes = jnp.maximum(jnp.linalg.norm(targets, axis=0), jnp.finfo(x.dtype).tiny)
    nystrom = _nystrom(k, x, ridge, mesh)
    rest, alpha = targets, jnp.zeros_like(targets)
    search, square = alpha, jnp.ones_like(sizes)
    for step in (bar := tqdm(range(STEPS), disable=None, leave=False)):
        if step % 50 == 49:  # what is updated drifts from what is true
            rest = targets - product(k, x, x, alpha, mesh) - ridge * alpha
        left = float(jnp.max(jnp.linalg.norm(rest, axis=0) / sizes))
        bar.set_description(f"conjugate gradients, residual {left:.1e}, wanted {tolerance:.1e}")
        if left <= tolerance:
            alpha = alpha.reshape(y.shape)
            return alpha if mesh is None else spread(mesh, alpha)
        search, square = _turn(nystrom, rest, search, square)
        image = product(k, x, x, search, mesh) + ridge * search
        alpha, rest = _move(alpha, rest, search, image, square)
    raise ValueError(
        f"expected a residual of {tolerance:.1e} of y after {STEPS} steps of conjugate gradients, "
        f"got {left:.1e}: take a larger ridge or tolerance, or points in float64"
    )


@jax.jit
def _turn(nystrom, rest, search, square):
    """The next direction of search, orthogonal to the last ones."""
    columns, lower = nystrom
    turned = rest - columns @ cho_solve((lower, True), columns.T @ rest)
    new = jnp.sum(rest * turned, axis=0)
    return turned + jnp.where(square > 0, new / square, 0)[None] * search, new


@jax.jit
def _move(alpha, rest, search, image, square):
    """One step to the minimum along the direction of search."""
    curvature = jnp.sum(search * image, axis=0)
    step = jnp.where(curvature > 0, square / curvature, 0)[None]
    return alpha + step * search, rest - step * image


def _nystrom(k, x, ridge, mesh):
    r"""A preconditioner, the inverse of :math:`C W^{-1} C^\top + \lambda I` up to a factor,

    .. math:: I - C (C^\top C + \lambda W)^{-1} C^\top,

    with the columns C of K at about :math:`3\sqrt n` of the points, and W their own matrix.
    """
    # any sample will do, and the same one every time
    some = np.random.default_rng(0).choice(len(x), min(len(x), int(3 * len(x) ** 0.5)), False)
    mesh = None if mesh is None or len(x) % mesh.size else mesh
    columns = gram(k, x, x[some], mesh=mesh)
    return columns, _lower(columns, ridge * gram(k, x[some]))


@jax.jit
def _lower(columns, own):
    small = columns.T @ columns + own
    # lifted above rounding errors, which leaves the preconditioner positive definite
    lift = 10 * jnp.finfo(own.dtype).eps * jnp.trace(small)
    return jnp.linalg.cholesky(small + lift * jnp.eye(len(own), dtype=own.dtype))
