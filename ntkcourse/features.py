r"""Random features: finite maps :math:`\phi` whose inner products estimate a kernel.

Every map takes points as rows, (n, d) to (n, m), and carries its own :math:`1/\sqrt m`:
:math:`\phi(x) \cdot \phi(y)` estimates the kernel without further factors. Derived in chapter
:ref:`random-features`.
"""

from collections.abc import Callable
from functools import partial
from math import factorial

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Float, PRNGKeyArray

from ntkcourse import checks
from ntkcourse.duals import Activation, resolve
from ntkcourse.kernels import Kernel
from ntkcourse.linalg import flow_solve

FeatureMap = Callable[[Array], Array]

SPECTRA = {"rbf": jax.random.normal, "laplace": jax.random.cauchy, "cauchy": jax.random.laplace}
"""Kernel of lengthscale 1 (``laplace`` with the 1-norm) to the law of each frequency."""


def fourier_features(
    d: int,
    *,
    m: int,
    kernel: str = "rbf",
    lengthscale: float = 1.0,
    paired: bool = False,
    key: PRNGKeyArray,
) -> FeatureMap:
    r"""Random Fourier features of the rbf, the laplace (1-norm) or the cauchy kernel.

    By Bochner's theorem :math:`k(x - y) = E \cos(w \cdot (x - y))`, with w normal, Cauchy or
    Laplace distributed in each coordinate, scaled by 1 / lengthscale. The m features are

    .. math:: \sqrt{2/m}\, \cos(w_i \cdot x + b_i), \quad b_i \sim U[0, 2\pi]

    or, ``paired``, :math:`\sqrt{2/m}\,(\cos w_i \cdot x, \sin w_i \cdot x)` for m / 2
    frequencies, which is exact at x = y and depends on x - y alone.
    """
    d = checks.count(d, "d")
    m = checks.count(m, "m")
    lengthscale = checks.number(lengthscale, "lengthscale", above=0)
    if kernel not in SPECTRA:
        raise ValueError(f"expected kernel among {', '.join(SPECTRA)}, got {kernel!r}")
    if paired and m % 2:
        raise ValueError(f"expected an even number m of paired features, got {m}")
    for_w, for_b = jax.random.split(checks.random_key(key, "fourier_features"))
    frequencies = m // 2 if paired else m
    w = SPECTRA[kernel](for_w, (d, frequencies))
    b = jax.random.uniform(for_b, (frequencies,), maxval=2 * jnp.pi)

    def phi(x: Float[Array, "n d"]) -> Float[Array, "n m"]:
        x = _rows(x, d)
        return _waves(x, w.astype(x.dtype) / lengthscale, b.astype(x.dtype), paired)

    return phi


@partial(jax.jit, static_argnums=3)
def _waves(x, w, b, paired):
    turns = x @ (w / (2 * jnp.pi))
    shifts = (0, -0.25) if paired else (b[None] / (2 * jnp.pi),)
    waves = jnp.concatenate([_cosine(turns + shift) for shift in shifts], axis=1)
    return waves * (2 / waves.shape[1]) ** 0.5


def _cosine(turns):
    """cos(2 pi t), to rounding: XLA's own cosine takes five times as long on a CPU.

    It is sin(2 pi (1/4 - |t|)) for |t| <= 1/2; the sine by its Taylor polynomial.
    """
    z = 2 * jnp.pi * (0.25 - jnp.abs(turns - jnp.round(turns)))
    terms = 6 if jnp.finfo(z.dtype).bits <= 32 else 11  # the next, (pi / 2)^(2 k + 1) / (2 k + 1)!
    square, series = z**2, jnp.zeros_like(z)
    for k in reversed(range(terms)):
        series = series * square + (-1) ** k / factorial(2 * k + 1)
    return z * series


