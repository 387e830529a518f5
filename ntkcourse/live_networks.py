"""Live figures of networks: the welcome page, and training beside its limits."""

import jax
import jax.numpy as jnp

from ntkcourse import infinite, kernels, networks, training
from ntkcourse.live import Choice, Figure, Layer, Panel, Slider, steps

GRID = 97
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


def largest(k, x):
    """The largest eigenvalue of the Gram matrix."""
    return jnp.linalg.eigh(kernels.gram(k, x))[0][-1]


def until(target, i, count):
    """A learning rate with which ``count`` steps do not pass the time; then now and left."""
    rate = jnp.minimum(i["rate"], jnp.maximum(target - i["now"], 0) / count)
    now = i["now"] + count * rate
    return rate, {"now": now, "left": jnp.where(now < target * (1 - 1e-9), target - now, 0)}


# The welcome page: an ensemble of infinitely wide networks, and four real ones

WIDTH, COPIES, DEEPEST, STEPS = 32, 4, 4, 2


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
        rate = 0.7 / (largest(ntk, x) + 1e-9)
        return {"mean": mean, "spread": jnp.mean(spread), "rate": rate} | band

    return see


def member(activation, depth, i):
    """A network of width 32, as a function of its part of the state and of inputs."""
    _, apply = networks.mlp((2, *[WIDTH] * (depth - 1), 1), activation, i["sigma_w"], i["sigma_b"])

    def f(s, x):
        first = networks.Layer(s["first"], s["bias"][0])
        inner = [networks.Layer(s["inner"][l], s["bias"][l + 1]) for l in range(depth - 2)]
        return apply([first, *inner, networks.Layer(s["last"], s["end"])], x)

    return f


def train_members(activation, depth):
    """The networks, trained by gradient descent up to the same time."""

    def step(i):
        f = member(activation, depth, i)
        rate, now = until(jnp.minimum(i["t"], 320 * i["rate"]), i, STEPS)

        def train(s):
            loss = lambda s: squared(lambda x: f(s, x), i)  # noqa: E731
            return training.path(loss, s, steps=STEPS, every=STEPS, learning_rate=rate).params

        return jax.vmap(train)({k: i[k] for k in MEMBERS}) | now

    return step


def see_members(activation, depth):
    """The functions that the networks are."""

    def look(i):
        f = member(activation, depth, i)
        return {"curves": jax.vmap(lambda s: f(s, on_circle(grid())))({k: i[k] for k in MEMBERS})}

    return look


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
    see=ensemble, step=train_members, look=see_members, points=DATA, random=MEMBERS,
    zeros={"now": ()}, time="t",
)  # fmt: skip

FIGURES = {"welcome": WELCOME}
