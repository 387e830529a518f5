"""The fast arccos and the duals by quadrature against mpmath and a rule in the plane."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import ndtr
from scipy.stats import norm

from ntkcourse import quadrature

GRID = np.concatenate(
    [np.linspace(-1, 1, 4001), 1 - np.geomspace(1e-16, 0.5, 400), np.geomspace(1e-16, 0.5, 400) - 1]
)


@pytest.mark.parametrize(("name", "bound"), [("float32", 5e-7), ("float64", 1e-14)])
def test_arccos_on_a_dense_grid(name, bound):
    c = jnp.asarray(GRID, name)
    exact = np.array([float(mpmath.acos(mpmath.mpf(float(v)))) for v in c])
    values = jax.jit(quadrature.arccos)(c)
    assert values.dtype == name
    assert np.max(np.abs(np.asarray(values, float) - exact)) < bound
    # and relative to the angle itself where the angle is small
    small = (exact > 0) & (exact < 1)
    assert np.max(np.abs(np.asarray(values, float)[small] / exact[small] - 1)) < bound


def test_arccos_derivative(dtype):
    c = jnp.asarray([-0.999, -0.5, 0.0, 1e-3, 0.7, 0.999], dtype)
    slope = jax.vmap(jax.grad(quadrature.arccos))
    exact = -1 / np.sqrt(1 - np.asarray(c, float) ** 2)
    np.testing.assert_allclose(slope(c), exact, rtol=2e-12 if dtype == jnp.float64 else 1e-6)
    assert slope(jnp.asarray([-1.0, 1.0], dtype)).tolist() == [0, 0]
    ends = quadrature.arccos(jnp.asarray([-1.0, 1.0], dtype))
    assert ends.tolist() == [float(jnp.asarray(jnp.pi, dtype)), 0]


def test_root(dtype):
    x = jnp.asarray([-1.0, 0.0, 1e-30, 4.0], dtype)
    np.testing.assert_allclose(quadrature.root(x), [0, 0, 1e-15, 2], rtol=1e-6)
    slopes = jax.vmap(jax.grad(quadrature.root))(x)
    np.testing.assert_allclose(slopes, [0, 0, 0.5e15, 0.25], rtol=1e-6)


def test_hermite_rule_gives_gaussian_moments():
    nodes, rule = quadrature._hermite_rule(64)
    assert rule.shape == (len(nodes), 64)
    # E Z^p h_k(Z), from the coefficients of Z^p in the Hermite basis
    for p in range(12):
        he = np.polynomial.hermite_e.poly2herme(np.eye(p + 1)[p])
        exact = np.zeros(64)
        exact[: p + 1] = he * np.sqrt([float(mpmath.factorial(k)) for k in range(p + 1)])
        np.testing.assert_allclose(nodes**p @ rule, exact, rtol=1e-12, atol=1e-11 * np.max(exact))
    np.testing.assert_allclose(
        np.exp(nodes) @ rule,
        [float(mpmath.e**0.5 / mpmath.sqrt(mpmath.factorial(k))) for k in range(64)],
        rtol=1e-11,
        atol=1e-12,
    )


def plane(f, q11, q12, q22):
    """E f(u) f(v) by the trapezoidal rule in two independent normal coordinates."""
    z = np.linspace(-9, 9, 361)
    w = np.exp(-(z**2) / 2) * (z[1] - z[0]) / np.sqrt(2 * np.pi)
    c = q12 / np.sqrt(q11 * q22)
    s = np.sqrt(max(1 - c * c, 0))
    return w * f(np.sqrt(q11) * z) @ (f(np.sqrt(q22) * (c * z[:, None] + s * z)) @ w)


def sigmoid(z):
    return np.exp(-np.logaddexp(0, -z))


SMOOTH = {
    "tanh": (jnp.tanh, np.tanh, lambda z: 1 - np.tanh(z) ** 2),
    "softplus": (jax.nn.softplus, lambda z: np.logaddexp(0, z), sigmoid),
    "silu": (
        jax.nn.silu,
        lambda z: z * sigmoid(z),
        lambda z: sigmoid(z) * (1 + z * (1 - sigmoid(z))),
    ),
}
SIZES = np.array([(q, r) for q in (0.01, 1.0, 16.0) for r in (q, 0.3)])


@pytest.mark.parametrize("name", SMOOTH)
def test_smooth_functions_to_1e_9(name):
    function, phi, slope = SMOOTH[name]
    q11, q22, c = (a.ravel() for a in (*SIZES.T[:, :, None], np.array([-1, -0.6, 0, 0.99, 1])))
    q11, q22 = np.repeat(q11, 5), np.repeat(q22, 5)
    q12 = np.tile(c, len(SIZES)) * np.sqrt(q11 * q22)
    for ours, exact in zip(quadrature.dual(function), (phi, slope), strict=True):
        values = jax.jit(ours)(*map(jnp.asarray, (q11, q12, q22)))
        expected = [plane(exact, *q) for q in zip(q11, q12, q22, strict=True)]
        scale = [
            plane(exact, a, a, a) * plane(exact, b, b, b) for a, b in zip(q11, q22, strict=True)
        ]
        assert np.max(np.abs(values - np.array(expected)) / np.maximum(1, np.sqrt(scale))) < 1e-9


def test_tanh_against_mpmath():
    kappa, kappa_dot = quadrature.dual(jnp.tanh)
    with mpmath.workdps(30):

        def mean(f, q):
            nodes = [-12, -2, -1, 0, 1, 2, 12]
            return mpmath.quad(lambda z: f(mpmath.sqrt(q) * z) ** 2 * mpmath.npdf(z), nodes)

        for q in (1.0, 16.0):
            at = (jnp.asarray(q),) * 3
            assert abs(float(mean(mpmath.tanh, q) - float(kappa(*at)))) < 1e-9
            assert abs(float(mean(lambda z: mpmath.sech(z) ** 2, q) - float(kappa_dot(*at)))) < 1e-9


def test_smooth_tail_falls_as_documented(monkeypatch):
    # exp(-2 s sqrt(TERMS / q)) with s = pi / 2 for tanh: doubling sqrt(TERMS) squares the error
    errors = []
    for terms in (64, 256):
        monkeypatch.setattr(quadrature, "TERMS", terms)
        q = jnp.asarray(9.0)
        errors.append(abs(float(quadrature.dual(jnp.tanh)[0](q, q, q)) - plane(np.tanh, 9, 9, 9)))
    rate = np.log(errors[0] / errors[1]) / (np.pi * (np.sqrt(256 / 9) - np.sqrt(64 / 9)))
    assert 0.85 < rate < 1.25


def both(lower, c):
    """P(u > lower, v > lower) for unit variances and correlation c < 1."""
    slant = np.sqrt(1 - c * c)
    return quad(
        lambda u: np.exp(-u * u / 2) * ndtr((c * u - lower) / slant), lower, 12, epsabs=1e-12
    )[0] / np.sqrt(2 * np.pi)


@pytest.mark.parametrize(
    ("kink", "c", "bound"),
    [
        (0.0, 0.99, 3e-4),
        (0.0, -0.5, 3e-4),
        (0.0, 0.9999, 3e-3),
        (0.3, 0.5, 1e-2),
        (0.025, 0.9, 2e-2),
    ],
)
def test_kinked_functions_as_documented(kink, c, bound):
    kappa, kappa_dot = quadrature.dual(lambda z: jax.nn.relu(z - kink))
    at = jnp.asarray(1.0), jnp.asarray(c), jnp.asarray(1.0)
    assert abs(float(kappa_dot(*at)) - both(kink, c)) < bound
    # E phi(u) phi(v) is its value at c = 0 plus the integral of the second function over c
    start = (norm.pdf(kink) - kink * norm.sf(kink)) ** 2
    exact = start + quad(lambda s: both(kink, s), 0, c, epsabs=1e-10)[0]
    second_moment = (1 + kink**2) * norm.sf(kink) - kink * norm.pdf(kink)
    assert abs(float(kappa(*at)) - exact) < 2e-4 * second_moment


def test_arrays_broadcast_like_the_closed_forms():
    kappa, _ = quadrature.dual(jnp.tanh)
    q11, q22 = jnp.asarray([[0.5], [2.0]]), jnp.asarray([[1.0, 4.0, 0.3]])
    q12 = 0.3 * jnp.sqrt(q11 * q22)
    values = kappa(q11, q12, q22)
    assert values.shape == (2, 3)
    for i, j in np.ndindex(2, 3):
        assert values[i, j] == pytest.approx(
            float(kappa(q11[i, 0], q12[i, j], q22[0, j])), rel=1e-13
        )


def test_derivative_by_q12_is_the_second_function_also_at_equal_points(dtype):
    kappa, kappa_dot = quadrature.dual(jnp.tanh)
    for c in (-1.0, 0.0, 0.5, 1.0):
        at = [jnp.asarray(q, dtype) for q in (4.0, 4.0 * c, 4.0)]  # c is exact: sqrt(4) is
        slope = jax.grad(kappa, 1)(*at)
        np.testing.assert_allclose(slope, kappa_dot(*at), rtol=1e-9 if dtype == "float64" else 1e-4)


def test_zero_variance_and_rounding_beyond_one(dtype):
    kappa, kappa_dot = quadrature.dual(lambda z: jnp.cosh(z / 4))
    zero, one = jnp.zeros((), dtype), jnp.ones((), dtype)
    assert float(kappa(zero, zero, zero)) == pytest.approx(1, rel=1e-5)
    assert float(kappa(zero, zero, one)) == pytest.approx(np.exp(1 / 32), rel=1e-5)
    assert np.all(np.isfinite(jax.grad(kappa, (0, 1, 2))(zero, zero, one)))
    assert kappa(one, one * 1.001, one) == kappa(one, one, one)
    assert kappa_dot(one, -one * 1.001, one) == kappa_dot(one, -one, one)
