"""Odd inputs to public functions: finite and right, or a clear error; never a silent NaN.

A few examples of each by default; `make soak` takes thousands, with other shapes and fresh seeds.
"""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ntkcourse import features, flows, infinite, kernels, networks, tangent, transport

SOAK = bool(os.environ.get("SOAK"))
KEY = jax.random.key(0)
pytestmark = pytest.mark.usefixtures("user")

KERNELS = {
    "linear": kernels.linear(),
    "polynomial": kernels.polynomial(3),
    "rbf": kernels.rbf(1.3),
    "laplace 1": kernels.laplace(0.7),
    "laplace 2": kernels.laplace(2.0, norm=2),
    "cauchy": kernels.cauchy(0.7),
    "nngp relu": infinite.nngp(3, "relu"),
    "ntk relu": infinite.ntk(3, "relu", sigma_b=0.1),
    "ntk erf": infinite.ntk(2, "erf"),
    "ntk sin": infinite.ntk(2, "sin"),
}
SMOOTH, ROUGH = KERNELS["rbf"], KERNELS["laplace 1"]


def labels(x) -> np.ndarray:
    return np.linspace(-1, 1, len(x)).astype(x.dtype)


def network(x):
    init, apply = networks.mlp((x.shape[1], 8, 1), "tanh")
    return apply, init(key=KEY, dtype=x.dtype)


def entropic(x) -> jax.Array:
    energy = flows.potential(lambda u: jnp.sum(u**2) / 2)
    return flows.wasserstein_flow(energy, x, jnp.asarray([0.1], x.dtype))


FUNCTIONS = {
    "ridge_regression": lambda x: kernels.ridge_regression(SMOOTH, x, labels(x), 1e-3)(x),
    "ridge 0": lambda x: kernels.ridge_regression(ROUGH, x, labels(x))(x),
    "gaussian_process": lambda x: kernels.gaussian_process(ROUGH, x, labels(x), 0.1)(x),
    "gradient_flow": lambda x: kernels.gradient_flow(SMOOTH, x, labels(x), 1.0)(x),
    "log_marginal_likelihood": lambda x: kernels.log_marginal_likelihood(
        SMOOTH, x, labels(x), 0.1),
    "ridge_path": lambda x: kernels.ridge_path(
        kernels.gram(SMOOTH, x), kernels.gram(SMOOTH, x), labels(x), np.array([0.1, 1.0], x.dtype)),
    "fourier_features": lambda x: features.fourier_features(x.shape[1], m=8, key=KEY)(x),
    "random_layer": lambda x: features.random_layer(
        x.shape[1], m=8, activation="tanh", key=KEY)(x),
    "wasserstein2": lambda x: transport.wasserstein2(x, x[::-1] + 1),
    "coupling": lambda x: transport.coupling(x, x[::-1] + 1),
    "empirical_ntk": lambda x: tangent.empirical_ntk(*network(x), x),
    "wasserstein_flow": entropic,
}  # fmt: skip

# Inner products of inputs have to be numbers: beyond this an infinite network's kernel is NaN.
LARGEST = {"nngp": 1e9, "ntk": 1e9}
NUMBERS = [0.0, -0.0, 1.0, -1.0, 1 + 2e-16, 0.5, 3.0, 1e-8, 1e8, 5e-324, 1e-310, 1e-300, 1e-160,
           1e-40, 1e30, 1e150, 1e300, -1e300]  # fmt: skip
SHAPES = [(1, 1), (3, 2), (4, 1), (2, 50), (3, 10_000)] if SOAK else [(3, 2)]


@st.composite
def points(draw, numbers=NUMBERS):
    """Rows of odd numbers, some of them equal or nearly so."""
    shape = draw(st.sampled_from(SHAPES))
    dtype = draw(st.sampled_from([np.float64, np.float32]))
    some = st.sampled_from(numbers) | st.floats(-10, 10)
    few = draw(st.lists(some, min_size=1, max_size=6))
    generator = np.random.default_rng(draw(st.integers(0, 10**6)))
    with np.errstate(over="ignore"):
        x = generator.choice(few, size=shape).astype(dtype)
    if draw(st.booleans()):
        x[-1] = x[0] * dtype(1 + draw(st.sampled_from([0.0, 1e-7, 1e-15])))
    return x


def fuzz(test):
    examples = 10_000 if SOAK else 15
    options = {"deadline": None, "suppress_health_check": list(HealthCheck)}
    return settings(max_examples=examples, derandomize=not SOAK, **options)(test)


def outcome(function, x):
    """What a function returns, or None if it says clearly what it expected."""
    try:
        return [np.asarray(leaf) for leaf in jax.tree.leaves(function(x))]
    except (ValueError, TypeError, FloatingPointError) as error:
        said = str(error)
    assert len(said) > 10, said
    return None


def refused(function, x) -> bool:
    try:
        function(x)
    except ValueError as error:
        return "expected" in str(error)
    return False


each_kernel = pytest.mark.parametrize("name", KERNELS)
each_function = pytest.mark.parametrize("name", FUNCTIONS)


@pytest.mark.filterwarnings("ignore")  # overflow, a ridge below rounding: said, as it should be
@each_kernel
def test_gram_matrices_of_odd_points(name):
    @fuzz
    @given(points())
    def check(x):
        if np.abs(x).max() > LARGEST.get(name.split()[0], np.inf):
            return
        if (values := outcome(lambda x: kernels.gram(KERNELS[name], x), x)) is None:
            assert not np.isfinite(x).all()
            return
        assert np.isfinite(x).all()
        [K] = values
        assert not np.isnan(K).any()
        np.testing.assert_array_equal(K, K.T)
        if np.isfinite(K).all():
            # squares of tiny numbers underflow before their products with others do
            least = float(np.finfo(K.dtype).tiny) * (1 + x.shape[1])
            size = np.sqrt(np.diag(K).astype(float) + least)
            bound = np.outer(size, size) * (1 + 1e-5)
            assert (np.abs(K.astype(float)) <= bound).all()

    check()


@pytest.mark.filterwarnings("ignore")
@each_function
def test_functions_of_odd_points(name):
    @fuzz
    @given(points())
    def check(x):
        values = outcome(FUNCTIONS[name], x)
        if not np.isfinite(x).all():
            assert values is None, "infinite input was accepted"
        elif values is not None:
            assert not any(np.isnan(value).any() for value in values)

    check()


@pytest.mark.parametrize("name", ["rbf", "laplace 2"])
def test_distances_of_points_whose_squares_overflow(name):
    """In many dimensions distances come from matrix products, where infinities could cancel."""
    x = np.full((3, 50), 1e30, np.float32)
    x[2] = -x[2]
    expected = np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1]])
    np.testing.assert_array_equal(kernels.gram(KERNELS[name], x), expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_no_number_is_refused_by_all(bad, dtype):
    x = np.array([[0.0, 1.0], [bad, 2.0], [1.0, 1.0]], dtype)
    calls = FUNCTIONS | {n: lambda x, k=k: kernels.gram(k, x) for n, k in KERNELS.items()}
    assert [name for name in calls if not refused(calls[name], x)] == []


@pytest.mark.parametrize("shape", [(0, 2), (3, 0), (3,), ()])
def test_shapes_that_are_no_points_are_refused_by_all(shape):
    x = np.ones(shape)
    calls = {n: lambda x, k=k: kernels.gram(k, x) for n, k in KERNELS.items()}
    assert [name for name in calls if not refused(calls[name], x)] == []
