r"""Infinitely wide convolutional networks: kernels as functions of two images (h, w, c).

Each hidden layer is a 3 x 3 convolution with circular padding, weight variance
:math:`\sigma_w^2 / (9 c_{in})`, then the activation. The readout is dense: on the average over
all positions (``pooling=True``), weight variance :math:`\sigma_w^2 / c_{in}`, or on the flattened
image, :math:`\sigma_w^2 / (h w c_{in})`. ``depth`` counts the readout: depth 2 has one
convolution. All weights and biases are trained, in the scaling of :mod:`ntkcourse.infinite`.
"""

from functools import lru_cache

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from ntkcourse import checks
from ntkcourse.activations import Activation
from ntkcourse.infinite import dual
from ntkcourse.kernels import Kernel


def _average(maps, pairs):
    """The mean over the nine shifts of a 3 x 3 window, of both images together if ``pairs``.

    ``maps`` is (h, w), entry p for the positions (p, p), or (h, w, h, w), entry (p, q).
    """
    for axis in (0, 1):
        axes = (axis, axis + 2) if pairs else (axis,)
        maps = sum(jnp.roll(maps, (s,) * len(axes), axes) for s in (-1, 0, 1)) / 3
    return maps


@lru_cache
def _recursion(depth, activation, pooling, tangent):
    kappa, kappa_dot = dual(activation)

    @jax.jit
    def kernel(sigma_w, sigma_b, x, y):
        x, y = checks.pair(x, y)
        if x.ndim != 3:
            raise ValueError(f"expected images of shape (h, w, c), got shape {x.shape}")

        def affine(inner):
            return sigma_w**2 * inner + sigma_b**2

        def own(a):  # the covariances of one image with itself, position by position
            return jnp.sum(a * a, -1) / x.shape[-1]

        def spread(q11, q22):  # the variances that belong to each entry of the covariance
            return (q11[:, :, None, None], q22[None, None]) if pooling else (q11, q22)

        def layer(_, state):
            q11, q12, q22, theta = state
            rows, columns = spread(q11, q22)
            post = kappa(rows, q12, columns)
            if tangent:
                theta = sigma_w**2 * kappa_dot(rows, q12, columns) * theta
            return kappa(q11, q11, q11), post, kappa(q22, q22, q22), theta

        def convolution(index, state):
            q11, post, q22, theta = layer(index, state)
            q11, q22 = (affine(_average(q, False)) for q in (q11, q22))
            q12 = affine(_average(post, pooling))
            return q11, q12, q22, q12 + _average(theta, pooling) if tangent else q12

        letters = "abc,dec->abde" if pooling else "abc,abc->ab"
        post = jnp.einsum(letters, x, y) / x.shape[-1]
        if depth == 1:
            return affine(jnp.mean(post))
        q11, q22 = (affine(_average(own(a), False)) for a in (x, y))
        q12 = affine(_average(post, pooling))
        state = jax.lax.fori_loop(2, depth, convolution, (q11, q12, q22, q12))
        _, post, _, theta = layer(depth, state)
        readout = affine(jnp.mean(post))
        return readout + jnp.mean(theta) if tangent else readout

    return kernel


def _kernel(depth, activation, sigma_w, sigma_b, pooling, tangent):
    depth = checks.count(depth, "depth")
    sigma_w = checks.number(sigma_w, "sigma_w", above=0)
    sigma_b = checks.number(sigma_b, "sigma_b", least=0)
    return Partial(_recursion(depth, activation, bool(pooling), tangent), sigma_w, sigma_b)


def nngp(
    depth: int,
    activation: Activation = "relu",
    sigma_w: float = 2**0.5,
    sigma_b: float = 0.0,
    pooling: bool = True,
) -> Kernel:
    r"""The covariance of an infinitely wide convolutional network at initialisation.

    With :math:`\Sigma_{pq}` the covariance at position p of one image and q of the other, and A
    the average over the nine shifts (p + s, q + s),

    .. math:: \Sigma^1 = \sigma_w^2 A(x_p \cdot y_q / c) + \sigma_b^2, \qquad
              \Sigma^{l+1} = \sigma_w^2 A(\kappa(\Sigma^l)) + \sigma_b^2,

    and the readout takes the mean over all pairs (p, q), or over p = q without pooling.
    """
    return _kernel(depth, activation, sigma_w, sigma_b, pooling, tangent=False)


def ntk(
    depth: int,
    activation: Activation = "relu",
    sigma_w: float = 2**0.5,
    sigma_b: float = 0.0,
    pooling: bool = True,
) -> Kernel:
    r"""The tangent kernel of an infinitely wide convolutional network, all layers trained.

    .. math:: \Theta^1 = \Sigma^1, \qquad
              \Theta^{l+1} = \Sigma^{l+1} + \sigma_w^2 A(\dot\kappa(\Sigma^l)\, \Theta^l)
    """
    return _kernel(depth, activation, sigma_w, sigma_b, pooling, tangent=True)
