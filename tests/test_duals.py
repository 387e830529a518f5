"""Activations and their duals against formulas, mpmath and a rule in the plane."""

import re

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import scipy.special
from scipy.integrate import quad
from scipy.special import ndtr
from scipy.stats import norm

from ntkcourse import duals, linalg, mehler
from ntkcourse.duals import BY_NAME, SLOPE, resolve

FORMULAS = {
    "relu": lambda z: np.maximum(z, 0),
    "leaky_relu": lambda z: np.where(z > 0, z, z / 100),
    "abs": np.abs,
    "erf": scipy.special.erf,
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
    "gelu": lambda z: z * scipy.special.ndtr(z),
    "identity": lambda z: z,
}


def test_the_names_are_those_of_the_course():
    assert set(BY_NAME) == set(FORMULAS)
    assert SLOPE == 0.01


@pytest.mark.parametrize("name", FORMULAS)
def test_values_by_name(name, dtype):
    z = np.linspace(-4, 4, 81).astype(dtype)
    values = resolve(name)(jnp.asarray(z))
    assert values.dtype == dtype
    np.testing.assert_allclose(values, FORMULAS[name](z), atol=8 * jnp.finfo(dtype).eps, rtol=1e-6)
    slopes = jax.vmap(jax.grad(resolve(name)))(jnp.asarray(z))
    assert np.all(np.isfinite(slopes))


def test_a_function_is_its_own_activation():
    assert resolve(jnp.sinh) is jnp.sinh


@pytest.mark.parametrize("bad", ["swish", "", None, 3, ["relu"]])
def test_unknown_activations_are_refused(bad, user):
    with pytest.raises(ValueError, match=r"expected an activation among relu, .* a JAX function"):
        resolve(bad)


GRID = np.concatenate(
    [np.linspace(-1, 1, 4001), 1 - np.geomspace(1e-16, 0.5, 400), np.geomspace(1e-16, 0.5, 400) - 1]
)


@pytest.mark.parametrize(("name", "bound"), [("float32", 5e-7), ("float64", 1e-14)])
def test_arcsin_and_its_integral_on_a_dense_grid(name, bound):
    c = jnp.asarray(GRID, name)
    with mpmath.workdps(40):
        wide = [mpmath.mpf(float(v)) for v in c]
        angles = [mpmath.asin(v) for v in wide]
        arches = [mpmath.sqrt(1 - v * v) + v * a for v, a in zip(wide, angles, strict=True)]
    for function, exact in ((duals.arcsin, angles), (duals.arch, arches)):
        values = jax.jit(function)(c)
        assert values.dtype == name
        assert np.max(np.abs(np.asarray(values, float) - np.array(exact, float))) < bound


def test_derivatives_of_arcsin_and_its_integral(dtype):
    c = jnp.asarray([-0.999, -0.5, 0.0, 1e-3, 0.7, 0.999], dtype)
    slope = jax.vmap(jax.grad(duals.arcsin))
    exact = 1 / np.sqrt(1 - np.asarray(c, float) ** 2)
    np.testing.assert_allclose(slope(c), exact, rtol=2e-12 if dtype == jnp.float64 else 1e-6)
    ends = jnp.asarray([-1.0, 1.0], dtype)
    assert slope(ends).tolist() == [0, 0]
    half = float(jnp.asarray(jnp.pi / 2, dtype))
    assert duals.arcsin(ends).tolist() == [-half, half]
    assert duals.arch(ends).tolist() == [half, half]
    assert jax.vmap(jax.grad(duals.arch))(ends).tolist() == [-half, half]


def test_root(dtype):
    x = jnp.asarray([-1.0, 0.0, 1e-30, 4.0], dtype)
    np.testing.assert_allclose(linalg.root(x), [0, 0, 1e-15, 2], rtol=1e-6)
    slopes = jax.vmap(jax.grad(linalg.root))(x)
    np.testing.assert_allclose(slopes, [0, 0, 0.5e15, 0.25], rtol=1e-6)


