"""Training against loops in NumPy, exact flows and single runs."""

import io
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.linalg

from ntkcourse import networks, training

KEY = jax.random.key(0)
A = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.2], [0.0, 0.2, 0.5]])
B = np.array([1.0, -1.0, 0.5])
P0 = np.array([0.3, -2.0, 1.0])


def quadratic(p):
    matrix, b = jnp.asarray(A, p.dtype), jnp.asarray(B, p.dtype)
    return p @ matrix @ p / 2 - b @ p


def quadratic_in_numpy(p):
    return p @ A @ p / 2 - B @ p


def descent_in_numpy(rate, steps):
    path = [P0]
    for _ in range(steps):
        path.append(path[-1] - rate * (A @ path[-1] - B))
    return np.array(path)


@pytest.mark.parametrize(
    ("steps", "every", "marks"),
    [
        (7, 1, range(8)),
        (7, 3, [0, 3, 6, 7]),
        (6, 3, [0, 3, 6]),
        (2, 5, [0, 2]),
        (1, 1, [0, 1]),
        (250, 1, range(251)),
        (203, 2, [*range(0, 203, 2), 203]),
    ],
)
def test_descent_and_what_is_recorded(steps, every, marks):
    run = training.descend(
        quadratic,
        jnp.asarray(P0),
        steps=steps,
        learning_rate=0.1,
        observe=lambda p: {"loss": quadratic(p), "params": p},
        every=every,
    )
    path, marks = descent_in_numpy(0.1, steps), list(marks)
    np.testing.assert_allclose(run.times, 0.1 * np.array(marks), rtol=1e-15)
    np.testing.assert_allclose(run.history["params"], path[marks], rtol=1e-10)
    losses = [quadratic_in_numpy(p) for p in path[marks]]
    np.testing.assert_allclose(run.history["loss"], losses, rtol=1e-10)
    np.testing.assert_allclose(run.params, path[-1], rtol=1e-10)


def test_the_loss_is_recorded_at_every_step_by_default(dtype):
    run = training.descend(
        quadratic, jnp.asarray(P0, dtype), steps=4, learning_rate=np.float64(0.1)
    )
    losses = [quadratic_in_numpy(p) for p in descent_in_numpy(0.1, 4)]
    np.testing.assert_allclose(run.history, losses, rtol=1e-5)
    assert run.params.dtype == run.times.dtype == run.history.dtype == dtype


def test_optimisers_of_optax():
    with jax.numpy_dtype_promotion("standard"):  # optax mixes counts and floats
        run = training.descend(
            quadratic,
            jnp.asarray(P0),
            steps=20,
            optimizer=optax.adam(0.05),
            observe=lambda p: p,
            every=4,
        )
    p, m, v, path = P0, 0.0, 0.0, [P0]
    for t in range(1, 21):
        g = A @ p - B
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        p = p - 0.05 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        path.append(p)
    np.testing.assert_allclose(run.history, path[::4], rtol=1e-7)
    np.testing.assert_array_equal(run.times, np.arange(0, 21, 4))


def test_descent_of_a_tree_of_parameters():
    loss = lambda p: jnp.sum(p["a"] ** 2) / 2 + jnp.sum(2 * p["b"][0] ** 2) / 2  # noqa: E731
    params = {"a": jnp.ones((2, 2)), "b": (jnp.ones(3), None)}
    run = training.descend(loss, params, steps=3, learning_rate=0.1)
    np.testing.assert_allclose(run.params["a"], np.full((2, 2), 0.9**3), rtol=1e-13)
    np.testing.assert_allclose(run.params["b"][0], np.full(3, 0.8**3), rtol=1e-13)


@pytest.mark.parametrize("train", ["descend", "flow"])
def test_integer_parameters_are_converted(train, user):
    if train == "descend":
        run = training.descend(lambda p: p @ p / 2, np.array([4, 1]), steps=1, learning_rate=0.5)
        expected = np.array([2, 0.5])
    else:
        run = training.flow(lambda p: p @ p / 2, jnp.array([4, 1]), [1])
        expected = np.exp(-1) * np.array([4, 1])
    np.testing.assert_allclose(run.params, expected, rtol=1e-7)


