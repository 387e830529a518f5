"""Interrupted runs, full disks, dead kernels, two runs at once: the next run is none the worse."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import homework_sample
import pytest

from book import __main__ as site
from grading import report

ROOT = Path(__file__).resolve().parent.parent
TEXT = """---
jupytext:
  formats: ipynb,md:myst
  text_representation:
    format_name: myst
    extension: .md
kernelspec:
  name: python3
  display_name: Python 3
---

# Small

A page that takes no time, in a book that is made to be interrupted while it is built.

```{code-cell} ipython3
CODE
```
"""


@pytest.fixture(scope="module")
def scratch(tmp_path_factory) -> Path:
    """A repository with one chapter that takes no time, and an assignment."""
    root = tmp_path_factory.mktemp("scratch")
    for name in ("book", "ntkcourse", "grading"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("requirements.txt", "constraints.txt", "_config.yml"):
        shutil.copy(ROOT / name, root)
    (root / "chapters").mkdir()
    (root / "chapters/01-small.md").write_text(TEXT.replace("CODE", "print('x' * 100)"))
    homework_sample.write(root / "homework")
    status, said = finished(start(root, "book.notebooks"))
    assert status == 0, said
    return root


@pytest.fixture
def copy(scratch, tmp_path) -> Path:
    return Path(shutil.copytree(scratch, tmp_path / "copy"))


def start(root: Path, *command: str, **options) -> subprocess.Popen:
    environment = os.environ | {"PYTHONPATH": str(root)}
    environment = {k: v for k, v in environment.items() if not k.startswith(("PYTEST", "COV_"))}
    return subprocess.Popen(
        [sys.executable, "-m", *command], cwd=root, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, **options,
    )  # fmt: skip


def finished(process: subprocess.Popen) -> tuple[int, str]:
    out, err = process.communicate(timeout=300)
    return process.returncode, out + err


def interrupt(process: subprocess.Popen, how: int) -> None:
    """Send a signal to a whole run and wait until it has ended."""
    os.killpg(process.pid, how)
    try:
        process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise


# The site


@pytest.fixture
def builds(monkeypatch):
    """Stands for Jupyter Book: it writes pages, and on the way does what a test asks for."""
    steps: dict[str, object] = {"pages": "old"}

    def main(arguments, standalone_mode):
        out = Path(arguments[arguments.index("--path-output") + 1]) / "_build/html"
        out.mkdir(parents=True, exist_ok=True)
        for name in ("a.html", "b.html"):
            page = out / name
            # like Sphinx, which leaves a page alone that is newer than its source
            if not page.exists() or page.read_text() != steps["pages"]:
                page.write_text(str(steps["pages"]))
            if error := steps.get("error"):
                page.write_text("half")
                raise error

    for name in ("jupyter_book", "jupyter_book.cli", "jupyter_book.cli.main"):
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(main=main))
    return steps


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (KeyboardInterrupt(), 130),
        (OSError(28, "No space left on device"), 2),
        (RuntimeError("a fault of an extension"), 1),
    ],
)
def test_the_site_is_replaced_as_a_whole_or_not_at_all(tmp_path, builds, error, status, capsys):
    assert site.command(["--out", str(tmp_path)]) == 0
    builds |= {"pages": "new", "error": error}
    assert site.command(["--out", str(tmp_path)]) == status
    pages = {path.name: path.read_text() for path in (tmp_path / "html").iterdir()}
    assert pages == {"a.html": "old", "b.html": "old"}
    assert "is as it was" in capsys.readouterr().err
    assert (tmp_path / "work/.under-way").exists()
    del builds["error"]
    builds["pages"] = "newest"
    assert site.command(["--out", str(tmp_path)]) == 0
    pages = {path.name: path.read_text() for path in (tmp_path / "html").iterdir()}
    assert pages == {"a.html": "newest", "b.html": "newest"}
    assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", "html", "work"]


def test_pages_of_an_interrupted_build_are_made_anew(tmp_path, builds):
    (tmp_path / "work/_build/html").mkdir(parents=True)
    (tmp_path / "work/.under-way").touch()
    (tmp_path / "work/_build/html/c.html").write_text("half")
    assert site.command(["--out", str(tmp_path)]) == 0
    assert sorted(p.name for p in (tmp_path / "html").iterdir()) == ["a.html", "b.html"]


def test_two_builds_wait_for_each_other(tmp_path, builds, capsys):
    hold = (
        "import fcntl, sys, time\nfile = open(sys.argv[1], 'w')\nfcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\ntime.sleep(0.5)"
    )
    other = [sys.executable, "-c", hold, str(tmp_path / ".lock")]
    with subprocess.Popen(other, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        assert site.command(["--out", str(tmp_path)]) == 0
        assert process.poll() is not None or process.wait(5) == 0
    assert "is under way: waiting" in capsys.readouterr().err
    assert (tmp_path / "html/a.html").exists()


# Notebooks


def test_a_dead_kernel_and_a_full_disk_are_said_and_leave_the_stored_notebook(copy):
    chapter = copy / "chapters/01-small.md"
    before = chapter.with_suffix(".ipynb").read_bytes()
    chapter.write_text(TEXT.replace("CODE", "import os\nos.kill(os.getpid(), 9)"))
    status, said = finished(start(copy, "book.notebooks"))
    assert (status, chapter.with_suffix(".ipynb").read_bytes()) == (1, before)
    assert "stopped, the stored notebook is unchanged\nDeadKernelError" in said
    chapter.write_text(TEXT.replace("CODE", "print('y' * 50_000)"))
    # JAX warns of a fork, so the limit is set by a small program of its own
    limited = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000));"
        "sys.argv[1:] = []; runpy.run_module('book.notebooks', run_name='__main__')"
    )
    (copy / "limited.py").write_text(limited)
    status, said = finished(start(copy, "limited"))
    assert (status, chapter.with_suffix(".ipynb").read_bytes()) == (1, before), said
    assert "stopped, the stored notebook is unchanged\nOSError" in said
    assert [p.name for p in (copy / "chapters").glob(".*")] == []


def test_two_runs_at_once_write_one_whole_notebook(scratch, copy):
    two = [start(copy, "book.notebooks", "--force") for _ in range(2)]
    assert [finished(process)[0] for process in two] == [0, 0]
    stored = (copy / "chapters/01-small.ipynb").read_bytes()
    assert stored == (scratch / "chapters/01-small.ipynb").read_bytes()


# Marks


def test_a_second_run_into_the_same_folder_is_refused(tmp_path):
    with (
        report.alone(tmp_path / "out"),
        pytest.raises(ValueError, match="expected no other run into"),
        report.alone(tmp_path / "out"),
    ):
        pass
    with report.alone(tmp_path / "out"):
        pass


def test_a_failed_write_of_a_report_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "marks.csv"
    report.write(path, "old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        report.write(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["marks.csv"]


# At random moments


def handed_in(root: Path) -> None:
    (root / "in").mkdir()
    for name in ("ada", "bob", "eve"):
        (root / f"in/{name}.ipynb").write_text(json.dumps(homework_sample.submission()))


MARK = ("grading", "grade", "in", "--out", "out", "--assignment", homework_sample.NAME)
COMMANDS = {
    "notebooks": (("book.notebooks", "--force"), ["chapters/01-small.ipynb"], 3.0),
    "homework": (("grading", "release", "--force"), ["homework/00-sample/starter.ipynb"], 4.0),
    "grade": (MARK, ["out/marks.csv"], 5.0),
    "book": (("book",), ["_build/html/index.html", "_build/html/chapters/index.html"], 12.0),
}


@pytest.mark.soak
@pytest.mark.parametrize("name", COMMANDS)
def test_interrupted_at_random_moments(isolation, copy, name):
    """Thirteen times each, so more than fifty times in all."""
    command, files, seconds = COMMANDS[name]
    moments = random.Random(name)
    if name == "grade":
        handed_in(copy)
        (copy / "seed").write_text("7")
        command = (*command, "--seed", "seed")
    if name == "book":
        (copy / "chapters/01-small.md").unlink()
        for page in ("index", "more"):
            text = TEXT.split("---\n")[2].split("```")[0]
            (copy / f"chapters/{page}.md").write_text(text)
        for page in ("ledger.md", "errata.md", "bibliography.md", "references.bib", "claims.yml"):
            shutil.copy(ROOT / "chapters" / page, copy / "chapters")
        # sphinx-notfound-page wants contents (its issue 253), so one page more than the first
        contents = "format: jb-book\nroot: chapters/index\nchapters: [{file: chapters/more}]\n"
        (copy / "_toc.yml").write_text(contents)
    status, said = finished(start(copy, *command))
    assert status == 0, said
    whole = {file: (copy / file).read_bytes() for file in files}
    for _ in range(13):
        process = start(copy, *command)
        time.sleep(moments.uniform(0, seconds))
        interrupt(process, moments.choice([signal.SIGINT, signal.SIGTERM, signal.SIGKILL]))
        for file, content in whole.items():
            assert not (copy / file).exists() or (copy / file).read_bytes() == content, file
    status, said = finished(start(copy, *command))
    assert status == 0, said
    assert {file: (copy / file).read_bytes() for file in files} == whole
