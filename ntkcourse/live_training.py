"""Live figures of training: beside the linearisation and the limit, lazy and rich."""

import jax.numpy as jnp

from ntkcourse import infinite, kernels, networks, tangent, training
from ntkcourse.live import Figure, Layer, Panel, Slider, steps
from ntkcourse.live_networks import (
    ANGLE,
    DATA,
    GRID,
    SIDE,
    grid,
    largest,
    marked,
    masked,
    on_circle,
    squared,
)  # fmt: skip

# A real network, its linearisation and the limit, by the same gradient descent

WIDEST, PATH = 512, 10


def descent():
    """A network of one hidden layer, its linearisation and the infinite one, a few steps on."""
    _, apply = networks.mlp((2, WIDEST, 1), "relu", 2**0.5, 0.3)
    k = infinite.ntk(2, "relu", 2**0.5, 0.3)

    def step(i):
        width = i["m"].astype(int)

        def f(theta, x):
            return apply(theta, x, width=width)

        start = _layers(i["w"], i["b"], i["a"], i["e"])
        linear = tangent.linearize(f, start)
        rate = 0.4 / (largest(k, i) + 1e-9)
        rate = jnp.minimum(rate, jnp.maximum(i["t"] - i["now"], 0) / PATH)

        def train(model, names):
            loss = lambda d: squared(lambda x: model(_layers(*_moved(i, d)), x), i)  # noqa: E731
            change = tuple(i[name] for name in names)
            change = training.path(loss, change, steps=PATH, every=PATH, learning_rate=rate).params
            curve = model(_layers(*_moved(i, change)), on_circle(grid()))
            return dict(zip(names, change, strict=True)), curve

        net, network = train(f, NET)
        lin, linearised = train(linear, LIN)
        x, new = marked(i["x"], i["mask"]), marked(grid(), jnp.ones(GRID))
        K, K_new = (kernels.gram(masked(k), z, x) for z in (x, new))
        residual = i["mask"] * (i["y"] - f(start, on_circle(i["x"]))) - i["limit_x"]
        both = jnp.concatenate([K, K_new])
        learned = kernels.descent_path(K, both, residual, rate, PATH)[-1]
        limit_x, limit = i["limit_x"] + learned[: len(x)], i["limit"] + learned[len(x) :]
        curve = f(start, on_circle(grid())) + limit
        now = i["now"] + PATH * rate
        left = jnp.where(now < i["t"] * (1 - 1e-9), i["t"] - now, 0)
        gap = jnp.sqrt(jnp.mean((network - linearised) ** 2))
        return {
            **{name: i[name] for name in ("w", "b", "a", "e")}, **net, **lin,
            "limit_x": limit_x, "limit": limit, "now": now, "left": left, "gap": gap,
            "far": jnp.sqrt(jnp.mean((network - curve) ** 2)),
            "network": network, "linearised": linearised, "infinite": curve,
        }  # fmt: skip

    return step


def _layers(w, b, a, e):
    return [networks.Layer(w, b), networks.Layer(a, e)]


def _moved(i, change):
    return [i[name] + d for name, d in zip(("w", "b", "a", "e"), change, strict=True)]


NET, LIN = ("net_w", "net_b", "net_a", "net_e"), ("lin_w", "lin_b", "lin_a", "lin_e")
PARTS = {"w": (WIDEST, 2), "b": (WIDEST,), "a": (1, WIDEST), "e": (1,)}
TRAIN = Figure(
    title="One network, its linearisation, and the limit of infinite width",
    alt="Three curves through five data points after training: a network of width 64, its"
    " linearisation at the start, and the infinitely wide network with the same start.",
    say="Width {m}, time {now}: the network is {gap} from its linearisation and {far} from the"
    " limit (root mean square).",
    panels=(
        Panel(SIDE, (-3, 3), ANGLE, (
            Layer("line", ("infinite",), "kernel", "infinite width, same start"),
            Layer("line", ("linearised",), "linear", "linearised at the start"),
            Layer("line", ("network",), "network", "the network, trained"),
            Layer("handles", (), "data", "data"),
        )),
    ),
    controls={
        "t": Slider("training time t", (0.0, *steps(0.02, 20, 40, log=True)), 40),
        "m": Slider("width m", (4, 8, 16, 32, 64, 128, 256, 512), 4),
    },
    step=descent, points=DATA, random=PARTS, time="t",
    zeros=dict(zip((*NET, *LIN), 2 * list(PARTS.values()), strict=True))
    | {"limit_x": (12,), "limit": (GRID,), "now": ()},
)  # fmt: skip


# Lazy and rich: the same network, its output multiplied by α

NEURONS = 64


def scaled():
    """Descent on α (f − f₀) with the loss divided by α²: small α moves the neurons far."""
    _, apply = networks.mlp((2, NEURONS, 1), "relu", 2**0.5, 0.0)
    k = infinite.ntk(2, "relu", 2**0.5, 0.0)

    def step(i):
        start = _bare(i["w"], i["a"])
        output = networks.centred(apply, start)
        alpha = i["alpha"]

        def f(d, x):
            return alpha * output(_bare(i["w"] + d[0], i["a"] + d[1]), x)

        # rich training grows its own kernel, so its steps are smaller
        rate = 0.3 / (largest(k, i) * (1 + 1 / alpha) + 1e-9)
        rate = jnp.minimum(rate, jnp.maximum(i["t"] - i["now"], 0) / PATH)

        def loss(d):
            return squared(lambda x: f(d, x), i) / alpha**2

        moved = training.path(
            loss, (i["dw"], i["da"]), steps=PATH, every=PATH, learning_rate=rate
        ).params
        now = i["now"] + PATH * rate
        left = jnp.where(now < i["t"] * (1 - 1e-9), i["t"] - now, 0)
        w, a = i["w"] + moved[0], i["a"] + moved[1]
        travelled = jnp.sqrt(jnp.sum(moved[0] ** 2) / jnp.sum(i["w"] ** 2))
        return {
            "w": i["w"], "a": i["a"], "dw": moved[0], "da": moved[1], "now": now, "left": left,
            "network": f(moved, on_circle(grid())), "travelled": 100 * travelled,
            "before": i["w"], "neurons": w, "sign": a[0],
        }  # fmt: skip

    return step


def _bare(w, a):
    return [networks.Layer(w, None), networks.Layer(a, None)]


ALPHA = Figure(
    title="The same network, lazy or rich",
    alt="On the left the function that a network has learned from five points; on the right its"
    " input weights before and after training, which have moved far.",
    say="Scale α = {alpha}, time {now}: the input weights have moved by {travelled} % of their"
    " norm.",
    panels=(
        Panel(SIDE, (-3, 3), ANGLE, (
            Layer("line", ("network",), "network", "α (f − f₀)"),
            Layer("handles", (), "data", "data"),
        )),
        Panel((-4, 4), (-4, 4), ("weight w₁", "weight w₂"), (
            Layer("dots", ("before",), "guide", "neurons at the start"),
            Layer("dots", ("neurons", "sign"), "network", "now; open if a < 0"),
        )),
    ),
    controls={
        "t": Slider("training time t", (0.0, *steps(0.02, 40, 40, log=True)), 40),
        "alpha": Slider("scale α", steps(0.05, 20, 27, log=True), 4),
    },
    step=scaled, points=DATA, time="t", random={"w": (NEURONS, 2), "a": (1, NEURONS)},
    zeros={"dw": (NEURONS, 2), "da": (1, NEURONS), "now": ()},
)  # fmt: skip

FIGURES = {"ntk-train": TRAIN, "lazy-alpha": ALPHA}
