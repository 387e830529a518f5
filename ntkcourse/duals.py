r"""Activation functions, and their duals: the means that layers of infinite width need.

Closed forms where they exist, Mehler's series elsewhere. Derived in chapter :ref:`wide-networks`.
"""

import warnings
from collections.abc import Callable
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ntkcourse import checks
from ntkcourse.linalg import inverse, root
from ntkcourse.mehler import correlation, missed, smooth

__all__ = ["Activation", "Dual", "dual", "resolve"]

Activation = str | Callable
Dual = Callable[[Array, Array, Array], Array]

SLOPE = 0.01  # of leaky_relu on the negative half-line


def resolve(activation: Activation) -> Callable:
    """The function called ``activation``, or ``activation`` itself if it is a function."""
    if callable(activation):
        return activation
    if not isinstance(activation, str) or activation not in BY_NAME:
        names = ", ".join(BY_NAME)
        raise ValueError(
            f"expected an activation among {names} or a JAX function, got {activation!r}"
        )
    return BY_NAME[activation][0]


@lru_cache
def _angle_polynomials(degree):
    """p and r with arccos(x) = s p(x), sqrt(1 - x^2) + x arcsin(x) = (pi/2) x + s r(x) on [0, 1].

    Here s = sqrt(1 - x). Both are analytic near [0, 1], their nearest singularity being x = -1:
    interpolation at N + 1 Chebyshev nodes has an error of the order (3 + sqrt 8)^-N.
    """
    functions = (lambda x: np.arccos(x) / np.sqrt(1 - x),
                 lambda x: np.sqrt(1 + x) - x * np.arccos(x) / np.sqrt(1 - x))  # fmt: skip
    fits = [np.polynomial.Chebyshev.interpolate(f, degree, domain=[0, 1]) for f in functions]
    return [f.convert(kind=np.polynomial.Polynomial).coef.tolist() for f in fits]


def _size_and_rest(c, which):
    size = jnp.where(c < 0, -c, c)
    terms = _angle_polynomials(9 if jnp.finfo(c.dtype).bits <= 32 else 18)[which]
    # by halves, p(x) = u(x) + x^k v(x) with k a power of 2: Horner's rule waits for each term
    power = size
    while len(terms) > 1:
        odd = [*terms[1::2], None] if len(terms) % 2 else terms[1::2]
        terms = [a if b is None else a + b * power for a, b in zip(terms[::2], odd, strict=True)]
        power = power * power
    return size, root(1 - size) * terms[0]


@jax.custom_jvp
def arcsin(c: Array) -> Array:
    """arcsin on [-1, 1] within 1e-14 (5e-7 in float32), several times faster than the library's.

    The derivative at -1 and 1, which is infinite, is given as 0, so that the kernels which
    contain an angle have finite gradients at equal and opposite points.
    """
    angle = jnp.pi / 2 - _size_and_rest(c, 0)[1]
    return jnp.where(c < 0, -angle, angle)


@jax.custom_jvp
def arch(c: Array) -> Array:
    """sqrt(1 - c^2) + c arcsin(c) on [-1, 1], the integral of arcsin, as fast and accurate."""
    size, rest = _size_and_rest(c, 1)
    return jnp.pi / 2 * size + rest


arcsin.defjvp(lambda c, dc: (arcsin(*c), inverse(root((1 - c[0]) * (1 + c[0]))) * dc[0]))
arch.defjvp(lambda c, dc: (arch(*c), arcsin(*c) * dc[0]))

# Closed forms: functions of (q11, q12, q22) that give kappa and kappa_dot.


def _piecewise_linear(left, right):
    """The slope is left for z < 0 and right for z > 0: ((right + left) z + (right - left) |z|) / 2.

    The odd and the even part are uncorrelated, and E |u||v| = (2/pi) sqrt(q11 q22) arch(c).
    """
    odd, even = ((right + left) / 2) ** 2, ((right - left) / 2) ** 2 * 2 / np.pi

    def duals(q11, q12, q22):
        c = correlation(q11, q12, q22)
        return odd * q12 + even * (root(q11) * root(q22)) * arch(c), odd + even * arcsin(c)

    return duals


def _erf(q11, q12, q22):
    # at least 1; the floor only meets the rounding of huge q
    det = jnp.maximum((1 + 2 * q11) * (1 + 2 * q22) - 4 * q12**2, 0.5)
    # kappa = 2/pi arcsin(2 q12 / sqrt((1 + 2 q11)(1 + 2 q22)))
    return 2 / jnp.pi * jnp.arctan2(2 * q12, jnp.sqrt(det)), 4 / jnp.pi / jnp.sqrt(det)