def test_hermite_rule_gives_gaussian_moments():
    nodes = mehler.NODES
    rule = mehler._hermite_rule()[:2].reshape(64, -1).T
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
    for ours, exact in zip(duals.dual(function), (phi, slope), strict=True):
        values = jax.jit(ours)(*map(jnp.asarray, (q11, q12, q22)))
        expected = [plane(exact, *q) for q in zip(q11, q12, q22, strict=True)]
        scale = [
            plane(exact, a, a, a) * plane(exact, b, b, b) for a, b in zip(q11, q22, strict=True)
        ]
        assert np.max(np.abs(values - np.array(expected)) / np.maximum(1, np.sqrt(scale))) < 1e-9


def test_tanh_against_mpmath():
    kappa, kappa_dot = duals.dual(jnp.tanh)
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
    errors, rule, q = [], mehler._hermite_rule(), jnp.asarray(9.0)
    for terms in (64, 256):
        monkeypatch.setattr(mehler, "_hermite_rule", lambda t=terms: rule[: t // mehler.CHUNK])
        value = mehler.smooth(jnp.tanh, q, q, q)[0]
        errors.append(abs(float(value) - plane(np.tanh, 9, 9, 9)))
    rate = np.log(errors[0] / errors[1]) / (np.pi * (np.sqrt(256 / 9) - np.sqrt(64 / 9)))
    assert 0.85 < rate < 1.25


def both(lower, c):
    """P(u > lower, v > lower) for unit variances and correlation c < 1."""
    slant = np.sqrt(1 - c * c)
    return quad(
        lambda u: np.exp(-u * u / 2) * ndtr((c * u - lower) / slant), lower, 12, epsabs=1e-12
    )[0] / np.sqrt(2 * np.pi)


@pytest.mark.parametrize(("kink", "c"), [(0.3, 0.5), (0.025, 0.9), (-1.0, 0.99)])
def test_kinks_away_from_zero_warn_with_the_size_of_their_error(kink, c):
    with pytest.warns(UserWarning, match="off by up to") as caught:
        kappa, kappa_dot = duals.dual(lambda z: jax.nn.relu(z - kink))
    bound = float(re.search(r"up to (\S+) at", str(caught[0].message))[1])
    assert 1e-4 < bound < 0.1
    at = jnp.asarray(1.0), jnp.asarray(c), jnp.asarray(1.0)
    # the bound is for c = 1, where the whole tail of the series counts
    assert abs(float(kappa_dot(*at)) - both(kink, c)) < 2 * bound
    # E phi(u) phi(v) is its value at c = 0 plus the integral of the second function over c
    start = (norm.pdf(kink) - kink * norm.sf(kink)) ** 2
    exact = start + quad(lambda s: both(kink, s), 0, c, epsabs=1e-10)[0]
    second_moment = (1 + kink**2) * norm.sf(kink) - kink * norm.pdf(kink)
    assert abs(float(kappa(*at)) - exact) < 3e-4 * second_moment


RECOGNISED = {
    "relu": [jax.nn.relu, lambda z: jnp.maximum(z, 0), lambda z: jnp.where(z > 0, z, 0)],
    "leaky_relu": [jax.nn.leaky_relu],
    "abs": [jnp.abs, lambda z: jnp.maximum(z, -z)],
    "erf": [jax.scipy.special.erf, jax.lax.erf],
    "sin": [jnp.sin],
    "cos": [jnp.cos],
    "gelu": [lambda z: z * jax.scipy.stats.norm.cdf(z)],
    "identity": [lambda z: z],
}


@pytest.mark.parametrize("name", RECOGNISED)
def test_a_function_is_the_same_as_its_name(name, recwarn):
    at = jnp.asarray(1.3), jnp.asarray(0.4), jnp.asarray(0.7)
    for function in RECOGNISED[name]:
        for ours, named in zip(duals.dual(function), duals.dual(name), strict=True):
            assert float(ours(*at)) == pytest.approx(float(named(*at)), rel=1e-15)
        jax.jit(lambda q, f=function: duals.dual(f)[0](q, q, q))(1.0)  # also while tracing
    assert not recwarn


def test_any_two_lines_through_zero_are_exact():
    u = np.random.default_rng(0).multivariate_normal([0, 0], [[1.2, 0.7], [0.7, 0.9]], 400_000).T
    products = np.prod(np.where(u > 0, -2 * u, 0.3 * u), 0)
    kappa, kappa_dot = duals.dual(lambda z: jnp.where(z > 0, -2 * z, 0.3 * z))
    error = products.mean() - float(kappa(1.2, 0.7, 0.9))
    assert abs(error) < 4 * products.std() / np.sqrt(len(products))
    assert float(kappa(2.0, 2.0, 2.0)) == pytest.approx(4 + 0.09, rel=1e-14)
    assert float(kappa_dot(2.0, -2.0, 2.0)) == pytest.approx(-0.6, rel=1e-14)


def test_approximate_gelu_is_not_gelu(recwarn):
    def tanh_form(z):
        return z * (1 + np.tanh((2 / np.pi) ** 0.5 * (z + 0.044715 * z**3))) / 2

    value = float(duals.dual(jax.nn.gelu)[0](1.0, 0.5, 1.0))
    assert value == pytest.approx(plane(tanh_form, 1.0, 0.5, 1.0), rel=1e-9)
    assert abs(value - float(duals.dual("gelu")[0](1.0, 0.5, 1.0))) > 1e-6
    assert not recwarn


@pytest.mark.parametrize("function", [lambda z: jnp.clip(z, -1, 1), jax.nn.relu6, jax.nn.elu])
def test_other_kinks_warn(function):
    with pytest.warns(UserWarning, match="expected a smooth activation"):
        duals.dual(function)


def test_high_frequencies_are_not_cut_off():
    # the first chunks of coefficients are below rounding, those near k = 225 carry everything
    with pytest.warns(UserWarning, match=r"1.0e\+00 at variance 16"):
        kappa, _ = duals.dual(lambda z: jnp.sin(15 * z))
    assert float(kappa(1.0, 0.999, 1.0)) == pytest.approx(np.exp(-0.225) / 2, rel=1e-9)


def test_arrays_broadcast_like_the_closed_forms():
    kappa, _ = duals.dual(jnp.tanh)
    q11, q22 = jnp.asarray([[0.5], [2.0]]), jnp.asarray([[1.0, 4.0, 0.3]])
    q12 = 0.3 * jnp.sqrt(q11 * q22)
    values = kappa(q11, q12, q22)
    assert values.shape == (2, 3)
    for i, j in np.ndindex(2, 3):
        assert values[i, j] == pytest.approx(
            float(kappa(q11[i, 0], q12[i, j], q22[0, j])), rel=1e-13
        )


def test_derivative_by_q12_is_the_second_function_also_at_equal_points(dtype):
    kappa, kappa_dot = duals.dual(jnp.tanh)
    slope = jax.jit(jax.grad(kappa, 1))
    for c in (-1.0, 0.0, 0.5, 1.0):
        at = [jnp.asarray(q, dtype) for q in (4.0, 4.0 * c, 4.0)]  # c is exact: sqrt(4) is
        tolerance = 1e-9 if dtype == "float64" else 1e-4
        np.testing.assert_allclose(slope(*at), kappa_dot(*at), rtol=tolerance)


def test_zero_variance_and_rounding_beyond_one(dtype):
    kappa, kappa_dot = map(jax.jit, duals.dual(lambda z: jnp.cosh(z / 4)))
    zero, one = jnp.zeros((), dtype), jnp.ones((), dtype)
    assert float(kappa(zero, zero, zero)) == pytest.approx(1, rel=1e-5)
    assert float(kappa(zero, zero, one)) == pytest.approx(np.exp(1 / 32), rel=1e-5)
    assert np.all(np.isfinite(jax.jit(jax.grad(kappa, (0, 1, 2)))(zero, zero, one)))
    assert kappa(one, one * 1.001, one) == kappa(one, one, one)
    assert kappa_dot(one, -one * 1.001, one) == kappa_dot(one, -one, one)
