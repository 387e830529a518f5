"""Attacks by somebody who knows the student's pages and the instructor's guide, not the suite.

Those with code are marked in one run, on the small assignment of `homework_sample`: 4 points for
energy, 5 for gram, 6 for centre. The others are files, names, and limits that no code has to run
for.
"""

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import homework_sample as sample
import pytest

from grading import __main__ as command
from grading import channel, compare, group, meter, sandbox, submissions
from grading.sandbox import Limits

ROOT = Path(__file__).resolve().parent.parent
ENERGY = "def energy(v, mass):\n"
RIGHT = "    return 0.5 * mass * np.sum(v**2)\n"
FULL, WITHOUT = 15, 11

# What takes the place of the cell for energy, the points it deserves, words of the message
CELLS = {
    # A trap in the box for the process that follows: it must find an empty one.
    "leaves-a-trap": (
        "import os\nprint('BOX', os.listdir('.'), os.listdir('/dev/shm'))\n" + ENERGY
        + "    for name in ('numpy.py', 'sitecustomize.py', 'usercustomize.py', 'x.pth',\n"
        "                 'matplotlibrc', '.pythonrc', '/dev/shm/x'):\n"
        "        open(name, 'w').write('raise SystemExit')\n    os._exit(0)",
        WITHOUT, "its process ended",
    ),
    "stops-itself": (
        "import os, signal\ntry: os.kill(1, signal.SIGSTOP)\nexcept OSError: pass\n"
        "os.kill(os.getpid(), signal.SIGSTOP)",
        WITHOUT, "did not finish within 1 s",
    ),
    "name-of-a-process": (
        "import ctypes\nctypes.CDLL(None).prctl(15, b') R 1 1 (\\n9 9', 0, 0, 0)\n"
        + ENERGY + RIGHT,
        FULL, "right",
    ),
    "pipes-that-do-not-wait": (
        "import fcntl, os\nfor fd in range(256):\n"
        "    try: fcntl.fcntl(fd, fcntl.F_SETFL, os.O_NONBLOCK)\n"
        "    except OSError: pass\n" + ENERGY + RIGHT,
        None, "",  # its own end of the pipes: whether it reads in time is chance
    ),
    "largest-numbers": (
        "def gram(x, y):\n    return np.full((4, 2), 1.7e308), -1.7e308\n" + ENERGY
        + "    return -1.7e308",
        WITHOUT, "differs by more than one per cent",
    ),
    "subnormal-numbers": (ENERGY + "    return 5e-324", WITHOUT, "differs by more"),
    "name-of-a-class": (
        "class Text(str):\n"
        "    def __getitem__(self, _): return self\n"
        "    def __repr__(self): return '0}}\\n{\"done\": true}\\n'\n"
        "class Meta(type):\n    __name__ = property(lambda _: Text('x'))\n"
        "class Thing(metaclass=Meta): pass\n" + ENERGY + "    return Thing()",
        WITHOUT, "",
    ),
    "endless-generators": (
        "def endless():\n    while True: yield endless()\n" + ENERGY + "    return endless()",
        WITHOUT, "expected a number",
    ),
    "audit-hook": (
        "import sys\ndef hook(event, _):\n"
        "    if event in ('compile', 'exec'): raise RuntimeError('no')\n" + ENERGY + RIGHT
        + "\nsys.addaudithook(hook)",
        4, "right",  # it stops the cells that follow, which are its author's own
    ),
    "import-hook": (
        "import sys\nclass Finder:\n    def find_spec(self, *_): raise SystemExit\n"
        "sys.meta_path[:] = [Finder()]\nsys.path_hooks.clear()\nsys.path.clear()\n"
        + ENERGY + RIGHT,
        FULL, "right",
    ),
    "terminal-escapes": (
        "text = '\\x1b]0;owned\\x07\\x1b[2J\\x9b31m\\u061c\\u202e\\u2028\\ufeff\\U000e0041'\n"
        "print(text)\n" + ENERGY + "    raise ValueError(text + 'ESCAPED')",
        WITHOUT, "ESCAPED",
    ),
    "writes-to-proc": (
        "import glob, os\nfor path in glob.glob('/proc/self/*') + glob.glob('/proc/sys/*/*'):\n"
        "    try: os.close(os.open(path, os.O_WRONLY)); print('OPENED', path)\n"
        "    except OSError: pass\n" + ENERGY + RIGHT,
        FULL, "right",
    ),
    "special-files": (
        "import os\nfor act in (lambda: os.mkfifo('f'), lambda: os.mknod('n', 0o20666, 0x103),\n"
        "            lambda: os.symlink('/', 's'), lambda: os.chmod('/box', 0),\n"
        "            lambda: os.rename('/box', '/dev/shm/x'), lambda: os.rmdir('/box'),\n"
        "            lambda: os.chroot('/box'), lambda: os.setxattr('.', 'user.a', b'x')):\n"
        "    try: act(); print('DID', act.__code__.co_firstlineno)\n"
        "    except OSError: pass\n" + ENERGY + RIGHT,
        FULL, "right",
    ),
    "sparse-pages": (
        "import mmap\nheld = []\ntry:\n    while True:\n"
        "        held.append(mmap.mmap(-1, 1 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))\n"
        "        for place in range(0, 1 << 30, 1 << 21): held[-1][place] = 1\n"
        "except OSError: pass\n" + ENERGY + RIGHT,
        None, "",  # right, or more memory than allowed: a matter of the size of the kernel's pages
    ),
    "environment": (
        "import os, sys\nprint('ENVIRONMENT', sorted(os.environ), sys.argv, os.uname().nodename)\n"
        + ENERGY + RIGHT,
        FULL, "right",
    ),
    "seeds": (  # draw what the grader draws, with the one seed that can be seen
        "import sys\ndef energy(v, mass):\n    frame = sys._getframe()\n    while frame:\n"
        "        if 'call' in frame.f_locals:\n"
        "            rng = np.random.default_rng(frame.f_locals['call']['seed'])\n"
        "            v, mass = rng.normal(size=(5, 2)), 0.5 + rng.random()\n"
        "        frame = frame.f_back\n" + RIGHT,
        WITHOUT, "differs",
    ),
    "changes-its-inputs": (
        "def centred(x):\n    x -= np.mean(x, axis=0)\n    return x\n" + ENERGY
        + "    v[:] = v**2\n    return 0.5 * mass * v.sum()",
        FULL, "right",
    ),
}  # fmt: skip


