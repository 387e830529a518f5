"""Wasserstein distances against POT, linear programming, brute force and closed forms."""

from itertools import permutations

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import ot
import pytest
import scipy.linalg
import scipy.optimize
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from ntkcourse import transport

NAN = float("nan")
SEEDS = st.integers(0, 10**6)
PROPERTY = settings(max_examples=25, deadline=None, derandomize=True)


def cloud(n, d, seed, dtype=np.float64):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(n, d)), dtype)


def probabilities(n, seed, dtype=np.float64):
    a = np.random.default_rng(seed).uniform(size=n)
    a[n // 2] = 0
    return jnp.asarray(a / a.sum(), dtype)


def linear_program(x, y, a, b):
    """The squared distance, from the definition."""
    n, m = len(x), len(y)
    costs = np.sum((np.asarray(x)[:, None] - np.asarray(y)[None]) ** 2, axis=2)
    marginals = np.vstack([np.kron(np.eye(n), np.ones(m)), np.kron(np.ones(n), np.eye(m))])
    totals = np.concatenate([a, b])
    return scipy.optimize.linprog(costs.ravel(), A_eq=marginals, b_eq=totals, method="highs").fun


def quantile_integral(x, y, a, b, levels=200_000):
    """The squared distance on the line by the midpoint rule over the quantile functions."""
    u = (np.arange(levels) + 0.5) / levels

    def quantile(points, weights):
        order = np.argsort(points)
        index = np.searchsorted(np.cumsum(weights[order]), u)
        return points[order][np.minimum(index, len(points) - 1)]

    return np.mean((quantile(x, a) - quantile(y, b)) ** 2)


@pytest.mark.parametrize(("n", "m", "d"), [(5, 5, 2), (4, 7, 3), (1, 6, 2), (6, 1, 1), (5, 8, 1)])
def test_weighted_clouds_against_linear_programming_and_pot(n, m, d):
    x, y = cloud(n, d, 0), cloud(m, d, 1)
    a = probabilities(n, 2) if n > 1 else jnp.ones(1)
    b = probabilities(m, 3) if m > 1 else jnp.ones(1)
    for p, q in [(a, b), (None, b), (a, None), (None, None)]:
        full_p = np.full(n, 1 / n) if p is None else np.asarray(p)
        full_q = np.full(m, 1 / m) if q is None else np.asarray(q)
        ours = transport.wasserstein2(x, y, p, q)
        assert ours.shape == ()
        np.testing.assert_allclose(ours**2, linear_program(x, y, full_p, full_q), rtol=1e-9)
        costs = ot.dist(np.asarray(x), np.asarray(y))
        np.testing.assert_allclose(ours**2, ot.emd2(full_p, full_q, costs), rtol=1e-9)


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_equal_clouds_against_all_permutations(n, d):
    x, y = np.asarray(cloud(n, d, 4)), np.asarray(cloud(n, d, 5))
    cost = {s: np.mean(np.sum((x - y[list(s)]) ** 2, 1)) for s in permutations(range(n))}
    best = min(cost, key=cost.get)
    x, y = jnp.asarray(x), jnp.asarray(y)
    np.testing.assert_allclose(transport.wasserstein2(x, y) ** 2, cost[best], rtol=1e-12)
    permutation = transport.optimal_permutation(x, y)
    assert permutation.tolist() == list(best)
    assert jnp.issubdtype(permutation.dtype, jnp.integer)
    np.testing.assert_array_equal(transport.optimal_map(x, y), y[permutation])


@pytest.mark.parametrize(("n", "m"), [(6, 6), (3, 8)])
def test_one_dimension_by_quantiles(n, m):
    x, y, a, b = cloud(n, 1, 6), cloud(m, 1, 7), probabilities(n, 8), probabilities(m, 9)
    arrays = [np.asarray(v).ravel() for v in (x, y, a, b)]
    expected = quantile_integral(*arrays)
    np.testing.assert_allclose(transport.wasserstein2(x, y, a, b) ** 2, expected, rtol=1e-3)
    if n == m:
        sorted_formula = np.sqrt(np.mean((np.sort(arrays[0]) - np.sort(arrays[1])) ** 2))
        np.testing.assert_allclose(transport.wasserstein2(x, y), sorted_formula, rtol=1e-13)


@given(SEEDS)
@PROPERTY
def test_sorting_agrees_with_the_network_simplex(seed):
    x, y, a, b = cloud(6, 1, seed), cloud(4, 1, seed + 1), probabilities(6, seed), None
    plan = transport.coupling(x, y, a, b)
    cost = np.sum(np.asarray(plan) * (np.asarray(x) - np.asarray(y).T) ** 2)
    np.testing.assert_allclose(transport.wasserstein2(x, y, a, b) ** 2, cost, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("d", [1, 2])
def test_points_without_mass_do_not_matter(d):
    """Ten times 0.1 is not 1 in floating point; the far point must not get the rest."""
    x = jnp.concatenate([cloud(10, d, 0), jnp.full((1, d), 1e9)])
    y = jnp.concatenate([cloud(10, d, 1), jnp.full((1, d), -1e9)])
    a = jnp.append(jnp.full(10, 0.1), 0.0)
    expected = transport.wasserstein2(x[:10], y[:10])
    np.testing.assert_allclose(transport.wasserstein2(x, y, a, a), expected, rtol=1e-9)
    np.testing.assert_allclose(transport.wasserstein2(x, y[:10], a), expected, rtol=1e-9)


@pytest.mark.parametrize("d", [1, 2])
def test_repeated_points_are_one_point_with_more_mass(d):
    x, y = cloud(3, d, 0), cloud(4, d, 1)
    twice = jnp.concatenate([x, x[:1]])
    merged = transport.wasserstein2(x, y, jnp.array([0.5, 0.25, 0.25]))
    np.testing.assert_allclose(transport.wasserstein2(twice, y), merged, rtol=1e-12)


@pytest.mark.parametrize("d", [1, 3])
def test_small_distances_far_from_the_origin(d):
    x = 1e6 + cloud(5, d, 0)
    shift = jnp.full((1, d), 2.0**-20)
    expected = 2.0**-20 * np.sqrt(d)
    np.testing.assert_allclose(transport.wasserstein2(x, x + shift), expected, rtol=1e-3)
    assert transport.wasserstein2(x, x[::-1]) == 0


@pytest.mark.parametrize("d", [1, 2])
@given(SEEDS)
@PROPERTY
def test_metric_axioms(d, seed):
    x, y, z = cloud(4, d, seed), cloud(5, d, seed + 1), cloud(4, d, seed + 2)
    a, c = probabilities(4, seed), probabilities(4, seed + 3)
    xy, yz = transport.wasserstein2(x, y, a), transport.wasserstein2(y, z, None, c)
    assert transport.wasserstein2(x, z, a, c) <= xy + yz + 1e-12
    np.testing.assert_allclose(transport.wasserstein2(y, x, None, a), xy, rtol=1e-9)
    assert xy > 0
    assert transport.wasserstein2(x, x[::-1], a, a[::-1]) < 1e-7
    assert transport.wasserstein2(x, x) == 0


@pytest.mark.parametrize("d", [1, 3])
@given(SEEDS, st.floats(0.01, 50))
@PROPERTY
def test_translation_rotation_and_scaling(d, seed, factor):
    x, y, a = cloud(4, d, seed), cloud(4, d, seed + 1), probabilities(4, seed)
    turn = jnp.asarray(np.linalg.qr(np.random.default_rng(seed).normal(size=(d, d)))[0])
    shift = cloud(1, d, seed + 2)
    for p in (None, a):
        distance = transport.wasserstein2(x, y, p, p)
        rigid = transport.wasserstein2(x @ turn + shift, y @ turn + shift, p, p)
        np.testing.assert_allclose(rigid, distance, rtol=1e-7)
        scaled = transport.wasserstein2(-factor * x, -factor * y, p, p)
        np.testing.assert_allclose(scaled, factor * distance, rtol=1e-7)
        # moving a cloud by v: W2^2 grows by |v|^2 + 2 v . (difference of the means)
        moved = transport.wasserstein2(x + shift, y, p, p) ** 2
        mean = np.average(np.asarray(x - y), axis=0, weights=p)
        expected = distance**2 + np.sum(shift**2) + 2 * np.asarray(shift)[0] @ mean
        np.testing.assert_allclose(moved, expected, rtol=1e-7)


def test_coupling_is_optimal_and_has_its_marginals(dtype):
    x, y = cloud(5, 2, 0, dtype), cloud(4, 2, 1, dtype)
    a, b = probabilities(5, 2, dtype), probabilities(4, 3, dtype)
    tolerance = 10 * float(jnp.finfo(dtype).eps)
    for p, q in [(a, b), (None, None)]:
        plan = transport.coupling(x, y, p, q)
        assert plan.dtype == dtype
        assert plan.shape == (5, 4)
        assert np.all(np.asarray(plan) >= 0)
        np.testing.assert_allclose(plan.sum(1), np.full(5, 0.2) if p is None else p, atol=tolerance)
        np.testing.assert_allclose(
            plan.sum(0), np.full(4, 0.25) if q is None else q, atol=tolerance
        )
        costs = np.sum((np.asarray(x)[:, None] - np.asarray(y)[None]) ** 2, 2)
        distance = transport.wasserstein2(x, y, p, q)
        np.testing.assert_allclose(np.sum(plan * costs), distance**2, rtol=1e-5)


def test_weights_that_sum_to_one_up_to_rounding_are_normalised():
    x, y, a = cloud(5, 2, 0), cloud(4, 2, 1), probabilities(5, 2)
    slightly_more = a * (1 + 9e-7)
    np.testing.assert_allclose(transport.coupling(x, y, slightly_more).sum(), 1, rtol=1e-12)
    for d in (1, 2):
        distances = [transport.wasserstein2(x[:, :d], y[:, :d], p) for p in (a, slightly_more)]
        np.testing.assert_allclose(*distances, rtol=1e-12)


def test_optimal_map_is_monotone_and_onto(dtype):
    x, y = cloud(6, 2, 0, dtype), cloud(6, 2, 1, dtype)
    image = transport.optimal_map(x, y)
    assert image.dtype == dtype
    assert {tuple(p) for p in image.tolist()} == {tuple(p) for p in y.tolist()}
    gaps = np.asarray(x)[:, None] - np.asarray(x), np.asarray(image)[:, None] - np.asarray(image)
    assert np.all(np.sum(gaps[0] * gaps[1], 2) >= -1e-6)


@pytest.mark.parametrize("d", [1, 2])
def test_geodesic_has_constant_speed(d, dtype):
    x, y = cloud(5, d, 0, dtype), cloud(5, d, 1, dtype)
    times = jnp.array([0.0, 0.2, 0.7, 1.0], dtype)
    path = transport.geodesic(x, y, times)
    assert path.shape == (4, 5, d)
    assert path.dtype == dtype
    np.testing.assert_array_equal(path[0], x)
    np.testing.assert_array_equal(path[-1], transport.optimal_map(x, y))
    whole = transport.wasserstein2(x, y)
    for s, at_s in zip(times, path, strict=True):
        np.testing.assert_allclose(transport.geodesic(x, y, float(s)), at_s, rtol=1e-6, atol=1e-6)
        for t, at_t in zip(times, path, strict=True):
            expected = abs(t - s) * whole
            np.testing.assert_allclose(transport.wasserstein2(at_s, at_t), expected, atol=1e-6)


def test_geodesic_of_a_traced_time():
    x, y = cloud(3, 2, 0), cloud(3, 2, 1)
    speed = jax.jit(jax.jacfwd(lambda t: transport.geodesic(x, y, t)))(0.3)
    np.testing.assert_allclose(speed, transport.optimal_map(x, y) - x, rtol=1e-12)
    fixed = jax.jit(lambda s: s * transport.geodesic(x, y, jnp.array(0.3)))(1.0)
    np.testing.assert_allclose(fixed, transport.geodesic(x, y, 0.3), rtol=1e-12)


def covariance(d, rank, seed):
    root = np.random.default_rng(seed).normal(size=(d, rank))
    return root @ root.T


@pytest.mark.parametrize(("d", "rank"), [(1, 1), (3, 3), (4, 2)])
def test_gaussian_distance_against_the_matrix_root(d, rank):
    m1, m2 = np.asarray(cloud(2, d, 0))
    c1, c2 = covariance(d, rank, 1), covariance(d, d, 2)
    values, vectors = np.linalg.eigh(c1)
    root = vectors @ np.diag(np.sqrt(np.maximum(values, 0))) @ vectors.T
    inner = root @ c2 @ root
    fidelity = np.sum(np.sqrt(np.maximum(np.linalg.eigvalsh(inner), 0)))
    if rank == d:
        np.testing.assert_allclose(fidelity, np.trace(scipy.linalg.sqrtm(inner)).real, rtol=1e-9)
    expected = np.sqrt(np.sum((m1 - m2) ** 2) + np.trace(c1 + c2) - 2 * fidelity)
    arguments = [jnp.asarray(v) for v in (m1, c1, m2, c2)]
    np.testing.assert_allclose(transport.gaussian_wasserstein2(*arguments), expected, rtol=1e-6)
    back = transport.gaussian_wasserstein2(*arguments[2:], *arguments[:2])
    np.testing.assert_allclose(back, expected, rtol=1e-6)


def test_gaussian_distance_on_the_line_and_in_samples(dtype):
    m1, m2, s1, s2 = 0.5, -0.25, 1.5, 0.5
    law = [jnp.asarray(v, dtype) for v in ([m1], [[s1**2]], [m2], [[s2**2]])]
    distance = transport.gaussian_wasserstein2(*law)
    assert distance.dtype == dtype
    np.testing.assert_allclose(distance, np.hypot(m1 - m2, s1 - s2), rtol=1e-5)
    levels = (np.arange(20_000) + 0.5) / 20_000
    x, y = (scipy.stats.norm.ppf(levels, m, s)[:, None] for m, s in ((m1, s1), (m2, s2)))
    sampled = transport.wasserstein2(jnp.asarray(x, dtype), jnp.asarray(y, dtype))
    np.testing.assert_allclose(sampled, distance, rtol=1e-4)


def test_gaussian_distance_of_random_samples():
    rng, n = np.random.default_rng(0), 500
    c1, c2 = covariance(2, 2, 3), covariance(2, 2, 4)
    m1, m2 = np.zeros(2), np.array([1.0, -1.0])
    x, y = rng.multivariate_normal(m1, c1, n), rng.multivariate_normal(m2, c2, n)
    sampled = transport.wasserstein2(jnp.asarray(x), jnp.asarray(y))
    exact = transport.gaussian_wasserstein2(*map(jnp.asarray, (m1, c1, m2, c2)))
    np.testing.assert_allclose(sampled, exact, rtol=0.1)


def test_gaussian_distance_of_equal_and_degenerate_laws(dtype):
    zero, m = jnp.zeros((3, 3), dtype), jnp.array([3.0, 0.0, 4.0], dtype)
    assert transport.gaussian_wasserstein2(m, zero, 0 * m, zero) == 5
    tiny = jnp.asarray(1e-4 * np.eye(3), dtype)
    distance = transport.gaussian_wasserstein2(m, tiny, m, 4 * tiny)
    np.testing.assert_allclose(distance, 1e-2 * np.sqrt(3), rtol=1e-3)
    for seed in range(10):  # 0 up to rounding under the root, never NaN
        c = jnp.asarray(covariance(3, 2, seed), dtype)
        assert transport.gaussian_wasserstein2(m, c, m, c) < 10 * jnp.finfo(dtype).eps ** 0.5


def test_gaussian_distance_has_a_gradient():
    eye = jnp.eye(2)
    m = jnp.array([3.0, 4.0])
    slope = jax.jit(jax.grad(lambda v: transport.gaussian_wasserstein2(v, eye, 0 * v, 2 * eye)))(m)
    distance = transport.gaussian_wasserstein2(m, eye, 0 * m, 2 * eye)
    np.testing.assert_allclose(slope, m / distance, rtol=1e-6)


def test_a_covariance_may_err_by_rounding():
    """Up to 100 eps in symmetry and 100 d eps below 0, times the largest entry."""
    eps, m = np.finfo(float).eps, jnp.zeros(2)
    eye = jnp.eye(2)
    for scale in (1.0, 1e6):
        for bad, allowed in [
            ([[1, 90 * eps], [0, 1]], True),
            ([[1, 0], [120 * eps, 1]], False),
            ([[1, 0], [0, -180 * eps]], True),
            ([[1, 0], [0, -240 * eps]], False),
        ]:
            matrix = scale * jnp.asarray(bad)
            for law in [(m, matrix, m, eye), (m, eye, m, matrix)]:
                if allowed:
                    assert np.isfinite(transport.gaussian_wasserstein2(*law))
                else:
                    with pytest.raises(ValueError, match="symmetric positive semidefinite"):
                        transport.gaussian_wasserstein2(*law)


def test_results_are_in_the_dtype_of_the_input(dtype):
    x, y, a = cloud(4, 2, 0, dtype), cloud(4, 2, 1, dtype), probabilities(4, 2, dtype)
    for result in (
        transport.wasserstein2(x, y),
        transport.wasserstein2(x, y, a),
        transport.wasserstein2(x[:, :1], y[:, :1], a),
    ):
        assert result.dtype == dtype


def test_points_may_be_images(user):
    x = np.random.default_rng(0).normal(size=(3, 2, 2, 1))
    y = np.random.default_rng(1).normal(size=(3, 2, 2, 1))
    flat = transport.wasserstein2(x.reshape(3, 4), y.reshape(3, 4))
    np.testing.assert_allclose(transport.wasserstein2(x, y), flat, rtol=1e-12)


def test_integers_are_converted(user):
    assert transport.wasserstein2([[0], [1]], [[2], [1]]) == 1
    assert transport.wasserstein2([[0, 0]], [[3, 4]]) == 5
    assert transport.geodesic([[0]], [[1]], 0.5) == 0.5
    assert transport.gaussian_wasserstein2([0, 0], np.eye(2, dtype=int), [3, 4], np.eye(2)) == 5


X, Y = np.zeros((3, 2)), np.ones((3, 2))
CLOUD_FUNCTIONS = {
    "wasserstein2": transport.wasserstein2,
    "coupling": transport.coupling,
    "optimal_permutation": transport.optimal_permutation,
    "optimal_map": transport.optimal_map,
    "geodesic": lambda x, y: transport.geodesic(x, y, 0.5),
}


@pytest.mark.usefixtures("user")
@pytest.mark.parametrize("name", CLOUD_FUNCTIONS)
@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.ones(3), Y, r"expected x of shape \(n, d\), one point per row, got shape \(3,\)"),
        (X, np.ones(3), r"expected y of shape \(n, d\), one point per row, got shape \(3,\)"),
        (X, np.ones((3, 4)), r"expected y with points of shape \(2,\), got points of \(4,\)"),
        (np.ones((0, 2)), Y, "expected at least one point in x"),
        (X, np.ones((0, 2)), "expected at least one point in y"),
        ([[NAN, 0.0]], Y, "expected finite x, got NaN or infinity"),
        (X, [[0.0, -np.inf]], "expected finite y, got NaN or infinity"),
    ],
)
def test_bad_clouds(name, x, y, message):
    with pytest.raises(ValueError, match=message):
        CLOUD_FUNCTIONS[name](x, y)


