"""Statements of the book, tested where they are made.

A chapter measures a statement and calls :func:`check`. What it prints is stored in the notebook
together with a machine-readable record, and the ledger page is made from those records.
"""

import math
import re
import sys
from typing import NamedTuple

import numpy as np

MIME = "application/vnd.ntkcourse.claim+json"
SEEDS = 10


class ClaimError(AssertionError):
    """The measured value breaks its bound, or the bound is too wide to exclude the rival."""


def check(
    claim: str,
    *,
    measured,
    below: float | None = None,
    at_least: float | None = None,
    near: float | None = None,
    within: float | None = None,
    rival=None,
    what: str = "",
) -> None:
    r"""Print the measured value of a statement beside its bound; raise if the bound fails.

    .. math::

        \text{measured} < \text{below}, \qquad \text{measured} \ge \text{at\_least}
        \qquad\text{or}\qquad |\text{measured} - \text{near}| \le \text{within}.

    ``measured`` is a number, or a list with one number per seed (at least ten): then the bound is
    put on the median and the range is printed too. ``rival`` is what a wrong version of the
    statement gives in the same experiment (a printed formula, a dropped term): the check raises
    when the rival passes as well, since such a bound would prove nothing. ``what`` names the
    measured quantity in the printed line.
    """
    if not isinstance(claim, str) or not re.fullmatch(r"[A-Z]+-\d\d", claim):
        raise ValueError(f'expected the id of a statement such as "NTK-04", got {claim!r}')
    relation, bound, tolerance = _bound(below, at_least, near, within)
    holds = {
        "<": lambda v: v < bound,
        "≥": lambda v: v >= bound,
        "≈": lambda v: abs(v - bound) <= tolerance,
    }[relation]
    value, spread = _number(measured, "measured")
    limit = _digits(bound) + (f" ± {_digits(tolerance)}" if relation == "≈" else "")
    step = tolerance / 10 if relation == "≈" else abs(bound) / 1000
    text = _rounded(value, step, relation)
    sentence = (
        f"{what + ': ' if what else ''}{text}{_range(spread, step, relation)} {relation} {limit}"
    )

    if not math.isfinite(value) or not holds(value):
        raise ClaimError(f"{claim} does not hold: expected {relation} {limit}, measured {value!r}")
    record = {"claim": claim, "what": what, "measured": text, "relation": relation, "bound": limit}
    if rival is not None:
        other, other_spread = _number(rival, "rival")
        if math.isnan(other):
            raise ClaimError(f"{claim}: the rival is NaN, so it shows nothing about the bound")
        if math.isfinite(other) and holds(other):
            raise ClaimError(
                f"{claim}: the bound {relation} {limit} is too wide, "
                f"the rival passes it too: {other!r} beside {value!r}"
            )
        record["rival"] = _rounded(other, step, relation)
        sentence += f"  (rival: {record['rival']}{_range(other_spread, step, relation)})"
    if spread is not None:
        record["range"] = _range(spread, step, relation).strip()
    _publish(f"✓ {claim}  {sentence}", record)


class Slope(NamedTuple):
    """What :func:`slope` measured."""

    median: float
    interval: tuple[float, float] | None
    local: np.ndarray
    each: np.ndarray

    def __str__(self) -> str:
        between = "" if self.interval is None else "[{:.2f}, {:.2f}], ".format(*self.interval)
        return f"{self.median:.2f} ({between}local {', '.join(f'{p:.2f}' for p in self.local)})"


def slope(x, y) -> Slope:
    r"""The exponent p of :math:`y \propto x^p`: least squares of log y on log x, seed by seed.

    ``y`` is (len(x), seeds), or (len(x),) for a curve without chance. Gives the ``median`` over
    seeds; the ``interval`` between two of the seeds' slopes that contains the true median with
    probability 95 % or more, whatever their law (None for fewer than six seeds); the ``local``
    slopes from each x to the next (medians), which show whether the rate has settled; and ``each``
    seed's slope, to be given to :func:`check`. It prints as one line.
    """
    x, y = _reals(x, "x"), _reals(y, "y")
    if x.ndim != 1 or len(x) < 2 or np.any(x <= 0) or np.any(np.diff(x) <= 0):
        raise ValueError(f"expected at least two increasing x > 0, got {x}")
    if y.ndim not in (1, 2) or len(y) != len(x) or y.size == 0:
        raise ValueError(f"expected y of shape ({len(x)}, seeds), got shape {y.shape}")
    if np.any(y <= 0):
        raise ValueError(f"expected y > 0, of which there is a logarithm, got {y.min()}")
    u, v = np.log(x), np.log(y.reshape(len(x), -1))
    centred = u - u.mean()
    each = centred @ v / (centred @ centred)
    local = np.median(np.diff(v, axis=0) / np.diff(u)[:, None], axis=1)
    # The median is below the k-th smallest of n with probability P(Binomial(n, 1/2) < k).
    n, below, k = len(each), 0.0, 0
    while (below := below + math.comb(n, k) / 2**n) <= 0.025:
        k += 1
    ordered = np.sort(each)
    interval = (float(ordered[k - 1]), float(ordered[-k])) if k else None
    return Slope(float(np.median(each)), interval, local, each)


