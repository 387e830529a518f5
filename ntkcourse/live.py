"""Figures that compute while the reader drags the data; found in ``ntkcourse.figures``.

A live figure is a record: programs (functions of the package, traced by JAX), controls, and what
is drawn of their results. From this one record a notebook makes widgets whose callbacks call
Python, the site makes JavaScript (``book/compile.py``), and print shows a picture.
"""

import base64
import html
import json
import string
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ntkcourse.sliders import _alt_text, _in_notebook, _png, _publish, value_text

PLACES = 12
"""The most data points a reader can set; empty places have mask 0."""
FRAMES = 2000
"""The most frames that Python computes for one picture."""


class Slider(NamedTuple):
    """A number to choose: its label, its values, and which of them comes first."""

    label: str
    values: tuple[float, ...]
    start: int


class Choice(NamedTuple):
    """A word or whole number to choose; each combination of choices is a program of its own."""

    label: str
    values: tuple
    start: int = 0


class Layer(NamedTuple):
    """What is drawn of which results, and in which look of ``ntkcourse.figures``.

    ``line``: (g,) over equal steps of the panel, or two results x and y. ``lines``: (k, g), k being
    ``rows``.
    ``band``: lower and upper edge. ``dots``: (n, 2), and a result whose sign fills or empties
    them. ``bars``: (k,), at 1 ... k. ``handles``: the data.
    """

    kind: str
    of: tuple[str, ...] = ()
    look: str = "kernel"
    label: str = ""
    rows: int = 1


class Panel(NamedTuple):
    """One pair of axes."""

    x: tuple[float, float]
    y: tuple[float, float]
    labels: tuple[str, str]
    layers: tuple[Layer, ...]


class Figure(NamedTuple):
    """A live figure.

    ``see(**choices)`` gives a function of one dictionary: the values of the sliders, the data as
    ``x``, ``y``, ``mask`` of shape (PLACES,), to a dictionary of results. ``step(**choices)``
    gives one of all these and a state, which it returns a little later: until its result ``left``
    is 0 if a slider is the ``time``, else for as long as the reader plays. ``look(**choices)``
    gives what is to be drawn of the state. So a frame is one ``see`` if anything changed, as many
    steps as there is time for, and one ``look``. ``random`` are the shapes of states that start as
    N(0, 1), ``zeros`` of those that start at 0. With ``restart`` the state begins anew when data
    or sliders change. ``first`` steps are behind the picture in print.
    """

    title: str
    alt: str
    say: str
    panels: tuple[Panel, ...]
    controls: dict[str, Slider | Choice]
    see: Callable | None = None
    step: Callable | None = None
    look: Callable | None = None
    points: tuple[tuple[float, float], ...] = ()
    random: dict[str, tuple] = {}  # noqa: RUF012
    zeros: dict[str, tuple] = {}  # noqa: RUF012
    time: str = ""
    restart: bool = True
    first: int = FRAMES


def steps(low: float, high: float, count: int, *, log: bool = False) -> tuple[float, ...]:
    """Values of a slider, with three digits."""
    spaced = np.geomspace(low, high, count) if log else np.linspace(low, high, count)
    return tuple(float(f"{value:.3g}") for value in spaced)


def normals(seed: int, count: int) -> np.ndarray:
    """Standard normal numbers, the same as the page draws: mulberry32, then Box and Muller."""
    with np.errstate(over="ignore"):
        state = np.uint32(seed) + np.uint32(0x6D2B79F5) * np.arange(1, 2 * count + 1, dtype="u4")
        word = (state ^ (state >> 15)) * (state | np.uint32(1))
        word ^= word + (word ^ (word >> 7)) * (word | np.uint32(61))
    uniform = ((word ^ (word >> 14)).astype(float) + 0.5) / 2**32
    return np.sqrt(-2 * np.log(uniform[::2])) * np.cos(2 * np.pi * uniform[1::2])


def figures() -> dict[str, Figure]:
    """All live figures by name."""
    # these modules import this one
    from ntkcourse import live_kernels, live_networks, live_particles, live_training

    modules = live_networks, live_training, live_kernels, live_particles
    return {name: figure for module in modules for name, figure in module.FIGURES.items()}