def random_layer(
    d: int,
    *,
    m: int,
    activation: Activation,
    sigma_w: float = 1.0,
    sigma_b: float = 0.0,
    law: Callable = jax.random.normal,
    key: PRNGKeyArray,
) -> FeatureMap:
    r"""The hidden layer of a random network, frozen: m features of width 1,

    .. math:: \phi_i(x) = \frac{1}{\sqrt m}\,
              \varphi\Big(\frac{\sigma_w}{\sqrt d} w_i \cdot x + \sigma_b b_i\Big).

    ``law(key, shape)`` draws the entries of w and b (mean 0 and variance 1 by custom). For the
    normal law, :math:`\phi(x) \cdot \phi(y)` estimates the dual of the activation at
    :math:`\Sigma^1`, see :func:`ntkcourse.duals.dual`.
    """
    d = checks.count(d, "d")
    m = checks.count(m, "m")
    sigma_w = checks.number(sigma_w, "sigma_w", above=0)
    sigma_b = checks.number(sigma_b, "sigma_b", least=0)
    function = resolve(activation)
    for_w, for_b = jax.random.split(checks.random_key(key, "random_layer"))
    w, b = law(for_w, (d, m)), law(for_b, (m,))

    def phi(x: Float[Array, "n d"]) -> Float[Array, "n m"]:
        x = _rows(x, d)
        hidden = x @ w.astype(x.dtype) * (sigma_w / d**0.5) + sigma_b * b.astype(x.dtype)[None]
        return function(hidden) / m**0.5

    return phi


def _rows(x, d):
    x = checks.points(x)
    if x.shape[1:] != (d,):
        raise ValueError(f"expected x of shape (n, {d}), got shape {x.shape}")
    return x


def feature_kernel(phi: FeatureMap) -> Kernel:
    r"""The kernel :math:`k(x, y) = \phi(x) \cdot \phi(y)` of a feature map.

    It makes the dual form of every method of :mod:`ntkcourse.kernels` out of the primal one.
    Given the features, the random-feature model :math:`f = \theta \cdot \phi` with
    :math:`\theta_0 \sim N(0, I)` is at time 0 a Gaussian process of covariance k, and at time t
    of its training it has the law ``infinite.trained_ensemble(k, k, x, y, x_new, t)``.
    """
    return Kernel(_feature_products, (Partial(phi),), _feature_matrix)


def _feature_products(phi, x, y):
    return jnp.dot(phi(x[None])[0], phi(y[None])[0])


def _feature_matrix(phi, x, y):
    return phi(x) @ phi(y).T


def feature_regression(
    phi: FeatureMap,
    x: Float[Array, "n d"],
    y: Float[Array, "n *c"],
    *,
    t: float | Float[Array, " t"] = jnp.inf,
    ridge: float = 0.0,
    theta0: Float[Array, "m *c"] | None = None,
) -> Array:
    r"""The parameters at time t of the random-feature model :math:`f(x) = \phi(x) \cdot \theta`.

    Gradient flow of :math:`\frac12 \sum_i |\phi(x_i) \cdot \theta - y_i|^2 +
    \frac\lambda2 |\theta - \theta_0|^2` from :math:`\theta_0` (None for 0) has with the
    singular values :math:`\Phi = U S V^\top` the solution

    .. math:: \theta_t = \theta_0 + V \frac{S}{S^2 + \lambda}
              \big(1 - e^{-(S^2 + \lambda) t}\big) U^\top (y - \Phi \theta_0).

    The primal form of ``gradient_flow(feature_kernel(phi), ...)``; at t = infinity that of
    ``ridge_regression``. Shaped (m,) or (m, c) like ``y``; a list of times puts one axis in front.
    """
    x, y = checks.data(x, y)
    t = checks.times(t, x.dtype)
    ridge = checks.number(ridge, "ridge", least=0)
    design = phi(x)
    shape = design.shape[1:] + y.shape[1:]
    if theta0 is None:
        theta0 = jnp.zeros(shape, design.dtype)
    theta0 = checks.finite(theta0, "theta0", design.dtype)
    if theta0.shape != shape:
        raise ValueError(f"expected theta0 of shape {shape}, got {theta0.shape}")
    residual, times = y - design @ theta0, jnp.atleast_1d(t)
    ridge = jnp.asarray(ridge, design.dtype)
    if len(x) <= design.shape[1]:  # the smaller of the two Gram matrices of the features
        duals = flow_solve(design @ design.T, ridge, times, residual)
        moves = jax.vmap(lambda a: design.T @ a)(duals)
    else:
        moves = flow_solve(design.T @ design, ridge, times, design.T @ residual)
    return theta0[None] + moves if t.ndim else theta0 + moves[0]
