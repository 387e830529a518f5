"""The stored chapters are complete, in step with their sources, and written by one tool.

That running them again gives the same is nbval's part (with `book.pixels` for the pictures).
"""

import ast
import base64
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jupytext
import nbformat
import numpy as np
import pytest
import yaml
from PIL import Image

from book import ledger, notebooks, pixels

ROOT = Path(__file__).resolve().parent.parent
CHAPTERS = notebooks.chapters(ROOT)
each_chapter = pytest.mark.parametrize("source", CHAPTERS, ids=lambda path: path.stem)


@each_chapter
def test_the_stored_notebook_has_no_faults(source):
    assert notebooks.problems(source) == []


@each_chapter
def test_the_stored_notebook_is_up_to_date(source):
    assert notebooks.is_current(source, ROOT), "make notebooks"


@each_chapter
def test_colab_installs_from_the_repository_of_the_settings(source):
    url = yaml.safe_load((ROOT / "_config.yml").read_text())["repository"]["url"]
    first = next(
        c for c in nbformat.read(source.with_suffix(".ipynb"), 4).cells if c.cell_type == "code"
    )
    assert f'%pip install -q "ntkcourse[book] @ git+{url}"' in first.source
    assert 'if "google.colab" in sys.modules' in first.source
    assert "remove-cell" in first.metadata.tags


def test_there_are_chapters_and_no_stray_notebooks():
    assert CHAPTERS
    assert {p.stem for p in (ROOT / "chapters").glob("*.ipynb")} == {p.stem for p in CHAPTERS}


# The register


def test_every_measured_statement_is_in_the_register():
    assert set(ledger.records(ROOT)) <= set(ledger.register(ROOT))


def test_every_statement_of_a_finished_chapter_is_measured():
    entries, measured = ledger.register(ROOT), ledger.records(ROOT)
    finished = set(yaml.safe_load((ROOT / "chapters/claims.yml").read_text())["finished"])
    labels = re.findall(r"^\((.+)\)=$", "\n".join(p.read_text() for p in CHAPTERS), re.MULTILINE)
    assert finished <= set(labels)
    open_ones = [
        name
        for name, entry in entries.items()
        if entry["chapter"] in finished
        and entry["of"] not in measured
        and entry["verdict"] != "opinion"
        and "untested" not in entry
    ]
    assert open_ones == []


def test_every_erratum_of_a_finished_chapter_shows_both_versions():
    measured, data = ledger.records(ROOT), ledger.claims_file(ROOT)
    for name, entry in ledger.register(ROOT).items():
        if ledger.page_of(name) == "errata" and entry["chapter"] in data["finished"]:
            shown = entry.get("shown", [])
            assert shown or entry.get("untested"), f"{name}: no experiment"
            found = ledger.experiments(entry, measured)
            assert len(found) == len(shown), f"{name}: expected {shown}, got {found}"


def test_the_register_is_complete():
    names = set(ledger.register(ROOT))
    expected = {"KER": 16, "RF": 19, "NN": 13, "NTK": 17, "DU": 15, "LAZY": 13, "SEP": 7, "MF": 14}
    expected |= {"RICH": 8, "BENCH": 9, "OUT": 10, "NOT": 2, "E": 76}
    missing = {f"{k}-{i:02}" for k, count in expected.items() for i in range(1, count + 1)} - names
    assert missing == set()


def checks_of(source):
    """The calls of claims.check in the cells of a page, as syntax trees."""
    for cell in jupytext.read(source).cells:
        if cell.cell_type == "code" and "claims.check" in cell.source:
            for node in ast.walk(ast.parse(cell.source)):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "claims.check":
                    yield node, {k.arg: k.value for k in node.keywords}


def is_arithmetic_on(rival, measured):
    """Whether the rival is the measured value times, plus or minus something."""
    if isinstance(rival, ast.UnaryOp):
        return is_arithmetic_on(rival.operand, measured)
    if isinstance(rival, ast.BinOp) and ast.dump(rival) != ast.dump(measured):
        sides = rival.left, rival.right
        return any(is_arithmetic_on(side, measured) for side in sides)
    return ast.dump(without_numbers(rival)) == ast.dump(without_numbers(measured))


def without_numbers(tree):
    """What is left of 100 * (a - b) without the factor."""
    while isinstance(tree, ast.BinOp):
        rest = [s for s in (tree.left, tree.right) if not isinstance(s, ast.Constant)]
        if len(rest) != 1:
            break
        tree = rest[0]
    return tree


@each_chapter
def test_every_check_says_its_kind(source):
    without = [
        ast.unparse(call) for call, arguments in checks_of(source) if "kind" not in arguments
    ]
    assert without == []


