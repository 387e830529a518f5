"""Energies against NumPy, first variations against differences, flows against exact solutions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ntkcourse import flows, kernels, tiles, training

KEY = jax.random.key(0)
NAN = float("nan")
WEIGHTS = jnp.array([0.1, 0.2, 0.3, 0.25, 0.15])
X = jnp.asarray(np.random.default_rng(5).normal(size=(6, 2)))
Y = jnp.asarray(np.random.default_rng(6).normal(size=6))


def square(x):
    return x @ x / 2


def attraction(x, y):
    return square(x - y)


def repulsion(x, y):
    return jnp.exp(-square(x - y)) + x @ y


def cloud(n=5, d=3, seed=0, dtype=np.float64):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(n, d)), dtype)


def risk_in_numpy(particles, weights):
    total = 0.0
    for x, y in zip(np.asarray(X), np.asarray(Y), strict=True):
        f = sum(w * p[0] * np.tanh(p[1:] @ x) for p, w in zip(particles, weights, strict=True))
        total += (y - f) ** 2
    return total / (2 * len(X))


def potential_in_numpy(particles, weights):
    return sum(w * np.sin(p).sum() for p, w in zip(particles, weights, strict=True))


def interaction_in_numpy(particles, weights):
    return sum(
        v * w * (np.exp(-np.sum((p - q) ** 2) / 2) + p @ q) / 2
        for p, v in zip(particles, weights, strict=True)
        for q, w in zip(particles, weights, strict=True)
    )


ENERGIES = {
    "potential": (flows.potential(lambda x: jnp.sum(jnp.sin(x))), potential_in_numpy),
    "interaction": (flows.interaction(repulsion), interaction_in_numpy),
    "risk": (flows.mean_field_risk(X, Y, "tanh"), risk_in_numpy),
}
ENERGIES["total"] = (
    flows.total(*(ours for ours, _ in ENERGIES.values())),
    lambda p, w: potential_in_numpy(p, w) + interaction_in_numpy(p, w) + risk_in_numpy(p, w),
)
ENERGIES["kernel"] = (flows.interaction(kernels.rbf() + kernels.linear()), interaction_in_numpy)
each_energy = pytest.mark.parametrize("name", ENERGIES)


@each_energy
def test_energies(name):
    ours, theirs = ENERGIES[name]
    particles = cloud()
    for weights in (WEIGHTS, jnp.full(5, 0.2)):
        expected = theirs(np.asarray(particles), np.asarray(weights))
        np.testing.assert_allclose(ours(particles, weights), expected, rtol=1e-12)


def test_risk_is_relu_by_default_and_takes_integer_targets(user):
    particles = cloud(dtype=np.float32)
    energy = flows.mean_field_risk(X.astype("float32"), [0, 1, 2, 3, 4, 5])
    hidden = np.maximum(np.asarray(X) @ np.asarray(particles)[:, 1:].T, 0)
    outputs = hidden @ np.asarray(particles)[:, 0] / 5
    expected = np.mean((np.arange(6) - outputs) ** 2) / 2
    value = energy(particles, jnp.full(5, 0.2, "float32"))
    assert value.dtype == np.float32
    np.testing.assert_allclose(value, expected, rtol=1e-5)


@each_energy
def test_first_variation_is_the_derivative_along_mixtures(name):
    ours, theirs = ENERGIES[name]
    particles, new = cloud(), cloud(4, seed=1)
    variation = flows.first_variation(ours, particles, WEIGHTS)
    values = variation(new)
    assert values.shape == (4,)
    old, h = np.asarray(WEIGHTS), 1e-4
    for x, value in zip(np.asarray(new), values, strict=True):
        grown = np.vstack([particles, x])
        ahead, behind = (
            theirs(grown, np.append((1 - e) * old, e)) for e in (h, -h)
        )  # e < 0 is no measure but the formula holds
        np.testing.assert_allclose(value, (ahead - behind) / (2 * h), rtol=1e-7, atol=1e-10)
    # towards another law: the derivative is the mean of the first variation under it
    nu = np.array([0.4, 0.1, 0.2, 0.3])
    both = np.vstack([particles, new])
    ahead, behind = (theirs(both, np.append((1 - e) * old, e * nu)) for e in (h, -h))
    np.testing.assert_allclose(nu @ np.asarray(values), (ahead - behind) / (2 * h), atol=1e-8)
    np.testing.assert_allclose(WEIGHTS @ variation(particles), 0, atol=1e-14)
    single = variation(new[0])
    assert single.shape == ()
    np.testing.assert_allclose(single, values[0], rtol=1e-12)


def test_first_variation_has_factor_one_for_both_kinds_of_energy():
    particles, new = np.asarray(cloud()), np.asarray(cloud(4, seed=1))
    weights = np.full(5, 0.2)
    landscape = flows.first_variation(flows.potential(square), jnp.asarray(particles))
    v = lambda x: np.sum(x**2, axis=-1) / 2  # noqa: E731
    np.testing.assert_allclose(landscape(jnp.asarray(new)), v(new) - weights @ v(particles))
    pairs = flows.first_variation(flows.interaction(attraction), jnp.asarray(particles))
    at_new = v(new[:, None] - particles) @ weights
    mean = weights @ v(particles[:, None] - particles) @ weights
    np.testing.assert_allclose(pairs(jnp.asarray(new)), at_new - mean)


@each_energy
def test_velocity_is_minus_the_gradient_of_the_first_variation(name):
    energy, particles = ENERGIES[name][0], cloud()
    velocity = flows.velocity(energy, particles, WEIGHTS)
    gradient = jax.vmap(jax.grad(flows.first_variation(energy, particles, WEIGHTS)))(particles)
    np.testing.assert_allclose(velocity, -gradient, rtol=1e-10, atol=1e-14)
    equal = jnp.full(5, 0.2)
    slope = jax.grad(energy)(particles, equal)
    np.testing.assert_allclose(flows.velocity(energy, particles, equal), -5 * slope, rtol=1e-12)


def test_first_variation_keeps_the_dtype(dtype):
    particles = cloud(dtype=dtype)
    variation = flows.first_variation(flows.potential(square), particles)
    assert variation(particles).dtype == variation(particles[0]).dtype == dtype


def test_first_variation_converts_integer_points(user, dtype):
    variation = flows.first_variation(flows.potential(square), cloud(dtype=dtype))
    assert variation([[1, 2, 3]]).dtype == dtype
    assert variation([1, 2, 3]) == variation(jnp.array([1.0, 2.0, 3.0], dtype))


@pytest.mark.parametrize(("weights", "dtype"), [(None, np.float32), (WEIGHTS, np.float64)])
def test_particles_in_a_bowl_decay(weights, dtype):
    particles, times = cloud(dtype=dtype), jnp.array([0.0, 0.5, 2.0], dtype)
    path = flows.wasserstein_flow(flows.potential(square), particles, times, weights=weights)
    assert path.shape == (3, 5, 3)
    assert path.dtype == dtype
    expected = np.exp(-np.asarray(times))[:, None, None] * np.asarray(particles)
    np.testing.assert_allclose(path, expected, atol=1e-7 if dtype == np.float64 else 1e-4)


def test_attraction_contracts_to_the_mean():
    """F = 1/4 sum_ij w_i w_j |x_i - x_j|^2, so x_i' = -(x_i - mean), and F decays like e^-2t."""
    particles, times = cloud(), jnp.array([0.25, 1.5])
    energy = flows.interaction(attraction)
    path = flows.wasserstein_flow(energy, particles, times, weights=WEIGHTS)
    start = np.asarray(particles)
    mean = np.asarray(WEIGHTS) @ start
    for t, now in zip(np.asarray(times), path, strict=True):
        np.testing.assert_allclose(now, mean + np.exp(-t) * (start - mean), atol=1e-7)
        ratio = energy(now, WEIGHTS) / energy(particles, WEIGHTS)
        np.testing.assert_allclose(ratio, np.exp(-2 * t), rtol=1e-6)


