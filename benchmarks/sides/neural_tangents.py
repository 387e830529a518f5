"""neural-tangents 0.6.5, in the fastest of the ways that its documentation shows."""

import sys
import types

# Its experimental part imports TensorFlow, gigabytes that nothing here needs.
sys.modules["neural_tangents.experimental"] = types.ModuleType("experimental")

import jax
import jax.numpy as jnp
import neural_tangents as nt
from neural_tangents import stax


def analytic(inputs, size):
    dense, relu = (lambda: stax.Dense(1, W_std=2**0.5)), stax.Relu
    layers = [dense(), relu(), dense(), relu(), dense(), relu(), dense()]
    _, _, kernel = stax.serial(*layers)
    x = jnp.asarray(inputs["x"])
    both = jax.jit(lambda x: list(kernel(x, None, ("nngp", "ntk"))))
    return lambda: both(x)


def _structured(apply, params, x):
    kernel = nt.empirical_ntk_fn(
        apply,
        trace_axes=(),
        vmap_axes=0,
        implementation=nt.NtkImplementation.STRUCTURED_DERIVATIVES,
    )
    kernel = jax.jit(kernel, static_argnums=1)
    return lambda: kernel(x, None, params)


def empirical(inputs, size):
    weights, layers = inputs["weights"], []
    for w in weights:
        layers += [stax.Dense(w.shape[1], W_std=2**0.5), stax.Relu()]
    init, apply, _ = stax.serial(*layers[:-1])
    _, params = init(jax.random.PRNGKey(0), (-1, len(weights[0])))
    form = jax.tree_util.tree_structure(params)
    params = jax.tree_util.tree_unflatten(form, [jnp.asarray(w) for w in weights])
    kernel = _structured(apply, params, jnp.asarray(inputs["x"]))
    return lambda: kernel()[..., 0, 0]


def own_function(inputs, size):
    def apply(params, x):
        for w in params[:-1]:
            x = jnp.tanh(x @ w / w.shape[0] ** 0.5)
        return x @ params[-1] / params[-1].shape[0] ** 0.5

    params = [jnp.asarray(w) for w in inputs["weights"]]
    return _structured(apply, params, jnp.asarray(inputs["x"]))
