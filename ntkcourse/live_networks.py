"""Live figures of networks: the welcome page, and training beside its limits."""

import jax
import jax.numpy as jnp

from ntkcourse import infinite, kernels, networks, training
from ntkcourse.live import Choice, Figure, Layer, Panel, Slider, steps

GRID = 161
SIDE = (-3.14159265, 3.14159265)
DATA = ((-2.4, 0.9), (-1.5, -0.6), (-0.4, 0.2), (0.5, 1.1), (1.9, -0.9))


def on_circle(angle):
    """Points of the circle of radius √2, where x·x/d = 1."""
    return 2**0.5 * jnp.stack([jnp.cos(angle), jnp.sin(angle)], -1)


def grid():
    """Equal steps around the circle."""
    return jnp.linspace(*SIDE, GRID)


def marked(angle, mask):
    """Inputs with a first coordinate that says whether there is a point."""
    return jnp.concatenate([mask[:, None], on_circle(angle)], 1)


def masked(k):
    """k(x, x') if both are points, else 0: an empty place has no influence."""
    return lambda p, q: p[0] * q[0] * k(p[1:], q[1:])


def squared(f, i):
    """The loss ½ Σ (f(x_i) − y_i)² over the points that are there."""
    return jnp.sum(i["mask"] * (f(on_circle(i["x"])) - i["y"]) ** 2) / 2


def largest(k, i):
    """The largest eigenvalue of the Gram matrix on the data."""
    return jnp.linalg.eigvalsh(kernels.gram(masked(k), marked(i["x"], i["mask"])))[-1]


# The welcome page: an ensemble of infinitely wide networks, and four real ones

WIDTH, COPIES, DEEPEST, STEPS = 32, 4, 4, 8


def ensemble(activation, depth):
    """Mean and band of infinitely wide networks after a time t of training."""

    def see(i):
        scales = activation, i["sigma_w"], i["sigma_b"]
        nngp, ntk = (masked(make(depth, *scales)) for make in (infinite.nngp, infinite.ntk))
        x, y = marked(i["x"], i["mask"]), i["y"] * i["mask"]

        def at(p):  # one new point at a time: variances, and not the whole covariance
            return infinite.trained_ensemble(nngp, ntk, x, y, p[None], i["t"])

        mean, cov = jax.vmap(at)(marked(grid(), jnp.ones(GRID)))
        mean, spread = mean[:, 0], jnp.sqrt(jnp.maximum(cov[:, 0, 0], 0))
        band = {"low": mean - 2 * spread, "high": mean + 2 * spread}
        return {"mean": mean, "spread": jnp.mean(spread)} | band

    return see


def members(activation, depth):
    """Networks of width 32, trained by gradient descent up to the same time."""

    def step(i):
        scales = activation, i["sigma_w"], i["sigma_b"]
        _, apply = networks.mlp((2, *[WIDTH] * (depth - 1), 1), *scales)
        rate = 0.7 / (largest(infinite.ntk(depth, *scales), i) + 1e-9)
        target = jnp.minimum(i["t"], 320 * rate)
        rate = jnp.minimum(rate, jnp.maximum(target - i["now"], 0) / STEPS)
        inner = range(depth - 2)

        def layers(s):
            first = networks.Layer(s["first"], s["bias"][0])
            middle = [networks.Layer(s["inner"][l], s["bias"][l + 1]) for l in inner]
            return [first, *middle, networks.Layer(s["last"], s["end"])]

        def train(s):
            loss = lambda s: squared(lambda x: apply(layers(s), x), i)  # noqa: E731
            moved = training.path(loss, s, steps=STEPS, every=STEPS, learning_rate=rate).params
            return moved, apply(layers(moved), on_circle(grid()[::2]))

        state = {k: i[k] for k in MEMBERS}
        state, curves = jax.vmap(train)(state)
        now = i["now"] + STEPS * rate
        left = jnp.where(now < target * (1 - 1e-9), target - now, 0)
        return state | {"curves": curves, "now": now, "left": left}

    return step


MEMBERS = {
    "first": (COPIES, WIDTH, 2), "inner": (COPIES, DEEPEST - 2, WIDTH, WIDTH),
    "last": (COPIES, 1, WIDTH), "bias": (COPIES, DEEPEST - 1, WIDTH), "end": (COPIES, 1),
}  # fmt: skip
ANGLE = ("angle of the input on the circle", "output")
WELCOME = Figure(
    title="What an infinitely wide network learns from your data",
    alt="A band of two standard deviations around a mean curve, which is pinched together at five"
    " data points; four finite networks run through the same points inside the band.",
    say="{n} points. The infinitely wide network is uncertain by ±{spread} on average.",
    panels=(
        Panel(SIDE, (-3, 3), ANGLE, (
            Layer("band", ("low", "high"), "kernel", "infinitely wide: mean ± 2 sd"),
            Layer("lines", ("curves",), "network", "four networks of width 32, trained", COPIES),
            Layer("line", ("mean",), "kernel"),
            Layer("handles", (), "data", "data"),
        )),
    ),
    controls={
        "t": Slider("training time t", (0.0, *steps(0.01, 100, 49, log=True), jnp.inf), 50),
        "activation": Choice("activation φ", ("erf", "relu", "gelu", "sin"), 0),
        "depth": Choice("depth L", (2, 3, 4), 1),
        "sigma_w": Slider("weights σ_w", steps(0.6, 3, 49), 18),
        "sigma_b": Slider("biases σ_b", steps(0, 1.5, 31), 4),
    },
    see=ensemble, step=members, points=DATA, random=MEMBERS, zeros={"now": ()}, time="t",
)  # fmt: skip

FIGURES = {"welcome": WELCOME}
