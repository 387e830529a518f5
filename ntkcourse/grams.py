r"""Gram matrices, and products with those too large to store, on one device or on many.

``mesh`` is a :class:`jax.sharding.Mesh` of devices, those of one process or of several that
:func:`jax.distributed.initialize` has joined: the rows are shared out among them by JAX's own
sharding, and each device fills its rows by the same formula. Used in :ref:`beyond-one-machine`.
"""

from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from ntkcourse import checks
from ntkcourse.tiles import Function, as_kernel, block, entry_dtype, fill, tile_size


def gram(
    k: Function,
    x: Float[Array, "n *d"],
    y: Float[Array, "m *d"] | None = None,
    *,
    mesh: Mesh | None = None,
) -> Array:
    r"""The matrix :math:`K_{ij} = k(x_i, y_j)`, of shape (n, m).

    With ``y=None``, the matrix of ``x`` with itself: half of the work, exactly symmetric, and
    each diagonal entry is k evaluated at two equal points. The matrix is filled tile by tile, so
    that the memory beyond the result does not grow with n and m. The program is compiled once
    per kernel function and shape: define a kernel of your own once, not anew in each call.

    With a ``mesh``, each of its p devices fills and holds n / p rows, all columns of them; p must
    divide n. Symmetry is not used then; it and the diagonal hold up to rounding.
    """
    k, x, y_or_x = _arguments(k, x, y)
    if mesh is None:
        return fill(k, x, y_or_x, y is None)
    if len(x) % mesh.size:
        raise ValueError(f"expected n to be a multiple of {mesh.size} devices, got {len(x)} rows")
    return _shared_out(mesh, _rows, False, k, x, y_or_x)


def matvec(
    k: Function,
    x: Float[Array, "n *d"],
    v: Float[Array, "m *c"],
    y: Float[Array, "m *d"] | None = None,
    *,
    mesh: Mesh | None = None,
) -> Float[Array, "n *c"]:
    r"""The product :math:`\sum_j k(x_i, y_j)\, v_j` for all i, with :math:`y = x` if None.

    The matrix is never stored: each of its tiles is used and forgotten. ``v`` is (m,) or (m, c).
    """
    k, x, y = _arguments(k, x, y)
    return product(k, x, y, checks.targets(v, y, "v"), mesh)


def product(k, x, y, v, mesh):
    """What :func:`matvec` returns, of arguments that have been checked."""
    if mesh is None:
        return _times(k, x, y, v)
    spare = -len(x) % mesh.size  # filled up to equal shares, and cut off again
    padded = jnp.concatenate([x, jnp.broadcast_to(x[:1], (spare, *x.shape[1:]))]) if spare else x
    return _shared_out(mesh, _times, True, k, padded, y, v)[: len(x)]


def _arguments(k, x, y):
    if not callable(k):
        raise TypeError(f"expected a kernel first, a function k(x, y), got {type(k).__name__}")
    x = checks.gathered(checks.points(x))
    return as_kernel(k), x, x if y is None else checks.gathered(checks.points(y, "y", like=x))


@jax.jit
def _times(k, x, y, v):
    dtype = entry_dtype(k, x, y)
    rows, columns = (min(tile_size(k, x, y), len(p)) for p in (x, y))

    def tiles(array, size):  # the last one is filled up with copies of the first row
        spare = -len(array) % size
        last = jnp.broadcast_to(array[:1], (spare, *array.shape[1:]))
        return jnp.concatenate([array, last]).reshape(-1, size, *array.shape[1:])

    weights = v.astype(dtype).reshape(len(v), -1)
    weights = jnp.pad(weights, ((0, -len(v) % columns), (0, 0)))
    weights = weights.reshape(-1, columns, weights.shape[1])

    def band(some):
        @partial(jax.checkpoint, prevent_cse=False)
        def add(total, part):
            return total + block(k, some, part[0]) @ part[1], None

        zero = jnp.zeros((rows, weights.shape[2]), dtype) + jnp.sum(some[:0]).astype(dtype)
        return jax.lax.scan(add, zero, (tiles(y, columns), weights))[0]

    whole = jax.lax.map(band, tiles(x, rows)).reshape(-1, weights.shape[2])[: len(x)]
    return whole.reshape(len(x), *v.shape[1:])


def spread(mesh: Mesh, array, rows: bool = False):
    """The array on all devices of the mesh, each with its share of the rows or with the whole."""
    if not isinstance(array, (jax.Array, np.ndarray)):
        return array  # a number of Python is everywhere, and never changes a dtype
    sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names) if rows else PartitionSpec())
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        return jax.device_put(array, sharding)
    array = np.asarray(array)  # of several processes each has the whole, and places its share
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def _shared_out(mesh, function, gather, k, x, *rest):
    """``function(k, rows of x, *rest)`` on each device for its rows, gathered or left there."""
    if not all(map(checks.known, jax.tree.leaves((k, x, rest)))):
        raise TypeError("expected mesh=None inside jax.jit and other transformations, got a mesh")
    mesh = Mesh(mesh.devices, mesh.axis_names)  # without axes of the explicit kind
    k, *rest = jax.tree.map(partial(spread, mesh), (k, *rest))
    return _program(mesh, function, gather)(k, spread(mesh, x, rows=True), rest)


@lru_cache  # so that JAX recognises what it has compiled before
def _program(mesh, function, gather):
    rows, whole = PartitionSpec(mesh.axis_names), PartitionSpec()

    @partial(
        jax.shard_map, mesh=mesh, in_specs=(whole, rows, whole), out_specs=rows, check_vma=False
    )
    def run(k, x, rest):
        return function(k, x, *rest)

    return jax.jit(run, out_shardings=NamedSharding(mesh, whole if gather else rows))


def _rows(k, x, y):
    return fill(k, x, y, False)
