"""Lessons and their notes: which pages they are, how long, and whether the cells run alone.

    python -m book.lessons          words and visible cells of every page
    python -m book.lessons 04-ntk   run each visible cell of a lesson alone

A chapter that is split is two pages, the lesson `NN-name.md` and the notes `NN-name-notes.md`.
"""

import contextlib
import io
import os
import re
import sys
from pathlib import Path

import jupytext
import nbformat

from book import notebooks

NOTES = "-notes"
WORDS, CELLS, LINES = 4000, 14, 15
"""At most so many words on a lesson, visible cells on it, and lines in one of them."""
HIDDEN = {"remove-cell", "remove-input", "hide-cell", "hide-input"}
SOLUTION = re.compile(r"^(:{3,}|`{3,})\{solution\}.*?^\1\s*$", re.DOTALL | re.MULTILINE)


def lessons(root: Path = notebooks.ROOT) -> list[Path]:
    """The sources of all lessons: pages that have notes."""
    pages = notebooks.chapters(root)
    return [page for page in pages if page.with_name(f"{page.stem}{NOTES}.md") in pages]


def words(text: str) -> int:
    """How many words a reader reads: no solutions, no markup; a formula counts as one word."""
    text = SOLUTION.sub("", text)
    text = re.sub(r"\$\$.*?\$\$(\s*\([a-z-]+\))?", " x ", text, flags=re.DOTALL)
    text = re.sub(r"\$[^$]+\$", "x", text)
    text = re.sub(
        r"^\([a-z0-9-]+\)=$|^:[a-z-]+:.*$|^(:{3,}|`{3,}).*$", "", text, flags=re.MULTILINE
    )
    text = re.sub(r"\{[a-z:]+\}`([^`<]*)(<[^`]*>)?`", r"\1", text)
    return len(re.findall(r"\w[\w’'.–-]*", text))


def visible(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """The code cells whose source a reader of the site sees without opening anything."""
    return [
        cell
        for cell in notebook.cells
        if cell.cell_type == "code" and not HIDDEN & set(cell.metadata.get("tags", []))
    ]


def length(source: Path) -> tuple[int, int, int]:
    """Words, visible cells, and lines of the longest of them."""
    notebook = jupytext.read(source)
    prose = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    cells = visible(notebook)
    longest = max((len(cell.source.strip().splitlines()) for cell in cells), default=0)
    return words(prose), len(cells), longest


def report(root: Path = notebooks.ROOT) -> str:
    """A table of all pages, the notes below their lesson."""
    rows = ["words  cells  longest  page"]
    for source in sorted(notebooks.chapters(root), key=lambda page: page.stem):
        rows.append("{:5}  {:5}  {:7}  ".format(*length(source)) + source.stem)
    return "\n".join(rows)


def alone(source: Path) -> list[str]:
    """What goes wrong when each visible cell runs in a fresh namespace, one message per cell.

    Before it run only the first visible cell, which imports, and the cell tagged `data`.
    """
    cells = visible(jupytext.read(source))
    before = [cells[0], *(c for c in cells if "data" in c.metadata.get("tags", []))]
    faults = []
    if not re.match(r"(#.*\n|\s)*(import|from) ", cells[0].source):
        faults.append("the first visible cell does not import")
    if len(before) > 2:
        faults.append(f"expected one cell tagged data, got {len(before) - 1}")
    for cell in cells:
        namespace: dict = {"__name__": "__main__"}
        needed = [other.source for other in before if other is not cell]
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                for text in [*needed, cell.source] if cell is not cells[0] else [cell.source]:
                    exec(compile(text, "<cell>", "exec"), namespace)
        except Exception as error:
            start = cell.source.strip().splitlines()[0]
            faults.append(f"the cell “{start}” does not run alone: {error!r}")
    return faults


def main(names: list[str]) -> int:
    """The command line; the result is the exit status."""
    if not names:
        print(report())
        return 0
    os.environ.setdefault("MPLBACKEND", "agg")
    sources = {source.stem: source for source in notebooks.chapters()}
    faults = [f"{name}: {fault}" for name in names for fault in alone(sources[name])]
    print("\n".join(faults) or f"{', '.join(names)}: every visible cell runs alone")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
