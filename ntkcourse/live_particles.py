"""Live figures of clouds of particles: networks in the mean-field limit, flows, transport."""

import jax
import jax.numpy as jnp

from ntkcourse import flows
from ntkcourse.live import Choice, Figure, Layer, Panel, Slider, steps
from ntkcourse.live_networks import ANGLE, DATA, SIDE, grid, on_circle

NEURONS = 200


def flowing(activation):
    """Neurons (a, w) of a two-layer network a moment later, and the function that they are."""

    def step(i):
        # an empty place (x, y) = (0, 0) has residual φ(0) = 0; only the 1/n counts it
        share = len(i["mask"]) / jnp.maximum(jnp.sum(i["mask"]), 1)
        x, y = on_circle(i["x"]) * i["mask"][:, None], i["y"] * i["mask"]
        places = flows.mean_field_risk(x, y, activation)

        def risk(particles, weights):
            return share * places(particles, weights)

        p = flows.wasserstein_flow(risk, i["neurons"], i["speed"][None] / 60, step=0.02)[-1]
        weights = jnp.full(NEURONS, 1 / NEURONS)

        def shifted(y):  # dF/dy_i = (y_i − f(x_i)) / n: the network itself, out of its risk
            return flows.mean_field_risk(on_circle(grid()), y, activation)(p, weights)

        zero = jnp.zeros_like(grid())
        return {
            "neurons": p, "cloud": jnp.abs(p[:, :1]) * p[:, 1:], "sign": p[:, 0],
            "network": -len(zero) * jax.grad(shifted)(zero), "risk": risk(p, weights),
            "now": i["now"] + i["speed"] / 60,
        }  # fmt: skip

    return step


NETWORK = Figure(
    title="Neurons as a cloud that flows",
    alt="On the left the function of a two-layer network near five data points; on the right its"
    " two hundred neurons as dots, which have gathered in a few directions.",
    say="Time {now}, risk {risk}.",
    panels=(
        Panel(SIDE, (-3, 3), ANGLE, (
            Layer("line", ("network",), "network", "the network f"),
            Layer("handles", (), "data", "data"),
        )),
        Panel((-4, 4), (-4, 4), ("|a| w₁", "|a| w₂"), (
            Layer("dots", ("cloud", "sign"), "network", "neurons; open if a < 0"),
        )),
    ),
    controls={
        "activation": Choice("activation φ", ("relu", "tanh")),
        "speed": Slider("time per second", steps(0.5, 16, 16, log=True), 9),
    },
    step=flowing, points=DATA, random={"neurons": (NEURONS, 3)}, zeros={"now": ()}, restart=False,
    first=300,
)  # fmt: skip

FIGURES = {"mf-network": NETWORK}