def own_cell(source: str, name: str = "") -> dict:
    metadata = {"nbgrader": {"grade_id": name}} if name else {}
    return {"cell_type": "code", "metadata": metadata, "source": source, "outputs": []}


def imitation() -> dict:
    """A notebook that claims to be a master, with points and tests of its own."""
    book = sample.submission(task_energy=ENERGY + "    return 0.0")
    for cell in book["cells"]:
        if own := cell["metadata"].get("nbgrader"):
            own |= {"points": 1e9, "locked": False, "grade": True, "task": True}
    book["metadata"]["ntkcourse"] |= {"wrong": {}, "title": "<script>", "seed": "1", "points": 1e9}
    book["cells"].append(own_cell(
        'function = "energy"\n### BEGIN HIDDEN TESTS\nfunction = "energy"\ncases = 1\n'
        "tolerance = 1e9\ndef draw(rng): return (np.zeros((1, 1)), 0.0)\n### END HIDDEN TESTS",
        "test-energy",
    ))  # fmt: skip
    return book


BOOKS = ["claims-to-be-a-master", "faults-in-all-cells", "huge-equal-ids", "odd-names-of-cells",
         "one-long-line", "long-digits", "small-containers", "not-a-number"]  # fmt: skip


def books() -> dict[str, tuple[str, int | None, str]]:
    """Notebooks whose form is the attack: text, points, words."""
    good = sample.submission()
    many = good | {"cells": [*good["cells"], *[own_cell(f"1 / 0  # {n}") for n in range(1900)]]}
    odd = good | {"cells": [cell | {"id": "x" * 10**6} for cell in good["cells"]]}
    names = good | {"cells": [*good["cells"], own_cell("1 / 0", "a\n=1+1;=cmd()\x1b[2J<b>\u202e")]}
    long = sample.submission(task_energy="#" + "\x00\u00e9" * 1_500_000)
    digits = json.dumps(good)[:-1] + ', "x": [' + ", ".join(["9" * 4299] * 2000) + "]}"
    small = json.dumps(good)[:-1] + ', "x": [' + "[],{}," * 3_000_000 + "0]}"
    return {
        "claims-to-be-a-master": (json.dumps(imitation()), WITHOUT, "differs"),
        "faults-in-all-cells": (json.dumps(many), FULL, "raised ZeroDivisionError"),
        "huge-equal-ids": (json.dumps(odd), FULL, "right"),
        "odd-names-of-cells": (json.dumps(names), FULL, "raised ZeroDivisionError"),
        "one-long-line": (json.dumps(long), WITHOUT, "null bytes"),
        "long-digits": (digits, FULL, "right"),
        "small-containers": (small, FULL, "right"),
        "not-a-number": (json.dumps(good | {"nbformat_minor": float("nan")}), FULL, "right"),
    }