def test_risk_flow_is_gradient_descent_with_time_times_m():
    energy, particles, weights = ENERGIES["risk"][0], cloud(), jnp.full(5, 0.2)
    loss = lambda p: energy(p, weights)  # noqa: E731
    times = jnp.array([0.5, 2.0])
    path = flows.wasserstein_flow(energy, particles, times)
    descent = training.flow(loss, particles, 5 * times, observe=lambda p: p)
    np.testing.assert_allclose(path, descent.history, atol=1e-6)
    euler = flows.wasserstein_flow(energy, particles, times, step=0.1)
    steps = training.descend(
        loss, particles, steps=20, learning_rate=0.5, observe=lambda p: p, every=5
    )
    np.testing.assert_allclose(euler, steps.history[jnp.array([1, 4])], atol=1e-12)


@pytest.mark.parametrize(
    ("times", "step", "factors"),
    [
        ([0.0, 0.25], 0.1, [1, (1 - 0.25 / 3) ** 3]),
        ([0.5], 2.0, [0.5]),
        ([0.5], 0.5, [0.5]),
        ([0.5], 0.49, [0.75**2]),
        ([0.3, 1.0], 0.1, [0.9**3, 0.9**10]),
        ([0.1 + 0.2, 0.7], 0.1, [0.9**3, 0.9**7]),
        ([1.0, 1.01, 3.0], 1, [0, 0, 0]),
    ],
)
def test_euler_steps_hit_the_times(times, step, factors, dtype):
    particles = cloud(dtype=dtype)
    path = flows.wasserstein_flow(
        flows.potential(square), particles, jnp.asarray(times, dtype), step=step, weights=WEIGHTS
    )
    assert path.dtype == dtype
    expected = np.asarray(factors)[:, None, None] * np.asarray(particles)
    np.testing.assert_allclose(path, expected, atol=1e-6 if dtype == np.float32 else 1e-13)


