"""Every public function under jit, vmap and both derivatives, on awkward data, in both precisions.

Each case is a function of arrays. Its value must be the same inside ``jax.jit`` and, for a batch,
under ``jax.vmap``; its derivative along a direction must be that of finite differences, forward
and in reverse, and that of single precision, in ``jax.jit`` alone, must be close to it. What a
function does not support raises a clear error, tested at the end. A hang is a failure: the
process ends after LIMIT seconds.
"""

import faulthandler
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from shared import normal

from ntkcourse import (
    convolution,
    data,
    features,
    flows,
    infinite,
    kernels,
    networks,
    tangent,
    training,
    transport,
)

LIMIT = 600
STEP = 1e-4
N = 6
KEY = jax.random.key(0)
KEYS = jax.random.split(KEY, 2)
NEW = normal(2, 2, seed=5)
SETS = {
    "generic": lambda: normal(N, 2),
    "circle": lambda: data.circle(N),
    "duplicated": lambda: jnp.concatenate([normal(N - 1, 2), normal(1, 2)]),
    "one": lambda: normal(1, 2),
}
"""The first two points of ``duplicated`` are not equal, its first and its last are."""

ACTIVATION = "erf"  # smooth, so that finite differences tell about every derivative
INIT, APPLY = networks.mlp((2, 4, 1), ACTIVATION, sigma_w=1.5, sigma_b=0.5)


@pytest.fixture(autouse=True)
def limit():
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def parameters(dtype):
    return jax.tree.map(lambda p: p.astype(dtype), INIT(key=KEY))  # one draw for both precisions


def loss(p, x, y):
    return jnp.sum((APPLY(p, x) - y) ** 2) / 2


def trained(p, x, y, **options):
    """The parameters after training, which depend on the data, on y and on the learning rate."""
    return training.path(lambda q: loss(q, x, y), p, steps=3, **options)


def of(dtype, array):
    return jnp.asarray(array, dtype)


def layer(m, s):
    return features.random_layer(2, m=m, activation="erf", sigma_w=s, key=KEY)


def cloud(x):
    return jnp.concatenate([x, x[:, :1] ** 2], axis=1)


def risk(x, y):
    return flows.mean_field_risk(x, y, ACTIVATION)