@pytest.fixture(scope="module")
def run(isolation, tmp_path_factory):
    """One run over all notebooks: records, the table and what the command said."""
    base = tmp_path_factory.mktemp("attacks")
    folder, out = base / "in", base / "out"
    folder.mkdir()
    sample.write(base / "homework")
    deserved = {}
    for name, (source, points, words) in CELLS.items():
        book = sample.submission(task_energy=source)
        (folder / f"{name}.ipynb").write_text(json.dumps(book))
        deserved[name] = (points, words)
    for name, (text, points, words) in books().items():
        (folder / f"{name}.ipynb").write_text(text)
        deserved[name] = (points, words)
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "grading", "grade", str(folder), "--out", str(out),
         "--homework", str(base / "homework"), "--assignment", sample.NAME, "--max-cell=1",
         "--max-call=1", "--max-total=20", "--max-memory=200000000"],
        capture_output=True, text=True, cwd=ROOT, timeout=500,
    )  # fmt: skip
    records = [json.loads(path.read_text()) for path in (out / "results").iterdir()]
    return {
        "deserved": deserved, "records": {r["student"]: r for r in records}, "out": out,
        "status": done.returncode, "said": done.stdout + done.stderr,
        "seconds": time.monotonic() - start,
    }  # fmt: skip


@pytest.mark.parametrize("name", [*CELLS, *BOOKS])
def test_each_gets_what_it_deserves(run, name):
    (points, words), record = run["deserved"][name], run["records"][name]
    said = " ".join([record["tasks"][0]["message"], *record["remarks"]])
    assert record["points"] == FULL
    assert record["score"] <= FULL
    if points is not None:
        assert record["score"] == points, said
    assert words in said
    assert len(said) < 30_000


def test_nothing_is_left_for_the_next_process_and_nothing_shows(run):
    def output(name: str) -> str:
        return run["records"][name]["output"]

    assert "BOX [] []" in output("leaves-a-trap")
    assert "OPENED" not in output("writes-to-proc")
    assert "DID" not in output("special-files")
    assert "box" in output("environment")
    assert str(ROOT.parent) not in output("environment")


def test_the_terminal_and_the_table_get_plain_text(run):
    """Warnings are errors in this run: nobody's numbers or names may cause one in the grader."""
    assert run["status"] == 0, run["said"]
    assert {*run["records"]} == {*CELLS, *BOOKS}
    assert "Warning" not in run["said"]
    table = (run["out"] / "marks.csv").read_text()
    pages = [page.read_text() for page in (run["out"] / "reports").iterdir()]
    assert len(pages) == len(run["deserved"])
    for text in (run["said"].replace("\r", ""), table, *pages):
        assert all(c in "\n\t" or c.isprintable() or c in "\xa0" for c in text), ascii(text[-500:])
        assert "<script>" not in text
    for separator in ",;":
        for row in csv.reader(table.splitlines(), delimiter=separator):
            assert not any(cell.strip(' "').startswith(("=", "+", "@")) for cell in row), row


# Names and files


ALIKE = ["ada", "ada ", " ada", "ada\u3164", "ada\u2800", "ada\u034f", "ada\ufe0f", "ada\\u3164",
         "ada\u200b", "ada\\u200b", "a  da", "a da", "ada\U000e0101"]  # fmt: skip


def test_names_that_look_alike_are_told_apart():
    shown = [submissions.name(text) for text in ALIKE]
    assert len({*shown}) == len(ALIKE)
    for text in shown:
        assert text == " ".join(text.split()), ascii(text)
        assert not submissions.UNSEEN.search(text)
    assert submissions.name("Zoë Ødegård 王") == "Zoë Ødegård 王"


