"""Submissions that attack the grader: each gets what it deserves and touches nothing else.

All of them are marked in one run, beside an honest one, on the small assignment of
`homework_sample`: 4 points for energy, 5 for gram, 6 for centre.
"""

import csv
import json
import os
import shutil
import socket
import threading
import time
from html.parser import HTMLParser
from pathlib import Path

import homework_sample as sample
import psutil
import pytest

from grading import __main__ as command
from grading import seccomp

ROOT = Path(__file__).resolve().parent.parent
DISK = 8_388_607  # odd on purpose: sandboxes of this run are known by it
LIMITS = {"cell": 4, "call": 4, "total": 60, "memory": 200_000_000, "processes": 40,
          "disk": DISK, "output": 4_000_000, "results": 8_000_000}  # fmt: skip
ENERGY = "def energy(v, mass):\n"
RIGHT = "    return 0.5 * mass * np.sum(v**2)\n"
FULL, WITHOUT = 15, 11  # with and without the points for energy

# What takes the place of the cell for energy, the points it deserves, words of the message
CELLS = {
    "endless-cell": ("while True: pass", WITHOUT, "did not finish within 4 s"),
    "endless-call": (ENERGY + "    while True: pass", WITHOUT, "did not finish within 4 s"),
    "sleeping-error": (
        "class Slow(Exception):\n    def __str__(self):\n        while True: pass\nraise Slow()",
        WITHOUT, "did not finish",
    ),
    "memory-slowly": (
        "hog = []\nwhile True: hog.append(np.ones(1_000_000))", WITHOUT, "more than 190 MB",
    ),
    "memory-at-once": (ENERGY + "    return np.ones(10**11).sum()", WITHOUT, "MemoryError"),
    "memory-in-children": (
        "import os, time\nfor _ in range(8):\n    if os.fork() == 0:\n"
        "        hog = np.ones(20_000_000)\n        time.sleep(60)\ntime.sleep(60)",
        WITHOUT, "more than 190 MB",
    ),
    "memory-shared": (
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "if libc.shmget(0, 10**9, 0o1600) < 0: print('shmget refused')\n"
        "try: os.memfd_create('x')\nexcept OSError: print('memfd refused')\n" + ENERGY + RIGHT,
        FULL, "right",
    ),
    "fork-bomb": ("import os\nwhile True: os.fork()", WITHOUT, "BlockingIOError"),
    "fork-bomb-in-shell": (
        "import subprocess\nsubprocess.run(['sh', '-c', 'f() { f | f & }; f; sleep 60'])",
        WITHOUT, "there is no function energy",
    ),
    "thread-bomb": (
        "import threading, time\n"
        "while True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        WITHOUT, "can't start new thread",
    ),
    "daemon": (
        "import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        while True: pass\n    os._exit(0)\n" + ENERGY + RIGHT,
        FULL, "right",
    ),
    "huge-output": ("while True: print('x' * 1000)", WITHOUT, "printed more than"),
    "huge-errors": (ENERGY + "    raise ValueError('x' * 10**7)", WITHOUT, "ValueError"),
    "huge-array": (ENERGY + "    return np.zeros(10**7)", WITHOUT, "too large to be sent"),
    "huge-file": (
        "with open('big', 'wb') as file:\n    while True: file.write(bytes(10**6))",
        WITHOUT, "OSError",
    ),
    "many-files": (
        "n = 0\nwhile True:\n    n += 1\n    open(f'f{n}', 'wb').write(bytes(10**6))",
        WITHOUT, "No space left",
    ),
    "exit": ("import os\nos._exit(0)", WITHOUT, "process ended"),
    "exit-in-call": (ENERGY + "    import os\n    os._exit(0)", WITHOUT, "process ended"),
    "system-exit": ("raise SystemExit(0)", WITHOUT, "SystemExit"),
    "kill-itself": ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", WITHOUT, "ended"),
    "kill-all": ("import os\nos.kill(-1, 9)", WITHOUT, ""),
    "kill-parents": (
        "import os\nfor pid in (1, os.getppid()):\n    os.kill(pid, 9)", WITHOUT, "",
    ),
    "segfault": ("import ctypes\nctypes.string_at(0)", WITHOUT, "process ended"),
    "recursion": (ENERGY + "    return energy(v, mass)", WITHOUT, "RecursionError"),
    "patched-testing": (
        "import numpy.testing, builtins\n"
        "numpy.testing.assert_allclose = np.allclose = np.array_equal = lambda *a, **k: True\n"
        "np.abs = np.max = np.all = lambda *a, **k: 0.0\n"
        "builtins.AssertionError = Warning\nbuiltins.abs = lambda x: 0\n"
        + ENERGY + "    return 0.0",
        WITHOUT, "differs by up to",
    ),
    "patched-builtins": (
        "import builtins, json, os\n"
        "builtins.all = builtins.any = builtins.abs = builtins.round = lambda *a: True\n"
        "builtins.repr = builtins.str = builtins.float = lambda *a: '1.0'\n"
        "json.dumps = json.loads = np.array = np.asarray = lambda *a, **k: None\n"
        "os.write = lambda *a: 1\n" + ENERGY + "    return 0.0",
        WITHOUT, "differs by up to",
    ),
    # With isinstance gone NumPy itself fails: such a cell ruins its author's other functions, too.
    "broken-builtins": (
        "import builtins\nbuiltins.isinstance = builtins.len = builtins.type = lambda *a: True\n"
        + ENERGY + "    return 0.0",
        0, "differs by up to",
    ),
    "no-exceptions": (
        "import sys\nsys.excepthook = sys.settrace = None\nraise BaseException('x')",
        WITHOUT, "BaseException",
    ),
    "reads-files": (
        "import os, sys\nfound, python = [], (sys.prefix, sys.base_prefix, '/proc', '/usr')\n"
        "for top in PLACES:\n    try:\n"
        "        if os.path.isfile(top): found.append(open(top).read())\n"
        "        else: found += [f for f in os.listdir(top) if f not in ('.venv', '.pyenv')]\n"
        "    except OSError: pass\n"
        "for top, folders, files in os.walk('/'):\n"
        "    folders[:] = [f for f in folders if not os.path.join(top, f).startswith(python)]\n"
        "    found += [f for f in files if f in ('master.ipynb', 'CANARY.ipynb', 'grade.py')]\n"
        "print('FOUND', found)\n" + ENERGY + RIGHT,
        FULL, "right",
    ),
    "reads-memory": (
        "import gc, sys\nframe, seen = sys._getframe(), []\nwhile frame:\n"
        "    seen += [str(frame.f_locals), str(frame.f_globals)]\n    frame = frame.f_back\n"
        "seen += [x for x in gc.get_objects() if type(x) is str]\n"
        "print('ANSWERS', any('toler' 'ance' in s and 'draw' '(rng)' in s for s in seen))\n"
        + ENERGY + RIGHT,
        FULL, "right",
    ),
    "writes-outside": (
        "import os\nfor top in PLACES + ['/', '/usr', '/course', '/dev', '/etc', '/proc/sys']:\n"
        "    try:\n        open(os.path.join(top, 'WRITTEN'), 'w').write('x')\n"
        "        print('WROTE', top)\n    except OSError: pass\n" + ENERGY + RIGHT,
        FULL, "right",
    ),
    "deletes": (
        "import shutil\nfor top in PLACES[:4] + ['/course', '/box']:\n"
        "    shutil.rmtree(top, ignore_errors=True)\n" + ENERGY + RIGHT,
        FULL, "right",
    ),
    "socket": (
        "import socket\nsocket.create_connection(('127.0.0.1', PORT), timeout=2)",
        WITHOUT, "Error",
    ),
    "socket-in-call": (
        ENERGY + "    import urllib.request\n"
        "    return float(urllib.request.urlopen('http://127.0.0.1:PORT').read())",
        WITHOUT, "URLError",
    ),
    "namespaces": (
        "import ctypes, os\nlibc = ctypes.CDLL(None)\n"
        "assert libc.unshare(0x10000000) == -1\nprint('unshare refused')\n" + ENERGY + RIGHT,
        FULL, "right",
    ),
    "becomes-root": (
        "import os\nfor act, to in ((os.setuid, 0), (os.setgid, 0), (os.chroot, '/')):\n"
        "    try:\n        act(to)\n        print('BECAME ROOT')\n    except OSError: pass\n"
        "print('capabilities', open('/proc/self/status').read().split('CapEff:')[1].split()[0])\n"
        + ENERGY + RIGHT,
        FULL, "right",
    ),
    "more-limits": (
        "import resource\nresource.setrlimit(resource.RLIMIT_NPROC, (10**6, 10**6))",
        WITHOUT, "ValueError",
    ),
    "pickle-bomb": (
        "class Bomb:\n    def __reduce__(self):\n        import os\n"
        "        return os.system, ('touch CANARY/WRITTEN',)\n" + ENERGY + "    return Bomb()",
        WITHOUT, "an object of type Bomb",
    ),
    "always-equal": (
        "class Yes:\n    __eq__ = __le__ = __ge__ = __lt__ = lambda *a: True\n"
        "    __sub__ = __rsub__ = __abs__ = lambda *a: 0.0\n    __hash__ = None\n"
        + ENERGY + "    return Yes()",
        WITHOUT, "an object of type Yes",
    ),
    "equal-array": (
        "class Yes(np.ndarray):\n    __eq__ = __le__ = lambda *a: True\n"
        "    __sub__ = __rsub__ = lambda *a: 0.0\n"
        + ENERGY + "    return np.zeros(()).view(Yes)",
        WITHOUT, "differs by up to",
    ),
    "liar": (
        "class Liar:\n    def __array__(self, *a, **k):\n        while True: pass\n"
        + ENERGY + "    return Liar()",
        WITHOUT, "did not finish within 4 s",
    ),
    "nan": (ENERGY + "    return np.nan", WITHOUT, "NaN, expected finite"),
    "infinite": (ENERGY + "    return np.inf", WITHOUT, "infinity, expected finite"),
    "none": (ENERGY + "    pass", WITHOUT, "does the function return"),
    "shape": (ENERGY + "    return np.full(1, 0.5 * mass * np.sum(v**2))", WITHOUT,
              "expected a number, got an array of shape (1,)"),
    "complex": (ENERGY + "    return 0.5 * mass * np.sum(v**2) + 0j", WITHOUT,
                "expected real numbers, got complex numbers"),
    "boolean": (ENERGY + "    return True", WITHOUT, "got true or false"),
    "string": (ENERGY + "    return str(0.5 * mass * np.sum(v**2))", WITHOUT, "of type str"),
    "objects": (ENERGY + "    return np.array([v, None, mass], dtype=object)", WITHOUT, "ndarray"),
    "ragged": (ENERGY + "    return [[1.0], [1.0, 2.0]]", WITHOUT, "of type list"),
    "single": (ENERGY + "    return np.float32(0.5 * mass * np.sum(v**2))", WITHOUT,
               "single precision"),
    "not-a-function": ("energy = 3", WITHOUT, "TypeError"),
    "closes-all": ("import os\nos.closerange(0, 256)", WITHOUT, "process ended"),
    "forges-results": (
        "import os, json\nfor fd in range(3, 1024):\n    try:\n        for k in range(9):\n"
        "            value = {'kind': 'f', 'dtype': 'f8', 'shape': [], 'values': [1.0]}\n"
        "            line = {'result': k, 'value': value}\n"
        "            os.write(fd, json.dumps({'at': ['call', k]}).encode() + b'\\n')\n"
        "            os.write(fd, json.dumps(line).encode() + b'\\n')\n"
        "    except OSError: pass\nos._exit(0)",
        WITHOUT - 11, "",
    ),
    "forges-setup": (
        "import os\nfor fd in range(3, 1024):\n    try:\n"
        '        os.write(fd, b\'{"at": ["cell", 0]}\\n{"failed": ["cell", 0], "why": ""}\\n\')\n'
        "    except OSError: pass\nos._exit(0)",
        WITHOUT, "process ended",
    ),
    "forges-end": (
        "import os\nfor fd in range(3, 1024):\n    try: os.write(fd, b'{\"done\": true}\\n')\n"
        "    except OSError: pass\nwhile True: pass",
        WITHOUT, "ended the program early",
    ),
    "floods-channel": (
        "import os\nfds = []\nfor fd in range(3, 1024):\n"
        "    try: os.write(fd, b'\\n'); fds.append(fd)\n"
        "    except OSError: pass\n"
        "while True:\n    for fd in fds: os.write(fd, b'[' * 60000)",
        WITHOUT, "of results",
    ),
    "nested-results": (
        "import os\nfor fd in range(3, 1024):\n    try: os.write(fd, b'[' * 50000 + b'\\n')\n"
        "    except OSError: pass\n" + ENERGY + RIGHT,
        FULL, "right",
    ),
    "markup": (
        ENERGY + "    raise ValueError('<script>alert(1)</script>\\x1b[31m\\ud800')",
        WITHOUT, "<script>",
    ),
    "syntax": ("def energy(v, mass) return 1", WITHOUT, "SyntaxError"),
    "surrogates": ("x = '\\ud800'\nprint(x)\n" + ENERGY + RIGHT, WITHOUT, "UnicodeEncodeError"),
}  # fmt: skip


