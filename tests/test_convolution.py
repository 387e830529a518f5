"""Convolutional kernels against a recursion written with loops, and against finite networks."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ndtr
from shared import approaches

from ntkcourse import convolution, infinite, kernels


def relu_duals(q11, q12, q22):
    norm = np.sqrt(q11 * q22)
    t = np.arccos(np.clip(q12 / norm, -1, 1))
    return norm * (np.sin(t) + (np.pi - t) * np.cos(t)) / (2 * np.pi), (np.pi - t) / (2 * np.pi)


def erf_duals(q11, q12, q22):
    product = (1 + 2 * q11) * (1 + 2 * q22)
    return 2 / np.pi * np.arcsin(2 * q12 / np.sqrt(product)), 4 / np.pi / np.sqrt(
        product - 4 * q12**2
    )


def plane_duals(q11, q12, q22):
    """tanh by the trapezoidal rule in two independent normal coordinates."""
    z = np.linspace(-8, 8, 161)
    w = np.exp(-(z**2) / 2) * (z[1] - z[0]) / np.sqrt(2 * np.pi)
    c = min(1, q12 / np.sqrt(q11 * q22))
    u = np.sqrt(q11) * z[:, None] + 0 * z
    v = np.sqrt(q22) * (c * z[:, None] + np.sqrt(1 - c * c) * z)
    return w @ (np.tanh(u) * np.tanh(v)) @ w, w @ (np.cosh(u) * np.cosh(v)) ** -2.0 @ w


DUALS = {"relu": relu_duals, "erf": erf_duals, "tanh": plane_duals}


def loops(depth, name, sigma_w, sigma_b, pooling, x, y):
    """nngp and ntk over all pairs of positions of the two images, one entry after another."""
    images = {"x": np.asarray(x), "y": np.asarray(y)}
    h, w, c = x.shape
    places = list(np.ndindex(h, w))
    shifts = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1)]
    pairs = [("x", "x"), ("x", "y"), ("y", "y")]
    post = {
        (s, t, p, q): images[s][p] @ images[t][q] / c
        for s, t in pairs
        for p in places
        for q in places
    }
    theta = dict.fromkeys(post, 0.0)

    def convolve(table):
        def move(place, a, b):
            return (place[0] + a) % h, (place[1] + b) % w

        return {
            (s, t, p, q): sum(table[s, t, move(p, *by), move(q, *by)] for by in shifts) / 9
            for s, t, p, q in table
        }

    for _ in range(depth - 1):
        q = {at: sigma_w**2 * v + sigma_b**2 for at, v in convolve(post).items()}
        theta = {at: q[at] + sigma_w**2 * v for at, v in convolve(theta).items()}
        duals = {
            (s, t, p, r): DUALS[name](q[s, s, p, p], q[s, t, p, r], q[t, t, r, r])
            for s, t, p, r in q
            if pooling or p == r
        }
        # off the diagonal nothing is needed without pooling
        post = {at: duals[at][0] if at in duals else 0.0 for at in q}
        theta = {at: duals[at][1] * theta[at] if at in duals else 0.0 for at in q}
    readout = [("x", "y", p, q) for p in places for q in places if pooling or p == q]
    nngp = sigma_w**2 * np.mean([post[at] for at in readout]) + sigma_b**2
    return nngp, nngp + sigma_w**2 * np.mean([theta[at] for at in readout])


def images(*shape, dtype=jnp.float64, seed=0):
    return [jnp.asarray(a, dtype) for a in np.random.default_rng(seed).normal(size=(2, *shape))]


@pytest.mark.parametrize("pooling", [True, False])
@pytest.mark.parametrize(
    ("depth", "name", "shape"),
    [
        (1, "relu", (3, 4, 2)),
        (2, "relu", (3, 4, 2)),
        (3, "relu", (4, 3, 1)),
        (4, "erf", (4, 5, 3)),
        (3, "erf", (2, 1, 2)),
        (3, "tanh", (2, 3, 1)),
    ],
)
def test_recursion(depth, name, shape, pooling):
    x, y = images(*shape)
    exact = loops(depth, name, 1.4, 0.3, pooling, x, y)
    makes = (convolution.nngp, convolution.ntk)
    ours = [make(depth, name, 1.4, 0.3, pooling)(x, y) for make in makes]
    np.testing.assert_allclose(ours, exact, rtol=1e-9 if name == "tanh" else 1e-12)
    back = [make(depth, name, 1.4, 0.3, pooling)(y, x) for make in makes]
    np.testing.assert_allclose(back, exact, rtol=1e-9)


@pytest.mark.parametrize("pooling", [True, False])
@pytest.mark.parametrize(("padding", "stride"), [("zero", 1), ("zero", 2), ("circular", 2)])
def test_padding_and_strides_against_patches_cut_out_by_hand(padding, stride, pooling):
    # one convolution: given by the covariance of patches, cut out by hand
    x, y = (np.asarray(a) for a in images(5, 4, 2))

    def patches(a):
        wide = np.pad(
            a, ((1, 1), (1, 1), (0, 0)), {"zero": "constant", "circular": "wrap"}[padding]
        )
        corners = [(i, j) for i in range(0, 5, stride) for j in range(0, 4, stride)]
        return np.array([wide[i : i + 3, j : j + 3].ravel() for i, j in corners])

    u, v = patches(x), patches(y)
    norms = [1.3**2 * np.sum(a**2, 1) / 18 + 0.16 for a in (u, v)]
    cross = 1.3**2 * u @ v.T / 18 + 0.16
    value, slope = relu_duals(norms[0][:, None], cross, norms[1][None])
    mean = np.mean if pooling else lambda a: np.mean(np.diagonal(a))
    nngp = 1.3**2 * mean(value) + 0.16
    exact = nngp, nngp + 1.3**2 * mean(slope * cross)
    at = (2, "relu", 1.3, 0.4, pooling, padding, stride)
    ours = [
        make(*at)(jnp.asarray(x), jnp.asarray(y)) for make in (convolution.nngp, convolution.ntk)
    ]
    np.testing.assert_allclose(ours, exact, rtol=1e-12)
    deep = convolution.ntk(4, "relu", 1.3, 0.4, pooling, padding, stride)
    there, back = deep(jnp.asarray(x), jnp.asarray(y)), deep(jnp.asarray(y), jnp.asarray(x))
    assert float(there) == pytest.approx(float(back), rel=1e-12)


def test_defaults_are_relu_with_unit_gain_no_bias_and_pooling():
    x, y = images(3, 3, 1)
    exact = loops(2, "relu", 2**0.5, 0.0, True, x, y)
    ours = [make(2)(x, y) for make in (convolution.nngp, convolution.ntk)]
    np.testing.assert_allclose(ours, exact, rtol=1e-12)


def test_one_pixel_is_a_dense_network():
    x, y = images(1, 1, 5)
    for ours, dense in ((convolution.nngp, infinite.nngp), (convolution.ntk, infinite.ntk)):
        for pooling in (True, False):
            k = ours(4, "gelu", 1.2, 0.1, pooling)
            expected = dense(4, "gelu", 1.2, 0.1)(x[0, 0], y[0, 0])
            assert k(x, y) == pytest.approx(float(expected), rel=1e-13)


@pytest.mark.parametrize("pooling", [True, False])
def test_shifts(pooling):
    x, y = images(4, 4, 2)
    k = convolution.ntk(3, "erf", pooling=pooling)
    moved = jnp.roll(y, (1, 2), (0, 1))
    together = k(jnp.roll(x, (1, 2), (0, 1)), moved)
    assert together == pytest.approx(float(k(x, y)), rel=1e-12)
    # only the pooled network does not see where things are
    assert (abs(k(x, moved) - k(x, y)) < 1e-10) == pooling


def finite_kernels(channels, key, x, y, pooling, phi, sigma_w, sigma_b):
    """Conditional covariance and tangent kernel of one network with two convolutions."""
    keys = jax.random.split(key, 6)
    sizes = [(3, 3, x.shape[-1], channels), (3, 3, channels, channels)]
    area = 1 if pooling else x.shape[0] * x.shape[1]
    params = [
        *(jax.random.normal(k, s) for k, s in zip(keys[:2], sizes, strict=True)),
        jax.random.normal(keys[2], (area * channels,)),
        *(jax.random.normal(k, (channels,)) for k in keys[3:5]),
        jax.random.normal(keys[5], ()),
    ]

    def network(params, z):
        for i in range(2):
            fan_in = 9 * z.shape[-1]
            padded = jnp.pad(z, ((1, 1), (1, 1), (0, 0)), mode="wrap")[None]
            z = jax.lax.conv_general_dilated(
                padded, params[i], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )[0]
            z = phi(sigma_w / fan_in**0.5 * z + sigma_b * params[3 + i][None, None])
        flat = z.mean((0, 1)) if pooling else z.ravel()
        return sigma_w / len(flat) ** 0.5 * (flat @ params[2]) + sigma_b * params[5], flat

    (gx, hx), (gy, hy) = (jax.grad(network, has_aux=True)(params, p) for p in (x, y))
    products = jax.tree.map(lambda u, v: jnp.sum(u * v), gx, gy)
    return jnp.stack([sigma_w**2 * jnp.mean(hx * hy) + sigma_b**2, sum(products)])


@pytest.mark.parametrize("pooling", [True, False])
def test_finite_networks_approach_at_the_rate_of_the_square_root(pooling):
    x, y = images(4, 3, 2)
    at = (3, "relu", 1.3, 0.4, pooling)
    limit = np.array([make(*at)(x, y) for make in (convolution.nngp, convolution.ntk)])
    sample = partial(
        finite_kernels, x=x, y=y, pooling=pooling, phi=jax.nn.relu, sigma_w=1.3, sigma_b=0.4
    )
    approaches(sample, limit, jax.random.split(jax.random.key(2), 40), [8, 24, 72], 0.15)


@pytest.mark.parametrize("pooling", [True, False])
@pytest.mark.parametrize("name", ["relu", "erf"])
def test_special_images_give_finite_values_and_gradients(name, pooling, dtype):
    x, y = images(3, 3, 1, dtype=dtype)
    flat = jnp.ones_like(x)
    firsts, seconds = (
        jnp.stack([x, x, x, x, 0 * x, flat]),
        jnp.stack([y, x, -x, 0 * x, 0 * x, flat]),
    )
    k = convolution.ntk(3, name, 1.3, 0.0, pooling)
    values, slopes = jax.jit(jax.vmap(jax.value_and_grad(k)))(firsts, seconds)
    assert values.dtype == dtype
    assert np.all(np.isfinite(values))
    assert np.all(np.isfinite(slopes))


def test_gram_is_positive_and_its_parameters_may_be_of_numpy(user):
    x = np.random.default_rng(0).normal(size=(6, 4, 4, 1)).astype(np.float32)
    k = convolution.ntk(np.int64(3), "relu", np.float64(1.4), np.float64(0.1))
    matrix = np.asarray(kernels.gram(k, x))
    assert matrix.dtype == np.float32
    assert np.array_equal(matrix, matrix.T)
    assert np.linalg.eigvalsh(matrix.astype(float)).min() > 0


def test_gelu_of_a_constant_image_is_the_dense_kernel():
    # every window of a constant image is the same, so space plays no part
    one = jnp.ones((3, 3, 1))
    q = 1.5**2 * 0.7 * 0.9 + 0.2**2
    k = convolution.nngp(2, "gelu", 1.5, 0.2)(0.7 * one, 0.9 * one)
    z = np.linspace(-9, 9, 361)
    w = np.exp(-(z**2) / 2) * (z[1] - z[0]) / np.sqrt(2 * np.pi)
    q11, q22 = 1.5**2 * 0.49 + 0.04, 1.5**2 * 0.81 + 0.04
    c = q / np.sqrt(q11 * q22)
    u, v = np.sqrt(q11) * z[:, None], np.sqrt(q22) * (c * z[:, None] + np.sqrt(1 - c * c) * z)
    exact = 1.5**2 * (w @ (u * ndtr(u) * v * ndtr(v)) @ w) + 0.04
    assert k == pytest.approx(exact, rel=1e-12)


IMAGE = np.ones((3, 3, 1))
BAD = [
    (lambda make: make(0), ValueError, "depth >= 1, got 0"),
    (lambda make: make(1.5), TypeError, "whole number for depth, got 1.5"),
    (lambda make: make(2, "swish"), ValueError, "activation among relu, .* got 'swish'"),
    (lambda make: make(2, "relu", 0.0), ValueError, "sigma_w > 0, got 0.0"),
    (lambda make: make(2, "relu", 1.0, -1.0), ValueError, "sigma_b >= 0, got -1.0"),
    (lambda make: make(2)(IMAGE, np.ones((3, 4, 1))), ValueError, "two points of one shape"),
    (
        lambda make: make(2)(IMAGE[0], IMAGE[0]),
        ValueError,
        r"images of shape \(h, w, c\).*\(3, 1\)",
    ),
    (lambda make: kernels.gram(make(2), np.ones((4, 9))), ValueError, r"images of shape.*\(9,\)"),
]


@pytest.mark.parametrize("make", [convolution.nngp, convolution.ntk])
@pytest.mark.parametrize(("call", "error", "message"), BAD)
def test_bad_input(user, make, call, error, message):
    with pytest.raises(error, match=message):
        call(make)
