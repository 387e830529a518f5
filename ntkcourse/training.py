r"""Training as a path in parameter space: descent, gradient flow, ensembles.

A loss is a function of the parameters, by custom :math:`\frac12 \sum_i |f(x_i) - y_i|^2`; an
observable is a function of the parameters too, for example
``lambda p: {"loss": loss(p), "outputs": apply(p, x)}``.
Why it succeeds: chapter :ref:`convergence`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Shaped
from tqdm import tqdm

from ntkcourse import checks

Loss = Callable[[PyTree], Array]


class Run(NamedTuple):
    """A training run: the last parameters, the recorded times, what was observed at each."""

    params: PyTree
    times: Float[Array, " records"]
    history: Any


def descend(
    loss: Loss,
    params: PyTree,
    *,
    steps: int,
    learning_rate: float | None = None,
    optimizer: optax.GradientTransformation | None = None,
    observe: Callable[[PyTree], Any] | None = None,
    every: int = 1,
    kernel: Float[Array, "n n"] | None = None,
) -> Run:
    r"""Gradient descent :math:`\theta \leftarrow \theta - \eta \nabla L(\theta)`, or any optimiser.

    Give ``learning_rate`` or an optax ``optimizer``. ``observe(params)`` (None: the loss) is
    recorded at step 0, every ``every`` steps and at the end. ``times`` are :math:`\eta` times the
    step, the time of gradient flow, or the step itself for an ``optimizer``. A loss that is not
    finite stops the run with a FloatingPointError that names the step, and, if the tangent
    ``kernel`` on the data is given, the learning rate :math:`2/\lambda_{max}` that a squared loss
    :math:`\frac12\sum_i|f(x_i) - y_i|^2` allows.
    """
    steps, every = checks.count(steps, "steps"), checks.count(every, "every")
    if (learning_rate is None) == (optimizer is None):
        raise ValueError("expected either learning_rate or optimizer, got both or neither")
    if optimizer is None:
        learning_rate = checks.number(learning_rate, "learning_rate", above=0)
        optimizer, unit, advice = optax.sgd(learning_rate), learning_rate, "learning_rate"
    else:
        unit, advice = 1, "step of the optimizer"
    if kernel is not None and jnp.ndim(kernel) != 2:
        raise ValueError(f"expected a kernel of shape (n, n), got {jnp.shape(kernel)}")
    params = _floats(params)
    first = _finite_loss(loss, params)
    observe = loss if observe is None else observe

    def step(_, state):
        params, memory, sound, taken = state
        value, gradient = jax.value_and_grad(loss)(params)
        updates, memory = optimizer.update(gradient, memory, params)
        # `sound` counts the steps before the first loss that is not finite
        sound = jnp.where(jnp.isfinite(value) & (sound == taken), sound + 1, sound)
        return optax.apply_updates(params, updates), memory, sound, taken + 1

    @jax.jit
    def advance(state, lengths):
        def record(state, length):
            state = jax.lax.fori_loop(0, length, step, state)
            return state, observe(state[0])

        return jax.lax.scan(record, state, lengths)

    marks = np.array([*range(0, steps, every), steps])
    watched = checks.known(first)  # not inside ensemble, where there is nothing to look at yet
    stride = -(-(len(marks) - 1) // 100) if watched else len(marks) - 1
    pieces = np.pad(np.diff(marks), (0, -(len(marks) - 1) % stride)).reshape(-1, stride)
    state = (params, optimizer.init(params), jnp.asarray(0), jnp.asarray(0))
    history = [jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], observe(params))]
    for piece in tqdm(pieces, disable=None if watched else True, leave=False):
        state, seen = advance(state, jnp.asarray(piece))
        history.append(seen)
        if watched and state[2] < state[3]:
            raise _diverged(int(state[2]), advice, kernel)
    if watched and not bool(jnp.isfinite(loss(state[0]))):
        raise _diverged(steps, advice, kernel)
    history = jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[: len(marks)], *history)
    return Run(state[0], unit * jnp.asarray(marks, first.dtype), history)


def _floats(params):
    return jax.tree.map(lambda leaf: checks.finite(leaf, "params"), params)


def _finite_loss(loss, params):
    value = loss(params)
    if jnp.shape(value) != ():
        raise ValueError(f"expected a loss that is a number, got shape {jnp.shape(value)}")
    if checks.known(value) and not bool(jnp.isfinite(value)):
        raise FloatingPointError(f"the loss is {value} at the initial parameters")
    return value


def _diverged(step, cause, kernel):
    message = f"the loss is not finite after {step} steps: try a smaller {cause}"
    if kernel is not None:
        largest = 2 / float(jnp.linalg.eigvalsh(kernel)[-1])
        message += f"; with this kernel descent is stable below {largest:.4g}"
    return FloatingPointError(message)


def flow(
    loss: Loss,
    params: PyTree,
    times: Float[Array, " records"],
    *,
    observe: Callable[[PyTree], Any] | None = None,
) -> Run:
    r"""Gradient flow :math:`\dot\theta = -\nabla L(\theta)` from time 0, observed at ``times``.

    An adaptive Runge-Kutta method of order 5 with error control (relative and absolute tolerance
    1e-8 in float64, 1e-5 in float32). ``observe(params)`` (None: the loss) is recorded at each of
    the increasing ``times``; the run ends at the last of them.
    """
    params = _floats(params)
    first = _finite_loss(loss, params)
    times = checks.increasing(times, first.dtype)
    observe = loss if observe is None else observe
    solution = solve_flow(
        lambda t, p, _: jax.tree.map(jnp.negative, jax.grad(loss)(p)),
        params,
        times[-1],
        [
            diffrax.SubSaveAt(ts=times, fn=lambda t, p, _: observe(p)),
            diffrax.SubSaveAt(t1=True),
        ],
    )
    history, last = solution
    return Run(jax.tree.map(lambda leaf: leaf[0], last), times, history)


def solve_flow(velocity, state, end, saves):
    """Integrate d state / dt = velocity(t, state, None) over [0, end] with error control."""
    dtype = jax.tree.leaves(state)[0].dtype
    tolerance = 1e-8 if jnp.finfo(dtype).bits > 32 else 1e-5
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(velocity),
        diffrax.Tsit5(),
        t0=jnp.zeros((), dtype),
        t1=end,
        dt0=None,
        y0=state,
        saveat=diffrax.SaveAt(subs=saves),
        stepsize_controller=diffrax.PIDController(
            # a flow that blows up would make its steps ever smaller
            rtol=tolerance,
            atol=tolerance,
            dtmin=end * float(jnp.finfo(dtype).eps),
            force_dtmin=False,
        ),
        max_steps=None,
        throw=False,
    )
    if checks.known(end) and not bool(solution.result == diffrax.RESULTS.successful):
        raise FloatingPointError("the flow left the finite numbers before its last time")
    return solution.ys


def ensemble(train: Callable[[PRNGKeyArray], Run], keys: Shaped[Array, "members ..."]) -> Run:
    """Many trainings in one compiled program: ``train(key)`` for each key, results stacked.

    ``train`` draws its network from ``key`` and returns what :func:`descend` or :func:`flow`
    gave. Raises a FloatingPointError that names the members whose parameters are not finite.
    """
    if np.ndim(keys) == 0 or len(keys) == 0:
        raise ValueError(f"expected an array of keys, got shape {np.shape(keys)}")
    run = jax.jit(jax.vmap(train))(keys)
    sound = [jnp.isfinite(leaf).reshape(len(leaf), -1).all(1) for leaf in jax.tree.leaves(run)]
    lost = np.flatnonzero(~np.all(np.stack(sound), axis=0))
    if len(lost):
        raise FloatingPointError(
            f"{len(lost)} of {len(sound[0])} members diverged, the first of them number {lost[0]}"
        )
    return run
