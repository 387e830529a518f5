"""The harness of the benchmarks: right numbers, right order, right page. Nothing here is timed."""

import argparse
import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import facts, measure, page, problems, scaling, worker
from benchmarks.__main__ import measure_case, merged
from benchmarks.problems import CASES

ROOT = Path(__file__).resolve().parent.parent
HERE = {side: sys.executable for side in ("ours", "machine", "current")}
"""Peers that the test environment has; neural-tangents and ott-jax need `make bench`."""
LOCAL = {"sklearn", "pot", "scipy"}


def case(name, **changes):
    found = next(c for c in CASES if c.name == name)
    return dataclasses.replace(found, **changes)


def tiny(name, **changes):
    found = case(name, **changes)
    return found, found.sizes[0] | found.quick


def test_each_case_has_inputs_and_a_function_on_each_side():
    assert len({c.name for c in CASES}) == len(CASES)
    for c in CASES:
        sides = ["ours", *c.peers] + ["machine"] * bool(c.limit)
        for side in sides:
            text = (ROOT / f"benchmarks/sides/{side}.py").read_text()
            assert f"def {c.name}(" in text or f"{c.name} = " in text, (c.name, side)
            assert set(worker.PACKAGES) >= {side}
        for size in (*c.sizes, *c.growth):
            assert {"dtype", c.axis} <= set(size)
        assert set(c.quick) <= set(c.sizes[0])


@pytest.mark.parametrize("name", [c.name for c in CASES])
def test_inputs_are_the_same_in_each_process_and_of_the_dtype_asked(name):
    _, size = tiny(name)
    first, second = (getattr(problems, name)(size) for _ in range(2))
    for key in first:
        pairs = zip(*(v if isinstance(v, list) else [v] for v in (first[key], second[key])))  # noqa: B905
        for a, b in pairs:
            np.testing.assert_array_equal(a, b)
            assert a.dtype == size["dtype"]


def test_a_run_compares_and_measures_all_sides_in_turn():
    c, size = tiny("gram")
    result = measure.run(c, size, HERE, rounds=2, patience=120)
    assert list(result["sides"]) == ["ours", "sklearn", "machine"]
    assert 0 < result["difference"] < problems.EXACT["float32"]
    for values in result["sides"].values():
        assert len(values["wall"]) == len(values["cpu"]) == 2
        assert min(values["wall"]) > 0
        assert values["peak"] > values["beyond"] >= 0
    assert result["sides"]["sklearn"]["versions"]["scikit-learn"]


def test_sides_that_differ_are_not_timed():
    c, size = tiny("gram", agree={"float32": 0.0})
    with pytest.raises(measure.DisagreementError, match="ours and sklearn differ by"):
        measure.run(c, size, HERE, rounds=1, patience=120)
    ready = {"ours": {"sample": [[1.0, float("nan")]]}, "sklearn": {"sample": [[1.0, 1.0]]}}
    with pytest.raises(measure.DisagreementError):
        measure.compare(c, size, ready)


def test_a_side_without_time_left_is_a_result_and_a_mistake_is_an_error():
    c, size = tiny("transport_plane", peers=())
    with pytest.raises(measure.GaveUpError, match="ours was ended by signal 9"):
        measure.run(c, size, HERE, rounds=1, patience=0.2)
    with pytest.raises(RuntimeError, match=r"(?s)ours failed: .*KeyError"):
        measure.run(c, {"dtype": "float64"}, HERE, rounds=1, patience=120)


def test_a_peer_that_is_ended_is_left_out(tmp_path):
    mute = tmp_path / "mute"
    mute.write_text("#!/bin/sh\nkill -9 $$\n")  # as the system does, or we: out of patience
    mute.chmod(0o755)
    c, size = tiny("transport_plane")
    result = measure.run(c, size, HERE | {"scipy": str(mute)}, rounds=1, patience=60)
    assert result["gave up"] == ["scipy"]
    assert list(result["sides"]) == ["ours", "pot"]


