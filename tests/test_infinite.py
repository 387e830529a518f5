"""Infinite-width kernels against mpmath, finite networks and the simulated flow of an ensemble."""

from functools import partial

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import erf, ndtr
from shared import approaches

from ntkcourse import infinite, kernels
from ntkcourse.duals import SLOPE, correlation

mp = mpmath.mp
CLOSED = ["relu", "leaky_relu", "abs", "erf", "sin", "cos", "gelu", "identity"]
NAMES = [*CLOSED, "tanh"]
SMOOTH = ["erf", "sin", "cos", "gelu", "identity", "tanh"]


def rectified(slope, q11, q12, q22):
    """The duals of x for x > 0, slope x for x < 0, from the quadrant probabilities of relu."""
    norm = mp.sqrt(q11 * q22)
    angle = mp.acos(max(-1, min(1, q12 / norm)))

    def relu(t):
        return norm * (mp.sin(t) + (mp.pi - t) * mp.cos(t)) / (2 * mp.pi)

    def step(t):
        return (mp.pi - t) / (2 * mp.pi)

    other = mp.pi - angle  # the angle between u and -v
    value = (1 + slope**2) * relu(angle) - 2 * slope * relu(other)
    return value, (1 + slope**2) * step(angle) + 2 * slope * step(other)


def erf_duals(q11, q12, q22):
    product = (1 + 2 * q11) * (1 + 2 * q22)
    kappa = 2 / mp.pi * mp.asin(2 * q12 / mp.sqrt(product))
    return kappa, 4 / mp.pi / mp.sqrt(product - 4 * q12**2)


def wave_duals(q11, q12, q22):
    decay = mp.exp(-(q11 + q22) / 2)
    return decay * mp.sinh(q12), decay * mp.cosh(q12)


def plane(f, q11, q12, q22, step=0.1):
    """E f(u) f(v) by the trapezoidal rule in two independent normal coordinates."""
    z = np.arange(-9, 9 + step / 2, step)
    w = np.exp(-(z**2) / 2) * step / np.sqrt(2 * np.pi)
    q11, q12, q22 = (float(q) for q in (q11, q12, q22))
    c = q12 / np.sqrt(q11 * q22)
    s = np.sqrt(max(1 - c * c, 0))
    return w * f(np.sqrt(q11) * z) @ (f(np.sqrt(q22) * (c * z[:, None] + s * z)) @ w)


def by_plane(f, slope, *q):
    return mp.mpf(plane(f, *q)), mp.mpf(plane(slope, *q))


def density(z):
    return np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)


EXACT = {
    "relu": partial(rectified, mp.mpf(0)),
    "leaky_relu": partial(rectified, mp.mpf(SLOPE)),
    "abs": partial(rectified, mp.mpf(-1)),
    "erf": erf_duals,
    "sin": wave_duals,
    "cos": lambda *q: wave_duals(*q)[::-1],
    "identity": lambda q11, q12, q22: (q12, mp.mpf(1)),
    "gelu": partial(by_plane, lambda z: z * ndtr(z), lambda z: ndtr(z) + z * density(z)),
    "tanh": partial(by_plane, np.tanh, lambda z: 1 / np.cosh(z) ** 2),
}


