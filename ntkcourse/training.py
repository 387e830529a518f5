r"""Training as a path in parameter space: descent, gradient flow, ensembles and sweeps.

A loss is a function of the parameters, by custom :math:`\frac12 \sum_i |f(x_i) - y_i|^2`; an
observable is a function of the parameters too, for example
``lambda p: {"loss": loss(p), "outputs": apply(p, x)}``. :func:`descend`, :func:`flow` and
:func:`sweep` keep their compiled programs by the functions they are given: called again with the
same function they compile nothing, and, like ``jax.jit``, do not look again at the variables
that the function reads from outside. Why training succeeds: chapter :ref:`convergence`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Shaped

from ntkcourse import checks, descent, odes

Loss = Callable[..., Array]


class Run(NamedTuple):
    """A training run: the last parameters, the recorded times, what was observed at each."""

    params: PyTree
    times: Float[Array, " records"]
    history: Any


def path(
    loss: Loss,
    params: PyTree,
    *,
    steps: int,
    learning_rate: Any = None,
    optimizer: Any = None,
    observe: Callable[[PyTree], Any] | None = None,
    every: int = 1,
    batches: Any = None,
    until: Callable[[PyTree], Any] | None = None,
) -> Run:
    r"""Gradient descent :math:`\theta \leftarrow \theta - \eta \nabla L(\theta)`, or any optimiser.

    Give ``learning_rate`` or an ``optimizer`` with ``init`` and ``update`` as optax has them.
    ``observe(params)`` (None: the loss) is recorded at step 0, every ``every`` steps and at the
    end; ``times`` are :math:`\eta` times the step, the time of gradient flow, with
    :math:`\eta = 1` for an ``optimizer``. With ``batches``, arrays whose leading axis is the step
    or a function of the step, step k descends ``loss(params, batch_k)``, and the loss recorded is
    that on the last batch. As soon as
    ``until(params)`` holds at a recorded step the run stands still, its time too.

    A pure function: it may be compiled, batched, and differentiated forward and in reverse, by
    the learning rate too (the step at which ``until`` holds counts as fixed). The reverse keeps
    the parameters of about ``every`` + 100 + records / 100 steps. Nothing is said of numbers that
    are not finite: :func:`descend` does.
    """
    plan = descent.plan(
        loss, params, steps=steps, learning_rate=learning_rate, optimizer=optimizer,
        observe=observe, every=every, batches=batches, until=until,
    )  # fmt: skip
    state, first = descent.begin(plan.rule, plan.params, plan.data)

    def go(length, state, live):
        return descent.advance(plan.rule, length, state, live, plan.rate, plan.data)

    piece = jax.checkpoint(partial(go, plan.every), prevent_cse=False)
    state, seen = jax.lax.scan(piece, state, plan.pieces)
    records = [jax.tree.map(lambda leaf: jax.lax.collapse(leaf, 0, 2), seen)]
    for length, live in plan.rest:
        state, seen = go(length, state, live)
        records.append(seen)
    return _run(plan, state, first, records)


def descend(
    loss: Loss, params: PyTree, *, kernel: Float[Array, "n n"] | None = None, **options: Any
) -> Run:
    r"""The descent of :func:`path`, with a progress bar, errors and a program kept for next time.

    The ``options`` are those of :func:`path`. A loss that is not finite stops the run with a
    FloatingPointError that names the step, and, if the tangent ``kernel`` on the data is given,
    the learning rate :math:`2/\lambda_{max}` that a squared loss
    :math:`\frac12\sum_i|f(x_i) - y_i|^2` allows. Inside ``jax.jit`` and the like, where there are
    no numbers to look at yet, this is :func:`path`.
    """
    from tqdm import tqdm

    plan = descent.plan(loss, params, **options)
    if kernel is not None and jnp.ndim(kernel) != 2:
        raise ValueError(f"expected a kernel of shape (n, n), got {jnp.shape(kernel)}")
    rule, data = plan.rule, plan.data
    state, first = _begin(rule, plan.params, data)
    if not checks.known((state, first, plan.rate, data)):
        return path(loss, params, **options)
    checks.computed(first[2], f"the loss is {first[2]} at the initial parameters")
    records, pieces = [], [*((plan.every, live) for live in plan.pieces), *plan.rest]
    for length, live in tqdm(pieces, disable=None, leave=False):
        state, seen = _advance(rule, length, state, live, plan.rate, data)
        if state.sound < state.step:
            raise _diverged(int(state.sound), rule, kernel)
        records.append(seen)
    if not bool(jnp.isfinite(_value(rule, state.params, data, state.step - 1))):
        raise _diverged(int(state.step), rule, kernel)
    return _run(plan, state, first, records)


_begin = jax.jit(descent.begin, static_argnums=0)
_advance = jax.jit(descent.advance, static_argnums=(0, 1))
_value = jax.jit(descent.value, static_argnums=0)


def _run(plan, state, first, records):
    """The records of the start, and of all pieces without the padding of the first."""
    padding = np.sum(~plan.pieces)

    def join(start, *parts):
        return jnp.concatenate([jnp.asarray(start)[None], jnp.concatenate(parts)[padding:]])

    steps, history = jax.tree.map(join, first[:2], *records)
    dtype = first[2].dtype
    return Run(state.params, jnp.asarray(plan.rate, dtype) * steps.astype(dtype), history)


def _diverged(step, rule, kernel):
    cause = "learning_rate" if rule.optimizer is None else "step of the optimizer"
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

    ``observe(params)`` (None: the loss) is recorded at each of the increasing ``times``; the run
    ends at the last of them. Adaptive steps of order 5, with the tolerance and the care at kinks
    of :mod:`ntkcourse.odes`. May be compiled, batched, and differentiated forward and in
    reverse, by the parameters, by what the loss reads, and by ``times``.
    """
    params = jax.tree.map(lambda leaf: checks.finite(leaf, "params"), params)
    dtype = jax.eval_shape(lambda p: checks.scalar(loss(p), "a loss"), params).dtype
    times = checks.increasing(times, dtype)
    run, value, reached = _flow_compiled(loss, loss if observe is None else observe, params, times)
    checks.computed(value, f"the loss is {value} at the initial parameters")
    if checks.known(reached) and not bool(reached):
        raise FloatingPointError("the flow left the finite numbers before its last time")
    return run


