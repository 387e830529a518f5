"""Statements of the book, tested where they are made.

A chapter measures a statement and calls :func:`check`. What it prints is stored in the notebook
together with a machine-readable record, and the ledger page is made from those records.
"""

import math
import re
import sys

import numpy as np

from ntkcourse.evidence import Slope, Split, false_alarm, holm, over_splits, slope, standard_errors

__all__ = ["ClaimError", "Slope", "Split", "check", "false_alarm", "holm"]
__all__ += ["over_splits", "slope", "standard_errors"]

MIME = "application/vnd.ntkcourse.claim+json"
SEEDS = 10
KINDS = ("identity", "inequality", "rate", "law", "comparison")
DATA_SETS, SPAN = 3, 8
"""A rate comes from so many data sets, and from sizes whose largest is so many times the least."""


class ClaimError(AssertionError):
    """The measured value breaks its bound, or the bound is too wide to exclude the rival."""


def check(
    claim: str,
    *,
    measured,
    kind: str | None = None,
    below: float | None = None,
    at_least: float | None = None,
    near: float | None = None,
    within: float | None = None,
    rival=None,
    what: str = "",
    false_alarm: float | None = None,
) -> None:
    r"""Print the measured value of a statement beside its bound; raise if the bound fails.

    .. math::

        \text{measured} < \text{below}, \qquad \text{measured} \ge \text{at\_least}
        \qquad\text{or}\qquad |\text{measured} - \text{near}| \le \text{within}.

    ``kind`` says what sort of statement it is, and what a list of measured numbers is reduced to:

    - ``"identity"``, ``"inequality"``: the worst of all runs. An identity has a rival.
    - ``"rate"``: an exponent, from the slopes (:func:`slope`) of three or more data sets. The bound
      holds for each data set, and at twice the tolerance for the last local slopes: a rate that
      has not settled is refused. A rate has a rival, the exponent of another theory.
    - ``"law"``: a distance in standard errors or a p-value, the worst of all; ``false_alarm`` is
      the probability that a true law breaks the bound, see :func:`false_alarm`.
    - ``"comparison"``: the median over paired runs or data sets.

    Without a kind, the median of a list with one number per seed (at least ten). ``rival`` is
    what a wrong version of the statement gives in the same experiment (a printed formula, a
    dropped term): the check raises when the rival passes as well, since such a bound would prove
    nothing. ``what`` names the measured quantity in the printed line.
    """
    if not isinstance(claim, str) or not re.fullmatch(r"[A-Z]+-\d\d", claim):
        raise ValueError(f'expected the id of a statement such as "NTK-04", got {claim!r}')
    relation, bound, tolerance = _bound(below, at_least, near, within)
    _check_kind(claim, kind, rival, false_alarm, relation, tolerance)
    holds = {
        "<": lambda v: v < bound,
        "≥": lambda v: v >= bound,
        "≈": lambda v: abs(v - bound) <= tolerance,
    }[relation]
    off = {"<": lambda v: v, "≥": lambda v: -v, "≈": lambda v: abs(v - bound)}[relation]
    value, spread = _reduced(measured, "measured", kind, off)
    limit = _digits(bound) + (f" ± {_digits(tolerance)}" if relation == "≈" else "")
    step = tolerance / 10 if relation == "≈" else abs(bound) / 1000
    text = _rounded(value, step, relation)
    label = ", ".join(filter(None, (kind, what)))
    between = _range(spread, step, relation, kind)
    sentence = f"{label + ': ' if label else ''}{text}{between} {relation} {limit}"

    if not math.isfinite(value) or not holds(value):
        raise ClaimError(f"{claim} does not hold: expected {relation} {limit}, measured {value!r}")
    if kind == "rate":
        _settled(claim, measured, relation, bound, tolerance)
    record = {"claim": claim, "what": what, "measured": text, "relation": relation, "bound": limit}
    if kind is not None:
        record["kind"] = kind
    if rival is not None:
        other, _ = _reduced(rival, "rival", kind, off)  # judged as the statement is
        if math.isnan(other):
            raise ClaimError(f"{claim}: the rival is NaN, so it shows nothing about the bound")
        if math.isfinite(other) and holds(other):
            raise ClaimError(
                f"{claim}: the bound {relation} {limit} is too wide, "
                f"the rival passes it too: {other!r} beside {value!r}"
            )
        record["rival"] = _rounded(other, step, relation)
    if false_alarm is not None:
        record["false_alarm"] = f"{float(false_alarm):.0e}"
    asides = {"rival": record.get("rival"), "false alarm": record.get("false_alarm")}
    if told := ", ".join(f"{name}: {value}" for name, value in asides.items() if value):
        sentence += f"  ({told})"
    if spread is not None:
        record["range"] = between.strip()
    _publish(f"✓ {claim}  {sentence}", record)