@pytest.mark.parametrize("multiple", [1, 3, 7, 10, 30, 97])
def test_a_whole_number_of_steps_stays_one(multiple, dtype):
    time = jnp.asarray([multiple * 0.01], dtype)
    path = flows.wasserstein_flow(
        flows.potential(square), cloud(1, 1, dtype=dtype), time, step=0.01
    )
    np.testing.assert_allclose(path[0], 0.99**multiple * cloud(1, 1), rtol=2e-5)


def test_euler_has_order_one_and_agrees_with_the_adaptive_method():
    energy = flows.total(flows.interaction(repulsion), flows.potential(square))
    particles, times = cloud(), jnp.array([1.0])
    exact = flows.wasserstein_flow(energy, particles, times, weights=WEIGHTS)
    errors = [
        np.abs(flows.wasserstein_flow(energy, particles, times, weights=WEIGHTS, step=h) - exact)
        for h in (0.01, 0.005)
    ]
    assert errors[1].max() < 5e-3
    np.testing.assert_allclose(errors[0].max() / errors[1].max(), 2, rtol=0.03)


@pytest.mark.parametrize("temperature", [0.5, 2])
def test_free_diffusion_spreads_like_two_tau_t(temperature):
    """With no force the Euler chain is exact; intervals of unequal length, in two dimensions."""
    n, times = 20_000, np.array([0.2, 1.0, 1.3])
    path = flows.wasserstein_flow(
        flows.potential(lambda x: 0 * x[0]),
        jnp.ones((n, 2)),
        jnp.asarray(times),
        step=0.1,
        temperature=temperature,
        key=KEY,
    )
    moves = np.diff(path, axis=0, prepend=np.ones((1, n, 2)))
    variances = 2 * temperature * np.diff(times, prepend=0)
    for move, variance in zip(moves, variances, strict=True):
        np.testing.assert_allclose(move.mean(0), 0, atol=4 * np.sqrt(variance / n))
        covariance = move.T @ move / n
        np.testing.assert_allclose(
            covariance, variance * np.eye(2), atol=4 * variance * (2 / n) ** 0.5
        )
    scaled = moves[..., 0] / np.sqrt(variances)[:, None]
    between = scaled @ scaled.T / n - np.diag(np.mean(scaled**2, 1))
    np.testing.assert_allclose(between, 0, atol=4 / np.sqrt(n))