def standard_errors(samples, expected) -> np.ndarray:
    r"""The distance of a mean from what is expected, in standard errors, entry by entry.

    .. math:: \frac{|\bar s - \text{expected}|}{\hat\sigma / \sqrt n}, \qquad
              \hat\sigma^2 = \frac1{n-1} \sum_i (s_i - \bar s)^2

    ``samples`` is (n, ...), one draw per row; ``expected`` has the shape of a draw. Samples that
    are all equal are at distance 0 or infinity.
    """
    samples, expected = _reals(samples, "samples"), _reals(expected, "expected")
    if samples.ndim == 0 or len(samples) < 2:
        raise ValueError(f"expected two or more samples as rows, got shape {samples.shape}")
    if expected.shape != samples.shape[1:] and expected.ndim > 0:
        raise ValueError(f"expected shape {samples.shape[1:]}, got expected {expected.shape}")
    gap = np.abs(samples.mean(0) - expected)
    error = samples.std(0, ddof=1) / math.sqrt(len(samples))
    return np.divide(gap, error, out=np.where(gap > 0, np.inf, 0.0), where=error > 0)


def _reals(values, name: str) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"expected {name} as real numbers, got {array.dtype}")
    if not np.all(np.isfinite(array)):
        raise ValueError(f"expected finite {name}, got NaN or infinity")
    return array.astype(float)


def _bound(below, at_least, near, within) -> tuple[str, float, float]:
    """The relation, its bound and its tolerance, from exactly one way to state a bound."""
    if (near is None) != (within is None):
        raise ValueError("expected near and within together, got only one of them")
    given = [("<", below, "below"), ("≥", at_least, "at_least"), ("≈", near, "near")]
    given = [(relation, bound, name) for relation, bound, name in given if bound is not None]
    if len(given) != 1:
        names = ", ".join(name for _, _, name in given) or "none"
        raise ValueError(f"expected one of below, at_least or near with within, got {names}")
    relation, bound, name = given[0]
    bound, tolerance = _scalar(bound, name), _scalar(0.0 if within is None else within, "within")
    if not (math.isfinite(bound) and math.isfinite(tolerance)) or tolerance < 0:
        raise ValueError(f"expected a finite bound and within ≥ 0, got {bound} and {tolerance}")
    return relation, bound, tolerance


def _number(values, name: str) -> tuple[float, np.ndarray | None]:
    """The number itself, or the median of one number per seed with all of them."""
    if np.ndim(values) == 0:
        return _scalar(values, name), None
    array = np.asarray(values)
    if array.dtype.kind not in "iuf" or array.ndim != 1:
        raise TypeError(
            f"expected {name} as a number or a flat list of real numbers, "
            f"got shape {array.shape} of {array.dtype}"
        )
    if len(array) < SEEDS:
        raise ValueError(f"expected {name} over at least {SEEDS} seeds, got {len(array)}")
    return float(np.median(array)), array.astype(float)


def _scalar(value, name: str) -> float:
    kind = np.asarray(value).dtype.kind if np.ndim(value) == 0 else "O"
    # A truth value is not a measurement: `measured=error < 1e-3` would pass any bound below 2.
    if kind not in "iuf":
        raise TypeError(f"expected {name} as a real number, got {value!r}")
    return float(value)


def _digits(value: float) -> str:
    return f"{value:.6g}"


def _rounded(value: float, step: float, relation: str) -> str:
    """Three significant digits, more where the tolerance asks for them, none below round-off.

    Linear-algebra threads move the last digits from run to run, and strict comparison of stored
    outputs would see that, so nothing smaller than `step` is printed.
    """
    if step > 0 and abs(value) < step:
        return f"0 (to {step:.0e})"
    places = 3
    if relation == "≈" and step > 0 and math.isfinite(value):
        places = max(
            3, min(12, 1 + math.floor(math.log10(abs(value))) - math.floor(math.log10(step)))
        )
    return f"{value:.{places}g}"


def _range(spread: np.ndarray | None, step: float, relation: str) -> str:
    if spread is None:
        return ""
    low, high = (_rounded(float(edge), step, relation) for edge in (spread.min(), spread.max()))
    return f" [median of {len(spread)}, {low} to {high}]"


def _publish(line: str, record: dict) -> None:
    """Show the line; in a notebook store the record beside it."""
    # A script that never imported IPython should not pay for it.
    ipython = sys.modules.get("IPython")
    if ipython is None or ipython.get_ipython() is None:
        print(line)
        return
    from IPython.display import display

    display({"text/plain": line, MIME: record}, raw=True)
