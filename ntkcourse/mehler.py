r"""Means of functions of two correlated normal numbers, by Mehler's series.

For the duals that have no closed form; see :mod:`ntkcourse.duals`.
"""

from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ntkcourse.linalg import inverse, root


def correlation(q11: Array, q12: Array, q22: Array) -> Array:
    """q12 / sqrt(q11 q22) in [-1, 1]; 1 or -1 when it is so up to rounding, 0 when undefined."""
    return _snapped(q12 * (inverse(root(q11)) * inverse(root(q22))))


@jax.custom_jvp
def _snapped(c):
    # an angle below sqrt(8 eps) is rounding noise: equal points must have angle exactly 0
    edge = 1 - 4 * float(jnp.finfo(c.dtype).eps)
    return jnp.where(c > edge, 1, jnp.where(c < -edge, -1, c))


_snapped.defjvp(lambda c, dc: (_snapped(*c), dc[0]))


TERMS, CHUNK, NODES = 1024, 32, np.linspace(-13, 13, 520)
"""Mehler's series has at most TERMS terms, added CHUNK at a time, and its means these nodes."""


@lru_cache
def _hermite_rule():
    """Matrices H_k, CHUNK rows together, with sum_i H_ki g(z_i) = E g(Z) h_k(Z), Z ~ N(0, 1).

    h_k are the orthonormal Hermite polynomials. The trapezoidal rule converges exponentially
    for smooth g; half of the Gaussian weight goes to h_k, which stays bounded with it.
    """
    rows = [np.exp(-(NODES**2) / 4), NODES * np.exp(-(NODES**2) / 4)]
    for k in range(1, TERMS - 1):
        rows.append((NODES * rows[-1] - np.sqrt(k) * rows[-2]) / np.sqrt(k + 1))
    weight = (NODES[1] - NODES[0]) * np.exp(-(NODES**2) / 4) / np.sqrt(2 * np.pi)
    return (np.array(rows) * weight).reshape(-1, CHUNK, len(NODES))


def _series(f, g, r, c, s):
    """E f(r, Z) g(s, Z') = sum_k a_k b_k c^k, with a_k = E f(r, Z) h_k(Z) and b_k likewise.

    The coefficients belong to one point each, so a pair costs only a polynomial in c. The sum
    ends when the next terms are below rounding and Parseval's identity leaves nothing for later.
    """
    rule, eps = jnp.asarray(_hermite_rule(), c.dtype), jnp.finfo(c.dtype).eps
    nodes = jnp.asarray(NODES, c.dtype).reshape(-1, *[1] * c.ndim)
    sides = [h(jnp.broadcast_to(t[None], (len(NODES), *t.shape)), nodes * jnp.ones_like(t[None]))
             for h, t in ((f, r), (g, s))]  # fmt: skip
    scales = [jnp.tensordot(rule[0, 0], v**2, 1) + jnp.finfo(c.dtype).tiny for v in sides]

    def add(state):
        k, power, total, left, _ = state
        a, b = (jnp.tensordot(rule[k], v, 1) for v in sides)
        part = jnp.zeros_like(c)
        for i in reversed(range(CHUNK)):
            part = part * c + a[i] * b[i]
        shares = [jnp.sum(x**2, 0) / t for x, t in zip((a, b), scales, strict=True)]
        left = [t - share for t, share in zip(left, shares, strict=True)]
        done = jnp.max(shares[0]) * jnp.max(shares[1]) <= (eps / 8) ** 2
        done &= jnp.maximum(jnp.max(left[0]), jnp.max(left[1])) <= 64 * eps
        return k + 1, power * c**CHUNK, total + power * part, left, done

    start = 0, jnp.ones_like(c), jnp.zeros_like(c), [jnp.ones_like(t) for t in scales], False
    return jax.lax.while_loop(lambda s: (s[0] < len(rule)) & ~s[-1], add, start)[2]


def _by(argument, h):
    """The derivative of h(r, z) by r (argument 0) or z (argument 1)."""
    return lambda *at: jax.jvp(
        h, at, tuple(jnp.full_like(t, i == argument) for i, t in enumerate(at))
    )[1]


def _mehler(f, g):
    """E f(r, Z) g(s, Z') for Z, Z' ~ N(0, 1) of correlation c, as a function of (r, c, s)."""
    mean = jax.custom_jvp(partial(_series, f, g))

    @mean.defjvp
    def _(at, d):  # the derivative by c is E f' g': no loop is ever differentiated
        parts = (_by(0, f), g), (_by(1, f), _by(1, g)), (f, _by(0, g))
        return mean(*at), sum(_mehler(*p)(*at) * t for p, t in zip(parts, d, strict=True))

    return mean


def smooth(phi, q11, q12, q22):
    """kappa and kappa_dot of a smooth phi."""
    at = root(q11), correlation(q11, q12, q22), root(q22)
    value, slope = (lambda r, z: phi(r * z)), lambda r, z: _by(0, phi)(r * z)
    return _mehler(value, value)(*at), _mehler(slope, slope)(*at)


def missed(phi, q):
    """What Mehler's series misses of E phi'(u)^2 at variance q, relative to E phi^2 + phi'^2."""
    fine = np.linspace(-13, 13, 2**17)
    weight = (fine[1] - fine[0]) * np.exp(-(fine**2) / 2) / np.sqrt(2 * np.pi)
    z, nodes = (jnp.asarray(q**0.5 * t) for t in (fine, NODES))
    exact, size = (weight @ np.asarray(f(z), float) ** 2 for f in (_by(0, phi), phi))
    series = np.sum((_hermite_rule() @ np.asarray(_by(0, phi)(nodes), float)) ** 2)
    return abs(exact - series) / (exact + size or 1)