GROWTH = 1e11
"""The factor of each step of ``divergent``: the loss is 1e308 / 2 after 14 steps, inf after 15."""


def divergent(steps, **options):
    loss = lambda p: jnp.sum(p**2) / 2  # noqa: E731
    return training.descend(loss, jnp.ones(1), steps=steps, learning_rate=1 + GROWTH, **options)


@pytest.mark.parametrize("every", [1, 7, 100])
def test_divergence_names_the_step(every):
    assert np.isfinite(divergent(14, every=every).history[-1])
    for steps in (15, 16, 40, 300):
        message = "the loss is not finite after 15 steps: try a smaller learning_rate$"
        with pytest.raises(FloatingPointError, match=message):
            divergent(steps, every=every)


def test_divergence_of_an_optimizer_does_not_blame_a_learning_rate():
    with pytest.raises(FloatingPointError, match="after 15 steps: try a smaller step of the opt"):
        training.descend(
            lambda p: jnp.sum(p**2) / 2, jnp.ones(1), steps=20, optimizer=optax.sgd(1 + GROWTH)
        )


def test_divergence_names_the_stable_learning_rate():
    kernel = jnp.asarray(np.diag([1.0, 7.0, 0.5]))
    with pytest.raises(FloatingPointError, match=r"descent is stable below 0\.2857$"):
        divergent(20, kernel=kernel)
    assert np.isfinite(divergent(5, kernel=kernel).history[-1])


def test_the_named_learning_rate_is_the_border_of_stability():
    rate = 2 / np.linalg.eigvalsh(A)[-1]
    options = dict(steps=20_000, every=20_000)
    below = training.descend(quadratic, jnp.asarray(P0), learning_rate=0.999 * rate, **options)
    np.testing.assert_allclose(below.params, np.linalg.solve(A, B), rtol=1e-6)
    with pytest.raises(FloatingPointError, match="not finite after"):
        training.descend(quadratic, jnp.asarray(P0), learning_rate=1.05 * rate, **options)


def test_a_lost_start_is_refused():
    for train in (
        partial(training.descend, steps=1, learning_rate=0.1),
        partial(training.flow, times=jnp.array([1.0])),
    ):
        with pytest.raises(FloatingPointError, match="the loss is nan at the initial parameters"):
            train(lambda p: jnp.sum(jnp.log(p)), -jnp.ones(1))


def test_the_progress_bar_is_for_a_person(capsys, monkeypatch):
    divergent(3)
    assert capsys.readouterr() == ("", "")
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", screen)
    divergent(3)
    assert "0/3" in screen.getvalue()
    assert screen.getvalue().endswith("\r")  # it leaves an empty line
    screen.truncate(0)
    training.ensemble(lambda key: divergent(3), jax.random.split(KEY, 2))
    assert screen.getvalue() == ""


@pytest.mark.parametrize(("first", "dtype"), [(0.0, np.float32), (0.5, np.float64)])
def test_flow_is_the_matrix_exponential(first, dtype):
    times = jnp.asarray([first, 1.0, 6.0], dtype)
    run = training.flow(quadratic, jnp.asarray(P0, dtype), times, observe=lambda p: p)
    goal = np.linalg.solve(A, B)
    expected = [goal + scipy.linalg.expm(-A * float(t)) @ (P0 - goal) for t in times]
    tolerance = 1e-7 if dtype == np.float64 else 1e-4
    np.testing.assert_allclose(run.history, expected, atol=tolerance)
    np.testing.assert_allclose(run.params, expected[-1], atol=tolerance)
    np.testing.assert_array_equal(run.times, times)
    assert run.params.dtype == run.history.dtype == run.times.dtype == dtype
    if first == 0:  # None observes the loss
        losses = training.flow(quadratic, jnp.asarray(P0, dtype), times).history
        np.testing.assert_allclose(losses, [quadratic_in_numpy(p) for p in expected], atol=1e-3)