@pytest.mark.usefixtures("user")
@pytest.mark.parametrize("function", [transport.wasserstein2, transport.coupling])
@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([0.5, 0.5], r"expected {} of shape \(3,\), got shape \(2,\)"),
        ([0.5, 0.5, 0.5], "expected {} that sum to 1, got the sum 1.5"),
        ([-0.5, 1.0, 0.5], "expected {} >= 0, got -0.5"),
        ([NAN, 0.5, 0.5], "expected finite {}"),
    ],
)
def test_bad_weights(function, d, weights, message):
    with pytest.raises(ValueError, match=message.format("a")):
        function(X[:, :d], Y[:, :d], weights)
    with pytest.raises(ValueError, match=message.format("b")):
        function(X[:, :d], Y[:, :d], None, weights)


@pytest.mark.usefixtures("user")
@pytest.mark.parametrize("name", ["optimal_permutation", "optimal_map", "geodesic"])
def test_maps_need_clouds_of_equal_size(name):
    with pytest.raises(ValueError, match="expected clouds of equal size, got 3 and 2 points"):
        CLOUD_FUNCTIONS[name](X, Y[:2])


@pytest.mark.usefixtures("user")
@pytest.mark.parametrize(
    ("t", "message"),
    [
        (-0.1, "expected times t >= 0, got -0.1"),
        (1.1, r"expected t in \[0, 1\], got 1.1"),
        ([0.5, 2.0], r"expected t in \[0, 1\], got"),
        (NAN, "expected times t >= 0"),
        ([[0.5]], "expected a time or a list of times"),
    ],
)
def test_bad_times(t, message):
    with pytest.raises(ValueError, match=message):
        transport.geodesic(X, Y, t)


