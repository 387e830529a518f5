"""A kernel evaluated at all pairs of points, tile by tile."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

TILE = 512
"""Rows and columns that are filled at once; a tile stays in the processor's cache."""


def fill(k, x: Array, y: Array, symmetric: bool) -> Array:
    """The matrix k(x_i, y_j); if ``symmetric``, y is x and one half is mirrored to the other.

    ``k`` is a Partial. Memory beyond the result is that of one tile.
    """
    tile = max(1, int(TILE / np.sqrt(_memory(k, x, y))))
    return _fill(k, x, y, symmetric, min(tile, len(x)), min(tile, len(y)))


def _block(k, x, y):
    return jax.vmap(lambda a: jax.vmap(lambda b: k(a, b))(y))(x)


def _memory(k, x, y):
    """The size of the largest array that k makes on the way, per pair of 64 by 64 points."""

    def largest(jaxpr):
        made = [v.aval.size for e in jaxpr.eqns for v in e.outvars]
        # loops and branches keep their programs among their parameters, closed or in tuples
        kept = [p for e in jaxpr.eqns for p in jax.tree.leaves(list(e.params.values()))]
        inside = [getattr(p, "jaxpr", p) for p in kept]
        return max(made + [largest(p) for p in inside if hasattr(p, "eqns")], default=1)

    x, y = (jax.ShapeDtypeStruct((64, *p.shape[1:]), p.dtype) for p in (x, y))
    return largest(jax.make_jaxpr(partial(_block, k))(x, y)) / 64**2


@partial(jax.jit, static_argnums=(3, 4, 5))
def _fill(k, x, y, symmetric, rows, columns):
    n, m = len(x), len(y)
    every = np.ndindex(-(-n // rows), -(-m // columns))
    # the last tile of a row or column is pushed back to end at the border and overlaps its
    # neighbour; the order (diagonal tile last in its row) keeps the overlap symmetric
    corners = np.array(
        [(min(i * rows, n - rows), min(j * columns, m - columns))
         for i, j in every if j <= i or not symmetric]
    )  # fmt: skip

    def fill(step, matrix):
        i, j = jnp.asarray(corners)[step]
        xs = jax.lax.dynamic_slice_in_dim(x, i, rows)
        ys = jax.lax.dynamic_slice_in_dim(y, j, columns)
        tile = _block(k, xs, ys)
        if symmetric:
            tile = jnp.where(i == j, jnp.tril(tile) + jnp.tril(tile, -1).T, tile)
            matrix = jax.lax.dynamic_update_slice(matrix, tile.T, (j, i))
        return jax.lax.dynamic_update_slice(matrix, tile, (i, j))

    dtype = jax.eval_shape(k, x[0], y[0]).dtype
    matrix = jax.lax.fori_loop(0, len(corners), fill, jnp.zeros((n, m), dtype))
    if symmetric:
        diagonal = jax.lax.map(lambda a: k(a, a), x, batch_size=rows)
        matrix = matrix.at[jnp.arange(n), jnp.arange(n)].set(diagonal)
    return matrix
