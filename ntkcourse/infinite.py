r"""Infinitely wide networks: the kernels of their initial law and of their training.

A network is a list of layers, ``network(dense(), nonlinearity("relu"), dense())``, in the NTK
scaling of :mod:`ntkcourse.networks`: a dense layer with n inputs is
:math:`\frac{\sigma_w}{\sqrt n} W x + \sigma_b b`, all entries of W and b are N(0, 1). At infinite
width a layer maps what is known of two points to the same one layer later, and its code is that
map. ``depth`` is the number of dense layers. Derived in the chapters :ref:`wide-networks` (NNGP)
and :ref:`ntk`.
"""

from collections.abc import Iterable
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array

from ntkcourse import checks
from ntkcourse.duals import Activation, correlation, dual
from ntkcourse.kernels import Kernel, of_products, trained_ensemble
from ntkcourse.linalg import inverse, root

__all__ = ["dense", "dual", "layer_norm", "network", "nngp", "nonlinearity", "ntk", "residual",
           "trained_ensemble"]  # fmt: skip

Layer = Partial
"""A layer is a function of a State; its numbers may be traced."""


class State(NamedTuple):
    """Sigma(x, x), Sigma(x, y), Sigma(y, y) and Theta(x, y), arrays that broadcast."""

    xx: Array
    xy: Array
    yy: Array
    theta: Array


def _frozen(sigma_w, sigma_b, s):
    w, b = (jnp.asarray(v, s.xy.dtype) ** 2 for v in (sigma_w, sigma_b))
    return State(w * s.xx + b, w * s.xy + b, w * s.yy + b, w * s.theta)


def _dense(sigma_w, sigma_b, s):
    s = _frozen(sigma_w, sigma_b, s)
    return s._replace(theta=s.xy + s.theta)


def dense(
    sigma_w: float | Array = 2**0.5, sigma_b: float | Array = 0.0, trained: bool = True
) -> Layer:
    r"""A dense layer: :math:`\Sigma' = \sigma_w^2\Sigma + \sigma_b^2`, :math:`\Theta' = \Sigma' +
    \sigma_w^2 \Theta`, the first term only if its own weights and biases are trained.
    """
    sigma_w = checks.number(sigma_w, "sigma_w", above=0)
    sigma_b = checks.number(sigma_b, "sigma_b", least=0)
    return Partial(_dense if trained else _frozen, sigma_w, sigma_b)


def _nonlinearity(kappa, kappa_dot, s):
    xx, xy, yy = (kappa(*q) for q in ((s.xx, s.xx, s.xx), s[:3], (s.yy, s.yy, s.yy)))
    return State(xx, xy, yy, kappa_dot(*s[:3]) * s.theta)


def nonlinearity(activation: Activation = "relu") -> Layer:
    r"""An activation: :math:`\Sigma' = \kappa(\Sigma)`, :math:`\Theta' = \dot\kappa(\Sigma)\Theta`.

    See :func:`ntkcourse.duals.dual`. It must act on Gaussian neurons: those of dense layers.
    """
    return Partial(_nonlinearity, *map(Partial, dual(activation)))


def _sequence(layers, s):
    for layer in layers:
        s = layer(s)
    return s


def _residual(layers, s):
    return State(*(a + b for a, b in zip(s, _sequence(layers, s), strict=True)))


def residual(*layers: Layer) -> Layer:
    r"""A skip connection, :math:`x + F(x)` with F = ``layers``: their :math:`\Sigma` and
    :math:`\Theta` add.

    F must end in a dense layer. The weights of that layer have mean 0 and are independent of x:
    so is each covariance of x with F(x) zero, and in :math:`\Theta` the products of a derivative
    of x with one of F(x) have mean 0 and size :math:`1/\sqrt{width}`.
    """
    if not layers or not _is(layers[-1], _dense, _frozen):
        raise ValueError("expected a residual branch that ends in dense(...)")
    return Partial(_residual, layers)


def _layer_norm(s):
    scale = inverse(root(s.xx)) * inverse(root(s.yy))
    one, two = ((q > 0).astype(q.dtype) for q in (s.xx, s.yy))
    return State(one, correlation(s.xx, s.xy, s.yy), two, s.theta * scale)