def exact_kernels(depth, name, sigma_w, sigma_b, x, y):
    """nngp(x, y), ntk(x, y) and the two scales sqrt(k(x, x) k(y, y)), in 30 digits."""
    with mp.workdps(30):
        w, b = mp.mpf(sigma_w) ** 2, mp.mpf(sigma_b) ** 2
        duals = EXACT[name]
        q = [
            w * mp.fdot(map(float, s), map(float, t)) / len(x) + b
            for s, t in [(x, x), (x, y), (y, y)]
        ]
        theta = list(q)
        for _ in range(depth - 1):
            own = [duals(q[0], q[0], q[0]), duals(*q), duals(q[2], q[2], q[2])]
            q = [w * value + b for value, _ in own]
            theta = [s + w * slope * t for s, (_, slope), t in zip(q, own, theta, strict=True)]
        scales = [mp.sqrt(v[0] * v[2]) for v in (q, theta)]
        return [float(v) for v in (q[1], theta[1], *scales)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "q", [(1.0, 0.3, 1.0), (0.2, -0.4, 3.0), (2.0, 2.0, 2.0), (3.0, 0.0, 0.5), (0.02, -0.01, 0.01)]
)
def test_duals(name, q, dtype):
    kappa, kappa_dot = infinite.dual(name)
    values = [f(*(jnp.asarray(v, dtype) for v in q)) for f in (kappa, kappa_dot)]
    assert values[0].dtype == dtype
    assert values[1].dtype == dtype
    exact = [float(v) for v in EXACT[name](*map(mp.mpf, q))]
    bound = {"float32": 3e-6, "float64": 1e-9 if name == "tanh" else 1e-13}[dtype.name]
    np.testing.assert_allclose(values, exact, rtol=bound, atol=bound)


@pytest.mark.parametrize("name", ["gelu", "tanh"])
def test_duals_by_mpmath_quadrature(name):
    # at c = 1 the plane is a line, where mpmath's own adaptive rule is quick
    f = {"gelu": lambda z: z * mpmath.ncdf(z), "tanh": mpmath.tanh}[name]
    slope = {"gelu": lambda z: mpmath.ncdf(z) + z * mpmath.npdf(z), "tanh": lambda z: 1 - f(z) ** 2}

    def mean(g, q):
        nodes = [-14, -4, -1, 0, 1, 4, 14]
        return mpmath.quad(lambda z: g(mpmath.sqrt(q) * z) ** 2 * mpmath.npdf(z), nodes)

    with mp.workdps(30):
        for q in (0.5, 16.0):
            exact = [float(mean(g, q)) for g in (f, slope[name])]
            ours = [float(dual(q, q, q)) for dual in infinite.dual(name)]
            np.testing.assert_allclose(ours, exact, rtol=1e-14, atol=1e-9 if name == "tanh" else 0)


@pytest.mark.parametrize("name", ["erf", "gelu", "sin", "cos"])
def test_duals_of_large_variances_stay_accurate(name, dtype):
    q = 300.0
    values = [float(f(*[jnp.asarray(q, dtype)] * 3)) for f in infinite.dual(name)]
    if name == "gelu":  # nearly relu
        np.testing.assert_allclose(values, [q / 2, 0.5], rtol=0.02)
    else:
        exact = [float(v) for v in EXACT[name](*[mp.mpf(q)] * 3)]
        np.testing.assert_allclose(values, exact, rtol=2e-3 if dtype == "float32" else 1e-12)


def test_duals_of_numbers_arrays_and_functions():
    assert float(infinite.dual("relu")[0](2, 2, 2)) == pytest.approx(1.0)
    assert infinite.dual("erf")[0](np.ones(3), np.zeros(3), np.ones(3)).shape == (3,)
    softplus = infinite.dual(jax.nn.softplus)
    exact = by_plane(lambda z: np.logaddexp(0, z), lambda z: 1 / (1 + np.exp(-z)), 1.5, 0.4, 2.0)
    np.testing.assert_allclose(
        [f(1.5, 0.4, 2.0) for f in softplus], [float(v) for v in exact], 1e-11
    )
    ones = infinite.dual("identity")[1](jnp.full(2, 3.0), jnp.zeros(2), jnp.ones(2))
    assert ones.tolist() == [1, 1]


def test_duals_by_monte_carlo():
    u, v = np.random.default_rng(0).multivariate_normal([0, 0], [[1.2, 0.7], [0.7, 0.9]], 200_000).T
    functions = {
        "relu": lambda z: np.maximum(z, 0),
        "leaky_relu": lambda z: np.where(z > 0, z, 0.01 * z),
        "abs": np.abs,
        "erf": erf,
        "gelu": lambda z: z * ndtr(z),
        "tanh": np.tanh,
    }
    for name, f in functions.items():
        products = f(u) * f(v)
        error = products.mean() - float(infinite.dual(name)[0](1.2, 0.7, 0.9))
        assert abs(error) < 4 * products.std() / np.sqrt(len(u))


