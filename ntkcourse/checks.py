"""What the public functions ask of their arguments, said once.

Each check returns its argument as a JAX array of floats or raises an error that says what was
expected and what came. Values are looked at only when they are known: inside ``jax.jit`` or
``jax.vmap`` an array has a shape but no entries yet, and only its shape is checked.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Shaped


def known(values) -> bool:
    """Whether the entries of all arrays in ``values`` can be looked at (JAX traces none)."""
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values))


def finite(value, name: str, dtype=float) -> Array:
    """``value`` as an array of floats, free of NaN and infinity; integers become ``dtype``."""
    try:
        array = value if isinstance(value, jax.Array) else np.asarray(value)
    except ValueError as error:  # a list with parts of several shapes, of a network for example
        raise TypeError(f"expected {name} to be an array, got {type(value).__name__}") from error
    if array.dtype == object or not np.can_cast(array.dtype, np.complex128):
        raise TypeError(f"expected {name} to be an array of numbers, got dtype {array.dtype}")
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise TypeError(f"expected real {name}, got dtype {array.dtype}")
    array = jnp.asarray(array, None if jnp.issubdtype(array.dtype, jnp.floating) else dtype)
    if known(array) and not np.all(np.isfinite(array)):
        raise ValueError(f"expected finite {name}, got NaN or infinity")
    return array


def points(x, name: str = "x", like: Array | None = None) -> Float[Array, "n ..."]:
    """A non-empty array of points as rows; with ``like``, rows of the same shape as there."""
    x = finite(x, name, float if like is None else like.dtype)
    if x.ndim < 2:
        raise ValueError(
            f"expected {name} of shape (n, d), one point per row, got shape {x.shape}"
            + (f"; did you mean {name}[:, None]?" if x.ndim == 1 else "")
        )
    if x.size == 0:
        raise ValueError(f"expected at least one point in {name}, got shape {x.shape}")
    if like is not None and x.shape[1:] != like.shape[1:]:
        raise ValueError(
            f"expected {name} with points of shape {like.shape[1:]}, got points of {x.shape[1:]}"
        )
    return x


def pair(x, y) -> tuple[Array, Array]:
    """Two single points of one shape, the arguments of a kernel."""
    x, y = finite(x, "x"), finite(y, "y")
    if x.shape != y.shape or x.ndim == 0 or x.size == 0:
        raise ValueError(
            f"expected two points of one shape, (d,) each, got shapes {x.shape} and {y.shape}; "
            "gram(k, x, y) takes arrays of points"
        )
    return x, y


def data(x, y) -> tuple[Array, Array]:
    """Points and one target for each of them."""
    x = gathered(points(x))
    return x, gathered(targets(y, x))


def square(matrix, name: str) -> Float[Array, "n n"]:
    """A matrix with as many rows as columns, to be decomposed."""
    matrix = points(matrix, name)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"expected {name} of shape (n, n), got shape {matrix.shape}")
    return solvable(matrix)


def solvable(matrix: Array) -> Array:
    """A matrix in single or double precision: there are no solvers for half precision."""
    if jnp.finfo(matrix.dtype).bits < 32:
        raise TypeError(f"expected float32 or float64 to solve with, got {matrix.dtype}")
    return matrix


def targets(y, x: Array, name: str = "y") -> Float[Array, "n ..."]:
    """One target per point of ``x``: shape (n,) or (n, c), in the dtype of ``x`` if integer."""
    y = finite(y, name, x.dtype)
    if y.ndim not in (1, 2) or y.shape[0] != x.shape[0]:
        raise ValueError(
            f"expected {name} of shape ({x.shape[0]},) or ({x.shape[0]}, c), got shape {y.shape}"
        )
    return y


def number(value, name: str, *, above: float | None = None, least: float | None = None):
    """A finite real number, with an open or a closed lower bound.

    Returned as a number of Python, which never changes the dtype of what it is combined with.
    """
    if not known(value):
        return value
    array = np.asarray(value)
    if array.ndim != 0 or array.dtype.kind not in "iuf":
        raise TypeError(f"expected a number for {name}, got {value!r}")
    value = array.item()
    if not np.isfinite(value):
        raise ValueError(f"expected a finite number for {name}, got {value!r}")
    if above is not None and not value > above:
        raise ValueError(f"expected {name} > {above:g}, got {value!r}")
    if least is not None and not value >= least:
        raise ValueError(f"expected {name} >= {least:g}, got {value!r}")
    return value


def scalar(value, what: str) -> Array:
    """The value of a user's function that has to be one number: a loss, an energy."""
    if jnp.shape(value) != ():
        raise ValueError(f"expected {what} that is a number, got shape {jnp.shape(value)}")
    return value


