"""Mark a folder of submissions: find out what each file is, mark it once, remember the result."""

import functools
import hashlib
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tqdm import tqdm

from . import grade, report, sandbox, submissions
from .grade import Marking
from .masters import Master
from .submissions import Cell, RefusedError, Submission, printable

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Found:
    """A submission that was read: its code, its assignment, or why it is refused."""

    submission: Submission
    master: Master | None
    named: str | None
    cells: tuple[Cell, ...]
    seed: str
    digest: str
    reason: str = ""

    def key(self, marking: Marking) -> str:
        """Everything that the marks depend on, as one number."""
        parts = [
            self.digest, self.master.digest if self.master else "", self.reason,
            self.seed, repr(marking.limits), marking.unsafe, engine(),
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def identify(submission: Submission, marking: Marking) -> Found:
    """Read a file that may be anything; what goes wrong is its own affair."""
    content, cells, named = b"", (), None
    master = marking.masters.get(marking.assignment or submission.path.stem)
    reason = submission.problem
    try:
        if not reason:
            content = submissions.load(submission.path)
            notebook = submissions.parse(content)
            named = submissions.assignment(notebook)
            if marking.assignment is None and named is not None:
                master = marking.masters.get(named)
            if master is None or named not in (None, master.name):
                known = marking.assignment or f"one of {', '.join(marking.masters) or '(none)'}"
                file, other = submissions.name(submission.path.name), printable(named or "none", 80)
                raise RefusedError(
                    f"expected a notebook of assignment {known}, got {file} of {other}"
                )
            cells = tuple(submissions.code_cells(notebook))
    except RefusedError as error:
        reason = str(error)
    except Exception as error:  # a file that the reader itself cannot bear
        reason = f"expected a notebook, got one that cannot be read ({type(error).__name__})"
    digest = hashlib.sha256(content).hexdigest()
    return Found(submission, master, named, cells, marking.seed_for(content), digest, reason)


def chosen(found: list[Submission], marking: Marking) -> list[Found]:
    """One entry per student and assignment; two files for one assignment refuse each other."""
    places: dict[tuple, list[Found]] = {}
    for one in (identify(submission, marking) for submission in found):
        places.setdefault((one.submission.student, one.master and one.master.name), []).append(one)
    entries = []
    for several in places.values():
        # A notebook of another assignment, or a file beside, does not stand in the way.
        good = [one for one in several if not one.reason] or several
        first = good[0]
        if len(good) > 1 and not first.reason:
            names = ", ".join(printable(one.submission.path.name) for one in good)
            name = first.master.name if first.master else "an assignment"
            reason = f"expected one notebook for {name}, got {len(good)}: {names}"
            digest = hashlib.sha256("".join(one.digest for one in good).encode()).hexdigest()
            first = Found(first.submission, first.master, None, (), "", digest, reason)
        entries.append(first)
    return entries


@functools.cache
def engine() -> str:
    """A number for the code that marks: this package, the course's package, main versions."""
    digest = hashlib.sha256(f"{sys.version} {version('numpy')} {version('jax')}".encode())
    for folder in ("grading", "ntkcourse"):
        for module in sorted((ROOT / folder).glob("*.py")):
            digest.update(module.read_bytes())
    return digest.hexdigest()


def plan(folder: Path, out: Path, marking: Marking) -> list[tuple[Found, dict | None]]:
    """Everything in a folder, each with the result of an earlier run if that is still right."""
    entries = chosen(submissions.find(folder), marking)
    return [
        (one, report.stored(out, one.submission.student, one.master, one.key(marking)))
        for one in entries
    ]


def run(folder: Path, out: Path, marking: Marking, jobs: int = 2) -> tuple[list[dict], list[str]]:
    """Mark everything in a folder that has no current result in `out`; records and failures.

    A result is stored as soon as it is known, so an interrupted run goes on where it was. What
    fails for a reason that is not the student's is not stored and is marked by the next run.
    Whoever ran out of time, or whose process died, gets a second try at the end, alone.
    """
    sandbox.guard(folder, out, ROOT / "homework")
    if out.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"expected {out} outside the folder of submissions {folder}")
    planned = plan(folder, out, marking)
    records = {one.submission: stored for one, stored in planned if stored is not None}
    todo = [one for one, stored in planned if stored is None]
    report.private(out / "results")
    failures: list[str] = []

    def keep(one: Found, record: dict) -> None:
        record = {"student": one.submission.student, "key": one.key(marking)} | record
        report.store(out, record)
        records[one.submission] = record

    for one in todo:
        if one.reason:
            keep(one, grade.refused(one.reason, one.master))
    todo = [one for one in todo if not one.reason]
    if todo:
        sandbox.check(marking.unsafe)
    answers = _answers(todo, marking)

    def mark(one: Found) -> tuple[dict, bool]:
        right = answers[one.submission]
        return grade.mark(list(one.cells), one.master, marking, one.seed, right)

    done = len(planned) - len(todo)
    doubtful = _each(todo, mark, keep, failures, jobs, done, last=False)
    _each(doubtful, mark, keep, failures, 1, len(planned) - len(doubtful), last=True)
    return [records[one.submission] for one, _ in planned if one.submission in records], failures


def _each(
    todo: list[Found], mark: Callable, keep: Callable, failures: list[str], jobs: int, done: int,
    last: bool,
) -> list[Found]:  # fmt: skip
    """Mark some; those whose end is in doubt are returned, unless it is the last try."""
    doubtful: list[Found] = []
    pool = ThreadPoolExecutor(jobs)
    waiting = {pool.submit(mark, one): one for one in todo}
    finished = tqdm(
        as_completed(waiting), total=done + len(todo), initial=done, unit="submission",
        file=sys.stderr, disable=not todo,
    )  # fmt: skip
    try:
        for future in finished:
            one = waiting[future]
            try:
                record, doubt = future.result()
            except Exception as error:
                failures.append(f"{one.submission.student}: {type(error).__name__}: {error}")
                continue
            if doubt and not last:
                doubtful.append(one)
            else:
                keep(one, record)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return sorted(doubtful, key=todo.index)


def _answers(todo: list[Found], marking: Marking) -> dict[Submission, list[dict]]:
    right: dict[Submission, list[dict]] = {}
    for master in {one.master.name: one.master for one in todo}.values():
        mine = [one for one in todo if one.master is master]
        values = grade.expected(master, marking, [one.seed for one in mine])
        right |= dict(zip((one.submission for one in mine), values, strict=True))
    return right


def seed_of(out: Path, given: Path | None) -> str:
    """The seed in a file, or the one of an earlier run into the same folder, or a new one."""
    path = out / "seed.txt"
    if given is not None and not given.is_file():
        raise ValueError(
            f"expected a file with the seed, got {given}; a seed on the command line could be read "
            "by every process"
        )
    source = given or path
    seed = source.read_text().strip() if source.is_file() else os.urandom(16).hex()
    if not seed:
        raise ValueError(f"expected a seed in {source}, got nothing")
    report.private(out)
    report.write(path, f"{seed}\n", mode=0o600)
    return seed
