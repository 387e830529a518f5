"""Starters, comparison, whole runs and the sandbox, on the small sample."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import homework_sample as sample
import nbformat
import numpy as np
import psutil
import pytest

from grading import __main__ as command
from grading import compare, masters, release, report, sandbox, seccomp, submissions

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def homework(tmp_path_factory) -> Path:
    """A folder with the sample as its only assignment."""
    folder = tmp_path_factory.mktemp("homework")
    sample.write(folder)
    return folder


# Release


def test_release_runs_once_and_gives_the_same_bytes(homework, tmp_path):
    folder = tmp_path / "homework"
    shutil.copytree(homework, folder)
    path, build = folder / sample.NAME / "master.ipynb", tmp_path / "build"
    assert release.release(path, build).endswith("starter written")
    text = path.with_name("starter.ipynb").read_text()
    assert release.problems(path) == []
    assert release.release(path, build) == "nothing run, the starter is as it was"
    assert release.release(path, build, force=True).startswith("run in")
    assert path.with_name("starter.ipynb").read_text() == text
    notebook = nbformat.reads(text, as_version=4)
    cells = {masters.grade_id(cell): cell for cell in notebook.cells}
    assert "raise NotImplementedError()" in cells["task-energy"].source
    assert cells["written-why"].source.endswith("*Your answer here.*")
    assert "```text\n6.0\n```" in cells["expected-energy"].source
    image = (
        r"!\[A bright diagonal \\\[of two squares\\\] on a dark ground\.\]\(data:image/png;base64,"
    )
    assert re.search(image, cells["expected-gram"].source)
    assert cells["test-energy"].metadata.editable is False
    for secret in ("SOLUTION", "HIDDEN", "0.5 * mass", "draw", "wrong"):
        assert secret not in text
    assert "0.5 * mass" in (build / sample.NAME / "solved.ipynb").read_text()
    tests = json.loads((build / sample.NAME / "hidden-tests.json").read_text())
    assert [test["function"] for test in tests] == ["energy", "gram", "centred"]
    # other words run nothing; a starter edited by hand is noticed
    path.write_text(path.read_text().replace("Three tasks", "Some tasks"))
    assert release.problems(path) == ["the starter is not what the master gives: make homework"]
    assert release.release(path, build).startswith("nothing run, only the text changed")
    path.write_text(path.read_text().replace("0.5 * mass", "mass * 0.5"))
    assert release.problems(path) == ["the starter is missing or out of date: make homework"]


def test_the_command_release(homework, tmp_path, capsys, monkeypatch):
    folder = tmp_path / "homework"
    shutil.copytree(homework, folder)
    (folder / "index.md").write_text("<!-- assignments: x -->\n<!-- end -->\n")
    monkeypatch.setattr(release, "release", lambda path, build, force: "done")
    assert command.main(["release", "--homework", str(folder)]) == 0
    assert "starter.ipynb" in (folder / "index.md").read_text()
    assert command.main(["release", "--check", "--homework", str(folder)]) == 1
    assert "out of date" in capsys.readouterr().out
    assert command.main(["release", "none", "--homework", str(folder)]) == 2
    assert "expected some of 00-sample, got none" in capsys.readouterr().err


def faulty(change) -> str:
    notebook = sample.master()
    cells = {masters.grade_id(cell): cell for cell in notebook.cells}
    change(notebook, cells)
    return nbformat.writes(notebook)


def again(cell):
    return nbformat.from_dict(dict(cell, id="again"))


def change_source(name, old, new):
    def change(notebook, cells):
        assert old in cells[name].source
        cells[name].source = cells[name].source.replace(old, new)

    return change


@pytest.mark.parametrize(("change", "words"), [
    (lambda nb, cells: nb.cells.remove(cells["setup"]), "a setup cell"),
    (lambda nb, cells: nb.cells.remove(cells["test-gram"]), "expected a test cell test-gram"),
    (lambda nb, cells: nb.cells.remove(cells["task-gram"]), "expected a task gram"),
    (lambda nb, cells: nb.cells.append(again(cells["setup"])), "got setup twice"),
    (lambda nb, cells: cells["written-why"].metadata.nbgrader.update(grade_id="written-gram"),
     "got task-gram and written-gram"),
    (lambda nb, cells: nb.metadata["ntkcourse"].update(assignment="x"), "got 'x'"),
    (lambda nb, cells: nb.metadata["ntkcourse"]["wrong"].pop("gram"), "expected a wrong solution"),
    (lambda nb, cells: nb.metadata["ntkcourse"]["wrong"].update(x=[]), "no task x"),
    (lambda nb, cells: cells["test-gram"].metadata.nbgrader.update(points=-1), "number of points"),
    (change_source("test-gram", "cases = 3", "cases = 0"), "a positive int, got 0"),
    (change_source("test-gram", "cases = 3", "import os"), "got 'import os'"),
    (change_source("test-gram", "tolerance = 1e-8", ""), "expected tolerance"),
    (change_source("test-gram", "draw(rng)", "draw(n)"), "expected draw(rng)"),
    (change_source("test-gram", '"gram"', '"grams"'), "expected a function grams"),
    (change_source("test-gram", "### BEGIN HIDDEN TESTS", ""), "one block of hidden tests, got 0"),
    (change_source("task-gram", "### BEGIN SOLUTION", ""), "expected a block ### BEGIN SOLUTION"),
    (change_source("task-gram", "x @ y.T", "energy(x, 1)"), "not to use energy"),
    (change_source("task-gram", "x @ y.T", "x @ y.T + 0"), None),
    (change_source("task-gram", "np.sum(x * x)", "1"), "'np.sum(x * x)' is not in the solution"),
])  # fmt: skip
def test_a_faulty_master_is_refused(tmp_path, change, words):
    path = tmp_path / sample.NAME / "master.ipynb"
    path.parent.mkdir()
    path.write_text(faulty(change))
    if words is None:
        masters.read(path)
    else:
        with pytest.raises(masters.MasterError, match=re.escape(words)):
            masters.read(path)


# Comparison


def value(x) -> dict:
    if isinstance(x, tuple):
        return {"tuple": [value(part) for part in x]}
    return compare.sendable(np.asarray(x)) | {"dtype": np.asarray(x).dtype.str[1:]}


@pytest.mark.parametrize(("expected", "got", "words"), [
    (1.0, 1.0 + 1e-9, None), (1.0, 1, None), (2, 2.0, None), (np.eye(2), np.eye(2), None),
    (1j, 1j, None), (1j, 0.5, "differs by more than one"), (np.zeros(0), np.zeros(0), None),
    (1.0, 1.0 + 1e-7, "differs in the last digits, 1e-08 is asked"), (1e6, 1e6 + 5e-3, None),
    (np.eye(2), np.ones((2, 2)), "differs by more than one per cent at index (0, 1)"),
    (1.0, 1.005, "differs by less than one per cent"), (np.eye(2), -np.eye(2), "the wrong sign"),
    (np.arange(3.0), np.arange(3.0) / 2, "differs by a factor, the same for all entries"),
    (np.ones(3), np.array([1, np.nan, 1]), "NaN at index 1, expected finite"),
    (np.eye(2), np.ones(2), "expected an array of shape (2, 2), got an array of shape (2,)"),
    (1.0, True, "expected real numbers, got true or false"),
    (1.0, 1 + 0j, None), (1.0, 1 + 1j, "expected real numbers, got complex numbers"),
    (1.0, np.float32(1.00003), "single precision"), (1.1, np.float32(1.1), None),
    (1.0, np.ones((1, 1)), None), (np.ones(1), 1.0, None), (np.ones((2, 1)), np.ones(2), None),
    ((1.0, 2.0), (1.0, 3.0), "part 2 of the result: differs by more"),
    ((1.0, 2.0), np.array([1.0, 2.0]), None), (np.array([1.0, 2.0]), (1.0, 2.0), None),
    ((np.eye(2), np.ones((2, 2))), np.stack([np.eye(2), np.ones((2, 2))]), None),
    ((np.eye(2), np.ones(3)), np.eye(2), "part 1 of the result: expected an array of shape"),
    ((1.0, 2.0), (1.0,), "expected a tuple of 2, got a tuple of 1"),
    ((1.0, 2.0), 1.0, "expected a tuple of 2, got a number"),
    (1.0, (1.0,), None), (1.0, (1.0, 2.0), "expected a number, got an array of shape (2,)"),
])  # fmt: skip
def test_the_comparison_says_what_is_wrong_and_not_what_is_right(expected, got, words):
    said = compare.difference(value(expected), compare.checked(value(got)), 1e-8)
    assert (said is None) if words is None else words in said


@pytest.mark.parametrize("bad", [
    None, [], {}, {"tuple": 3}, {"kind": "x", "dtype": "f8", "shape": [], "values": [1]},
    {"kind": "f", "dtype": "f8", "shape": [2], "values": [1.0]},
    {"kind": "f", "dtype": "f8", "shape": [-1], "values": [1.0]},
    {"kind": "f", "dtype": "f8", "shape": [1.0], "values": [1.0]},
    {"kind": "f", "dtype": "f8", "shape": [1], "values": ["1"]},
    {"kind": "f", "dtype": "f8", "shape": [1], "values": [[1.0]]},
    {"kind": "i", "dtype": "i8", "shape": [], "values": [10**400]},
    {"tuple": [{"tuple": [{"tuple": [{"tuple": []}]}]}]},
])  # fmt: skip
def test_what_is_no_value_is_refused(bad):
    with pytest.raises(compare.MalformedError):
        compare.checked(bad)


def test_inputs_are_numbers_strings_and_arrays():
    assert compare.sendable(np.float64(2)) == 2.0
    assert compare.sendable("relu") == "relu"
    with pytest.raises(TypeError, match="numeric arrays from draw, got list"):
        compare.sendable([1])


# Whole runs


def hand_in(folder: Path, **notebooks: dict) -> Path:
    folder.mkdir(exist_ok=True)
    for student, notebook in notebooks.items():
        (folder / f"{student}.ipynb").write_text(json.dumps(notebook))
    return folder


def content(out: Path) -> dict[str, bytes]:
    return {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}


def table(out: Path) -> dict[str, dict]:
    with (out / "marks.csv").open(newline="") as file:
        return {row["student"]: row for row in csv.DictReader(file)}


def grading(folder: Path, out: Path, homework: Path, *more: str) -> list[str]:
    if "--seed" in more:  # the seed is in a file, never on the command line
        place = more.index("--seed") + 1
        file = out.parent / f"seed-{more[place]}"
        file.write_text(more[place])
        more = (*more[:place], str(file), *more[place + 1 :])
    return ["grade", str(folder), "--out", str(out), "--homework", str(homework), *more]


@pytest.mark.parametrize("count", [15, pytest.param(50, marks=pytest.mark.soak)])
def test_many_submissions_in_one_run(isolation, homework, tmp_path, count):
    folder = tmp_path / "in"
    wrong = sample.submission(task_energy="def energy(v, mass):\n    return mass * np.sum(v**2)")
    for number in range(count):
        hand_in(folder, **{f"s{number:02}": wrong if number % 5 == 0 else sample.submission()})
    start = time.monotonic()
    assert command.main(grading(folder, tmp_path / "a", homework, "--seed", "1")) == 0
    assert time.monotonic() - start < 2.4 * count
    rows = table(tmp_path / "a")
    assert [rows[f"s{n:02}"]["score"] for n in range(count)] == [
        "11" if n % 5 == 0 else "15" for n in range(count)
    ]
    # the same seed gives the same bytes, and nothing is run when nothing changed
    few = hand_in(tmp_path / "few", s00=wrong, s01=sample.submission())
    assert command.main(grading(few, tmp_path / "b", homework, "--seed", "1")) == 0
    first, second = content(tmp_path / "a"), content(tmp_path / "b")
    same = [name for name in second if name not in ("marks.csv", "seed.txt")]
    assert all(first[name] == second[name] for name in same)
    assert first["marks.csv"].startswith(b"".join(second["marks.csv"].splitlines(True)[:2]))
    start = time.monotonic()
    assert command.main(grading(folder, tmp_path / "a", homework, "--seed", "1")) == 0
    assert time.monotonic() - start < 2
    assert content(tmp_path / "a") == first


def test_only_what_changed_is_marked_anew(isolation, homework, tmp_path):
    folder, out = tmp_path / "in", tmp_path / "out"
    hand_in(folder, ada=sample.submission(), bob=sample.submission())
    assert command.main(grading(folder, out, homework)) == 0
    seed = (out / "seed.txt").read_text()
    times = {p.name: p.stat().st_mtime_ns for p in (out / "results").iterdir()}
    hand_in(folder, bob=sample.submission(task_gram=None))
    assert command.main(grading(folder, out, homework)) == 0  # without a seed: the one it had
    assert (out / "seed.txt").read_text() == seed
    changed = {p.name for p in (out / "results").iterdir() if p.stat().st_mtime_ns != times[p.name]}
    assert [name.startswith("00-sample-bob") for name in changed] == [True]
    assert {s: r["score"] for s, r in table(out).items()} == {"ada": "15", "bob": "10"}


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_goes_on_and_leaves_no_process(isolation, homework, tmp_path, how):
    folder, out = tmp_path / "in", tmp_path / "out"
    for number in range(8):
        hand_in(folder, **{f"s{number}": sample.submission()})
    slow = "import time\ntime.sleep(0.7)\n" + sample.KINETIC
    for number in range(8, 12):
        hand_in(folder, **{f"s{number}": sample.submission(task_energy=slow)})
    arguments = [sys.executable, "-m", "grading", *grading(folder, out, homework, "--seed", "3")]
    # A shell starts jobs in the background deaf to interrupts, and their children inherit that.
    listening = ["env", "--default-signal=INT", *arguments]
    process = subprocess.Popen(listening, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: len(list(out.glob("results/*.json"))) >= 3 or process.poll() is not None)
    below = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(how)
    said = process.communicate(timeout=60)[1]
    assert process.returncode != 0
    assert how == signal.SIGKILL or "goes on where this one stopped" in said
    before = {p: p.stat().st_mtime_ns for p in out.glob("results/*.json")}
    assert 3 <= len(before) < 12
    wait_until(lambda: not any(child.is_running() for child in below))
    assert command.main(arguments[3:]) == 0
    assert all(p.stat().st_mtime_ns == mtime for p, mtime in before.items())
    assert [row["score"] for row in table(out).values()] == ["15"] * 12


def wait_until(condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_marks_by_hand_are_added_and_checked(isolation, homework, tmp_path, capsys):
    folder, out = tmp_path / "in", tmp_path / "out"
    hand_in(folder, ada=sample.submission(), bob=sample.submission(task_gram="gram = 1"))
    marks = tmp_path / "marks.csv"
    marks.write_text("student,assignment,task,score\nada,00-sample,why,4.5\n")
    options = grading(folder, out, homework, "--seed", "1", "--written", str(marks))
    assert command.main(options) == 0
    rows = table(out)
    assert (rows["ada"]["score"], rows["ada"]["state"]) == ("19.5", "complete")
    assert (rows["bob"]["score"], rows["bob"]["state"]) == ("10", "by hand")
    name = report.file_name("ada", sample.NAME)
    results = json.loads((out / "gradescope" / f"{name}.json").read_text())
    assert results["score"] == 19.5 == sum(test["score"] for test in results["tests"])
    assert sum(test["max_score"] for test in results["tests"]) == 20
    page = (out / "reports" / f"{report.file_name('bob', sample.NAME)}.html").read_text()
    assert "10 of 20 points" in page
    assert "still to be marked by hand" in page
    for line, words in (("ada,00-sample,why,6", "expected 0 to 5 points"),
                        ("eve,00-sample,why,1", "expected a student"),
                        ("ada,00-sample,why,x", "expected a number")):  # fmt: skip
        marks.write_text(f"student,assignment,task,score\n{line}\n")
        assert command.main(options) == 2
        assert words in capsys.readouterr().err
    marks.write_text("student\n")
    assert command.main(options) == 2


def test_a_student_who_hands_in_twice_is_reported(isolation, homework, tmp_path, capsys):
    folder = hand_in(tmp_path / "in", ada=sample.submission(), bob=sample.submission())
    (folder / "ada").mkdir()
    (folder / "ada" / f"{sample.NAME}.ipynb").write_text(json.dumps(sample.submission()))
    assert command.main(grading(folder, tmp_path / "out", homework)) == 0
    said = "expected one notebook for 00-sample, got 2: 00-sample.ipynb, ada.ipynb"
    assert f"refused, 0 points: ada: Not marked: {said}" in capsys.readouterr().out
    rows = table(tmp_path / "out")
    assert (rows["ada"]["state"], rows["ada"]["score"], rows["bob"]["score"]) == (
        "refused",
        "0",
        "15",
    )
    assert said in rows["ada"]["remarks"]
    (folder / "ada.ipynb").unlink()  # and running again helps
    assert command.main(grading(folder, tmp_path / "out", homework)) == 0
    assert table(tmp_path / "out")["ada"]["score"] == "15"


def test_a_master_that_does_not_run_stops_the_run(isolation, tmp_path, capsys):
    path = sample.write(tmp_path / "homework")
    path.write_text(path.read_text().replace('"import numpy as np"', '"import no_such_module"'))
    folder = hand_in(tmp_path / "in", ada=sample.submission())
    assert command.main(grading(folder, tmp_path / "out", tmp_path / "homework")) == 2
    assert "the setup cell did not run: ModuleNotFoundError" in capsys.readouterr().err
    assert list((tmp_path / "out/results").iterdir()) == []


def test_wrong_orders_are_refused(homework, tmp_path, capsys):
    for arguments, words in (
        (grading(tmp_path / "none", tmp_path / "out", homework), "expected a folder"),
        (grading(tmp_path, tmp_path / "out", tmp_path), "expected masters in"),
        (grading(tmp_path, tmp_path / "out", homework, "--assignment", "x"), "expected one of"),
        (grading(Path("/usr"), tmp_path / "out", homework), "which students' code can see"),
    ):
        assert command.main(arguments) == 2
        assert words in capsys.readouterr().err


# The sandbox


def test_without_bubblewrap_nothing_runs_unless_asked_for(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(sandbox.SandboxError, match=r"expected the program bwrap.*--unsafe"):
        sandbox.check()


def python_folders() -> list[Path]:
    return list(Path(sys.executable).resolve().parents)


def test_the_fallback_has_limits_too():
    if os.geteuid() != 0:
        with pytest.raises(sandbox.SandboxError, match="expected root"):
            sandbox.check(unsafe=True)
        return
    if not all(p.stat().st_mode & 0o5 == 0o5 for p in python_folders()):
        with pytest.raises(sandbox.SandboxError, match="other users than root"):
            sandbox.check(unsafe=True)
        return
    sandbox.check(unsafe=True)
    limits = sandbox.Limits(cell=2)
    write = "import os\nopen('x', 'w').write('y')\nprint(os.getcwd())"
    run = sandbox.run(["", write], [], limits, unsafe=True)
    assert run.end is None
    assert not Path(run.output.strip()).exists()
    run = sandbox.run(["", "while True: pass"], [], limits, unsafe=True)
    assert (run.at, run.end) == (("cell", 1), "it did not finish within 2 s")


def test_jax_and_the_package_work_inside(isolation):
    cell = (
        "import jax, jax.numpy as jnp\njax.config.update('jax_enable_x64', True)\n"
        "from ntkcourse import kernels\n"
        "def f(x):\n    return kernels.gram(kernels.rbf(1.0), jnp.asarray(x))"
    )
    x = np.array([[0.0], [1.0]])
    call = {"function": "f", "seed": 0, "arguments": [compare.sendable(x)]}
    run = sandbox.run([cell], [call], sandbox.Limits())
    [got] = [m["value"] for m in run.messages if "result" in m] or [run]
    k = np.exp(-0.5)
    assert compare.difference(value(np.array([[1, k], [k, 1]])), got, 1e-12) is None


def test_a_picture_is_drawn_inside_without_complaints(isolation):
    """Fonts and the settings of the machine can be read; nothing strange stands in the report."""
    cell = (
        "import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\n"
        "ax.set_title('$\\\\Theta$')\nfig.canvas.draw()\nprint('drawn')"
    )
    run = sandbox.run([cell], [], sandbox.Limits())
    assert (run.end, run.output) == (None, "drawn\n")


def test_there_is_a_filter_for_the_processor_on_which_it_was_tried():
    assert seccomp.program("aarch64") is None
    assert len(seccomp.program("x86_64")) % 8 == 0


def test_names_are_made_printable():
    assert submissions.printable("a\x1b[31m\ud800 <object at 0x7f12345678>") == (
        "a�[31m\\ud800 <object at 0x…>"
    )
    assert report.file_name("../../x", "01-a") != report.file_name("../../y", "01-a")
    assert "/" not in report.file_name("../../x", "01-a")