def computed(value, message: str) -> None:
    """Raise a FloatingPointError if a result is known to contain NaN or infinity."""
    if known(value) and not np.all(np.isfinite(value)):
        raise FloatingPointError(message)


def lengthscale(value):
    """A positive number, or one positive number per coordinate."""
    if np.ndim(value) == 0:
        return number(value, "lengthscale", above=0)
    value = finite(value, "lengthscale")
    if value.ndim != 1 or value.size == 0 or (known(value) and not np.all(np.asarray(value) > 0)):
        raise ValueError(f"expected lengthscale > 0, a number or one per coordinate, got {value}")
    return value


def gathered(array: Array) -> Array:
    """The array on every device, where a mesh with explicit axes has it in parts."""
    parts = jax.typeof(array).sharding.spec
    if all(part is None for part in parts):
        return array
    return jax.sharding.reshard(array, jax.sharding.PartitionSpec(*[None] * array.ndim))


def count(value, name: str, least: int = 1) -> int:
    """A whole number, at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"expected a whole number for {name}, got {value!r}")
    if value < least:
        raise ValueError(f"expected {name} >= {least}, got {value}")
    return int(value)


def times(t, dtype) -> Float[Array, "..."]:
    """A time, infinity allowed, or an array of times; none negative."""
    t = jnp.asarray(t, dtype)
    if t.ndim > 1:
        raise ValueError(f"expected a time or a list of times, got shape {t.shape}")
    if known(t) and not np.all(np.asarray(t) >= 0):
        raise ValueError(f"expected times t >= 0, got {t}")
    return t


def increasing(t, dtype) -> Float[Array, " times"]:
    """A non-empty list of finite, increasing times, none negative."""
    t = times(finite(t, "times"), dtype)
    if t.ndim != 1 or len(t) == 0:
        raise ValueError(f"expected a list of times, got shape {t.shape}")
    if known(t) and np.any(np.diff(t) <= 0):
        raise ValueError(f"expected increasing times, got {t}")
    return t


def weights(a, x: Array, name: str = "weights") -> Float[Array, " n"]:
    """Probabilities of the points in ``x``; None means equal ones."""
    n = x.shape[0]
    if a is None:
        return jnp.full(n, 1 / n, x.dtype)
    a = finite(a, name).astype(x.dtype)
    if a.shape != (n,):
        raise ValueError(f"expected {name} of shape ({n},), got shape {a.shape}")
    if known(a):
        entries = np.asarray(a, float)
        if np.any(entries < 0):
            raise ValueError(f"expected {name} >= 0, got {entries.min()}")
        whole = entries.sum()
        if abs(whole - 1) > n * float(jnp.finfo(a.dtype).eps) + 1e-6:
            raise ValueError(f"expected {name} that sum to 1, got the sum {whole}")
    return a


def random_keys(keys, what: str = "an array of keys", least: int = 1) -> Shaped[Array, "keys ..."]:
    """Several JAX random keys, of the new or the old kind."""
    typed = jnp.issubdtype(getattr(keys, "dtype", None), jax.dtypes.prng_key)
    if np.ndim(keys) < (1 if typed else 2) or len(keys) < least:
        hint = "jax.random.split(jax.random.key(0), n) makes n of them"
        raise ValueError(f"expected {what}, got shape {np.shape(keys)}: {hint}")
    return keys


def random_key(key, purpose: str) -> PRNGKeyArray:
    """A JAX random key; None is refused because nothing in the package is random unasked."""
    if not isinstance(key, jax.Array) or not (
        jnp.issubdtype(key.dtype, jax.dtypes.prng_key) or key.dtype == jnp.uint32
    ):
        what = "None" if key is None else f"{type(key).__name__} {key!r}"
        raise ValueError(f"expected a key for {purpose}, got {what}; pass key=jax.random.key(0)")
    return key