# kernels are arguments here, not constants: changing sigma_w or sigma_b compiles nothing anew
values_of = jax.jit(lambda k, x, y: jax.vmap(k)(x, y))
slopes_of = jax.jit(lambda k, x, y: jax.vmap(jax.grad(k, (0, 1)))(x, y))


def pairs(angles, dtype=float):
    x = np.tile([1.3, 0.0], (len(angles), 1))
    y = 0.8 * np.stack([np.cos(angles), np.sin(angles)], 1)
    turn = np.array([[0.6, -0.8], [0.8, 0.6]])
    return (x @ turn).astype(dtype), (y @ turn).astype(dtype)


def errors(name, depth, sigma_w, sigma_b, x, y):
    """Errors of nngp and ntk relative to the scales of the contract."""
    exact = np.array(
        [exact_kernels(depth, name, sigma_w, sigma_b, a, b) for a, b in zip(x, y, strict=True)]
    )
    ours = [
        values_of(make(depth, name, sigma_w, sigma_b), jnp.asarray(x), jnp.asarray(y))
        for make in (infinite.nngp, infinite.ntk)
    ]
    return [
        np.abs(np.asarray(k, float) - exact[:, i]) / exact[:, i + 2] for i, k in enumerate(ours)
    ]


ANGLES = np.concatenate(
    [np.geomspace(1e-3, 1, 12), np.linspace(1, 3, 9), np.pi - np.geomspace(1e-3, 0.1, 6)]
)


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize(
    ("name", "sigma_b"), [("relu", 0.0), ("relu", 0.4), ("leaky_relu", 0.1), ("abs", 0.2)]
)
def test_rectifiers_to_1e_11(name, sigma_b, depth):
    for error in errors(name, depth, 1.4, sigma_b, *pairs(ANGLES)):
        assert error.max() < 1e-11


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "abs"])
def test_rectifiers_near_collinear(name, dtype):
    small = np.concatenate([[0.0], np.geomspace(1e-12, 1e-3, 19)])
    for angles in (small, np.pi - small):
        for error in errors(name, 4, 1.4, 0.0, *pairs(angles, dtype)):
            assert error.max() < (1e-7 if dtype == jnp.float64 else 2e-3)


def test_rectifiers_in_float32():
    for error in errors("relu", 4, 1.4, 0.1, *pairs(ANGLES[4:], np.float32)):
        assert error.max() < 2e-4


@pytest.mark.parametrize("depth", [2, 4])
@pytest.mark.parametrize("name", SMOOTH)
def test_smooth_kernels(name, depth):
    angles = np.array([0.0, 1e-4, 0.3, np.pi / 2, 2.5, np.pi])
    for error in errors(name, depth, 1.5, 0.3, *pairs(angles)):
        assert error.max() < (1e-9 if name == "tanh" else 1e-12)


def test_tanh_with_large_variances():
    for error in errors("tanh", 2, 4.0, 0.0, *pairs(np.array([0.0, 0.5, 2.0]))):
        assert error.max() < 1e-9


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_relu_diagonal_is_exact(depth, dtype):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(20, 30)), dtype)
    eps = float(jnp.finfo(dtype).eps)
    square = 2 * np.mean(np.asarray(x, float) ** 2, 1)
    for make, factor in ((infinite.nngp, 1), (infinite.ntk, depth)):
        values = values_of(make(depth), x, x)
        assert values.dtype == dtype
        np.testing.assert_allclose(values, factor * square, rtol=4 * (depth + 1) * eps)


def test_defaults_are_relu_with_unit_gain_and_no_bias():
    x = jnp.asarray([1.0, 2.0])
    for make in (infinite.nngp, infinite.ntk):
        y = jnp.asarray([-0.5, 1.0])
        assert make(3)(x, y) == pytest.approx(float(make(3, "relu", 2**0.5, 0.0)(x, y)), rel=1e-15)


