"""What a user's function ``apply(params, x)`` has to be, and how it crosses ``jax.jit``."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, PyTree

from ntkcourse import checks

Apply = Callable[[PyTree, Array], Array]


class Bound(NamedTuple):
    """A partial without its arrays: equal for equal parts, so that nothing is compiled twice."""

    function: Apply
    tree: jax.tree_util.PyTreeDef
    rest: tuple

    def __call__(self, arrays, params, x):  # noqa: D102
        leaves = [arrays.get(i, leaf) for i, leaf in enumerate(self.rest)]
        args, keywords = jax.tree.unflatten(self.tree, leaves)
        return self.function(*args, params, x, **keywords)


def traceable(apply: Apply) -> Partial:
    """``apply`` as a pytree: the arrays that a partial holds are its leaves."""
    if not callable(apply):
        raise TypeError(
            f"expected apply, a function of (params, x), got {type(apply).__name__}; "
            "the order of arguments is apply, params, x"
        )
    if isinstance(apply, Partial) and isinstance(apply.func, Bound):
        return apply
    if not isinstance(apply, partial):
        apply = partial(apply)
    leaves, tree = jax.tree.flatten((apply.args, apply.keywords))
    arrays = {i: a for i, a in enumerate(leaves) if isinstance(a, (jax.Array, np.ndarray))}
    rest = tuple(None if i in arrays else leaf for i, leaf in enumerate(leaves))
    bound = Bound(apply.func, tree, rest)
    try:
        hash(bound)
    except TypeError:
        bound = Bound(lambda *args, **keywords: apply.func(*args, **keywords), tree, rest)
    return Partial(bound, arrays)


def expect(apply, params, x):
    """The arguments of a function of (apply, params, x), or an error that says what is wrong."""
    apply, leaves = traceable(apply), jax.tree.leaves(params)
    for leaf in leaves:
        if not jnp.issubdtype(getattr(leaf, "dtype", type(leaf)), jnp.floating):
            raise TypeError(
                f"expected params of arrays of floats, got a leaf {leaf!r}; of an Equinox module "
                "take the first part of eqx.partition(model, eqx.is_inexact_array)"
            )
    if sum(jnp.size(leaf) for leaf in leaves) == 0:
        raise ValueError("expected parameters to differentiate by, got none in params")
    given, x = x, checks.points(x)
    if not jnp.issubdtype(jnp.asarray(given).dtype, jnp.floating):
        try:  # whole numbers are numbers, but indices where apply accepts nothing else
            jax.eval_shape(apply, params, point(x))
        except TypeError:
            x = jnp.asarray(given)
    return apply, params, x


def point(x: Array) -> jax.ShapeDtypeStruct:
    """The shape of a batch of one row of x."""
    return jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype)


def outputs(apply, params, point) -> tuple[int, ...]:
    """The shape () or (c,) of the outputs at one row."""

    def shape(*arguments):
        try:
            return jax.eval_shape(apply, *arguments).shape
        except Exception:  # whatever a user's function raises when its arguments do not fit
            return None

    found = shape(params, point)
    if found is not None and len(found) in (1, 2) and found[0] == 1:
        return found[1:]
    if shape(params, jax.ShapeDtypeStruct(point.shape[1:], point.dtype)) is not None:
        hint = "; make a function of one point one of rows by jax.vmap(apply, (None, 0))"
    elif found is None and shape(point, params) is not None:
        raise TypeError("expected apply(params, x), got a function of (x, params)")
    elif found is None:
        return jax.eval_shape(apply, params, point)  # raises what apply itself says
    else:
        hint = ""
    got = "an error" if found is None else f"shape {found}"
    raise ValueError(f"expected apply to map (1, d) to (1,) or (1, c), got {got}{hint}")


def mixed(apply, params, x):
    """Whether the output at the first row is another one beside a copy than beside a stranger."""
    other = x[-1:] + (x[-1:] / 2 + 1 if jnp.issubdtype(x.dtype, jnp.floating) else 0)
    batches = jnp.stack([jnp.concatenate([x[:1], b]) for b in (x[:1], other)])
    same, new = jax.vmap(lambda batch: apply(params, batch)[:1])(batches)
    size = jnp.maximum(jnp.max(jnp.abs(same)), jnp.max(jnp.abs(new)))
    far = jnp.abs(same - new) > jnp.finfo(same.dtype).eps ** 0.5 * size
    return jnp.any(far | (jnp.isnan(same) != jnp.isnan(new)))