def live(name: str) -> None:
    """Display a live figure by its name: ``figures.live("welcome")``.

    A notebook shows widgets and computes in Python; the site computes in the reader's browser; in
    print there is the picture that stands here at the start.
    """
    known = figures()
    if name not in known:
        raise ValueError(f"expected one of {', '.join(sorted(known))}, got {name!r}")
    figure = known[name]
    session = Session(figure)
    picture, size = _png(session.draw())
    alt = _alt_text(figure.alt)
    data = {"text/plain": alt, "text/html": markup(name, figure, picture, size)}
    if _in_notebook():
        from ntkcourse import live_drawing

        data = live_drawing.widgets(session, picture, size)._repr_mimebundle_() | data
    _publish(data, {})


def markup(name: str, figure: Figure, picture: bytes, size: tuple[int, int]) -> str:
    """The picture, and as data what the site's script needs to make the figure from."""
    data = {
        key: value
        for key, value in figure._asdict().items()
        if key not in ("see", "step", "look", "alt", "first")
    }
    data["controls"] = [
        {"name": k, "slider": isinstance(control, Slider), **control._asdict()}
        for k, control in figure.controls.items()
    ]
    data["panels"] = [
        panel._asdict() | {"layers": [layer._asdict() for layer in panel.layers]}
        for panel in figure.panels
    ]
    data |= {"places": PLACES, "see": figure.see is not None, "step": figure.step is not None}
    # JSON has no infinity, and "</" would end the script element early
    text = json.dumps(data, ensure_ascii=False).replace("Infinity", "null").replace("</", "<\\/")
    return (
        f'<figure class="live" data-live="{name}"><img alt="{html.escape(_alt_text(figure.alt))}"'
        f' src="data:image/png;base64,{base64.b64encode(picture).decode()}"'
        f' width="{size[0]}" height="{size[1]}">'
        f'<script type="application/json">{text}</script></figure>'
    )


class Session:
    """A live figure in Python: what is chosen, the data, the state."""

    def __init__(self, figure: Figure):
        self.figure, self.seed, self.compiled = figure, 1, {}
        self.chosen = {k: control.values[control.start] for k, control in figure.controls.items()}
        self.points = [list(point) for point in figure.points]
        self.begin()

    def begin(self) -> None:
        """The state before the first step."""
        sizes = {k: int(np.prod(shape)) for k, shape in self.figure.random.items()}
        drawn = iter(normals(self.seed, sum(sizes.values())))
        self.state = {
            k: np.array([next(drawn) for _ in range(sizes[k])]).reshape(shape)
            for k, shape in self.figure.random.items()
        } | {k: np.zeros(shape) for k, shape in self.figure.zeros.items()}

    def inputs(self) -> dict[str, Any]:
        """The sliders and the data, as a program takes them."""
        given = {
            k: float(self.chosen[k])
            for k, control in self.figure.controls.items()
            if isinstance(control, Slider)
        }
        if self.figure.points:
            table = np.zeros((PLACES, 3))
            for row, (x, y) in zip(table, self.points, strict=False):
                row[:] = x, y, 1
            given |= {"x": table[:, 0], "y": table[:, 1], "mask": table[:, 2]}
        return given

    def run(self, which: str, given: dict) -> dict:
        """The results of ``see``, ``step`` or ``look`` for the present choices."""
        import jax

        choices = {k: self.chosen[k] for k, c in self.figure.controls.items() if type(c) is Choice}
        key = (which, *choices.values())
        if key not in self.compiled:
            self.compiled[key] = jax.jit(getattr(self.figure, which)(**choices))
        with jax.enable_x64(True):
            results = self.compiled[key](given)
        return {k: np.asarray(v) for k, v in results.items()}

    def results(self, frames: int) -> dict:
        """What is to be drawn, after at most ``frames`` steps of the state."""
        given = self.inputs()
        found = self.run("see", given) if self.figure.see else {}
        if not self.figure.step:
            return found
        for _ in range(frames):
            made = self.run("step", given | found | self.state)
            self.state = {k: made[k] for k in self.state}
            if not made.get("left", 1):
                break
        return found | self.state | self.run("look", given | found | self.state)

    def draw(self, frames: int | None = None):
        """The picture of the present choices, as a matplotlib figure."""
        from ntkcourse import live_drawing

        if self.figure.restart:
            self.begin()
        found = self.results(self.figure.first if frames is None else frames)
        self.sentence = self.text(found)
        return live_drawing.picture(self.figure.panels, found, self.points)

    def text(self, found: dict) -> str:
        """The sentence below the figure."""
        fields = {name for _, name, _, _ in string.Formatter().parse(self.figure.say) if name}
        return self.figure.say.format(
            **{k: label({**self.chosen, **found, "n": len(self.points)}[k]) for k in fields}
        )


def label(value) -> str:
    """A value as the reader sees it."""
    return "∞" if value == np.inf else value_text(value)