def layer_norm() -> Layer:
    r"""Layer normalisation without learned scale, :math:`(f - \mathrm{mean}) / \mathrm{std}` over
    the neurons of a dense layer.

    .. math:: (\Sigma, \Theta)(x, y)\; /\; \sqrt{\Sigma(x, x)\,\Sigma(y, y)}

    Over m independent Gaussian neurons the mean is 0 and the variance :math:`\Sigma(x, x)`, up to
    :math:`1/\sqrt m`. Normalised, neuron i has the derivative :math:`(f_i' - \overline{f'} - g_i
    \overline{g f'}) / \mathrm{std}` with :math:`g` the normalised neurons; as the derivatives of
    different neurons are orthogonal, the two means change :math:`\Theta` by a share 1/m only.
    """
    return Partial(_layer_norm)


def _is(layer, *functions):
    if not isinstance(layer, Partial):
        raise TypeError(f"expected a layer such as dense(...), got {layer!r}")
    return layer.func in functions


def _check(layers, gaussian=False):
    """Whether the neurons after these layers are Gaussian; an error if a layer needs it in vain."""
    for layer in layers:
        if _is(layer, _residual):
            _check(layer.args[0], gaussian)
        elif _is(layer, _dense, _frozen):
            gaussian = True
        elif not gaussian:
            raise ValueError("expected nonlinearity(...) and layer_norm() after a dense layer only")
        else:
            gaussian = _is(layer, _layer_norm)
    return gaussian


@jax.jit
def _last(layers, xx, xy, yy):
    return _sequence(layers, State(xx, xy, yy, jnp.zeros_like(xy)))


def _nngp(layers, p):
    return _last(layers, p.xx / p.d, p.xy / p.d, p.yy / p.d).xy


def _ntk(layers, p):
    return _last(layers, p.xx / p.d, p.xy / p.d, p.yy / p.d).theta


def network(*layers: Layer) -> tuple[Kernel, Kernel]:
    r"""The kernels (nngp, ntk) of an infinitely wide network with these layers.

    At the input :math:`\Sigma = x \cdot y / d` and :math:`\Theta = 0`; then each layer in turn.
    """
    if not _check(layers) or not _is(layers[-1], _dense, _frozen, _residual):
        raise ValueError("expected a network that ends in dense(...) or residual(...)")
    return of_products(_nngp, layers), of_products(_ntk, layers)


@lru_cache  # so that JAX recognises a network that it has compiled before
def _repeated(times):
    def layer(layers, s):  # a few layers become one loop over pairs, many do not compile forever
        return jax.lax.fori_loop(
            0, times, lambda _, s: _sequence(layers, s), s, unroll=min(times, 8)
        )

    return layer


def _dense_network(depth, activation, sigma_w, sigma_b, trained=None):
    depth = checks.count(depth, "depth")
    every = range(1, depth + 1)
    chosen = set(every if trained is None else trained)
    if not chosen <= set(every):
        raise ValueError(f"expected trained layers among 1 ... {depth}, got {sorted(chosen)}")
    phi = nonlinearity(activation)
    layers = [dense(sigma_w, sigma_b, 1 in chosen)]
    for flag, group in groupby(l in chosen for l in every[1:]):
        block = phi, dense(sigma_w, sigma_b, flag)
        layers.append(Partial(_repeated(len(list(group))), block))
    return tuple(layers)


def nngp(
    depth: int, activation: Activation = "relu", sigma_w: float = 2**0.5, sigma_b: float = 0.0
) -> Kernel:
    r"""The covariance :math:`\Sigma^L` of an infinitely wide dense network at initialisation.

    .. math:: \Sigma^1 = \sigma_w^2\, x \cdot y / d + \sigma_b^2, \qquad
              \Sigma^{l+1} = \sigma_w^2\, \kappa(\Sigma^l) + \sigma_b^2
    """
    return of_products(_nngp, _dense_network(depth, activation, sigma_w, sigma_b))


def ntk(
    depth: int,
    activation: Activation = "relu",
    sigma_w: float = 2**0.5,
    sigma_b: float = 0.0,
    trained: Iterable[int] | None = None,
) -> Kernel:
    r"""The tangent kernel :math:`\Theta^L` of an infinitely wide dense network.

    .. math:: \Theta^1 = \Sigma^1, \qquad
              \Theta^{l+1} = \Sigma^{l+1} + \sigma_w^2\, \dot\kappa(\Sigma^l)\, \Theta^l

    The bias variance enters through :math:`\Sigma^{l+1}` alone. ``trained`` are the layers
    (1 ... depth) whose weights and biases are trained, None for all: without layer l,
    :math:`\Sigma^l` is missing from the sum.
    """
    return of_products(_ntk, _dense_network(depth, activation, sigma_w, sigma_b, trained))
