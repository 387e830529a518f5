"""Kernels as objects, and their values at all pairs of points, tile by tile."""

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float

from ntkcourse import checks

TILE = 128
"""Rows and columns that are filled at once; a tile stays in the processor's cache."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Kernel:
    """The kernel k(x, y) = ``formula(*parameters, x, y)``, which JAX traces through.

    A change of ``parameters`` compiles nothing anew. ``matrix(*parameters, x, y)``, if there is
    one, is a faster way to all k(x_i, y_j) of two arrays of points. With ``+`` and ``*`` kernels,
    functions of two points and numbers >= 0 make new kernels.
    """

    formula: Callable = field(metadata={"static": True})
    parameters: tuple = ()
    matrix: Callable | None = field(default=None, metadata={"static": True})

    def __call__(self, x: Array, y: Array):  # noqa: D102
        return self.formula(*self.parameters, x, y)

    def __add__(self, other):
        return Kernel(_entry, (Partial(operator.add), self, as_kernel(other)), _entries)

    def __mul__(self, other):
        return Kernel(_entry, (Partial(operator.mul), self, as_kernel(other)), _entries)

    __radd__, __rmul__ = __add__, __mul__


Function = Callable[[Array, Array], Array]
"""What every argument called k may be: a Kernel, or any function of two points."""


def as_kernel(k: Function | float) -> Kernel:
    """A function of two points, or a number >= 0 as a constant one, as a :class:`Kernel`."""
    if isinstance(k, Kernel):
        return k
    if callable(k):
        return Kernel(operator.call, (Partial(k),))
    return Kernel(_constant, (checks.number(k, "a constant kernel", least=0),))


def _constant(c, x, y):
    return jnp.asarray(c, x.dtype)


def _entry(operation, k, l, x, y):
    return operation(k(x, y), l(x, y))


def _entries(operation, k, l, x, y):
    return operation(block(k, x, y), block(l, x, y))


class Products(NamedTuple):
    """What most kernels know of two points: x.x, x.y, y.y, |x - y|^2, and their dimension d."""

    xx: Array
    xy: Array
    yy: Array
    apart: Array
    d: int


def of_products(formula: Callable, *parameters, lengthscale=1.0) -> Kernel:
    """The kernel ``formula(*parameters, products)``, of x / lengthscale and y / lengthscale.

    One formula serves two points, whose products are formed as written, and matrices, whose
    products are matrix products: see ``products``.
    """
    return Kernel(_of_points, (Partial(formula), lengthscale, parameters), _of_rows)


def difference(x: Array, y: Array, lengthscale) -> Array:
    """(x - y) / lengthscale for two points, flattened."""
    x, y = checks.pair(x, y)
    return _divided((x - y).ravel(), lengthscale)


def _divided(point, lengthscale):
    lengthscale = jnp.asarray(lengthscale, point.dtype)  # the result has the dtype of the point
    if lengthscale.ndim > 0 and lengthscale.shape != point.shape:
        raise ValueError(
            f"expected one lengthscale for each of {point.size} coordinates, got {lengthscale.size}"
        )
    return point / lengthscale


def _of_points(formula, lengthscale, parameters, x, y):
    apart = jnp.sum(difference(x, y, lengthscale) ** 2)
    x, y = (_divided(p.ravel(), lengthscale) for p in checks.pair(x, y))
    known = Products(jnp.dot(x, x), jnp.dot(x, y), jnp.dot(y, y), apart, x.size)
    return formula(*parameters, known)


def _of_rows(formula, lengthscale, parameters, x, y):
    x, y = (p.reshape(len(p), -1) for p in (x, y))
    return formula(*parameters, Products(*products(x, y, lengthscale), x.shape[1]))


def products(
    x: Float[Array, "n d"], y: Float[Array, "m d"], lengthscale=1.0
) -> tuple[Array, Array, Array, Array]:
    """x.x (n, 1), x.y (n, m), y.y (1, m) and |x - y|^2 (n, m) of all rows, over the lengthscale.

    |x|^2 + |y|^2 - 2 x.y is one matrix product, but it loses the digits of small distances. So
    the points are centred, and pairs that are close in comparison with their norms are
    formed from differences, divided by the lengthscale only then: quotients are rounded. In few
    dimensions that is as fast, and all are.
    """
    divide = jax.vmap(lambda p: _divided(p, lengthscale))
    u, v = divide(x), divide(y)
    squares = jnp.sum(u**2, 1)[:, None], u @ v.T, jnp.sum(v**2, 1)[None]

    def differences(_):
        return jnp.sum(jax.vmap(divide)(x[:, None] - y[None]) ** 2, -1)

    if 0 < x.shape[1] <= 8:  # coordinate by coordinate: the processor works along the columns
        scales = jnp.broadcast_to(jnp.asarray(lengthscale, x.dtype), x.shape[1:])
        pairs = zip(x.T, y.T, scales, strict=True)
        return *squares, sum(((a[:, None] - b[None]) / l) ** 2 for a, b, l in pairs)
    centre = (jnp.mean(u, 0) + jnp.mean(v, 0))[None] / 2
    u, v = u - centre, v - centre
    norms = jnp.sum(u**2, 1)[:, None] + jnp.sum(v**2, 1)[None]
    apart = norms - 2 * (u @ v.T)
    close = ~(apart >= norms / 64)  # also where squares overflow: infinity minus infinity
    few = len(x) + len(y)

    def mend_few(_):
        i, j = jnp.nonzero(close, size=few, fill_value=(len(x), len(y)))  # the fill is outside
        rows, columns = (p.at[k].get(mode="clip") for p, k in ((x, i), (y, j)))
        return apart.at[i, j].set(jnp.sum(divide(rows - columns) ** 2, 1), mode="drop")

    count = jnp.sum(close)
    case = jnp.where(count == 0, 0, jnp.where(count <= few, 1, 2))
    return *squares, jax.lax.switch(case, [lambda _: apart, mend_few, differences], 0)


def block(k: Kernel, x: Array, y: Array) -> Array:
    """All k(x_i, y_j) at once, by the kernel's own way if it has one."""
    if k.matrix is not None:
        return k.matrix(*k.parameters, x, y)
    columns = jnp.moveaxis(y, 0, -1)  # the long axis last, along which the processor works
    return jax.vmap(lambda a: jax.vmap(partial(k, a), in_axes=-1)(columns))(x)


