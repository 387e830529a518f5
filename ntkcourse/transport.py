r"""Optimal transport of clouds of points: the Wasserstein-2 distance and its geometry.

A cloud is an array of points (n, d) with probabilities ``a`` (n,), equal ones if None. Plans are
exact, found in double precision by ``ntkcourse.plans``: by sorting in one dimension, else by
SciPy's assignment or POT's network simplex. What is computed here may stand inside
``jax.jit`` and ``jax.vmap``, and has derivatives by the points (not by the weights): those of
:math:`\sum_{ij} P_{ij} |x_i - y_j|^2` with the plan held fixed, as the envelope theorem says.
Derived in chapter :ref:`mean-field`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ntkcourse import checks, plans
from ntkcourse.linalg import psd_root, root


def _clouds(x, y, a=None, b=None):
    x = checks.points(x)
    y = checks.points(y, "y", like=x)
    a = None if a is None else _held(checks.weights(a, x, "a"))
    b = None if b is None else _held(checks.weights(b, y, "b"))
    return x, y, a, b


@jax.custom_jvp
def _held(weights):
    return weights


@_held.defjvp
def _refuse(primals, tangents):
    raise TypeError("expected derivatives of a plan by its points, got derivatives by its weights")


def wasserstein2(
    x: Float[Array, "n d"],
    y: Float[Array, "m d"],
    a: Float[Array, " n"] | None = None,
    b: Float[Array, " m"] | None = None,
) -> Float[Array, ""]:
    r"""The distance :math:`W_2`, the root of the least cost of moving one cloud to the other.

    .. math:: W_2^2 = \min_P \sum_{ij} P_{ij} |x_i - y_j|^2, \qquad
              P \ge 0,\ P 1 = a,\ P^\top 1 = b

    Differentiable by x and y wherever the best plan is the only one; at distance 0 the derivative
    is 0.
    """
    x, y, a, b = _clouds(x, y, a, b)
    known = all(map(checks.known, (x, y, a, b)))
    if known and x.shape[1:] == (1,) and plans.equal(x, y, a, b):
        # the most frequent case: sorting values is much faster than sorting indices
        u, v = (np.sort(np.asarray(c)[:, 0]).astype(float, copy=False) for c in (x, y))
        return jnp.asarray(np.sqrt(np.mean((u - v) ** 2)), x.dtype)
    rows, columns, masses = _plan(x, y, a, b)
    start, end = (np.asarray(c, float) if known else c.astype(x.dtype) for c in (x, y))
    square = masses @ ((start[rows] - end[columns]) ** 2).reshape(len(rows), -1).sum(1)
    return jnp.asarray(np.sqrt(square), x.dtype) if known else root(square)


def _plan(x, y, a, b):
    """An optimal plan as rows, columns and masses; n + m - 1 entries suffice, some may be 0."""
    if all(map(checks.known, (x, y, a, b))):
        return plans.solve(x, y, a, b)
    size = len(x) if plans.equal(x, y, a, b) else len(x) + len(y) - 1
    index = jax.ShapeDtypeStruct((size,), np.int32)
    shapes = index, index, jax.ShapeDtypeStruct((size,), x.dtype)

    def solve(*clouds):
        return jax.tree.map(lambda p, s: p.astype(s.dtype), plans.solve(*clouds), shapes)

    arrays = jax.lax.stop_gradient((x, y, a, b))
    return jax.pure_callback(solve, shapes, *arrays, vmap_method="sequential")


def coupling(
    x: Float[Array, "n d"],
    y: Float[Array, "m d"],
    a: Float[Array, " n"] | None = None,
    b: Float[Array, " m"] | None = None,
) -> Float[Array, "n m"]:
    """An optimal plan: entry (i, j) is the mass that goes from x_i to y_j."""
    x, y, a, b = _clouds(x, y, a, b)
    rows, columns, masses = _plan(x, y, a, b)
    return jnp.zeros((len(x), len(y)), x.dtype).at[rows, columns].add(masses.astype(x.dtype))


def optimal_permutation(x: Float[Array, "n d"], y: Float[Array, "n d"]) -> Int[Array, " n"]:
    """The permutation s for which moving each x_i to y_s(i) costs least; equal weights."""
    x, y, _, _ = _clouds(x, y)
    if len(x) != len(y):
        raise ValueError(f"expected clouds of equal size, got {len(x)} and {len(y)} points")
    return jnp.asarray(_plan(x, y, None, None)[1])


def optimal_map(x: Float[Array, "n d"], y: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """The points T(x_i): row i is where the optimal map from x to y takes x_i; equal weights."""
    return checks.points(y, "y")[optimal_permutation(x, y)]


def geodesic(
    x: Float[Array, "n d"], y: Float[Array, "n d"], t: float | Float[Array, "*t"]
) -> Float[Array, "*t n d"]:
    r"""The cloud at time t of the shortest path, :math:`((1 - t)\,\mathrm{id} + t T)_\# \mu`.

    t lies in [0, 1]; a list of times puts one axis in front. Equal weights.
    """
    x, y, _, _ = _clouds(x, y)
    t = checks.times(t, x.dtype)
    if checks.known(t) and np.any(np.asarray(t) > 1):
        raise ValueError(f"expected t in [0, 1], got {t}")
    s = t[..., None, None] if t.ndim else t
    start, end = (jnp.expand_dims(c, range(t.ndim)) for c in (x, optimal_map(x, y)))
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
