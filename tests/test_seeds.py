"""Checks run again under other master seeds: what is drawn anew, what is stored, what is shown."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from book import ledger, seeds
from ntkcourse.claims import MIME as CLAIM

ROOT = Path(__file__).resolve().parent.parent
PAGE = """---
jupytext:
  text_representation:
    format_name: myst
    extension: .md
kernelspec:
  name: python3
  display_name: Python 3
---

# Small

```{code-cell} ipython3
if "google.colab":
    %pip install nothing
```

```{code-cell} ipython3
import jax
import numpy as np
from ntkcourse import claims, figures
a, b = jax.random.normal(jax.random.key(0)), np.random.default_rng(0).normal()
c = np.random.default_rng([1, 2]).normal()
```

```{code-cell} ipython3
claims.check("NTK-01", kind="inequality", measured=abs(a), below=99, what="a")
claims.check("NTK-01", measured=abs(b), below=99, what="b")
claims.check("NTK-02", measured=abs(c), below=99, what="c")
claims.check("NTK-03", measured=b, near=0.12573, within=1e-5, what="only one seed")
figures.explore(None)
```

```{code-cell} ipython3
claims.check("NTK-04", measured=a - a, below=1, what="before it stops")
if b != np.random.default_rng(0).normal():
    raise AssertionError("a generator gave other numbers")
if abs(b - 0.12573) > 1e-5:
    raise RuntimeError("no luck")
claims.check("NTK-04", measured=a - a, below=1, what="after it stopped")
```

```{code-cell} ipython3
needed = 1 if abs(b - 0.12573) < 1e-5 else nothing
```

```{code-cell} ipython3
claims.check("NTK-05", measured=needed, below=2, what="needs the cell before")
```

```{code-cell} ipython3
from sklearn.datasets import make_moons
moons, _ = make_moons(4, noise=1.0, random_state=0)
claims.check("NTK-06", measured=moons[0, 0], below=99, what="moons")
```
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """The outcomes of a small page under two master seeds, each from a process of its own."""
    folder = tmp_path_factory.mktemp("seeds")
    (folder / "page.md").write_text(PAGE)
    code = (
        "import sys, json, pathlib; from book import seeds;"
        "print(json.dumps(seeds.run(pathlib.Path(sys.argv[1]), int(sys.argv[2]))))"
    )
    run = [sys.executable, "-c", code, str(folder / "page.md")]
    both = [subprocess.run([*run, m], cwd=ROOT, capture_output=True, text=True) for m in "01"]
    assert not any(done.returncode for done in both), [done.stderr for done in both]
    return [json.loads(done.stdout.splitlines()[-1]) for done in both]


def test_seed_0_is_the_book_and_another_draws_other_numbers(outcomes):
    stored, other = outcomes
    assert [o["claim"] for o in stored] == [o["claim"] for o in other]
    assert all(outcome["held"] for outcome in stored)
    assert not other[3]["held"]
    for i in (0, 1, 2, -1):  # of JAX, of NumPy, of scikit-learn
        assert stored[i]["held"]
        assert other[i]["held"]
        assert stored[i]["measured"] != other[i]["measured"]


def test_a_failure_says_why_and_the_rest_goes_on(outcomes):
    failed = outcomes[1][3]
    assert failed["why"].startswith("NTK-03 does not hold: expected ≈ 0.12573 ± 1e-05, measured")
    assert float(failed["measured"]) != 0
    before, after, needy, last = outcomes[1][4:]
    assert before["what"] == "before it stops"
    assert before["held"]
    assert after["why"] == "cell 3 stopped: RuntimeError: no luck"
    assert needy["why"].startswith("cell 5 stopped: NameError")
    assert last["held"]


def test_rows_and_failures_count_what_held(outcomes, tmp_path):
    results = {"04-ntk": {"key": "k", "seeds": dict(zip("01", outcomes, strict=True))}}
    (tmp_path / "chapters").mkdir()
    (tmp_path / seeds.STORE).write_text(seeds.serialised(results))
    assert seeds.stored(tmp_path) == results
    rows = seeds.rows(results["04-ntk"]["seeds"])
    assert [row["others"][0]["held"] for row in rows] == [1, 1, 1, 0, 1, 0, 0, 1]
    lines = seeds.failures(tmp_path)
    assert len(lines) == 3
    assert any("NTK-03 only one seed: 0/1" in line for line in lines)
    assert any("NTK-04 after it stopped: 0/1; cell 3 stopped" in line for line in lines)
    assert seeds.stored(tmp_path / "nothing") == {}


