"""A small assignment without JAX: three numeric tasks and a written one, quick enough for tests."""

import json
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

NAME = "00-sample"

SETUP = "import numpy as np"

KINETIC = '''def energy(v, mass):
    """Kinetic energy of particles with velocities v of shape (n, d)."""
    ### BEGIN SOLUTION
    return 0.5 * mass * np.sum(v**2)
    ### END SOLUTION'''

GRAM = '''def gram(x, y):
    """Inner products of the rows of x and y, and the trace of x x^T."""
    ### BEGIN SOLUTION
    return x @ y.T, np.sum(x * x)
    ### END SOLUTION'''

CENTRE = '''def centred(x):
    """The rows of x minus their mean."""
    ### BEGIN SOLUTION
    return x - np.mean(x, axis=0)
    ### END SOLUTION'''


def _test(public: str, function: str, draw: str) -> str:
    return (
        f"{public}\n### BEGIN HIDDEN TESTS\n"
        f'function = "{function}"\ncases = 3\ntolerance = 1e-8\n'
        f"def draw(rng):\n    return {draw}\n### END HIDDEN TESTS"
    )


def _meta(name: str, points: float | None = None, *, solution=False, tags=()) -> dict:
    own = {
        "schema_version": 3,
        "grade_id": name,
        "grade": points is not None,
        "solution": solution,
        "locked": not solution,
        "task": False,
    }
    if points is not None:
        own["points"] = points
    return {"nbgrader": own} | ({"tags": list(tags)} if tags else {})


def _task(number, name, title, points, solution, show, test) -> list:
    head = f"## Task {number}: {title} (difficulty: ●○○, {points} points)\n\nWrite it."
    return [
        new_markdown_cell(head, metadata=_meta(f"task-{name}-text")),
        new_code_cell(solution, metadata=_meta(f"task-{name}", solution=True)),
        new_code_cell(show, metadata=_meta(f"show-{name}", tags=["show"])),
        new_code_cell(test, metadata=_meta(f"test-{name}", points)),
    ]


FIGURE = """import matplotlib.pyplot as plt

from ntkcourse import figures

fig, ax = plt.subplots(figsize=(2, 1))
ax.imshow(gram(np.eye(2), np.eye(2))[0])
figures.show(fig, alt="A bright diagonal [of two squares] on a dark ground.")"""


def master() -> nbformat.NotebookNode:
    """The master notebook."""
    cells = [
        new_markdown_cell("# A sample\n\nThree tasks and a question, to try the tools with."),
        new_code_cell(SETUP, metadata=_meta("setup")),
        *_task(1, "energy", "kinetic energy", 4, KINETIC, "print(energy(np.ones((2, 3)), 2.0))",
               _test('assert abs(energy(np.ones((1, 1)), 2.0) - 1) < 1e-9, "1/2 m v^2"',
                     "energy", "rng.normal(size=(5, 2)), 0.5 + rng.random()")),
        *_task(2, "gram", "inner products", 5, GRAM, FIGURE,
               _test('assert gram(np.eye(2), np.eye(2))[0].shape == (2, 2), "one row per point"',
                     "gram", "rng.normal(size=(4, 3)), rng.normal(size=(2, 3))")),
        *_task(3, "centre", "centring", 6, CENTRE, "print(centred(np.arange(4.0).reshape(2, 2)))",
               _test('assert np.allclose(centred(np.ones((3, 1))), 0), "a mean of zero"',
                     "centred", "(rng.normal(size=(rng.integers(2, 6), 3)),)")),
        new_markdown_cell(
            "### Why\n\nWhy is there a ½?\n\n### BEGIN SOLUTION\nIt is an integral.\n"
            "### END SOLUTION",
            metadata=_meta("written-why", 5, solution=True),
        ),
    ]  # fmt: skip
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"
    wrong = {
        "energy": [{"what": "missing 1/2", "replace": "0.5 * mass", "by": "mass"}],
        "gram": [
            {"what": "not transposed", "replace": "x @ y.T", "by": "(x @ y.T).T"},
            {"what": "sign", "replace": "np.sum(x * x)", "by": "-np.sum(x * x)"},
        ],
        "centre": [{"what": "wrong axis", "replace": "axis=0", "by": "axis=1, keepdims=True"}],
    }
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "ntkcourse": {"assignment": NAME, "title": "A sample", "wrong": wrong},
    }
    return new_notebook(cells=cells, metadata=metadata)


def write(folder: Path) -> Path:
    """Store the master below a folder of assignments."""
    path = folder / NAME / "master.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(nbformat.writes(master()))
    return path


def submission(**replaced: str) -> dict:
    """The solved notebook with the cells `task_energy=…` replaced; None deletes one."""
    notebook = json.loads(nbformat.writes(master()))
    cells = []
    for cell in notebook["cells"]:
        name = cell["metadata"].get("nbgrader", {}).get("grade_id", "").replace("-", "_")
        source = replaced.get(name, cell["source"])
        if source is not None:
            cells.append(cell | {"source": source})
    return notebook | {"cells": cells}
