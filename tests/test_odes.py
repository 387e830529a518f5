"""The integrator against exact solutions and finite differences, the loop under transformations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from ntkcourse import networks, odes, tangent


def test_the_tableau_has_order_five_and_its_companion_four():
    """Sums over rooted trees of b against 1 / density, for b and for b minus the difference."""
    a = np.vstack([np.zeros(7), np.pad(odes.TABLEAU, ((0, 0), (0, 1)))])
    b, c = a[-1], a.sum(1)
    trees = {
        1: [(c**0, 1)],
        2: [(c, 2)],
        3: [(c**2, 3), (a @ c, 6)],
        4: [(c**3, 4), (c * (a @ c), 8), (a @ c**2, 12), (a @ a @ c, 24)],
        5: [(c**4, 5), (c**2 * (a @ c), 10), ((a @ c) ** 2, 20), (c * (a @ c**2), 15),
            (a @ c**3, 20), (c * (a @ a @ c), 30), (a @ (c * (a @ c)), 40),
            (a @ a @ c**2, 60), (a @ a @ a @ c, 120)],
    }  # fmt: skip
    for order, sums in trees.items():
        for tree, density in sums:
            np.testing.assert_allclose(b @ tree, 1 / density, atol=2e-9)
            if order < 5:
                np.testing.assert_allclose(odes.NEAR @ tree, 0, atol=2e-9)


def pendulum(y):
    return {"q": y["p"], "p": -jnp.sin(y["q"])}


def test_a_pendulum_as_scipy_has_it(dtype):
    times = np.array([0.0, 1.0, 9.0])
    start = {"q": jnp.asarray([1.0], dtype), "p": jnp.asarray([0.5], dtype)}
    last, seen, reached = odes.solve(pendulum, start, jnp.asarray(times, dtype), lambda y: y["q"])
    exact = solve_ivp(
        lambda _, y: [y[1], -np.sin(y[0])], (0, 9), [1.0, 0.5], "DOP853", times, rtol=1e-12,
        atol=1e-12,
    ).y  # fmt: skip
    assert reached
    assert seen.dtype == dtype
    np.testing.assert_allclose(seen[:, 0], exact[0], atol=1e-6 if dtype == "float64" else 2e-3)
    np.testing.assert_allclose(
        last["p"][0], exact[1, -1], atol=1e-6 if dtype == "float64" else 2e-3
    )


def end(start, rate, time):
    """y' = - rate y (1 + y^2), whose solution is known."""
    return odes.solve(lambda y: -rate * (y + y**3), start, jnp.stack([time]), lambda y: y)[0]


def exact(start, rate, time):
    shrunk = start**2 / (1 + start**2) * jnp.exp(-2 * rate * time)
    return jnp.sqrt(shrunk / (1 - shrunk))


def test_both_derivatives_are_those_of_the_solution():
    arguments = jnp.array(1.5), jnp.array(0.7), jnp.array(0.9)
    wanted = jax.grad(exact, argnums=(0, 1, 2))(*arguments)
    reverse = jax.jit(jax.grad(end, argnums=(0, 1, 2)))(*arguments)
    forward = jax.jacfwd(end, argnums=(0, 1, 2))(*arguments)
    np.testing.assert_allclose(reverse, wanted, rtol=1e-6)
    np.testing.assert_allclose(forward, wanted, rtol=1e-6)


def test_members_of_a_batch_do_not_disturb_each_other():
    starts, rates = jnp.array([1.5, 0.1, -2.0]), jnp.array([0.7, 50.0, 0.0])
    together = jax.vmap(end, (0, 0, None))(starts, rates, jnp.array(0.9))
    expected = jnp.sign(starts) * exact(starts, rates, 0.9)
    np.testing.assert_allclose(together, expected, atol=1e-7)


def test_failure_becomes_nan_for_its_member_alone():
    explode = lambda start: odes.solve(  # noqa: E731
        lambda y: y**3, start, jnp.array([0.1, 1.0]), lambda y: y
    )
    last, seen, reached = jax.vmap(explode)(jnp.array([0.5, 2.0]))  # explodes at 1 / (2 y^2)
    assert reached.tolist() == [True, False]
    assert np.isnan(last).tolist() == [False, True]
    assert np.isnan(seen).tolist() == [[False, False], [False, True]]
    np.testing.assert_allclose(last[0], (0.5**-2 - 2) ** -0.5, rtol=1e-6)


def test_a_field_that_jumps():
    """Two hundred jumps of the speed, each passed in a few steps, and a surface to slide on."""
    places = jnp.linspace(0.005, 0.995, 200)
    speed = lambda y: 1 + jnp.mean((y[None] > places).astype(y.dtype))  # noqa: E731
    last, _, reached = odes.solve(speed, jnp.array(0.0), jnp.array([0.6]), lambda y: y)
    spans = np.diff(np.append(0, places)) / (1 + np.arange(200) / 200)
    arrivals = np.cumsum(spans)
    k = np.searchsorted(arrivals, 0.6)
    assert reached
    np.testing.assert_allclose(
        last, places[k - 1] + (0.6 - arrivals[k - 1]) * (1 + k / 200), atol=200 * odes.KINK
    )
    slide = lambda y: jnp.stack([-jnp.sign(y[0]), 1 - y[1]])  # noqa: E731
    last, _, reached = odes.solve(slide, jnp.array([0.3, 0.0]), jnp.array([1.0]), lambda y: y)
    assert reached
    np.testing.assert_allclose(last, [0, 1 - np.exp(-1)], atol=1e-4)


def test_a_stiff_linear_flow():
    """Condition 1e5, modes that are not the coordinates: the solution is known."""
    rates = jnp.geomspace(1, 1e5, 6)
    turn = jnp.linalg.qr(jax.random.normal(jax.random.key(0), (6, 6)))[0]
    matrix, times = turn * rates[None] @ turn.T, jnp.array([1e-5, 1e-2, 1.0])
    start = jnp.ones(6)
    _, seen, reached = jax.jit(
        lambda start: odes.solve(lambda y: -matrix @ y, start, times, lambda y: y)
    )(start)
    wanted = [turn @ (jnp.exp(-rates * t) * (turn.T @ start)) for t in times]
    assert reached
    np.testing.assert_allclose(seen, wanted, atol=1e-7)


def test_jumps_cost_few_steps():
    """Neurons that pass data points: six evaluations for a step of about half of 1 / rho."""
    x = jax.random.normal(jax.random.key(0), (20, 3))
    init, apply = networks.mlp((3, 64, 1))
    params, calls = init(key=jax.random.key(1)), []

    def downhill(p):
        jax.debug.callback(lambda: calls.append(0))
        gradient = jax.grad(lambda p: jnp.sum((apply(p, x) - jnp.sin(3 * x[:, 0])) ** 2) / 2)(p)
        return jax.tree.map(jnp.negative, gradient)

    times = jnp.array([2.0])
    _, _, reached = odes.solve(downhill, params, times, lambda p: 0.0)
    rho = np.linalg.eigvalsh(tangent.empirical_ntk(apply, params, x))[-1]
    jax.effects_barrier()
    assert reached
    assert len(calls) < 24 * rho * times[0]


@pytest.mark.parametrize("count", [0, 1, 64, 65, 5000])
def test_repeat(count):
    done = odes.repeat(lambda s: s + 1, lambda s: s < count, jnp.asarray(0))
    assert done == count
    many = jax.vmap(lambda n: odes.repeat(lambda s: s + 1, lambda s: s < n, jnp.asarray(0)))
    assert many(jnp.array([count, 3])).tolist() == [count, 3]
