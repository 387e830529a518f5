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