def test_ornstein_uhlenbeck_variance():
    """v' = -2 v + 2 tau; the Euler chain has v <- (1 - h)^2 v + 2 tau h exactly."""
    n, tau, h, times = 20_000, 0.7, 0.02, np.array([0.5, 4.0])
    start = 3.0
    path = flows.wasserstein_flow(
        flows.potential(square),
        jnp.full((n, 1), start),
        jnp.asarray(times),
        step=h,
        temperature=tau,
        key=KEY,
    )
    for t, now in zip(times, np.asarray(path)[:, :, 0], strict=True):
        shrink = (1 - h) ** (2 * round(t / h))
        variance = tau / (1 - h / 2) * (1 - shrink)
        mean = start * np.sqrt(shrink)
        assert abs(now.mean() - mean) < 4 * np.sqrt(variance / n)
        assert abs(now.var() - variance) < 4 * variance * np.sqrt(2 / n)
        second, fourth = mean**2 + variance, 2 * variance**2 + 4 * mean**2 * variance
        assert abs(np.mean(now**2) - second) < 4 * np.sqrt(fourth / n)
        # and the continuous law, which the chain approaches with h
        np.testing.assert_allclose(variance, tau * (1 - np.exp(-2 * t)), rtol=2 * h)
    assert abs(np.asarray(path)[-1].var() - tau) < 4 * tau * np.sqrt(2 / n) + h * tau


def test_noise_follows_its_key_and_not_the_times_recorded():
    def run(times, key=KEY, **options):
        particles, energy = cloud(), flows.potential(square)
        return flows.wasserstein_flow(
            energy, particles, jnp.asarray(times), step=0.125, key=key, **options
        )

    coarse, fine = run([1.0], temperature=1.0), run([0.25, 0.5, 1.0], temperature=1.0)
    np.testing.assert_array_equal(coarse[-1], run([1.0], temperature=1.0)[-1])
    np.testing.assert_allclose(coarse[-1], fine[-1], rtol=1e-12)
    assert not np.any(coarse == run([1.0], jax.random.key(1), temperature=1.0))
    np.testing.assert_array_equal(run([1.0], None), run([1.0], temperature=0))
    assert not np.any(coarse == run([1.0], None))


@jax.jit
def relaxed(matrix, strength, particles, weights, times):
    """A flow in a random bowl with random attraction, and its energies; compiled once."""
    energy = flows.total(
        flows.potential(lambda x: x @ matrix @ x / 2 + jnp.sum(jnp.cos(x))),
        flows.interaction(lambda x, y: strength * jnp.log1p(square(x - y))),
    )
    path = flows.wasserstein_flow(energy, particles, times, weights=weights)
    euler = flows.wasserstein_flow(energy, particles, times, weights=weights, step=0.01)
    values = lambda p: jax.vmap(lambda cloud: energy(cloud, weights))(p)  # noqa: E731
    return path, values(path), values(euler), flows.velocity(energy, particles, weights)


@given(st.integers(0, 10**6), st.floats(-2, 5))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_energy_decreases_and_mass_is_kept(seed, strength):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(2, 2))
    weights = rng.uniform(0.1, 1, size=6)
    weights /= weights.sum()
    particles, h = rng.normal(size=(6, 2)), 1e-3
    times = np.append([0, h, 2 * h], np.linspace(0.1, 1, 8))
    arguments = [root @ root.T, strength, particles, weights, times]
    path, energies, euler, velocity = relaxed(*map(jnp.asarray, arguments))
    assert path.shape == (11, 6, 2)
    assert np.all(np.diff(energies) < 1e-9)
    assert np.all(np.diff(euler) < 1e-9)
    assert energies[-1] < energies[0]
    # dF/dt = - sum_i w_i |v_i|^2 at the start, to second order in the time step
    rate = (-3 * energies[0] + 4 * energies[1] - energies[2]) / (2 * h)
    np.testing.assert_allclose(rate, -weights @ np.sum(np.asarray(velocity) ** 2, 1), rtol=0.01)
    # the centre of mass moves with the potential alone
    mean = weights @ np.asarray(velocity)
    force = -(particles @ (root @ root.T) - np.sin(particles))
    np.testing.assert_allclose(mean, weights @ force, atol=1e-10)


def test_flow_converts_integers(user):
    path = flows.wasserstein_flow(flows.potential(square), [[2], [4]], [0, 1], step=1)
    assert path.dtype == np.float64
    assert path.tolist() == [[[2], [4]], [[0], [0]]]


