"""What is compared: cases, their sizes and their inputs. NumPy only, every environment reads it."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

GB = 1e9
EXACT = {"float32": 2e-4, "float64": 1e-6}
"""How far two sides may differ, relative to the largest entry, before a time counts."""


@dataclass(frozen=True)
class Case:
    """One comparison: `name` is a function of this module and of each of its sides."""

    name: str
    title: str
    peers: tuple[str, ...]
    sizes: tuple[dict, ...]
    quick: dict
    goal: dict | float | None = None  # times faster than the best peer, perhaps by dtype
    limit: str = ""  # what the machine's own limit is, if `sides.machine` has one
    within: float | None = None  # the goal for our time over the machine's
    memory: Callable[[dict], float] | None = None  # the goal for bytes beyond imports and inputs
    growth: tuple[dict, ...] = ()  # sizes for the growth exponent, smallest first
    axis: str = "n"  # the entry of a size that grows
    view: Callable | None = None  # what has to agree, if not the entries of the result
    agree: dict | None = None
    once: bool = False  # so long that one call, in one run, is all we measure


def clouds(size):
    """Two clouds of points around two centres, and the points of a third."""
    rng, n, d = np.random.default_rng(size["n"]), size["n"], size["d"]
    draws = {"x": rng.normal(size=(n, d)), "y": rng.normal(size=(n, d)) + 0.5}
    return {name: points.astype(size["dtype"]) for name, points in draws.items()}


def regression(size):
    """Points in a cube, targets that are smooth in them, and new points."""
    rng, n, d = np.random.default_rng(size["n"]), size["n"], size["d"]
    x, new = rng.normal(size=(n, d)), rng.normal(size=(500, d))
    arrays = {"x": x, "y": np.sin(x.sum(1)), "new": new}
    return {name: values.astype(size["dtype"]) for name, values in arrays.items()}


def network(size):
    """Points and the weights of a network without biases, entries N(0, 1), as (in, out)."""
    rng = np.random.default_rng(size["width"])
    widths = (size["d"], *[size["width"]] * size["hidden"], size["outputs"])
    weights = [rng.normal(size=shape) for shape in pairwise(widths)]
    x = rng.normal(size=(size["n"], size["d"]))
    return {"x": x.astype(size["dtype"]), "weights": [w.astype(size["dtype"]) for w in weights]}


analytic = gram = fourier = pairs = pairs_of_any = gram_memory = flow_memory = clouds
transport_plane = transport_ten = transport_line = transport_weighted = clouds
ridge = ridge_many = ridge_huge = descend_memory = regression
empirical = own_function = network


def features_agree(result):
    """Random features differ from each other; what they estimate does not."""
    return result[:20] @ result[:20].T


def _sizes(dtypes=("float64",), n=(), **rest):
    return tuple({"n": size, "dtype": dtype, **rest} for dtype in dtypes for size in n)


BOTH = ("float32", "float64")
CASES = (
    Case(
        "analytic",
        "analytic NNGP and NTK, 3 hidden ReLU layers, d = 50",
        ("neural_tangents",),
        _sizes(BOTH, (2000, 4000), d=50),
        {"n": 30, "d": 5},
        {"float32": 5.0, "float64": 3.0},
        "product of the points and two passes over a result",
        growth=_sizes(("float32",), (500, 1000, 2000, 4000), d=50),
    ),
    Case(
        "empirical",
        "empirical NTK, 3 hidden ReLU layers, n = 256",
        ("neural_tangents",),
        tuple(
            {"width": w, "n": 256, "d": 50, "hidden": 3, "outputs": 1, "dtype": "float32"}
            for w in (512, 1024, 2048)
        ),
        {"width": 8, "n": 6, "d": 3},
        2.0,
        "one matrix product of the same flops",
        1.5,
        growth=tuple(
            {"width": 512, "n": n, "d": 50, "hidden": 3, "outputs": 1, "dtype": "float32"}
            for n in (128, 256, 512, 1024)
        ),
    ),
    Case(
        "own_function",
        "empirical NTK of a user's own function, 10 outputs, 2 hidden tanh layers",
        ("neural_tangents",),
        (
            {"width": 256, "n": 64, "d": 50, "hidden": 2, "outputs": 10, "dtype": "float32"},
            {"width": 512, "n": 128, "d": 50, "hidden": 2, "outputs": 10, "dtype": "float32"},
        ),
        {"width": 8, "n": 6, "d": 3, "outputs": 3},
        1.0,
    ),
    Case(
        "gram",
        "Gaussian Gram matrix, d = 50",
        ("sklearn",),
        _sizes(BOTH, (4000,), d=50),
        {"n": 30, "d": 5},
        1.0,
        "product of the points and two passes over the result",
        growth=_sizes(("float32",), (1000, 2000, 4000, 8000), d=50),
    ),
    Case(
        "ridge",
        "ridge regression with the Gaussian kernel, d = 20, fit and 500 predictions",
        ("sklearn",),
        _sizes(BOTH, (4000,), d=20),
        {"n": 30, "d": 3},
        1.0,
        "one Cholesky factorisation",
        growth=_sizes(("float64",), (500, 1000, 2000, 4000), d=20),
        agree={"float32": 5e-3, "float64": 1e-6},
    ),
    Case(
        "ridge_many",
        "ridge regression by conjugate gradients, no matrix stored, d = 20",
        (),
        _sizes(("float32",), (10_000,), d=20),
        {"n": 30, "d": 3},
        memory=lambda size: 0.3 * GB,  # the matrix alone would be 0.4 GB
        growth=_sizes(("float32",), (2500, 5000, 10_000), d=20),
    ),
    Case(
        "ridge_huge",
        "the same in n = 10⁵ points: its matrix would take 40 GB",
        (),
        _sizes(("float32",), (100_000,), d=20),
        {"n": 40, "d": 3},
        memory=lambda size: 2 * GB,
        once=True,
    ),
    Case(
        "fourier",
        "Fourier features of the Gaussian kernel, d = 50, m = 2000",
        ("sklearn",),
        _sizes(BOTH, (10_000,), d=50, m=2000),
        {"n": 30, "d": 5, "m": 2000},
        1.0,
        "one product and two passes over the result",
        growth=_sizes(("float32",), (2500, 5000, 10_000, 20_000), d=50, m=2000),
        view=features_agree,
        agree={"float32": 0.2, "float64": 0.2},
    ),
    Case(
        "transport_plane",
        "W₂ of two clouds of equal size, d = 2",
        ("pot", "scipy"),
        _sizes(n=(500, 2000), d=2),
        {"n": 20},
        1.0,
        growth=_sizes(n=(250, 500, 1000, 2000), d=2),
    ),
    Case(
        "transport_ten",
        "W₂ of two clouds of equal size, d = 10",
        ("pot", "scipy"),
        _sizes(n=(500, 2000), d=10),
        {"n": 20},
        1.0,
        growth=_sizes(n=(250, 500, 1000, 2000), d=10),
    ),
    Case(
        "transport_line",
        "W₂ in one dimension",
        ("pot", "ott"),
        _sizes(n=(1_000_000,), d=1),
        {"n": 100},
        5.0,
        "two sorts and a mean",
        1.25,
        growth=_sizes(n=(125_000, 250_000, 500_000, 1_000_000), d=1),
    ),
    Case(
        "transport_weighted",
        "W₂ with weights, d = 2",
        ("pot",),
        _sizes(n=(500, 2000), d=2),
        {"n": 20},
        1.0,
    ),
    Case(
        "pairs",
        "velocity of particles under a Gaussian pair interaction, a kernel of the package, d = 2",
        (),
        _sizes(("float32",), (10_000,), d=2),
        {"n": 40},
        None,
        "two products and two passes over all pairs",
        memory=lambda size: 0.5 * GB,
        growth=_sizes(("float32",), (1250, 2500, 5000, 10_000), d=2),
    ),
    Case(
        "pairs_of_any",
        "the same interaction as a user's own function of two points, d = 2",
        (),
        _sizes(("float32",), (10_000,), d=2),
        {"n": 40},
        memory=lambda size: 0.5 * GB,
    ),
    Case(
        "gram_memory",
        "Gaussian Gram matrix, memory",
        (),
        _sizes(("float32",), (30_000,), d=10),
        {"n": 40},
        memory=lambda size: 1.3 * size["n"] ** 2 * 4,
    ),
    Case(
        "descend_memory",
        "gradient descent, memory over the number of steps",
        (),
        tuple(
            {"n": 200, "d": 10, "steps": steps, "dtype": "float32"}
            for steps in (1000, 10_000, 100_000)
        ),
        {"n": 10, "d": 2, "steps": 20},
        axis="steps",
    ),
    Case(
        "flow_memory",
        "Wasserstein flow, memory over the number of steps",
        (),
        tuple({"n": 500, "d": 2, "steps": steps, "dtype": "float32"} for steps in (10, 100, 1000)),
        {"n": 10, "steps": 5},
        axis="steps",
    ),
)
