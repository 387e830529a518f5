"""Live figures of clouds of particles: networks in the mean-field limit, flows, transport."""

import jax
import jax.numpy as jnp

from ntkcourse import flows, kernels
from ntkcourse.live import Choice, Figure, Layer, Panel, Slider, steps
from ntkcourse.live_networks import ANGLE, DATA, SIDE, grid, masked, on_circle

NEURONS = 200


def a_moment(energy, particles, i):
    """Particles a frame later by the Wasserstein gradient flow of an energy."""
    return flows.wasserstein_flow(energy, particles, i["speed"][None] / 60, step=0.02)[-1]


def later(i):
    """The time after that frame."""
    return {"now": i["now"] + i["speed"] / 60}


def _risk(activation, i):
    # an empty place (x, y) = (0, 0) has residual φ(0) = 0; only the 1/n counts it
    share = len(i["mask"]) / jnp.maximum(jnp.sum(i["mask"]), 1)
    x, y = on_circle(i["x"]) * i["mask"][:, None], i["y"] * i["mask"]
    places = flows.mean_field_risk(x, y, activation)
    return lambda particles, weights: share * places(particles, weights)


def flow_neurons(activation):
    """Neurons (a, w) of a two-layer network a moment later."""
    return lambda i: {"neurons": a_moment(_risk(activation, i), i["neurons"], i)} | later(i)


def see_neurons(activation):
    """The neurons, and the function that they are."""

    def look(i):
        p, weights, zero = i["neurons"], jnp.full(NEURONS, 1 / NEURONS), jnp.zeros_like(grid())

        def shifted(y):  # dF/dy_i = (y_i − f(x_i)) / n: the network itself, out of its risk
            return flows.mean_field_risk(on_circle(grid()), y, activation)(p, weights)

        length = jnp.sqrt(jnp.sum(p[:, 1:] ** 2, axis=1, keepdims=True))
        return {
            "cloud": p[:, 1:] * jnp.sqrt(jnp.abs(p[:, :1]) / (length + 1e-9)), "sign": p[:, 0],
            "network": -len(zero) * jax.grad(shifted)(zero),
            "risk": _risk(activation, i)(p, weights),
        }  # fmt: skip

    return look


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
        Panel((-4, 4), (-4, 4), ("direction of w, at √(|a||w|)", ""), (
            Layer("dots", ("cloud", "sign"), "network", "neurons; open if a < 0"),
        )),
    ),
    controls={
        "activation": Choice("activation φ", ("relu", "tanh")),
        "speed": Slider("time per second", steps(0.5, 16, 16, log=True), 9),
    },
    step=flow_neurons, look=see_neurons, points=DATA, random={"neurons": (NEURONS, 3)},
    zeros={"now": ()}, restart=False, first=300,
)  # fmt: skip


# A cloud in a landscape that the reader shapes

CLOUD, GRID = 60, 161
PLAIN = (-3.0, 3.0)


def _wall(z):
    return z**4 / 200


def _landscape(i):
    """A smooth potential through the handles, with walls far out."""
    x, y = jnp.stack([i["mask"], i["x"]], 1), i["mask"] * (i["y"] - _wall(i["x"]))
    above = kernels.ridge_regression(masked(kernels.rbf(0.7)), x, y, 1e-3)

    def V(z):  # noqa: N802
        return above(jnp.concatenate([jnp.ones(1), z])[None])[0] + _wall(z[0])

    return V


def _energy(i):
    """That of particles which slide down V and push each other away."""

    def repel(a, b):
        return jnp.exp(-jnp.sum((a - b) ** 2) / 0.32)

    height, pushing = flows.potential(_landscape(i)), flows.interaction(repel)
    return lambda p, weights: height(p, weights) + i["push"] * pushing(p, weights)


def landscape():
    """The potential over the line."""
    return lambda i: {"V": jax.vmap(_landscape(i))(jnp.linspace(*PLAIN, GRID)[:, None])}


def slide():
    """The particles a moment later."""
    return lambda i: {"cloud_x": a_moment(_energy(i), i["cloud_x"], i)} | later(i)


def see_cloud():
    """The particles on the potential, and their energy."""

    def look(i):
        x, weights = i["cloud_x"], jnp.full(CLOUD, 1 / CLOUD)
        cloud = jnp.stack([x[:, 0], jax.vmap(_landscape(i))(x)], 1)
        return {"cloud": cloud, "energy": _energy(i)(x, weights)}

    return look