def test_whoever_spells_out_a_name_does_not_refuse_its_owner(tmp_path):
    for name in ("x\u200b", "x\\u200b"):
        (tmp_path / f"{name}.ipynb").write_text("{}")
    assert len({one.student for one in submissions.find(tmp_path)}) == 2


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_dry_run_survives_every_name(tmp_path, encoding):
    """Another assignment's notebook, whose name is quoted in the reason; a terminal of any kind."""
    folder = tmp_path / "in"
    folder.mkdir()
    other = json.dumps(sample.submission()).replace(sample.NAME, "99-other")
    for name in (b"latin-\xe9", b"\x1b]0;owned\x07", "学生".encode(), b"a\nb", "\u202e".encode()):
        Path(os.fsdecode(os.fsencode(folder) + b"/" + name + b".ipynb")).write_text(other)
    done = subprocess.run(
        [sys.executable, "-m", "grading", "grade", str(folder), "--out", str(tmp_path / "out"),
         "--dry-run"], capture_output=True, cwd=ROOT, timeout=100,
        env=os.environ | {"PYTHONIOENCODING": encoding},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.decode(encoding).splitlines()
    assert len(lines) == 5
    assert all("\x1b" not in line and "99-other" in line for line in lines)


def test_a_file_of_a_terabyte_and_a_device_are_refused_at_once(tmp_path):
    with (tmp_path / "a.ipynb").open("wb") as file:
        file.truncate(10**12)
    names = ["a.ipynb"]
    try:
        os.mknod(tmp_path / "b.ipynb", 0o20666, os.makedev(1, 5))  # as /dev/zero
        names.append("b.ipynb")
    except OSError:
        pass  # only root can
    start = time.monotonic()
    for name in names:
        with pytest.raises(submissions.RefusedError):
            submissions.load(tmp_path / name)
    assert time.monotonic() - start < 1


def test_a_link_to_the_master_is_no_solution_on_gradescope(tmp_path):
    master = sample.write(tmp_path / "homework")
    (tmp_path / "seed.txt").write_text("7")
    inside = tmp_path / "submission" / "deep"
    inside.mkdir(parents=True)
    (inside / "mine.ipynb").symlink_to(master)
    (tmp_path / "submission" / "folder").symlink_to(tmp_path / "homework")
    results = tmp_path / "results.json"
    arguments = ["gradescope-one", str(tmp_path / "submission"), str(results)]
    assert command.main([*arguments, "--homework", str(tmp_path / "homework")]) == 0
    said = json.loads(results.read_text())
    assert said["score"] == 0
    assert "symbolic link" in said["output"]


# The grader's own work


@pytest.mark.parametrize("part", ["1", "1.", "+", "12345e", "1e+", "٣", "-.5", "1234 "])
def test_the_text_of_an_error_is_cleaned_in_linear_time(part):
    start = time.monotonic()
    cleaned = channel._without_inputs(part * (channel.LINE // len(part) // 2))
    assert time.monotonic() - start < 10
    assert len(cleaned) <= 300


def test_messages_one_by_one_are_as_cheap_as_all_at_once():
    """Twenty thousand messages, each in a chunk of its own: not a look at all of them each time."""
    script = (
        'import os, sys\nfd = int(sys.argv[1])\nos.write(fd, b\'{"at": ["cell", 1]}\\n\')\n'
        'for _ in range(19000): os.write(fd, b\'{"failed": ["cell", 1], "why": "x"}\\n\')\n'
        "os.write(fd, b'{\"done\": true}\\n')\n"
    )
    receive, send = os.pipe()
    with open(receive, "rb", buffering=0) as results:
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(send)], stdout=subprocess.PIPE, pass_fds=[send]
        )
        os.close(send)
        start = time.process_time()
        run = channel.listen(process, results, Limits(), 100.0, lambda: None)
        channel.kill(process, None, False)
        process.stdout.close()
    assert run.end is None
    assert len(run.messages) == 19_001
    assert time.process_time() - start < 10


def test_a_crash_wakes_no_program_of_the_machine():
    """A limit of 0 does not keep a collector of crashes, behind a pipe, from being started; 1 does.

    See core(5): the kernel takes 1 as a sign."""
    assert sandbox.rlimits(Limits())["RLIMIT_CORE"] == 1


class Tired(meter.Meter):
    """A meter of threads that all wait for processors."""

    def _walk(self, wall: float) -> tuple[float, float]:
        self.waits = {thread: (wall - self.origin) for thread in range(100)}
        return super()._walk(wall)

    origin = time.monotonic()


def test_a_hundred_waiting_threads_earn_no_sleep():
    one = Tired(-1)
    Tired.origin = time.monotonic()
    one.waits = {}
    for _ in range(5):
        time.sleep(0.02)
        now = one.read()
    assert now.waited <= now.wall - one.first.wall


def test_sleep_on_credit_is_short(isolation, monkeypatch):
    """Bursts of threads that fight for the processors, then sleep: it counts as sleep."""
    monkeypatch.setattr(group, "prepared", lambda: None)
    source = (
        "import hashlib, threading, time\n"
        "gate = threading.Barrier(60)\n"
        "def work():\n    gate.wait()\n    hashlib.pbkdf2_hmac('sha256', b'', b'', 70_000)\n"
        "for _ in range(60): threading.Thread(target=work).start()\ntime.sleep(100)"
    )
    start = time.monotonic()
    run = sandbox.run(["x = 1", source], [], Limits(cell=2.0, total=100.0))
    assert run.end == "it did not finish within 2 s"
    assert time.monotonic() - start < 20


def test_values_at_the_edge_of_floating_point_are_compared_without_complaint():
    right = {"kind": "f", "dtype": "f8", "shape": [2], "values": [1.0, -2.0]}
    for numbers in ([1.7e308, -1.7e308], [5e-324, 0.0], [-1.0, 2.0], [1e200, -2e200]):
        assert compare.difference(right, right | {"values": numbers}, 1e-8)
