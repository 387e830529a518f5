r"""The linear algebra of kernel methods: spectra, pseudo-inverses, the exponential of a flow.

All matrices are symmetric and positive semidefinite up to rounding. First derivatives are right
for multiple eigenvalues too, which points on a circle always have: a function f of a matrix
:math:`A = V \mathrm{diag}(\lambda) V^\top` changes by :math:`V (D \circ V^\top dA V) V^\top` with
the divided differences :math:`D_{ij} = (f(\lambda_i) - f(\lambda_j)) / (\lambda_i - \lambda_j)`,
and not through the derivatives of its eigenvectors, which do not exist.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def spectrum(matrix: Float[Array, "n n"]) -> tuple[Float[Array, " n"], Float[Array, "n n"]]:
    """Eigenvalues and eigenvectors of a PSD matrix; eigenvalues that are 0 up to rounding are 0."""
    values, vectors = jnp.linalg.eigh(matrix)
    return spectrum_cut(values), vectors


def spectrum_cut(values: Float[Array, " n"]) -> Float[Array, " n"]:
    """The eigenvalues with 0 for those that are 0 up to rounding."""
    floor = len(values) * jnp.finfo(values.dtype).eps * jnp.max(jnp.abs(values))
    return jnp.where(values > floor, values, 0)


def inverse(values: Array) -> Array:
    """1 / values, and 0 where a value is 0: the eigenvalues of the pseudo-inverse."""
    return jnp.where(values > 0, 1 / jnp.where(values > 0, values, 1), 0)


def root(x: Array) -> Array:
    """The square root of max(x, 0), with derivative 0 instead of infinity at 0."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1)), 0)


def scaled(factors: Float[Array, " n"], rows: Float[Array, "n *c"]) -> Float[Array, "n *c"]:
    """Each row, a number or a vector, times its factor."""
    return factors.reshape(-1, *[1] * (rows.ndim - 1)) * rows


