"""Pictures with their text, and sliders that need no server; found in ``ntkcourse.figures``."""

import base64
import html
import io
import itertools
import json
import string
import sys
from collections.abc import Callable, Sequence

FRAMES = 80
DPI = 160


def show(figure, *, alt: str) -> None:
    """Display a figure with its alternative text, which says what is to be seen in it.

    The text is stored beside the picture; the site refuses a figure without one.
    """
    alt = _alt_text(alt)
    picture, (width, height) = _png(figure)
    data = {"image/png": base64.b64encode(picture).decode(), "text/plain": alt}
    _publish(data, {"image/png": {"width": width, "height": height}})


def explore(
    draw: Callable,
    *,
    alt: str | Callable[..., str],
    labels: dict[str, str] | None = None,
    animate: bool = False,
    start: dict | None = None,
    **values: Sequence,
) -> None:
    """Display a picture with one slider per parameter (one or two of them).

    ``draw(**parameters)`` returns a figure; every keyword argument lists the values of one
    parameter: ``explore(draw, sigma_b=[0, 0.5, 1], alt="…")``. ``alt`` describes each frame: a
    function of the same parameters, or a template such as "… at bias {sigma_b}". ``labels`` gives
    parameters a display name. With ``animate`` the first parameter is time and can be played.
    ``start`` chooses the frame that is shown first, ``start={"sigma_b": 0.5}``; choose the one that
    shows the point. A parameter that it does not name starts at its first value.

    A live notebook shows widgets that call ``draw``; the static site shows frames drawn here.
    """
    labels = _check_exploration(draw, values, labels or {})
    first = _first_indices(start or {}, values)
    describe = _describer(alt, values)
    frames, sizes = [], set()
    for chosen in itertools.product(*values.values()):
        parameters = dict(zip(values, chosen, strict=True))
        picture, size = _png(draw(**parameters))
        frames.append((picture, _alt_text(describe(**parameters))))
        sizes.add(size)
    if len(sizes) > 1:
        raise ValueError(f"expected every frame to have the same size, got {sorted(sizes)}")
    number = 0
    for index, steps in zip(first, values.values(), strict=True):
        number = number * len(steps) + index
    picture, text = frames[number]
    data = {
        "text/plain": text,
        "text/html": _static(frames, size, values, labels, animate, first, number),
    }
    if _in_notebook():
        data = _live(draw, picture, size, values, labels, animate, first) | data
    _publish(data, {})


def _check_exploration(draw, values: dict, labels: dict) -> dict[str, str]:
    if not callable(draw):
        raise TypeError(f"expected draw as a function that returns a figure, got {draw!r}")
    if len(values) not in (1, 2):
        raise ValueError(f"expected one or two parameters with their values, got {len(values)}")
    count = 1
    for name, steps in values.items():
        if isinstance(steps, str) or not hasattr(steps, "__len__") or len(steps) < 2:
            raise ValueError(f"expected a list of at least two values for {name}, got {steps!r}")
        count *= len(steps)
    if count > FRAMES:
        raise ValueError(
            f"expected at most {FRAMES} frames, each costs a reader some bytes, got {count}"
        )
    if unknown := set(labels) - set(values):
        raise ValueError(f"expected labels for {sorted(values)}, got {sorted(unknown)}")
    return {name: labels.get(name, name) for name in values}


def _first_indices(start: dict, values: dict) -> list[int]:
    """The place of the opening value in the list of each parameter."""
    for name, value in start.items():
        if name not in values or value not in list(values[name]):
            raise ValueError(f"expected start as one of the values of a parameter, got {start!r}")
    return [list(steps).index(start.get(name, steps[0])) for name, steps in values.items()]


def _describer(alt, values: dict) -> Callable[..., str]:
    if callable(alt):
        return alt
    fields = {name for _, name, _, _ in string.Formatter().parse(_alt_text(alt)) if name}
    if fields != set(values):
        raise ValueError(
            f"expected alt to mention every parameter, as in {{{next(iter(values))}}}, "
            f"so that each frame has its own text, got {alt!r}"
        )
    return lambda **chosen: alt.format(**{name: value_text(v) for name, v in chosen.items()})