def test_correlation_snaps_rounding_only(dtype):
    eps = float(jnp.finfo(dtype).eps)
    q = jnp.asarray([1 - 8 * eps, 1 - 2 * eps, 1.0, 1 + 2 * eps, -1 + 2 * eps, -1 + 8 * eps], dtype)
    c = correlation(jnp.full(6, 4, dtype), q * 8, jnp.full(6, 16, dtype))
    assert c.tolist() == [float(q[0]), 1, 1, 1, -1, float(q[5])]
    assert correlation(*jnp.asarray([[0, 0], [0, 0.5], [3, 3]], dtype)).tolist() == [0, 0]


def special_pairs(dtype):
    x = jnp.asarray([0.6, -1.1, 0.7], dtype)
    z = jnp.asarray([1.1, 0.6, 0.0], dtype)
    firsts = [x, x, x, x, x, x, 0 * x, 0 * x]
    seconds = [x, 3 * x, -x, z, x + 0.3, 0 * x, x, 0 * x]
    return jnp.stack(firsts), jnp.stack(seconds)


@pytest.mark.parametrize("name", NAMES)
def test_values_and_gradients_are_finite(name, dtype):
    for make in (infinite.nngp, infinite.ntk):
        for sigma_b in (0.0, 0.5):
            k = make(3, name, 1.3, sigma_b)
            values = values_of(k, *special_pairs(dtype))
            assert values.dtype == dtype
            assert np.all(np.isfinite(values))
            assert np.all(np.isfinite(slopes_of(k, *special_pairs(dtype))))


def test_many_collinear_pairs(dtype):
    x = jnp.asarray(np.random.default_rng(1).normal(size=(3000, 7)), dtype)
    k = infinite.ntk(3, "relu")
    for factor in (1.7, -0.3):
        assert np.all(np.isfinite(values_of(k, x, factor * x)))
        assert np.all(np.isfinite(slopes_of(k, x, factor * x)))


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_right(name):
    """Against central differences, also at equal, collinear, opposite and orthogonal points."""
    x, y = special_pairs(jnp.float64)
    for make in (infinite.nngp, infinite.ntk) if name in SMOOTH else (infinite.nngp,):
        for sigma_b in (0.0, 0.5):
            k, steps = make(3, name, 1.3, sigma_b), 1e-5 * jnp.eye(3)[:, None]
            around = [values_of(k, x + e, y) - values_of(k, x - e, y) for e in steps]
            expected = np.stack(around, 1) / 2e-5
            slope = slopes_of(k, x, y)[0]  # at the pairs with 0, rectifiers have no derivative
            np.testing.assert_allclose(
                slope[:5], expected[:5], atol=2e-8 if name in SMOOTH else 2e-5
            )


@pytest.mark.parametrize(("name", "slopes"), [("relu", 0.5), ("abs", 1.0), ("erf", None)])
def test_mixed_second_derivative_at_equal_points(name, slopes):
    # d/dx d/dy E phi(w x) phi(w y) = E[w w^T phi'(w x)^2] at y = x, half of E[w w^T] for relu
    x = jnp.asarray([0.5, -1.0, 2.0])
    k = infinite.nngp(2, name, 1.3, 0.0)
    mixed = jax.jacfwd(jax.grad(k, 1))(x, x)
    if slopes is None:
        w = 1.3 / 3**0.5 * np.random.default_rng(0).normal(size=(10**6, 3))
        weight = 4 / np.pi * np.exp(-2 * (w @ np.asarray(x)) ** 2)
        expected, tolerance = (w * weight[:, None]).T @ w / len(w), 5e-3
    else:
        expected, tolerance = slopes * 1.3**2 / 3 * np.eye(3), 1e-10
    np.testing.assert_allclose(mixed, 1.3**2 * expected, atol=tolerance)