@jax.custom_jvp
def psd_root(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The symmetric root of a PSD matrix: unlike an eigenbasis, it has no free signs."""
    values, vectors = jnp.linalg.eigh(matrix)
    return vectors * jnp.sqrt(jnp.maximum(values, 0))[None] @ vectors.T


@psd_root.defjvp
def _psd_root_jvp(primals, tangents):
    values, vectors = spectrum(*primals)
    roots = jnp.sqrt(values)
    divided = inverse(roots[:, None] + roots[None])
    (change,) = tangents
    return psd_root(*primals), vectors @ (divided * (vectors.T @ change @ vectors)) @ vectors.T


@jax.custom_jvp
def inverse_path(matrix, ridges, b):
    """(A + ridge I)^+ b and the diagonal of (A + ridge I)^+ for each ridge; one decomposition."""
    values, vectors = spectrum(matrix)
    gains = jax.vmap(lambda r: inverse(values + r))(ridges)
    modes = vectors.T @ b
    return jax.vmap(lambda g: vectors @ scaled(g, modes))(gains), gains @ (vectors**2).T


@inverse_path.defjvp
def _inverse_path_jvp(primals, tangents):
    matrix, ridges, b = primals
    values, vectors = spectrum(matrix)
    modes = vectors.T @ b
    d_matrix, d_ridges, db = tangents
    turned, d_modes = vectors.T @ d_matrix @ vectors, vectors.T @ db

    def one(pair):
        ridge, d_ridge = pair
        g = inverse(values + ridge)
        # -g_i g_j, and g_i / value_i where one of the two eigenvalues is cut to 0
        cut = g == 0
        divided = -g[:, None] * g[None] + jnp.where(cut[None], g[:, None] ** 2, 0)
        divided = divided + jnp.where(cut[:, None], g[None] ** 2, 0)
        change = divided * turned - d_ridge * jnp.diag(g**2)
        d_diagonal = jnp.sum(vectors * (vectors @ change), 1)
        return vectors @ (scaled(g, d_modes) + change @ modes), d_diagonal

    return inverse_path(*primals), jax.lax.map(one, (ridges, d_ridges))


def flow_gains(values: Float[Array, "..."], t: Float[Array, ""]) -> Float[Array, "..."]:
    """(1 - e^{-values t}) / values; at value 0 it is t, or 0 if t is infinite."""
    # 0 * inf is NaN, so a value 0 is replaced before it meets the time
    rate = jnp.where(values > 0, values, 1)
    return jnp.where(values > 0, -jnp.expm1(-rate * t) / rate, jnp.where(jnp.isinf(t), 0, t))


def _flow_slopes(values, t):
    """The derivative of flow_gains by its first argument."""
    rate = jnp.where(values > 0, values, 1)
    u = jnp.where(jnp.isinf(t), jnp.inf, values * jnp.where(jnp.isinf(t), 0, t))
    small = jnp.where(u < 0.1, u, 0)
    series = sum((-1) ** k / (math.factorial(k) * (k + 2)) * small**k for k in range(8))
    decayed = jnp.where(u < 80, (1 + jnp.where(u < 80, u, 0)) * jnp.exp(-u), 0)
    return -jnp.where(u < 0.1, jnp.where(u < 0.1, t, 0) ** 2 * series, (1 - decayed) / rate**2)


def _flow_spectrum(matrix, ridge):
    """Eigenvalues with the ridge, eigenvectors, and for a time t: which eigenvalues are noise.

    A mode of eigenvalue 0 that the flow never feeds must not grow by rounding until a late time.
    """
    values, vectors = jnp.linalg.eigh(matrix)
    values, eps = jnp.maximum(values, 0), jnp.finfo(matrix.dtype).eps
    floor = len(matrix) * eps * values[-1]
    noise = (values <= floor) & (ridge <= floor)
    return values + ridge, vectors, lambda t: noise & (t * values[-1] > eps**-0.5)


@jax.custom_jvp
def flow_solve(matrix, ridge, times, b):
    """A^{-1} (I - e^{-A t}) b with A = matrix + ridge I for each t; one decomposition."""
    values, vectors, cut = _flow_spectrum(matrix, ridge)
    modes = vectors.T @ b

    def at(t):
        return vectors @ scaled(jnp.where(cut(t), 0, flow_gains(values, t)), modes)

    return jax.vmap(at)(times)


@flow_solve.defjvp
def _flow_solve_jvp(primals, tangents):
    matrix, ridge, times, b = primals
    d_matrix, d_ridge, d_times, db = tangents
    values, vectors, cut = _flow_spectrum(matrix, ridge)
    modes, d_modes, turned = vectors.T @ b, vectors.T @ db, vectors.T @ d_matrix @ vectors
    turned = turned + d_ridge * jnp.eye(len(matrix), dtype=matrix.dtype)
    middle, gap = (values[:, None] + values[None]) / 2, values[:, None] - values[None]

    def at(pair):
        t, dt = pair
        lost = cut(t)
        gains = jnp.where(lost, 0, flow_gains(values, t))
        # two eigenvalues so close that the quotient would lose more digits than the tangent
        near = jnp.abs(gap) * t <= jnp.finfo(gap.dtype).eps ** (1 / 3) * (1 + middle * t)
        near = jnp.where(jnp.isinf(t), jnp.abs(gap) <= 1e-5 * middle, near)
        slopes = jnp.where(lost[:, None] & lost[None], 0, _flow_slopes(middle, t))
        quotients = (gains[:, None] - gains[None]) / jnp.where(near, 1, gap)
        change = jnp.where(near, slopes, quotients) * turned
        speed = jnp.where(lost | jnp.isinf(t), 0, jnp.exp(-values * jnp.where(jnp.isinf(t), 0, t)))
        return vectors @ (scaled(gains, d_modes) + change @ modes + dt * scaled(speed, modes))

    return flow_solve(*primals), jax.lax.map(at, (times, d_times))