# A case takes (s, y, x): a number near 0.8, targets, points. ``fixed`` lists what is not varied:
# a result that jumps when twins part, or that is drawn at random, has no derivative by x.
CASES = {
    "linear": lambda s, y, x: s * kernels.linear()(x[0], x[-1]),
    "polynomial": lambda s, y, x: kernels.polynomial(3, s)(x[0], x[-1]),
    "rbf": lambda s, y, x: kernels.rbf(s)(x[0], x[-1]),
    "laplace": lambda s, y, x: kernels.laplace(s)(x[0], NEW[0].astype(x.dtype)),
    "laplace 2": lambda s, y, x: kernels.laplace(s, norm=2)(x[0], NEW[0].astype(x.dtype)),
    "cauchy": lambda s, y, x: kernels.cauchy(s)(x[0], x[-1]),
    "gram": lambda s, y, x: kernels.gram(kernels.rbf(s), x),
    "gram of a sum": lambda s, y, x: kernels.gram(s * kernels.rbf(s) + kernels.linear() * s, x),
    "gram in many dimensions": lambda s, y, x: kernels.gram(kernels.rbf(3 * s), jnp.tile(x, 6)),
    "matvec": lambda s, y, x: kernels.matvec(kernels.rbf(s), NEW.astype(x.dtype), y, x),
    "ridge_regression": lambda s, y, x: kernels.ridge_regression(kernels.rbf(s), x, y, 0.1 * s)(
        NEW.astype(x.dtype)
    ),
    "ridge_regression 0": lambda s, y, x: kernels.ridge_regression(kernels.rbf(s / 4), x, y)(
        NEW.astype(x.dtype)
    ),
    "ridge_path": lambda s, y, x: kernels.ridge_path(
        kernels.gram(kernels.rbf(s), x),
        kernels.gram(kernels.rbf(s), NEW.astype(x.dtype), x),
        y,
        s * of(x.dtype, [0.1, 1.0]),
    ),
    "descent_path": lambda s, y, x: kernels.descent_path(
        kernels.gram(kernels.rbf(s), x),
        kernels.gram(kernels.rbf(s), NEW.astype(x.dtype), x),
        y,
        0.1 * s,
        3,
    ),
    "gradient_flow": lambda s, y, x: kernels.gradient_flow(
        kernels.rbf(s), x, y, s * of(x.dtype, [0.5, 3.0])
    )(NEW.astype(x.dtype)),
    "gradient_flow at the end": lambda s, y, x: kernels.gradient_flow(
        kernels.rbf(s / 4), x, y, jnp.inf
    )(NEW.astype(x.dtype)),
    "gaussian_process": lambda s, y, x: kernels.gaussian_process(kernels.rbf(s), x, y, 0.1 * s)(
        NEW.astype(x.dtype)
    ),
    "log_marginal_likelihood": lambda s, y, x: kernels.log_marginal_likelihood(
        kernels.rbf(s), x, y, 0.1 * s
    ),
    "trained_ensemble": lambda s, y, x: kernels.trained_ensemble(
        infinite.nngp(2, "erf", s, 0.3), infinite.ntk(2, "erf", s, 0.3), x, y,
        NEW.astype(x.dtype), 2 * s, 0.1 * s,
    ),
    "gaussian_samples": lambda s, y, x: kernels.gaussian_samples(
        y, kernels.gram(kernels.rbf(s / 4), x) + 0.1 * jnp.eye(len(x), dtype=x.dtype), key=KEY
    ),
    "prior_samples": lambda s, y, x: kernels.prior_samples(kernels.rbf(s) + 0.1, x[:1], key=KEY),
    "fourier_features": lambda s, y, x: features.fourier_features(
        2, m=4, lengthscale=s, paired=True, key=KEY
    )(x),
    "random_layer": lambda s, y, x: features.random_layer(
        2, m=4, activation="erf", sigma_w=s, sigma_b=s, key=KEY
    )(x),
    "feature_kernel": lambda s, y, x: kernels.gram(
        features.feature_kernel(layer(4, s)), x
    ),
    "feature_regression": lambda s, y, x: features.feature_regression(
        layer(9, s), x, y, t=2 * s, ridge=0.1 * s
    ),
    "dual": lambda s, y, x: [f(s, 0.5 * s, s * s) for f in infinite.dual("gelu")],
    "nngp": lambda s, y, x: kernels.gram(infinite.nngp(3, "relu", s, 0.3 * s), x),
    "ntk": lambda s, y, x: kernels.gram(infinite.ntk(3, "erf", s, 0.3 * s), x),
    "ntk by quadrature": lambda s, y, x: kernels.gram(infinite.ntk(2, "tanh", s, 0.3 * s), x),
    "ntk of two layers": lambda s, y, x: kernels.gram(
        infinite.ntk(3, "erf", s, 0.3 * s, trained=(1, 3)), x
    ),
    "network": lambda s, y, x: [
        kernels.gram(k, x)
        for k in infinite.network(
            infinite.dense(s, 0.3),
            infinite.residual(infinite.nonlinearity("erf"), infinite.dense(s, 0.1)),
            infinite.layer_norm(),
            infinite.nonlinearity("erf"),
            infinite.dense(s, 0.1),
        )
    ],
    "convolution.nngp": lambda s, y, x: kernels.gram(
        convolution.nngp(2, "erf", s, 0.3), x.reshape(-1, 2, 1, 1)
    ),
    "convolution.ntk": lambda s, y, x: kernels.gram(
        convolution.ntk(3, "erf", s, 0.3, pooling=False), x.reshape(-1, 2, 1, 1)
    ),
    "mlp": lambda s, y, x: APPLY(jax.tree.map(lambda p: s * p, parameters(x.dtype)), x),
    "mlp of a width": lambda s, y, x: APPLY(
        jax.tree.map(lambda p: s * p, parameters(x.dtype)), x, width=3
    ),
    "mlp with traced scales": lambda s, y, x: networks.mlp((2, 4, 1), "erf", s, s)[1](
        networks.mlp((2, 4, 1), "erf", s, s)[0](key=KEY, dtype=x.dtype), x
    ),
    "centred": lambda s, y, x: networks.centred(APPLY, parameters(x.dtype))(
        jax.tree.map(lambda p: s * p, parameters(x.dtype)), x
    ),
    "empirical_ntk": lambda s, y, x: tangent.empirical_ntk(
        APPLY, jax.tree.map(lambda p: s * p, parameters(x.dtype)), x
    ),
    "tangent.kernel": lambda s, y, x: kernels.gram(
        tangent.kernel(APPLY, jax.tree.map(lambda p: s * p, parameters(x.dtype))), x
    ),
    "monte_carlo": lambda s, y, x: tangent.monte_carlo(
        partial(INIT, dtype=x.dtype), APPLY, s * x, keys=KEYS
    ),
    "linearize": lambda s, y, x: tangent.linearize(APPLY, parameters(x.dtype))(
        jax.tree.map(lambda p: s * p, parameters(x.dtype)), x
    ),
    "jacobian_norm": lambda s, y, x: tangent.jacobian_norm(
        APPLY, jax.tree.map(lambda p: s * p, parameters(x.dtype)), x
    ),
    "path": lambda s, y, x: trained(parameters(x.dtype), x, y, learning_rate=0.1 * s),
    "path of a function": lambda s, y, x: trained(
        parameters(x.dtype), x, y, learning_rate=0.1 * s, every=2,
        observe=lambda p: APPLY(p, x),
    ),
    "descend": lambda s, y, x: training.descend(
        lambda p: loss(p, x, y), parameters(x.dtype), steps=3, learning_rate=0.1 * s
    ).params,
    "flow": lambda s, y, x: training.flow(
        lambda p: loss(p, x, y), parameters(x.dtype), 0.1 * s * of(x.dtype, [1.0, 2.0])
    ),
    "ensemble": lambda s, y, x: training.ensemble(
        lambda key: trained(INIT(key=key, dtype=x.dtype), x, y, learning_rate=0.1 * s), KEYS
    ).params,
    "sweep": lambda s, y, x: training.sweep(
        lambda key, rate: trained(INIT(key=key, dtype=x.dtype), x, y, learning_rate=rate).params,
        KEYS,
        rate=s * of(x.dtype, [0.1, 0.2]),
    ),
    "wasserstein2": lambda s, y, x: transport.wasserstein2(s * x, x + 1),
    "wasserstein2 with weights": lambda s, y, x: transport.wasserstein2(
        s * x, NEW.astype(x.dtype), weights(x), of(x.dtype, [0.25, 0.75])
    ),
    "geodesic, optimal_map, optimal_permutation": lambda s, y, x: transport.geodesic(
        x, s * x + 1, 0.5 * s
    ),
    "coupling": lambda s, y, x: s * transport.coupling(s * x, x + 1),
    "gaussian_wasserstein2": lambda s, y, x: transport.gaussian_wasserstein2(
        x[0], s * jnp.eye(2, dtype=x.dtype), NEW[0].astype(x.dtype),
        jnp.diag(of(x.dtype, [1.0, 2.0])),
    ),
    "potential": lambda s, y, x: flows.potential(lambda p: s * jnp.sum(p**3))(x, weights(x)),
    "interaction": lambda s, y, x: flows.interaction(lambda a, b: s * jnp.dot(a, b) ** 2)(
        x, weights(x)
    ),
    "mean_field_risk": lambda s, y, x: risk(x, y)(s * cloud(x), weights(x)),
    "total": lambda s, y, x: flows.total(risk(x, y), flows.potential(lambda p: s * jnp.sum(p**2)))(
        cloud(x), weights(x)
    ),
    "first_variation": lambda s, y, x: flows.first_variation(risk(x, y), cloud(x))(s * cloud(x)),
    "velocity": lambda s, y, x: flows.velocity(risk(x, y), s * cloud(x), weights(x)),
    "wasserstein_flow": lambda s, y, x: flows.wasserstein_flow(
        risk(x, y), s * cloud(x), of(x.dtype, [0.1, 0.3])
    ),
    "wasserstein_flow by steps": lambda s, y, x: flows.wasserstein_flow(
        risk(x, y), cloud(x), of(x.dtype, [0.1, 0.3]), step=0.1, temperature=0.1 * s, key=KEY
    ),
    "circle": lambda s, y, x: data.circle(4, radius=s),
    "sphere": lambda s, y, x: data.sphere(4, 2, radius=s, key=KEY),
}  # fmt: skip


