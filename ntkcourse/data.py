"""Small data sets: points with known geometry, and the tables that scikit-learn bundles."""

import jax
import jax.numpy as jnp
import sklearn.datasets
from jaxtyping import Array, Float, PRNGKeyArray

from ntkcourse import checks

TABLES = ("diabetes", "wine", "breast_cancer", "digits")


def circle(n: int, radius: float = 1.0) -> Float[Array, "n 2"]:
    """n equally spaced points on a circle, the first of them at angle 0."""
    radius = checks.number(radius, "radius", above=0)
    angle = 2 * jnp.pi * jnp.arange(checks.count(n, "n"), dtype=float) / n
    return radius * jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)


def sphere(n: int, d: int, radius: float = 1.0, *, key: PRNGKeyArray) -> Float[Array, "n d"]:
    """n independent points, uniform on the sphere of the given radius in d dimensions."""
    radius = checks.number(radius, "radius", above=0)
    shape = (checks.count(n, "n"), checks.count(d, "d"))
    normal = jax.random.normal(checks.random_key(key, "sphere"), shape)
    return radius * normal / jnp.linalg.norm(normal, axis=1, keepdims=True)


def table(name: str) -> tuple[Float[Array, "n d"], Array]:
    """Inputs and targets of a data set, the inputs standardised column by column.

    Names: diabetes (regression), wine, breast_cancer, digits (classes 0, 1, ...). Columns that
    are constant become 0.
    """
    if name not in TABLES:
        raise ValueError(f"expected a data set among {', '.join(TABLES)}, got {name!r}")
    x, y = getattr(sklearn.datasets, f"load_{name}")(return_X_y=True)
    x, y = jnp.asarray(x, float), jnp.asarray(y)
    deviation = jnp.std(x, axis=0)
    return (x - jnp.mean(x, axis=0)[None]) / jnp.where(deviation > 0, deviation, 1)[None], y