def _worst(kind) -> bool:
    return kind in ("identity", "inequality", "rate", "law")


def _check_kind(claim, kind, rival, alarm, relation, tolerance) -> None:
    if kind is not None and kind not in KINDS:
        raise ValueError(f"expected kind as one of {', '.join(KINDS)}, got {kind!r}")
    if kind in ("identity", "rate") and rival is None:
        raise ValueError(f"{claim}: expected a rival for kind {kind!r}, got none")
    if kind == "rate" and relation == "≈" and tolerance == 0:
        raise ValueError(f"{claim}: expected within > 0 for a rate, got 0")
    if (kind == "law") != (alarm is not None):
        raise ValueError(f"{claim}: expected false_alarm with kind 'law' and no other kind")
    if alarm is not None and not 0 < _scalar(alarm, "false_alarm") <= 0.05:
        raise ValueError(f"{claim}: expected a false alarm in (0, 0.05], got {alarm}")


def _reduced(values, name, kind, off) -> tuple[float, np.ndarray | None]:
    """The number that meets the bound, with all the numbers that it was taken from."""
    if kind == "rate" and not (name == "rival" and isinstance(values, (int, float))):
        slopes = list(values) if isinstance(values, (list, tuple)) else [values]
        if len(slopes) < DATA_SETS or not all(isinstance(s, Slope) for s in slopes):
            raise TypeError(
                f"expected {name} as claims.slope(…) of {DATA_SETS} data sets or more, got {slopes}"
            )
        if min(s.span for s in slopes) < SPAN:
            raise ValueError(
                f"expected {name} over sizes from 1 to {SPAN} or more, got {slopes[0].span:.3g}"
            )
        values = np.array([s.median for s in slopes])
    elif not _worst(kind):
        return _number(values, name, DATA_SETS if kind else SEEDS)
    if np.ndim(values) == 0:
        return _scalar(values, name), None
    array = np.asarray(values)
    if array.dtype.kind not in "iuf" or array.size == 0:
        raise TypeError(f"expected {name} as real numbers, got {array.shape} of {array.dtype}")
    array = array.astype(float).ravel()
    if np.any(np.isnan(array)):
        return math.nan, array
    return float(max(array, key=off)), array


def _settled(claim, slopes, relation, bound, tolerance) -> None:
    """The exponent between the two largest sizes must be that of the statement too."""
    last = float(np.median([s.local[-1] for s in slopes]))
    if relation == "≈" and abs(last - bound) > 2 * tolerance:
        raise ClaimError(
            f"{claim}: the rate has not settled, the last local slope is {last:.3g}, "
            f"expected {_digits(bound)} ± {_digits(2 * tolerance)}"
        )


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


def _number(values, name: str, least: int) -> tuple[float, np.ndarray | None]:
    """The number itself, or the median of one number per run with all of them."""
    if np.ndim(values) == 0:
        return _scalar(values, name), None
    array = np.asarray(values)
    if array.dtype.kind not in "iuf" or array.ndim != 1:
        raise TypeError(
            f"expected {name} as a number or a flat list of real numbers, "
            f"got shape {array.shape} of {array.dtype}"
        )
    if len(array) < least:
        raise ValueError(f"expected {name} over at least {least} seeds, got {len(array)}")
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


def _range(spread: np.ndarray | None, step: float, relation: str, kind: str | None) -> str:
    if spread is None or len(spread) == 1:
        return ""
    low, high = (_rounded(float(edge), step, relation) for edge in (spread.min(), spread.max()))
    of = {"rate": "worst of {} data sets"}.get(
        kind, "worst of {}" if _worst(kind) else "median of {}"
    )
    return f" [{of.format(len(spread))}, {low} to {high}]"


def _publish(line: str, record: dict) -> None:
    """Show the line; in a notebook store the record beside it."""
    # A script that never imported IPython should not pay for it.
    ipython = sys.modules.get("IPython")
    if ipython is None or ipython.get_ipython() is None:
        print(line)
        return
    from IPython.display import display

    display({"text/plain": line, MIME: record}, raw=True)