@each_chapter
def test_no_rival_is_arithmetic_on_the_measured_value(source):
    for call, arguments in checks_of(source):
        if "rival" in arguments:
            same = is_arithmetic_on(arguments["rival"], arguments["measured"])
            assert not same, f"{source.name}: {ast.unparse(call)}"


@pytest.mark.parametrize(
    ("rival", "wrong"),
    [
        ("2 * slope", True),
        ("slope + 0.5", True),
        ("-slope", True),
        ("slope", True),
        ("10 * (a - b)", True),
        ("slope / 11 + other", True),
        ("100 * slope", True),
        ("other", False),
        ("gap(printed)", False),
        ("-1.0", False),
        ("other / 2", False),
        ("100 * (a - c)", False),
        ("other - slope_of(slope)", False),
    ],
)
def test_arithmetic_on_the_measured_value_is_recognised(rival, wrong):
    measured = "a - b" if "a - b" in rival else "slope"
    trees = (ast.parse(text, mode="eval").body for text in (rival, measured))
    assert is_arithmetic_on(*trees) == wrong


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"verdict": "fine"}, "expected verdict right .* got 'fine'"),
        ({"where": {"009": "L1"}}, "expected where in 000, .* got 009"),
        ({"statement": None}, "expected statement beside"),
        ({"where": None}, "expected where beside .* {} for a statement of this book"),
    ],
)
def test_a_register_with_a_fault_is_refused(tmp_path, change, said):
    data = yaml.safe_load((ROOT / "chapters/claims.yml").read_text())
    entry = data["statements"]["NTK-04"] | change
    data["statements"]["NTK-04"] = {k: v for k, v in entry.items() if v is not None}
    (tmp_path / "chapters").mkdir()
    (tmp_path / "chapters/claims.yml").write_text(yaml.safe_dump(data))
    with pytest.raises(ValueError, match=f"NTK-04: {said}"):
        ledger.register(tmp_path)


@pytest.mark.parametrize("name", ["E-02", "NTK-04"])
def test_only_an_erratum_has_a_sort_and_it_is_a_known_one(tmp_path, name):
    data = yaml.safe_load((ROOT / "chapters/claims.yml").read_text())
    (data["errata"] if name == "E-02" else data["statements"])[name]["sort"] = "large"
    (tmp_path / "chapters").mkdir()
    (tmp_path / "chapters/claims.yml").write_text(yaml.safe_dump(data))
    with pytest.raises(ValueError, match=f"{name}: expected sort of an erratum"):
        ledger.register(tmp_path)


def test_errata_are_counted_by_sort():
    entries = {
        "E-01": {"verdict": "erratum", "sort": "typographical"},
        "E-02": {"verdict": "erratum", "sort": "mathematical"},
        "E-03": {"verdict": "repaired", "sort": "mathematical"},
        "E-04": {"verdict": "right"},
        "E-05": {"verdict": "erratum"},
    }
    assert ledger.by_sort(entries) == " 2 mathematical, 1 typographical, 1 right after all."
    assert ledger.by_sort({"E-05": {"verdict": "erratum"}}) == ""


# The tool that writes notebooks


@pytest.fixture
def small(tmp_path):
    """A repository with one chapter that takes no time."""
    (tmp_path / "chapters").mkdir()
    (tmp_path / "ntkcourse").mkdir()
    (tmp_path / "ntkcourse/__init__.py").write_text('"""Nothing."""\n')
    (tmp_path / "ntkcourse/one.py").write_text(
        '"""Doc."""\n\nfrom ntkcourse.two import TWO\n\nONE = 1  # number\n'
    )
    (tmp_path / "ntkcourse/two.py").write_text("def two():\n    from . import three\n\nTWO = 2\n")
    (tmp_path / "ntkcourse/three.py").write_text("THREE = 3\n")
    (tmp_path / "ntkcourse/four.py").write_text("from ntkcourse import one\n\nFOUR = 4\n")
    (tmp_path / "requirements.txt").write_text("numpy==2.4.6\n")
    (tmp_path / "chapters/01-small.md").write_text(
        "---\njupytext:\n  text_representation:\n    format_name: myst\n    extension: .md\n"
        "kernelspec:\n  name: python3\n  display_name: Python 3\n---\n\n# Small\n\n"
        "```{code-cell} ipython3\nprint(1)\nprint(2)\n```\n\n"
        "```{code-cell} ipython3\nif print(3):\n    %pip install x\n"
        "    from ntkcourse import one\n```\n"
    )
    return tmp_path


def test_two_runs_give_the_same_bytes(small):
    source = small / "chapters/01-small.md"
    first, second = (notebooks.serialised(notebooks.run(source, small)) for _ in range(2))
    assert first == second
    notebooks.write(source.with_suffix(".ipynb"), first)
    assert notebooks.problems(source) == []
    assert notebooks.is_current(source, small)
    assert str(small) not in first


