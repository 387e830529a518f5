"""Fully connected networks in the three scalings of the course.

Explained in the chapters :ref:`wide-networks` (ntk, standard) and :ref:`mean-field`.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from ntkcourse import checks
from ntkcourse.activations import Activation, resolve

Apply = Callable[[PyTree, Array], Array]


class Layer(NamedTuple):
    """One affine layer: a neuron per row; ``bias`` is None where sigma_b = 0."""

    weight: Float[Array, "out in"]
    bias: Float[Array, " out"] | None


class Doubled(NamedTuple):
    """Two copies of a network, equal at initialisation, whose difference is the function."""

    plus: list[Layer]
    minus: list[Layer]


def mlp(
    widths: tuple[int, ...],
    activation: Activation = "relu",
    sigma_w: float = 2**0.5,
    sigma_b: float = 0.0,
    scaling: str = "ntk",
) -> tuple[Callable[..., PyTree], Apply]:
    r"""A fully connected network as a pair of functions ``(init, apply)``.

    ``widths`` is (d, n_1, ..., n_L): L affine layers, activations between them,

    .. math:: f^1 = s_1 W^1 x + r b^1, \quad f^l = s_l W^l \varphi(f^{l-1}) + r b^l,
              \quad f = f^L.

    The factors depend on ``scaling``, with :math:`n_0 = d`:

    - ``ntk``: :math:`s_l = \sigma_w/\sqrt{n_{l-1}}`, :math:`r = \sigma_b`, W and b are N(0, 1);
    - ``standard``: :math:`s_l = r = 1`, W has variance :math:`\sigma_w^2/n_{l-1}` and b
      :math:`\sigma_b^2`: the same function at initialisation, other gradients;
    - ``mean_field``: as ntk, but :math:`s_L = \sigma_w/n_{L-1}` in the last layer.

    sigma_b = 0 leaves the biases out. ``init(key=key, antisymmetric=False, signs=False,
    dtype=float)`` gives the parameters. ``signs`` makes the output weights +1 or -1 times
    their standard deviation (Du et al. 2019). ``antisymmetric`` doubles the network into
    :math:`(f_+ - f_-)/\sqrt2` (mean_field: /2) with equal initial parameters, so that it starts
    at f = 0 with the same tangent kernel (mean_field: half of it). ``apply(params, x)`` maps
    (n, d) to (n, n_L), or to (n,) when n_L = 1; its attribute ``tangent_kernel`` is a fast way to
    :func:`ntkcourse.tangent.empirical_ntk`.
    """
    if not isinstance(widths, (tuple, list)) or len(widths) < 2:
        raise ValueError(f"expected widths (d, n_1, ..., out), got {widths!r}")
    widths = tuple(checks.count(n, "each width") for n in widths)
    sigma_w = checks.number(sigma_w, "sigma_w", above=0)
    sigma_b = checks.number(sigma_b, "sigma_b", least=0)
    if scaling not in ("ntk", "standard", "mean_field"):
        raise ValueError(f"expected scaling ntk, standard or mean_field, got {scaling!r}")
    phi = resolve(activation)
    spread = [sigma_w / n**0.5 for n in widths[:-1]]
    scales, deviations, shift, bias_deviation = spread, [1.0] * len(spread), sigma_b, 1.0
    if scaling == "standard":
        scales, deviations, shift, bias_deviation = deviations, spread, 1.0, sigma_b
    if scaling == "mean_field":
        scales = [*spread[:-1], sigma_w / widths[-2]]
    share = 0.5 if scaling == "mean_field" else 0.5**0.5

    def init(
        *, key: PRNGKeyArray, antisymmetric: bool = False, signs: bool = False, dtype=float
    ) -> PyTree:
        keys = jax.random.split(checks.random_key(key, "init"), 2 * len(spread))
        layers = []
        for l, (fan_in, fan_out) in enumerate(pairwise(widths)):
            draw = jax.random.normal
            if signs and l == len(spread) - 1:
                draw = jax.random.rademacher
            weight = deviations[l] * draw(keys[2 * l], (fan_out, fan_in), dtype)
            bias = bias_deviation * jax.random.normal(keys[2 * l + 1], (fan_out,), dtype)
            layers.append(Layer(weight, bias if sigma_b > 0 else None))
        return Doubled(layers, layers) if antisymmetric else layers

    def affine(l, layer, h):
        out = scales[l] * (h @ layer.weight.T)
        return out if layer.bias is None else out + shift * layer.bias[None]

    def expect_points(x):
        if jnp.ndim(x) != 2 or x.shape[1] != widths[0]:
            raise ValueError(f"expected x of shape (n, {widths[0]}), got {jnp.shape(x)}")

    def apply(params: PyTree, x: Float[Array, "n d"]) -> Array:
        if isinstance(params, Doubled):
            return share * (apply(params.plus, x) - apply(params.minus, x))
        expect_points(x)
        h = affine(0, params[0], x)
        for l, layer in enumerate(params[1:], start=1):
            h = affine(l, layer, phi(h))
        return h[:, 0] if widths[-1] == 1 else h

    def trace(params, x):
        """The input of each layer, and the derivative of the outputs by the layer's output.

        The derivatives are (n, outputs, n_l), by backpropagation with the activations' slopes.
        """
        expect_points(x)
        inputs, slopes = [x], []
        for l, layer in enumerate(params[:-1]):
            pre = affine(l, layer, inputs[-1])
            post, slope = jax.jvp(phi, (pre,), (jnp.ones_like(pre),))
            inputs.append(post)
            slopes.append(slope)
        delta = jnp.broadcast_to(jnp.eye(widths[-1], dtype=x.dtype), (len(x),) + 2 * widths[-1:])
        deltas = [delta]
        for l in range(len(params) - 1, 0, -1):
            delta = scales[l] * (delta @ params[l].weight) * slopes[l - 1][:, None]
            deltas.insert(0, delta)
        return inputs, deltas

    def tangent_kernel(params, x, y):
        r"""sum_l (delta_l delta_l^T) (s_l^2 h_{l-1} h_{l-1}^T + r^2): matrix products only."""
        if isinstance(params, Doubled):
            both = tangent_kernel(params.plus, x, y) + tangent_kernel(params.minus, x, y)
            return share**2 * both
        total = 0
        for l, (h_x, delta_x, h_y, delta_y) in enumerate(
            zip(*trace(params, x), *trace(params, y), strict=True)
        ):
            inner = scales[l] ** 2 * (h_x @ h_y.T)
            if sigma_b > 0:
                inner = inner + shift**2
            total = total + inner[:, :, None, None] * jnp.einsum("iak,jbk->ijab", delta_x, delta_y)
        return total[:, :, 0, 0] if widths[-1] == 1 else total

    apply.tangent_kernel = tangent_kernel
    return init, apply


def centred(apply: Apply, params: PyTree) -> Apply:
    """The network with its initial function subtracted, f(theta) - f(theta_0)."""

    def difference(new: PyTree, x: Array) -> Array:
        return apply(new, x) - jax.lax.stop_gradient(apply(params, x))

    if hasattr(apply, "tangent_kernel"):
        difference.tangent_kernel = apply.tangent_kernel
    return difference
