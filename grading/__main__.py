"""Homework on the command line.

python -m grading release            starters, solutions and tests from the masters
python -m grading release --check    run nothing, report what is out of date
python -m grading grade FOLDER       mark a folder of submissions
"""

import argparse
import contextlib
import os
import sys
from dataclasses import fields
from pathlib import Path

import psutil

from . import grade, masters, report
from .masters import MasterError
from .sandbox import Limits, SandboxError

ROOT = Path(__file__).resolve().parent.parent


def parser() -> argparse.ArgumentParser:
    """The options of both commands."""
    top = argparse.ArgumentParser(prog="python -m grading", description=__doc__.splitlines()[0])
    commands = top.add_subparsers(dest="command", required=True)
    make = commands.add_parser("release", help="write starters, solutions and hidden tests")
    make.add_argument("--check", action="store_true", help="run nothing, report what is wrong")
    make.add_argument("--force", action="store_true", help="run masters that did not change, too")
    make.add_argument("names", nargs="*", help="assignments such as 01-kernels; all if none")
    mark = commands.add_parser("grade", help="mark a folder of submissions")
    mark.add_argument("folder", type=Path, help="<student>.ipynb or <student>/<assignment>.ipynb")
    mark.add_argument("--seed", help="gives the hidden inputs; default: a random one, kept in OUT")
    mark.add_argument("--assignment", help="default: what the metadata of each notebook says")
    mark.add_argument(
        "--out", type=Path, default=Path("_build/grades"), help="default: %(default)s"
    )
    mark.add_argument("--written", type=Path, help="CSV: student,assignment,task,score")
    mark.add_argument("--jobs", type=int, default=2, help="submissions at a time")
    mark.add_argument("--unsafe", action="store_true", help="without bubblewrap: limits only")
    for command in (make, mark):
        command.add_argument("--homework", type=Path, default=ROOT / "homework", help="the masters")
    for limit in fields(Limits):
        text = f"limit, default {limit.default}"
        name = "--max-" + limit.name.replace("_", "-")
        mark.add_argument(name, type=limit.type, default=limit.default, help=text)
    return top


def main(arguments: list[str] | None = None) -> int:
    """Run a command; the result is the exit status."""
    options = parser().parse_args(arguments)
    try:
        if options.command == "release":
            from . import release

            return release.main(options)
        return _grade(options)
    except (SandboxError, MasterError, OSError, ValueError) as error:
        print(f"python -m grading: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where this one stopped", file=sys.stderr)
        return 130


def _grade(options: argparse.Namespace) -> int:
    found = {name: masters.read(path) for name, path in masters.find(options.homework).items()}
    if not found:
        raise ValueError(f"expected masters in {options.homework}, found none")
    if options.assignment is not None and options.assignment not in found:
        raise ValueError(f"expected one of {', '.join(found)}, got {options.assignment}")
    limits = Limits(**{f.name: getattr(options, f"max_{f.name}") for f in fields(Limits)})
    seed = grade.seed_of(options.out, options.seed)
    marking = grade.Marking(found, seed, limits, options.unsafe, options.assignment)
    marks = report.written_marks(options.written) if options.written else {}
    records, failures = grade.run(options.folder, options.out, marking, max(1, options.jobs))
    report.write_all(options.out, records, marks)
    print(f"{len(records)} marked, seed {seed}: {options.out / 'marks.csv'}")
    for failure in failures:
        print(f"not marked, run again: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _leave(status: int) -> None:
    """Exit; when interrupted, without waiting for the submissions that are being marked."""
    if status != 130:
        sys.exit(status)
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            child.kill()
    os._exit(status)


if __name__ == "__main__":
    _leave(main())