@pytest.mark.parametrize(
    ("file", "old", "new", "changes"),
    [
        ("chapters/01-small.md", "print(3)", "print(4)", True),
        ("chapters/01-small.md", "# Small", "# Smaller", False),
        ("ntkcourse/one.py", "ONE = 1", "ONE = 2", True),
        ("ntkcourse/two.py", "TWO = 2", "TWO = 3", True),
        ("ntkcourse/three.py", "THREE = 3", "THREE = 4", True),
        ("ntkcourse/four.py", "FOUR = 4", "FOUR = 5", False),
        ("requirements.txt", "2.4.6", "2.4.7", True),
        ("ntkcourse/one.py", '"""Doc."""', '"""Other words,\n\nmore of them."""', False),
        ("ntkcourse/one.py", "\n\n", "\n# A comment\n", False),
        ("requirements.txt", "numpy", "# a comment\nnumpy", False),
    ],
)
def test_the_key_follows_source_code_and_pins(small, file, old, new, changes):
    source = small / "chapters/01-small.md"
    before = notebooks.key(jupytext.read(source), small)
    text = (small / file).read_text()
    assert old in text
    (small / file).write_text(text.replace(old, new))
    assert (notebooks.key(jupytext.read(source), small) != before) == changes


@pytest.mark.parametrize(
    ("code", "modules"),
    [
        ("import numpy\nprint('ntkcourse')", ["__init__"]),
        ("from ntkcourse import one", ["__init__", "one", "three", "two"]),
        ("from ntkcourse.three import THREE as t", ["__init__", "three"]),
        ("import ntkcourse.two as t", ["__init__", "three", "two"]),
        ("%time x = 1\n!ls\nfrom ntkcourse import three", ["__init__", "three"]),
        # What is not to be seen counts as everything
        ("import ntkcourse", None),
        ("from ntkcourse import *", None),
        ("from ntkcourse import exported", None),
        ("from ntkcourse import three\nthree?", None),
    ],
)
def test_the_modules_that_code_reaches(small, code, modules):
    every = ["__init__", "four", "one", "three", "two"]
    found = notebooks.reached([code], small / "ntkcourse")
    assert [path.stem for path in found] == (modules or every)


def test_no_module_of_the_package_is_found_at_run_time_only():
    """Otherwise the key of a chapter could miss it."""
    for path in (ROOT / "ntkcourse").glob("*.py"):
        assert not re.search(r"import_module|__import__", path.read_text()), path.name


def test_reworded_text_keeps_the_outputs(small, monkeypatch, capsys):
    source = small / "chapters/01-small.md"
    stored = source.with_suffix(".ipynb")
    notebooks.write(stored, notebooks.serialised(notebooks.run(source, small)))
    source.write_text(source.read_text().replace("# Small", "# Smaller"))
    assert notebooks.problems(source) == ["01-small.md and 01-small.ipynb differ: make notebooks"]
    monkeypatch.setattr(notebooks, "chapters", lambda: [source])
    monkeypatch.setattr(notebooks, "is_current", lambda s, f=notebooks.is_current: f(s, small))
    monkeypatch.setattr(notebooks, "run", None)
    assert notebooks.main([]) == 0
    assert notebooks.main([]) == 0
    said = "01-small.md: only the text changed, nothing run\n01-small.md: nothing changed, nothing"
    assert capsys.readouterr().out.startswith(said)
    assert notebooks.problems(source) == []
    cells = [cell for cell in nbformat.read(stored, 4).cells if cell.cell_type == "code"]
    assert [cell.outputs[0].text for cell in cells] == ["1\n2\n", "3\n"]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.ipynb"
    path.write_text("old")
    monkeypatch.setattr(
        notebooks.os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full"))
    )
    with pytest.raises(OSError, match="disk full"):
        notebooks.write(path, "new")
    assert path.read_text() == "old"


