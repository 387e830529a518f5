"""The tangent kernel, the linearisation and the norms against dense matrices."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from ntkcourse import kernels, networks, structure, tangent, training

KEY = jax.random.key(0)
NAN = float("nan")


def inputs(n, d, seed=0, dtype=np.float64):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(n, d)), dtype)


def jacobian(apply, params, x):
    """All derivatives (n, c, p), forward mode on a flat vector of parameters."""
    flat, unravel = ravel_pytree(params)
    out = jax.jit(jax.jacfwd(lambda p: apply(unravel(p), x).reshape(len(x), -1)))(flat)
    return np.asarray(out)


def dense_kernel(apply, params, x, y):
    """(n, m, c, c) by the definition."""
    both = jacobian(apply, params, jnp.concatenate([x, y]))
    left, right = both[: len(x)], both[len(x) :]
    return np.tensordot(left, right, axes=(2, 2)).transpose(0, 2, 1, 3)


def general(apply):
    """The same function without the fast way to its kernel."""
    return lambda params, x: apply(params, x)


def convolutional(params, x):
    """A network of another make: images, a dictionary of parameters, a residual connection."""
    dims = jax.lax.conv_dimension_numbers(x.shape, params["filter"].shape, ("NHWC", "HWIO", "NHWC"))
    z = jax.lax.conv_general_dilated(x, params["filter"], (1, 1), "SAME", dimension_numbers=dims)
    h = x + jnp.tanh(z + params["shift"][None, None, None])
    return jnp.mean(h, axis=(1, 2)) @ params["head"]["weight"]


def convolutional_params(outputs):
    rng = np.random.default_rng(1)
    shapes = {"filter": (3, 3, 2, 2), "shift": (2,), "head": {"weight": (2, *outputs)}}
    is_shape = lambda v: isinstance(v, tuple)  # noqa: E731
    return jax.tree.map(lambda s: jnp.asarray(rng.normal(size=s)), shapes, is_leaf=is_shape)


@pytest.mark.parametrize("scaling", ["ntk", "standard", "mean_field"])
@pytest.mark.parametrize(
    ("widths", "sigma_b", "doubled"),
    [
        ((3, 2), 0.6, False),
        ((3, 5, 1), 0.0, True),
        ((3, 5, 4, 3), 0.6, True),
    ],
)
def test_layerwise_kernel_is_the_general_one(scaling, widths, sigma_b, doubled):
    init, apply = networks.mlp(widths, "tanh", 1.3, sigma_b, scaling)
    x, y, params = inputs(4, 3), inputs(3, 3, seed=1), init(key=KEY)
    if doubled:  # two different halves, as after some training
        params = networks.Doubled(params, init(key=jax.random.key(1)))
    fast = tangent.empirical_ntk(apply, params, x, y)
    slow = tangent.empirical_ntk(general(apply), params, x, y)
    expected = dense_kernel(apply, params, x, y).reshape(fast.shape)
    np.testing.assert_allclose(fast, expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(slow, expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(fast, slow, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("activation", ["relu", jnp.sinh])
def test_layerwise_kernel_for_other_activations(activation):
    init, apply = networks.mlp((3, 5, 5, 1), activation, 1.1, 0.2)
    params, x = init(key=KEY), inputs(5, 3)
    expected = dense_kernel(apply, params, x, x)[:, :, 0, 0]
    np.testing.assert_allclose(tangent.empirical_ntk(apply, params, x), expected, rtol=1e-10)


def test_kernel_against_finite_differences_of_numpy():
    init, apply = networks.mlp((2, 3, 1), "tanh", 1.3, 0.6)
    params, x = init(key=KEY), inputs(3, 2)
    flat, unravel = ravel_pytree(params)
    flat = np.asarray(flat)

    def f(p):
        (w1, b1), (w2, b2) = unravel(jnp.asarray(p))
        hidden = np.tanh(1.3 / np.sqrt(2) * np.asarray(x) @ np.asarray(w1).T + 0.6 * np.asarray(b1))
        return 1.3 / np.sqrt(3) * hidden @ np.asarray(w2)[0] + 0.6 * np.asarray(b2)[0]

    h = 1e-5
    slopes = np.stack([(f(flat + h * e) - f(flat - h * e)) / (2 * h) for e in np.eye(flat.size)])
    np.testing.assert_allclose(
        tangent.empirical_ntk(apply, params, x), slopes.T @ slopes, rtol=1e-8
    )


@pytest.mark.parametrize("outputs", [(), (3,)])
def test_kernel_of_a_foreign_network(outputs):
    params = convolutional_params(outputs)
    x, y = (jnp.asarray(np.random.default_rng(s).normal(size=(3 - s, 4, 4, 2))) for s in (0, 1))
    expected = dense_kernel(convolutional, params, x, y)
    ours = tangent.empirical_ntk(convolutional, params, x, y)
    assert ours.shape == (3, 2) + 2 * outputs
    np.testing.assert_allclose(ours, expected.reshape(ours.shape), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("make", [lambda f: f, general])
def test_trace_sums_the_diagonal_blocks(make):
    init, apply = networks.mlp((3, 5, 4), "tanh")
    params, x, y = init(key=KEY), inputs(4, 3), inputs(2, 3, seed=1)
    blocks = dense_kernel(apply, params, x, y)
    ours = tangent.empirical_ntk(make(apply), params, x, y, trace=True)
    np.testing.assert_allclose(ours, np.trace(blocks, axis1=2, axis2=3), rtol=1e-10)
    init, apply = networks.mlp((3, 5, 1), "tanh")
    scalar = tangent.empirical_ntk(make(apply), init(key=KEY), x, trace=True)
    np.testing.assert_array_equal(scalar, tangent.empirical_ntk(make(apply), init(key=KEY), x))


@pytest.mark.parametrize("trace", [False, True])
@pytest.mark.parametrize("rows", [0, 2, 3, 100])
def test_blocks_do_not_change_the_kernel_and_bound_the_memory(monkeypatch, rows, trace):
    """With ``rows`` rows in a block; those of y are kept when they fit, else computed again."""
    init, apply = networks.mlp((3, 4, 2), "tanh", 1.3, 0.2)
    params, x, y = init(key=KEY), inputs(7, 3), inputs(4, 3, seed=1)
    point = jax.ShapeDtypeStruct((1, 3), x.dtype)
    row = structure.plan(apply, params, point, trace).row
    sizes, original = [], structure.factors

    def counted(how, params, x, trace):
        sizes.append(len(x))
        return original(how, params, x, trace)

    monkeypatch.setattr(structure, "factors", counted)
    monkeypatch.setattr(tangent, "BUDGET", rows * (2 * row + 1))
    for other in (y, None):
        blocked = tangent.empirical_ntk(apply, params, x, other, trace=trace)
        expected = dense_kernel(apply, params, x, x if other is None else other)
        expected = np.einsum("ijaa->ij", expected) if trace else expected
        np.testing.assert_allclose(blocked, expected, rtol=1e-10, atol=1e-12)
    assert max(sizes) == {0: 1, 2: 2, 3: 3, 100: 7}[rows]
    if rows == 100:
        # each gradient once; a row alone is looked at for its shape only
        assert [size for size in sizes if size > 1] == [7, 4, 7]


def test_a_tile_of_pairs_is_bounded_too(monkeypatch):
    init, apply = networks.mlp((3, 4, 5), "tanh")
    params, x = init(key=KEY), inputs(7, 3)
    sizes, original = [], tangent.contract

    def counted(left, right):
        out = original(left, right)
        sizes.append(out.size)
        return out

    monkeypatch.setattr(tangent, "contract", counted)
    monkeypatch.setattr(tangent, "BUDGET", 3000)
    ours = tangent.empirical_ntk(apply, params, x)
    assert 3 * max(sizes) <= 3000 < 3 * ours.size
    np.testing.assert_allclose(ours, dense_kernel(apply, params, x, x), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("wrap", [general, lambda f: partial(f), lambda f: partial(f, width=None)])
def test_every_way_to_write_a_function_has_the_fast_kernel(wrap):
    init, apply = networks.mlp((3, 9, 9, 2), "tanh", 1.2, 0.3)
    params, x = init(key=KEY), inputs(4, 3)
    expected = dense_kernel(apply, params, x, x)
    point = jax.ShapeDtypeStruct((1, 3), x.dtype)
    for f in (wrap(apply), networks.centred(wrap(apply), init(key=jax.random.key(1)))):
        np.testing.assert_allclose(tangent.empirical_ntk(f, params, x), expected, rtol=1e-10)
        assert len(structure.plan(f, params, point, False).outer) == 3


def test_a_partial_with_other_arrays_is_not_compiled_anew():
    traced = []

    def scaled(mode, scale, p, x):
        traced.append(mode)
        return scale * jnp.tanh(x @ p)

    p, x = jnp.ones(3), inputs(4, 3)
    first = tangent.empirical_ntk(partial(scaled, "a", jnp.array(1.0)), p, x)
    count = len(traced)
    second = tangent.empirical_ntk(partial(scaled, "a", jnp.array(2.0)), p, x)
    assert len(traced) == count
    np.testing.assert_allclose(second, 4 * first, rtol=1e-12)
    tangent.empirical_ntk(partial(scaled, "b", jnp.array(2.0)), p, x)
    assert traced[-1] == "b"


def test_a_traced_width_in_a_partial_or_a_closure():
    init, apply = networks.mlp((3, 6, 5, 1), "tanh", 1.3, 0.2)
    params, x, widths = init(key=KEY), inputs(4, 3), jnp.array([2, 4, 6])
    by_partial = jax.vmap(lambda w: tangent.empirical_ntk(partial(apply, width=w), params, x))
    closure = jax.vmap(
        lambda w: tangent.empirical_ntk(lambda p, a: apply(p, a, width=w), params, x)
    )
    for i, width in enumerate((2, 4, 6)):
        narrow = lambda p, a, w=width: apply(p, a, width=w)  # noqa: E731
        expected = dense_kernel(narrow, params, x, x)[:, :, 0, 0]
        for kernels_of in (by_partial, closure):
            np.testing.assert_allclose(kernels_of(widths)[i], expected, rtol=1e-10)


def test_kernel_is_a_kernel_like_any_other():
    init, apply = networks.mlp((3, 5, 1), "tanh", 1.3, 0.2)
    params, x, y = init(key=KEY), inputs(4, 3), inputs(2, 3, seed=1)
    k = tangent.kernel(apply, params)
    expected = dense_kernel(apply, params, x, y)[:, :, 0, 0]
    np.testing.assert_allclose(kernels.gram(k, x, y), expected, rtol=1e-10)
    np.testing.assert_allclose(k(x[1], y[0]), expected[1, 0], rtol=1e-10)
    both = kernels.gram(k + 2.0 * kernels.linear(), x, y)
    np.testing.assert_allclose(both, expected + 2 * x @ y.T, rtol=1e-10)
    moved = jax.jit(lambda k, a: k(a, a))(k, x[0])
    np.testing.assert_allclose(moved, k(x[0], x[0]), rtol=1e-12)
    init, apply = networks.mlp((3, 5, 2), "tanh")
    params = init(key=KEY)
    trace = np.einsum("ijaa->ij", dense_kernel(apply, params, x, x))
    np.testing.assert_allclose(
        kernels.gram(tangent.kernel(apply, params, trace=True), x), trace, rtol=1e-10
    )
    with pytest.raises(ValueError, match=r"expected apply with one output, got 2; .*trace=True"):
        kernels.gram(tangent.kernel(apply, params), x)


@pytest.mark.usefixtures("user")
def test_the_order_of_arguments_of_a_kernel():
    with pytest.raises(TypeError, match="expected apply, a function"):
        tangent.kernel([jnp.ones(3)], networks.mlp((3, 1))[1])


def test_monte_carlo_is_the_mean_and_its_standard_error():
    init, apply = networks.mlp((3, 5, 1), "relu", 1.3, 0.2)
    x, y, keys = inputs(3, 3), inputs(2, 3, seed=1), jax.random.split(KEY, 5)
    mean, error = tangent.monte_carlo(init, apply, x, y, keys=keys)
    draws = np.stack([dense_kernel(apply, init(key=k), x, y)[:, :, 0, 0] for k in keys])
    np.testing.assert_allclose(mean, draws.mean(0), rtol=1e-10)
    np.testing.assert_allclose(error, draws.std(0, ddof=1) / np.sqrt(5), rtol=1e-10)
    for bad in (KEY, keys[:1]):
        with pytest.raises(ValueError, match="expected at least two keys"):
            tangent.monte_carlo(init, apply, x, keys=bad)


@pytest.mark.parametrize("make", [lambda f: f, general])
def test_kernel_as_an_observable(make):
    dtype = np.float64 if make is general else np.float32
    init, apply = networks.mlp((3, 5, 1), "tanh")
    params, x = init(key=KEY, dtype=dtype), inputs(4, 3, dtype=dtype)
    kernel = lambda p: tangent.empirical_ntk(make(apply), p, x)  # noqa: E731
    run = training.descend(
        lambda p: jnp.sum(apply(p, x) ** 2) / 2, params, steps=2, learning_rate=0.1, observe=kernel
    )
    assert run.history.dtype == kernel(params).dtype == dtype
    assert run.history.shape == (3, 4, 4)
    np.testing.assert_allclose(run.history[0], kernel(params), rtol=1e-5)
    np.testing.assert_allclose(run.history[-1], kernel(run.params), rtol=1e-4)


@pytest.mark.parametrize("outputs", [1, 2])
def test_linearize_is_the_tangent_at_theta_0(outputs):
    init, apply = networks.mlp((3, 5, outputs), "tanh", 1.3, 0.4)
    start, x = init(key=KEY, antisymmetric=True), inputs(4, 3)
    other = init(key=jax.random.key(1), antisymmetric=True)
    f_lin = tangent.linearize(apply, start)
    np.testing.assert_array_equal(f_lin(start, x), apply(start, x))
    flat, step = (np.asarray(ravel_pytree(p)[0]) for p in (start, other))
    expected = apply(start, x).reshape(4, -1) + jacobian(apply, start, x) @ (step - flat)
    np.testing.assert_allclose(f_lin(other, x).reshape(4, -1), expected, rtol=1e-10, atol=1e-12)
    frozen = tangent.empirical_ntk(f_lin, other, x)
    np.testing.assert_allclose(frozen, tangent.empirical_ntk(apply, start, x), rtol=1e-10)


def test_linearize_errs_by_the_square_of_the_step():
    init, apply = networks.mlp((3, 5, 1), "tanh")
    start, way, x = init(key=KEY), init(key=jax.random.key(1)), inputs(4, 3)
    errors = []
    for h in (1e-2, 5e-3):
        moved = jax.tree.map(lambda a, b, h=h: a + h * b, start, way)
        errors.append(np.abs(apply(moved, x) - tangent.linearize(apply, start)(moved, x)))
    np.testing.assert_allclose(errors[0] / errors[1], 4, rtol=0.05)


def test_linearize_is_exact_for_a_linear_model():
    f = lambda p, x: x @ p["a"] + p["b"]  # noqa: E731
    start = {"a": jnp.array([1.0, 2.0]), "b": jnp.array(0.5)}
    other = {"a": jnp.array([-3.0, 0.1]), "b": jnp.array(-2.0)}
    x = inputs(3, 2)
    np.testing.assert_allclose(tangent.linearize(f, start)(other, x), f(other, x), rtol=1e-14)


@pytest.mark.parametrize("widths", [(3, 5, 1), (3, 5, 2)])
def test_jacobian_norm(widths):
    dtype = np.float64 if widths[-1] == 1 else np.float32
    init, apply = networks.mlp(widths, "tanh", 1.3, 0.3)
    params, x = init(key=KEY, dtype=dtype), inputs(4, 3, dtype=dtype)
    dense = jacobian(apply, params, x).reshape(4 * widths[-1], -1)
    norm = tangent.jacobian_norm(apply, params, x)
    assert norm.dtype == dtype
    np.testing.assert_allclose(norm, np.linalg.norm(dense, 2), rtol=1e-5)
    np.testing.assert_allclose(tangent.jacobian_norm(general(apply), params, x), norm, rtol=1e-5)


def hessians(apply, params, x):
    flat, unravel = ravel_pytree(params)
    dense = jax.jit(jax.hessian(lambda p: apply(unravel(p), x).ravel()))(flat)
    return np.asarray(dense)


@pytest.mark.parametrize(("outputs", "dtype"), [(1, np.float32), (2, np.float64)])
def test_hessian_norm(outputs, dtype):
    init, apply = networks.mlp((3, 5, outputs), "tanh", 1.3, 0.3)
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), init(key=KEY))
    x = inputs(3, 3, dtype=dtype)[jnp.array([0, 2, 1])]
    norms = [np.linalg.norm(h, 2) for h in hessians(apply, params, x)]
    assert np.argmax(norms) // outputs == 1  # neither the first nor the last point
    ours = tangent.hessian_norm(apply, params, x)
    assert ours.dtype == dtype
    np.testing.assert_allclose(ours, max(norms), rtol=1e-9 if dtype == np.float64 else 1e-4)
    assert ours == tangent.hessian_norm(apply, params, x)


@pytest.mark.parametrize(
    "spectrum", [[2.0, 1.0, -5.0, 0.5], [-5, 5, 1, 0], [1, 1, 1], [-3, 0, 0, 0, 0], [-2], [1, -4]]
)
def test_hessian_norm_of_a_quadratic(spectrum):
    """Also when the largest eigenvalue is negative, multiple or alone, and for 1 and 2 numbers."""
    n = len(spectrum)
    q = np.linalg.qr(np.random.default_rng(0).normal(size=(n, n)))[0]
    matrix = jnp.asarray(q @ np.diag(spectrum) @ q.T)
    f = lambda p, x: x[:, 0] * (p @ matrix @ p) / 2  # noqa: E731
    norm = tangent.hessian_norm(f, jnp.ones(n), jnp.ones((1, 1)))
    np.testing.assert_allclose(norm, max(map(abs, spectrum)), rtol=1e-9)


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_hessian_norm_of_a_linear_model_is_zero(n):
    assert tangent.hessian_norm(lambda p, x: x @ p, jnp.ones(n), inputs(2, n)) == 0


@pytest.mark.usefixtures("user")
@pytest.mark.parametrize(
    "function", [tangent.empirical_ntk, tangent.jacobian_norm, tangent.hessian_norm]
)
@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.ones(3), r"expected x of shape \(n, d\), one point per row, got shape \(3,\)"),
        (np.ones((0, 3)), "expected at least one point in x"),
        ([[1.0, NAN, 0.0]], "expected finite x"),
        (np.ones((2, 4)), r"expected x of shape \(n, 3\), got"),
    ],
)
def test_bad_inputs(function, x, message):
    init, apply = networks.mlp((3, 4, 1), "tanh")
    with pytest.raises(ValueError, match=message):
        function(apply, init(key=KEY), x)


@pytest.mark.usefixtures("user")
def test_bad_pairs_and_outputs():
    init, apply = networks.mlp((3, 4, 1), "tanh")
    params, x = init(key=KEY), inputs(2, 3)
    with pytest.raises(ValueError, match=r"expected y with points of shape \(3,\), got points of"):
        tangent.empirical_ntk(apply, params, x, jnp.ones((2, 4)))
    with pytest.raises(ValueError, match="expected finite y"):
        tangent.empirical_ntk(apply, params, x, jnp.full((2, 3), NAN))
    integer = tangent.empirical_ntk(apply, params, [[1, 2, 3]])
    assert integer == tangent.empirical_ntk(apply, params, jnp.array([[1.0, 2.0, 3.0]]))
    for bad in (lambda p, a: a[:, :, None] * p, lambda p, a: jnp.sum(a) * p, lambda p, a: a[0] * p):
        with pytest.raises(
            ValueError, match=r"expected apply to map \(1, d\) to \(1,\) or \(1, c\)"
        ):
            tangent.empirical_ntk(bad, jnp.array(1.0), x)
    with pytest.raises(ValueError, match="expected parameters to differentiate by, got none"):
        tangent.empirical_ntk(lambda p, a: a[:, 0], [], x)