def weights(x):
    return jnp.full(len(x), 1 / len(x), x.dtype)


# Derivatives by x that do not exist: of a fit that jumps when twins part (its rank changes).
FIXED = {
    ("ridge_regression 0", "duplicated"),
    ("gradient_flow at the end", "duplicated"),
}
SKIPPED_IN_SINGLE = {"ridge_regression 0", "gradient_flow at the end"}  # condition 1e6 and more


# Cases that draw their own random numbers, others in single than in double precision.
RANDOM = {"gaussian_samples", "prior_samples", "fourier_features", "mlp with traced scales"}
RANDOM |= {"monte_carlo", "ensemble", "sweep", "wasserstein_flow by steps", "sphere"}


def arguments(points, dtype):
    x = SETS[points]().astype(dtype)
    y = jnp.sin(3 * x[:, 0]) + x[:, 1]
    return of(dtype, 0.8), y, x


# Hundreds of small programs, each run a few times: let XLA optimise little, even in `make soak`.
compiled = partial(
    jax.jit,
    compiler_options={
        "xla_backend_optimization_level": 0,
        "xla_llvm_disable_expensive_passes": True,
    },
)


def program(name):
    """The value, its derivative along a direction, and the same in reverse, tested on the value."""

    def everything(primals, tangents):
        value, forward = jax.jvp(CASES[name], primals, tangents)
        tests = jax.tree.map(lambda a: jnp.cos(3 * a + 1), value)
        pulled = jax.vjp(CASES[name], *primals)[1](tests)
        return value, forward, inner(tests, forward), inner(pulled, tangents)

    return compiled(everything), compiled(jax.vmap(everything, (0, None)))