def entry_dtype(k: Kernel, x: Array, y: Array):
    """The dtype of k(x_i, y_j), which has to be a number."""
    entry = jax.eval_shape(k, *(jax.ShapeDtypeStruct(p.shape[1:], p.dtype) for p in (x, y)))
    if entry.shape != ():
        raise ValueError(f"expected k(x, y) to be a number, got an array of shape {entry.shape}")
    return entry.dtype


def tile_size(k, x, y):
    """Rows of a tile: fewer than TILE if k makes large arrays on the way (convolutions do)."""
    if k.matrix is _entries:
        return min(tile_size(part, x, y) for part in k.parameters[1:])
    if k.matrix is not None:
        return TILE

    def largest(jaxpr):
        made = [v.aval.size for e in jaxpr.eqns for v in e.outvars]
        # loops and branches keep their programs among their parameters, closed or in tuples
        kept = [p for e in jaxpr.eqns for p in jax.tree.leaves(list(e.params.values()))]
        inside = [getattr(p, "jaxpr", p) for p in kept]
        return max(made + [largest(p) for p in inside if hasattr(p, "eqns")], default=1)

    x, y = (jax.ShapeDtypeStruct((64, *p.shape[1:]), p.dtype) for p in (x, y))
    per_pair = largest(jax.make_jaxpr(partial(block, k))(x, y)) / 64**2
    return max(1, int(TILE / np.sqrt(max(1, per_pair))))


def _mirrored(tile):
    return jnp.tril(tile) + jnp.tril(tile, -1).T


@partial(jax.jit, static_argnums=3)
def fill(k, x, y, symmetric):
    """The matrix k(x_i, y_j); memory beyond the result is that of one tile."""
    dtype, n, m = entry_dtype(k, x, y), len(x), len(y)
    tile = tile_size(k, x, y)
    rows, columns = min(tile, n), min(tile, m)
    every = np.ndindex(-(-n // rows), -(-m // columns))
    tiles = [(i, j) for i, j in every if j <= i or not symmetric]
    # the last tile of a row or column is pushed back to end at the border and overlaps its
    # neighbour; the order (diagonal tile last in its row) keeps the overlap symmetric
    corners = np.minimum(np.multiply(tiles, (rows, columns)), (n - rows, m - columns))

    def put(step, matrix):
        i, j = jnp.asarray(corners)[step]
        xs = jax.lax.dynamic_slice_in_dim(x, i, rows)
        ys = jax.lax.dynamic_slice_in_dim(y, j, columns)
        tile = block(k, xs, ys)
        if symmetric:
            # a cond, for jnp.where would be fused with the kernel and compute it many times over
            tile = jax.lax.cond(i == j, _mirrored, lambda t: t, tile)
            matrix = jax.lax.dynamic_update_slice(matrix, tile.T, (j, i))
        return jax.lax.dynamic_update_slice(matrix, tile, (i, j))

    # the empty sum makes the zeros vary over devices as x and y do, which shard_map asks for
    empty = jnp.zeros((n, m), dtype) + (jnp.sum(x[:0]) + jnp.sum(y[:0])).astype(dtype)
    matrix = jax.lax.fori_loop(0, len(corners), put, empty)
    if symmetric:
        diagonal = jax.lax.map(lambda a: k(a, a), x, batch_size=rows)
        matrix = matrix.at[jnp.arange(n), jnp.arange(n)].set(diagonal)
    return matrix