def test_the_page_counts_what_held_and_marks_what_did_not(outcomes, tmp_path):
    (tmp_path / "chapters").mkdir()
    results = {"04-ntk": {"key": "k", "seeds": dict(zip("01", outcomes, strict=True))}}
    (tmp_path / seeds.STORE).write_text(seeds.serialised(results))
    page = ledger.Seeds.__new__(ledger.Seeds)
    env = SimpleNamespace(srcdir=str(tmp_path), note_dependency=lambda _: None)
    page.state = SimpleNamespace(document=SimpleNamespace(settings=SimpleNamespace(env=env)))
    sentence, lines = page.run()
    assert sentence.astext() == (
        "8 checks, run again under up to 1 other master seeds: 5 held under every one."
    )
    assert [line["classes"] for line in lines].count(["missed"]) == 3
    assert "NTK-03 only one seed, ≈ 0.12573 ± 1e-05: 0 of 1." in lines[3].astext()
    assert "<circle" in lines[3].astext()
    assert "<circle" not in lines[5].astext()  # its cell stopped: there is no value


def test_the_strip_shows_all_values():
    row = {"measured": "0.5", "others": [{"measured": m} for m in ("0 (to 1e-13)", "1", "nan")]}
    picture = ledger.strip(row)
    assert picture.count("<circle") == 2
    assert 'cx="4.0"' in picture
    assert 'cx="96.0"' in picture
    assert "M50.0 1" in picture
    assert "stored 0.5; others from 0 to 1" in picture
    assert ledger.strip({"others": []}) == ""


def test_what_is_stored_belongs_to_checks_of_the_book():
    known = ledger.register(ROOT)
    for entry in seeds.stored(ROOT).values():
        assert {o["claim"] for outcomes in entry["seeds"].values() for o in outcomes} <= set(known)


def test_a_stopped_command_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    (tmp_path / "chapters").mkdir()
    for name in ("one", "two"):
        (tmp_path / f"chapters/{name}.md").write_text(PAGE)
    ran = []

    def started(name, master, _):
        ran.append((name, master))
        if ran == [("one", 0), ("one", 1), ("two", 0)]:  # the third run dies
            return None
        return [{"claim": "NTK-01", "what": "", "measured": "1", "held": True}]

    monkeypatch.setattr(seeds, "ROOT", tmp_path)
    monkeypatch.setattr(seeds, "started", started)
    monkeypatch.setattr(seeds.notebooks, "key", lambda _: "k")
    sources = sorted((tmp_path / "chapters").glob("*.md"))
    monkeypatch.setattr(seeds.notebooks, "chapters", lambda: sources)
    monkeypatch.setattr(seeds, "stored", lambda read=seeds.stored: read(tmp_path))
    assert seeds.main(["--count", "1", "--jobs", "1"]) == 1
    assert len(ran) == 4
    assert seeds.main(["--count", "1", "--jobs", "1"]) == 0
    assert ran[4:] == [("two", 0)]
    assert seeds.main(["--count", "2", "--jobs", "1", "two"]) == 0
    assert ran[5:] == [("two", 2)]
    assert "0 runs left" in capsys.readouterr().out


def test_a_change_of_code_that_moves_no_number_keeps_what_other_seeds_gave(tmp_path, monkeypatch):
    source = tmp_path / "page.md"
    record = {"claim": "NTK-01", "what": "", "measured": "1", "relation": "<", "bound": "2"}
    cells = [
        {"outputs": [{"data": {"text/plain": ["1"]}}]},
        {"outputs": [{"data": {CLAIM: record}}]},
    ]
    source.with_suffix(".ipynb").write_text(json.dumps({"cells": [{"source": ""}, *cells]}))
    monkeypatch.setattr(seeds.notebooks, "is_current", lambda _: True)
    assert seeds.unchanged(source, [{"held": True, **record}])
    assert not seeds.unchanged(source, [{"held": True, **record, "bound": "3"}])
    assert not seeds.unchanged(source, [])
    monkeypatch.setattr(seeds.notebooks, "is_current", lambda _: False)
    assert not seeds.unchanged(source, [{"held": True, **record}])
