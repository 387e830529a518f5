"""Networks against a NumPy forward pass, against their initial law and the infinite width."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from ntkcourse import infinite, kernels, networks, tangent

KEY = jax.random.key(0)
SCALINGS = ["ntk", "standard", "mean_field"]


def inputs(n, d, seed=0, dtype=np.float64):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(n, d)), dtype)


def forward(layers, x, phi, sigma_w, sigma_b, scaling):
    """The table in the docstring of mlp, neuron by neuron."""
    h = [np.asarray(row) for row in x]
    for number, (weight, bias) in enumerate(layers, start=1):
        fan_in = weight.shape[1]
        scale = {"ntk": sigma_w / np.sqrt(fan_in), "standard": 1.0}.get(scaling)
        if scaling == "mean_field":
            scale = sigma_w / (fan_in if number == len(layers) else np.sqrt(fan_in))
        shift = 1.0 if scaling == "standard" else sigma_b
        if number > 1:
            h = [phi(row) for row in h]
        bias = 0 if bias is None else np.asarray(bias)
        h = [np.array([scale * np.sum(w * row) for w in np.asarray(weight)]) for row in h]
        h = [row + shift * bias for row in h]
    return np.squeeze(np.stack(h), 1) if len(h[0]) == 1 else np.stack(h)


@pytest.mark.parametrize(
    ("widths", "sigma_b"), [((3, 1), 0.7), ((3, 6, 4, 2), 0.7), ((3, 4, 1), 0)]
)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_forward_pass(scaling, widths, sigma_b):
    init, apply = networks.mlp(widths, "erf", 1.3, sigma_b, scaling)
    params = jax.jit(lambda key: init(key=key))(KEY)
    x = inputs(4, widths[0])
    expected = forward(params, x, scipy.special.erf, 1.3, sigma_b, scaling)
    outputs = jax.jit(apply)(params, x)
    assert outputs.shape == ((4,) if widths[-1] == 1 else (4, widths[-1]))
    np.testing.assert_allclose(outputs, expected, rtol=1e-12, atol=1e-14)
    assert [layer.weight.shape for layer in params] == list(zip(widths[1:], widths, strict=False))
    assert all((layer.bias is None) == (sigma_b == 0) for layer in params)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_the_doubled_network_is_the_scaled_difference(scaling):
    init, apply = networks.mlp((3, 5, 2), "tanh", 1.3, 0.7, scaling)
    plus, minus = init(key=KEY), init(key=jax.random.key(1))
    x = inputs(4, 3)
    f, g = (forward(p, x, np.tanh, 1.3, 0.7, scaling) for p in (plus, minus))
    share = 1 / 2 if scaling == "mean_field" else 1 / np.sqrt(2)
    doubled = apply(networks.Doubled(plus, minus), x)
    np.testing.assert_allclose(doubled, share * (f - g), rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_a_width_is_a_narrower_network_in_the_same_arrays(scaling, traced):
    init, apply = networks.mlp((3, 6, 4, 2), "cos", 1.3, 0.7, scaling)
    params, x = init(key=KEY), inputs(4, 3)
    run = jax.jit(lambda w: apply(params, x, width=w)) if traced else partial(apply, params, x)
    for width in (1, 3, 4, 5, 6):
        first, second = min(width, 6), min(width, 4)
        (w1, b1), (w2, b2), (w3, b3) = params
        narrow = [
            (w1[:first], b1[:first]),
            (w2[:second, :first], b2[:second]),
            (w3[:, :second], b3),
        ]
        if scaling == "standard":  # the weights a narrow network would have drawn
            narrow[1] = (narrow[1][0] * np.sqrt(6 / first), narrow[1][1])
            narrow[2] = (narrow[2][0] * np.sqrt(4 / second), narrow[2][1])
        expected = forward(narrow, x, np.cos, 1.3, 0.7, scaling)
        ours = run(width) if traced else run(width=width)
        np.testing.assert_allclose(ours, expected, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(apply(params, x, width=6), apply(params, x), rtol=1e-12)


def test_the_width_of_a_doubled_network():
    init, apply = networks.mlp((3, 6, 1), "tanh", 1.3, 0.0, "mean_field")
    halves, x = (init(key=KEY), init(key=jax.random.key(1))), inputs(4, 3)
    f, g = (apply(half, x, width=2) for half in halves)
    doubled = apply(networks.Doubled(*halves), x, width=2)
    np.testing.assert_allclose(doubled, (f - g) / 2, rtol=1e-12)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_traced_sigmas(scaling, dtype):
    def outputs(sigma_w, sigma_b):
        init, apply = networks.mlp((3, 4, 1), "tanh", sigma_w, sigma_b, scaling)
        return apply(init(key=KEY, dtype=dtype), inputs(2, 3, dtype=dtype))

    traced = jax.jit(outputs)(1.3, 0.4)
    assert traced.dtype == dtype
    np.testing.assert_allclose(traced, outputs(1.3, 0.4), rtol=1e-5)


def test_defaults_are_those_of_a_relu_network():
    init, apply = networks.mlp((3, 5, 1))
    params, x = init(key=KEY), inputs(4, 3)
    assert params[0].bias is None
    expected = forward(params, x, lambda z: np.maximum(z, 0), np.sqrt(2), 0, "ntk")
    np.testing.assert_allclose(apply(params, x), expected, rtol=1e-12)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_initial_variances(scaling):
    widths = (40, 300, 200, 50)
    params = jax.jit(lambda k: networks.mlp(widths, "relu", 1.5, 0.6, scaling)[0](key=k))(KEY)
    for fan_in, layer in zip(widths, params, strict=False):
        expected = (1.5 / np.sqrt(fan_in), 0.6) if scaling == "standard" else (1.0, 1.0)
        for draws, deviation in zip(layer, expected, strict=True):
            draws = np.asarray(draws).ravel() / deviation
            # mean, variance and fourth moment of N(0, 1) have variances 1, 2 and 96 over n
            for power, moment, spread in [(1, 0, 1), (2, 1, 2), (4, 3, 96)]:
                assert abs(np.mean(draws**power) - moment) < 4 * np.sqrt(spread / draws.size)


def test_all_parameters_are_independent_draws():
    params = networks.mlp((4, 4, 4, 4), "relu", 1.0, 1.0)[0](key=KEY)
    draws = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])
    assert len(np.unique(draws)) == draws.size == 3 * (16 + 4)
    other = networks.mlp((4, 4, 4, 4), "relu", 1.0, 1.0)[0](key=jax.random.key(1))
    assert not np.any(params[0].weight == other[0].weight)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_signs_fix_the_size_of_the_output_weights(scaling):
    dtype = np.float32
    init, _ = networks.mlp((3, 400, 2), "relu", 1.5, 0.5, scaling)
    params = init(key=KEY, signs=True, dtype=dtype)
    plain = init(key=KEY, dtype=dtype)
    size = 1.5 / 20 if scaling == "standard" else 1.0
    np.testing.assert_allclose(np.abs(params[1].weight), size, rtol=1e-6)
    assert abs(np.mean(np.sign(params[1].weight))) < 4 / np.sqrt(800)
    assert params[1].weight.dtype == dtype
    np.testing.assert_array_equal(params[0].weight, plain[0].weight)
    np.testing.assert_array_equal(params[1].bias, plain[1].bias)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_antisymmetric_start_is_zero_with_the_same_kernel(scaling):
    dtype = np.float64 if scaling == "standard" else np.float32
    init, apply = networks.mlp((3, 4, 4, 2), "tanh", 1.2, 0.4, scaling)
    x = inputs(5, 3, dtype=dtype)
    doubled = init(key=KEY, antisymmetric=True, dtype=dtype)
    assert np.all(apply(doubled, x) == 0)
    assert apply(doubled, x).dtype == dtype
    factor = 0.5 if scaling == "mean_field" else 1.0
    single = tangent.empirical_ntk(apply, init(key=KEY, dtype=dtype), x)
    both = tangent.empirical_ntk(apply, doubled, x)
    np.testing.assert_allclose(both, factor * single, rtol=1e-5, atol=1e-6)


def test_standard_and_ntk_scaling_are_one_function_at_the_start():
    x = inputs(4, 3)
    outputs = []
    for scaling in ("ntk", "standard"):
        init, apply = networks.mlp((3, 7, 7, 1), "sin", 1.3, 0.5, scaling)
        outputs.append(apply(init(key=KEY), x))
    np.testing.assert_allclose(*outputs, rtol=1e-12)


def test_results_are_in_the_dtype_of_parameters_and_inputs(dtype):
    init, apply = networks.mlp((3, 4, 1), "relu", np.sqrt(2.0), np.float64(0.5))
    params = init(key=KEY, dtype=dtype)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {dtype}
    assert apply(params, inputs(2, 3, dtype=dtype)).dtype == dtype
    assert init(key=KEY)[0].weight.dtype == np.float64


def test_the_mean_square_output_is_the_nngp():
    """At depth 2, E f(x) f(y) is the infinite-width covariance at every width."""
    init, apply = networks.mlp((3, 10, 1), "relu", 1.3, 0.5)
    x, draws = inputs(3, 3), 20_000
    f = jax.jit(jax.vmap(lambda k: apply(init(key=k), x)))(jax.random.split(KEY, draws))
    products = np.einsum("si,sj->sij", f, f)
    band = 4 * products.std(0) / np.sqrt(draws)
    expected = kernels.gram(infinite.nngp(2, "relu", 1.3, 0.5), x)
    assert np.all(np.abs(products.mean(0) - expected) < band)


@pytest.mark.parametrize(("activation", "depth"), [("relu", 3), ("erf", 2)])
def test_wide_networks_approach_the_infinite_kernel_like_one_over_root_n(activation, depth):
    x, y = inputs(3, 4), inputs(2, 4, seed=1)
    expected = kernels.gram(infinite.ntk(depth, activation, 1.4, 0.3), x, y)
    widths, errors = [32, 128, 512], []
    for width in widths:
        init, apply = networks.mlp((4, *[width] * (depth - 1), 1), activation, 1.4, 0.3)
        finite = jax.jit(
            partial(
                jax.lax.map, lambda k, i=init, a=apply: tangent.empirical_ntk(a, i(key=k), x, y)
            )
        )(jax.random.split(KEY, 24))
        scale = np.abs(expected).max()
        errors.append(np.sqrt(np.mean((finite - expected[None]) ** 2)) / scale)
    rate = np.polyfit(np.log(widths), np.log(errors), 1)[0]
    assert -0.6 < rate < -0.4
    assert errors[-1] < 0.1


def test_mean_field_scaling_divides_the_kernel_by_the_width():
    x, width = inputs(3, 4), 64
    ours = []
    for scaling in ("ntk", "mean_field"):
        init, apply = networks.mlp((4, width, 1), "relu", 1.4, 0.0, scaling)
        ours.append(tangent.empirical_ntk(apply, init(key=KEY), x))
    np.testing.assert_allclose(width * ours[1], ours[0], rtol=1e-12)


def test_centred_starts_at_zero_and_keeps_gradient_and_kernel():
    init, apply = networks.mlp((3, 5, 2), "tanh", 1.3, 0.4)
    start, later, x = init(key=KEY), init(key=jax.random.key(1)), inputs(4, 3)
    f = networks.centred(apply, start)
    assert np.all(f(start, x) == 0)
    np.testing.assert_allclose(f(later, x), apply(later, x) - apply(start, x), rtol=1e-14)
    np.testing.assert_allclose(
        tangent.empirical_ntk(f, later, x), tangent.empirical_ntk(apply, later, x), rtol=1e-12
    )
    # the subtracted function is a constant even where one differentiates by theta_0
    through = jax.grad(lambda p: jnp.sum(networks.centred(apply, p)(p, x)))(start)
    plain = jax.grad(lambda p: jnp.sum(apply(p, x)))(start)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-12), through, plain)


def test_init_and_apply_work_inside_jit_and_vmap():
    init, apply = networks.mlp((3, 5, 1), "relu", 1.0, 0.1)
    keys, x = jax.random.split(KEY, 4), inputs(2, 3)
    together = jax.jit(jax.vmap(lambda k: apply(init(key=k), x)))(keys)
    apart = np.stack([apply(init(key=k), x) for k in keys])
    np.testing.assert_allclose(together, apart, rtol=1e-12)


def test_integer_inputs_are_converted(user):
    init, apply = networks.mlp((2, 5, 1))
    params = init(key=KEY)
    with jax.numpy_dtype_promotion("standard"):
        assert apply(params, jnp.array([[1, 2]])) == apply(params, jnp.array([[1.0, 2.0]]))


@pytest.mark.usefixtures("user")
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (((3,),), ValueError, r"expected widths \(d, n_1, ..., out\), got \(3,\)"),
        (((),), ValueError, r"expected widths \(d, n_1, ..., out\), got \(\)"),
        ((3,), ValueError, r"expected widths \(d, n_1, ..., out\), got 3"),
        (((3, 0, 1),), ValueError, "expected each width >= 1, got 0"),
        (((3, 2.0, 1),), TypeError, "expected a whole number for each width, got 2.0"),
        (((3, 1), "swish"), ValueError, "expected an activation among"),
        (((3, 1), "relu", 0.0), ValueError, "expected sigma_w > 0, got 0.0"),
        (((3, 1), "relu", -1.0), ValueError, "expected sigma_w > 0, got -1.0"),
        (((3, 1), "relu", 1.0, -0.1), ValueError, "expected sigma_b >= 0, got -0.1"),
        (((3, 1), "relu", 1.0, 0.0, "ntp"), ValueError, "expected scaling ntk, standard or mean"),
    ],
)
def test_bad_networks(arguments, error, message):
    with pytest.raises(error, match=message):
        networks.mlp(*arguments)


@pytest.mark.usefixtures("user")
def test_bad_keys_and_inputs():
    init, apply = networks.mlp((3, 4, 1))
    with pytest.raises(ValueError, match="expected a key for init, got None"):
        init(key=None)
    with pytest.raises(TypeError, match="key"):
        init()
    params = init(key=KEY)
    for x in (jnp.ones(3), jnp.ones((2, 4)), jnp.ones((1, 2, 3))):
        with pytest.raises(ValueError, match=r"expected x of shape \(n, 3\), got"):
            apply(params, x)
    with pytest.raises(ValueError, match="expected a key for init, got int 0"):
        init(key=0)
    with pytest.raises(TypeError, match=r"expected apply\(params, x\) with params from init"):
        apply(jnp.ones((2, 3)), params)
    for width, error in ((0, ValueError), (5, ValueError), (2.0, TypeError)):
        with pytest.raises(error, match="width"):
            apply(params, jnp.ones((2, 3)), width=width)
