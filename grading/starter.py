"""The notebook for students: the master without its secrets, with what a right solution shows."""

import ast
import builtins
import copy
import hashlib
import re
import textwrap

import nbformat

from .masters import Master, MasterError, grade_id

KEPT = ("nbgrader", "tags", "mystnb", "deletable", "editable")
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
IF_SOLVED = '''from contextlib import contextmanager


@contextmanager
def if_solved(then=None):
    """What stands below waits for its task; so that all cells can be run at any time."""
    try:
        yield
        if then:
            print(then)
    except NotImplementedError:
        print("This task is not solved yet.")
'''
PASSED = "All checks of this cell pass."


def guarded(name: str, source: str) -> str:
    """A show or test cell as it stands in the starter: it does not stop at an unsolved task."""
    then = f'"{PASSED}"' if name.startswith("test-") else ""
    return f"with if_solved({then}):\n" + textwrap.indent(source.strip(), "    ")


def starter(master: Master, shown: dict[str, str], stamp: str) -> nbformat.NotebookNode:
    """The notebook for students: no solutions, no hidden tests, the expected results beside."""
    # Here, because the import takes seconds and marking does not need it.
    from nbgrader.preprocessors import ClearHiddenTests, ClearSolutions, LockCells

    notebook = copy.deepcopy(master.notebook)
    notebook.metadata.kernelspec = KERNEL
    for step in (ClearSolutions(text_stub="*Your answer here.*"), ClearHiddenTests(), LockCells()):
        notebook, _ = step.preprocess(notebook, {})
    cells = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        name = grade_id(cell)
        if name in shown:
            look = _locked(name.replace("show-", "expected-"))
            cells.append(nbformat.v4.new_markdown_cell(shown[name], metadata=look))
        if name.startswith(("show-", "test-")):
            cell.source = _polite(name, cell.source)
        cells.append(cell)
        if name == "setup":
            cells.append(
                nbformat.v4.new_code_cell(IF_SOLVED.strip(), metadata=_locked("if-solved"))
            )
    own = {"assignment": master.name, "title": master.title, "key": stamp}
    return canonical(cells, own | {"generated_from": "master.ipynb"})


def _locked(name: str) -> dict:
    own = {"schema_version": 3, "grade": False, "solution": False, "locked": True, "task": False}
    return {"nbgrader": own | {"grade_id": name}, "deletable": False, "editable": False}


def _polite(name: str, source: str) -> str:
    """The cell inside `if_solved`; indenting it must change nothing but the place of its lines."""
    text = guarded(name, source)
    [block] = ast.parse(text).body
    if ast.dump(ast.Module(block.body, [])) != ast.dump(ast.Module(ast.parse(source).body, [])):
        raise MasterError(f"{name}: expected no string of several lines, got one")
    if isinstance(block.body[-1], ast.Expr) and not isinstance(block.body[-1].value, ast.Call):
        raise MasterError(f"{name}: expected it to print or draw its result, got an expression")
    return text


def entangled(master: Master) -> list[str]:
    """Names that a show or test cell takes from the cells of another task."""
    cells = {grade_id(c): c.source for c in master.notebook.cells if c.cell_type == "code"}
    plain = [c.source for c in master.notebook.cells if c.cell_type == "code"
             and not grade_id(c).startswith(("task-", "show-", "test-"))]  # fmt: skip
    common = {name for source in plain for name in _names(source)[0]} | set(dir(builtins))
    faults = []
    for task in master.tasks:
        known = common | _names(cells[f"task-{task.name}"])[0]
        for cell in (f"show-{task.name}", f"test-{task.name}"):
            bound, used = _names(cells.get(cell, "").split("### BEGIN HIDDEN TESTS")[0])
            if missing := used - bound - known:
                faults.append(f"{cell}: expected no names of other tasks, got {sorted(missing)}")
    return faults


def _names(source: str) -> tuple[set[str], set[str]]:
    """The names that a cell binds somewhere, and those that it uses."""
    bound, used = set(), set()
    for node in ast.walk(ast.parse(re.sub(r"^(\s*)%.*$", r"\1pass", source, flags=re.MULTILINE))):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                used.add(name)
            case ast.Name(id=name) | ast.arg(arg=name):
                bound.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.alias(name=name, asname=other):
                bound.add(other or name.split(".")[0])
    return bound, used


def canonical(cells: list, own: dict) -> nbformat.NotebookNode:
    """A notebook whose bytes depend on its content only."""
    seen: dict[str, int] = {}
    clean = []
    for cell in cells:
        cell = copy.deepcopy(cell)
        cell.metadata = {name: cell.metadata[name] for name in KEPT if name in cell.metadata}
        name = grade_id(cell) or hashlib.sha256(cell.source.encode()).hexdigest()[:12]
        seen[name] = seen.get(name, 0) + 1
        cell.id = name[:60] if seen[name] == 1 else f"{name[:60]}-{seen[name]}"
        clean.append(cell)
    metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}, "ntkcourse": own}
    notebook = nbformat.v4.new_notebook(cells=clean, metadata=metadata)
    nbformat.validate(notebook)
    return notebook
