r"""Energies of clouds of particles and their Wasserstein gradient flows.

An energy is a function ``F(particles, weights)`` of a cloud :math:`\mu = \sum_i w_i \delta_{x_i}`,
particles (n, d), weights (n,) that sum to 1. Its Wasserstein gradient flow moves each particle by

.. math:: \dot x_i = -\nabla \frac{\delta F}{\delta \mu}(x_i)
          = -\frac{1}{w_i} \frac{\partial F}{\partial x_i}:

for n equal weights, gradient descent on the particles with time multiplied by n. This factor is
applied in one place, :func:`velocity`. Derived in chapter :ref:`mean-field`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ntkcourse import checks, odes
from ntkcourse.duals import Activation, resolve
from ntkcourse.grams import matvec

Energy = Callable[[Array, Array], Array]


def potential(V: Callable[[Array], Array]) -> Energy:
    r"""The energy :math:`\int V \, d\mu` of particles in a landscape; V maps (d,) to a number."""
    return lambda particles, weights: jnp.dot(weights, jax.vmap(V)(particles))


def interaction(W: Callable[[Array, Array], Array]) -> Energy:
    r"""The energy :math:`\frac12 \iint W(x, y) \, d\mu(x) d\mu(y)` of pairs, for symmetric W.

    The matrix of pairs is never stored: it is summed in tiles, its derivative too. A kernel of
    :mod:`ntkcourse.kernels`, or any ``kernels.of_products(formula)``, is faster than a function
    of two points: its distances and products are those of whole tiles.
    """
    return lambda particles, weights: jnp.dot(weights, matvec(W, particles, weights)) / 2


def mean_field_risk(
    x: Float[Array, "n d"], y: Float[Array, " n"], activation: Activation = "relu"
) -> Energy:
    r"""The risk of a two-layer network as an energy of its neurons,

    .. math:: F(\mu) = \frac{1}{2n} \sum_i (y_i - f_\mu(x_i))^2, \qquad
              f_\mu(x) = \int a\, \varphi(w \cdot x) \, d\mu(a, w).

    A particle is a neuron (a, w): the output weight first, then the d input weights.
    """
    x, y = checks.data(x, y)
    if y.ndim != 1:
        raise ValueError(f"expected y of shape (n,), got shape {y.shape}")
    phi = resolve(activation)

    def energy(particles, weights):
        if particles.shape[1] != 1 + x.shape[1]:
            raise ValueError(
                f"expected particles (a, w) of dimension {1 + x.shape[1]}, got {particles.shape[1]}"
            )
        a, w = particles[:, 0], particles[:, 1:]
        return jnp.mean((y - phi(x @ w.T) @ (weights * a)) ** 2) / 2

    return energy


def total(*energies: Energy) -> Energy:
    """The sum of energies."""
    return lambda particles, weights: sum(F(particles, weights) for F in energies)


def first_variation(
    F: Energy, particles: Float[Array, "n d"], weights: Float[Array, " n"] | None = None
) -> Callable[[Array], Array]:
    r"""The first variation :math:`x \mapsto \frac{\delta F}{\delta \mu}(x)`, of mean 0 under mu.

    .. math:: \frac{\delta F}{\delta \mu}(x) =
              \frac{d}{d\varepsilon}\Big|_0 F\big((1 - \varepsilon)\mu + \varepsilon \delta_x\big),

    which fixes the free constant. The function returned takes one point (d,), so that
    ``jax.grad`` of it is the Wasserstein gradient, or points as rows, (m, d) to (m,).
    """
    particles = checks.points(particles, "particles")
    weights = checks.weights(weights, particles)
    value = checks.scalar(F(particles, weights), "an energy")
    checks.computed(value, f"the energy is {value} at the particles given")

    def at(x):
        cloud = jnp.concatenate([particles, x[None]])
        mixed = jnp.append(weights, jnp.zeros((), weights.dtype))
        towards = jnp.append(-weights, jnp.ones((), weights.dtype))
        return jax.jvp(lambda w: F(cloud, w), (mixed,), (towards,))[1]

    def variation(x: Array) -> Array:
        x = checks.finite(x, "x", particles.dtype)
        if x.shape == particles.shape[1:]:
            return at(x)
        return jax.vmap(at)(checks.points(x, "x", like=particles))

    return variation


def velocity(
    F: Energy, particles: Float[Array, "n d"], weights: Float[Array, " n"]
) -> Float[Array, "n d"]:
    """The Wasserstein gradient flow's velocity of each particle: minus dF/dx_i over w_i."""
    return -jax.grad(F)(particles, weights) / weights[:, None]


