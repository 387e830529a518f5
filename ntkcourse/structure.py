r"""Where the parameters of a function meet its input, found in its jaxpr.

The tangent kernel of a parameter that enters a product (:mod:`ntkcourse.products`) is

.. math:: \sum_{m, m'} (h_m \cdot h'_{m'}) \, (\delta_m \cdot \delta'_{m'}),

so its gradients :math:`\sum_m h_m \otimes \delta_m` are never formed. :func:`plan` finds the
products, :func:`factors` computes h and :math:`\delta` for all rows (or the Jacobian, where it is
cheaper or the only way), :func:`contract` the kernel. Derived in the chapter :ref:`ntk`.
"""

from itertools import combinations
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, Var
from jaxtyping import Array, PyTree

from ntkcourse import jaxprs
from ntkcourse.products import Outer, Product, as_product

SAME_ORDER = {"reshape", "squeeze", "broadcast_in_dim", "convert_element_type", "copy", "copy_p"}


class View(NamedTuple):
    """Some entries of a leaf, times factors; ``ordered`` if as they stand."""

    leaf: int
    entries: range
    ordered: bool = True
    factors: tuple = ()


class Plan(NamedTuple):
    """The equations outside and inside the map over rows, and the cuts between the two.

    A cut is a value of parameters alone that meets the input. ``products`` holds those that meet
    it in products only, by the number of the equation inside; ``others`` the rest. ``views`` are
    cuts that are a part of a leaf which no other cut touches, so that their gradients are those by
    the leaf; ``outer`` the views whose Jacobians are not formed; ``pulled`` the leaves behind all
    other cuts. ``row`` and ``pair`` count the numbers held for one row and for one pair of rows.
    """

    jaxpr: Jaxpr
    env: dict
    outside: list[JaxprEqn]
    inside: list[JaxprEqn]
    products: dict[Var, dict[int, Product]]
    others: list[Var]
    views: dict[Var, View]
    outer: list[Var]
    pulled: list[int]
    row: int
    pair: int


def _view(eqn, views, parameters) -> View | None:
    """What the equation makes of a view: a part of it, another order, a multiple."""
    if len(parameters) != 1 or parameters[0] not in views:
        return None
    view, old, new = views[parameters[0]], parameters[0].aval, eqn.outvars[0].aval
    name = eqn.primitive.name
    if name == "neg" or (name in SAME_ORDER and old.size == new.size):
        return view
    if name in ("transpose", "rev"):
        return view._replace(ordered=False)
    if name == "mul" or (name == "div" and eqn.invars[0] is parameters[0]):
        factor = eqn.invars[1 - eqn.invars.index(parameters[0])]
        number = factor.aval.shape == ()
        return view._replace(factors=(*view.factors, (name, factor))) if number else None
    if name == "slice" and view.ordered and new.size:
        ends = eqn.params["start_indices"], np.subtract(eqn.params["limit_indices"], 1)
        first, last = (np.ravel_multi_index(end, old.shape) for end in ends)
        if last - first + 1 == new.size:  # without gaps
            return view._replace(entries=view.entries[first : last + 1])
    return None


def _is_float(v) -> bool:
    return jnp.issubdtype(getattr(v.aval, "dtype", None) or bool, jnp.floating)


def plan(apply, params: PyTree, point: jax.ShapeDtypeStruct, trace: bool) -> Plan:
    """Trace ``apply`` at one row, a batch of one ``point``, and find how parameters enter."""
    closed = jaxprs.flat(apply, params, point)
    jaxpr = closed.jaxpr
    outputs = jaxpr.outvars[0].aval.size
    *leaf_vars, x = jaxpr.invars
    touched = {v: {i} for i, v in enumerate(leaf_vars)}  # the leaves of which a value is made
    views = {v: View(i, range(v.aval.size)) for i, v in enumerate(leaf_vars)}
    mapped, outside, inside, uses = {x}, [], [], {}
    for eqn in jaxpr.eqns:
        operands = [v for v in eqn.invars if isinstance(v, Var)]
        parameters = [v for v in operands if touched.get(v)]
        made_of = set().union(*(touched[v] for v in parameters))
        size = sum(v.aval.size for v in parameters)
        # what grows, as a bias that is copied to all places, has its gradient taken before
        grows = made_of and sum(v.aval.size for v in eqn.outvars if _is_float(v)) > size
        met = not mapped.isdisjoint(operands)
        if grows or met:
            for v in parameters:
                found = as_product(eqn, eqn.invars.index(v)) if met else None
                uses.setdefault(v, []).append((len(inside), found))
            mapped.update(eqn.outvars)
            inside.append(eqn)
            continue
        outside.append(eqn)
        if eqn.primitive.name != "stop_gradient":
            touched.update((v, made_of) for v in eqn.outvars if _is_float(v))
        if view := _view(eqn, views, parameters):
            views[eqn.outvars[0]] = view
    for v in jaxpr.outvars:
        if isinstance(v, Var) and touched.get(v):
            uses.setdefault(v, []).append((None, None))
    products = {v: dict(use) for v, use in uses.items() if all(p for _, p in use)}
    others = [v for v in uses if v not in products]
    shared = set()  # cuts that share entries of a leaf with another one, or may do so
    for v, w in combinations(uses, 2):
        if touched[v] & touched[w]:
            a, b = (views[u].entries if u in views else None for u in (v, w))
            if not (a and b and (a.stop <= b.start or b.stop <= a.start)):
                shared |= {v, w}
    views = {v: views[v] for v in uses if v in views and v not in shared}
    each = outputs if trace else outputs**2
    outer, row, pair = [], sum(outputs * v.aval.size for v in others), 3 * each
    for v, found in products.items():
        sizes = [p.sizes for p in found.values()]
        b, _, k, n = sizes[0]
        m = sum(size[1] for size in sizes)
        row += b * m * (k + outputs * n)
        one = len({p.kind for p in found.values()}) == 1
        if v in views and one and m**2 * (k + each * n) <= each * k * n:
            outer.append(v)
            pair = max(pair, 3 * each + b * m**2 * (1 + each))
        else:
            row += outputs * b * k * n
    pulled = sorted(set().union(*(touched[v] for v in uses if v not in views)))
    row += outputs * sum(leaf_vars[i].aval.size for i in pulled)
    env = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    return Plan(jaxpr, env, outside, inside, products, others, views, outer, pulled, row, pair)