def inner(a, b):
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return sum(jnp.vdot(u, v) for u, v in leaves)


PROGRAMS = {}


def close(a, b, tolerance, what):
    for u, v in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        u, v = np.asarray(u, float), np.asarray(v, float)
        assert np.all(np.isfinite(u)), what
        scale = max(1.0, float(np.abs(v).max())) if v.size else 1.0
        np.testing.assert_allclose(u, v, rtol=0, atol=tolerance * scale, err_msg=what)


def moved(primals, tangents, step):
    return tuple(p + step * t for p, t in zip(primals, tangents, strict=True))


def in_double_precision(name, points):
    """Everything in five lanes: the point, and four beside it for the quotient of order 4."""
    primals = arguments(points, jnp.float64)
    tangents = directions(name, points, primals)
    lanes = [moved(primals, tangents, h * STEP) for h in (0, 1, -1, 2, -2)]
    batch = PROGRAMS.setdefault(name, program(name))[1]
    return batch(jax.tree.map(lambda *a: jnp.stack(a), *lanes), tangents)


first = partial(jax.tree.map, lambda a: a[0])
# another number of points compiles everything once more
each_set = pytest.mark.parametrize(
    "points", [pytest.param(s, marks=pytest.mark.soak) if s == "one" else s for s in SETS]
)


