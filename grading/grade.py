"""Mark a folder of submissions."""

import hashlib
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

from tqdm import tqdm

from . import compare, masters, report, sandbox, submissions
from .masters import Master
from .perform import Call, Outcome, perform
from .sandbox import Limits, SandboxError
from .submissions import RefusedError, Submission, printable

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = 20_000  # characters of what the code printed that go into a report


@dataclass(frozen=True)
class Marking:
    """What marks depend on besides the submission: masters, seed, limits, isolation."""

    masters: dict[str, Master]
    seed: str
    limits: Limits = field(default_factory=Limits)
    unsafe: bool = False
    assignment: str | None = None


def hidden_calls(master: Master, seed: str) -> list[Call]:
    """All hidden calls of an assignment, with the inputs that the seed gives."""
    return [
        Call(task.name, task.function, masters.inputs(task, master.name, seed, case))
        for task in master.tasks
        for case in range(task.cases)
    ]


def runnable(cells: list[submissions.Cell], master: Master) -> list[submissions.Cell]:
    """The master's setup, then the student's code without setup, show and test cells."""
    ours = {
        cell.source.split("### BEGIN HIDDEN TESTS")[0].strip()
        for cell in master.notebook.cells
        if masters.grade_id(cell).startswith(("show-", "test-", "setup"))
    }
    return [submissions.Cell("setup", master.setup)] + [
        cell
        for cell in cells
        if not cell.name.startswith(("show-", "test-", "setup")) and cell.source.strip() not in ours
    ]


def expected(master: Master, marking: Marking) -> list[dict]:
    """What the master's solution returns for every hidden call; it runs in the sandbox, too."""
    cells = [cell.source for cell in runnable(submissions.code_cells(master.notebook), master)]
    calls = hidden_calls(master, marking.seed)
    outcome = perform(cells, calls, marking.limits, marking.unsafe)
    for number, call in enumerate(calls):
        if number not in outcome.values or "other" in outcome.values[number]:
            why = outcome.failures.get(number) or outcome.values.get(number) or "no result"
            raise SandboxError(f"{master.name}: the solution of {call.task} has no result: {why}")
        if not compare.finite(outcome.values[number]):
            raise SandboxError(f"{master.name}: the solution of {call.task} is not finite")
    return [outcome.values[number] for number in range(len(calls))]


def mark(notebook: dict, master: Master, marking: Marking, answers: list[dict]) -> dict:
    """The marks of one notebook, as they are stored."""
    cells = runnable(submissions.code_cells(notebook), master)
    calls = hidden_calls(master, marking.seed)
    outcome = perform([cell.source for cell in cells], calls, marking.limits, marking.unsafe)
    tasks = []
    for task in master.tasks:
        numbers = [k for k, call in enumerate(calls) if call.task == task.name]
        message = _message(task, numbers, outcome, answers)
        if message:
            message += _cell_trouble(f"task-{task.name}", cells, outcome)
        tasks.append({
            "name": task.name, "title": task.title, "points": task.points,
            "score": 0 if message else task.points,
            "message": printable(message or f"right in all {task.cases} cases", 2000),
        })  # fmt: skip
    remarks = [f"Code cell {i} was left out: {why}." for i, why in sorted(outcome.stopped.items())]
    return _record(master, tasks, remarks, outcome.output)


def _message(task, numbers: list[int], outcome: Outcome, answers: list[dict]) -> str | None:
    """Why the task gets no points, or None."""
    for case, number in enumerate(numbers, start=1):
        if number in outcome.values:
            problem = compare.difference(answers[number], outcome.values[number], task.tolerance)
        else:
            problem = outcome.failures.get(number, "it was not reached in time")
        if problem:
            return f"{task.function}: {problem}; case {case} of {task.cases}"
    return None


def _cell_trouble(name: str, cells: list[submissions.Cell], outcome: Outcome) -> str:
    own = [i for i, cell in enumerate(cells) if cell.name == name]
    if not own:
        return f". The cell {name} of the starter is missing"
    said = [f"it was stopped: {outcome.stopped[i]}" for i in own if i in outcome.stopped]
    said += [f"it raised {outcome.faults[i]}" for i in own if i in outcome.faults]
    return "".join(f". In the cell {name}: {text}" for text in said)


def _record(
    master: Master | None, tasks: list, remarks: list[str], output: str = "", refused: bool = False
) -> dict:
    return {
        "refused": refused,
        "assignment": master.name if master else "",
        "title": master.title if master else "",
        "score": sum(task["score"] for task in tasks),
        "points": sum(task["points"] for task in tasks),
        "tasks": tasks,
        "written": [asdict(part) for part in master.written] if master else [],
        "remarks": [printable(text, 2000) for text in remarks],
        "output": printable(output, OUTPUT),
    }


