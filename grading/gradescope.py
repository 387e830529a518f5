"""An autograder for Gradescope: a zip file to upload, and what runs in its container."""

import argparse
import contextlib
import json
import os
import sys
import zipfile
from pathlib import Path

from . import batch, grade, group, masters, report, sandbox
from .masters import Master
from .sandbox import Limits, SandboxError
from .submissions import FILES, Submission, name

ROOT = Path(__file__).resolve().parent.parent
TOTAL = 150.0  # seconds; two tries have to end before Gradescope loses patience

SETUP = """#!/usr/bin/env bash
# Choose an image with Python 3.11 or later (Ubuntu 24.04). Everything that a student's code must
# not see goes to /autograder/private, which belongs to root alone; there is no repository here.
set -e
source=$(cd "$(dirname "$0")" && pwd)
apt-get update
apt-get install -y python3 python3-venv bubblewrap
python3 -m venv /autograder/python
/autograder/python/bin/pip install --no-cache-dir -r "$source/course/requirements-homework.txt"
mkdir -p /autograder/private
mv "$source/course" /autograder/course
mv "$source/homework" "$source/seed.txt" /autograder/private/
chmod -R go-rwx /autograder/private
chmod -R a+rX /autograder/course /autograder/python
"""

RUN = """#!/usr/bin/env bash
chmod go-rwx /autograder/private /autograder/source /autograder/submission /autograder/results
cd /autograder/course
/autograder/python/bin/python -m grading gradescope-one /autograder/submission \\
    /autograder/results/results.json --homework /autograder/private/homework
"""


def pack(master: Path, out: Path) -> None:
    """Write the zip file for the assignment of a master, with a new seed."""
    out.parent.mkdir(parents=True, exist_ok=True)
    requirements = ROOT / "requirements-homework.txt"
    files = {
        f"course/{path.relative_to(ROOT)}": path.read_bytes()
        for path in (
            *ROOT.glob("grading/*.py"), *ROOT.glob("ntkcourse/*.py"), *_required(requirements),
        )
    } | {
        "setup.sh": SETUP.encode(), "run_autograder": RUN.encode(),
        "seed.txt": os.urandom(16).hex().encode(),
        f"homework/{master.parent.name}/master.ipynb": master.read_bytes(),
    }  # fmt: skip
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for place, content in sorted(files.items()):
            entry = zipfile.ZipInfo(place)
            entry.external_attr = (0o755 if "/" not in place else 0o644) << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)


def _required(path: Path) -> list[Path]:
    """A list of requirements and the lists that it names."""
    named = [
        line.split()[1] for line in path.read_text().splitlines() if line[:3] in ("-r ", "-c ")
    ]
    return [path, *(file for other in named for file in _required(path.with_name(other)))]


def handed_in(folder: Path) -> list[Submission]:
    """The notebooks in what one student uploaded, in folders, too; or why there is none."""
    books, others = [], []
    for top, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if not f.startswith(".") and f != "__MACOSX"]
        for file in sorted(files + [f for f in folders if f.endswith(".ipynb")]):
            kind = books if file.lower().endswith(".ipynb") else others
            if not file.startswith("."):
                kind.append(Path(top, file))
        if len(books) + len(others) > FILES:
            break
    if books:
        return [Submission("student", path) for path in sorted(books)[:FILES]]
    listed = ", ".join(name(path.name) for path in sorted(others)[:5]) or "nothing"
    packed = "; unpack the archive" if any(path.suffix == ".zip" for path in others) else ""
    return [Submission("student", folder, f"expected a notebook (.ipynb), got {listed}{packed}")]


def marked(folder: Path, master: Master, seed: str) -> dict:
    """The record of the one submission in a folder, isolated as well as this machine allows."""
    marking = grade.Marking({master.name: master}, seed, Limits(total=TOTAL), False, master.name)
    [one] = batch.chosen(handed_in(folder), marking)
    if one.reason:
        return grade.refused(one.reason, master)
    try:
        sandbox.check()
    except SandboxError:
        marking = grade.Marking(marking.masters, seed, marking.limits, True, master.name)
        sandbox.check(unsafe=True)
    [answers] = grade.expected(master, marking, [one.seed])
    record, doubtful = grade.mark(list(one.cells), master, marking, one.seed, answers)
    if doubtful:
        record, _ = grade.mark(list(one.cells), master, marking, one.seed, answers)
    return record


def main(options: argparse.Namespace) -> int:
    """The commands `gradescope` and, inside the container, `gradescope-one`."""
    found = masters.find(options.homework)
    if options.command == "gradescope":
        if options.name not in found:
            raise ValueError(f"expected one of {', '.join(found)}, got {options.name}")
        masters.read(found[options.name])  # an error if it does not follow the format
        pack(found[options.name], options.out)
        print(f"{options.out}: upload it as the autograder of {options.name}")
        return 0
    try:
        [path] = found.values()
        seed = (options.homework.parent / "seed.txt").read_text().strip()
        record = {"student": "student"} | marked(options.submission, masters.read(path), seed)
        [record] = report.with_written([record], {})
        results, status = report.gradescope(record), 0
        print(f"limits: {group.described()}")
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        said = "The marking itself failed, not your notebook. Please tell your instructor."
        results, status = {"score": 0, "output": said, "stdout_visibility": "hidden"}, 1
    with contextlib.suppress(FileNotFoundError):
        options.results.unlink()
    report.write(options.results, json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    return status
