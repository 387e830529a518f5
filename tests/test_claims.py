"""`claims.check`: what it prints, what it stores, and above all when it refuses."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from ntkcourse import claims
from ntkcourse.claims import ClaimError, check


@pytest.mark.parametrize(
    ("bound", "line"),
    [
        ({"below": 4.0}, "✓ NTK-04  2.13 < 4"),
        ({"at_least": 2}, "✓ NTK-04  2.13 ≥ 2"),
        ({"near": 2.0, "within": 0.2}, "✓ NTK-04  2.13 ≈ 2 ± 0.2"),
    ],
)
def test_prints_one_line_and_returns_nothing(capsys, bound, line):
    assert check("NTK-04", measured=2.134, **bound) is None
    assert capsys.readouterr().out == line + "\n"


def test_names_the_quantity_and_the_rival(capsys):
    check("NTK-04", measured=jnp.float32(2.134), below=4, rival=np.float64(28.44), what="largest z")
    assert capsys.readouterr().out == "✓ NTK-04  largest z: 2.13 < 4  (rival: 28.4)\n"


@pytest.mark.parametrize(
    ("measured", "bound"),
    [
        (4.0, {"below": 4.0}),
        (np.nextafter(2.0, 0), {"at_least": 2.0}),
        (2.21, {"near": 2.0, "within": 0.2}),
        (1.79, {"near": 2.0, "within": 0.2}),
        (np.nan, {"below": 4.0}),
        (np.nan, {"at_least": 4.0}),
        (np.nan, {"near": 0.0, "within": 1.0}),
        (np.inf, {"at_least": 4.0}),
        (-np.inf, {"below": 4.0}),
        ([1.0] * 9 + [np.nan], {"below": 4.0}),
    ],
)
def test_a_broken_bound_raises(capsys, measured, bound):
    with pytest.raises(ClaimError, match="NTK-04 does not hold: expected"):
        check("NTK-04", measured=measured, **bound)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("rival", [3.9, [3.9] * 10])
def test_a_rival_that_passes_raises(rival):
    with pytest.raises(ClaimError, match="too wide"):
        check("NTK-04", measured=2.0, below=4.0, rival=rival)


def test_a_rival_that_is_nan_shows_nothing():
    with pytest.raises(ClaimError, match="rival is NaN"):
        check("NTK-04", measured=2.0, below=4.0, rival=float("nan"))


def test_a_rival_that_diverges_fails_as_it_should(capsys):
    check("NTK-04", measured=2.0, below=4.0, rival=float("inf"))
    assert "(rival: inf)" in capsys.readouterr().out


def test_many_seeds_give_median_and_range(capsys):
    check("NN-11", measured=np.linspace(-0.55, -0.45, 11), near=-0.5, within=0.1)
    assert capsys.readouterr().out == "✓ NN-11  -0.5 [median of 11, -0.55 to -0.45] ≈ -0.5 ± 0.1\n"


def test_the_median_decides():
    check("NN-11", measured=[1.0] * 9 + [100.0], below=2.0)
    with pytest.raises(ClaimError):
        check("NN-11", measured=[1.0] * 4 + [100.0] * 6, below=2.0)


@pytest.mark.parametrize("measured", [3.1e-16, -4.4e-16, 0.0])
def test_round_off_is_not_printed(capsys, measured):
    check("KER-02", measured=measured, below=1e-10)
    assert capsys.readouterr().out == "✓ KER-02  0 (to 1e-13) < 1e-10\n"


def test_a_tight_tolerance_shows_its_digits(capsys):
    check("RF-06", measured=0.78272461, near=0.7827, within=1e-4)
    assert capsys.readouterr().out == "✓ RF-06  0.78272 ≈ 0.7827 ± 0.0001\n"


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (ValueError, "expected the id", {"claim": "ntk4", "below": 1}),
        (ValueError, "expected the id", {"claim": 4, "below": 1}),
        (ValueError, "got none", {}),
        (ValueError, "got below, at_least", {"below": 1, "at_least": 0}),
        (ValueError, "near and within together", {"near": 1.0}),
        (ValueError, "near and within together", {"below": 1.0, "within": 0.1}),
        (ValueError, "finite bound", {"below": float("nan")}),
        (ValueError, "finite bound", {"near": 1.0, "within": float("inf")}),
        (ValueError, "within ≥ 0", {"near": 1.0, "within": -0.1}),
        (TypeError, "measured as a real number", {"measured": True, "below": 1}),
        (TypeError, "measured as a real number", {"measured": "0.5", "below": 1}),
        (TypeError, "measured as a real number", {"measured": 1j, "below": 1}),
        (TypeError, "measured as a real number", {"measured": None, "below": 1}),
        (TypeError, "below as a real number", {"below": "1"}),
        (TypeError, "flat list", {"measured": np.zeros((4, 5)), "below": 1}),
        (ValueError, "at least 10 seeds, got 3", {"measured": [0.1, 0.2, 0.3], "below": 1}),
        (TypeError, "rival as a real number", {"below": 1, "rival": True}),
    ],
)
def test_bad_arguments_say_what_was_expected(user, error, message, arguments):
    arguments = {"claim": "NTK-04", "measured": 0.5} | arguments
    with pytest.raises(error, match=message):
        check(arguments.pop("claim"), **arguments)


def test_a_notebook_stores_the_record(monkeypatch):
    import IPython
    import IPython.display

    shown = []
    monkeypatch.setattr(IPython, "get_ipython", lambda: object())
    monkeypatch.setattr(IPython.display, "display", lambda data, raw: shown.append((data, raw)))
    check("NTK-04", measured=2.134, below=4.0, rival=28.44, what="largest z")
    [(data, raw)] = shown
    assert raw
    assert data["text/plain"] == "✓ NTK-04  largest z: 2.13 < 4  (rival: 28.4)"
    assert data[claims.MIME] == {
        "claim": "NTK-04",
        "what": "largest z",
        "measured": "2.13",
        "relation": "<",
        "bound": "4",
        "rival": "28.4",
    }


X = np.array([4.0, 16.0, 64.0, 256.0])


def test_slope_is_the_least_squares_line_of_the_logarithms():
    y = np.exp(np.random.default_rng(0).normal(size=(4, 12)))
    measured = claims.slope(X, jnp.asarray(y))
    expected = [scipy.stats.linregress(np.log(X), np.log(column)).slope for column in y.T]
    np.testing.assert_allclose(measured.each, expected, rtol=1e-12)
    assert measured.median == pytest.approx(np.median(expected), rel=1e-12)


def test_local_slopes_show_a_rate_that_has_not_settled():
    y = np.where(X < 50, 10 * X**-0.25, 10 * 16**-0.25 * (X / 16) ** -1.0)
    measured = claims.slope(X, y[:, None] * np.geomspace(1, 2, 10)[None])
    np.testing.assert_allclose(measured.local, [-0.25, -1, -1], rtol=1e-12)
    assert str(measured) == "-0.77 ([-0.77, -0.77], local -0.25, -1.00, -1.00)"
    assert str(claims.slope(X, y)) == "-0.77 (local -0.25, -1.00, -1.00)"


@pytest.mark.parametrize("seeds", [6, 10, 11, 25])
def test_the_interval_is_exact_and_the_next_one_in_is_too_narrow(seeds):
    slopes = np.random.default_rng(1).permutation(np.arange(seeds) - 3.0)
    low, high = claims.slope(X, X[:, None] ** slopes).interval
    # how often seeds of a law with median 0 have that many on either side of it
    cover = lambda k: 1 - 2 * scipy.stats.binom.cdf(k, seeds, 0.5)  # noqa: E731
    outside = round(low + 3)
    assert high == pytest.approx(seeds - 4 - outside)
    assert cover(outside) >= 0.95 > cover(outside + 1)


def test_few_seeds_have_no_interval():
    assert claims.slope(X, X[:, None] ** np.arange(5.0)).interval is None
    assert claims.slope(X, X**2).interval is None
    assert claims.slope(X, X**2).each == pytest.approx([2.0])


def test_standard_errors_are_those_of_a_t_test():
    samples = np.random.default_rng(2).normal(size=(30, 3, 4)) + 1
    expected = np.linspace(0, 2, 12).reshape(3, 4)
    t = scipy.stats.ttest_1samp(samples, expected).statistic
    np.testing.assert_allclose(
        claims.standard_errors(jnp.asarray(samples), expected), np.abs(t), rtol=1e-12
    )
    np.testing.assert_allclose(
        claims.standard_errors(samples, 1), claims.standard_errors(samples, np.ones((3, 4)))
    )


def test_equal_samples_are_exactly_right_or_infinitely_wrong():
    np.testing.assert_array_equal(
        claims.standard_errors(np.ones((5, 2)), np.array([1.0, 1.5])), [0, np.inf]
    )


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (ValueError, "increasing x > 0", lambda: claims.slope([1, 1], [1, 2])),
        (ValueError, "increasing x > 0", lambda: claims.slope([0, 1], [1, 2])),
        (ValueError, "at least two", lambda: claims.slope([1], [1])),
        (ValueError, r"shape \(2, seeds\), got shape \(3, 2\)",
         lambda: claims.slope([1, 2], np.ones((3, 2)))),
        (ValueError, "expected y > 0, .* got -1.0", lambda: claims.slope([1, 2], [1, -1])),
        (ValueError, "finite y", lambda: claims.slope([1, 2], [1, np.nan])),
        (TypeError, "y as real numbers", lambda: claims.slope([1, 2], [True, True])),
        (ValueError, "two or more samples", lambda: claims.standard_errors([1.0], 1)),
        (ValueError, r"expected shape \(2,\), got expected \(3,\)",
         lambda: claims.standard_errors(np.ones((4, 2)), np.ones(3))),
        (ValueError, "finite samples", lambda: claims.standard_errors([1.0, np.inf], 1)),
    ],
)  # fmt: skip
def test_bad_measurements_say_what_was_expected(user, error, message, call):
    with pytest.raises(error, match=message):
        call()


def rates(*exponents, bend=0.0):
    """Slopes of noiseless curves, one per data set; the last point is off by a factor."""
    factor = np.array([1, 1, 1, np.exp(bend)])
    return [claims.slope(X, X**p * factor) for p in exponents]


def test_a_rate_is_judged_by_its_worst_data_set(capsys):
    check(
        "NTK-05", kind="rate", measured=rates(-0.5, -0.52, -0.47), near=-0.5, within=0.05, rival=-1
    )
    line = (
        "✓ NTK-05  rate: -0.47 [worst of 3 data sets, -0.52 to -0.47] ≈ -0.5 ± 0.05  (rival: -1)\n"
    )
    assert capsys.readouterr().out == line
    with pytest.raises(ClaimError, match="does not hold"):
        check(
            "NTK-05",
            kind="rate",
            measured=rates(-0.5, -0.5, -0.6),
            near=-0.5,
            within=0.05,
            rival=-1,
        )


def test_a_rate_that_has_not_settled_is_refused():
    bent = rates(-0.5, -0.5, -0.5, bend=0.2)  # the slopes are within the tolerance
    assert max(abs(s.median + 0.5) for s in bent) < 0.06
    with pytest.raises(ClaimError, match="has not settled"):
        check("NTK-05", kind="rate", measured=bent, near=-0.5, within=0.06, rival=-1.0)


def test_the_rival_of_a_rate_may_be_measured_too():
    with pytest.raises(ClaimError, match="too wide"):
        check("NTK-05", kind="rate", measured=rates(-1, -1, -1), near=-1, within=0.6,
              rival=rates(-0.5, -0.5, -0.5))  # fmt: skip


def test_identities_and_inequalities_hold_in_every_run(capsys):
    check("NTK-05", kind="inequality", measured=[0.2, 0.9], below=1.0)
    assert capsys.readouterr().out == "✓ NTK-05  inequality: 0.9 [worst of 2, 0.2 to 0.9] < 1\n"
    check("NTK-05", kind="inequality", measured=jnp.array([[2.0, 3.0]]), at_least=1.5)
    check("NTK-05", kind="identity", measured=[1.0, 1.05], near=1, within=0.1, rival=[1.0, 1.2])
    for kind in ("identity", "inequality"):
        with pytest.raises(ClaimError, match="does not hold"):
            check("NTK-05", kind=kind, measured=[0.1] * 20 + [1.1], below=1.0, rival=2.0)
        with pytest.raises(ClaimError, match="does not hold"):
            check("NTK-05", kind=kind, measured=[0.1, np.nan], below=1.0, rival=2.0)


def test_a_law_says_how_often_a_true_one_fails(capsys):
    alarm = claims.false_alarm(4.0, tests=10)
    check("NTK-05", kind="law", measured=[1.0, 3.0], below=4.0, false_alarm=alarm, rival=9.0)
    assert "(rival: 9, false alarm: 6e-04)" in capsys.readouterr().out


def test_a_comparison_is_the_median_over_data_sets(capsys):
    check("BENCH-01", kind="comparison", measured=[0.1, 0.3, 0.2], at_least=0.05)
    assert "comparison: 0.2 [median of 3, 0.1 to 0.3] ≥ 0.05" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (ValueError, "kind as one of identity", {"kind": "fact"}),
        (ValueError, "a rival for kind 'identity'", {"kind": "identity"}),
        (ValueError, "a rival for kind 'rate'", {"kind": "rate", "measured": rates(1, 1, 1)}),
        (TypeError, "of 3 data sets", {"kind": "rate", "measured": rates(1, 1), "rival": 2}),
        (TypeError, "of 3 data sets", {"kind": "rate", "measured": [1.0] * 12, "rival": 2}),
        (ValueError, "false_alarm with kind 'law'", {"kind": "law"}),
        (ValueError, "false_alarm with kind 'law'", {"kind": "comparison", "false_alarm": 0.01}),
        (ValueError, r"a false alarm in \(0, 0.05\]", {"kind": "law", "false_alarm": 0.5}),
        (ValueError, "at least 3 seeds", {"kind": "comparison", "measured": [1.0, 2.0]}),
        (TypeError, "measured as real numbers", {"kind": "inequality", "measured": []}),
    ],
)
def test_a_kind_asks_for_what_it_needs(error, message, arguments):
    with pytest.raises(error, match=message):
        check("NTK-04", **{"measured": 0.5, "below": 4.0} | arguments)


def test_a_rate_needs_a_range_of_sizes():
    short = [claims.slope([1, 2, 4], np.array([1, 2, 4.0]))] * 3
    with pytest.raises(ValueError, match="from 1 to 8 or more, got 4"):
        check("NTK-04", kind="rate", measured=short, near=1, within=0.1, rival=2)


@pytest.mark.parametrize("samples", [None, 2, 10])
def test_false_alarms_are_those_of_the_law(samples):
    law = scipy.stats.norm if samples is None else scipy.stats.t(samples - 1)
    expected = 3 * 2 * law.sf(4.0)
    assert claims.false_alarm(4.0, tests=3, samples=samples) == pytest.approx(expected, rel=1e-9)
    assert claims.false_alarm(0.1, tests=30, samples=samples) == 1
    with pytest.raises(ValueError, match="distance > 0"):
        claims.false_alarm(-1.0)


def test_the_corrected_interval_is_a_t_interval_with_another_variance():
    values = np.random.default_rng(3).normal(0.4, 1, (12, 3))
    plain = claims.over_splits(values, ratio=0.0, level=0.9)
    oracle = scipy.stats.ttest_1samp(values, 0.0)
    low, high = oracle.confidence_interval(0.9)
    np.testing.assert_allclose(plain.mean - plain.half_width, low)
    np.testing.assert_allclose(plain.mean + plain.half_width, high)
    np.testing.assert_allclose(plain.p, oracle.pvalue)
    # nine tenths to train: 1/R + 1/9 in place of 1/R
    corrected = claims.over_splits(values, ratio=1 / 9, level=0.9)
    np.testing.assert_allclose(corrected.half_width / plain.half_width, (1 + 12 / 9) ** 0.5)
    t = oracle.statistic / (1 + 12 / 9) ** 0.5
    np.testing.assert_allclose(corrected.p, 2 * scipy.stats.t.sf(np.abs(t), 11))


def test_the_corrected_interval_covers_the_mean_of_correlated_splits():
    # D_r = common + own: with equal correlation and normal laws the t-law is exact
    rng, ratio = np.random.default_rng(4), 0.5  # rho / (1 - rho)
    values = rng.normal(size=(1, 4000)) * ratio**0.5 + rng.normal(size=(8, 4000))
    share = np.mean(claims.over_splits(values, ratio=ratio).p <= 0.05)
    naive = np.mean(claims.over_splits(values, ratio=0.0).p <= 0.05)
    spread = (0.05 * 0.95 / 4000) ** 0.5
    assert abs(share - 0.05) < 4 * spread
    assert naive > 0.3


def test_equal_splits_have_no_doubt():
    found = claims.over_splits(np.array([[0.0, 2.0]] * 3), ratio=1.0)
    assert found.half_width.tolist() == [0, 0]
    assert found.p.tolist() == [1, 0]


def test_holm_adjusts_as_its_definition_says():
    rng = np.random.default_rng(5)
    for p in (*rng.random((20, 6)) ** 3, np.array([0.01, 0.01, 0.5]), np.array([1.0])):
        adjusted, m = claims.holm(p), len(p)
        for level in (*adjusted[adjusted < 1], 0.01, 0.05, 0.3):
            rejected = set()
            for step, i in enumerate(np.argsort(p, kind="stable")):
                if p[i] * (m - step) > level:
                    break
                rejected.add(i)
            assert {i for i in range(m) if adjusted[i] <= level} == rejected


def test_holm_takes_families_in_rows():
    p = np.random.default_rng(6).random((4, 5))
    np.testing.assert_array_equal(claims.holm(p), [claims.holm(row) for row in p])


@pytest.mark.parametrize(
    ("message", "call"),
    [
        ("expected two or more splits", lambda: claims.over_splits([1.0], ratio=1.0)),
        ("expected ratio >= 0", lambda: claims.over_splits([1.0, 2.0], ratio=-1.0)),
        ("expected ratio >= 0", lambda: claims.over_splits([1.0, 2.0], ratio=1.0, level=1.0)),
        ("expected p-values", lambda: claims.holm([0.2, 1.2])),
        ("expected p-values", lambda: claims.holm(0.2)),
    ],
)
def test_bad_splits_and_p_values_say_what_was_expected(message, call):
    with pytest.raises(ValueError, match=message):
        call()