def test_flow_is_the_limit_of_small_steps():
    init, apply = networks.mlp((2, 4, 1), "tanh")
    x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 2)))
    loss = lambda p: jnp.sum((apply(p, x) - x[:, 0]) ** 2) / 2  # noqa: E731
    outputs = lambda p: apply(p, x)  # noqa: E731
    exact = training.flow(loss, init(key=KEY), jnp.array([1.0]), observe=outputs).history[0]
    errors = []
    for rate in (0.01, 0.005):
        run = training.descend(
            loss, init(key=KEY), steps=round(1 / rate), learning_rate=rate, observe=outputs
        )
        assert run.times[-1] == 1
        errors.append(np.abs(run.history[-1] - exact).max())
    assert errors[1] < 0.01
    np.testing.assert_allclose(errors[0] / errors[1], 2, rtol=0.1)


def test_a_flow_that_blows_up_stops():
    start, times = jnp.ones(2, "float32"), jnp.array([0.01, 10.0], "float32")
    with pytest.raises(FloatingPointError, match="left the finite numbers before its last time"):
        training.flow(lambda p: -jnp.sum(p**4), start, times)


def test_ensemble_is_a_loop_of_single_runs():
    init, apply = networks.mlp((2, 4, 1), "tanh")
    x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 2)))
    keys = jax.random.split(KEY, 2)

    def train(key, way):
        loss = lambda p: jnp.sum((apply(p, x) - x[:, 0]) ** 2) / 2  # noqa: E731
        if way == "flow":
            return training.flow(loss, init(key=key), jnp.array([0.5, 1.0]))
        return training.descend(loss, init(key=key), steps=150, learning_rate=0.05, every=1)

    for way in ("descend", "flow"):
        together = training.ensemble(partial(train, way=way), keys)
        apart = [train(key, way) for key in keys]
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *apart)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), together, stacked)
        assert isinstance(together, training.Run)
        assert together.history.shape == (2, 151 if way == "descend" else 2)


@pytest.mark.parametrize("way", ["descend", "flow"])
def test_members_that_diverge_are_named(way):
    """p' = p^3 explodes at time 1 / (2 p0^2); descent of p^4 / 4 explodes from |p0| > 2."""
    keys = jax.random.split(jax.random.key(3), 12)
    starts = np.array([2 * float(jax.random.normal(key)) for key in keys])

    def train(key):
        start = 2 * jax.random.normal(key, (1,))
        if way == "flow":
            return training.flow(lambda p: -jnp.sum(p**4) / 4, start, jnp.array([0.01, 0.125]))
        return training.descend(
            lambda p: jnp.sum(p**4) / 4, start, steps=200, learning_rate=0.5, every=200
        )

    lost = np.flatnonzero(np.abs(starts) > 2)
    assert 0 < len(lost) < 12
    assert lost[0] > 0
    message = f"{len(lost)} of 12 members diverged, the first of them number {lost[0]}$"
    with pytest.raises(FloatingPointError, match=message):
        training.ensemble(train, keys)


def run_descend(**options):
    arguments = dict(loss=lambda p: p @ p, params=np.ones(2), steps=3, learning_rate=0.1)
    return training.descend(**{**arguments, **options})


def run_flow(**options):
    arguments = dict(loss=lambda p: p @ p, params=np.ones(2), times=[1.0])
    return training.flow(**{**arguments, **options})


@pytest.mark.usefixtures("user")
@pytest.mark.parametrize(
    ("run", "options", "error", "message"),
    [
        (run_descend, dict(steps=0), ValueError, "expected steps >= 1, got 0"),
        (run_descend, dict(steps=2.0), TypeError, "expected a whole number for steps, got 2.0"),
        (run_descend, dict(every=0), ValueError, "expected every >= 1, got 0"),
        (run_descend, dict(every=1.5), TypeError, "expected a whole number for every, got 1.5"),
        (
            run_descend,
            dict(learning_rate=None),
            ValueError,
            "expected either learning_rate or opti",
        ),
        (
            run_descend,
            dict(optimizer=optax.sgd(1.0)),
            ValueError,
            "expected either learning_rate or",
        ),
        (run_descend, dict(learning_rate=0.0), ValueError, "expected learning_rate > 0, got 0.0"),
        (run_descend, dict(learning_rate=-1.0), ValueError, "expected learning_rate > 0, got -1.0"),
        (
            run_descend,
            dict(loss=lambda p: p),
            ValueError,
            r"a loss that is a number, got shape \(2,",
        ),
        (run_descend, dict(params=[np.nan]), ValueError, "expected finite params"),
        (run_descend, dict(kernel=np.ones(3)), ValueError, r"expected a kernel of shape \(n, n\)"),
        (run_flow, dict(loss=lambda p: p), ValueError, r"a loss that is a number, got shape \(2,"),
        (run_flow, dict(params=np.array([np.inf])), ValueError, "expected finite params"),
        (run_flow, dict(params=np.array(["a"])), TypeError, "expected params to be an array"),
        (run_flow, dict(times=[]), ValueError, "expected a list of times"),
        (run_flow, dict(times=1.0), ValueError, "expected a list of times"),
        (run_flow, dict(times=[2.0, 1.0]), ValueError, "expected increasing times"),
        (run_flow, dict(times=[-1.0, 1.0]), ValueError, "expected times t >= 0"),
        (run_flow, dict(times=[np.inf]), ValueError, "expected finite times"),
    ],
)
def test_bad_runs(run, options, error, message):
    with pytest.raises(error, match=message):
        run(**options)


