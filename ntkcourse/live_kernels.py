"""Live figures of kernels, random features and depth."""

import jax
import jax.numpy as jnp

from ntkcourse import features, infinite, kernels
from ntkcourse.live import Choice, Figure, Layer, Panel, Slider, steps
from ntkcourse.live_networks import masked

GRID = 161
RANGE = (-3.0, 3.0)
AXES = ("input x", "output")
DATA = ((-2.2, -0.8), (-1.1, 0.9), (0.2, 0.3), (1.2, -1.0), (2.4, 0.7))
KERNELS = {"rbf": kernels.rbf, "laplace": kernels.laplace, "cauchy": kernels.cauchy}


def line():
    """Equal steps on the axis, marked as points that are there."""
    x = jnp.linspace(*RANGE, GRID)
    return jnp.stack([jnp.ones(GRID), x], 1)


def given(i):
    """The data with their marks, and the labels."""
    return jnp.stack([i["mask"], i["x"]], 1), i["mask"] * i["y"]


# Gaussian process and ridge regression


def posterior(kernel):
    """Mean and band of a Gaussian process, which is also ridge regression with that ridge."""

    def see(i):
        x, y = given(i)
        after = kernels.gaussian_process(
            masked(KERNELS[kernel](i["lengthscale"])), x, y, i["noise"] ** 2
        )
        mean, cov = jax.vmap(lambda p: after(p[None]))(line())
        mean, spread = mean[:, 0], jnp.sqrt(jnp.maximum(cov[:, 0, 0], 0))
        low, high = mean - 2 * spread, mean + 2 * spread
        return {"mean": mean, "low": low, "high": high, "spread": jnp.mean(spread)}

    return see


PROCESS = Figure(
    title="A Gaussian process and ridge regression on your data",
    alt="A mean curve through five data points with a band of two standard deviations, narrow at"
    " the points and wide between and beyond them.",
    say="{n} points. The mean is ridge regression with λ = σ²; the band is ±2 standard deviations,"
    " on average ±{spread} for one.",
    panels=(
        Panel(RANGE, (-3, 3), AXES, (
            Layer("band", ("low", "high"), "kernel", "posterior: mean ± 2 sd"),
            Layer("line", ("mean",), "kernel"), Layer("handles", (), "data", "data"),
        )),
    ),
    controls={
        "kernel": Choice("kernel k", tuple(KERNELS)),
        "lengthscale": Slider("lengthscale ℓ", steps(0.1, 4, 41, log=True), 23),
        "noise": Slider("noise σ", steps(0.01, 1, 41, log=True), 10),
    },
    see=posterior, points=DATA,
)  # fmt: skip


# Gradient flow, mode by mode


def modes():
    """The fit at time t, and how much of each eigenvector of the Gram matrix is left to learn."""

    def see(i):
        x, y = given(i)
        k = masked(kernels.rbf(i["lengthscale"]))
        fit = kernels.gradient_flow(k, x, y, i["t"])
        values, vectors = jnp.linalg.eigh(kernels.gram(k, x))
        start = jnp.abs(vectors.T @ y)[::-1][:8]
        # what is left of y − f_t(X) along an eigenvector has fallen by e^{−λt}
        left = jnp.abs(vectors.T @ (y - i["mask"] * fit(x)))[::-1][:8]
        flow = fit(line())
        share = jnp.sum(left**2) / jnp.maximum(jnp.sum(start**2), 1e-12)
        return {
            "fit": flow, "start": start, "left": left, "share": jnp.round(100 * share, 2),
            "top": values[-1], "limit": kernels.gradient_flow(k, x, y, jnp.inf)(line()),
        }  # fmt: skip

    return see


MODES = Figure(
    title="Gradient flow learns one eigenvector after the other",
    alt="On the left a curve on its way to six data points; on the right bars for the modes of"
    " the kernel matrix: the first are learned, the last have hardly begun.",
    say="Time {t}: {share} % of the squared error is left. The largest eigenvalue is {top}.",
    panels=(
        Panel(RANGE, (-3, 3), AXES, (
            Layer("line", ("limit",), "guide", "the fit at t = ∞"),
            Layer("line", ("fit",), "kernel", "the fit at time t"),
            Layer("handles", (), "data", "data"),
        )),
        Panel((0.5, 8.5), (0, 2), ("mode, by eigenvalue", "part of the residual"), (
            Layer("bars", ("start",), "guide", "at the start"),
            Layer("bars", ("left",), "kernel", "left at time t"),
        )),
    ),
    controls={
        "t": Slider("time t", (0.0, *steps(0.01, 1e4, 60, log=True)), 20),
        "lengthscale": Slider("lengthscale ℓ", steps(0.1, 4, 41, log=True), 25),
    },
    see=modes, time="t",
    # each mode has a part in these, so that one sees which goes first
    points=((-2.2, -0.6), (-1.3, 0.9), (-0.4, 0.7), (0.5, 1.4), (1.3, 0.3), (2.4, 0.8)),
)  # fmt: skip


# Random features against the kernel

