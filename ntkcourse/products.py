r"""Matrix products and convolutions in one form, for the gradients of their parameters.

The gradient of a function by a parameter W that enters a product is :math:`\sum_m h_m \otimes
\delta_m`, with the inputs h of the product, the derivatives :math:`\delta` by its result and its
positions m: rows of a matrix, tokens of a sequence, places in an image.
"""

from collections.abc import Callable
from itertools import product
from math import prod
from typing import NamedTuple

import jax
import jax.numpy as jnp
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
    other, mine = eqn.invars[1 - side].aval.shape, eqn.invars[side].aval.shape
    free = [
        [i for i in range(len(shape)) if i not in (*contracted[s], *batch[s])]
        for s, shape in ((1 - side, other), (side, mine))
    ]
    sizes = [
        prod(shape[i] for i in axes)
        for shape, axes in (
            (mine, batch[side]),
            (other, free[0]),
            (mine, contracted[side]),
            (mine, free[1]),
        )
    ]
    b, m, k, n = sizes
    order = (*batch[side], *contracted[side], *free[1])

    def cotangents(d):
        return d.reshape(b, m, n) if side else d.reshape(b, n, m).swapaxes(1, 2)

    def gradient(g):
        return g.reshape([mine[i] for i in order]).transpose(_inverse(order))

    axes = (*batch[1 - side], *free[0], *contracted[1 - side])
    kind = ("dot", batch[side], contracted[side])
    return Product(
        lambda h: h.transpose(axes).reshape(b, m, k), cotangents, gradient, tuple(sizes), side, kind
    )


def _inverse(order):
    return sorted(range(len(order)), key=lambda i: order[i])


def _convolution(eqn) -> Product:
    """A convolution as a product with the patches of its input; a batch is a group of channels."""
    p = eqn.params
    lhs, rhs, out = p["dimension_numbers"]
    groups = p["feature_group_count"]
    filters, channels, *window = (eqn.invars[1].aval.shape[i] for i in rhs)
    rows, _, *positions = (eqn.outvars[0].aval.shape[i] for i in out)
    sizes = (groups, rows * prod(positions), channels * prod(window), filters // groups)
    dilated = list(zip(p["padding"], p["lhs_dilation"], strict=True))

    def inputs(h):
        h = h.transpose(lhs)
        edges = [(0, 0, 0)] * 2 + [(*pad, step - 1) for pad, step in dilated]
        h = lax.pad(h, jnp.zeros((), h.dtype), edges)
        patches = []
        for offset in product(*map(range, window)):
            start = [o * step for o, step in zip(offset, p["rhs_dilation"], strict=True)]
            last = [
                s + (size - 1) * step + 1
                for s, size, step in zip(start, positions, p["window_strides"], strict=True)
            ]
            strides = (1, 1, *p["window_strides"])
            patches.append(lax.slice(h, (0, 0, *start), (*h.shape[:2], *last), strides))
        stack = jnp.stack(patches).reshape(len(patches), rows, groups, channels, -1)
        return stack.transpose(2, 1, 4, 3, 0).reshape(groups, sizes[1], sizes[2])

    def cotangents(d):
        d = d.transpose(out).reshape(rows, groups, filters // groups, -1)
        return d.transpose(1, 0, 3, 2).reshape(groups, sizes[1], sizes[3])

    def gradient(g):
        return g.swapaxes(1, 2).reshape(filters, channels, *window).transpose(_inverse(rhs))

    return Product(inputs, cotangents, gradient, sizes, 1, ("convolution", rhs, groups))


def as_product(eqn: JaxprEqn, side: int) -> Product | None:
    """The equation as a product with its operand number ``side``, None if it is not one."""
    if eqn.primitive.name == "dot_general":
        return _dot(eqn, side)
    if eqn.primitive.name == "conv_general_dilated" and side == 1:
        return _convolution(eqn) if eqn.params["batch_group_count"] == 1 else None
    return None


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
