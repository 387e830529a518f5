"""Fully connected networks in the three scalings of the course.

Explained in the chapters :ref:`wide-networks` (ntk, standard) and :ref:`mean-field`.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from ntkcourse import checks
from ntkcourse.duals import Activation, resolve
from ntkcourse.functions import Apply

POWERS = {"ntk": (0.5, 0.5, True), "mean_field": (0.5, 1.0, True), "standard": (0.5, 0.5, False)}
"""By scaling: powers of 1/n in hidden layers and in the last; in the map or in the initial law."""


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
    sigma_w: float | Float[Array, ""] = 2**0.5,
    sigma_b: float | Float[Array, ""] = 0.0,
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
    at f = 0 with the same tangent kernel (mean_field: half of it).

    ``apply(params, x, width=None)`` maps (n, d) to (n, n_L), or to (n,) when n_L = 1. With a
    ``width``, which may be traced, only the first neurons of each hidden layer are there, at most
    ``width`` of them, and :math:`n_1, ..., n_{L-1}` in the factors are their numbers: a narrower
    network in the same arrays. In the standard scaling, whose initial variances know the full
    width only, :math:`s_l = \sqrt{n_{l-1}/\text{width}}` makes up for it.
    """
    if not isinstance(widths, (tuple, list)) or len(widths) < 2:
        raise ValueError(f"expected widths (d, n_1, ..., out), got {widths!r}")
    widths = tuple(checks.count(n, "each width") for n in widths)
    sigma_w = checks.number(sigma_w, "sigma_w", above=0)
    sigma_b = checks.number(sigma_b, "sigma_b", least=0)
    if scaling not in POWERS:
        raise ValueError(f"expected scaling ntk, standard or mean_field, got {scaling!r}")
    phi = resolve(activation)
    power, last_power, in_map = POWERS[scaling]
    depth = len(widths) - 1
    biased = not checks.known(sigma_b) or sigma_b > 0

    def size(l, fan_in):
        """The standard deviation of a weight of layer l times its factor in the map."""
        return sigma_w / fan_in ** (last_power if l == depth - 1 else power)

    def init(
        *, key: PRNGKeyArray, antisymmetric: bool = False, signs: bool = False, dtype=float
    ) -> PyTree:
        keys = jax.random.split(checks.random_key(key, "init"), 2 * depth)
        layers = []
        for l, (fan_in, fan_out) in enumerate(pairwise(widths)):
            draw = jax.random.rademacher if signs and l == depth - 1 else jax.random.normal
            weight = draw(keys[2 * l], (fan_out, fan_in), dtype)
            bias = jax.random.normal(keys[2 * l + 1], (fan_out,), dtype)
            if not in_map:
                weight, bias = _times(size(l, fan_in), weight), _times(sigma_b, bias)
            layers.append(Layer(weight, bias if biased else None))
        return Doubled(layers, layers) if antisymmetric else layers

    def apply(
        params: PyTree, x: Float[Array, "n d"], *, width: int | Int[Array, ""] | None = None
    ) -> Array:
        if isinstance(params, Doubled):
            return 0.5**last_power * jnp.subtract(*(apply(half, x, width=width) for half in params))
        if not isinstance(params, list):
            raise TypeError(
                f"expected apply(params, x) with params from init, got {type(params).__name__}"
            )
        if jnp.ndim(x) != 2 or x.shape[1] != widths[0]:
            raise ValueError(f"expected x of shape (n, {widths[0]}), got {jnp.shape(x)}")
        if width is not None and checks.known(width):
            widest = max(widths[1:-1], default=np.inf)
            if checks.count(np.asarray(width).item(), "width") > widest:
                raise ValueError(f"expected width <= {widest}, got {width}")
        h = x
        for l, layer in enumerate(params):
            fan_in = widths[l]
            if l > 0:
                h = phi(h)
                if width is not None:
                    fan_in = jnp.minimum(width, fan_in).astype(h.dtype)
                    h = jnp.where(jnp.arange(widths[l])[None] < width, h, 0)
            factor = size(l, fan_in) if in_map else size(l, fan_in) / size(l, widths[l])
            h = _times(factor, h @ layer.weight.T)
            if layer.bias is not None:
                h = h + (_times(sigma_b, layer.bias) if in_map else layer.bias)[None]
        return h[:, 0] if widths[-1] == 1 else h

    return init, apply


def _times(factor, array):
    """A multiple in the dtype of ``array``, also when the factor is traced."""
    return jnp.asarray(factor, array.dtype) * array


def centred(apply: Apply, params: PyTree) -> Apply:
    """The network with its initial function subtracted, f(theta) - f(theta_0)."""

    def difference(new: PyTree, x: Array) -> Array:
        return apply(new, x) - apply(jax.lax.stop_gradient(params), x)

    return difference
