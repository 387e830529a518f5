"""The package, by its public functions, as a reader calls them."""

import jax
import jax.numpy as jnp

from ntkcourse import (
    features,
    flows,
    infinite,
    kernels,
    networks,
    tangent,
    training,
    transport,
)


def _points(inputs):
    return jnp.asarray(inputs["x"]), jnp.asarray(inputs["y"])


def analytic(inputs, size):
    x, _ = _points(inputs)
    both = infinite.nngp(4, "relu", sigma_w=2**0.5), infinite.ntk(4, "relu", sigma_w=2**0.5)
    return lambda: [kernels.gram(k, x) for k in both]


def empirical(inputs, size):
    weights = inputs["weights"]
    widths = (len(weights[0]), *(w.shape[1] for w in weights))
    init, apply = networks.mlp(widths, "relu", sigma_w=2**0.5)
    form = jax.tree.structure(init(key=jax.random.key(0)))
    params = jax.tree.unflatten(form, [jnp.asarray(w.T) for w in weights])
    x = jnp.asarray(inputs["x"])
    return lambda: tangent.empirical_ntk(apply, params, x)


def own_function(inputs, size):
    def apply(params, x):
        for w in params[:-1]:
            x = jnp.tanh(x @ w / w.shape[0] ** 0.5)
        return x @ params[-1] / params[-1].shape[0] ** 0.5

    params, x = [jnp.asarray(w) for w in inputs["weights"]], jnp.asarray(inputs["x"])
    return lambda: tangent.empirical_ntk(apply, params, x)


def gram(inputs, size):
    x, _ = _points(inputs)
    k = kernels.rbf(size["d"] ** 0.5)
    return lambda: kernels.gram(k, x)


gram_memory = gram


def ridge(inputs, size):
    x, y = _points(inputs)
    new, k = jnp.asarray(inputs["new"]), kernels.rbf(size["d"] ** 0.5)
    return lambda: kernels.ridge_regression(k, x, y, 1e-2)(new)


def ridge_many(inputs, size):
    x, y = _points(inputs)
    new, k = jnp.asarray(inputs["new"]), kernels.rbf(size["d"] ** 0.5)
    return lambda: kernels.ridge_regression(k, x, y, 1.0, solver="cg")(new)


ridge_huge = ridge_many


def fourier(inputs, size):
    d = size["d"]
    phi = features.fourier_features(d, m=size["m"], lengthscale=d**0.5, key=jax.random.key(0))
    x, _ = _points(inputs)
    return lambda: phi(x)


def transport_plane(inputs, size):
    x, y = _points(inputs)
    return lambda: transport.wasserstein2(x, y)


transport_ten = transport_line = transport_plane


def transport_weighted(inputs, size):
    x, y = _points(inputs)
    a = jnp.arange(1.0, len(x) + 1)
    a = a / a.sum()
    return lambda: transport.wasserstein2(x, y, a, a[::-1])


def pairs(inputs, size, W=kernels.rbf()):  # noqa: B008
    x, _ = _points(inputs)
    energy = flows.interaction(W)
    weights = jnp.full(len(x), 1 / len(x), x.dtype)
    velocity = jax.jit(lambda particles: flows.velocity(energy, particles, weights))
    return lambda: velocity(x)


def pairs_of_any(inputs, size):
    return pairs(inputs, size, lambda a, b: jnp.exp(-jnp.sum((a - b) ** 2) / 2))


def descend_memory(inputs, size):
    x, y = _points(inputs)
    init, apply = networks.mlp((size["d"], 64, 1))
    params = init(key=jax.random.key(0), dtype=x.dtype)

    def loss(p):
        return jnp.sum((apply(p, x) - y) ** 2) / 2

    steps = size["steps"]
    return lambda: (
        training.descend(loss, params, steps=steps, learning_rate=1e-4, every=steps).history
    )


def flow_memory(inputs, size):
    x, _ = _points(inputs)
    energy = flows.interaction(lambda a, b: jnp.exp(-jnp.sum((a - b) ** 2) / 2))
    times = jnp.asarray([1.0], x.dtype)
    return lambda: flows.wasserstein_flow(energy, x, times, step=1 / size["steps"])
