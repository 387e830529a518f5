"""What an experiment shows of a number: slopes, standard errors, false alarms, overlapping splits.

Found in :mod:`ntkcourse.claims`, whose checks take them.
"""

import math
from typing import NamedTuple

import numpy as np


class Slope(NamedTuple):
    """What :func:`slope` measured."""

    median: float
    interval: tuple[float, float] | None
    local: np.ndarray
    each: np.ndarray
    span: float

    def __str__(self) -> str:
        between = "" if self.interval is None else "[{:.2f}, {:.2f}], ".format(*self.interval)
        return f"{self.median:.2f} ({between}local {', '.join(f'{p:.2f}' for p in self.local)})"


def slope(x, y) -> Slope:
    r"""The exponent p of :math:`y \propto x^p`: least squares of log y on log x, seed by seed.

    ``y`` is (len(x), seeds), or (len(x),) for a curve without chance. Gives the ``median`` over
    seeds; the ``interval`` between two of the seeds' slopes that contains the true median with
    probability 95 % or more, whatever their law (None for fewer than six seeds); the ``local``
    slopes from each x to the next (medians), which show whether the rate has settled; and ``each``
    seed's slope; ``span`` is the last x over the first. It prints as one line. Slopes of
    three data sets or more are what a check of a rate takes.
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
    return Slope(float(np.median(each)), interval, local, each, float(x[-1] / x[0]))


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


def false_alarm(distance: float, *, tests: int = 1, samples: int | None = None) -> float:
    r"""At most this probability has one of ``tests`` true means of lying further off by chance.

    .. math:: \text{tests} \cdot P(|Z| > \text{distance})

    Z is normal, or Student's with ``samples`` - 1 degrees of freedom where the standard error
    comes from so many draws. ``distance`` is in standard errors.
    """
    if not distance > 0 or tests < 1 or (samples is not None and samples < 2):
        raise ValueError(
            "expected distance > 0, tests >= 1 and samples >= 2, "
            f"got {distance}, {tests}, {samples}"
        )
    if samples is None:
        tail = math.erfc(distance / math.sqrt(2))
    else:
        from scipy.special import stdtr

        tail = 2 * float(stdtr(samples - 1, -distance))
    return min(1.0, tests * tail)


class Split(NamedTuple):
    """What :func:`over_splits` found: a mean, half its confidence interval, a p-value."""

    mean: np.ndarray
    half_width: np.ndarray
    p: np.ndarray

    def __str__(self) -> str:
        return f"{self.mean:+.3g} ± {self.half_width:.2g} (p = {self.p:.2g})"


def over_splits(differences, *, ratio: float, level: float = 0.95) -> Split:
    r"""Mean over R random splits of one table, with the corrected resampled t-interval.

    .. math:: \bar D \pm t_{R-1}\, s \sqrt{\tfrac1R + \tfrac{n_2}{n_1}}, \qquad
              s^2 = \frac1{R-1} \sum_r (D_r - \bar D)^2

    ``differences`` is (R, ...), one split per row; ``ratio`` is :math:`n_2/n_1`, test rows per
    training row, and 0 gives the interval of independent runs. Splits of one table share rows, so
    that without the ratio the interval is far too short. p is two-sided, for the mean 0; where
    all differences are equal it is 1 if they are 0, and 0 otherwise. Nadeau and Bengio 2003.
    """
    from scipy.special import stdtr, stdtrit

    values = _reals(differences, "differences")
    if values.ndim == 0 or len(values) < 2:
        raise ValueError(f"expected two or more splits as rows, got shape {values.shape}")
    if not (math.isfinite(ratio) and ratio >= 0 and 0 < level < 1):
        raise ValueError(f"expected ratio >= 0 and level in (0, 1), got {ratio} and {level}")
    mean, degrees = values.mean(0), len(values) - 1
    error = np.sqrt((1 / len(values) + ratio) * values.var(0, ddof=1))
    t = np.divide(np.abs(mean), error, out=np.where(mean != 0, np.inf, 0.0), where=error > 0)
    half = stdtrit(degrees, (1 + level) / 2) * error
    return Split(mean, half, 2 * stdtr(degrees, -t))


def holm(p) -> np.ndarray:
    r"""Holm's adjusted p-values: reject where they are at most the level of the whole family.

    .. math:: \tilde p_{(i)} = \max_{j \le i}\ \min\bigl(1, (M - j + 1)\, p_{(j)}\bigr),
              \qquad p_{(1)} \le \dots \le p_{(M)}

    ``p`` is (..., M); each row is a family. The probability of rejecting any true hypothesis is
    then at most the level, whatever the dependence of the tests.
    """
    p = _reals(p, "p")
    if p.ndim == 0 or p.size == 0 or np.any((p < 0) | (p > 1)):
        raise ValueError(f"expected p-values in [0, 1], got {p}")
    order = np.argsort(p, axis=-1)
    steps = np.take_along_axis(p, order, -1) * np.arange(p.shape[-1], 0, -1)
    adjusted = np.minimum(np.maximum.accumulate(steps, -1), 1)
    return np.take_along_axis(adjusted, np.argsort(order, -1), -1)


def _reals(values, name: str) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"expected {name} as real numbers, got {array.dtype}")
    if not np.all(np.isfinite(array)):
        raise ValueError(f"expected finite {name}, got NaN or infinity")
    return array.astype(float)