def edited(tmp_path, change) -> list[str]:
    """The faults found in a copy of a stored chapter after `change(notebook)`."""
    wanted = notebooks.CLAIM, '"image/png"', '"text/html"'
    texts = ((source, source.with_suffix(".ipynb").read_text()) for source in CHAPTERS)
    source = next(s for s, text in texts if all(part in text for part in wanted))
    for file in (source, source.with_suffix(".ipynb")):
        shutil.copy(file, tmp_path)
    copy = tmp_path / source.name
    stored = json.loads(copy.with_suffix(".ipynb").read_text())
    change(stored)
    text = json.dumps(stored, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    copy.with_suffix(".ipynb").write_text(text)
    return notebooks.problems(copy)


def code(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def outputs(notebook, mime):
    found = [
        o["data"] for cell in code(notebook) for o in cell["outputs"] if mime in o.get("data", {})
    ]
    assert found
    return found


def strip(notebook):
    code(notebook)[-1].update(execution_count=None, outputs=[])


def error(notebook):
    fault = {"output_type": "error", "ename": "ValueError", "evalue": "", "traceback": []}
    code(notebook)[-1]["outputs"].append(fault)


def warn(notebook):
    fault = {"output_type": "stream", "name": "stderr", "text": ["UserWarning"]}
    code(notebook)[-1]["outputs"].append(fault)


def drop_record(notebook):
    outputs(notebook, notebooks.CLAIM)[0].pop(notebooks.CLAIM)


def add_widget(notebook):
    outputs(notebook, "text/html")[0][notebooks.WIDGET] = {"model_id": "0"}


def drop_alt(notebook):
    outputs(notebook, "image/png")[0]["text/plain"] = ["<Figure size 640x480 with 1 Axes>"]


def drop_html_alt(notebook):
    data = outputs(notebook, "text/html")[0]
    data["text/html"] = [re.sub(' alt="[^"]*"', "", line) for line in data["text/html"]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (strip, "not at all"),
        (error, "stored error, ValueError"),
        (warn, "a warning"),
        (drop_record, "stores no record"),
        (add_widget, "another program"),
        (drop_alt, "without alt text: figures.show"),
        (drop_html_alt, "without alt text in HTML"),
        (lambda notebook: code(notebook)[1].update(source=["pass"]), "differ"),
        (lambda notebook: notebook["cells"].pop(0), "differ"),
        (lambda notebook: notebook["metadata"].update(widgets={}), "another program"),
        (lambda notebook: code(notebook)[0].update(id="0123"), "another program"),
    ],
)
def test_a_faulty_notebook_is_reported(tmp_path, change, message):
    assert any(message in fault for fault in edited(tmp_path, change))


def test_an_untouched_copy_is_not_reported(tmp_path):
    assert edited(tmp_path, lambda notebook: None) == []


# The comparison of pictures


def png(marker=(60, 40), noise=0):
    picture = np.full((100, 200, 3), 255, dtype=np.uint8)
    picture[marker[1] : marker[1] + 6, marker[0] : marker[0] + 6] = (0, 114, 178)
    picture[:, 100] -= np.uint8(noise)
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, format="png")
    return buffer.getvalue()


def output(*pictures):
    codes = [base64.b64encode(picture).decode() for picture in pictures]
    page = "".join(f'<img src="data:image/png;base64,{code}">' for code in codes[1:])
    return [{"data": {"image/png": codes[0], "text/html": page}}]


def test_equal_pictures_and_anti_aliasing_pass():
    assert pixels.difference(output(png(), png()), output(png(), png(noise=20))) == ""


def test_a_moved_marker_in_any_frame_is_seen():
    moved = png(marker=(64, 40))
    assert "picture 1" in pixels.difference(output(png(), png()), output(moved, png()))
    assert "picture 2" in pixels.difference(output(png(), png()), output(png(), moved))


def test_a_missing_frame_and_another_size_are_seen():
    assert "2 pictures are stored" in pixels.difference(output(png(), png()), output(png()))
    small_picture = io.BytesIO()
    Image.new("RGB", (10, 10)).save(small_picture, format="png")
    assert "100.00%" in pixels.difference(output(png()), output(small_picture.getvalue()))


def test_a_line_before_the_first_part_of_a_lecture_is_refused(tmp_path):
    data = yaml.safe_load((ROOT / "chapters/claims.yml").read_text())
    data["statements"]["NTK-04"]["where"] = {"000": "L5"}
    (tmp_path / "chapters").mkdir()
    (tmp_path / "chapters/claims.yml").write_text(yaml.safe_dump(data, sort_keys=False))
    with pytest.raises(ValueError, match="NTK-04: no part of 000 holds line 5"):
        ledger.by_part(tmp_path, "000")


@pytest.mark.parametrize(
    ("code", "options", "rule"),
    [
        ("import os", [], "F401"),
        ("value = lambda: missing", ["--select", "F821"], "F821"),
        ("x = {1: 2, 1: 3}", [], "F601"),
        ("print(1)", [], None),
    ],
)
def test_code_in_notebooks_is_linted(tmp_path, code, options, rule):
    cell = nbformat.v4.new_code_cell(code)
    (tmp_path / "chapters").mkdir()
    (tmp_path / "chapters/a.ipynb").write_text(
        nbformat.writes(nbformat.v4.new_notebook(cells=[cell]))
    )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    ruff = [sys.executable, "-m", "ruff", "check", "--no-cache", *options, "."]
    done = subprocess.run(ruff, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == bool(rule)
    assert (rule or "passed") in done.stdout