def hostile_files(folder: Path, outside: Path) -> dict[str, tuple[float, str]]:
    """Submissions that are no notebooks, or odd ones; points and words for each."""
    good = json.dumps(sample.submission())
    cells = sample.submission()["cells"]
    (folder / "truncated.ipynb").write_text(good[: len(good) // 2])
    (folder / "empty.ipynb").write_text("")
    (folder / "malformed.ipynb").write_text("{'cells': [],}")
    (folder / "a-list.ipynb").write_text("[1, 2]")
    (folder / "no-cells.ipynb").write_text('{"nbformat": 4, "cells": 3}')
    (folder / "odd-cells.ipynb").write_text('{"nbformat": 4, "cells": [3]}')
    (folder / "nested.ipynb").write_text("[" * 200_000 + "]" * 200_000)
    (folder / "not-utf8.ipynb").write_bytes(b'{"cells": "\xff\xfe"}')
    (folder / "latin1.ipynb").write_bytes(
        good.replace("½", "é").encode().replace(b"\\u00bd", b"\xe9")
    )
    (folder / "link.ipynb").symlink_to(outside / "CANARY.ipynb")
    (folder / "loop.ipynb").symlink_to(folder / "loop.ipynb")
    (folder / "linked-folder").symlink_to(outside, target_is_directory=True)
    os.mkfifo(folder / "pipe.ipynb")
    (folder / "a-folder.ipynb").mkdir()
    (folder / "in-a-folder").mkdir()
    (folder / "in-a-folder" / f"{sample.NAME}.ipynb").write_text(good)
    (folder / "nothing").mkdir()
    big = sample.submission()
    big["cells"][0] = big["cells"][0] | {"source": "x" * 50_000_000}
    (folder / "big.ipynb").write_text(json.dumps(big))
    other = sample.submission()
    other["metadata"]["ntkcourse"] = {"assignment": "07-other"}
    (folder / "other-assignment.ipynb").write_text(json.dumps(other))
    (folder / "reordered.ipynb").write_text(
        json.dumps(sample.submission() | {"cells": cells[::-1]})
    )
    (folder / "deleted.ipynb").write_text(json.dumps(sample.submission(
        setup=None, task_energy=None, test_gram=None, task_gram_text=None)))  # fmt: skip
    bare = [cell | {"metadata": {}} for cell in cells]
    (folder / "no-metadata.ipynb").write_text(json.dumps(sample.submission() | {"cells": bare}))
    (folder / "=cmd()<b>.ipynb").write_text(good)
    (folder / "notes.txt").write_text("not a submission")
    return {
        "truncated": (0, "truncated JSON"), "empty": (0, "truncated JSON"),
        "malformed": (0, "broken"), "a-list": (0, "format 4"), "no-cells": (0, "format 4"),
        "odd-cells": (0, "a cell at place 1"), "nested": (0, "nested too deeply"),
        "not-utf8": (0, "UTF-8"), "latin1": (0, "UTF-8"), "link": (0, "symbolic link"),
        "loop": (0, "symbolic link"), "linked-folder": (0, "symbolic link"),
        "pipe": (0, "pipe"), "a-folder.ipynb": (0, "No such file"),
        "in-a-folder": (FULL, ""), "nothing": (0, "No such file"), "big": (0, "at most 20 MB"),
        "other-assignment": (0, "'07-other'"), "reordered": (FULL, ""),
        "deleted": (WITHOUT, ""), "no-metadata": (FULL, ""), "=cmd()<b>": (FULL, ""),
    }  # fmt: skip


def listing(*folders: Path) -> dict[str, tuple]:
    found = {}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if "__pycache__" not in path.parts:
                status = path.lstat()
                found[str(path)] = (status.st_mode, status.st_size, status.st_mtime_ns)
    return found


@pytest.fixture(scope="module")
def run(isolation, tmp_path_factory):
    """Everything that one run over all hostile submissions leaves behind."""
    base = tmp_path_factory.mktemp("hostile")
    folder, outside, out, homework = (base / n for n in ("handed-in", "CANARY", "out", "homework"))
    for path in (folder, outside):
        path.mkdir()
    (outside / "CANARY.ipynb").write_text(json.dumps(sample.submission()))
    for path in (base, folder, outside):
        path.chmod(0o777)  # permissions alone must not be what protects it
    sample.write(homework)
    connections = []
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(0.2)
    closing = threading.Event()

    def accept():
        while not closing.is_set():
            try:
                connections.append(server.accept()[1])
            except TimeoutError:
                continue

    thread = threading.Thread(target=accept)
    thread.start()
    places = [folder, outside, out, homework, ROOT, Path.home(), outside / "CANARY.ipynb"]
    places = [str(path) for path in (*places, *(ROOT / n for n in ("tests", "book", "grading")))]
    deserved = hostile_files(folder, outside)
    for name, (source, points, words) in CELLS.items():
        source = source.replace("PORT", str(server.getsockname()[1]))
        source = source.replace("CANARY/", f"{outside}/").replace("PLACES", repr(places))
        (folder / f"{name}.ipynb").write_text(json.dumps(sample.submission(task_energy=source)))
        deserved[name] = (points, words)
    (folder / "honest.ipynb").write_text(json.dumps(sample.submission()))
    deserved["honest"] = (FULL, "right in all 3 cases")
    before = listing(folder, outside, homework, ROOT / "grading", ROOT / "ntkcourse")
    threads = threading.active_count()
    options = [f"--max-{name}={value}" for name, value in LIMITS.items()]
    start = time.monotonic()
    status = command.main(["grade", str(folder), "--seed", "7", "--assignment", sample.NAME,
                           "--out", str(out), "--homework", str(homework), *options])  # fmt: skip
    seconds = time.monotonic() - start
    closing.set()
    thread.join()
    server.close()
    left = [p.info["cmdline"] for p in psutil.process_iter(["cmdline"])
            if str(DISK) in (p.info["cmdline"] or [])]  # fmt: skip
    records = {}
    for path in (out / "results").iterdir():
        record = json.loads(path.read_text())
        records[record["student"]] = record
    yield {
        "status": status, "deserved": deserved, "records": records, "left": left, "out": out,
        "connections": connections, "before": before, "seconds": seconds,
        "after": listing(folder, outside, homework, ROOT / "grading", ROOT / "ntkcourse"),
        "threads": threading.active_count() - threads,
    }  # fmt: skip
    shutil.rmtree(base)


NAMES = [*CELLS, "truncated", "empty", "malformed", "a-list", "no-cells", "odd-cells", "nested",
         "not-utf8", "latin1", "link", "loop", "linked-folder", "pipe", "a-folder.ipynb",
         "in-a-folder", "nothing", "big", "other-assignment", "reordered", "deleted",
         "no-metadata", "=cmd()<b>", "honest"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_each_gets_what_it_deserves_and_a_clear_message(run, name):
    points, words = run["deserved"][name]
    record = run["records"][name]
    said = " ".join([*record["remarks"], record["tasks"][0]["message"]])
    assert record["score"] == points, said
    assert words in said
    assert record["points"] == FULL


def test_nobody_is_forgotten_and_nothing_else_is_marked(run):
    assert set(run["records"]) == set(run["deserved"]) == set(NAMES)
    assert run["status"] == 0


def test_no_file_outside_is_touched(run):
    assert run["after"] == run["before"]
    assert not any("WRITTEN" in name for name in run["after"])
    assert "WROTE" not in run["records"]["writes-outside"]["output"]


def test_no_file_with_answers_is_found(run):
    assert "FOUND []" in run["records"]["reads-files"]["output"]
    assert "ANSWERS False" in run["records"]["reads-memory"]["output"]


def test_nothing_reaches_the_network(run):
    assert run["connections"] == []


def test_no_process_is_left(run):
    assert run["left"] == []
    assert run["threads"] == 0


def test_rights_and_namespaces_are_refused(run):
    root = run["records"]["becomes-root"]["output"]
    assert "BECAME ROOT" not in root
    assert "capabilities 0000000000000000" in root
    if seccomp.program(os.uname().machine):
        assert "unshare refused" in run["records"]["namespaces"]["output"]
        for words in ("shmget refused", "memfd refused"):
            assert words in run["records"]["memory-shared"]["output"]


def test_what_the_code_printed_is_shown_in_part_only(run):
    assert 1000 < len(run["records"]["huge-output"]["output"]) < 25_000


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)


def test_reports_are_escaped_and_the_table_has_no_formulas(run):
    pages = list((run["out"] / "reports").iterdir())
    assert len(pages) == len(NAMES)
    for page in pages:
        assert Tags(page.read_text()).tags.isdisjoint({"script", "b", "img", "a"})
    with (run["out"] / "marks.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(NAMES)
    assert "'=cmd()<b>" in {row["student"] for row in rows}
    for row in rows:
        assert not any((cell or "").startswith(("=", "+", "-", "@")) for cell in row.values())


def test_one_hostile_student_takes_bounded_time(run):
    assert run["seconds"] < 3 * len(NAMES)
