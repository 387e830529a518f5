"""Figures: one look, a text for each, sliders whose frames are what `draw` drew."""

import base64
import io
import json
import re
import subprocess
import sys

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

from ntkcourse import figures, sliders

mpl.use("agg")
import matplotlib.pyplot as plt  # the backend has to be chosen first

LOOKS = [
    figures.NETWORK,
    figures.LINEAR,
    figures.KERNEL,
    figures.DATA,
    figures.WRONG,
    figures.GUIDE,
]


@pytest.fixture
def shown(monkeypatch):
    """What a notebook would store, as (data, metadata)."""
    outputs = []
    monkeypatch.setattr(sliders, "_in_notebook", lambda: True)
    monkeypatch.setattr(
        "IPython.display.display", lambda data, raw, metadata: outputs.append((data, metadata))
    )
    return outputs


def draw(height=1.0, shift=0.0):
    figure, ax = plt.subplots(figsize=(2, 1))
    ax.plot([0, 1], [shift, height], **figures.KERNEL)
    ax.set(ylim=(-1, 4))
    return figure


def payload(markup):
    return json.loads(re.search(r'<script type="application/json">(.*?)</script>', markup).group(1))


def pixels(source):
    raw = base64.b64decode(source.removeprefix("data:image/png;base64,"))
    return np.asarray(Image.open(io.BytesIO(raw)).convert("RGB"))


def test_importing_draws_nothing_and_loads_nothing():
    code = (
        "import sys, ntkcourse.figures, ntkcourse.claims;"
        "print({'matplotlib', 'IPython', 'ipywidgets'} & set(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "set()"


def luminance(colour):
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in mpl.colors.to_rgb(colour)
    ]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def test_colours_differ_stand_out_and_never_come_alone():
    assert len({look["color"] for look in LOOKS}) == len(LOOKS)
    assert len({tuple(v for k, v in look.items() if k != "color") for look in LOOKS}) == len(LOOKS)
    for look in LOOKS:
        assert 1.05 / (luminance(look["color"]) + 0.05) > 4.5, f"too pale on paper: {look}"


def test_style_is_the_only_thing_that_touches_matplotlib():
    with mpl.rc_context():
        mpl.rcdefaults()
        before = dict(mpl.rcParams)
        figures.style()
        assert mpl.rcParams["figure.constrained_layout.use"]
        assert not mpl.rcParams["axes.spines.top"]
        mpl.rcdefaults()
        assert dict(mpl.rcParams) == before


@pytest.fixture
def ax():
    figure, axes = plt.subplots()
    yield axes
    plt.close(figure)


SAMPLES = np.array([[1.0, 2.0, 4.0, 5.0, 9.0], [10.0, 40.0, 20.0, 90.0, 50.0]])


def test_band_is_the_median_and_the_range(ax):
    figures.band(ax, [8, 64], SAMPLES, figures.NETWORK, label="networks", linewidth=3)
    [line], [area] = ax.lines, ax.collections
    np.testing.assert_array_equal(line.get_xydata(), [[8, 4], [64, 40]])
    assert (line.get_color(), line.get_linewidth()) == (figures.NETWORK["color"], 3)
    corners = {tuple(corner) for corner in area.get_paths()[0].vertices}
    assert corners == {(8, 1), (8, 9), (64, 10), (64, 90)}
    assert mpl.colors.same_color(area.get_facecolor()[0][:3], figures.NETWORK["color"])
    [label] = ax.texts
    assert (label.get_text(), label.xy) == ("networks", (64, 40))
    assert label.get_color() == figures.NETWORK["color"]


def test_band_of_quantiles_with_a_label_elsewhere(ax):
    figures.band(ax, [8, 64], SAMPLES, figures.KERNEL, label="k", at=(1, 2), quantiles=(0.25, 0.75))
    corners = {tuple(corner) for corner in ax.collections[0].get_paths()[0].vertices}
    assert corners == {(8, 2), (8, 5), (64, 20), (64, 50)}
    assert ax.texts[0].xy == (1, 2)