@pytest.mark.parametrize("name", ["erf", "sin", "gelu"])
def test_gradient_at_zero(name):
    # k(x, y) = sigma_w^2 kappa, whose derivative by q12 is kappa_dot: at x = 0 nothing else moves
    y = jnp.asarray([0.5, -1.0])
    slope = jax.grad(infinite.nngp(2, name, 1.3, 0.0))(0 * y, y)
    q = 1.3**2 * float(y @ y) / 2
    exact = 1.3**4 / 2 * float(EXACT[name](mp.mpf("1e-30"), mp.mpf(0), mp.mpf(q))[1])
    np.testing.assert_allclose(slope, exact * y, rtol=1e-12)


vectors = arrays(float, (4, 3), elements=st.floats(-2, 2).map(lambda v: round(v, 3)))
examples = settings(max_examples=12, deadline=None, derandomize=True)


@examples
@given(st.sampled_from(NAMES), st.booleans(), vectors, st.integers(0, 99))
def test_symmetric_positive_and_rotation_invariant(name, tangent, x, seed):
    k = (infinite.ntk if tangent else infinite.nngp)(3, name, 1.3, 0.2)
    turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))[0]
    matrix = np.asarray(kernels.gram(k, jnp.asarray(x), jnp.asarray(x)))
    scale = np.abs(matrix).max()
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-8 * scale)
    assert np.linalg.eigvalsh((matrix + matrix.T) / 2).min() > -1e-7 * scale
    turned = kernels.gram(k, jnp.asarray(x @ turn), jnp.asarray(x @ turn))
    np.testing.assert_allclose(turned, matrix, atol=1e-7 * scale)


@examples
@given(st.sampled_from(["relu", "abs", "leaky_relu"]), vectors, st.floats(0.01, 100))
def test_rectifiers_without_bias_are_homogeneous(name, x, factor):
    for make in (infinite.nngp, infinite.ntk):
        k = make(3, name)
        matrix = kernels.gram(k, jnp.asarray(x))
        scaled = kernels.gram(k, jnp.asarray(factor * x), jnp.asarray(x))
        np.testing.assert_allclose(scaled, factor * matrix, atol=1e-6 * factor * np.max(matrix + 1))


def finite_kernels(width, key, x, y, depth, phi, sigma_w, sigma_b):
    """The conditional covariance and the tangent kernel of one network, written out."""
    sizes = [x.shape[0], *[width] * (depth - 1), 1]
    keys = jax.random.split(key, (depth, 2))
    w = [jax.random.normal(keys[i, 0], sizes[i : i + 2]) for i in range(depth)]
    b = [jax.random.normal(keys[i, 1], (sizes[i + 1],)) for i in range(depth)]

    def network(params, z):
        for i, (weight, bias) in enumerate(params):
            hidden = z if i == 0 else phi(z)
            z = sigma_w / len(hidden) ** 0.5 * (hidden @ weight) + sigma_b * bias
        return z[0], hidden

    params = list(zip(w, b, strict=True))
    (gx, hx), (gy, hy) = (jax.grad(network, has_aux=True)(params, p) for p in (x, y))
    products = jax.tree.map(lambda u, v: jnp.sum(u * v), gx, gy)
    return jnp.stack([sigma_w**2 * jnp.mean(hx * hy) + sigma_b**2, sum(jax.tree.leaves(products))])


@pytest.mark.parametrize(("name", "phi"), [("relu", jax.nn.relu), ("tanh", jnp.tanh)])
def test_finite_networks_approach_at_the_rate_of_the_square_root(name, phi):
    x, y = jnp.asarray([1.0, -0.5, 0.3]), jnp.asarray([0.2, 0.8, -1.0])
    at = (3, name, 1.3, 0.4)
    limit = np.array([make(*at)(x, y) for make in (infinite.nngp, infinite.ntk)])
    sample = partial(finite_kernels, x=x, y=y, depth=3, phi=phi, sigma_w=1.3, sigma_b=0.4)
    approaches(sample, limit, jax.random.split(jax.random.key(5), 60), [16, 64, 256], 0.12)