@pytest.mark.usefixtures("user")
@pytest.mark.parametrize("keys", [None, KEY, jax.random.split(KEY, 0)])
def test_bad_ensembles(keys):
    with pytest.raises(ValueError, match="expected an array of keys, got shape"):
        training.ensemble(lambda key: None, keys)


def end_of_path(rate, start, **options):
    return training.path(quadratic, start, steps=25, learning_rate=rate, every=4, **options).params


def test_a_path_under_all_transformations(dtype):
    start, rates = jnp.asarray(P0, dtype), jnp.asarray([0.05, 0.1], dtype)
    expected = np.array([descent_in_numpy(float(rate), 25)[-1] for rate in rates])
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    for run in (jax.vmap(end_of_path, (0, None)), jax.jit(jax.vmap(end_of_path, (0, None)))):
        np.testing.assert_allclose(run(rates, start), expected, rtol=tolerance)
    slope = (descent_in_numpy(0.1 + 1e-6, 25)[-1] - descent_in_numpy(0.1 - 1e-6, 25)[-1]) / 2e-6
    tolerance = 1e-4 if dtype == np.float32 else 1e-7
    for derivative in (jax.jacfwd, jax.jacrev):
        np.testing.assert_allclose(derivative(end_of_path)(rates[1], start), slope, rtol=tolerance)
        power = np.linalg.matrix_power(np.eye(3) - 0.1 * A, 25)
        by_start = derivative(end_of_path, argnums=1)(rates[1], start)
        np.testing.assert_allclose(by_start, power, atol=tolerance)


def test_bare_vmap_of_descend_and_flow():
    start, rates = jnp.asarray(P0), jnp.array([0.05, 0.1])
    run = jax.vmap(
        lambda rate: training.descend(quadratic, start, steps=5, learning_rate=rate)
    )(rates)  # fmt: skip
    expected = np.array([descent_in_numpy(float(rate), 5)[-1] for rate in rates])
    np.testing.assert_allclose(run.params, expected, rtol=1e-12)
    np.testing.assert_allclose(run.times, rates[:, None] * np.arange(6.0)[None])
    ends = jax.vmap(lambda p: training.flow(quadratic, p, jnp.array([1.0])).params)(
        jnp.stack([start, 2 * start])
    )
    goal = np.linalg.solve(A, B)
    for factor, end in zip((1, 2), ends, strict=True):
        np.testing.assert_allclose(
            end, goal + scipy.linalg.expm(-A) @ (factor * P0 - goal), atol=1e-7
        )


@pytest.mark.parametrize("derivative", [jax.jacfwd, jax.jacrev])
def test_derivatives_of_flow(derivative):
    end = lambda p: training.flow(quadratic, p, jnp.array([1.0])).params  # noqa: E731
    np.testing.assert_allclose(derivative(end)(jnp.asarray(P0)), scipy.linalg.expm(-A), atol=1e-6)