@pytest.mark.parametrize(
    ("exponent", "text"), [(-0.5, "slope −1/2"), (1, "slope 1"), (1 / 3, "slope 1/3"),
                           (-1.234, "slope −1.23")]
)  # fmt: skip
def test_guide_has_its_slope_and_says_it(ax, exponent, text):
    figures.guide(ax, [4, 16, 64], exponent, through=(16, 3.0))
    (x, y), [label] = ax.lines[0].get_xydata().T, ax.texts
    np.testing.assert_allclose(np.diff(np.log(y)) / np.diff(np.log(x)), exponent)
    assert y[1] == pytest.approx(3)
    assert label.get_text() == text


def test_guide_takes_words(ax):
    figures.guide(ax, [4, 16], 2, through=(4, 1.0), label="$m^2$", at=(5, 6))
    assert (ax.texts[0].get_text(), ax.texts[0].xy) == ("$m^2$", (5, 6))


def test_log_ticks_are_these_and_no_others(ax):
    ax.plot([16, 4096], [0.1, 1])
    figures.log_ticks(ax, x=[16, 256, 4096], y={0.25: "¼", 1: "one"})
    ax.figure.canvas.draw()
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert [label.get_text() for label in ax.get_xticklabels()] == ["16", "256", "4096"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["¼", "one"]
    np.testing.assert_array_equal(ax.get_xticks(), [16, 256, 4096])
    assert len(ax.get_xticks(minor=True)) == len(ax.get_yticks(minor=True)) == 0


def test_log_ticks_leave_the_other_axis(ax):
    before = ax.get_yticks()
    figures.log_ticks(ax, x=[1, 10])
    assert ax.get_yscale() == "linear"
    np.testing.assert_array_equal(ax.get_yticks(), before)


@pytest.mark.parametrize(
    ("message", "call"),
    [
        (r"shape \(3, seeds\), got \(2, 5\)",
         lambda ax: figures.band(ax, [1, 2, 3], SAMPLES, figures.DATA)),
        ("finite samples", lambda ax: figures.band(ax, [1], [[1, np.nan]], figures.DATA)),
        ("guide of positive numbers", lambda ax: figures.guide(ax, [0, 1], -1, through=(1, 1))),
        ("guide of positive numbers", lambda ax: figures.guide(ax, [1, 2], -1, through=(1, -1))),
        ("positive ticks", lambda ax: figures.log_ticks(ax, x=[0, 1])),
        ("positive ticks", lambda ax: figures.log_ticks(ax, y=[])),
    ],
)  # fmt: skip
def test_helpers_refuse(user, ax, message, call):
    with pytest.raises(ValueError, match=message):
        call(ax)


def test_show_stores_picture_and_text(shown):
    figures.show(draw(), alt="A line that\n   rises to one")
    [(data, metadata)] = shown
    assert data["text/plain"] == "A line that rises to one"
    assert pixels(data["image/png"]).shape == (160, 320, 3)
    assert metadata["image/png"] == {"width": 240, "height": 120}
    assert plt.get_fignums() == []


def test_show_gives_the_same_bytes_twice(shown):
    for _ in range(2):
        figures.show(draw(), alt="A line that rises to one")
    assert shown[0] == shown[1]


def test_a_script_gets_the_text(capsys):
    figures.show(draw(), alt="A line that rises to one")
    assert capsys.readouterr().out == "A line that rises to one\n"


def test_explore_stores_every_frame_with_its_text(shown):
    figures.explore(
        draw, height=[1, 2.5], shift=[-1, 0, 1], alt="A line from {shift} up to {height}"
    )
    [(data, _)] = shown
    stored = payload(data["text/html"])
    assert stored["values"] == [["1", "2.5"], ["−1", "0", "1"]]
    assert len(stored["frames"]) == len(stored["alts"]) == 6
    assert stored["alts"][4] == "A line from 0 up to 2.5"
    # The last parameter moves fastest, and each frame is the picture of its own parameters.
    expected = pixels(base64.b64encode(sliders._png(draw(2.5, 0))[0]).decode())
    assert np.array_equal(pixels(stored["frames"][4]), expected)
    assert not np.array_equal(pixels(stored["frames"][3]), expected)
    assert data["text/plain"] == "A line from −1 up to 1"
    assert 'alt="A line from −1 up to 1"' in data["text/html"]
    assert stored["labels"] == ["height", "shift"]
    assert stored["animate"] is False


def test_explore_in_a_live_notebook_redraws(shown, monkeypatch):
    import ipywidgets

    boxes = []
    monkeypatch.setattr(
        ipywidgets, "VBox", lambda children: boxes.append(children) or ipywidgets.Box(children)
    )
    heights = []

    def spy(height):
        heights.append(height)
        return draw(height)

    figures.explore(
        spy, height=[1, 2, 3], alt=lambda height: f"A line up to {height}", animate=True
    )
    assert heights == [1, 2, 3]
    [[picture, player, slider]] = boxes
    before = picture.value
    slider.value = 3
    assert heights[3:] == [3]
    assert picture.value != before
    player.value = 1
    assert heights[4:] == [2]
    [(data, _)] = shown
    assert "application/vnd.jupyter.widget-view+json" in data
    assert payload(data["text/html"])["animate"] is True


def test_text_cannot_break_out_of_the_markup(shown):
    text = 'a "quoted" </script> <b> text'
    figures.explore(draw, height=[1, 2], alt=lambda height: text, labels={"height": "<i>h</i>"})
    markup = shown[0][0]["text/html"]
    assert payload(markup)["alts"] == [text, text]
    assert markup.count("</script>") == 1
    assert "<b>" not in markup.split("<script")[0]
    assert "<i>" not in markup.split("<script")[0]


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (ValueError, "one or two parameters", {}),
        (ValueError, "one or two parameters", {"a": [1, 2], "b": [1, 2], "c": [1, 2]}),
        (ValueError, "at least two values for height", {"height": [1]}),
        (ValueError, "at least two values for height", {"height": "12"}),
        (ValueError, "at least two values for height", {"height": 3}),
        (ValueError, "at most 80 frames", {"height": range(9), "shift": range(9)}),
        (ValueError, "mention every parameter", {"height": [1, 2], "alt": "a line that goes up"}),
        (ValueError, "expected labels", {"height": [1, 2], "labels": {"width": "w"}}),
        (ValueError, "says what is to be seen", {"height": [1, 2], "alt": lambda height: "a plot"}),
        (TypeError, "alt as text", {"height": [1, 2], "alt": None}),
        (TypeError, "draw as a function", {"height": [1, 2], "draw": None}),
        (TypeError, "matplotlib figure", {"height": [1, 2], "draw": lambda height: None}),
    ],
)
def test_explore_refuses(user, error, message, arguments):
    arguments = {"draw": draw, "alt": "a line up to {height}"} | arguments
    with pytest.raises(error, match=message):
        figures.explore(arguments.pop("draw"), **arguments)


