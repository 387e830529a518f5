"""The loop of gradient descent: pure functions of a state, for :mod:`ntkcourse.training`."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ntkcourse import checks, odes

PIECES = 100
"""Into how many pieces a run is cut: for the progress bar, and for the memory of its gradient."""


class Rule(NamedTuple):
    """What a compiled program of descent is kept by."""

    loss: Callable
    optimizer: Any
    observe: Callable | None
    until: Callable | None
    batches: Callable | None


class State(NamedTuple):
    """Where a descent is; ``sound`` counts the steps before the first loss that is not finite."""

    params: PyTree
    memory: PyTree  # of the optimizer
    step: Array
    sound: Array
    stopped: Array


class Plan(NamedTuple):
    """The arguments of a run, checked; ``pieces`` is True where there is a record to make.

    ``rest`` is a last piece, of fewer steps than ``every``, or empty.
    """

    rule: Rule
    params: PyTree
    rate: Any
    data: Any
    every: int
    pieces: np.ndarray
    rest: list[tuple[int, np.ndarray]]


def plan(
    loss, params, *, steps, learning_rate=None, optimizer=None, observe=None, every=1,
    batches=None, until=None,
) -> Plan:  # fmt: skip
    """Check the arguments of :func:`ntkcourse.training.path` and cut its records into pieces."""
    steps = checks.count(steps, "steps")
    every = min(checks.count(every, "every"), steps)
    if (learning_rate is None) == (optimizer is None):
        raise ValueError("expected either learning_rate or optimizer, got both or neither")
    rate = 1 if optimizer else checks.number(learning_rate, "learning_rate", above=0)
    params = jax.tree.map(lambda leaf: checks.finite(leaf, "params"), params)
    rule = Rule(loss, optimizer, observe, until, batches if callable(batches) else None)
    data = None if callable(batches) else jax.tree.map(jnp.asarray, batches)
    for leaf in jax.tree.leaves(data):
        if leaf.ndim == 0 or len(leaf) != steps:
            raise ValueError(f"expected batches for {steps} steps, got shape {leaf.shape}")
    whole, rest = divmod(steps, every)
    size = -(-whole // PIECES)
    padding = -whole % size
    pieces = np.arange(whole + padding).reshape(-1, size) >= padding
    tail = [(rest, np.array([True]))] if rest else []
    return Plan(rule, params, rate, data, every, pieces, tail)


def value(rule: Rule, params: PyTree, data, step):
    """The loss, on the batch of the step if there are batches."""
    batch = rule.batches(step) if rule.batches else jax.tree.map(lambda leaf: leaf[step], data)
    loss = rule.loss(params) if batch is None else rule.loss(params, batch)
    return checks.scalar(loss, "a loss")


def _seen(rule, state, data):
    """The step, what is observed there, and the loss; the batch is that of the last step."""
    loss = value(rule, state.params, data, jnp.maximum(state.step - 1, 0))
    return state.step, loss if rule.observe is None else rule.observe(state.params), loss


def _stopped(rule, params):
    return jnp.asarray(False if rule.until is None else rule.until(params), bool)


def begin(rule: Rule, params: PyTree, data):
    """The state before the first step, and what is seen there."""
    memory = None if rule.optimizer is None else rule.optimizer.init(params)
    state = State(params, memory, jnp.asarray(0), jnp.asarray(0), _stopped(rule, params))
    return state, _seen(rule, state, data)


def advance(rule: Rule, length: int, state: State, live, rate, data):
    """For each entry of ``live`` that is True ``length`` steps; what is seen after each."""

    def step(state, _):
        params, memory, taken, sound, stopped = state
        loss, gradient = jax.value_and_grad(partial(value, rule))(params, data, taken)
        if rule.optimizer is None:
            updates = jax.tree.map(lambda g: -jnp.asarray(rate, g.dtype) * g, gradient)
        else:
            updates, memory = rule.optimizer.update(gradient, memory, params)
        params = jax.tree.map(lambda p, u: (p + u).astype(p.dtype), params, updates)
        sound = jnp.where(jnp.isfinite(loss) & (sound == taken), sound + 1, sound)
        return State(params, memory, taken + 1, sound, stopped), None

    @partial(jax.checkpoint, prevent_cse=False)
    def record(state, live):
        def move(state):
            moved = jax.lax.scan(step, state, length=length)[0]
            moved = moved._replace(stopped=_stopped(rule, moved.params))
            # in a batch some members may stand still while others move
            return jax.tree.map(lambda new, old: jnp.where(state.stopped, old, new), moved, state)

        go = odes.anywhere(live & ~state.stopped)
        state = jax.lax.cond(go, move, lambda state: state, state)
        return state, _seen(rule, state, data)[:2]

    return jax.lax.scan(record, state, jnp.asarray(live))
