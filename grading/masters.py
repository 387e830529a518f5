"""Read a master notebook: its tasks, their points, and the declarations of their hidden tests."""

import ast
import copy
import hashlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
import numpy as np

SOLUTION = re.compile(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", re.DOTALL)
HIDDEN = re.compile(r"### BEGIN HIDDEN TESTS\n(.*?)### END HIDDEN TESTS", re.DOTALL)
DECLARED = {"function": str, "cases": int, "tolerance": float}


@dataclass(frozen=True)
class Task:
    """A task that is marked by calling the student's function on hidden inputs."""

    name: str
    title: str
    points: float
    function: str
    cases: int
    tolerance: float
    draw: Callable
    source: str  # of the declarations


@dataclass(frozen=True)
class Written:
    """A task that is marked by hand."""

    name: str
    title: str
    points: float


@dataclass(frozen=True)
class Master:
    """An assignment; `digest` changes with every byte of its notebook."""

    name: str
    title: str
    notebook: nbformat.NotebookNode
    setup: str
    tasks: tuple[Task, ...]
    written: tuple[Written, ...]
    digest: str

    @property
    def points(self) -> float:
        """What a perfect submission gets, hand marks included."""
        return sum(part.points for part in (*self.tasks, *self.written))


class MasterError(ValueError):
    """A master that does not follow the format; the text lists everything that is wrong."""


def find(folder: Path) -> dict[str, Path]:
    """The masters below a folder, by the name of their assignment."""
    return {path.parent.name: path for path in sorted(folder.glob("*/master.ipynb"))}


def grade_id(cell: dict) -> str:
    """The name that nbgrader's metadata gives a cell, or nothing."""
    given = cell.get("metadata", {})
    given = given.get("nbgrader", {}) if isinstance(given, dict) else {}
    name = given.get("grade_id", "") if isinstance(given, dict) else ""
    return name if isinstance(name, str) else ""


def read(path: Path) -> Master:
    """The master at a path; a MasterError lists every departure from the format."""
    content = path.read_bytes()
    notebook = nbformat.reads(content.decode(), as_version=4)
    faults: list[str] = []
    cells: dict[str, nbformat.NotebookNode] = {}
    for cell in notebook.cells:
        if (name := grade_id(cell)) in cells:
            faults.append(f"expected every grade_id once, got {name} twice")
        elif name:
            cells[name] = cell
    own = notebook.metadata.get("ntkcourse", {})
    if own.get("assignment") != path.parent.name:
        faults.append(
            f"expected assignment {path.parent.name!r} in its metadata, got "
            f"{own.get('assignment')!r}"
        )
    if "setup" not in cells:
        faults.append("expected a setup cell with grade_id 'setup', got none")
    tasks = [task for name in cells if (task := _task(name, cells, faults)) is not None]
    written = [
        Written(name.removeprefix("written-"), _title(cells, name), _points(cell, faults))
        for name, cell in cells.items()
        if name.startswith("written-")
    ]
    for name in {task.name for task in tasks} & {part.name for part in written}:
        faults.append(f"expected different names, got task-{name} and written-{name}")
    faults += _stray(cells, {task.name for task in tasks}) + _entangled(tasks, cells)
    faults += _wrong_faults(own.get("wrong", {}), tasks, cells)
    if not tasks:
        faults.append("expected at least one task, got none")
    if faults:
        raise MasterError(f"{path}:\n" + "\n".join(f"- {fault}" for fault in faults))
    return Master(
        path.parent.name, own.get("title", path.parent.name), notebook, cells["setup"].source,
        tuple(tasks), tuple(written), hashlib.sha256(content).hexdigest(),
    )  # fmt: skip


def _task(name: str, cells: dict, faults: list[str]) -> Task | None:
    if not name.startswith("task-") or cells[name].cell_type != "code":
        return None
    short = name.removeprefix("task-")
    test = cells.get(f"test-{short}")
    if test is None:
        faults.append(f"{name}: expected a test cell test-{short}, got none")
        return None
    hidden = HIDDEN.findall(test.source)
    if len(hidden) != 1:
        faults.append(f"test-{short}: expected one block of hidden tests, got {len(hidden)}")
        return None
    if not SOLUTION.search(cells[name].source):
        faults.append(f"{name}: expected a block ### BEGIN SOLUTION … ### END SOLUTION, got none")
    try:
        declared = declarations(hidden[0])
    except (ValueError, SyntaxError) as error:
        faults.append(f"test-{short}: {error}")
        return None
    functions = [
        node.name for node in _parsed(cells[name].source) if isinstance(node, ast.FunctionDef)
    ]
    if declared["function"] not in functions:
        faults.append(f"{name}: expected a function {declared['function']}, got {functions}")
    title = _title(cells, f"{name}-text")
    points = _points(test, faults)
    return Task(name=short, title=title, points=points, source=hidden[0], **declared)


def declarations(source: str) -> dict:
    """The names that a hidden test declares: function, cases, tolerance, draw; nothing else."""
    found: dict = {}
    for node in ast.parse(source).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) if name in DECLARED:
                found[name] = ast.literal_eval(node.value)
            case ast.FunctionDef(name="draw"):
                found["draw"] = node
            case _:
                raise ValueError(
                    "expected only function, cases, tolerance and draw in a hidden test, got "
                    f"{ast.unparse(node).splitlines()[0]!r}"
                )
    if missing := ({*DECLARED, "draw"}) - set(found):
        raise ValueError(f"expected {', '.join(sorted(missing))} in the hidden test, got none")
    for name, kind in DECLARED.items():
        if not isinstance(found[name], kind) or (kind is not str and found[name] <= 0):
            positive = "" if kind is str else "a positive "
            raise ValueError(f"expected {name} as {positive}{kind.__name__}, got {found[name]!r}")
    names = {"np": np}
    exec(compile(source, "<hidden test>", "exec"), names)
    if list(inspect.signature(names["draw"]).parameters) != ["rng"]:
        raise ValueError("expected draw(rng), got other parameters")
    return {name: names[name] for name in (*DECLARED, "draw")}


