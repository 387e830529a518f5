"""One look for all figures, a text for each of them, and sliders that need no server.

Colours have one meaning in the whole book and never come alone: each constant below also fixes
a line style, so that `ax.plot(x, y, **figures.KERNEL)` can be told apart without colour.
"""

from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType

import numpy as np

from ntkcourse.live import live
from ntkcourse.sliders import DPI, explore, show, value_text

__all__ = ["band", "explore", "guide", "live", "log_ticks", "show", "style", "write"]

NETWORK = MappingProxyType({"color": "#0072b2", "linestyle": "-", "linewidth": 1.2})
LINEAR = MappingProxyType({"color": "#00805e", "linestyle": "--", "linewidth": 2.0})
KERNEL = MappingProxyType({"color": "#c65200", "linestyle": "-", "linewidth": 2.6})
DATA = MappingProxyType({"color": "#111111", "linestyle": "", "marker": "o", "markersize": 5.0})
WRONG = MappingProxyType({"color": "#a8437c", "linestyle": ":", "linewidth": 2.2})
GUIDE = MappingProxyType({"color": "#555555", "linestyle": (0, (6, 4)), "linewidth": 1.0})


def style() -> None:
    """Set matplotlib to the look of the book; call it once, in a chapter's first cell."""
    import matplotlib as mpl

    mpl.rcdefaults()
    mpl.rcParams.update(
        {
            # Small and set in 11 point: on a phone the figure shrinks to 70 % and stays readable.
            "figure.figsize": (5.2, 3.1),
            "figure.dpi": DPI,
            "figure.constrained_layout.use": True,
            "font.size": 11,
            "axes.titlesize": 11,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.prop_cycle": mpl.cycler(
                color=[look["color"] for look in (NETWORK, LINEAR, KERNEL)]
            ),
            "legend.frameon": False,
            "lines.solid_capstyle": "round",
            "image.cmap": "cividis",
        }
    )


def band(
    ax, x, samples, look: Mapping, *, label: str = "", at=None, quantiles=(0, 1), **changes
) -> None:
    """Draw the median over seeds as a line and their range as a band.

    ``samples`` is (len(x), seeds), as :func:`ntkcourse.training.sweep` returns it and as
    ``ax.plot`` takes it. ``look`` is one of the constants above, ``changes`` go to the line.
    ``quantiles`` are the edges of the band, (0, 1) the whole range; a caption says which they are.
    ``label`` stands ``at`` a point, at the end of the line if None.
    """
    x, samples = np.asarray(x), np.asarray(samples)
    if samples.ndim != 2 or len(samples) != len(x):
        raise ValueError(f"expected samples of shape ({len(x)}, seeds), got {samples.shape}")
    if not np.all(np.isfinite(samples)):
        raise ValueError("expected finite samples, got NaN or infinity")
    low, middle, high = np.quantile(samples, [quantiles[0], 0.5, quantiles[1]], axis=1)
    ax.plot(x, middle, **{**look, **changes})
    ax.fill_between(x, low, high, color=look["color"], alpha=0.18, linewidth=0)
    write(ax, label, at or (x[-1], middle[-1]), look, beside=at is None)


def guide(
    ax, x, exponent: float, *, through: tuple[float, float], label: str | None = None, at=None
) -> None:
    r"""Draw the dashed line :math:`y = y_0 (x/x_0)^p` over ``x``, to compare slopes with.

    ``through`` is :math:`(x_0, y_0)`. ``label`` None says "slope p", with p as a fraction if it
    is one; it stands ``at`` a point, at the end of the line if None.
    """
    x = np.asarray(x, float)
    if not min(*x, *through) > 0:
        raise ValueError(f"expected a guide of positive numbers, got x = {x} through {through}")
    y = through[1] * (x / through[0]) ** exponent
    if label is None:
        ratio = Fraction(exponent).limit_denominator(12)
        text = str(ratio) if abs(ratio - exponent) < 1e-9 else f"{exponent:.3g}"
        label = f"slope {text}".replace("-", "−")
    ax.plot(x, y, **GUIDE)
    write(ax, label, at or (x[-1], y[-1]), GUIDE, beside=at is None)


def log_ticks(ax, *, x=None, y=None) -> None:
    """Make axes logarithmic, with ticks at these numbers only and labels that read 4096, not 4e3.

    A dictionary gives ticks labels of its own, ``x={0.25: "¼", 1: "1"}``.
    """
    for name, ticks in (("x", x), ("y", y)):
        if ticks is None:
            continue
        if not len(ticks) or min(ticks) <= 0:
            raise ValueError(f"expected positive ticks on a logarithmic axis, got {ticks!r}")
        texts = ticks.values() if isinstance(ticks, Mapping) else map(value_text, ticks)
        axis = getattr(ax, f"{name}axis")
        ax.set(**{f"{name}scale": "log"})
        axis.set_ticks(list(ticks), list(texts))
        axis.set_ticks([], minor=True)


def write(ax, text: str, at: tuple, look: Mapping, *, beside: bool = False, **changes) -> None:
    """Write in the colour of what is meant, at a point of the data or a little to its right."""
    shift = {"xytext": (5, 0), "textcoords": "offset points", "va": "center"} if beside else {}
    ax.annotate(text, at, **{"color": look["color"], **shift, **changes})
