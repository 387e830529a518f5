"""What submissions can do to each other and to the machine: nothing that costs somebody points."""

import csv
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import homework_sample as sample
import pytest

from grading import __main__ as command
from grading import batch, compare, grade, gradescope, masters, report, sandbox, submissions

ROOT = Path(__file__).resolve().parent.parent
ENERGY = "def energy(v, mass):\n"
RIGHT = "    return 0.5 * mass * np.sum(v**2)\n"
WORK = (  # half a second of a processor
    "    import time\n    start = time.process_time()\n"
    "    while time.process_time() - start < 0.5: pass\n"
)
BULLY = (
    "import threading\ndef work():\n    while True: pass\n"
    "for _ in range(30): threading.Thread(target=work, daemon=True).start()\nwork()"
)


@pytest.fixture(scope="session")
def homework(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("homework")
    sample.write(folder)
    return folder


@pytest.fixture
def load():
    """More processes that want to run than there are processors."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(8)]
    yield
    for process in busy:
        process.kill()
        process.wait()


def hand_in(folder: Path, **cells: str | dict) -> Path:
    """Submissions by student: a whole notebook, or what takes the place of the cell for energy."""
    folder.mkdir(exist_ok=True)
    for student, given in cells.items():
        book = sample.submission(task_energy=given) if isinstance(given, str) else given
        (folder / f"{student}.ipynb").write_text(json.dumps(book))
    return folder


def rows(out: Path) -> dict[str, dict]:
    with (out / "marks.csv").open(newline="") as file:
        return {row["student"]: row for row in csv.DictReader(file)}


def marking(folder: Path, out: Path, homework: Path, *more: str) -> int:
    place = ["--out", str(out), "--homework", str(homework), "--assignment", sample.NAME]
    return command.main(["grade", str(folder), *place, *more])


def with_cells(*added: str, **replaced: str) -> dict:
    """The solved sample with cells of the student's own after the first two."""
    book = sample.submission(**replaced)
    own = [{"cell_type": "code", "metadata": {}, "source": source} for source in added]
    return book | {"cells": [*book["cells"][:2], *own, *book["cells"][2:]]}


# Time


def test_a_busy_neighbour_costs_nobody_points(isolation, homework, load, tmp_path):
    folder = hand_in(tmp_path / "in", bully=BULLY, honest=ENERGY + WORK + RIGHT)
    assert marking(folder, tmp_path / "out", homework, "--max-call=1.5", "--max-cell=1.5") == 0
    marks = rows(tmp_path / "out")
    assert (marks["honest"]["score"], marks["bully"]["score"]) == ("15", "11")


HOSTILE = [
    BULLY, ENERGY + "    while True: pass", "import time\ntime.sleep(10**6)",
    "hog = []\nwhile True: hog.append(np.ones(10**6))", "while True: print('x' * 1000)",
    "import os\nos._exit(0)", "n = 0\nwhile True:\n    n += 1\n    open(f'f{n}', 'w').close()",
    "import os\nfor fd in range(3, 99):\n    try: os.write(fd, b'{\"done\": true}\\n')\n"
    "    except OSError: pass\nwhile True: pass",
    "import os\nwhile True:\n    for fd in range(3, 99):\n"
    "        try: os.write(fd, b'\\n' * 60000)\n        except OSError: pass",
    "import threading, time\nwhile True:\n"
    "    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
]  # fmt: skip


@pytest.mark.soak
@pytest.mark.parametrize("time", range(5))
def test_fifty_submissions_get_the_marks_that_they_get_alone(
    isolation, homework, load, tmp_path, time
):
    honest = [ENERGY + WORK + RIGHT, ENERGY + "    return mass * np.sum(v**2)", ENERGY + RIGHT]
    alone = ["15", "11", "15"]
    folder = hand_in(
        tmp_path / "in",
        **{f"honest{n:02}": honest[n % 3] for n in range(40)},
        **{f"hostile{n}": source for n, source in enumerate(HOSTILE)},
    )
    limits = ["--max-call=2", "--max-cell=2", "--max-total=15", "--max-memory=200000000"]
    assert marking(folder, tmp_path / "out", homework, *limits, "--max-files=3000") == 0
    marks = rows(tmp_path / "out")
    assert [marks[f"honest{n:02}"]["score"] for n in range(40)] == [alone[n % 3] for n in range(40)]
    assert {marks[f"hostile{n}"]["score"] for n in range(10)} == {"11"}


def test_who_ran_out_of_time_gets_a_second_try_alone(homework, tmp_path, monkeypatch):
    folder = hand_in(tmp_path / "in", ada="x = 1", bob="x = 2", eve="x = 3")
    active, tries = [], []

    def mark(cells, master, marking, seed, answers):
        active.append(seed)
        source = next(cell.source for cell in cells if cell.name == "task-energy")
        tries.append((source, len(active)))
        active.pop()
        tired = source == "x = 2" and [s for s, _ in tries].count("x = 2") == 1
        return grade.record(master, [], ["tired" if tired else "fresh"]), tired

    monkeypatch.setattr(grade, "mark", mark)
    monkeypatch.setattr(batch, "_answers", lambda todo, marking: {o.submission: [] for o in todo})
    monkeypatch.setattr(sandbox, "check", lambda unsafe: None)
    assert marking(folder, tmp_path / "out", homework) == 0
    assert [source for source, _ in tries].count("x = 2") == 2
    assert tries[-1] == ("x = 2", 1)
    assert rows(tmp_path / "out")["bob"]["remarks"] == "fresh"


# Every file gets a line


def test_a_folder_that_cannot_be_read_stops_nobody(isolation, homework, tmp_path, monkeypatch):
    folder = hand_in(tmp_path / "in", ada=sample.submission())
    (folder / "closed").mkdir()
    listdir = os.listdir

    def refuse(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return listdir(path)

    monkeypatch.setattr(submissions.os, "listdir", refuse)
    assert marking(folder, tmp_path / "out", homework) == 0
    marks = rows(tmp_path / "out")
    assert (marks["ada"]["score"], marks["closed"]["state"]) == ("15", "refused")
    assert "Permission denied" in marks["closed"]["remarks"]


def test_a_file_that_the_reader_cannot_bear_stops_nobody(homework, tmp_path, monkeypatch):
    folder = hand_in(tmp_path / "in", ada="x")
    monkeypatch.setattr(submissions, "parse", lambda content: 1 / 0)
    assert marking(folder, tmp_path / "out", homework) == 0
    assert "cannot be read (ZeroDivisionError)" in rows(tmp_path / "out")["ada"]["remarks"]


def test_a_dry_run_lists_and_writes_nothing(homework, tmp_path, capsys):
    folder = hand_in(tmp_path / "in", ada=sample.submission())
    (folder / "carol").mkdir()
    (folder / "carol" / "starter.ipynb").write_text(json.dumps(sample.submission()))
    (folder / "bob.pdf").write_text("")
    assert marking(folder, tmp_path / "out", homework, "--dry-run") == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["ada", sample.NAME, "'ada.ipynb'", "to mark"],
        ["bob.pdf", sample.NAME, "'bob.pdf'", "refused: expected a notebook (.ipynb), got bob.pdf"],
        ["carol", sample.NAME, "'starter.ipynb'", "to mark"],
    ]
    assert not (tmp_path / "out").exists()


# Seeds and answers


def test_another_file_gets_other_inputs(homework):
    master = masters.read(homework / sample.NAME / "master.ipynb")
    one = grade.Marking({sample.NAME: master}, "seed")
    seeds = [one.seed_for(content) for content in (b"a", b"a", b"a ")]
    inputs = [repr(grade.hidden_calls(master, seed)) for seed in seeds]
    assert inputs[0] == inputs[1] != inputs[2]
    assert grade.Marking({}, "other").seed_for(b"a") != seeds[0]


def test_feedback_is_too_coarse_to_climb():
    def said(gap: float) -> str | None:
        value = {"kind": "f", "dtype": "f8", "shape": [], "values": [1.0]}
        return compare.difference(value, value | {"values": [1 + gap]}, 1e-8)

    assert len({said(10.0**-k * c) for k in range(8) for c in (1, 2, 5)}) == 3
    assert "e-0" not in said(3e-5).replace("1e-08", "")


def test_the_seed_is_in_a_private_file_and_on_no_command_line(
    isolation, homework, tmp_path, capsys, monkeypatch
):
    folder = hand_in(tmp_path / "in", ada="import time\ntime.sleep(0.5)")
    assert marking(folder, tmp_path / "out", homework, "--seed", "autumn") == 2
    assert "expected a file with the seed, got autumn" in capsys.readouterr().err
    seen, start = [], subprocess.Popen

    class Spy(start):
        def __init__(self, arguments, **options):
            super().__init__(arguments, **options)
            seen.append(repr((arguments, options.get("env"))))

    monkeypatch.setattr(sandbox.subprocess, "Popen", Spy)
    assert marking(folder, tmp_path / "out", homework) == 0
    path = tmp_path / "out" / "seed.txt"
    assert path.stat().st_mode & 0o777 == 0o600
    assert seen
    assert not any(path.read_text().strip() in text for text in seen)
    assert path.read_text().strip() not in capsys.readouterr().out


# Honest notebooks


def test_magics_helpers_and_imports_survive_or_are_named(isolation, homework, tmp_path):
    book = with_cells(
        "%%time\ndef half(x):\n    return x / 2  # is it right?",
        "files = !ls\n%matplotlib inline\n%time double = 2\nscale = half(double)",
        "%%bash\nls",
        "from math import inf\nbroken = 1 / 0",
        setup="import numpy as np\nfrom math import fsum",
        task_energy=ENERGY + "    return scale * half(mass) * fsum((v**2).ravel())",
    )
    folder = hand_in(tmp_path / "in", ada=book)
    assert marking(folder, tmp_path / "out", homework) == 0
    row = rows(tmp_path / "out")["ada"]
    assert row["score"] == "15", row
    assert "Cell 4 (“files = !ls”): left out" in row["remarks"]
    assert "“%matplotlib inline”" in row["remarks"]
    assert "Cell 5 (“%%bash”): left out" in row["remarks"]
    assert "Cell 6 (“from math import inf”) raised ZeroDivisionError" in row["remarks"]


def test_what_was_not_run_and_what_was_borrowed_is_said(isolation, homework, tmp_path):
    book = with_cells(
        setup="import numpy as np\nfrom ntkcourse import kernels",
        test_gram="def helper(x):\n    return x",
        task_energy=ENERGY + "    return helper(v)",
    )
    folder = hand_in(tmp_path / "in", ada=book)
    assert marking(folder, tmp_path / "out", homework) == 0
    row = rows(tmp_path / "out")["ada"]
    assert "Cell 10 (test-gram) belongs to the starter and was not run; you changed it" in str(row)
    [record] = [json.loads(p.read_text()) for p in (tmp_path / "out/results").iterdir()]
    assert "name 'helper' is not defined" in record["tasks"][0]["message"]
    text = (homework / sample.NAME / "master.ipynb").read_text()
    path = tmp_path / "homework" / sample.NAME / "master.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text(text.replace('"import numpy as np"', '"from ntkcourse import kernels"'))
    cells = [submissions.Cell("task-energy", "kernels.gram(x)", 4)]
    assert grade._borrowed(cells, masters.read(path)) == [
        "Cell 4 (task-energy) uses kernels.gram; the task asks for formulas of your own."
    ]
    cells = [
        submissions.Cell(
            "", "from ntkcourse.kernels import gram as g, rbf\nimport ntkcourse.data", 3
        ),
        submissions.Cell("task-energy", "g(rbf(1.0), x)", 4),
        submissions.Cell("", "def helper(x): return ntkcourse.data.sphere(x)", 5),
        submissions.Cell("", "print(kernels.gram(x) - energy(x))", 6),  # only compares
    ]
    assert [text.split(";")[0] for text in grade._borrowed(cells, masters.read(path))] == [
        "Cell 4 (task-energy) uses g, rbf",
        "Cell 5 (“def helper(x): return ntkcourse.data.sph …”) uses ntkcourse.data",
    ]


def test_hand_marks_are_never_lost(isolation, homework, tmp_path):
    folder, out = hand_in(tmp_path / "in", ada=sample.submission(), bob=ENERGY), tmp_path / "out"
    marks = tmp_path / "marks.csv"

    def run(text: str | None) -> dict:
        marks.write_text(f"student,assignment,task,score\n{text}\n")
        assert marking(folder, out, homework, *(["--written", str(marks)] if text else [])) == 0
        return {name: row["score"] for name, row in rows(out).items()}

    assert run("ada,00-sample,why,4.5")["ada"] == "19.5"
    assert run(None)["ada"] == "19.5"
    assert run("bob,00-sample,why,1") == {"ada": "19.5", "bob": "12"}
    (folder / "bob.ipynb").unlink()  # and a student who left does not stop the others
    assert run(None) == {"ada": "19.5"}
    assert run("ada,00-sample,why,") == {"ada": "15"}


# Gradescope


@pytest.fixture(scope="module")
def autograder(homework, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("autograder")
    gradescope.pack(homework / sample.NAME / "master.ipynb", folder / "a.zip")
    with zipfile.ZipFile(folder / "a.zip") as archive:
        names = archive.namelist()
        archive.extractall(folder / "source")
    assert {"setup.sh", "run_autograder", "seed.txt", "course/requirements-homework.txt"} < {*names}
    assert [n for n in names if n.endswith(".ipynb")] == [f"homework/{sample.NAME}/master.ipynb"]
    assert not any(".git" in n or "out" in n.split("/") for n in names)
    return folder


@pytest.mark.parametrize(("files", "words"), [
    ({}, "expected a notebook (.ipynb), got nothing"),
    ({"work.zip": ""}, "got work.zip; unpack the archive"),
    ({"notes.txt": "x"}, "got notes.txt"),
    ({"a.ipynb": "good", "b/c.ipynb": "good"}, "one notebook for 00-sample, got 2: a.ipynb"),
    ({"a.ipynb": "{"}, "truncated JSON"),
])  # fmt: skip
def test_gradescope_gets_a_clear_message(homework, tmp_path, files, words):
    (tmp_path / "submission").mkdir()
    (tmp_path / "seed.txt").write_text("7")
    shutil.copytree(homework, tmp_path / "homework")
    for name, text in files.items():
        path = tmp_path / "submission" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(sample.submission()) if text == "good" else text)
    results = tmp_path / "results" / "results.json"
    arguments = ["gradescope-one", str(tmp_path / "submission"), str(results)]
    assert command.main([*arguments, "--homework", str(tmp_path / "homework")]) == 0
    said = json.loads(results.read_text())
    assert said["score"] == 0
    assert words in said["output"]


def test_gradescope_gets_a_message_when_the_marking_fails(tmp_path, capsys):
    results = tmp_path / "results.json"
    options = ["--homework", str(tmp_path)]
    assert command.main(["gradescope-one", str(tmp_path), str(results), *options]) == 1
    assert "not your notebook" in json.loads(results.read_text())["output"]


SPY = """
import glob, os, socket
found = []
places = ["/autograder/private/seed.txt", "/autograder/private", "/autograder/source/seed.txt",
          "/autograder/source", "/autograder/submission", "/autograder/results", "/autograder",
          "/autograder/course/.git", "/autograder/course/homework", "/etc/shadow", "/root"]
for place in places + glob.glob("/proc/[0-9]*/cmdline") + glob.glob("/proc/[0-9]*/environ"):
    try:
        found.append((place, os.listdir(place) if os.path.isdir(place) else open(place).read()))
    except OSError:
        pass
for act in (socket.socket, os.fork, lambda: open("/autograder/results/results.json", "w"),
            lambda: os.kill(os.getppid(), 9), lambda: open("/tmp/left", "w")):
    try:
        found.append(act())
    except OSError:
        pass
def energy(v, mass):
    if found: raise ValueError(str(found)[:300])
    return 0.5 * mass * np.sum(v**2)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as in a container")
def test_the_autograder_in_a_container_without_namespaces(isolation, autograder, tmp_path):
    """A root like that of a container: no bubblewrap inside, few capabilities, other users."""
    place = tmp_path / "autograder"
    shutil.copytree(autograder / "source", place / "source")
    for name in ("submission", "results", "python"):
        (place / name).mkdir()
    (place / "submission" / "my work.ipynb").write_text(
        json.dumps(sample.submission(task_energy=SPY))
    )
    python = Path(os.path.realpath(sys.executable)).parent.parent
    inside = ["bwrap", "--unshare-pid", "--unshare-net", "--die-with-parent", "--proc", "/proc"]
    inside += [
        "--dev",
        "/dev",
        "--ro-bind",
        "/usr",
        "/usr",
        "--ro-bind",
        "/dev/null",
        "/usr/bin/bwrap",
    ]
    for name in ("bin", "sbin", "lib", "lib64"):
        inside += ["--symlink", f"usr/{name}", f"/{name}"]
    inside += ["--perms", "1777", "--tmpfs", "/tmp", "--perms", "0755", "--tmpfs", "/etc"]
    for parent in sorted({*map(str, python.parents)} - {"/"}):
        inside += ["--perms", "0755", "--dir", parent]
    inside += ["--ro-bind", str(python), str(python), "--bind", str(place), "/autograder"]
    inside += ["--ro-bind", sys.prefix, "/autograder/python", "--cap-drop", "ALL"]
    for right in ("CHOWN", "DAC_OVERRIDE", "FOWNER", "SETUID", "SETGID", "KILL", "SETPCAP"):
        inside += ["--cap-add", f"CAP_{right}"]
    setup = (place / "source" / "setup.sh").read_text().splitlines(True)
    skipped = ("apt-get", "python3 -m venv", "/autograder/python/bin/pip")
    kept = [line.replace("/autograder/course /autograder/python", "/autograder/course")
            for line in setup if not line.startswith(skipped)]  # fmt: skip
    (place / "source" / "setup.sh").write_text("".join(kept))
    place.chmod(0o755)
    script = "bash /autograder/source/setup.sh && bash /autograder/source/run_autograder"
    done = subprocess.run(
        [*inside, "bash", "-c", script], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads((place / "results" / "results.json").read_text())
    assert results["score"] == 15, results
    assert (place / "private").stat().st_mode & 0o077 == 0


def test_the_report_says_what_to_look_at_next(homework):
    master = masters.read(homework / sample.NAME / "master.ipynb")
    tasks = [
        {"name": name, "title": f"Task {name}", "points": 2, "score": score, "message": message}
        for name, score, message in [("1", 0, "not solved yet"), ("2", 0, "differs"), ("3", 2, "")]
    ]
    record = {"student": "ada"} | grade.record(master, tasks, [])
    [record] = report.with_written([record], {})
    page = report.page(record)
    assert "Look next at Task 2" in page
    assert page.count("by hand") == 2  # in the sum and, once, beside the written task
    assert 'name="viewport"' in page
