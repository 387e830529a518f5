r"""Optimal transport of clouds of points: the Wasserstein-2 distance and its geometry.

A cloud is an array of points (n, d) with probabilities ``a`` (n,), equal ones if None. Distances
are computed exactly, in double precision, by sorting in one dimension, by assignment for equal
clouds and by the network simplex of POT otherwise; they are not differentiable by JAX.
Derived in chapter :ref:`mean-field`.
"""

import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jaxtyping import Array, Float, Int

from ntkcourse import checks
from ntkcourse.linalg import psd_root


def _clouds(x, y):
    x = checks.points(x)
    return x, checks.points(y, "y", like=x)


def _costs(x, y):
    """Squared distances, from differences: |x|^2 + |y|^2 - 2 x.y would lose small ones."""
    x, y = (np.asarray(c, float).reshape(len(c), -1) for c in (x, y))
    return sum(np.subtract.outer(x[:, j], y[:, j]) ** 2 for j in range(x.shape[1]))


def wasserstein2(
    x: Float[Array, "n d"],
    y: Float[Array, "m d"],
    a: Float[Array, " n"] | None = None,
    b: Float[Array, " m"] | None = None,
) -> Float[Array, ""]:
    r"""The distance :math:`W_2`, the root of the least cost of moving one cloud to the other.

    .. math:: W_2^2 = \min_P \sum_{ij} P_{ij} |x_i - y_j|^2, \qquad
              P \ge 0,\ P 1 = a,\ P^\top 1 = b
    """
    x, y = _clouds(x, y)
    if x.shape[1:] == (1,):
        square = _on_the_line(x, y, checks.weights(a, x, "a"), checks.weights(b, y, "b"))
    elif a is None and b is None and len(x) == len(y):
        square = _costs(x, y)[np.arange(len(x)), _assignment(x, y)].mean()
    else:
        square = np.sum(_plan(x, y, a, b) * _costs(x, y))
    return jnp.asarray(np.sqrt(square), x.dtype)


def _on_the_line(x, y, a, b):
    """The integral of |F^-1(u) - G^-1(u)|^2: in one dimension the quantiles are coupled."""

    def quantiles(points, probabilities):
        order = np.argsort(np.asarray(points)[:, 0], kind="stable")
        # divided by the last entry, and not by a sum that rounds otherwise, it ends at exactly 1
        below = np.cumsum(np.asarray(probabilities, float)[order])
        return np.asarray(points, float)[order, 0], below / below[-1]

    (u, up_to_u), (v, up_to_v) = quantiles(x, a), quantiles(y, b)
    levels = np.union1d(up_to_u[:-1], up_to_v[:-1])
    at_u = u[np.searchsorted(up_to_u[:-1], np.append(levels, 1), "left")]
    at_v = v[np.searchsorted(up_to_v[:-1], np.append(levels, 1), "left")]
    return np.sum(np.diff(levels, prepend=0, append=1) * (at_u - at_v) ** 2)


def _plan(x, y, a, b):
    import ot  # takes seconds, and only weighted clouds need it

    a, b = (np.asarray(w, float) for w in (checks.weights(a, x, "a"), checks.weights(b, y, "b")))
    return ot.emd(a / a.sum(), b / b.sum(), _costs(x, y), numItermax=10_000_000)


def coupling(
    x: Float[Array, "n d"],
    y: Float[Array, "m d"],
    a: Float[Array, " n"] | None = None,
    b: Float[Array, " m"] | None = None,
) -> Float[Array, "n m"]:
    """An optimal plan: entry (i, j) is the mass that goes from x_i to y_j."""
    x, y = _clouds(x, y)
    return jnp.asarray(_plan(x, y, a, b), x.dtype)


def _assignment(x, y):
    if len(x) != len(y):
        raise ValueError(f"expected clouds of equal size, got {len(x)} and {len(y)} points")
    return scipy.optimize.linear_sum_assignment(_costs(x, y))[1]


def optimal_permutation(x: Float[Array, "n d"], y: Float[Array, "n d"]) -> Int[Array, " n"]:
    """The permutation s for which moving each x_i to y_s(i) costs least; equal weights."""
    return jnp.asarray(_assignment(*_clouds(x, y)))


def optimal_map(x: Float[Array, "n d"], y: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """The points T(x_i): row i is where the optimal map from x to y takes x_i; equal weights."""
    x, y = _clouds(x, y)
    return y[_assignment(x, y)]


def geodesic(
    x: Float[Array, "n d"], y: Float[Array, "n d"], t: float | Float[Array, "*t"]
) -> Float[Array, "*t n d"]:
    r"""The cloud at time t of the shortest path, :math:`((1 - t)\,\mathrm{id} + t T)_\# \mu`.

    t lies in [0, 1]; a list of times puts one axis in front. Equal weights.
    """
    x, y = _clouds(x, y)
    t = checks.times(t, x.dtype)
    if checks.known(t) and np.any(np.asarray(t) > 1):
        raise ValueError(f"expected t in [0, 1], got {t}")
    s = t[..., None, None] if t.ndim else t
    target = y[_assignment(x, y)]
    start, end = (jnp.expand_dims(c, range(t.ndim)) for c in (x, target))
    return (1 - s) * start + s * end


def gaussian_wasserstein2(
    m1: Float[Array, " d"], C1: Float[Array, "d d"], m2: Float[Array, " d"], C2: Float[Array, "d d"]
) -> Float[Array, ""]:
    r"""The distance :math:`W_2` of N(m1, C1) and N(m2, C2),

    .. math:: W_2^2 = |m_1 - m_2|^2 +
              \mathrm{tr}\big(C_1 + C_2 - 2 (C_1^{1/2} C_2 C_1^{1/2})^{1/2}\big).
    """
    m1, C1, m2, C2 = (
        checks.finite(v, n) for v, n in ((m1, "m1"), (C1, "C1"), (m2, "m2"), (C2, "C2"))
    )
    d = m1.shape
    if len(d) != 1 or d[0] == 0 or m2.shape != d or C1.shape != d * 2 or C2.shape != d * 2:
        raise ValueError(
            "expected means (d,) and covariances (d, d), got shapes "
            f"{m1.shape}, {C1.shape}, {m2.shape}, {C2.shape}"
        )
    _expect_psd(C1, "C1")
    _expect_psd(C2, "C2")
    # tr (C1^{1/2} C2 C1^{1/2})^{1/2} is the sum of the singular values of C1^{1/2} C2^{1/2}
    fidelity = jnp.sum(jnp.linalg.svd(psd_root(C1) @ psd_root(C2), compute_uv=False))
    square = jnp.sum((m1 - m2) ** 2) + jnp.trace(C1) + jnp.trace(C2) - 2 * fidelity
    return jnp.sqrt(jnp.maximum(square, 0))


def _expect_psd(matrix, name):
    if not checks.known(matrix):
        return
    matrix = np.asarray(matrix)
    slack = 100 * np.finfo(matrix.dtype).eps * np.abs(matrix).max()
    skew = np.abs(matrix - matrix.T).max()
    if skew > slack or np.linalg.eigvalsh(matrix)[0] < -slack * len(matrix):
        raise ValueError(f"expected a symmetric positive semidefinite {name}, got {matrix}")
