r"""Ordinary differential equations :math:`\dot y = v(y)` with error control, in plain JAX.

One loop serves every transformation: it stops early, also for a whole batch under ``vmap``, and
can be differentiated forward and in reverse, with the memory of a few hundred states. Used for
gradient flows in :mod:`ntkcourse.training` and for particles in :mod:`ntkcourse.flows`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

# The method of order 5 of Tsitouras (2011); the last row gives the step, and NEAR the difference
# to a method of order 4, which estimates its error.
TABLEAU = np.array(
    [
        [0.161, 0, 0, 0, 0, 0],
        [-0.008480655492356989, 0.335480655492357, 0, 0, 0, 0],
        [2.8971530571054935, -6.359448489975075, 4.3622954328695815, 0, 0, 0],
        [5.325864828439257, -11.748883564062828, 7.4955393428898365, -0.09249506636175525, 0, 0],
        [5.86145544294642, -12.92096931784711, 8.159367898576159, -0.071584973281401,
         -0.028269050394068383, 0],
        [0.09646076681806523, 0.01, 0.4798896504144996, 1.379008574103742, -3.290069515436081,
         2.324710524099774],
    ]
)  # fmt: skip
NEAR = np.array(
    [0.001780011052226, 0.000816434459657, -0.007880878010262, 0.144711007173263,
     -0.582357165452555, 0.458082105929187, -1 / 66]
)  # fmt: skip
BLOCK, LEVELS = 64, 3
"""At most BLOCK ** LEVELS steps are tried between two recorded times."""
KINK = 1e-5
"""The tolerance of a step across a jump of the velocity."""


@jax.custom_batching.custom_vmap
def anywhere(flag: Array) -> Array:
    """``flag``, or whether it holds for any member of a batch: a branch on it stays a branch."""
    return flag


@anywhere.def_vmap
def _(size, batched, flag):
    return anywhere(jnp.any(flag, axis=0)), False


def repeat(step: Callable[[PyTree], PyTree], going: Callable[[PyTree], Array], state: PyTree):
    """``step(state)`` while ``going(state)``, at most BLOCK ** LEVELS times."""

    def careful(state):  # in a batch some members may have arrived before the others
        go = going(state)
        return jax.tree.map(lambda new, old: jnp.where(go, new, old), step(state), state)

    def block(step):
        @partial(jax.checkpoint, prevent_cse=False)  # nothing to prevent inside a loop
        def guarded(state, _):
            return jax.lax.cond(anywhere(going(state)), step, lambda state: state, state), None

        return lambda state: jax.lax.scan(guarded, state, length=BLOCK)[0]

    for _ in range(LEVELS):
        careful = block(careful)
    return careful(state)


class _Moment(NamedTuple):
    t: Array
    y: PyTree
    slope: PyTree  # v(y)
    h: Array  # the step to try
    direction: PyTree  # in which v changes most


def solve(
    velocity: Callable[[PyTree], PyTree],
    state: PyTree,
    times: Float[Array, " records"],
    observe: Callable[[PyTree], Any],
) -> tuple[PyTree, Any, Array]:
    r"""Follow :math:`\dot y = v(y)` from time 0 and observe it at the increasing ``times``.

    Returns the last state, the observations stacked, and whether the last time was reached; if
    not, all after the failure is NaN. Tolerance of a step, relative and absolute, root mean
    square over the entries: 1e-8 in float64, 1e-5 in float32.

    Where v jumps (the gradient of a ReLU network does when a neuron passes a data point, and it
    may go on to slide there), no step however small has the order of the method. If the
    derivative of v has norm :math:`\rho`, a smooth v gives a step h an error of about
    :math:`10^{-3} (h\rho)^4\, |h v|` (for a linear v at most half of that). A step for which this
    is within the tolerance may have the error 1e-5.
    """
    dtype = jnp.result_type(*jax.tree.leaves(state))
    tolerance = 1e-8 if jnp.finfo(dtype).bits > 32 else 1e-5
    tiny = jnp.finfo(dtype).tiny
    times = times.astype(dtype)
    smallest = jax.lax.stop_gradient(times[-1]) * jnp.finfo(dtype).eps

    def attempt(y, slope, h):
        """The state a step h on, its slope, and the estimated relative error."""

        def stage(carry, row):
            slopes, _ = carry
            at = jax.tree.map(lambda y, k: y + h * _mix(row[0], k), y, slopes)
            slopes = jax.tree.map(lambda k, new: k.at[row[1]].set(new), slopes, velocity(at))
            return (slopes, at), None

        slopes = jax.tree.map(lambda k: jnp.zeros((7, *k.shape), dtype).at[0].set(k), slope)
        rows = (jnp.asarray(TABLEAU, dtype), jnp.arange(1, 7))
        slopes, new = jax.lax.scan(stage, (slopes, y), rows)[0]

        def relative(k, y, new):
            return _relative(h * _mix(jnp.asarray(NEAR, dtype), k), jnp.maximum(abs(y), abs(new)))

        error = jax.lax.stop_gradient(_norm(jax.tree.map(relative, slopes, y, new)))
        return new, jax.tree.map(lambda k: k[6], slopes), error

    def power(y, slope, direction):
        """A direction in which v changes most at y, times the rate of change: one iteration."""
        parts = _unit(direction), _unit(slope)  # a little of the second, should the first be lost
        mixed = _unit(jax.tree.map(lambda u, v: u + 0.1 * v, *parts))
        return jax.jvp(velocity, (y,), (mixed,))[1]

    def step(now, end):
        span = jnp.minimum(now.h, end - now.t)
        y, slope, error = attempt(now.y, now.slope, span)
        here = jax.lax.stop_gradient((now.y, now.slope, now.direction))
        direction = jax.lax.cond(anywhere(error > tolerance), power, lambda *here: here[2], *here)
        rate = jnp.maximum(_norm(direction), _norm(here[2]))
        smooth = 1e-3 * (span * rate) ** 4 * span * _norm(jax.tree.map(_relative, here[1], here[0]))
        # the share of the span that is precise, or else as precise as a jump lets it be
        room = lambda error, bound, order: (bound / (error + tiny)) ** (1 / order)  # noqa: E731
        jump = jnp.minimum(room(smooth, tolerance, 5), room(error, KINK, 2))
        share = jnp.maximum(room(error, tolerance, 5), jnp.where(error > tolerance, jump, 0))
        taken = share >= 1
        h = span * jnp.clip(0.9 * jnp.nan_to_num(share), 0.2, 10)
        h = jax.lax.stop_gradient(jnp.where(taken & (span < now.h), jnp.maximum(h, now.h), h))
        t = jnp.where(now.h < end - now.t, now.t + span, end)
        stay = now._replace(h=h, direction=direction)
        moved = _Moment(t, y, slope, h, direction)
        return jax.tree.map(lambda a, b: jnp.where(taken, a, b), moved, stay)

    @partial(jax.checkpoint, prevent_cse=False)
    def record(now, end):
        going = lambda now: (now.t < end) & (now.h >= smallest)  # noqa: E731
        now = repeat(partial(step, end=end), going, now)
        last = jax.tree.map(lambda y: jnp.where(now.t >= end, y, jnp.nan), now.y)
        return now._replace(y=last), observe(last)

    slope = velocity(state)
    last, size, direction = jax.lax.stop_gradient((times[-1], _norm(state), slope))
    h = jnp.clip(0.01 * size / (_norm(direction) + tiny), 1e-6 * last, last)
    now = _Moment(jnp.zeros((), dtype), state, slope, h, direction)
    now, history = jax.lax.scan(record, now, times)
    return now.y, history, now.t >= times[-1]


def _mix(weights, slopes):
    # term by term, which the compiler makes one loop: a product with a matrix takes 4 times longer
    return sum(weights[i] * slopes[i] for i in range(len(weights)))


def _relative(change, size):
    return change / (1 + jnp.abs(size))


def _unit(tree):
    size = _norm(tree)
    return jax.tree.map(lambda leaf: leaf / jnp.where(size > 0, size, 1), tree)


def _norm(tree):
    """The root mean square over all entries."""
    leaves = jax.tree.leaves(tree)
    return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in leaves) / sum(leaf.size for leaf in leaves))
