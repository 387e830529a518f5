"""Run cells and calls to the end, whatever some of them do to the process they run in.

A cell that kills or hangs its process is left out and everything starts anew; a call that does so
costs its task and the others are made in a new process. So a hostile cell costs its own task only.
"""

from dataclasses import dataclass, field

from . import compare, sandbox
from .sandbox import Limits, SandboxError

RESTARTS = 12
NOTES = 5  # lines of one cell that a report names


@dataclass(frozen=True)
class Call:
    """One call of a student's function."""

    task: str
    function: str
    arguments: tuple
    seed: int = 0  # for what the function draws by itself


@dataclass
class Outcome:
    """What became of cells and calls, by their numbers."""

    values: dict[int, dict] = field(default_factory=dict)  # of calls that returned
    failures: dict[int, str] = field(default_factory=dict)  # of calls that did not
    faults: dict[int, str] = field(default_factory=dict)  # of cells that raised
    stopped: dict[int, str] = field(default_factory=dict)  # of cells that had to be left out
    notes: dict[int, list[str]] = field(default_factory=dict)  # lines of cells that were left out
    output: str = ""
    doubtful: bool = False  # whether some end may be the fault of a busy machine


def perform(cells: list[str], calls: list[Call], limits: Limits, unsafe: bool = False) -> Outcome:
    """Run the cells in order and then make the calls; cell 0 is the master's own setup."""
    outcome, spent = Outcome(), 0.0
    orders = [
        {"function": call.function, "seed": call.seed,
         "arguments": [compare.sendable(a) for a in call.arguments]}
        for call in calls
    ]  # fmt: skip
    for attempt in range(RESTARTS + 1):
        asked = [k for k in range(len(calls)) if not _answered(outcome, k)]
        if attempt and (not asked or spent > limits.total):
            break
        run = sandbox.run(
            [None if i in outcome.stopped else cell for i, cell in enumerate(cells)],
            [orders[k] if k in asked else None for k in range(len(calls))],
            limits, unsafe, limits.total - spent,
        )  # fmt: skip
        spent += run.spent
        outcome.doubtful |= run.doubtful
        _collect(run, outcome, set(asked), len(cells))
        outcome.output = run.output if len(run.output) > len(outcome.output) else outcome.output
        reason = outcome.faults.get(0) or (run.end if run.at in (None, ("cell", 0)) else None)
        if reason:
            raise SandboxError(f"the setup cell did not run: {reason}\n{run.output[-2000:]}")
        if all(_answered(outcome, k) for k in asked):
            break
        _blame(run, outcome, calls, len(cells))
    return outcome


def _answered(outcome: Outcome, call: int) -> bool:
    return call in outcome.values or call in outcome.failures


def _collect(run: sandbox.Run, outcome: Outcome, asked: set[int], cells: int) -> None:
    """Take what was asked for; everything else in the messages is somebody's invention."""
    outcome.faults.clear()  # of an earlier attempt
    outcome.notes.clear()
    for message in run.messages:
        match message:
            case {"failed": ["cell", int(number)], "why": str(why)} if 0 <= number < cells:
                outcome.faults[number] = why
            case {"failed": ["call", int(number)], "why": str(why)} if number in asked:
                outcome.failures[number] = why
            case {"note": int(number), "why": str(line)} if 0 <= number < cells:
                lines = outcome.notes.setdefault(number, [])
                lines += [line] if len(lines) < NOTES else []
            case {"result": int(number), "value": value} if number in asked:
                outcome.values[number] = value


def _blame(run: sandbox.Run, outcome: Outcome, calls: list[Call], cells: int) -> None:
    """Decide what to leave out of the next attempt."""
    why = run.end or "it ended the program early"
    kind, number = run.at or ("cell", -1)
    if kind == "cell" and 0 < number < cells:
        outcome.stopped[number] = why
        return
    if kind == "call" and 0 <= number < len(calls) and not _answered(outcome, number):
        task = calls[number].task
    else:
        task = next(c.task for k, c in enumerate(calls) if not _answered(outcome, k))
    for k, call in enumerate(calls):
        if call.task == task and not _answered(outcome, k):
            outcome.failures[k] = why