def _sin(q11, q12, q22):  # e^{-(q11 + q22) / 2} times sinh(q12) and cosh(q12)
    mean = (q11 + q22) / 2
    sign = jnp.where(q12 < 0, -1, 1).astype(q12.dtype)  # not jnp.sign, which is 0 at 0
    odd = -sign * jnp.exp(sign * q12 - mean) * jnp.expm1(-2 * sign * q12) / 2
    return odd, (jnp.exp(q12 - mean) + jnp.exp(-q12 - mean)) / 2


def _gelu(q11, q12, q22):
    # z Phi(z) = (z + z g(z)) / 2 with g(z) = erf(z / sqrt 2). Stein's lemma, twice, takes the
    # factors u and v out of E[u v g(u) g(v)]; kappa_dot is the derivative of kappa by q12.
    det = jnp.maximum((1 + q11) * (1 + q22) - q12**2, 0.5)
    angle = jnp.arctan2(q12, jnp.sqrt(det))
    share = 1 - q11 / (1 + q11) - q22 / (1 + q22)
    mixed = q11 * q22 + q12**2 * share
    slope = q12 * (1 + 2 * share + mixed / det) / jnp.sqrt(det)
    kappa = q12 / 4 + (q12 * angle + mixed / jnp.sqrt(det)) / (2 * jnp.pi)
    return kappa, 1 / 4 + (angle + slope) / (2 * jnp.pi)


BY_NAME = {
    "relu": (jax.nn.relu, _piecewise_linear(0.0, 1.0)),
    "leaky_relu": (lambda z: jax.nn.leaky_relu(z, SLOPE), _piecewise_linear(SLOPE, 1.0)),
    "abs": (jnp.abs, _piecewise_linear(-1.0, 1.0)),
    "erf": (jax.scipy.special.erf, _erf),
    "tanh": (jnp.tanh, partial(smooth, jnp.tanh)),
    "sin": (jnp.sin, _sin),
    "cos": (jnp.cos, lambda *q: _sin(*q)[::-1]),
    "gelu": (lambda z: jax.nn.gelu(z, approximate=False), _gelu),
    "identity": (lambda z: z, lambda q11, q12, q22: (q12, jnp.ones_like(q12))),
}
"""Each activation with its duals."""


def _recognised(phi):
    """The closed form of phi, found by its values; Mehler's series otherwise."""
    z = np.concatenate([np.linspace(0, 30, 2001), np.geomspace(1e-6, 1e6, 400)])
    z = jnp.asarray(np.concatenate([-z, z]))
    values = phi(z)
    if not checks.known(values):  # phi has traced parameters
        return partial(smooth, phi)
    eps = float(jnp.finfo(values.dtype).eps)

    def same(f, size):
        return np.all(np.abs(np.asarray(values - f)) <= 16 * eps * np.asarray(size))

    for function, duals in BY_NAME.values():
        if same(function(z), 1 + jnp.abs(values)):
            return duals
    right, left = (float(phi(jnp.asarray(t))) * t for t in (1.0, -1.0))
    if same(jnp.where(z > 0, right, left) * z, jnp.abs(z)):
        return _piecewise_linear(left, right)
    one, large = (missed(phi, q) for q in (1, 16))
    if one > max(1e-8, 64 * eps) or large > 1e-4:
        warnings.warn(
            f"expected a smooth activation: with {phi} the duals will be "
            f"off by up to {one:.1e} at variance 1 and {large:.1e} at variance 16. Kinks are exact "
            "only at 0 between two straight lines; round off others",
            stacklevel=5,
        )
    return partial(smooth, phi)


@lru_cache
def dual(activation: Activation) -> tuple[Dual, Dual]:
    r"""The dual of an activation and of its derivative,

    .. math:: \kappa = E\,\varphi(u)\varphi(v), \quad \dot\kappa = E\,\varphi'(u)\varphi'(v),
              \qquad (u, v) \sim N\left(0, \begin{pmatrix} q_{11} & q_{12} \\ q_{12} & q_{22}
              \end{pmatrix}\right),

    as functions of (q11, q12, q22). Closed forms for relu, leaky_relu, abs, erf, sin, cos, gelu
    and identity, by name or as any function with their values, and for every function made of
    two straight lines through 0. Otherwise a series: for phi analytic in a strip of half-width s
    about the real line, what it leaves out at c = 1 falls like :math:`e^{-2 s \sqrt{1024 / q}}`:
    1e-9 for tanh up to q = 16. A function that it cannot resolve gives a warning with the error.
    The derivative of that series at q = 0 is given as 0.
    """
    phi = resolve(activation)
    if isinstance(activation, str):
        duals = BY_NAME[activation][1]
    else:
        with jax.ensure_compile_time_eval():
            duals = _recognised(phi)

    def part(i):
        function = jax.jit(lambda *q: duals(*q)[i])
        return lambda *q: function(*(jnp.asarray(a, jnp.result_type(float, *q)) for a in q))

    return part(0), part(1)
