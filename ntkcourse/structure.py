r"""Where the parameters of a function meet its input, found in its jaxpr.

The tangent kernel of a parameter that enters a product (:mod:`ntkcourse.products`) is

.. math:: \sum_{m, m'} (h_m \cdot h'_{m'}) \, (\delta_m \cdot \delta'_{m'}),

so its gradients :math:`\sum_m h_m \otimes \delta_m` are never formed. :func:`plan` finds the
products, :func:`factors` computes h and :math:`\delta` for all rows (or the Jacobian, where it is
cheaper or the only way), :func:`contract` the kernel. Derived in the chapter :ref:`ntk`.
"""

from itertools import combinations
from math import prod
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr, JaxprEqn, Var
from jaxtyping import Array, PyTree

from ntkcourse import jaxprs
from ntkcourse.products import Outer, Product, as_product

SAME_ORDER = {"reshape", "squeeze", "broadcast_in_dim", "convert_element_type", "copy", "copy_p"}


class View(NamedTuple):
    """The entries start, ..., stop - 1 of a leaf, times factors; ``ordered`` if as they stand."""

    leaf: int
    start: int
    stop: int
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


def _view(eqn, views, touched) -> View | None:
    """What the equation makes of a view: a part of it, another order, a multiple."""
    operands = [v for v in eqn.invars if isinstance(v, Var) and touched.get(v)]
    if len(operands) != 1 or operands[0] not in views:
        return None
    view, old, new = views[operands[0]], operands[0].aval, eqn.outvars[0].aval
    name = eqn.primitive.name
    if name == "neg" or (name in SAME_ORDER and old.size == new.size):
        return view
    if name in ("transpose", "rev"):
        return view._replace(ordered=False)
    if name in ("mul", "div") and (name == "mul" or eqn.invars[0] is operands[0]):
        factor = eqn.invars[1 - eqn.invars.index(operands[0])]
        return view._replace(factors=(*view.factors, (name, factor))) if _number(factor) else None
    if name == "slice" and view.ordered and set(eqn.params["strides"] or (1,)) == {1}:
        axis = next((i for i, n in enumerate(old.shape) if n != new.shape[i]), 0)
        inner = prod(old.shape[axis + 1 :])
        if prod(old.shape[:axis]) == 1 and inner == prod(new.shape[axis + 1 :]):
            start = view.start + inner * eqn.params["start_indices"][axis]
            return view._replace(start=start, stop=start + new.size)
    return None


def _number(v) -> bool:
    return v.aval.shape == ()


def _is_float(v) -> bool:
    return jnp.issubdtype(getattr(v.aval, "dtype", None) or bool, jnp.floating)


def plan(apply, params: PyTree, point: jax.ShapeDtypeStruct, trace: bool) -> Plan:
    """Trace ``apply`` at one row, a batch of one ``point``, and find how parameters enter."""
    leaves, tree = jax.tree.flatten(params)

    def at_row(leaves, x):
        return apply(jax.tree.unflatten(tree, leaves), x)

    closed = jaxprs.flat(at_row, leaves, point)
    jaxpr = closed.jaxpr
    outputs = jaxpr.outvars[0].aval.size
    *leaf_vars, x = jaxpr.invars
    touched = {v: {i} for i, v in enumerate(leaf_vars)}  # the leaves of which a value is made
    views = {v: View(i, 0, v.aval.size) for i, v in enumerate(leaf_vars)}
    mapped, outside, inside, uses = {x}, [], [], {}
    for eqn in jaxpr.eqns:
        operands = [v for v in eqn.invars if isinstance(v, Var)]
        made_of = set().union(*(touched.get(v, ()) for v in operands))
        size = sum(v.aval.size for v in operands if touched.get(v))
        # what grows, as a bias that is copied to all places, has its gradient taken before
        grows = made_of and sum(v.aval.size for v in eqn.outvars if _is_float(v)) > size
        if grows or any(v in mapped for v in operands):
            for side, v in enumerate(eqn.invars):
                if isinstance(v, Var) and touched.get(v):
                    other = eqn.invars[1 - side] if len(eqn.invars) == 2 else None
                    met = isinstance(other, Var) and other in mapped
                    found = as_product(eqn, side) if met else None
                    uses.setdefault(v, []).append((len(inside), found))
            mapped.update(eqn.outvars)
            inside.append(eqn)
            continue
        outside.append(eqn)
        constant = eqn.primitive.name == "stop_gradient"
        for v in eqn.outvars:
            touched[v] = made_of if _is_float(v) and not constant else set()
        if made_of and (view := _view(eqn, views, touched)):
            views[eqn.outvars[0]] = view
    for v in jaxpr.outvars:
        if isinstance(v, Var) and touched.get(v):
            uses.setdefault(v, []).append((None, None))
    products = {v: dict(use) for v, use in uses.items() if all(p for _, p in use)}
    others = [v for v in uses if v not in products]
    shared = set()  # cuts that share entries of a leaf with another one, or may do so
    for v, w in combinations(uses, 2):
        if touched[v] & touched[w]:
            a, b = views.get(v), views.get(w)
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
    uses = [(number, p) for found in how.products.values() for number, p in found.items()]
    place = {number: t for t, (number, _) in enumerate(uses)}

    def at_row(shifts, others, row):
        """The outputs when the result of each product is shifted, and the products' inputs."""
        env = fixed | dict(zip(how.others, others, strict=True)) | {how.jaxpr.invars[-1]: row}
        inputs = [None] * len(uses)

        def rule(number, eqn, values):
            out = jaxprs.bind(number, eqn, values)
            if number in place:
                t, p = place[number], uses[place[number]][1]
                inputs[t] = p.inputs(values[1 - p.side])
                out = [out[0] + shifts[t]]
            return out

        jaxprs.run(how.inside, env, rule)
        return jaxprs.read(how.jaxpr.outvars[0], env).reshape(-1), inputs

    def backward(row):
        avals = [how.inside[number].outvars[0].aval for number, _ in uses]
        zeros = [jnp.zeros(a.shape, a.dtype) for a in avals]
        others = [fixed[v] for v in how.others]
        out, pull, inputs = jax.vjp(lambda s, o: at_row(s, o, row), zeros, others, has_aux=True)
        deltas, jacobians = jax.vmap(pull)(jnp.eye(out.size, dtype=out.dtype))
        deltas = [jax.vmap(p.cotangents)(d) for d, (_, p) in zip(deltas, uses, strict=True)]
        return inputs, deltas, jacobians

    inputs, deltas, jacobians = jax.vmap(backward)(x[:, None])
    gradients, terms = dict(zip(how.others, jacobians, strict=True)), []
    for v, found in how.products.items():
        at = [place[number] for number in found]
        if v in how.outer:
            h = jnp.concatenate([inputs[t] for t in at], axis=2)
            d = jnp.concatenate([deltas[t] for t in at], axis=3)
            terms.append(Outer(h, _scaled(d, how.views[v], fixed)))
        else:
            gradients[v] = sum(uses[t][1].jacobian(inputs[t], deltas[t]) for t in at)
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