def factors(how: Plan, params: PyTree, x: Array, trace: bool) -> list[Outer | Array]:
    """The gradients at the rows of x: per part of the parameters outer products or (n, c, p)."""
    leaves, dtype = jax.tree.leaves(params), how.jaxpr.outvars[0].aval.dtype

    def before(leaves):
        env = how.env | dict(zip(how.jaxpr.invars[:-1], leaves, strict=True))
        jaxprs.run(how.outside, env, jaxprs.bind)
        return env

    fixed = before(leaves)
    uses = {number: p for found in how.products.values() for number, p in found.items()}

    def at_row(shifts, others, row):
        """The outputs when the result of each product is shifted, and the products' inputs."""
        env = fixed | dict(zip(how.others, others, strict=True)) | {how.jaxpr.invars[-1]: row}
        inputs = {}

        def rule(number, eqn, values):
            out = jaxprs.bind(number, eqn, values)
            if p := uses.get(number):
                inputs[number] = p.inputs(values[1 - p.side])
                out = [out[0] + shifts[number]]
            return out

        jaxprs.run(how.inside, env, rule)
        return jaxprs.read(how.jaxpr.outvars[0], env).reshape(-1), inputs

    def backward(row):
        zeros = {number: jnp.zeros_like(how.inside[number].outvars[0].aval) for number in uses}
        others = [fixed[v] for v in how.others]
        out, pull, inputs = jax.vjp(lambda s, o: at_row(s, o, row), zeros, others, has_aux=True)
        deltas, jacobians = jax.vmap(pull)(jnp.eye(out.size, dtype=out.dtype))
        deltas = {number: jax.vmap(p.cotangents)(deltas[number]) for number, p in uses.items()}
        return inputs, deltas, jacobians

    inputs, deltas, jacobians = jax.vmap(backward)(x[:, None])
    gradients, terms = dict(zip(how.others, jacobians, strict=True)), []
    for v, found in how.products.items():
        if v in how.outer:
            h = jnp.concatenate([inputs[number] for number in found], axis=2)
            d = jnp.concatenate([deltas[number] for number in found], axis=3)
            terms.append(Outer(h, _scaled(d, how.views[v], fixed)))
        else:
            gradients[v] = sum(p.jacobian(inputs[t], deltas[t]) for t, p in found.items())
    terms += [_scaled(g, how.views[v], fixed) for v, g in gradients.items() if v in how.views]
    if how.pulled:
        cuts = [v for v in gradients if v not in how.views]

        def of_leaves(some):
            env = before([some.get(i, leaf) for i, leaf in enumerate(leaves)])
            return [env[v] for v in cuts]

        pull = jax.vjp(of_leaves, {i: leaves[i] for i in how.pulled})[1]
        terms += jax.vmap(jax.vmap(pull))([gradients[v] for v in cuts])[0].values()
    return [_folded(term, trace, dtype) for term in terms]


def _scaled(gradient, view, env):
    for name, factor in view.factors:
        value = jnp.asarray(jaxprs.read(factor, env), gradient.dtype)
        gradient = gradient * value if name == "mul" else gradient / value
    return gradient


def _folded(term, trace, dtype):
    """In one dtype, and for the trace with the outputs as further entries of one gradient."""
    if isinstance(term, Outer):
        h, d = term
        d = jnp.moveaxis(d, 1, 4).reshape(len(d), 1, *d.shape[2:4], -1) if trace else d
        return Outer(h.astype(dtype), d.astype(dtype))
    return term.reshape(len(term), 1 if trace else term.shape[1], -1).astype(dtype)