@partial(jax.jit, static_argnums=(0, 1))
def _flow_compiled(loss, observe, params, times):
    downhill = lambda p: jax.tree.map(jnp.negative, jax.grad(loss)(p))  # noqa: E731
    last, history, reached = odes.solve(downhill, params, times, observe)
    return Run(last, times, history), loss(params), reached


def sweep(train: Callable[..., Any], keys: Shaped[Array, "seeds ..."], **axes: Any) -> Any:
    """``train(key, **point)`` for each key at each point of a grid, in one compiled program.

    ``axes`` are arrays by the names of their arguments, for example ``width=[4, 32, 256],
    scale=[1.0, 10.0]``. What ``train`` returns is stacked: one leading axis for each of ``axes``,
    in their order, then one for the keys. The points are done one after the other, the keys of a
    point together. A FloatingPointError names the first run that gave NaN or infinity.
    """
    axes = {name: jnp.asarray(axis) for name, axis in axes.items()}
    for name, axis in axes.items():
        if axis.ndim == 0 or len(axis) == 0:
            raise ValueError(f"expected an array of values for {name}, got shape {axis.shape}")
    runs = _grid(train, tuple(axes), checks.random_keys(keys), axes)
    shape = (*map(len, axes.values()), len(keys))
    floats = [leaf for leaf in jax.tree.leaves(runs) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    if not checks.known(floats):
        return runs
    sound = [np.isfinite(leaf).reshape(*shape, -1).all(-1) for leaf in floats]
    lost = np.argwhere(~np.all([np.ones(shape, bool), *sound], axis=0))
    if len(lost):
        *place, seed = lost[0]
        point = [f"{n}={axis[i]:.4g}, " for (n, axis), i in zip(axes.items(), place, strict=True)]
        raise FloatingPointError(
            f"{len(lost)} of {np.prod(shape)} members diverged, "
            f"the first of them {''.join(point)}number {seed}"
        )
    return runs


@partial(jax.jit, static_argnums=(0, 1))
def _grid(train, names, keys, axes):
    def fix(point, name=None, *others):
        if name is None:
            return jax.vmap(lambda key: train(key, **point))(keys)
        return jax.lax.map(lambda value: fix({**point, name: value}, *others), axes[name])

    return fix({}, *names)


def ensemble(train: Callable[[PRNGKeyArray], Any], keys: Shaped[Array, "members ..."]) -> Any:
    """Many trainings in one compiled program: ``train(key)`` for each key, results stacked.

    ``train`` draws its network from ``key`` and returns what :func:`descend` or :func:`flow`
    gave. Raises a FloatingPointError that names the members whose parameters are not finite.
    """
    return sweep(train, keys)