def _alt_text(alt) -> str:
    if not isinstance(alt, str):
        raise TypeError(f"expected alt as text, got {alt!r}")
    if len(alt.split()) < 4:
        raise ValueError(f"expected an alt text that says what is to be seen, got {alt!r}")
    return " ".join(alt.split())


def value_text(value) -> str:
    """A number as a label shows it."""
    if isinstance(value, str):
        return value
    digits = 7 if float(value).is_integer() else 3  # 4096 and not 4.1e+03
    return f"{float(value):.{digits}g}".replace("-", "−")


def _png(figure) -> tuple[bytes, tuple[int, int]]:
    """The figure as a 64-colour PNG without metadata, its size on the page, and no open figure.

    A palette makes frames four times smaller; missing metadata makes two runs give equal bytes.
    """
    if not hasattr(figure, "savefig"):
        raise TypeError(f"expected a matplotlib figure, got {figure!r}; does draw return it?")
    import matplotlib.pyplot as plt
    from PIL import Image

    full = io.BytesIO()
    figure.savefig(full, format="png", dpi=DPI, facecolor="white")
    plt.close(figure)
    small = io.BytesIO()
    image = Image.open(full).convert("RGB").quantize(64, dither=Image.Dither.NONE)
    image.save(small, format="png", optimize=True)
    return small.getvalue(), tuple(round(side * 120 / DPI) for side in image.size)


def _static(
    frames: list,
    size: tuple,
    values: dict,
    labels: dict,
    animate: bool,
    start: Sequence[int] = (),
    number: int = 0,
) -> str:
    """The opening frame, and as data all frames: the site's script makes the sliders from them."""
    sources = [
        "data:image/png;base64," + base64.b64encode(picture).decode() for picture, _ in frames
    ]
    data = {
        "labels": [labels[name] for name in values],
        "values": [[value_text(step) for step in steps] for steps in values.values()],
        "animate": animate,
        "start": list(start),
        "frames": sources,
        "alts": [text for _, text in frames],
    }
    # "</" inside the data would end the script element early.
    payload = json.dumps(data, ensure_ascii=False).replace("</", "<\\/")
    alt = html.escape(frames[number][1])
    return (
        f'<figure class="explore"><img src="{sources[number]}" alt="{alt}"'
        f' width="{size[0]}" height="{size[1]}">'
        f'<script type="application/json">{payload}</script></figure>'
    )


def _live(
    draw, first: bytes, size: tuple, values: dict, labels: dict, animate: bool, start: Sequence[int]
) -> dict:
    """The same exploration as widgets whose callbacks run `draw` in the reader's kernel."""
    import ipywidgets

    picture = ipywidgets.Image(value=first, format="png", width=size[0], height=size[1])
    sliders = {
        name: ipywidgets.SelectionSlider(
            options=[(value_text(step), step) for step in steps],
            index=index,
            description=labels[name],
            style={"description_width": "initial"},
        )
        for (name, steps), index in zip(values.items(), start, strict=True)
    }

    def redraw(_change) -> None:
        picture.value, _ = _png(draw(**{name: slider.value for name, slider in sliders.items()}))

    for slider in sliders.values():
        slider.observe(redraw, "value")
    controls = list(sliders.values())
    if animate:
        last = len(controls[0].options) - 1
        player = ipywidgets.Play(value=start[0], min=0, max=last, interval=300)
        ipywidgets.link((player, "value"), (controls[0], "index"))
        controls.insert(0, player)
    return ipywidgets.VBox([picture, *controls])._repr_mimebundle_()


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None


def _publish(data: dict, metadata: dict) -> None:
    if not _in_notebook():
        print(data["text/plain"])
        return
    from IPython.display import display

    display(data, raw=True, metadata=metadata)