@pytest.mark.parametrize("step", [None, 0.1])
def test_known_weights_inside_a_traced_function(step):
    run = jax.jit(
        lambda p: flows.wasserstein_flow(
            flows.potential(square), p, jnp.array([1.0]), weights=WEIGHTS, step=step
        )
    )
    factor = np.exp(-1) if step is None else 0.9**10
    np.testing.assert_allclose(run(cloud())[0], factor * cloud(), atol=1e-7)


@pytest.mark.parametrize(
    ("step", "message"),
    [(None, "the flow left the finite numbers"), (0.1, "left the finite numbers: take a smaller")],
)
def test_a_flow_that_blows_up_stops(step, message):
    energy = flows.potential(lambda x: -jnp.sum(x**4))
    with pytest.raises(FloatingPointError, match=message):
        flows.wasserstein_flow(energy, jnp.ones((2, 1)), jnp.array([0.01, 100.0]), step=step)


BOWL = flows.potential(square)
P = np.ones((3, 2))


@pytest.mark.usefixtures("user")
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (dict(particles=np.ones(3)), ValueError, r"expected particles of shape \(n, d\)"),
        (dict(particles=np.ones((0, 2))), ValueError, "expected at least one point in particles"),
        (dict(particles=[[NAN]]), ValueError, "expected finite particles"),
        (dict(times=[1.0, 0.5]), ValueError, "expected increasing times"),
        (dict(times=[-1.0]), ValueError, "expected times t >= 0"),
        (dict(times=[]), ValueError, "expected a list of times"),
        (dict(times=1.0), ValueError, "expected a list of times"),
        (dict(times=[np.inf]), ValueError, "expected finite times"),
        (dict(weights=[0.5, 0.5]), ValueError, r"expected weights of shape \(3,\)"),
        (dict(weights=[0.5, 0.5, 0.5]), ValueError, "expected weights that sum to 1"),
        (dict(weights=[1.5, -1.0, 0.5]), ValueError, "expected weights >= 0"),
        (dict(weights=[0.5, 0.5, 0.0]), ValueError, "expected positive weights, got a weight of 0"),
        (dict(step=0.0), ValueError, "expected step > 0, got 0.0"),
        (dict(step=-0.1), ValueError, "expected step > 0, got -0.1"),
        (dict(temperature=-1.0), ValueError, "expected temperature >= 0, got -1.0"),
        (dict(temperature=1.0), ValueError, "expected a step for a flow with temperature > 0"),
        (dict(temperature=1.0, key=KEY), ValueError, "expected a step for a flow with temperature"),
        (dict(temperature=1.0, step=0.1), ValueError, "expected a key for a flow with temperature"),
        (
            dict(F=lambda p, w: w),
            ValueError,
            r"expected an energy that is a number, got shape \(3,",
        ),
        (dict(F=lambda p, w: jnp.sum(p) / 0.0), FloatingPointError, "the energy is inf at the"),
    ],
)
def test_bad_flows(call, error, message):
    arguments = {"F": BOWL, "particles": P, "times": [1.0], **call}
    with pytest.raises(error, match=message):
        flows.wasserstein_flow(**arguments)


