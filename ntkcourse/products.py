r"""Matrix products and convolutions in one form, for the gradients of their parameters.

The gradient of a function by a parameter W that enters a product is :math:`\sum_m h_m \otimes
\delta_m`, with the inputs h of the product, the derivatives :math:`\delta` by its result and its
positions m: rows of a matrix, tokens of a sequence, places in an image.
"""

from collections.abc import Callable
from math import prod
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn
from jaxtyping import Array


class Product(NamedTuple):
    """A parameter's use in a product, with positions, contracted and free sizes made flat.

    ``inputs`` brings the other operand to (batch, positions, contracted), ``cotangents`` the
    derivative by the result to (batch, positions, free), ``gradient`` (batch, contracted, free)
    to the shape of the parameter. Products of one ``kind`` have the same last map.
    """

    inputs: Callable
    cotangents: Callable
    gradient: Callable
    sizes: tuple[int, int, int, int]
    side: int
    kind: tuple

    def jacobian(self, inputs: Array, cotangents: Array) -> Array:
        """The gradients themselves, (n, outputs, *shape of the parameter)."""
        all_rows = jnp.einsum("ibmk,iabmn->iabkn", inputs, cotangents)
        return jax.vmap(jax.vmap(self.gradient))(all_rows)


def _dot(eqn, side: int) -> Product:
    contracted, batch = eqn.params["dimension_numbers"]
    mine, other = (eqn.invars[s].aval.shape for s in (side, 1 - side))
    free, positions = (
        [i for i in range(len(shape)) if i not in (*contracted[s], *batch[s])]
        for s, shape in ((side, mine), (1 - side, other))
    )
    b, k, n = (prod(mine[i] for i in axes) for axes in (batch[side], contracted[side], free))
    m = prod(other[i] for i in positions)
    order = (*batch[side], *contracted[side], *free)
    axes = (*batch[1 - side], *positions, *contracted[1 - side])

    def inputs(h):
        return h.transpose(axes).reshape(b, m, k)

    def cotangents(d):
        return d.reshape(b, m, n) if side else d.reshape(b, n, m).swapaxes(1, 2)

    def gradient(g):
        return g.reshape([mine[i] for i in order]).transpose(np.argsort(order))

    kind = ("dot", batch[side], contracted[side])
    return Product(inputs, cotangents, gradient, (b, m, k, n), side, kind)


def _convolution(eqn) -> Product:
    """A convolution as a product with the patches of its input; a batch is a group of channels."""
    lhs, rhs, out = eqn.params["dimension_numbers"]
    groups = eqn.params["feature_group_count"]
    filters, channels, *window = (eqn.invars[1].aval.shape[i] for i in rhs)
    rows, _, *positions = (eqn.outvars[0].aval.shape[i] for i in out)
    sizes = (groups, rows * prod(positions), channels * prod(window), filters // groups)
    names = ("window_strides", "padding", "lhs_dilation", "rhs_dilation")
    geometry = {name: eqn.params[name] for name in names}

    def flat(a):
        """Images (rows, groups of features, *positions) as (groups, all positions, features)."""
        a = a.reshape(rows, groups, -1, prod(positions)).transpose(1, 0, 3, 2)
        return a.reshape(groups, sizes[1], -1)

    def inputs(h):
        highest = lax.Precision.HIGHEST  # patches are copies, on every device
        h = h.transpose(lhs)
        return flat(lax.conv_general_dilated_patches(h, window, precision=highest, **geometry))

    def cotangents(d):
        return flat(d.transpose(out))

    def gradient(g):
        return g.swapaxes(1, 2).reshape(filters, channels, *window).transpose(np.argsort(rhs))

    return Product(inputs, cotangents, gradient, sizes, 1, ("convolution", rhs, groups))


def as_product(eqn: JaxprEqn, side: int) -> Product | None:
    """The equation as a product with its operand number ``side``, None if it is not one."""
    if eqn.primitive.name == "dot_general":
        return _dot(eqn, side)
    convolution = eqn.primitive.name == "conv_general_dilated" and side == 1
    return _convolution(eqn) if convolution and eqn.params["batch_group_count"] == 1 else None


class Outer(NamedTuple):
    """Gradients at all rows as sums of outer products over positions."""

    inputs: Array  # (n, batch, positions, contracted)
    cotangents: Array  # (n, outputs, batch, positions, free)


def contract(left: list[Outer | Array], right: list[Outer | Array]) -> Array:
    """The inner products of all gradients, (n, outputs, m, outputs), summed over the parameters."""

    def part(a, b):
        if not isinstance(a, Outer):
            return _inner(a[None], b[None])[0]
        inputs, cotangents = (
            _inner(*(jnp.moveaxis(term, -3, 0) for term in pair)) for pair in zip(a, b, strict=True)
        )
        return jnp.sum(inputs[:, :, None, :, :, None] * cotangents, (0, 3, 6))

    return sum(map(part, left, right))


def _inner(u, v):
    """The inner products of all vectors (batch, ..., k), by matrices.

    With more axes than two, be they of size 1, XLA copies and transposes what it multiplies.
    """
    a, b = (w.reshape(len(w), -1, w.shape[-1]) for w in (u, v))
    all_pairs = a[0] @ b[0].T if len(a) == 1 else a @ b.swapaxes(1, 2)
    return all_pairs.reshape(len(u), *u.shape[1:-1], *v.shape[1:-1])
