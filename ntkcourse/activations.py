"""The activation functions that the course calls by name."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

Activation = str | Callable

SLOPE = 0.01
"""The slope of ``leaky_relu`` on the negative half-line."""

BY_NAME: dict[str, Callable] = {
    "relu": jax.nn.relu,
    "leaky_relu": lambda z: jax.nn.leaky_relu(z, SLOPE),
    "abs": jnp.abs,
    "erf": jax.scipy.special.erf,
    "tanh": jnp.tanh,
    "sin": jnp.sin,
    "cos": jnp.cos,
    "gelu": lambda z: jax.nn.gelu(z, approximate=False),
    "identity": lambda z: z,
}


def resolve(activation: Activation) -> Callable:
    """The function called ``activation``, or ``activation`` itself if it is a function."""
    if callable(activation):
        return activation
    if not isinstance(activation, str) or activation not in BY_NAME:
        raise ValueError(
            f"expected an activation among {', '.join(BY_NAME)} or a JAX function, "
            f"got {activation!r}"
        )
    return BY_NAME[activation]