MOST = 256


def random_features():
    """Ridge regression with the kernel, and with the first m of its random features."""
    phi = features.fourier_features(1, m=MOST, key=jax.random.key(3))

    def see(i):
        x, y = given(i)
        new = jnp.concatenate([x, line(), jnp.array([[1.0, 0.0]])])
        first = jnp.sqrt(MOST / i["m"]) * (jnp.arange(MOST) < i["m"])  # φ has 1/√MOST inside
        map_x, map_new = (z[:, :1] * phi(z[:, 1:] / i["lengthscale"]) * first for z in (x, new))
        exact = kernels.gram(masked(kernels.rbf(i["lengthscale"])), new, x)
        origin = kernels.gram(masked(kernels.rbf(i["lengthscale"])), new, new[-1:])
        n, fits = len(x), []
        for K in (exact, map_new @ map_x.T):
            path, _ = kernels.ridge_path(K[:n], K[n:-1], y, i["noise"][None] ** 2)
            fits.append(path[0])
        shapes = [K[n:-1, 0] for K in (origin, map_new @ map_new[-1:].T)]
        return {
            "fit": fits[0], "near": fits[1], "kernel": shapes[0], "estimate": shapes[1],
            "gap": jnp.sqrt(jnp.mean((fits[0] - fits[1]) ** 2)),
            "error": jnp.max(jnp.abs(shapes[0] - shapes[1])),
        }  # fmt: skip

    return see


FEATURES = Figure(
    title="How many random features replace a kernel?",
    alt="On the left two fits to five data points, by the kernel and by 64 random features, close"
    " to each other; on the right the kernel as a function of x and its random estimate.",
    say="{m} features: the kernel is off by at most {error}, the fit by {gap} (root mean square).",
    panels=(
        Panel(RANGE, (-3, 3), AXES, (
            Layer("line", ("fit",), "kernel", "with the kernel"),
            Layer("line", ("near",), "network", "with m random features"),
            Layer("handles", (), "data", "data"),
        )),
        Panel(RANGE, (-1, 1.5), ("input x", "k(x, 0)"), (
            Layer("line", ("kernel",), "kernel"), Layer("line", ("estimate",), "network"),
        )),
    ),
    controls={
        "m": Slider("features m", tuple(float(2**k) for k in range(9)), 6),
        "lengthscale": Slider("lengthscale ℓ", steps(0.25, 3, 31, log=True), 15),
        "noise": Slider("noise σ", steps(0.01, 1, 21, log=True), 10),
    },
    see=random_features, points=DATA,
)  # fmt: skip


# Phases of depth

LAYERS = 24


def phases(activation):
    """What a layer does to the correlation of two inputs, and what many layers do."""
    kappa, kappa_dot = infinite.dual(activation)

    def see(i):
        w, b = i["sigma_w"] ** 2, i["sigma_b"] ** 2

        def layer(q, c):  # variance and correlation one layer later
            new = w * kappa(q, q, q) + b
            return new, (w * kappa(q, q * c, q) + b) / new

        q = jax.lax.fori_loop(0, 100, lambda _, q: layer(q, q)[0], jnp.ones(()))
        grid = jnp.linspace(0, 1, GRID)
        start = i["x"][0]

        def walk(c, _):
            return layer(q, c)[1], c

        path = jax.lax.scan(walk, start, length=LAYERS)[1]
        twice = jnp.repeat(path, 2)  # the corners of a staircase
        return {
            "map": jax.vmap(lambda c: layer(q, c)[1])(grid), "same": grid, "path": path,
            "steps_x": twice[1:-1], "steps_y": twice[2:],
            "slope": w * kappa_dot(q, q, q), "variance": q,
        }  # fmt: skip

    return see


PHASES = Figure(
    title="What depth does to the correlation of two inputs",
    alt="On the left the map from the correlation of one layer to that of the next, with a"
    " staircase of its iterates; on the right the correlation over 24 layers.",
    say="Slope at correlation 1: χ = {slope}. Below 1 inputs become alike, above 1 they part.",
    panels=(
        Panel((0, 1), (0, 1), ("correlation c", "one layer later"), (
            Layer("line", ("same",), "guide", "unchanged"),
            Layer("line", ("map",), "kernel", "one layer"),
            Layer("line", ("steps_x", "steps_y"), "network", "layer after layer"),
            Layer("handles", (), "data", "start: drag it"),
        )),
        Panel((0, LAYERS - 1), (0, 1.05), ("layer", "correlation"), (
            Layer("line", ("path",), "network"),
        )),
    ),
    controls={
        "activation": Choice("activation φ", ("erf", "relu", "sin")),
        "sigma_w": Slider("weights σ_w", steps(0.5, 3, 51), 40),
        "sigma_b": Slider("biases σ_b", steps(0, 1, 41), 4),
    },
    see=phases, points=((0.85, 0.03),),
)  # fmt: skip

FIGURES = {"ker-gp": PROCESS, "ker-modes": MODES, "rf-kernel": FEATURES, "wide-phases": PHASES}