def wasserstein_flow(
    F: Energy,
    particles: Float[Array, "n d"],
    times: Float[Array, " t"],
    *,
    weights: Float[Array, " n"] | None = None,
    step: Any = None,
    temperature: Any = 0.0,
    key: PRNGKeyArray | None = None,
) -> Float[Array, "t n d"]:
    r"""The particles at each of the increasing ``times`` of the flow of F, started at time 0.

    With ``step=None`` an adaptive method of order 5; otherwise explicit Euler, each interval
    between two times cut into equal steps of at most ``step``, at most 64^3 of them.
    ``temperature`` tau > 0 adds
    Langevin noise :math:`\sqrt{2\tau}\, dB` to each particle, the flow of
    :math:`F(\mu) + \tau \int \mu \log \mu`; it needs ``step`` and ``key``. All weights must be
    positive: a particle without mass has no velocity.
    """
    particles = checks.points(particles, "particles")
    weights = checks.weights(weights, particles)
    times = checks.increasing(times, particles.dtype)
    temperature = checks.number(temperature, "temperature", least=0)
    noisy = not checks.known(temperature) or temperature > 0
    if checks.known(weights) and np.any(np.asarray(weights) == 0):
        raise ValueError("expected positive weights, got a weight of 0")
    if noisy and step is None:
        raise ValueError("expected a step for a flow with temperature > 0, got step=None")
    key = checks.random_key(key, "a flow with temperature > 0") if noisy else None
    if step is not None:
        step = checks.number(step, "step", above=0)
    value, path = _flow(F, particles, times, weights, step, temperature, key)
    checks.computed(value, f"the energy is {value} at the particles given")
    advice = " before its last time" if step is None else ": take a smaller step"
    checks.computed(path, f"the flow left the finite numbers{advice}")
    return path


@partial(jax.jit, static_argnums=0)
def _flow(F, particles, times, weights, step, temperature, key):
    value = checks.scalar(F(particles, weights), "an energy")
    field = partial(velocity, F, weights=weights)
    if step is None:
        return value, odes.solve(field, particles, times, lambda p: p)[1]
    spans = jnp.diff(times, prepend=0)
    # the slack keeps a span that is a whole number of steps up to rounding from gaining one
    counts = jnp.ceil(jax.lax.stop_gradient(spans / step) * (1 - 1e-6)).astype(int)

    def move(h, state):
        taken, left, particles = state
        particles = particles + h * field(particles)
        if key is not None:
            new = jax.random.fold_in(key, taken)
            noise = jax.random.normal(new, particles.shape, particles.dtype)
            spread = jnp.asarray(temperature, h.dtype) * h
            particles = particles + jnp.sqrt(2 * spread) * noise
        return taken + 1, left - 1, particles

    @partial(jax.checkpoint, prevent_cse=False)
    def record(state, interval):
        span, count = interval
        h = span / jnp.maximum(count, 1).astype(span.dtype)
        start = (state[0], count, state[1])
        taken, left, particles = odes.repeat(partial(move, h), lambda state: state[1] > 0, start)
        particles = jnp.where(left > 0, jnp.nan, particles)  # too many steps are no result
        return (taken, particles), particles

    return value, jax.lax.scan(record, (jnp.asarray(0), particles), (spans, counts))[1]
