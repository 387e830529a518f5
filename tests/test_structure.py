"""Kernels from the products in a jaxpr, against Jacobians of the whole function."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from ntkcourse import jaxprs, structure, tangent

RNG = np.random.default_rng(0)


def draw(*shape):
    return jnp.asarray(RNG.normal(size=shape) / (shape[0] ** 0.5 if len(shape) > 1 else 1))


def brute_force(f, params, x, y):
    """(n, m, c, c) from Jacobians by reverse mode, one batch as it is."""
    flat, unravel = ravel_pytree(params)
    left, right = (
        np.asarray(jax.jit(jax.jacrev(lambda p, z=z: f(unravel(p), z).reshape(len(z), -1)))(flat))
        for z in (x, y)
    )
    return np.einsum("iap,jbp->ijab", left, right)


def conv(x, w, dims=("NHWC", "HWIO", "NHWC"), **options):
    options = {"window_strides": (1, 1), "padding": "SAME"} | options
    return jax.lax.conv_general_dilated(x, w, dimension_numbers=dims, **options)


def layer_norm(h, scale, shift):
    h = h - jnp.mean(h, axis=-1, keepdims=True)
    return h * jax.lax.rsqrt(jnp.mean(h**2, axis=-1, keepdims=True) + 1e-5) * scale + shift


def mlp(p, x):
    return jnp.tanh(jnp.tanh(x @ p[0] + p[1][None]) @ p[2].T) @ p[3] / 3


def cnn(p, x):
    h = jnp.tanh(conv(x, p["first"]) + p["shift"][None, None, None])
    h = conv(h, p["second"], window_strides=(2, 1), rhs_dilation=(1, 2), padding=((1, 0), (2, 1)))
    return jnp.mean(jnp.tanh(h), axis=(1, 2)) @ p["head"]


def upsampling(p, x):
    dims = ("NCHW", "OIHW", "NHWC")
    h = conv(x, p, dims, padding=((2, 1), (1, -1)), lhs_dilation=(2, 2))
    return jnp.sum(h**3, axis=(1, 2))


def residual(p, x):
    h = x @ p["in"]
    update = jnp.tanh(layer_norm(h, p["scale"][None], p["shift"][None]) @ p["up"]) @ p["down"]
    return (h + update) @ p["out"]


def attention(p, x):
    q, k, v = (jnp.einsum("ntd,dhe->nthe", x, p[name]) for name in "qkv")
    weights = jax.nn.softmax(jnp.einsum("nthe,nshe->nhts", q, k) / 2, axis=-1)
    mixed = jnp.einsum("nhts,nshe->nthe", weights, v)
    return jnp.einsum("nthe,hed->ntd", mixed, p["o"])[:, 0]


def scan_over_layers(p, x):
    step = lambda h, layer: (jnp.tanh(h @ layer[0] + layer[1][None]), None)  # noqa: E731
    return jax.lax.scan(step, x, p[:2], reverse=True)[0] @ p[2]


def recurrent(p, x):
    """Shared weights in a scan over time that also stacks an output."""

    def step(h, token):
        h = jnp.tanh(h @ p[0] + token @ p[1])
        return h, h

    start = jnp.ones((len(x), 6), x.dtype)
    return jnp.mean(jax.lax.scan(step, start, x.swapaxes(0, 1))[1], axis=0) @ p[2]


def long_scan(p, x):
    return jax.lax.scan(lambda h, _: (jnp.tanh(h @ p), None), x, None, length=100)[0]


def weight_norm(p, x):
    size = jnp.linalg.norm(p["w"], axis=0, keepdims=True)
    return jnp.tanh(x @ (p["w"] / size * p["g"][None])) @ p["out"]


def own_derivative(p, x):
    """A function whose derivative is not that of its formula."""

    @jax.custom_vjp
    def straight(h, w):
        return jnp.round(h @ w)

    straight.defvjp(lambda h, w: (straight(h, w), (h, w)), lambda r, g: (g @ r[1].T, r[0].T @ g))
    return jax.nn.relu(straight(x, p[0])) @ p[1]


# function, parameters, shape of a point, numbers of products, of outer products, of pulled leaves
CASES = {
    "mlp": (mlp, [draw(5, 8), draw(8), draw(7, 8), draw(7, 3)], (5,), 3, 3, 0),
    "factors on the weights": (
        lambda p, x: jnp.tanh(x @ (p[0] / np.sqrt(5))) @ (0.3 * p[1]).T @ (-p[2]),
        [draw(5, 8), draw(7, 8), draw(7)],
        (5,),
        *(3, 2, 0),
    ),
    "shared weights": (
        lambda p, x: jnp.tanh(jnp.tanh(x @ p) @ p) @ p,
        draw(5, 5),
        (5,),
        *(1, 0, 0),
    ),
    "shared wide weights": (
        lambda p, x: jnp.tanh(jnp.tanh(x @ p) @ p)[:, :2],
        draw(9, 9),
        (9,),
        *(1, 1, 0),
    ),
    "tied autoencoder": (lambda p, x: jnp.tanh(x @ p) @ p.T, draw(5, 4), (5,), 2, 0, 1),
    "product and elementwise": (
        lambda p, x: jnp.tanh(x @ p) * p[:1] + jnp.sum(jnp.sin(p)),
        draw(5, 4),
        (5,),
        *(1, 0, 1),
    ),
    "cnn": (
        cnn,
        {"first": draw(3, 3, 2, 4), "shift": draw(4), "second": draw(3, 2, 4, 5)}
        | {"head": draw(5, 3)},
        (5, 6, 2),
        *(3, 1, 0),
    ),
    "depthwise": (
        lambda p, x: jnp.sum(conv(x, p, feature_group_count=2) ** 2, axis=(1, 2)),
        draw(3, 3, 1, 6),
        (4, 4, 2),
        *(1, 0, 0),
    ),
    "upsampling": (upsampling, draw(3, 2, 3, 3), (2, 4, 4), 1, 0, 0),
    "one patch": (
        lambda p, x: conv(x, p, padding="VALID")[:, 0, 0] ** 2,
        draw(3, 3, 2, 3),
        (3, 3, 2),
        1,
        1,
        0,
    ),
    "residual with layer norm": (
        residual,
        {"in": draw(4, 6), "scale": draw(6), "shift": draw(6)}
        | {"up": draw(6, 7), "down": draw(7, 6), "out": draw(6, 2)},
        (4,),
        *(4, 4, 0),
    ),
    "attention": (
        attention,
        {n: draw(4, 2, 3) for n in "qkv"} | {"o": draw(2, 3, 3)},
        (5, 4),
        *(4, 0, 0),
    ),
    "scan over layers": (
        scan_over_layers,
        (draw(3, 5, 5), draw(3, 5), draw(5, 2)),
        (5,),
        *(4, 4, 0),
    ),
    "recurrent": (recurrent, (draw(6, 6), draw(2, 6), draw(6, 2)), (4, 2), 3, 1, 1),
    "long scan": (long_scan, 2 * draw(4, 4), (4,), 0, 0, 0),
    "two batch dimensions": (
        lambda p, x: jnp.sum(jnp.tanh(jnp.einsum("nabkt,abkm->nabmt", x, p)), axis=(1, 2, 4)),
        draw(2, 3, 4, 5),
        (2, 3, 4, 2),
        *(1, 0, 0),
    ),
    "batch dimensions outer": (
        lambda p, x: jnp.sum(jnp.tanh(jnp.einsum("nak,akm->nam", x, p)), axis=2),
        draw(2, 4, 5),
        (2, 4),
        *(1, 1, 0),
    ),
    "stopped": (
        lambda p, x: jnp.tanh(x @ jax.lax.stop_gradient(p[0]) + x @ p[1]) @ p[0],
        [draw(4, 4), draw(4, 4)],
        (4,),
        *(2, 2, 0),
    ),
    "unused leaf and lookup": (
        lambda p, x: jnp.tanh(p["e"][x.astype(int) % 6].reshape(len(x), -1) @ p["w"]),
        {"e": draw(6, 3), "w": draw(9, 2), "unused": draw(3)},
        (3,),
        *(1, 1, 0),
    ),
    "no input": (lambda p, x: jnp.broadcast_to(p[None], (len(x), 3)), draw(3), (4,), 0, 0, 0),
    "weight norm": (weight_norm, {"w": draw(4, 5), "g": draw(5), "out": draw(5)}, (4,), *(2, 0, 2)),
    "low rank update": (
        lambda p, x: jnp.tanh(x @ (p[0] + p[1] @ p[2])) @ p[3],
        [draw(6, 6), draw(6, 1), draw(1, 6), draw(6)],
        (6,),
        *(1, 0, 0),
    ),
    "point by point": (
        lambda p, x: jax.vmap(lambda a: p[1] @ jax.nn.relu(p[0] @ a + p[2]))(x),
        [draw(5, 4), draw(2, 5), draw(5)],
        (4,),
        *(2, 2, 0),
    ),
    "checkpoint": (
        lambda p, x: jax.checkpoint(lambda h: jnp.tanh(h @ p[0]))(x) @ p[1],
        [draw(4, 5), draw(5)],
        (4,),
        *(2, 1, 0),
    ),
    "columns of a leaf": (
        lambda p, x: jnp.tanh(x @ p[:, :3]) @ p[:3, 3:].T @ p[3, :3],
        draw(4, 6),
        (4,),
        *(3, 0, 1),
    ),
    "overlapping rows": (lambda p, x: jnp.tanh(x @ p[:4]) @ p[2:], draw(6, 4), (4,), 2, 0, 1),
    "rows apart": (lambda p, x: jnp.tanh(x @ p[:4]) @ p[4:].T, draw(6, 4), (4,), 2, 2, 0),
    "every other row": (lambda p, x: jnp.tanh(x @ p[::2]) @ p[1::2], draw(8, 4), (4,), 2, 0, 1),
    "a derivative of its own": (own_derivative, [3 * draw(4, 5), draw(5, 2)], (4,), 1, 1, 0),
}


def points(shape, seed, n):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(n, *shape)))


@pytest.mark.parametrize("name", CASES)
def test_every_architecture_is_brute_force(name):
    f, params, shape, *counts = CASES[name]
    x, y = points(shape, 1, 3), points(shape, 2, 2)
    how = structure.plan(f, params, jax.ShapeDtypeStruct((1, *shape), x.dtype), False)
    assert [len(how.products), len(how.outer), len(how.pulled)] == counts
    expected = brute_force(f, params, x, y)
    scale = np.abs(expected).max()
    ours = tangent.empirical_ntk(f, params, x, y)
    close = partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-11 * scale)
    close(ours.reshape(expected.shape), expected)
    close(tangent.empirical_ntk(f, params, x, y, trace=True), np.einsum("ijaa->ij", expected))


@pytest.mark.parametrize("name", ["mlp", "cnn", "recurrent", "tied autoencoder"])
def test_single_precision(name):
    f, params, shape, *_ = CASES[name]
    x = points(shape, 1, 3)
    expected = brute_force(f, params, x, x)
    single = jax.tree.map(lambda a: a.astype(np.float32), params)
    with jax.numpy_dtype_promotion("standard"):
        ours = tangent.empirical_ntk(f, single, x.astype(np.float32))
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["residual with layer norm", "cnn", "scan over layers"])
def test_under_jit_vmap_and_grad(name):
    f, params, shape, *_ = CASES[name]
    x = points(shape, 1, 3)
    many = jax.tree.map(lambda a: jnp.stack([a, 0.5 * a]), params)
    mapped = jax.jit(jax.vmap(lambda p: tangent.empirical_ntk(f, p, x)))(many)
    second = jax.tree.map(lambda a: 0.5 * a, params)
    np.testing.assert_allclose(mapped[1], brute_force(f, second, x, x), rtol=1e-9, atol=1e-12)

    def brute(p):
        flat, unravel = ravel_pytree(p)
        jac = jax.jacrev(lambda q: f(unravel(q), x))(flat)
        return jnp.einsum("iap,jbp->ijab", jac, jac)

    ours, expected = (
        jax.jit(jax.grad(lambda p, k=k: jnp.sum(jnp.sin(k(p)))))(params)
        for k in (lambda p: tangent.empirical_ntk(f, p, x), brute)
    )
    close = partial(np.testing.assert_allclose, rtol=1e-8, atol=1e-10)
    jax.tree.map(close, ours, expected)


def test_a_flat_jaxpr_has_no_calls_and_keeps_custom_derivatives():
    f, params, shape, *_ = CASES["scan over layers"]
    x = points(shape, 1, 1)
    names = {e.primitive.name for e in jaxprs.flat(jax.jit(f), params, x).eqns}
    assert not names & {"scan", "jit", "pjit"}
    f, params, shape, *_ = CASES["a derivative of its own"]
    names = {e.primitive.name for e in jaxprs.flat(f, params, points(shape, 1, 1)).eqns}
    assert any(name.startswith("custom_vjp") for name in names)


def test_the_gradients_of_wide_layers_are_never_formed():
    """Numbers held for one row: inputs and derivatives, not products of widths."""
    params = [jnp.ones((50, 400)), jnp.ones(400), jnp.ones((400, 400)), jnp.ones((400, 10))]
    f = lambda p, x: jnp.tanh(jnp.tanh(x @ p[0] + p[1][None]) @ p[2]) @ p[3]  # noqa: E731
    how = structure.plan(f, params, jax.ShapeDtypeStruct((1, 50), np.float64), False)
    assert how.row == (50 + 400 + 400) + 10 * (400 + 400 + 400 + 10)
