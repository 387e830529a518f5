"""Live figures of training: beside the linearisation and the limit, lazy and rich."""

import jax
import jax.numpy as jnp

from ntkcourse import infinite, kernels, networks, tangent, training
from ntkcourse.live import PLACES, Figure, Layer, Panel, Slider, steps
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
    until,
)  # fmt: skip

# A real network, its linearisation and the limit, by the same gradient descent

WIDEST, PATH = 512, 2


def limit():
    """The kernel of infinite width between the data, and a learning rate for it."""
    k = masked(infinite.ntk(2, "relu", 2**0.5, 0.3))

    def see(i):
        x = marked(i["x"], i["mask"])
        K_new = kernels.gram(k, marked(grid(), jnp.ones(GRID)), x)
        return {"K": kernels.gram(k, x), "K_new": K_new, "rate": 0.4 / (largest(k, x) + 1e-9)}

    return see


def _models(i):
    """The first parameters, a network of one hidden layer, and its linearisation."""
    _, apply = networks.mlp((2, WIDEST, 1), "relu", 2**0.5, 0.3)
    width = i["m"].astype(int)

    def f(theta, x):
        return apply(theta, x, width=width)

    start = [networks.Layer(i["w"], i["b"]), networks.Layer(i["a"], i["e"])]
    return start, f, tangent.linearize(f, start)


def _moved(start, change):
    w, b, a, e = change
    return jax.tree.map(jnp.add, start, [networks.Layer(w, b), networks.Layer(a, e)])


def descent():
    """The network, its linearisation and the infinite one, a few steps on."""

    def step(i):
        start, f, linear = _models(i)
        rate, now = until(i["t"], i, PATH)

        def train(model, names):
            loss = lambda d: squared(lambda x: model(_moved(start, d), x), i)  # noqa: E731
            change = tuple(i[name] for name in names)
            change = training.path(loss, change, steps=PATH, every=PATH, learning_rate=rate).params
            return dict(zip(names, change, strict=True))

        residual = i["mask"] * (i["y"] - f(start, on_circle(i["x"]))) - i["limit_x"]
        both = jnp.concatenate([i["K"], i["K_new"]])
        learned = kernels.descent_path(i["K"], both, residual, rate, PATH)[-1]
        return {
            **{name: i[name] for name in PARTS}, **train(f, NET), **train(linear, LIN), **now,
            "limit_x": i["limit_x"] + learned[:PLACES], "limit": i["limit"] + learned[PLACES:],
        }  # fmt: skip

    return step


def three():
    """The functions that the three are now, and how far they are apart."""

    def look(i):
        start, f, linear = _models(i)
        x = on_circle(grid())
        network = f(_moved(start, [i[name] for name in NET]), x)
        linearised = linear(_moved(start, [i[name] for name in LIN]), x)
        curve = f(start, x) + i["limit"]
        return {
            "network": network, "linearised": linearised, "infinite": curve,
            "gap": jnp.sqrt(jnp.mean((network - linearised) ** 2)),
            "far": jnp.sqrt(jnp.mean((network - curve) ** 2)),
        }  # fmt: skip

    return look


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
    see=limit, step=descent, look=three, points=DATA, random=PARTS, time="t",
    zeros=dict(zip((*NET, *LIN), 2 * list(PARTS.values()), strict=True))
    | {"limit_x": (PLACES,), "limit": (GRID,), "now": ()},
)  # fmt: skip


# Lazy and rich: the same network, its output multiplied by α

NEURONS, MANY = 64, 10


def pace():
    """A learning rate: rich training grows its own kernel, so its steps are smaller."""
    k = masked(infinite.ntk(2, "relu", 2**0.5, 0.0))

    def see(i):
        most = largest(k, marked(i["x"], i["mask"]))
        return {"rate": 0.3 / (most * (1 + 1 / i["alpha"]) + 1e-9)}

    return see


def _scaled(i):
    """α (f − f₀) as a function of the change of the parameters and of inputs."""
    _, apply = networks.mlp((2, NEURONS, 1), "relu", 2**0.5, 0.0)

    def layers(w, a):
        return [networks.Layer(w, None), networks.Layer(a, None)]

    output = networks.centred(apply, layers(i["w"], i["a"]))
    return lambda d, x: i["alpha"] * output(layers(i["w"] + d[0], i["a"] + d[1]), x)


def descent_scaled():
    """Descent on α (f − f₀) with the loss divided by α²: small α moves the neurons far."""

    def step(i):
        f = _scaled(i)
        rate, now = until(i["t"], i, MANY)

        def loss(d):
            return squared(lambda x: f(d, x), i) / i["alpha"] ** 2

        d = training.path(
            loss, (i["dw"], i["da"]), steps=MANY, every=MANY, learning_rate=rate
        ).params
        return {"w": i["w"], "a": i["a"], "dw": d[0], "da": d[1]} | now

    return step


def neurons():
    """The function now, and where the neurons are."""

    def look(i):
        travelled = jnp.sqrt(jnp.sum(i["dw"] ** 2) / jnp.sum(i["w"] ** 2))
        return {
            "network": _scaled(i)((i["dw"], i["da"]), on_circle(grid())),
            "travelled": 100 * travelled, "before": i["w"], "neurons": i["w"] + i["dw"],
            "sign": (i["a"] + i["da"])[0],
        }  # fmt: skip

    return look


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
        "t": Slider("training time t", (0.0, *steps(0.02, 20, 40, log=True)), 40),
        "alpha": Slider("scale α", steps(0.05, 20, 27, log=True), 4),
    },
    see=pace, step=descent_scaled, look=neurons, points=DATA, time="t",
    random={"w": (NEURONS, 2), "a": (1, NEURONS)},
    zeros={"dw": (NEURONS, 2), "da": (1, NEURONS), "now": ()},
)  # fmt: skip

FIGURES = {"ntk-train": TRAIN, "lazy-alpha": ALPHA}
