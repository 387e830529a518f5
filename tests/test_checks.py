"""Every check: what it lets through, what it converts, and what it says when it refuses."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntkcourse import checks

pytestmark = pytest.mark.usefixtures("user")
NAN, INF = float("nan"), float("inf")


def test_known_tells_arrays_from_traced_values():
    seen = []
    jax.jit(lambda v: seen.append(checks.known(v)) or v)(jnp.ones(2))
    jax.vmap(lambda v: seen.append(checks.known(v)) or v)(jnp.ones(2))
    assert seen == [False, False]
    assert all(checks.known(v) for v in (1.0, np.ones(2), jnp.ones(2), "a", None))


@pytest.mark.parametrize("value", [[1, 2], np.array([1, 2], np.int8), jnp.array([1, 2])])
def test_finite_converts_integers(value):
    assert checks.finite(value, "x").dtype == np.float64
    assert checks.finite(value, "x", jnp.float32).dtype == np.float32
    assert checks.finite(value, "x").tolist() == [1, 2]


def test_finite_keeps_floats_and_takes_booleans(dtype):
    assert checks.finite(np.array([0.5], dtype), "x").dtype == dtype
    assert checks.finite(jnp.array([0.5], dtype), "x", "float16").dtype == dtype
    assert isinstance(checks.finite([0.5], "x"), jax.Array)
    assert checks.finite([True, False], "x").tolist() == [1, 0]
    assert checks.finite(3, "x").shape == ()


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (["a"], TypeError, "expected q to be an array of numbers, got dtype <U1"),
        (None, TypeError, "expected q to be an array of numbers, got dtype object"),
        ([np.ones(2), np.ones(3)], TypeError, "expected q to be an array, got list"),
        ([1j], TypeError, "expected real q, got dtype complex128"),
        (jnp.array([1j]), TypeError, "expected real q, got dtype complex128"),
        ([0.0, NAN], ValueError, "expected finite q, got NaN or infinity"),
        ([-INF, 0.0], ValueError, "expected finite q, got NaN or infinity"),
        (jnp.array([NAN]), ValueError, "expected finite q, got NaN or infinity"),
    ],
)
def test_finite_refuses(value, error, message):
    with pytest.raises(error, match=message):
        checks.finite(value, "q")


def test_points_keep_their_shape_and_follow_like():
    x = jnp.ones((3, 2), jnp.float32)
    assert checks.points(x) is x
    assert checks.points([[1, 2]], "y", like=x).dtype == np.float32
    assert checks.points(np.ones((2, 4, 4, 3))).shape == (2, 4, 4, 3)
    assert checks.points(np.ones((1, 1))).shape == (1, 1)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (1.0, r"expected z of shape \(n, d\), one point per row, got shape \(\)$"),
        ([1.0, 2.0], r"got shape \(2,\); did you mean z\[:, None\]\?"),
        (np.ones((0, 2)), r"expected at least one point in z, got shape \(0, 2\)"),
        (np.ones((2, 0)), r"expected at least one point in z, got shape \(2, 0\)"),
        (np.ones((4, 3)), r"expected z with points of shape \(2,\), got points of \(3,\)"),
        (np.ones((4, 2, 1)), r"expected z with points of shape \(2,\), got points of \(2, 1\)"),
        ([[1.0, NAN]], "expected finite z"),
    ],
)
def test_points_refuses(x, message):
    with pytest.raises(ValueError, match=message):
        checks.points(x, "z", like=jnp.ones((5, 2)))


def test_pair():
    x, y = checks.pair([1, 2], jnp.array([0.5, 1.0]))
    assert x.tolist() == [1, 2]
    assert y.tolist() == [0.5, 1]
    assert x.dtype == np.float64
    for a, b in [([1.0], [1.0, 2.0]), (1.0, 1.0), ([], [])]:
        with pytest.raises(ValueError, match=r"expected two points of one shape, \(d,\) each, got"):
            checks.pair(a, b)
    with pytest.raises(ValueError, match="expected finite y"):
        checks.pair([1.0], [NAN])


def test_targets(dtype):
    x = jnp.ones((3, 2), dtype)
    assert checks.targets([1, 2, 3], x).dtype == dtype
    assert checks.targets(np.array([True, False, True]), x).dtype == dtype
    assert checks.targets(jnp.ones((3, 4)), x).shape == (3, 4)
    for bad in (1.0, np.ones(2), np.ones((2, 3)), np.ones((3, 1, 1))):
        with pytest.raises(ValueError, match=r"expected q of shape \(3,\) or \(3, c\), got shape"):
            checks.targets(bad, x, "q")
    with pytest.raises(ValueError, match="expected finite y"):
        checks.targets([0, 1, INF], x)


def test_number_becomes_one_of_python():
    for value in (2, 2.0, np.float32(2), np.float64(2), jnp.float32(2), np.int8(2), np.array(2.0)):
        assert type(checks.number(value, "v", above=1, least=2)) in (int, float)
        assert checks.number(value, "v", above=1, least=2) == 2
    assert checks.number(-1.5, "v") == -1.5


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (0.0, ValueError, "expected v > 0, got 0.0"),
        (-1, ValueError, "expected v > 0, got -1"),
        (0.25, ValueError, "expected v >= 0.5, got 0.25"),
        (NAN, ValueError, "expected a finite number for v, got nan"),
        (INF, ValueError, "expected a finite number for v, got inf"),
        ("1", TypeError, "expected a number for v, got '1'"),
        (None, TypeError, "expected a number for v, got None"),
        (True, TypeError, "expected a number for v, got True"),
        (1j, TypeError, "expected a number for v, got 1j"),
        ([1.0], TypeError, r"expected a number for v, got \[1.0\]"),
    ],
)
def test_number_refuses(value, error, message):
    with pytest.raises(error, match=message):
        checks.number(value, "v", above=0, least=0.5)


def test_count():
    assert checks.count(1, "n") == 1
    assert type(checks.count(np.int32(3), "n")) is int
    assert checks.count(0, "n", least=0) == 0
    with pytest.raises(ValueError, match="expected n >= 1, got 0"):
        checks.count(0, "n")
    with pytest.raises(ValueError, match="expected n >= 3, got 2"):
        checks.count(2, "n", least=3)
    for bad in (2.0, "2", True, None, np.ones(1, int)):
        with pytest.raises(TypeError, match="expected a whole number for n, got"):
            checks.count(bad, "n")


def test_times(dtype):
    assert checks.times(1, dtype).dtype == dtype
    assert checks.times(INF, dtype) == INF
    assert checks.times([0, 2.5, 1], dtype).tolist() == [0, 2.5, 1]
    for bad in (-1e-3, NAN, [1.0, -1.0], [0.0, NAN]):
        with pytest.raises(ValueError, match="expected times t >= 0, got"):
            checks.times(bad, dtype)
    with pytest.raises(ValueError, match=r"expected a time or a list of times, got shape \(1, 1\)"):
        checks.times([[1.0]], dtype)


def test_increasing(dtype):
    assert checks.increasing([0, 1, 3], dtype).dtype == dtype
    assert checks.increasing([0.5], dtype).tolist() == [0.5]
    for bad in ([1.0, 0.0], [0.0, 0.0], [0.0, 2.0, 1.0]):
        with pytest.raises(ValueError, match="expected increasing times, got"):
            checks.increasing(bad, dtype)
    for bad in (1.0, []):
        with pytest.raises(ValueError, match="expected a list of times, got shape"):
            checks.increasing(bad, dtype)
    with pytest.raises(ValueError, match="expected times t >= 0"):
        checks.increasing([-1.0, 1.0], dtype)
    with pytest.raises(ValueError, match="expected finite times"):
        checks.increasing([0.0, INF], dtype)


def test_weights(dtype):
    x = jnp.ones((4, 1), dtype)
    equal = checks.weights(None, x)
    assert equal.dtype == dtype
    assert equal.tolist() == [0.25] * 4
    given = checks.weights([1, 0, 0, 0], x)
    assert given.dtype == dtype
    assert given.tolist() == [1, 0, 0, 0]
    assert checks.weights(np.array([0.1, 0.2, 0.3, 0.4 + 9e-7]), x).shape == (4,)


@pytest.mark.parametrize(
    ("a", "message"),
    [
        ([0.5, 0.5], r"expected a of shape \(3,\), got shape \(2,\)"),
        ([[0.2], [0.3], [0.5]], r"expected a of shape \(3,\), got shape \(3, 1\)"),
        ([1.5, -0.5, 0.0], "expected a >= 0, got -0.5"),
        ([0.5, 0.25, 0.5], "expected a that sum to 1, got the sum 1.25"),
        ([0.5, 0.25, 0.0], "expected a that sum to 1, got the sum 0.75"),
        ([0.5, 0.25, 0.25 + 2e-6], "expected a that sum to 1"),
        ([0.5, 0.25, 0.25 - 2e-6], "expected a that sum to 1"),
        ([0.5, 0.5, NAN], "expected finite a"),
    ],
)
def test_weights_refuses(a, message):
    with pytest.raises(ValueError, match=message):
        checks.weights(a, jnp.ones((3, 2)), "a")


def test_weights_in_float32_may_round():
    x = jnp.ones((1000, 1), jnp.float32)
    a = np.full(1000, 1e-3, np.float32)
    assert checks.weights(a * np.float32(1 + 1e-4), x).shape == (1000,)  # 1000 eps = 1.2e-4
    for factor in (1 - 1.4e-4, 1 + 1.4e-4):
        with pytest.raises(ValueError, match="sum to 1"):
            checks.weights(a * np.float32(factor), x)


def test_random_key():
    key = jax.random.key(0)
    assert checks.random_key(key, "noise") is key
    with pytest.raises(
        ValueError, match=r"expected a key for noise, got None; pass key=jax.random"
    ):
        checks.random_key(None, "noise")


def test_traced_values_pass_and_only_their_shapes_are_checked():
    @jax.jit
    def pass_through(x, y, a, t, number):
        checks.points(x)
        checks.targets(y, x)
        checks.weights(a, x)
        checks.times(t, x.dtype)
        checks.increasing(t, x.dtype)
        checks.number(number, "number", above=0)
        return checks.finite(x, "x")

    bad = jnp.array([NAN, -1.0])
    assert pass_through(bad[:, None], bad, bad, bad, -1.0).shape == (2, 1)
    with pytest.raises(ValueError, match="expected x of shape"):
        pass_through(bad, bad, bad, bad, 1.0)
    with pytest.raises(ValueError, match="expected weights of shape"):
        pass_through(bad[:, None], bad, jnp.ones(3), bad, 1.0)


def test_known_arrays_are_checked_inside_a_traced_function():
    x, a = jnp.ones((2, 1)), jnp.array([0.25, 0.75])
    bad, negative = jnp.array([NAN, 1.0]), jnp.array([2.0, -1.0])

    @jax.jit
    def inside(scale):
        return scale * (checks.weights(a, x) + checks.increasing(a, x.dtype) + checks.finite(a, ""))

    assert inside(2.0).tolist() == [1.5, 4.5]
    with pytest.raises(ValueError, match="expected finite bad"):
        jax.jit(lambda s: s * checks.finite(bad, "bad"))(1.0)
    with pytest.raises(ValueError, match="expected weights >= 0"):
        jax.jit(lambda s: s * checks.weights(negative, x))(1.0)


SINGLE = """
import jax, jax.numpy as jnp, numpy as np
from ntkcourse import data, flows, networks, tangent, training, transport

