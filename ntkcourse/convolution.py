r"""Infinitely wide convolutional networks: kernels as functions of two images (h, w, c).

Each hidden layer is a 3 x 3 convolution, weight variance :math:`\sigma_w^2 / (9 c_{in})`, then
the activation. ``padding`` is "circular" or "zero"; ``stride`` s keeps every s-th row and column.
The readout is dense: on the average over all positions (``pooling=True``), weight variance
:math:`\sigma_w^2 / c_{in}`, or on the flattened image, :math:`\sigma_w^2 / (h w c_{in})`.
``depth`` counts the readout: depth 2 has one convolution. All weights and biases are trained, in
the scaling of :mod:`ntkcourse.infinite`. Used in chapter :ref:`benchmark`.
"""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from ntkcourse import checks
from ntkcourse.infinite import Activation, State, dense, nonlinearity
from ntkcourse.kernels import Kernel

PADDING = {"circular": "wrap", "zero": "constant"}


@lru_cache
def _mean_of_three(n, padding, stride, together):
    """The matrix that takes the mean at p - 1, p and p + 1 of n positions p, each stride-th kept.

    With ``together`` for pairs (p, q) that move together, n^2 of them. A matrix, for from shifted
    slices the compiler would compute the layers below three times over, at each layer.
    """
    wide = np.pad(np.eye(n), ((1, 1), (0, 0)), PADDING[padding])
    shifts = [wide[i : i + n : stride] for i in range(3)]
    return sum(np.kron(s, s) if together else s for s in shifts) / 3


@lru_cache
def _recursion(depth, activation, pooling, padding, stride, tangent):
    phi = nonlinearity(activation)

    def window(a):
        # axes: rows of x, rows of y, columns of x, columns of y. With pooling every position of x
        # meets every one of y; without, only equal positions do, and the axes of y have length 1
        rows, columns = (
            jnp.asarray(_mean_of_three(max(n, m), padding, stride, n == m), a.dtype)
            for n, m in (a.shape[:2], a.shape[2:])
        )
        flat = rows @ a.reshape(rows.shape[1], columns.shape[1]) @ columns.T
        return flat.reshape([min(n, -(-n // stride)) for n in a.shape])

    @jax.jit
    def kernel(affine, x, y):
        x, y = checks.pair(x, y)
        if x.ndim != 3:
            raise ValueError(f"expected images of shape (h, w, c), got shape {x.shape}")
        u = x[:, None, :, None]
        v = y[None, :, None] if pooling else y[:, None, :, None]
        xx, xy, yy = (jnp.sum(a * b, -1) / x.shape[-1] for a, b in ((u, u), (u, v), (v, v)))
        s = State(xx, xy, yy, jnp.zeros_like(xy))
        for _ in range(depth - 1):
            s = phi(affine(State(*map(window, s))))
        s = affine(State(*(jnp.mean(a) for a in s)))
        return s.theta if tangent else s.xy

    return kernel


def _kernel(depth, activation, sigma_w, sigma_b, pooling, padding, stride, tangent):
    depth, stride = checks.count(depth, "depth"), checks.count(stride, "stride")
    if padding not in PADDING:
        raise ValueError(f"expected padding 'circular' or 'zero', got {padding!r}")
    form = _recursion(depth, activation, bool(pooling), padding, stride, tangent)
    return Kernel(form, (dense(sigma_w, sigma_b),))


def nngp(
    depth: int,
    activation: Activation = "relu",
    sigma_w: float = 2**0.5,
    sigma_b: float = 0.0,
    pooling: bool = True,
    padding: str = "circular",
    stride: int = 1,
) -> Kernel:
    r"""The covariance of an infinitely wide convolutional network at initialisation.

    With :math:`\Sigma_{pq}` the covariance at position p of one image and q of the other, and A
    the average over the nine shifts (p + s, q + s),

    .. math:: \Sigma^1 = \sigma_w^2 A(x_p \cdot y_q / c) + \sigma_b^2, \qquad
              \Sigma^{l+1} = \sigma_w^2 A(\kappa(\Sigma^l)) + \sigma_b^2,

    and the readout takes the mean over all pairs (p, q), or over p = q without pooling.
    """
    return _kernel(depth, activation, sigma_w, sigma_b, pooling, padding, stride, tangent=False)


def ntk(
    depth: int,
    activation: Activation = "relu",
    sigma_w: float = 2**0.5,
    sigma_b: float = 0.0,
    pooling: bool = True,
    padding: str = "circular",
    stride: int = 1,
) -> Kernel:
    r"""The tangent kernel of an infinitely wide convolutional network, all layers trained.

    .. math:: \Theta^1 = \Sigma^1, \qquad
              \Theta^{l+1} = \Sigma^{l+1} + \sigma_w^2 A(\dot\kappa(\Sigma^l)\, \Theta^l)
    """
    return _kernel(depth, activation, sigma_w, sigma_b, pooling, padding, stride, tangent=True)
