r"""Infinitely wide networks: the kernels of their initial law and of their training.

The network is the one of :mod:`ntkcourse.networks` in NTK scaling,

.. math:: f^1 = \frac{\sigma_w}{\sqrt d} W^1 x + \sigma_b b^1, \qquad
          f^l = \frac{\sigma_w}{\sqrt{n_{l-1}}} W^l \varphi(f^{l-1}) + \sigma_b b^l,

all weights and biases N(0, 1) and trained. ``depth`` is L, the number of affine layers.
Derived in the chapters :ref:`wide-networks` (NNGP) and :ref:`ntk`.
"""

from collections.abc import Callable
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Float

from ntkcourse import checks, kernels, quadrature
from ntkcourse.activations import SLOPE, Activation, resolve
from ntkcourse.linalg import flow_gains, spectrum
from ntkcourse.quadrature import arccos, root

Dual = Callable[[Array, Array, Array], Array]


def correlation(q11, q12, q22):
    """q12 / sqrt(q11 q22) in [-1, 1]; 1 or -1 when it is so up to rounding, 0 when undefined."""
    norm = root(q11) * root(q22)
    c = q12 / jnp.where(norm > 0, norm, 1)
    # an angle below sqrt(8 eps) is rounding noise: equal points must have angle exactly 0
    snapped = jnp.where(jnp.abs(c) > 1 - 4 * jnp.finfo(c.dtype).eps, jnp.sign(c), c)
    c = c + jax.lax.stop_gradient(snapped - c)  # the derivatives are those of c itself
    return jnp.where(norm > 0, c, 0), norm


def _piecewise_linear(slope):
    """z for z > 0 and slope z for z < 0, which is ((1 + slope) z + (1 - slope) |z|) / 2.

    The odd and the even part are uncorrelated, and with c = cos(angle) = the correlation
    E |u||v| = (2/pi) sqrt(q11 q22) (sin(angle) + c (pi/2 - angle)).
    """
    odd, even = ((1 + slope) / 2) ** 2, ((1 - slope) / 2) ** 2 * 2 / jnp.pi

    def slopes(c):
        return odd + even * (jnp.pi / 2 - arccos(c))

    @jax.custom_jvp
    def values(c):
        sine = root((1 - c) * (1 + c))
        return odd * c + even * (sine + c * (jnp.pi / 2 - arccos(c)))

    # term by term, sine and angle would each give 0 in place of an infinity at c = 1 and c = -1
    values.defjvp(lambda c, dc: (values(*c), slopes(*c) * dc[0]))

    def kappa(q11, q12, q22):
        c, norm = correlation(q11, q12, q22)
        return norm * values(c)

    def kappa_dot(q11, q12, q22):
        return slopes(correlation(q11, q12, q22)[0])

    return kappa, kappa_dot


def _erf():
    def determinant(q11, q12, q22):  # at least 1; the floor only meets the rounding of huge q
        return jnp.maximum((1 + 2 * q11) * (1 + 2 * q22) - 4 * q12**2, 0.5)

    def kappa(q11, q12, q22):  # 2/pi arcsin(2 q12 / sqrt((1 + 2 q11)(1 + 2 q22)))
        return 2 / jnp.pi * jnp.arctan2(2 * q12, jnp.sqrt(determinant(q11, q12, q22)))

    def kappa_dot(q11, q12, q22):
        return 4 / jnp.pi / jnp.sqrt(determinant(q11, q12, q22))

    return kappa, kappa_dot


def _sin_cos():
    def even(q11, q12, q22):  # E cos u cos v
        mean = (q11 + q22) / 2
        return (jnp.exp(q12 - mean) + jnp.exp(-q12 - mean)) / 2

    def odd(q11, q12, q22):  # E sin u sin v = e^{-(q11 + q22) / 2} sinh q12
        sign = jnp.where(q12 < 0, -1, 1).astype(q12.dtype)  # derivative at 0: see arccos
        size = sign * q12
        return -sign * jnp.exp(size - (q11 + q22) / 2) * jnp.expm1(-2 * size) / 2

    return odd, even


