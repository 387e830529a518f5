"""Run an assignment as a student's notebook does: everything unsolved, then one task at a time."""

import contextlib
import io
import json
import re
from collections.abc import Callable, Iterator

import jax
import matplotlib.pyplot as plt
import numpy as np

from grading import compare, masters, starter, worker


def run(source: str, names: dict) -> None:
    """Run one cell, without the line that installs the package on Colab."""
    source = re.sub(r"^\s*%pip.*$", "    pass", source, flags=re.MULTILINE)
    exec(compile(source, "<cell>", "exec"), names)
    plt.close("all")


def stage(master: masters.Master) -> tuple[dict, dict[str, str], str]:
    """Names after the starter ran from top to bottom, its cells by name, and what it printed."""
    notebook = starter.starter(master, {}, "")
    names, cells, printed = {"__name__": "__main__"}, {}, io.StringIO()
    with contextlib.redirect_stdout(printed):
        for cell in notebook.cells:
            if cell.cell_type == "code":
                run(cell.source, names)
                cells[masters.grade_id(cell)] = cell.source
    return names, cells, printed.getvalue()


def solution(master: masters.Master, task: masters.Task, notebook: dict | None = None) -> str:
    """The solved cell of a task, in the master or in another notebook."""
    cells = (notebook or master.notebook).cells
    [cell] = [c for c in cells if masters.grade_id(c) == f"task-{task.name}"]
    return cell.source


def _each(change: Callable) -> Callable:
    """Apply a change to a result, or to each part of a tuple."""
    return lambda value: tuple(map(change, value)) if isinstance(value, tuple) else change(value)


def as_json(value):
    return (
        [as_json(part) for part in value] if isinstance(value, tuple) else np.array(value).tolist()
    )


VARIANTS = {
    "a list": lambda value: list(value) if isinstance(value, tuple) else value,
    "a tuple": lambda value: tuple(value) if np.ndim(value) == 1 else value,
    "stacked": lambda value: np.stack(value) if isinstance(value, tuple) else value,
    "nested lists": as_json,
    "rows in a list": lambda value: (
        list(value) if not isinstance(value, tuple) and np.ndim(value) else value),
    "single precision": _each(lambda part: np.asarray(part, dtype=np.float32)),
    "arrays of JAX": _each(lambda part: jax.numpy.asarray(part)),
    "complex": _each(lambda part: np.asarray(part) + 0j),
    "an axis in front": _each(lambda part: np.asarray(part)[None]),
    "an axis at the end": _each(lambda part: np.asarray(part)[..., None]),
    "flat": _each(lambda part: np.ravel(part)),
    "transposed": _each(lambda part: np.transpose(part)),
    "without axes of length one": _each(lambda part: np.squeeze(part)),
    "objects": _each(lambda part: np.asarray(part, dtype=object)),
    "a tuple of one": lambda value: value if isinstance(value, tuple) else (value,),
    "a generator": lambda value: iter(value) if isinstance(value, tuple) else value,
    "a dictionary": lambda value: dict(enumerate(value)) if isinstance(value, tuple) else value,
    "reversed": lambda value: value[::-1] if isinstance(value, tuple) else value,
    "text": _each(lambda part: str(part)),
    "whole numbers": _each(
        lambda part: part.astype(int) if np.all((part := np.asarray(part)) == part // 1) else part),
}  # fmt: skip


def disagreements(master: masters.Master, names: dict, cells: dict) -> Iterator[str]:
    """Variants of right results that the public cell accepts and the marking does not."""
    for task in master.tasks:
        own = dict(names)
        run(solution(master, task), own)
        right = own[task.function]
        inputs = [masters.inputs(task, master.name, "variants", case) for case in range(task.cases)]
        given = [[worker.argument(compare.sendable(a)) for a in args] for args in inputs]
        answers = [compare.checked(json.loads(worker.text(worker.plain(right(*a))))) for a in given]
        first = right(*given[0])
        try:  # or each variant would be passed over in silence
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                run(cells[f"test-{task.name}"], own)
            if printed.getvalue() != starter.PASSED + "\n":
                yield f"{master.name} {task.name}: the public cell prints {printed.getvalue()!r}"
        except Exception as error:
            yield f"{master.name} {task.name}: the public cell refuses the solution: {error!r}"
        for what, change in VARIANTS.items():
            try:
                if change(first) is first:
                    continue
            except ValueError:  # parts of different shapes cannot be stacked
                continue
            own[task.function] = lambda *a, change=change, right=right: change(right(*a))
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    run(cells[f"test-{task.name}"], own)
            except Exception:
                continue  # the public cell says no
            for answer, arguments in zip(answers, given, strict=True):
                try:
                    sent = worker.text(worker.plain(own[task.function](*arguments)))
                    got = compare.checked(json.loads(sent))
                    said = compare.difference(answer, got, task.tolerance)
                except Exception as error:
                    said = repr(error)
                if said:
                    yield f"{master.name} {task.name}, {what}: {said}"
                    break


def alone(master: masters.Master, names: dict, cells: dict) -> Iterator[str]:
    """Tasks whose cells do not run when all others are unsolved."""
    for task in master.tasks:
        own, printed = dict(names), io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                run(solution(master, task), own)
                for kind in ("show", "test"):
                    if f"{kind}-{task.name}" in cells:
                        run(cells[f"{kind}-{task.name}"], own)
        except Exception as error:
            yield f"{task.name}: {error!r}"
        if "not solved yet" in printed.getvalue():
            yield f"{task.name}: it needs another task"
