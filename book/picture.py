"""The picture of the README, made with the package: `python -m book.picture`."""

from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt

from ntkcourse import figures, infinite, kernels, networks, training

PLACE = Path(__file__).parent / "picture.png"
SIGMA = {"sigma_w": 1.5, "sigma_b": 0.3}


def draw() -> plt.Figure:
    """Thirty trained networks beside the law of infinitely wide ones, on a circle."""
    jax.config.update("jax_enable_x64", True)
    figures.style()
    angles = jnp.array([-2.2, -1.0, 0.3, 1.1, 2.3])
    on_circle = lambda a: jnp.stack([jnp.cos(a), jnp.sin(a)], axis=1)  # noqa: E731
    x, y, line = on_circle(angles), jnp.sin(2 * angles), jnp.linspace(-jnp.pi, jnp.pi, 200)
    init, apply = networks.mlp((2, 512, 512, 1), "relu", **SIGMA)

    def train(key):
        loss = lambda params: jnp.sum((apply(params, x) - y) ** 2) / 2  # noqa: E731
        run = training.path(loss, init(key=key), steps=400, learning_rate=0.05)
        return apply(run.params, on_circle(line))

    networks_drawn = training.ensemble(train, jax.random.split(jax.random.key(0), 30))
    nngp, ntk = infinite.nngp(3, "relu", **SIGMA), infinite.ntk(3, "relu", **SIGMA)
    mean, cov = kernels.trained_ensemble(nngp, ntk, x, y, on_circle(line), t=20.0)
    spread = 2 * jnp.sqrt(jnp.diag(cov))

    figure, ax = plt.subplots(figsize=(6.4, 2.8))
    ax.fill_between(
        line, mean - spread, mean + spread, color=figures.KERNEL["color"], alpha=0.2, linewidth=0
    )
    ax.plot(line, networks_drawn.T, **{**figures.NETWORK, "linewidth": 0.5, "alpha": 0.6})
    ax.plot(line, mean, **figures.KERNEL)
    ax.plot(angles, y, **figures.DATA)
    figures.write(ax, "30 trained networks, width 512", (-1.7, 1.9), figures.NETWORK, va="top")
    figures.write(
        ax, "infinite width:\nmean, two deviations", (0.2, -1.5), figures.KERNEL, va="top"
    )
    ax.set(xlabel="angle of the input", ylabel="output", ylim=(-2.3, 2.1), xlim=(-3.15, 3.15))
    return figure


if __name__ == "__main__":
    picture, size = figures._png(draw())
    PLACE.write_bytes(picture)
    print(PLACE.name, size, len(picture), "bytes")