def inputs(task: Task, assignment: str, seed: str, case: int) -> tuple:
    """The arguments of one hidden call; they depend on the seed, the task and the case only."""
    words = hashlib.sha256(f"{seed}\n{assignment}\n{task.name}\n{case}".encode()).digest()
    drawn = task.draw(np.random.default_rng(list(words)))
    return drawn if isinstance(drawn, tuple) else (drawn,)


def wrong_solutions(master: Master) -> Iterator[tuple[Task, str, nbformat.NotebookNode]]:
    """Every solution that the master declares wrong: its task, what is wrong, the notebook."""
    for task in master.tasks:
        for entry in master.notebook.metadata["ntkcourse"]["wrong"][task.name]:
            notebook = copy.deepcopy(master.notebook)
            for cell in notebook.cells:
                if grade_id(cell) == f"task-{task.name}":
                    cell.source = cell.source.replace(entry["replace"], entry["by"])
            yield task, entry["what"], notebook


def _parsed(source: str) -> list:
    try:
        return ast.parse(source).body
    except SyntaxError:
        return []


def _title(cells: dict, name: str) -> str:
    """The first heading of a cell without its difficulty, or the cell's name."""
    source = cells[name].source if name in cells else ""
    heading = re.search(r"^#+ *(.+?) *(?:\(difficulty.*)?$", source, re.MULTILINE)
    return heading.group(1) if heading else name.removesuffix("-text")


def _points(cell: nbformat.NotebookNode, faults: list[str]) -> float:
    points = cell.metadata.nbgrader.get("points")
    if not isinstance(points, int | float) or points <= 0:
        faults.append(f"{grade_id(cell)}: expected a positive number of points, got {points!r}")
        return 0
    return points


def _stray(cells: dict, known: set[str]) -> list[str]:
    return [
        f"{name}: expected a task {name.split('-', 1)[1]} that it belongs to, got none"
        for name in cells
        if name.startswith(("test-", "show-")) and name.split("-", 1)[1] not in known
    ]


def _entangled(tasks: list[Task], cells: dict) -> list[str]:
    """Tasks that use each other's functions: one mistake would then cost twice."""
    owners = {task.function: task.name for task in tasks}
    return [
        f"task-{task.name}: expected it not to use {node.id}, the function of another task"
        for task in tasks
        for part in _parsed(cells[f"task-{task.name}"].source)
        for node in ast.walk(part)
        if isinstance(node, ast.Name) and owners.get(node.id, task.name) != task.name
    ]


def _wrong_faults(wrong: dict, tasks: list[Task], cells: dict) -> list[str]:
    faults = [
        f"metadata wrong: there is no task {n}" for n in wrong if n not in {t.name for t in tasks}
    ]
    for task in tasks:
        source = cells[f"task-{task.name}"].source
        if not wrong.get(task.name):
            faults.append(f"task-{task.name}: expected a wrong solution in the metadata, got none")
        for entry in wrong.get(task.name, []):
            if set(entry) != {"what", "replace", "by"}:
                faults.append(f"wrong {task.name}: expected what, replace and by, got {set(entry)}")
            elif entry["replace"] not in source:
                faults.append(f"wrong {task.name}: {entry['replace']!r} is not in the solution")
    return faults
