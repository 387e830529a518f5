"""Live figures in Python: their pictures by matplotlib, their controls as widgets."""

from typing import Any

import numpy as np

from ntkcourse.live import PLACES, Choice, Panel, label
from ntkcourse.sliders import _png


def picture(panels: tuple[Panel, ...], found: dict, points: list):
    """All panels of a live figure, with a legend below."""
    import matplotlib.pyplot as plt

    from ntkcourse import figures

    width = 5.2 if len(panels) == 1 else 7.8
    fig, axes = plt.subplots(1, len(panels), figsize=(width, 3.7), squeeze=False)
    for ax, panel in zip(axes[0], panels, strict=True):
        ax.set(xlim=panel.x, ylim=panel.y, xlabel=panel.labels[0], ylabel=panel.labels[1])
        for layer in panel.layers:
            look = dict(getattr(figures, layer.look.upper()))
            _draw(ax, panel, layer, look, [found[name] for name in layer.of], points)
    handles = [pair for ax in axes[0] for pair in zip(*ax.get_legend_handles_labels(), strict=True)]
    if handles:
        fig.legend(*zip(*handles, strict=True), loc="outside lower center", ncols=2, fontsize=9)
    return fig


def _draw(ax, panel, layer, look, values, points):
    grid = np.linspace(*panel.x, values[0].shape[-1]) if values and values[0].ndim else None
    words = layer.label or None
    if layer.kind == "line":
        ax.plot(*((grid, values[0]) if len(values) == 1 else values), **look, label=words)
    elif layer.kind == "lines":
        lines = ax.plot(grid, values[0].T, **look | {"alpha": 0.6})
        lines[0].set_label(words)
    elif layer.kind == "band":
        ax.fill_between(grid, *values, color=look["color"], alpha=0.18, linewidth=0, label=words)
    elif layer.kind == "dots":
        sign = values[1] > 0 if len(values) > 1 else np.ones(len(values[0]), bool)
        mark = {"linestyle": "", "marker": "o", "markersize": 3, "alpha": 0.8}
        ax.plot(*values[0][sign].T, **mark, color=look["color"], label=words)
        ax.plot(*values[0][~sign].T, **mark, color=look["color"], markerfacecolor="white")
    elif layer.kind == "bars":
        alpha = 0.4 if layer.look == "guide" else 1
        places = 1 + np.arange(len(values[0]))
        ax.bar(places, values[0], color=look["color"], width=0.7, alpha=alpha, label=words)
    else:
        ax.plot(*np.reshape(points, (-1, 2)).T, **look, zorder=5, label=words)


def widgets(session: Any, first: bytes, size: tuple[int, int]) -> Any:
    """The figure with a slider or a menu per control; the data are moved one point at a time."""
    import ipywidgets

    figure = session.figure
    image = ipywidgets.Image(value=first, format="png", width=size[0], height=size[1])
    sentence = ipywidgets.Label(session.sentence)
    wide = {"description_width": "initial"}

    def redraw(frames=None):
        image.value, _ = _png(session.draw(frames))
        sentence.value = session.sentence

    def chosen(name):
        def change(event):
            session.chosen[name] = event["new"]
            redraw(None if figure.restart else 0)

        return change

    def button(text, act):
        made = ipywidgets.Button(description=text)
        made.on_click(lambda _: act())
        return made

    controls = []
    for name, control in figure.controls.items():
        kind = ipywidgets.Dropdown if isinstance(control, Choice) else ipywidgets.SelectionSlider
        options = [(label(v), v) for v in control.values]
        made = kind(
            options=options, value=session.chosen[name], description=control.label, style=wide
        )
        made.observe(chosen(name), "value")
        controls.append(made)
    if figure.step and not figure.time:
        controls.append(button("Play on", lambda: redraw(60)))
    if figure.random:

        def again():
            session.seed += 1
            session.begin()
            redraw(None if figure.restart else 0)

        controls.append(button("New draw", again))
    if figure.points:
        controls.append(_data(session, lambda: redraw(None if figure.restart else 0), button))
    return ipywidgets.VBox([image, sentence, *controls])


def _data(session, redraw, button):
    """Move, add and remove data points."""
    import ipywidgets

    panel = next(p for p in session.figure.panels if any(a.kind == "handles" for a in p.layers))
    which = ipywidgets.IntSlider(description="point", min=1, max=len(session.points), value=1)
    sides = [
        ipywidgets.FloatSlider(description=side, min=low, max=high, step=(high - low) / 100)
        for side, (low, high) in zip(panel.labels, (panel.x, panel.y), strict=True)
    ]
    quiet = []

    def show(_=None):
        quiet.append(True)
        for side, value in zip(sides, session.points[which.value - 1], strict=True):
            side.value = value
        quiet.pop()

    def move(_):
        if not quiet:
            session.points[which.value - 1] = [side.value for side in sides]
            redraw()

    def count(change):
        change()
        which.max = len(session.points)
        show()
        redraw()

    def add():
        if len(session.points) < PLACES:
            count(lambda: session.points.append([float(np.mean(panel.x)), float(np.mean(panel.y))]))

    def remove():
        if len(session.points) > 1:
            count(lambda: session.points.pop(which.value - 1))

    which.observe(show, "value")
    for side in sides:
        side.observe(move, "value")
    show()
    buttons = [button("Add a point", add), button("Remove it", remove)]
    return ipywidgets.VBox([which, *sides, ipywidgets.HBox(buttons)])
