"""Small data sets: points with known geometry, and the tables that scikit-learn bundles."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ntkcourse import checks

TABLES = ("diabetes", "wine", "breast_cancer", "digits")


def circle(n: int, radius: float = 1.0) -> Float[Array, "n 2"]:
    """n equally spaced points on a circle, the first of them at angle 0."""
    radius = checks.number(radius, "radius", above=0)
    angle = 2 * jnp.pi * jnp.arange(checks.count(n, "n"), dtype=jnp.result_type(radius, 1.0)) / n
    return radius * jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)


def sphere(n: int, d: int, radius: float = 1.0, *, key: PRNGKeyArray) -> Float[Array, "n d"]:
    """n independent points, uniform on the sphere of the given radius in d dimensions."""
    radius = checks.number(radius, "radius", above=0)
    shape, dtype = (checks.count(n, "n"), checks.count(d, "d")), jnp.result_type(radius, 1.0)
    normal = jax.random.normal(checks.random_key(key, "sphere"), shape, dtype)
    return radius * normal / jnp.linalg.norm(normal, axis=1, keepdims=True)


def table(name: str) -> tuple[Float[Array, "n d"], Array]:
    """Inputs and targets of a data set, as they are: not scaled, in the order of the source.

    Names: diabetes (regression), wine, breast_cancer, digits (classes 0, 1, ...). First split,
    then :func:`standardise`.
    """
    if name not in TABLES:
        raise ValueError(f"expected a data set among {', '.join(TABLES)}, got {name!r}")
    try:
        import sklearn.datasets
    except ImportError as error:
        raise ImportError('tables need scikit-learn: pip install "ntkcourse[book]"') from error
    # scikit-learn would scale this one, by all of its rows
    raw = {"scaled": False} if name == "diabetes" else {}
    x, y = getattr(sklearn.datasets, f"load_{name}")(return_X_y=True, **raw)
    return jnp.asarray(x, float), jnp.asarray(y)


def standardise(train: Float[Array, "n d"], *others: Array) -> tuple[Array, ...]:
    r"""Columns of mean 0 and variance 1 on the training rows; the same map for all ``others``.

    .. math:: x_j \mapsto (x_j - \bar x_j) / \hat\sigma_j, \qquad
              \hat\sigma_j^2 = \frac1n \sum_i (x_{ij} - \bar x_j)^2

    Mean and variance are those of ``train`` alone: rows to be tested on, which tell of
    themselves through a common scale, stay unseen. A column that is constant there is
    only centred. Gives one array per argument.
    """
    train = checks.points(train, "train")
    arrays = (train, *(checks.points(other, "others", like=train) for other in others))
    mean, deviation = jnp.mean(train, axis=0), jnp.std(train, axis=0)
    # a constant column has a deviation of the size of rounding, which must not be divided by
    floor = 100 * jnp.finfo(train.dtype).eps * jnp.abs(mean)
    scale = jnp.where(deviation > floor, deviation, 1)
    return tuple((array - mean[None]) / scale[None] for array in arrays)