@pytest.mark.parametrize("trained", [[1], [2], [3], [1, 3], []])
def test_trained_layers_add_up_as_in_finite_networks(trained):
    # brute force with scalars: layer l gives Sigma^l times the later sigma_w^2 kappa_dot
    x, y = np.array([1.0, -0.5, 0.3]), np.array([0.2, 0.8, -1.0])
    q = [1.3**2 * a @ b / 3 + 0.16 for a, b in ((x, x), (x, y), (y, y))]
    expected = q[1] * (1 in trained)
    for layer in (2, 3):
        own = [rectified(mp.mpf(0), *(mp.mpf(v) for v in t))
               for t in ((q[0],) * 3, q, (q[2],) * 3)]  # fmt: skip
        q = [1.3**2 * float(value) + 0.16 for value, _ in own]
        expected = q[1] * (layer in trained) + 1.3**2 * float(own[1][1]) * expected
    ours = infinite.ntk(3, "relu", 1.3, 0.4, trained)(jnp.asarray(x), jnp.asarray(y))
    assert float(ours) == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_layers_of_network_are_the_dense_case(user):
    x, y = jnp.asarray([1.0, -0.5, 0.3]), jnp.asarray([0.2, 0.8, -1.0])
    d, phi = infinite.dense(1.3, 0.4), infinite.nonlinearity("erf")
    for k, make in zip(
        infinite.network(d, phi, d, phi, d), (infinite.nngp, infinite.ntk), strict=True
    ):
        assert float(k(x, y)) == pytest.approx(float(make(3, "erf", 1.3, 0.4)(x, y)), rel=1e-14)


@pytest.mark.parametrize("depth", [4, pytest.param(12, marks=pytest.mark.soak)])
@pytest.mark.parametrize("make", [infinite.nngp, infinite.ntk])
def test_derivative_by_the_scale_of_the_weights(user, make, depth):
    x, y = jnp.asarray([1.0, -0.5, 0.3]), jnp.asarray([0.2, 0.8, -1.0])
    both = jax.jit(jax.value_and_grad(lambda s: make(depth, "relu", s, 0.1)(x, y)))
    above, below, (_, slope) = (both(1.2 + h) for h in (1e-5, -1e-5, 0.0))
    assert float(slope) == pytest.approx(float(above[0] - below[0]) / 2e-5, rel=1e-7)


def finite_residual(width, key, x, y, norm):
    """dense, [layer norm], x + dense(relu(dense(relu(x)))), relu, dense, written out."""
    sizes = [(3, width), (width, width), (width, width), (width, 1)]
    keys = jax.random.split(key, 4)
    params = [jax.random.normal(k, s) for k, s in zip(keys, sizes, strict=True)]

    def network(params, z):
        def dense(i, h):
            return 1.3 / len(h) ** 0.5 * (h @ params[i])

        f = dense(0, z)
        if norm:
            f = (f - f.mean()) / f.std()
        f = f + dense(2, jax.nn.relu(dense(1, jax.nn.relu(f))))
        h = jax.nn.relu(f)
        return dense(3, h)[0], h

    (gx, hx), (gy, hy) = (jax.grad(network, has_aux=True)(params, p) for p in (x, y))
    products = [jnp.sum(u * v) for u, v in zip(gx, gy, strict=True)]
    return jnp.stack([1.3**2 * jnp.mean(hx * hy), sum(products)])


@pytest.mark.parametrize("norm", [False, True])
def test_residual_branches_and_layer_norm_are_limits_of_finite_networks(norm):
    x, y = jnp.asarray([1.0, -0.5, 0.3]), jnp.asarray([0.2, 0.8, -1.0])
    d, phi = infinite.dense(1.3), infinite.nonlinearity("relu")
    first = [d, infinite.layer_norm()] if norm else [d]
    pair = infinite.network(*first, infinite.residual(phi, d, phi, d), phi, d)
    limit = np.array([float(k(x, y)) for k in pair])
    sample = partial(finite_residual, x=x, y=y, norm=norm)
    approaches(sample, limit, jax.random.split(jax.random.key(5), 80), [16, 64, 256], 0.15)