assert not jax.config.jax_enable_x64, "the import changed a setting"
x, y = data.circle(4), np.arange(4)
init, apply = networks.mlp((2, 8, 1), "tanh", np.sqrt(2.0), np.float64(0.1))
params = init(key=jax.random.key(0))
loss = lambda p: jnp.sum((apply(p, x) - jnp.asarray(y, x.dtype)) ** 2) / 2
energy = flows.total(
    flows.potential(lambda p: p @ p),
    flows.interaction(lambda p, q: (p - q) @ (p - q)),
    flows.mean_field_risk(x[:, :1], y),
)
weights = np.array([0.1, 0.2, 0.3, 0.4])
results = dict(
    sphere=data.sphere(3, 2, np.float64(2), key=jax.random.key(1)),
    table=data.table("wine")[0],
    init=params,
    apply=apply(params, x),
    ntk=tangent.empirical_ntk(apply, params, x),
    lin=tangent.linearize(apply, params)(params, x),
    jacobian=tangent.jacobian_norm(apply, params, x),
    hessian=tangent.hessian_norm(apply, params, x),
    descend=training.descend(loss, params, steps=3, learning_rate=np.float64(0.1)),
    flow=training.flow(loss, params, np.array([0.0, 0.5])),
    w2=transport.wasserstein2(x, 2 * x, weights, weights),
    path=transport.geodesic(x, 2 * x, np.array([0.0, 0.5])),
    gauss=transport.gaussian_wasserstein2([0, 1], np.eye(2), [0, 0], np.eye(2)),
    variation=flows.first_variation(energy, x, weights)(x),
    adaptive=flows.wasserstein_flow(energy, x, [0, 1], weights=weights),
    noisy=flows.wasserstein_flow(
        energy, x, [1], step=np.float64(0.1), temperature=np.float64(1), key=jax.random.key(2)
    ),
)
for name, result in results.items():
    for leaf in jax.tree.leaves(result):
        assert leaf.dtype == jnp.float32, (name, leaf.dtype)
        assert jnp.all(jnp.isfinite(leaf)), name
"""


def test_the_package_works_in_single_precision_as_jax_comes():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore::SyntaxWarning", "-c", SINGLE],
        env={name: value for name, value in os.environ.items() if name != "XLA_FLAGS"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