@pytest.mark.parametrize("name", CASES)
@each_set
def test_transformations(user, name, points):
    values, forward, tested, reverse = in_double_precision(name, points)
    close(first(values), CASES[name](*arguments(points, jnp.float64)), 1e-10, "jit and vmap")
    slope = jax.tree.map(lambda v: (8 * (v[1] - v[2]) - (v[3] - v[4])) / (12 * STEP), values)
    close(first(forward), slope, 1e-7, "finite differences")
    close(reverse, tested, 1e-9, "reverse and forward derivative")


# One case of each kind of arithmetic; the others, which compile all programs once more, are soaked.
SINGLE = {
    "rbf", "laplace 2", "gram of a sum", "ridge_regression", "gradient_flow",
    "log_marginal_likelihood", "random_layer", "feature_regression", "dual", "nngp",
    "convolution.nngp", "mlp", "empirical_ntk", "path", "wasserstein2", "gaussian_wasserstein2",
    "velocity", "wasserstein_flow",
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        name if name in SINGLE else pytest.param(name, marks=pytest.mark.soak)
        for name in CASES
        if name not in SKIPPED_IN_SINGLE
    ],
)
@each_set
def test_single_precision(user, name, points):
    values, forward, *_ = first(in_double_precision(name, points))
    alone = PROGRAMS[name][0]
    primals = arguments(points, jnp.float32)
    single = alone(primals, directions(name, points, primals))
    if name not in RANDOM:
        close(single[0], values, 1e-3, "single precision")
        close(single[1], forward, 2e-3, "derivative in single precision")
    close(single[3], single[2], 1e-3, "reverse and forward in single precision")


@pytest.mark.soak
@pytest.mark.parametrize("name", CASES)
def test_jit_without_vmap_in_double_precision(user, name):
    alone, batch = PROGRAMS.setdefault(name, program(name))
    for points in ("generic", "circle", "duplicated"):
        primals = arguments(points, jnp.float64)
        tangents = directions(name, points, primals)
        one = first(batch(jax.tree.map(lambda a: a[None], primals), tangents))
        for a, b, what in zip(alone(primals, tangents), one, WHAT, strict=True):
            close(a, b, 1e-8, what)


WHAT = "value", "derivative", "tested derivative", "derivative in reverse"


def directions(name, points, primals):
    tangents = tuple(0.3 + jnp.cos(7 * p + 1) for p in primals)
    if (name, points) in FIXED:
        tangents = (*tangents[:2], jnp.zeros_like(tangents[2]))
    return tangents


def test_every_public_function_is_here():
    """A new function must be tried under transformations, or be listed with its reason."""
    without = {
        "as_kernel", "of_products", "Kernel",  # make kernels, which are tried
        "dense", "nonlinearity", "residual", "layer_norm",  # layers, tried as a network
        "hessian_norm",  # refused below
        "table", "standardise",  # data, no arithmetic on a user's arrays
    }  # fmt: skip
    modules = (kernels, features, infinite, networks, tangent, training, transport, flows, data)
    inside = [f"ntkcourse.{name}" for name in ("grams", "processes", "regression")]
    names = " ".join(CASES)
    missing = [
        f"{module.__name__}.{name}"
        for module in modules
        for name, value in vars(module).items()
        if callable(value)
        and not isinstance(value, type)
        and getattr(value, "__module__", "") in (module.__name__, *inside)
        and not name.startswith("_")
        and name not in without
        and name not in names
    ]
    assert not missing, "expected an entry of CASES whose key has the function's name"


@pytest.mark.parametrize("transform", [jax.jit, jax.grad, lambda f: lambda s: jax.vmap(f)(s[None])])
def test_what_is_not_supported_says_so(transform):
    norm = transform(lambda s: tangent.hessian_norm(APPLY, parameters(jnp.float64), s * NEW))
    with pytest.raises(
        TypeError, match=r"expected known x.*inside jit, vmap or grad.*hessian_norm"
    ):
        norm(jnp.asarray(1.0))
