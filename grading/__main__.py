"""Homework on the command line.

python -m grading release            starters, solutions and tests from the masters
python -m grading release --check    run nothing, report what is out of date
python -m grading grade FOLDER       mark a folder of submissions
python -m grading gradescope NAME    an autograder for Gradescope, as a zip file
"""

import argparse
import contextlib
import os
import sys
from dataclasses import fields, replace
from pathlib import Path

import psutil

from . import batch, grade, group, masters, report
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
    mark.add_argument("folder", type=Path, help="<student>.ipynb, or <student>/ with a notebook")
    mark.add_argument(
        "--seed", type=Path, help="a file with it; default: OUT/seed.txt, made at random"
    )
    mark.add_argument("--assignment", help="default: what the metadata of each notebook says")
    mark.add_argument(
        "--out", type=Path, default=Path("_build/grades"), help="default: %(default)s"
    )
    mark.add_argument("--written", type=Path, help="CSV: student,assignment,task,score")
    mark.add_argument("--jobs", type=int, default=2, help="submissions at a time")
    mark.add_argument("--dry-run", action="store_true", help="only list what would be marked")
    mark.add_argument(
        "--unsafe", action="store_true", help="without bubblewrap, as another user; in a container"
    )
    pack = commands.add_parser("gradescope", help="write an autograder for one assignment")
    pack.add_argument("name", help="an assignment such as 01-kernels")
    pack.add_argument("--out", type=Path, default=Path("_build/autograder.zip"))
    one = commands.add_parser("gradescope-one", help="inside the autograder: mark one submission")
    one.add_argument("submission", type=Path, help="the folder that Gradescope has filled")
    one.add_argument("results", type=Path, help="the results.json that Gradescope reads")
    for command in (make, mark, pack, one):
        command.add_argument("--homework", type=Path, default=ROOT / "homework", help="the masters")
    for limit in fields(Limits):
        text = f"limit, default {limit.default}"
        name = "--max-" + limit.name.replace("_", "-")
        mark.add_argument(name, type=limit.type, default=limit.default, help=text)
    return top


def main(arguments: list[str] | None = None) -> int:
    """Run a command; the result is the exit status."""
    options = parser().parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):  # a name that the terminal cannot show stops nobody
        with contextlib.suppress(AttributeError):
            stream.reconfigure(errors="backslashreplace")
    try:
        if options.command == "release":
            from . import release

            return release.main(options)
        if options.command.startswith("gradescope"):
            from . import gradescope

            return gradescope.main(options)
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
    if options.dry_run:
        return _planned(
            options, grade.Marking(found, "", limits, options.unsafe, options.assignment)
        )
    with report.alone(options.out):
        return _mark(options, found, limits)


def _mark(options: argparse.Namespace, found: dict[str, masters.Master], limits: Limits) -> int:
    seed = batch.seed_of(options.out, options.seed)
    marking = grade.Marking(found, seed, limits, options.unsafe, options.assignment)
    marks = report.written_marks(options.written) if options.written else {}
    records, failures = batch.run(options.folder, options.out, marking, max(1, options.jobs))
    report.write_all(options.out, records, marks)
    marked = [record for record in records if not record["refused"]]
    print(f"{len(marked)} marked: {options.out / 'marks.csv'}")
    print(f"limits: {group.described()}")
    for record in records:
        if record["refused"]:
            print(f"refused, 0 points: {record['student']}: {record['remarks'][0]}")
    for failure in failures:
        print(f"not marked, run again: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _planned(options: argparse.Namespace, marking: grade.Marking) -> int:
    """List what would be marked; nothing is run or written."""
    if (seed := options.seed or options.out / "seed.txt").is_file():
        marking = replace(marking, seed=seed.read_text().strip())
    for one, stored in batch.plan(options.folder, options.out, marking):
        what = f"refused: {one.reason}" if one.reason else "marked before" if stored else "to mark"
        name = one.master.name if one.master else "-"
        print(f"{one.submission.student}\t{name}\t{one.submission.path.name!a}\t{what}")
    return 0


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