def test_networks_that_no_limit_describes_are_refused(user):
    d, phi, norm = infinite.dense(), infinite.nonlinearity("relu"), infinite.layer_norm()
    for layers in (
        (phi, d),
        (d, phi, phi, d),
        (d, phi, norm, d),
        (d, infinite.residual(norm, phi, phi, d)),
    ):
        with pytest.raises(ValueError, match="after a dense layer"):
            infinite.network(*layers)
    for layers in ((), (d, phi), (d, norm)):
        with pytest.raises(ValueError, match="ends in dense"):
            infinite.network(*layers)
    with pytest.raises(ValueError, match="branch that ends in dense"):
        infinite.residual(d, phi)
    with pytest.raises(TypeError, match="expected a layer"):
        infinite.network(d, "relu", d)
    with pytest.raises(ValueError, match=r"trained layers among 1 ... 2, got \[3\]"):
        infinite.ntk(2, trained=[3])


def ensemble_oracle(nngp, ntk, x, y, x_new, t, ridge):
    """The law of the linear model's flow, by the exponential of its generator.

    u = f - f0 follows u' = -Theta_{., X} (u_X + f0_X - y) - ridge u, with f0_X - y constant.
    """
    points = jnp.concatenate([x, x_new])
    theta, sigma = (np.asarray(kernels.gram(k, points)) for k in (ntk, nngp))
    n, total = len(x), len(points)
    generator = np.zeros((total + n, total + n))
    generator[:total, :n] = -theta[:, :n]
    generator[:total, :total] -= ridge * np.eye(total)
    generator[:total, total:] = -theta[:, :n]
    response = scipy.linalg.expm(t * generator)[:total, total:]
    start = np.eye(total)
    start[:, :n] += response
    mean, cov = -response @ np.asarray(y), start @ sigma @ start.T
    return mean[n:], cov[n:, n:], (sigma, start, response)


def data(columns=(), dtype=jnp.float64):
    rng = np.random.default_rng(2)
    shapes = (5, 3), (5, *columns), (4, 3)
    return [jnp.asarray(rng.normal(size=s), dtype) for s in shapes]


NNGP, NTK = infinite.nngp(3, "relu", 1.4, 0.3), infinite.ntk(3, "relu", 1.4, 0.3)


@pytest.mark.parametrize("columns", [(), (2,)])
@pytest.mark.parametrize("ridge", [0.0, 0.5])
def test_trained_ensemble_is_the_flow_of_the_linear_model(ridge, columns):
    x, y, new = data(columns)
    times = [0.0, 0.2, 3.0, float("inf")]
    means, covs = infinite.trained_ensemble(NNGP, NTK, x, y, new, jnp.asarray(times), ridge)
    assert means.shape == (4, 4, *columns)
    assert covs.shape == (4, 4, 4)
    for i, t in enumerate(times):
        exact = ensemble_oracle(NNGP, NTK, x, y, new, min(t, 1e4), ridge)
        single = infinite.trained_ensemble(NNGP, NTK, x, y, new, t, ridge)
        for mean, cov in ((means[i], covs[i]), single):
            np.testing.assert_allclose(mean, exact[0], atol=1e-9)
            np.testing.assert_allclose(cov, exact[1], atol=1e-9)
            assert np.array_equal(cov, cov.T)
    assert np.array_equal(covs[0], kernels.gram(NNGP, new))
    default = infinite.trained_ensemble(NNGP, NTK, x, y, new)
    if ridge == 0:
        np.testing.assert_allclose(default[1], covs[-1], rtol=1e-12)


def test_trained_ensemble_is_the_law_of_simulated_networks():
    x, y, new = data()
    mean, cov = infinite.trained_ensemble(NNGP, NTK, x, y, new, 1.0, 0.1)
    sigma, start, response = ensemble_oracle(NNGP, NTK, x, y, new, 1.0, 0.1)[2]
    f0 = np.random.default_rng(4).multivariate_normal(np.zeros(9), sigma, 20_000)
    f = (f0 @ start.T - response @ np.asarray(y))[:, 5:]
    spread = np.sqrt(np.outer(np.diagonal(cov), np.diagonal(cov)) + cov**2)
    assert np.all(np.abs(f.mean(0) - mean) < 4 * np.sqrt(np.diagonal(cov) / len(f)))
    assert np.all(np.abs(np.cov(f.T) - cov) < 4 * spread / np.sqrt(len(f)))