def test_explore_refuses_frames_of_two_sizes():
    with pytest.raises(ValueError, match="same size"):
        figures.explore(
            lambda side: plt.figure(figsize=(side, 1)), side=[1, 2], alt="a blank sheet {side} wide"
        )


@pytest.mark.parametrize(
    ("error", "alt"), [(ValueError, "a plot"), (ValueError, ""), (TypeError, None)]
)
def test_show_refuses_a_figure_without_a_text(user, error, alt):
    with pytest.raises(error, match="expected"):
        figures.show(draw(), alt=alt)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("relu", "relu"),
        (1024, "1024"),
        (1e5, "100000"),
        (-2, "−2"),
        (0.12345, "0.123"),
        (1e-4, "0.0001"),
    ],
)
def test_values_beside_a_slider_read_well(value, text):
    assert sliders.value_text(value) == text


def test_an_exploration_opens_on_the_frame_that_is_asked_for(capsys):
    two = {"height": [1, 2], "shift": [0, 5, 9]}
    figures.explore(draw, **two, alt="with {height} and {shift} now", start={"shift": 9})
    assert capsys.readouterr().out == "with 1 and 9 now\n"
    frames = [(sliders._png(draw(h))[0], f"a bar of height {h}") for h in (1, 2)]
    markup = sliders._static(frames, (9, 9), {"height": [1, 2]}, {"height": "h"}, False, [1], 1)
    assert 'alt="a bar of height 2"' in markup
    assert payload(markup)["start"] == [1]
    with pytest.raises(ValueError, match="start"):
        figures.explore(draw, height=[0, 5], alt="what is seen at {height}", start={"height": 4})
