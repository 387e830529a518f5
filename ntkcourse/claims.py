"""Statements of the book, tested where they are made.

A chapter measures a statement and calls :func:`check`. What it prints is stored in the notebook
together with a machine-readable record, and the ledger page is made from those records.
"""

import math
import re
import sys

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