M, C = np.zeros(2), np.eye(2)


@pytest.mark.usefixtures("user")
@pytest.mark.parametrize(
    ("law", "message"),
    [
        (
            (np.zeros((2, 1)), C, M, C),
            r"expected means \(d,\) and covariances \(d, d\), got",
        ),
        ((M, C, np.zeros(3), C), "expected means"),
        ((M, np.eye(3), M, C), "expected means"),
        ((M, C, M, np.ones(2)), "expected means"),
        ((np.zeros(0), np.zeros((0, 0)), np.zeros(0), np.zeros((0, 0))), "expected means"),
        ((M, -C, M, C), "expected a symmetric positive semidefinite C1, got"),
        ((M, C, M, [[1.0, 2.0], [2.0, 1.0]]), "expected a symmetric positive semidefinite C2, got"),
        ((M, [[1.0, 0.5], [0.0, 1.0]], M, C), "expected a symmetric positive semidefinite C1, got"),
        (([NAN, 0.0], C, M, C), "expected finite m1"),
        ((M, C * NAN, M, C), "expected finite C1"),
        ((M, C, [NAN, 0.0], C), "expected finite m2"),
        ((M, C, M, np.full((2, 2), np.inf)), "expected finite C2"),
    ],
)
def test_bad_gaussians(law, message):
    with pytest.raises(ValueError, match=message):
        transport.gaussian_wasserstein2(*law)