def refused(reason: str, master: Master | None) -> dict:
    """The record of a submission that was not run."""
    tasks = [
        {"name": t.name, "title": t.title, "points": t.points, "score": 0, "message": "not run"}
        for t in (master.tasks if master else ())
    ]
    return _record(master, tasks, [f"Not marked: {reason}."], refused=True)


def identify(
    submission: Submission, marking: Marking
) -> tuple[bytes, dict | None, Master | None, str]:
    """The bytes, the notebook, its master, and why it is refused (empty: it is not)."""
    content, notebook = b"", None
    master = marking.masters.get(marking.assignment or submission.path.stem)
    try:
        content = submissions.load(submission.path)
        notebook = submissions.parse(content)
        named = submissions.assignment(notebook)
        if marking.assignment is None and named is not None:
            master = marking.masters.get(named)
        if master is None or named not in (None, master.name):
            known = marking.assignment or f"one of {', '.join(marking.masters) or '(none)'}"
            raise RefusedError(f"expected assignment {known}, got {printable(str(named), 80)!r}")
        submissions.code_cells(notebook)
    except RefusedError as error:
        return content, None, master, str(error)
    return content, notebook, master, ""


def key(content: bytes, master: Master | None, reason: str, marking: Marking) -> str:
    """Everything that the marks depend on, as one number."""
    parts = [
        hashlib.sha256(content).hexdigest(), master.digest if master else "", reason,
        marking.seed, repr(marking.limits), marking.unsafe, engine(),
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def engine() -> str:
    """A number for the code that marks: this package, the course's package, main versions."""
    digest = hashlib.sha256(f"{sys.version} {version('numpy')} {version('jax')}".encode())
    for folder in ("grading", "ntkcourse"):
        for module in sorted((ROOT / folder).glob("*.py")):
            digest.update(module.read_bytes())
    return digest.hexdigest()


def run(folder: Path, out: Path, marking: Marking, jobs: int = 2) -> tuple[list[dict], list[str]]:
    """Mark everything in a folder that has no current result in `out`; records and failures.

    A result is stored as soon as it is known, so an interrupted run goes on where it was. What
    fails for a reason that is not the student's is not stored and is marked by the next run.
    """
    sandbox.guard(folder, out, ROOT / "homework")
    (out / "results").mkdir(parents=True, exist_ok=True)
    found = submissions.find(folder, marking.assignment)
    records: dict[Submission, dict] = {}
    todo, failures = [], []
    for submission in _unambiguous(found, marking, failures):
        content, notebook, master, reason = identify(submission, marking)
        stamp = key(content, master, reason, marking)
        stored = report.stored(out, submission.student, master, stamp)
        if stored is not None:
            records[submission] = stored
        else:
            todo.append((submission, notebook, master, reason, stamp))
    if any(not reason for *_, reason, _ in todo):
        sandbox.check(marking.unsafe)
    needed = {master.name: master for _, _, master, reason, _ in todo if not reason}
    answers = {name: expected(master, marking) for name, master in sorted(needed.items())}

    def one(notebook, master, reason) -> dict:
        if reason:
            return refused(reason, master)
        return mark(notebook, master, marking, answers[master.name])

    pool = ThreadPoolExecutor(jobs)
    waiting = {pool.submit(one, *item[1:4]): item for item in todo}
    finished = tqdm(
        as_completed(waiting), total=len(found), initial=len(found) - len(todo),
        unit="submission", file=sys.stderr,
    )  # fmt: skip
    try:
        for future in finished:
            submission, *_, stamp = waiting[future]
            try:
                record = {"student": submission.student, "key": stamp} | future.result()
            except Exception as error:
                failures.append(f"{submission.student}: {type(error).__name__}: {error}")
                continue
            report.store(out, record)
            records[submission] = record
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return [records[s] for s in found if s in records], failures


def _unambiguous(
    found: list[Submission], marking: Marking, failures: list[str]
) -> list[Submission]:
    """Submissions without those of a student who handed in an assignment twice."""
    places: dict[tuple, list[Submission]] = {}
    for submission in found:
        master = identify(submission, marking)[2]
        places.setdefault((submission.student, master and master.name), []).append(submission)
    for (student, name), several in places.items():
        if len(several) > 1:
            failures.append(f"{student}: expected one file for {name}, got {len(several)}")
    return [several[0] for several in places.values() if len(several) == 1]


def seed_of(out: Path, given: str | None) -> str:
    """The seed that was given, or the one of an earlier run into the same folder, or a new one."""
    path = out / "seed.txt"
    if given is None:
        given = path.read_text().strip() if path.exists() else os.urandom(8).hex()
    out.mkdir(parents=True, exist_ok=True)
    report.write(path, f"{given}\n")
    return given