def _gelu():
    # z Phi(z) = (z + z g(z)) / 2 with g(z) = erf(z / sqrt 2). Stein's lemma, twice, takes the
    # factors u and v out of E[u v g(u) g(v)]; kappa_dot is the derivative of kappa by q12.
    def parts(q11, q12, q22):
        det = jnp.maximum((1 + q11) * (1 + q22) - q12**2, 0.5)
        angle = jnp.arctan2(q12, jnp.sqrt(det))
        share = 1 - q11 / (1 + q11) - q22 / (1 + q22)
        return det, angle, share, q11 * q22 + q12**2 * share

    def kappa(q11, q12, q22):
        det, angle, _, mixed = parts(q11, q12, q22)
        return q12 / 4 + (q12 * angle + mixed / jnp.sqrt(det)) / (2 * jnp.pi)

    def kappa_dot(q11, q12, q22):
        det, angle, share, mixed = parts(q11, q12, q22)
        slope = q12 * (1 + 2 * share + mixed / det) / jnp.sqrt(det)
        return 1 / 4 + (angle + slope) / (2 * jnp.pi)

    return kappa, kappa_dot


def _identity():
    return lambda q11, q12, q22: q12, lambda q11, q12, q22: jnp.ones_like(q12)


@lru_cache
def dual(activation: Activation) -> tuple[Dual, Dual]:
    r"""The dual of an activation and of its derivative,

    .. math:: \kappa = E\,\varphi(u)\varphi(v), \quad \dot\kappa = E\,\varphi'(u)\varphi'(v),
              \qquad (u, v) \sim N\left(0, \begin{pmatrix} q_{11} & q_{12} \\ q_{12} & q_{22}
              \end{pmatrix}\right),

    as functions of (q11, q12, q22). Closed forms for relu, leaky_relu, abs, erf, sin, cos, gelu
    and identity; quadrature for every other function, see ``ntkcourse.quadrature``.
    """
    closed = {
        "relu": partial(_piecewise_linear, 0.0),
        "leaky_relu": partial(_piecewise_linear, SLOPE),
        "abs": partial(_piecewise_linear, -1.0),
        "erf": _erf,
        "sin": _sin_cos,
        "cos": lambda: _sin_cos()[::-1],
        "gelu": _gelu,
        "identity": _identity,
    }
    phi = resolve(activation)
    pair = closed[activation]() if activation in closed else quadrature.dual(phi)

    def of_floats(function):
        return lambda *q: function(*(jnp.asarray(a, jnp.result_type(float, *q)) for a in q))

    kappa, kappa_dot = pair
    return of_floats(kappa), of_floats(kappa_dot)


@lru_cache
def _recursion(depth, activation, tangent):
    """The kernel of ``depth`` layers as a function of (sigma_w, sigma_b, x, y)."""
    kappa, kappa_dot = dual(activation)

    @jax.jit
    def kernel(sigma_w, sigma_b, x, y):
        x, y = checks.pair(x, y)

        def affine(inner):
            return sigma_w**2 * inner + sigma_b**2

        def layer(_, state):
            q11, q12, q22, theta = state
            sigma = affine(kappa(q11, q12, q22))
            if tangent:
                theta = sigma + sigma_w**2 * kappa_dot(q11, q12, q22) * theta
            return affine(kappa(q11, q11, q11)), sigma, affine(kappa(q22, q22, q22)), theta

        q11, q12, q22 = (affine(jnp.dot(a, b) / len(x)) for a, b in ((x, x), (x, y), (y, y)))
        _, sigma, _, theta = jax.lax.fori_loop(1, depth, layer, (q11, q12, q22, q12))
        return theta if tangent else sigma

    return kernel