@pytest.mark.parametrize("d", [2, 40])
def test_large_clouds_against_the_assignment_of_all_pairs(d):
    """Above plans.SMALL points, only some pairs take part; the result is as exact."""
    for n, kind in [(250, "normal"), (900, "normal"), (300, "clusters"), (300, "repeated")]:
        x, y = (np.array(cloud(n, d, s)) for s in (1, 2))
        if kind == "clusters":
            x[::3] += 30
            y[::2] -= 30
        if kind == "repeated":
            x, y = x[np.arange(n) % 20], y[np.arange(n) % 30]
        costs = np.sum((x[:, None] - y[None]) ** 2, 2)
        best = np.mean(costs[scipy.optimize.linear_sum_assignment(costs)])
        x, y = jnp.asarray(x), jnp.asarray(y)
        np.testing.assert_allclose(transport.wasserstein2(x, y) ** 2, best, rtol=1e-12)
        columns = np.asarray(transport.optimal_permutation(x, y))
        assert sorted(columns) == list(range(n))
        np.testing.assert_allclose(costs[np.arange(n), columns].mean(), best, rtol=1e-12)
        some = y[: n - 50]
        other = ot.emd2([], [], costs[:, : n - 50], numItermax=10**7)
        np.testing.assert_allclose(transport.wasserstein2(x, some) ** 2, other, rtol=1e-10)