def test_trained_ensemble_of_the_last_layer_is_the_posterior(dtype):
    x, y, new = data(dtype=dtype)
    mean, cov = infinite.trained_ensemble(NNGP, NNGP, x, y, new)
    posterior = kernels.gaussian_process(NNGP, x, y)(new)
    tolerance = 1e-10 if dtype == jnp.float64 else 2e-3
    assert mean.dtype == cov.dtype == dtype
    np.testing.assert_allclose(mean, posterior[0], atol=tolerance)
    np.testing.assert_allclose(cov, posterior[1], atol=tolerance)
    tangent = infinite.trained_ensemble(NNGP, NTK, x, y, new)
    assert np.abs(tangent[1] - posterior[1]).max() > 0.01


def test_trained_ensemble_with_duplicated_points():
    x, y, new = data()
    twice = infinite.trained_ensemble(NNGP, NTK, jnp.tile(x, (2, 1)), jnp.tile(y, 2), new)
    once = infinite.trained_ensemble(NNGP, NTK, x, y, new)
    for a, b in zip(twice, once, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-9)


def test_parameters_may_be_traced_or_of_numpy(user):
    x = jnp.ones(2, jnp.float32)
    assert infinite.nngp(np.int64(2), "relu", np.sqrt(2), np.float64(0.1))(x, x).dtype == x.dtype
    one = jnp.ones(2)
    slope = jax.grad(lambda s: infinite.nngp(2, "relu", s, 0.0)(one, one))(1.5)
    assert slope == pytest.approx(4 * 1.5**3 / 2, rel=1e-12)


X, Y = np.ones((3, 2)), np.ones(3)


def ensemble(*args, **kwargs):
    return infinite.trained_ensemble(NNGP, NTK, *args, **kwargs)


BAD = [
    (lambda make: make(0), ValueError, "depth >= 1, got 0"),
    (lambda make: make(2.0), TypeError, "whole number for depth, got 2.0"),
    (lambda make: make(2, "swish"), ValueError, "activation among relu, .* got 'swish'"),
    (lambda make: make(2, "relu", 0.0), ValueError, "sigma_w > 0, got 0.0"),
    (lambda make: make(2, "relu", -1.0), ValueError, "sigma_w > 0, got -1.0"),
    (lambda make: make(2, "relu", 1.0, -0.1), ValueError, "sigma_b >= 0, got -0.1"),
    (lambda make: make(2, "relu", np.nan), ValueError, "finite number for sigma_w"),
    (lambda make: make(2)(np.ones(2), np.ones(3)), ValueError, r"one shape.*\(2,\) and \(3,\)"),
    (lambda make: make(2)(1.0, 1.0), ValueError, "two points of one shape"),
    (lambda _: infinite.dual("swish"), ValueError, "activation among relu"),
    (lambda _: infinite.dual(3), ValueError, "or a JAX function, got 3"),
    (lambda _: ensemble(X[0], Y, X), ValueError, r"x of shape \(n, d\)"),
    (lambda _: ensemble(X, Y[:2], X), ValueError, r"y of shape \(3,\)"),
    (lambda _: ensemble(X, Y, np.ones((2, 3))), ValueError, "x_new with points of shape"),
    (lambda _: ensemble(X, Y, X * np.nan), ValueError, "finite x_new"),
    (lambda _: ensemble(X, Y * np.inf, X), ValueError, "finite y"),
    (lambda _: ensemble(X, Y, X, -1.0), ValueError, "times t >= 0"),
    (lambda _: ensemble(X, Y, X, 1.0, -1.0), ValueError, "ridge >= 0, got -1.0"),
]


@pytest.mark.parametrize("make", [infinite.nngp, infinite.ntk])
@pytest.mark.parametrize(("call", "error", "message"), BAD)
def test_bad_input(user, make, call, error, message):
    with pytest.raises(error, match=message):
        call(make)
