"""Mark one notebook."""

import hashlib
import re
from dataclasses import asdict, dataclass, field, replace

from . import compare, masters, starter, submissions
from .masters import Master
from .perform import Call, Outcome, perform
from .sandbox import Limits, SandboxError
from .submissions import Cell, printable

OUTPUT = 20_000  # characters of what the code printed that go into a report
TOGETHER = 20  # submissions whose answers are computed in one process
REMARKS = 12
SHOWN = ("show-", "test-")


@dataclass(frozen=True)
class Marking:
    """What marks depend on besides the submission: masters, seed, limits, isolation."""

    masters: dict[str, Master]
    seed: str
    limits: Limits = field(default_factory=Limits)
    unsafe: bool = False
    assignment: str | None = None

    def seed_for(self, content: bytes) -> str:
        """A seed of its own for every file: what one attempt learns is of no use to the next."""
        return hashlib.sha256(self.seed.encode() + b"\n" + content).hexdigest()


def hidden_calls(master: Master, seed: str) -> list[Call]:
    """All hidden calls of an assignment, with the inputs that the seed gives."""
    cases = [(task, case) for task in master.tasks for case in range(task.cases)]
    return [
        Call(task.name, task.function, masters.inputs(task, master.name, seed, case), number)
        for number, (task, case) in enumerate(cases)
    ]


def forms(master: Master, prefixes: tuple[str, ...]) -> set[str]:
    """The code of some of the master's cells, as it is there and as it is in the starter."""
    sources = [
        (name, cell.source.split("### BEGIN HIDDEN TESTS")[0].strip())
        for cell in master.notebook.cells
        if cell.cell_type == "code" and (name := masters.grade_id(cell)).startswith(prefixes)
    ]
    polite = [starter.guarded(name, source) for name, source in sources]
    return {*(source for _, source in sources), *polite, starter.IF_SOLVED.strip()}


def runnable(cells: list[Cell], master: Master) -> list[Cell]:
    """The master's setup, then the student's code without what only shows or tests it."""
    ours = forms(master, ("setup", *SHOWN))
    return [Cell("setup", master.setup)] + [
        cell
        for cell in cells
        if cell.source.strip() not in ours and not cell.name.startswith(SHOWN)
    ]


def expected(master: Master, marking: Marking, seeds: list[str]) -> list[list[dict]]:
    """What the solution returns for the hidden calls of every seed; it runs in the sandbox, too."""
    cells = [cell.source for cell in runnable(submissions.code_cells(master.notebook), master)]
    found: list[list[dict]] = []
    for start in range(0, len(seeds), TOGETHER):
        several = [hidden_calls(master, seed) for seed in seeds[start : start + TOGETHER]]
        calls = [call for one in several for call in one]
        limits = replace(
            marking.limits,
            total=marking.limits.total * len(several),
            results=marking.limits.results * len(several),
        )
        outcome = perform(cells, calls, limits, marking.unsafe)
        for number, call in enumerate(calls):
            value = outcome.values.get(number, {"other": ""})
            if "other" in value:
                why = outcome.failures.get(number) or value["other"] or "no result"
                raise SandboxError(
                    f"{master.name}: the solution of {call.task} has no result: {why}"
                )
            if not compare.finite(value):
                raise SandboxError(f"{master.name}: the solution of {call.task} is not finite")
        values = iter(range(len(calls)))
        found += [[outcome.values[next(values)] for _ in one] for one in several]
    return found


def mark(
    cells: list[Cell], master: Master, marking: Marking, seed: str, answers: list[dict]
) -> tuple[dict, bool]:
    """The marks of one notebook, as they are stored, and whether a busy machine may be to blame."""
    ran = runnable(cells, master)
    calls = hidden_calls(master, seed)
    outcome = perform([cell.source for cell in ran], calls, marking.limits, marking.unsafe)
    tasks = []
    for task in master.tasks:
        numbers = [k for k, call in enumerate(calls) if call.task == task.name]
        message = _message(task, numbers, outcome, answers)
        if message:
            message += _cell_trouble(f"task-{task.name}", ran, outcome)
        tasks.append({
            "name": task.name, "title": task.title, "points": task.points,
            "score": 0 if message else task.points,
            "message": printable(message or f"right in all {task.cases} cases", 2000),
        })  # fmt: skip
    lost = any(task["score"] < task["points"] for task in tasks)
    remarks = _remarks(ran, outcome, master) + (_unused(cells, master) if lost else [])
    remarks += _borrowed(cells, master)
    return record(master, tasks, remarks, outcome.output), outcome.doubtful


