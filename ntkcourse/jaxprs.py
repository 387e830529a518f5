"""A function as one flat list of equations: calls and short loops written out.

As the evaluation of a jaxpr in JAX itself, but each equation passes through a rule of ours.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

UNROLL = 64
"""Scans of at most so many steps are unrolled, so that products inside them are found."""

CALLS = {"jit", "pjit", "closed_call", "core_call", "remat2", "checkpoint"}


def flat(function, *arguments) -> ClosedJaxpr:
    """The jaxpr of ``function``, without calls and without scans that hold products."""
    closed = jax.make_jaxpr(function)(*arguments)
    return jax.make_jaxpr(partial(_evaluate, closed))(*closed.in_avals)


def run(equations, env, rule) -> None:
    """Evaluate equations one by one, with the values of all variables in ``env``."""
    for number, eqn in enumerate(equations):
        values = [read(v, env) for v in eqn.invars]
        env.update(zip(eqn.outvars, rule(number, eqn, values), strict=True))


def read(v, env):
    """The value of a variable or a literal."""
    return v.val if isinstance(v, Literal) else env[v]


def bind(_, eqn, values):
    """The results of one equation."""
    bound = eqn.primitive.get_bind_params(eqn.params)
    functions, params = bound if isinstance(bound, tuple) else ((), bound)  # older JAX: a pair
    with eqn.ctx.manager:
        out = eqn.primitive.bind(*functions, *values, **params)
    return out if eqn.primitive.multiple_results else [out]


def _evaluate(closed, *values):
    """The jaxpr with calls and short loops written out."""
    jaxpr, consts = (closed.jaxpr, closed.consts) if hasattr(closed, "consts") else (closed, ())
    env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *values], strict=True))
    run(jaxpr.eqns, env, _inline)
    return [read(v, env) for v in jaxpr.outvars]


def _has_product(jaxpr) -> bool:
    inner = [v for e in jaxpr.eqns for v in e.params.values()]
    inner = [getattr(v, "jaxpr", v) for v in inner if isinstance(v, (ClosedJaxpr, Jaxpr))]
    names = {e.primitive.name for e in jaxpr.eqns}
    return bool(names & {"dot_general", "conv_general_dilated"}) or any(map(_has_product, inner))


def scan_sizes(inner: Jaxpr, ins: list[int], outs: list[int]) -> tuple[int, int]:
    """How many constants and how many states a scan has, by the numbers of axes outside.

    What it runs over, or stacks, has one axis more than inside. (JAX keeps these sizes among the
    parameters of a scan, in other words from one version to the next.)
    """
    states = sum(n == v.aval.ndim for n, v in zip(outs, inner.outvars, strict=True))
    kept = sum(n == v.aval.ndim for n, v in zip(ins, inner.invars, strict=True))
    return kept - states, states


def _inline(number, eqn, values):
    # functions with a derivative of their own (custom_jvp, custom_vjp) stay whole: it would be lost
    p = eqn.params
    if eqn.primitive.name in CALLS:
        return _evaluate(p.get("jaxpr", p.get("call_jaxpr")), *values)
    short = eqn.primitive.name == "scan" and 0 < p["length"] <= UNROLL
    if not short or not _has_product(p["jaxpr"].jaxpr):
        return bind(number, eqn, values)
    axes = [[v.aval.ndim for v in side] for side in (eqn.invars, eqn.outvars)]
    fixed, states = scan_sizes(p["jaxpr"].jaxpr, *axes)
    consts, carry, slices = values[:fixed], values[fixed : fixed + states], values[fixed + states :]
    stacked = [None] * p["length"]
    for t in range(p["length"])[:: -1 if p["reverse"] else 1]:
        xs = [lax.index_in_dim(a, t, keepdims=False) for a in slices]
        out = _evaluate(p["jaxpr"], *consts, *carry, *xs)
        carry, stacked[t] = out[: len(carry)], out[len(carry) :]
    return [*carry, *map(jnp.stack, zip(*stacked, strict=True))]