POTENTIAL = Figure(
    title="A cloud flows in a landscape that you shape",
    alt="A hilly curve, the potential, shaped by five handles; sixty particles have slid down"
    " and lie in its valleys.",
    say="Time {now}, energy {energy}; while nothing is changed by hand, the energy never grows.",
    panels=(
        Panel(PLAIN, (-2, 3), ("particle θ", "potential V"), (
            Layer("line", ("V",), "guide", "the potential V"),
            Layer("dots", ("cloud",), "network", "particles"),
            Layer("handles", (), "data", "handles: drag them"),
        )),
    ),
    controls={
        "push": Slider("repulsion c", (0.0, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0), 0),
        "speed": Slider("time per second", (0.1, 0.2, 0.5, 1.0, 2.0, 3.0), 2),
    },
    see=landscape, step=slide, look=see_cloud,
    points=((-2.4, 1.6), (-1.2, -0.9), (0.1, 1.2), (1.3, -1.3), (2.4, 1.5)),
    random={"cloud_x": (CLOUD, 1)}, zeros={"now": ()}, restart=False, first=45,
)  # fmt: skip


# Two ways from one cloud to another

HILLS, WIDE = 120, 0.22


def interpolation():
    """Displacement, which moves mass, and mixture, which fades it out here and in there."""

    def see(i):
        z = jnp.linspace(*PLAIN, GRID)
        level = (jnp.arange(HILLS) + 0.5) / HILLS
        # handles below the line make the first cloud, those above it the second
        clouds = [_quantiles(i, side, level) for side in (i["y"] < 0, i["y"] >= 0)]
        # on the line the optimal map keeps the order, so quantiles go to quantiles
        moved = (1 - i["t"]) * clouds[0] + i["t"] * clouds[1]
        first, second, between = (_density(c, z) for c in (*clouds, moved))
        square = jnp.mean((clouds[0] - clouds[1]) ** 2)
        return {
            "first": -first, "second": second, "moved": between,
            "mixed": (1 - i["t"]) * first + i["t"] * second, "distance": jnp.sqrt(square),
        }  # fmt: skip

    return see


def _quantiles(i, side, level):
    """Quantiles of a cloud of equal hills under the handles of one side."""
    z = jnp.linspace(-4, 4, 801)
    hills = jnp.where(i["mask"] > 0, jnp.abs(i["y"]) + 1e-3, 0)
    hills = jnp.where(jnp.sum(hills) > 0, hills, jnp.ones_like(hills))
    heights = jnp.where(side, hills, 0)
    heights = jnp.where(jnp.sum(heights) > 0, heights, hills)  # no hill here: the other cloud
    mass = jnp.sum(heights * jax.scipy.special.erf((z[:, None] - i["x"]) / (WIDE * 2**0.5)), 1)
    share = 0.5 + 0.5 * mass / jnp.sum(heights)
    return -4 + 0.01 * jnp.sum(share[None] < level[:, None], axis=1)


def _density(cloud, z):
    """A smooth picture of a cloud of points."""
    bumps = jnp.exp(-0.5 * ((z[:, None] - cloud) / 0.1) ** 2)
    return jnp.mean(bumps, axis=1) / (0.1 * (2 * jnp.pi) ** 0.5)


GEODESIC = Figure(
    title="Displacement or mixture?",
    alt="Two clouds on a line, one drawn downwards and one upwards, and between them at half time"
    " the displaced cloud, one hill in the middle, and the mixture, both hills at half height.",
    say="Share {t} of the way; the distance W₂ of the two clouds is {distance}.",
    panels=(
        Panel(PLAIN, (-2, 2), ("particle θ", "density; first cloud below"), (
            Layer("line", ("first",), "guide", "the two clouds"),
            Layer("line", ("second",), "guide"),
            Layer("line", ("mixed",), "linear", "mixture"),
            Layer("line", ("moved",), "network", "displacement"),
            Layer("handles", (), "data", "hills: drag them; below 0 the first cloud"),
        )),
    ),
    controls={"t": Slider("share of the way", steps(0, 1, 51), 25)},
    see=interpolation, points=((-1.4, -1.0), (1.4, 1.0)), time="t",
)  # fmt: skip

FIGURES = {"mf-network": NETWORK, "mf-potential": POTENTIAL, "mf-geodesic": GEODESIC}