def _message(task, numbers: list[int], outcome: Outcome, answers: list[dict]) -> str | None:
    """Why the task gets no points, or None."""
    for case, number in enumerate(numbers, start=1):
        if number in outcome.values:
            problem = compare.difference(answers[number], outcome.values[number], task.tolerance)
        else:
            problem = outcome.failures.get(number, "it was not reached in time")
        if problem and problem.startswith("NotImplementedError"):
            return f"{task.function}: not solved yet"
        if problem:
            return f"{task.function}: {problem}; case {case} of {task.cases}"
    return None


def _cell_trouble(name: str, cells: list[Cell], outcome: Outcome) -> str:
    own = [i for i, cell in enumerate(cells) if cell.name == name]
    if not own:
        return f". The cell {name} of the starter is missing"
    said = [f"it was stopped: {outcome.stopped[i]}" for i in own if i in outcome.stopped]
    said += [f"it raised {outcome.faults[i]}" for i in own if i in outcome.faults]
    return "".join(f". In the cell {name}: {text}" for text in said)


def place(cell: Cell) -> str:
    """A cell as its author finds it: its place among all cells, its name or how it begins."""
    begins = next((line.strip() for line in cell.source.splitlines() if line.strip()), "")
    return f"Cell {cell.number} ({cell.name or f'“{printable(begins, 40)}”'})"


def _remarks(ran: list[Cell], outcome: Outcome, master: Master) -> list[str]:
    """What happened to cells besides the functions that are called."""
    brought = forms(master, ("",))
    said = []
    for i, cell in enumerate(ran):
        if i in outcome.stopped:
            said.append(f"{place(cell)} was left out: {outcome.stopped[i]}.")
        elif i in outcome.faults:
            said.append(f"{place(cell)} raised {outcome.faults[i]}.")
        if i in outcome.notes and cell.source.strip() not in brought:
            lines = ", ".join(f"“{line}”" for line in outcome.notes[i])
            said.append(f"{place(cell)}: left out, since only Jupyter understands it: {lines}.")
    return said


def _unused(cells: list[Cell], master: Master) -> list[str]:
    ours = forms(master, SHOWN)
    return [
        f"{place(cell)} belongs to the starter and was not run; you changed it. Put code that your "
        "functions need into cells of your own."
        for cell in cells
        if cell.name.startswith(SHOWN) and cell.source.strip() not in ours
    ]


def _borrowed(cells: list[Cell], master: Master) -> list[str]:
    """Calls of the course's package in tasks whose solution does without: for whoever marks.

    Helpers of the student's own count like tasks, and names that they gave to imports like the
    package's; a cell that only compares does not.
    """
    theirs = _imported("\n".join(cell.source for cell in cells))
    names = {*_imported(master.setup), *sorted(theirs)[:50]} - {"figures"}
    calls = re.compile(rf"\b(?:{'|'.join(sorted(names))})(?:\.\w+|(?=\())" if names else "(?!)")
    solved = {masters.grade_id(cell): cell.source for cell in master.notebook.cells} | {"": ""}
    said, ours = [], forms(master, ("",))
    for cell in cells:
        used = set(calls.findall(cell.source)) - set(calls.findall(solved.get(cell.name, "")))
        own = cell.source.strip() not in ours and not cell.name.startswith(SHOWN)
        formula = cell.name.startswith("task-") or re.search(r"\b(?:def|lambda)\b", cell.source)
        if used and own and formula:
            listed = ", ".join(sorted(used)[:5])
            said.append(f"{place(cell)} uses {listed}; the task asks for formulas of your own.")
    return said


def _imported(source: str) -> set[str]:
    """The names under which some code knows the course's package, its modules and functions."""
    lines = re.findall(
        r"^[ \t]*(?:from ntkcourse[\w.]* import|import(?= ntkcourse)) ([^#\n]+)$",
        source,
        re.MULTILINE,
    )
    parts = [part.split() for line in lines for part in line.strip("() ").split(",")]
    return {part[-1].split(".")[0] for part in parts if part and re.fullmatch(r"[\w.]+", part[-1])}


def record(
    master: Master | None, tasks: list, remarks: list[str], output: str = "", refused: bool = False
) -> dict:
    """What is stored of one submission."""
    return {
        "refused": refused,
        "assignment": master.name if master else "",
        "title": master.title if master else "",
        "score": sum(task["score"] for task in tasks),
        "points": sum(task["points"] for task in tasks),
        "tasks": tasks,
        "written": [asdict(part) for part in master.written] if master else [],
        "remarks": [printable(text, 2000) for text in remarks[:REMARKS]],
        "output": printable(output, OUTPUT),
    }


def refused(reason: str, master: Master | None) -> dict:
    """The record of a submission that was not run."""
    tasks = [
        {"name": t.name, "title": t.title, "points": t.points, "score": 0, "message": "not run"}
        for t in (master.tasks if master else ())
    ]
    return record(master, tasks, [f"Not marked: {reason}."], refused=True)