def _kernel(depth, activation, sigma_w, sigma_b, tangent):
    depth = checks.count(depth, "depth")
    sigma_w = checks.number(sigma_w, "sigma_w", above=0)
    sigma_b = checks.number(sigma_b, "sigma_b", least=0)
    return Partial(_recursion(depth, activation, tangent), sigma_w, sigma_b)


def nngp(
    depth: int, activation: Activation = "relu", sigma_w: float = 2**0.5, sigma_b: float = 0.0
) -> kernels.Kernel:
    r"""The covariance :math:`\Sigma^L` of an infinitely wide network at initialisation.

    .. math:: \Sigma^1 = \sigma_w^2\, x \cdot y / d + \sigma_b^2, \qquad
              \Sigma^{l+1} = \sigma_w^2\, \kappa(\Sigma^l) + \sigma_b^2
    """
    return _kernel(depth, activation, sigma_w, sigma_b, tangent=False)


def ntk(
    depth: int, activation: Activation = "relu", sigma_w: float = 2**0.5, sigma_b: float = 0.0
) -> kernels.Kernel:
    r"""The tangent kernel :math:`\Theta^L` of an infinitely wide network, all layers trained.

    .. math:: \Theta^1 = \Sigma^1, \qquad
              \Theta^{l+1} = \Sigma^{l+1} + \sigma_w^2\, \dot\kappa(\Sigma^l)\, \Theta^l

    The bias variance enters through :math:`\Sigma^{l+1}` alone.
    """
    return _kernel(depth, activation, sigma_w, sigma_b, tangent=True)


def trained_ensemble(
    nngp: kernels.Kernel,
    ntk: kernels.Kernel,
    x: Float[Array, "n *d"],
    y: Float[Array, "n *c"],
    x_new: Float[Array, "m *d"],
    t: float | Float[Array, " t"] = jnp.inf,
    ridge: float = 0.0,
) -> tuple[Array, Array]:
    r"""Mean and covariance at ``x_new`` of infinitely wide networks trained for a time t.

    Each network starts at a random :math:`f_0` with covariance :math:`\Sigma` = ``nngp`` and
    follows the gradient flow of :math:`\frac12\sum_i|f(x_i) - y_i|^2 +
    \frac\lambda2|\theta - \theta_0|^2` with tangent kernel :math:`\Theta` = ``ntk``, hence
    :math:`f_t(x) = f_0(x) + A_t (y - f_0(X))` and

    .. math:: A_t = \Theta_{xX} (\Theta + \lambda I)^{-1} (I - e^{-(\Theta + \lambda I) t}),
              \quad \text{mean } A_t y, \quad
              \text{cov } \Sigma_{xx} - A_t\Sigma_{Xx} - \Sigma_{xX}A_t^\top
              + A_t\Sigma_{XX}A_t^\top

    (Lee et al. 2019 for :math:`\lambda = 0`). This is not the posterior of the prior
    :math:`\Sigma` or :math:`\Theta`, except when only the last layer is trained:
    ``trained_ensemble(nngp, nngp, ...)``. The mean
    is shaped like ``y``; the covariance is (m, m), the same for each column of ``y``. A list of
    times puts one axis in front of both.
    """
    x = checks.points(x)
    y = checks.targets(y, x)
    x_new = checks.points(x_new, "x_new", like=x)
    t = checks.times(t, x.dtype)
    ridge = checks.number(ridge, "ridge", least=0)
    values, vectors = spectrum(kernels.gram(ntk, x))
    cross = kernels.gram(ntk, x_new, x) @ vectors
    prior, prior_cross = kernels.gram(nngp, x_new), kernels.gram(nngp, x_new, x)
    prior_train = kernels.gram(nngp, x)

    def at(time):
        gains = flow_gains(values + ridge, time)
        a = cross * gains[None] @ vectors.T
        shared = a @ prior_cross.T
        cov = prior - shared - shared.T + a @ prior_train @ a.T
        return a @ y, (cov + cov.T) / 2

    return at(t) if t.ndim == 0 else jax.vmap(at)(t)