def test_the_second_call_compiles_nothing(caplog):
    keys = jax.random.split(KEY, 3)
    train = lambda key, scale: scale * jax.random.normal(key)  # noqa: E731

    def call(factor):
        start = factor * jnp.asarray(P0)
        training.descend(quadratic, start, steps=9, learning_rate=0.01 * factor, every=2)
        training.flow(quadratic, start, jnp.array([0.5]) * factor)
        training.sweep(train, keys, scale=jnp.array([1.0, 2.0]) * factor)

    call(1.0)
    with jax.log_compiles(), caplog.at_level("WARNING"):
        call(1.5)
        assert not [r.getMessage() for r in caplog.records if "ompil" in r.getMessage()]
        training.descend(lambda p: quadratic(p), jnp.asarray(P0), steps=9, learning_rate=0.01)
        assert [r for r in caplog.records if "ompil" in r.getMessage()]


def test_a_run_ends_when_asked():
    until = lambda p: quadratic(p) < -1.79  # noqa: E731
    path = descent_in_numpy(0.1, 60)
    stop = next(k for k in range(0, 61, 3) if quadratic_in_numpy(path[k]) < -1.79)
    assert 3 < stop < 57
    options = dict(steps=60, every=3, until=until)
    for train in (training.path, training.descend):
        run = train(quadratic, jnp.asarray(P0), learning_rate=0.1, **options)
        np.testing.assert_allclose(run.params, path[stop], rtol=1e-12)
        np.testing.assert_allclose(run.times, 0.1 * np.minimum(np.arange(0, 61, 3), stop))
    starts = jnp.stack([jnp.asarray(P0), jnp.asarray(np.linalg.solve(A, B))])
    both = jax.vmap(lambda p: training.path(quadratic, p, learning_rate=0.1, **options))(starts)
    np.testing.assert_allclose(both.params, [path[stop], starts[1]], rtol=1e-12)
    assert both.times[1].tolist() == [0] * 21


def test_batches_as_arrays_and_as_a_function():
    targets = jnp.asarray(np.random.default_rng(0).normal(size=(10, 3)))
    loss = lambda p, batch: jnp.sum((p - batch) ** 2) / 2  # noqa: E731
    expected = P0
    for target in np.asarray(targets):
        expected = expected - 0.3 * (expected - target)
    for batches in (targets, lambda step: targets[step]):
        for train in (training.path, training.descend):
            run = train(loss, jnp.asarray(P0), steps=10, learning_rate=0.3, batches=batches)
            np.testing.assert_allclose(run.params, expected, rtol=1e-12)
            assert run.history.shape == (11,)
    with pytest.raises(ValueError, match=r"expected batches for 9 steps, got shape \(10, 3\)"):
        training.path(loss, jnp.asarray(P0), steps=9, learning_rate=0.3, batches=targets)


@pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey])
def test_a_sweep_is_a_loop(make):
    keys = jax.random.split(make(0), 3)
    train = lambda key, width, scale: {  # noqa: E731
        "a": scale * jax.random.normal(key, (2,)), "b": width
    }  # fmt: skip
    # the names are not in alphabetical order: the order given counts
    swept = training.sweep(train, keys, width=jnp.array([4, 8]), scale=[1.0, 2.0, 3.0, 4.0])
    assert swept["a"].shape == (2, 4, 3, 2)
    assert swept["b"].shape == (2, 4, 3)
    for (i, j, k), width in np.ndenumerate(swept["b"]):
        assert width == (4, 8)[i]
        np.testing.assert_array_equal(
            swept["a"][i, j, k], (j + 1.0) * jax.random.normal(keys[k], (2,))
        )


@pytest.mark.usefixtures("user")
def test_bad_sweeps():
    keys = jax.random.split(KEY, 3)
    train = lambda key, scale: jnp.log(scale)  # noqa: E731
    with pytest.raises(FloatingPointError, match=r"3 of 6 members diverged.*scale=0, number 0$"):
        training.sweep(train, keys, scale=jnp.array([1.0, 0.0]))
    with pytest.raises(ValueError, match=r"expected an array of values for scale, got shape \(\)"):
        training.sweep(train, keys, scale=1.0)
    for bad in (0, jnp.arange(3), jax.random.PRNGKey(0)):
        with pytest.raises(ValueError, match="expected an array of keys, got shape"):
            training.sweep(train, bad, scale=jnp.ones(2))