def test_memory_of_a_process_grows_by_what_it_holds():
    before = worker.memory("VmHWM")
    held = np.ones(worker.memory("VmHWM") // 8 + 10_000_000)
    assert worker.memory("VmHWM") - before > 70_000_000
    assert held.size


def test_samples_are_entries_and_not_sums():
    assert worker.sample([np.arange(6).reshape(2, 3)], count=3) == [[0, 2, 5]]


@pytest.mark.parametrize("power", [0.0, 1.5, 3.0])
def test_exponents_of_exact_powers(power):
    sizes = [100, 200, 400, 800]
    assert measure.exponent(sizes, [2e-6 * n**power for n in sizes]) == pytest.approx(power)


def entry(ours=(1.0, 2.0), peer=(3.0, 4.0)):
    kept = {"first": 1.0, "versions": {"numpy": "2"}, "peak": 3e9, "beyond": 2e9}
    size = case("ridge").sizes[1]
    sides = {
        "ours": kept | {"cpu": list(ours), "wall": list(ours)},
        "sklearn": kept | {"cpu": list(peer), "wall": list(peer)},
        "machine": kept | {"cpu": [0.5, 0.5], "wall": [0.5, 0.5]},
    }
    result = {"size": size, "sides": sides, "difference": 0.0}
    return {"name": "ridge", "date": "2026-01-01 00:00", "load": 0.1, "sizes": [result]}


def stored(**times):
    return {"machine": facts.machine(), "cases": [entry(**times)]}


def test_runs_are_joined_round_by_round():
    one, two = entry()["sizes"][0], entry(ours=(5.0, 6.0))["sizes"][0]
    two["sides"]["ours"]["peak"] = 4e9
    whole = merged([one, two])
    assert whole["sides"]["ours"]["cpu"] == [1, 2, 5, 6]
    assert whole["sides"]["sklearn"]["cpu"] == [3, 4, 3, 4]
    assert whole["sides"]["ours"]["peak"] == 4e9


def test_a_side_that_gave_up_in_one_run_is_left_out_of_all():
    one, two = entry()["sizes"][0], entry()["sizes"][0]
    del two["sides"]["sklearn"]
    two["gave up"] = ["sklearn"]
    whole = merged([one, two])
    assert whole["gave up"] == ["sklearn"]
    assert "sklearn" not in whole["sides"]
    assert whole["sides"]["ours"]["cpu"] == [1, 2, 1, 2]


def test_a_failure_is_a_result_of_its_case(monkeypatch):
    def fail(*arguments):
        raise RuntimeError("ours failed: a mistake")

    monkeypatch.setattr(measure, "run", fail)
    chosen = argparse.Namespace(quick=False, runs=2, rounds=1, patience=1, no_growth=False)
    found = measure_case(case("ridge"), chosen, HERE)
    assert [size["failed"] for size in found["sizes"]] == ["ours failed: a mistake"] * 2
    assert "growth" not in found
    text = page.generated(stored() | {"cases": [found]})
    assert "## Without a result" in text
    assert "float64: ours failed: a mistake" in text


def test_the_page_says_the_ratio_and_where_we_lose():
    text = page.generated(stored())
    assert "| 2.50 (2.00–3.00) |" in text  # 3 / 1 and 4 / 2
    assert "| 1 | 3.00 |" in text  # the goal, and ours over the limit: 1 / 0.5 and 2 / 0.5
    assert "Where we lose" not in text
    assert "Preliminary" not in text
    slow = page.generated(stored(ours=(6.0, 8.0)))
    assert "0.50 times as fast as scikit-learn, not 1" in slow
    partial = stored()
    partial["cases"][0]["sizes"][0]["gave up"] = ["scipy"]
    assert "SciPy did not end in time" in page.generated(partial)
    busy = stored()
    busy["cases"][0]["load"] = 3.0
    assert "**Preliminary:**" in page.generated(busy)


def test_writing_twice_changes_nothing(tmp_path):
    target = tmp_path / "how-fast.md"
    target.write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    page.write(stored(), target)
    first = target.read_text(), (tmp_path / "how-fast.svg").read_bytes()
    assert first[0].startswith("before\n")
    assert first[0].endswith("\nafter\n")
    assert "old" not in first[0]
    page.write(stored(), target)
    assert (target.read_text(), (tmp_path / "how-fast.svg").read_bytes()) == first
    target.write_text("no marks")
    with pytest.raises(ValueError, match="expected the marks of the generated part"):
        page.write(stored(), target)


def test_the_page_in_the_book_is_the_one_of_the_stored_results():
    results = ROOT / "benchmarks/results.json"
    generated = page.generated(json.loads(results.read_text()))
    assert generated in page.PAGE.read_text()


def test_scaling_on_two_virtual_devices_and_two_processes():
    found = scaling.measure(sys.executable, layouts=((1, 2), (2, 1)), rows=64)
    assert [(f["processes"], f["devices"]) for f in found] == [(1, 2), (2, 1)]
    text = "\n".join(page.scaling({"scaling": found}))
    assert "| 1 process, 2 devices |" in text
    assert "| 2 processes, 2 devices |" in text
    assert page.scaling({}) == []


def test_weight_and_blocking_scripts_of_a_page(tmp_path):
    folder = tmp_path / "chapters"
    folder.mkdir()
    (tmp_path / "a.js").write_text("x" * 100_000)
    (tmp_path / "b.png").write_bytes(bytes(5000))
    (tmp_path / "c.png").write_bytes(bytes(7000))
    (folder / "one.html").write_text(
        '<script src="../a.js?v=1"></script><script defer src="../a.js"></script>'
        '<img src="../b.png"><img loading="lazy" src="../c.png">'
        '<script src="https://example.org/far.js" async></script>'
    )
    (found,) = facts.site(tmp_path)
    assert found["blocking scripts"] == 1
    assert found["by kind"]["pictures"] == 5000
    assert 0 < found["by kind"]["scripts"] < 1000
    assert found["bytes"] == sum(found["by kind"].values())