@pytest.mark.usefixtures("user")
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: flows.first_variation(BOWL, P[0]), ValueError, "expected particles of shape"),
        (lambda: flows.first_variation(BOWL, P, [1.0]), ValueError, "expected weights of shape"),
        (
            lambda: flows.first_variation(lambda p, w: p, P),
            ValueError,
            "an energy that is a number",
        ),
        (
            lambda: flows.first_variation(lambda p, w: jnp.log(0 * p[0, 0]), P),
            FloatingPointError,
            "the energy is -inf at the particles given",
        ),
        (lambda: flows.first_variation(BOWL, P)(np.ones(3)), ValueError, "expected x of shape"),
        (
            lambda: flows.first_variation(BOWL, P)(np.ones((2, 3))),
            ValueError,
            "expected x with poi",
        ),
        (lambda: flows.first_variation(BOWL, P)([NAN, 1.0]), ValueError, "expected finite x"),
        (lambda: flows.mean_field_risk(np.ones(3), np.ones(3)), ValueError, "expected x of shape"),
        (lambda: flows.mean_field_risk(P, np.ones(2)), ValueError, r"expected y of shape \(3,\)"),
        (lambda: flows.mean_field_risk(P, P), ValueError, r"expected y of shape \(n,\), got"),
        (lambda: flows.mean_field_risk(P, [NAN, 0, 0]), ValueError, "expected finite y"),
        (
            lambda: flows.mean_field_risk(P, np.ones(3), "swish"),
            ValueError,
            "expected an activation",
        ),
        (
            lambda: flows.mean_field_risk(P, np.ones(3))(P, np.ones(3) / 3),
            ValueError,
            r"expected particles \(a, w\) of dimension 3, got 2",
        ),
    ],
)
def test_bad_energies(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("step", [None, 0.1])
def test_flows_under_all_transformations(step):
    energy, times = flows.total(BOWL, flows.interaction(repulsion)), jnp.array([0.5])
    end = lambda p: flows.wasserstein_flow(energy, p, times, step=step)[-1]  # noqa: E731
    clouds = jnp.stack([cloud(3, 2), cloud(3, 2, seed=1)])
    ends = jax.vmap(end)(clouds)
    for one, particles in zip(ends, clouds, strict=True):
        np.testing.assert_allclose(one, end(particles), atol=1e-7)
    towards, h = cloud(3, 2, seed=2), 1e-4
    difference = (end(clouds[0] + h * towards) - end(clouds[0] - h * towards)) / (2 * h)
    forward = jax.jvp(end, (clouds[0],), (towards,))[1]
    np.testing.assert_allclose(forward, difference, atol=1e-5)
    cotangent = cloud(3, 2, seed=3)
    backward = jax.vjp(end, clouds[0])[1](cotangent)[0]
    np.testing.assert_allclose(
        jnp.vdot(backward, towards), jnp.vdot(cotangent, difference), atol=1e-4
    )


def test_the_temperature_may_be_traced():
    run = lambda tau: flows.wasserstein_flow(  # noqa: E731
        BOWL, cloud(), jnp.array([1.0]), step=0.125, temperature=tau, key=KEY
    )
    taus = jnp.array([0.0, 0.5, 2.0])
    for got, tau in zip(jax.vmap(run)(taus), taus, strict=True):
        np.testing.assert_allclose(got, run(float(tau)), rtol=1e-12)


def test_pairs_in_tiles_are_all_pairs():
    n = tiles.TILE + 5
    particles, weights = cloud(n), jnp.arange(1.0, n + 1) / (n * (n + 1) / 2)

    def stored(particles, weights):
        pairs = jax.vmap(lambda a: jax.vmap(lambda b: repulsion(a, b))(particles))(particles)
        return weights @ pairs @ weights / 2

    tiled, whole = (
        jax.value_and_grad(F, (0, 1))(particles, weights)
        for F in (flows.interaction(repulsion), stored)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-14), tiled, whole)


def test_more_steps_than_are_tried_are_refused():
    with pytest.raises(FloatingPointError, match="left the finite numbers"):
        flows.wasserstein_flow(BOWL, cloud(1, 1), jnp.array([1.0]), step=2.0**-19)


@pytest.mark.parametrize("d", [2, 12])
def test_a_kernel_interacts_as_its_function_does_under_every_transformation(d):
    points = jax.random.normal(jax.random.key(3), (2, 40, d))
    points = points.at[:, 1].set(points[:, 0])  # two particles in one place
    weights, times = jnp.full(40, 1 / 40), jnp.array([0.5])

    def end(of_kernel, lengthscale, particles):
        k = kernels.rbf(lengthscale)
        energy = flows.interaction(k if of_kernel else lambda x, y: k(x, y))
        path = flows.wasserstein_flow(energy, particles, times, weights=weights, step=0.1)
        return jnp.sum(path**3)

    both = jax.jit(jax.vmap(jax.value_and_grad(end, (1, 2)), (None, None, 0)), static_argnums=0)
    for ours, general in zip(
        jax.tree.leaves(both(True, 1.3, points)),
        jax.tree.leaves(both(False, 1.3, points)),
        strict=True,
    ):
        np.testing.assert_allclose(ours, general, rtol=1e-9, atol=1e-12)
    small = flows.velocity(
        flows.interaction(kernels.rbf(1.3)), points[0].astype("float32"), weights.astype("float32")
    )
    assert small.dtype == jnp.float32
    exact = flows.velocity(flows.interaction(kernels.rbf(1.3)), points[0], weights)
    np.testing.assert_allclose(small, exact, atol=1e-6)