CLOUDS = {
    "line": ((5, 1), (5, 1), False), "weighted line": ((5, 1), (4, 1), True),
    "plane": ((5, 2), (5, 2), False), "weighted plane": ((5, 2), (4, 2), True),
}  # fmt: skip


@pytest.mark.parametrize("name", CLOUDS)
def test_derivatives_and_transformations(name):
    """Derivatives by finite differences; under jit and vmap the same numbers."""
    first, second, weighted = CLOUDS[name]
    x, y = cloud(*first, 10), cloud(*second, 11)
    a, b = (probabilities(5, 12), probabilities(len(y), 13)) if weighted else (None, None)

    def distance(x, y):
        return transport.wasserstein2(jnp.asarray(x), jnp.asarray(y), a, b)

    np.testing.assert_allclose(jax.jit(distance)(x, y), distance(x, y), rtol=1e-13)
    many = jnp.stack([x, 2 * x])
    np.testing.assert_allclose(
        jax.vmap(distance, (0, None))(many, y), [distance(p, y) for p in many], rtol=1e-13
    )
    jax.test_util.check_grads(distance, (x, y), order=1, modes=("fwd", "rev"), rtol=1e-6)
    plan = jax.jit(lambda x: transport.coupling(x, y, a, b))(x)
    np.testing.assert_allclose(plan, transport.coupling(x, y, a, b), atol=1e-16)
    if not weighted:
        assert not np.any(jax.grad(distance)(x, x))
    else:
        with pytest.raises(TypeError, match="got derivatives by its weights"):
            jax.grad(lambda w: transport.wasserstein2(x, y, w, b))(a)
        traced = jax.jit(lambda w: transport.wasserstein2(x, y, w, b))(a)
        np.testing.assert_allclose(traced, distance(x, y), rtol=1e-13)
