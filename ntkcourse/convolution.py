r"""Infinitely wide convolutional networks: kernels as functions of two images (h, w, c).

Each hidden layer is a 3 x 3 convolution with circular padding, weight variance
:math:`\sigma_w^2 / (9 c_{in})`, then the activation. The readout is dense: on the average over
all positions (``pooling=True``), weight variance :math:`\sigma_w^2 / c_{in}`, or on the flattened
image, :math:`\sigma_w^2 / (h w c_{in})`. ``depth`` counts the readout: depth 2 has one
convolution. All weights and biases are trained, in the scaling of :mod:`ntkcourse.infinite`.
Used in chapter :ref:`benchmark`.
"""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from ntkcourse import checks
from ntkcourse.activations import Activation
from ntkcourse.infinite import dual
from ntkcourse.kernels import Kernel


@lru_cache
def _recursion(depth, activation, pooling, tangent):
    kappa, kappa_dot = dual(activation)

    @jax.jit
    def kernel(sigma_w, sigma_b, x, y):
        x, y = checks.pair(x, y)
        if x.ndim != 3:
            raise ValueError(f"expected images of shape (h, w, c), got shape {x.shape}")
        h, w, c = x.shape
        # entry [r, p] of a covariance is for position p of x and p + r of y: a window moves p
        # and leaves r alone, and without pooling only r = 0 is ever needed
        offsets = np.array(list(np.ndindex(h, w)) if pooling else [(0, 0)])
        rows, columns = (offsets.T[:, :, None, None] + np.indices((h, w))[:, None]) % [
            [[[h]]],
            [[[w]]],
        ]

        def moved(a):  # a at p + r
            return a[rows, columns]

        def window(a):  # the mean over 3 x 3 positions, around the corners of the image
            return _mean_of_three(h, a.dtype) @ a @ _mean_of_three(w, a.dtype)

        def affine(inner):
            return sigma_w**2 * inner + sigma_b**2

        def activate(state):
            q11, q12, q22, theta = state
            variances = q11[None], moved(q22)
            post = kappa(variances[0], q12, variances[1])
            if tangent:
                theta = sigma_w**2 * kappa_dot(variances[0], q12, variances[1]) * theta
            return kappa(q11, q11, q11), post, kappa(q22, q22, q22), theta

        def convolve(_, state):
            q11, post, q22, theta = activate(state)
            q11, q12, q22 = (affine(window(q)) for q in (q11, post, q22))
            return q11, q12, q22, q12 + window(theta) if tangent else q12

        q11, q12, q22 = (jnp.sum(a * b, -1) / c for a, b in ((x, x), (x[None], moved(y)), (y, y)))
        if depth == 1:
            return affine(jnp.mean(q12))
        q11, q12, q22 = (affine(window(q)) for q in (q11, q12, q22))
        state = jax.lax.fori_loop(2, depth, convolve, (q11, q12, q22, q12))
        _, post, _, theta = activate(state)
        readout = affine(jnp.mean(post))
        return readout + jnp.mean(theta) if tangent else readout

    return kernel


@lru_cache
def _mean_of_three(n, dtype):
    """The matrix that averages each of n entries on a ring with its two neighbours."""
    return np.mean([np.roll(np.eye(n, dtype=dtype), s, 0) for s in (-1, 0, 1)], 0, dtype=dtype)


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
