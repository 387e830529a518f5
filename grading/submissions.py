"""Find submissions in a folder and read them without trusting a byte."""

import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .masters import grade_id

MB = 1 << 20
SIZE = 20 * MB
CELLS = 2000


@dataclass(frozen=True)
class Submission:
    """A file that a student handed in, not yet read."""

    student: str
    path: Path


@dataclass(frozen=True)
class Cell:
    """A code cell of a submission: the name that the starter gave it, and its source."""

    name: str
    source: str


class RefusedError(ValueError):
    """A submission that cannot be marked; the text is for the student."""


def find(folder: Path, assignment: str | None) -> list[Submission]:
    """`<student>.ipynb` and `<student>/<assignment>.ipynb`, sorted by student and file."""
    if not folder.is_dir():
        raise NotADirectoryError(f"expected a folder with submissions, got {folder}")
    return sorted(_found(folder, assignment), key=lambda s: (s.student, s.path.name))


def _found(folder: Path, assignment: str | None) -> Iterator[Submission]:
    for entry in os.scandir(folder):
        path = Path(entry.path)
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            inside = [p for p in path.iterdir() if p.suffix == ".ipynb"]
            if assignment is not None:
                inside = [path / f"{assignment}.ipynb"]
            for file in inside:
                yield Submission(printable(entry.name), file)
        elif path.suffix == ".ipynb" or entry.is_symlink():
            yield Submission(printable(path.stem), path)


def printable(text: str, length: int | None = None) -> str:
    """A text that can be stored as UTF-8 and shown: no lone surrogates, no control characters."""
    text = text.encode("utf-8", "backslashreplace").decode()
    text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", "�", text)
    text = re.sub(r"\b0x[0-9a-f]{6,}\b", "0x…", text)  # addresses differ from run to run
    return text if length is None or len(text) <= length else text[:length] + " …"


def load(path: Path) -> bytes:
    """The bytes of a plain file of at most 20 MB; links and devices are refused."""
    try:
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            raise RefusedError("expected a notebook file, got a symbolic link")
        # No following and no waiting: the file may have been exchanged, or be a pipe.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise RefusedError(f"expected a notebook file, got: {error.strerror}") from error
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise RefusedError("expected a notebook file, got a device, pipe or folder")
        content = file.read(SIZE + 1) if status.st_size <= SIZE else b""
    if status.st_size > SIZE or len(content) > SIZE:
        raise RefusedError(
            f"expected a file of at most {SIZE // MB} MB, got {status.st_size / MB:.0f} MB; "
            "clear the outputs and hand in again"
        )
    return content


def parse(content: bytes) -> dict:
    """The notebook as JSON, with the parts that matter checked."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RefusedError(f"expected UTF-8 text, got other bytes at {error.start}") from error
    try:
        notebook = json.loads(text)
    except RecursionError as error:
        raise RefusedError("expected a notebook, got JSON that is nested too deeply") from error
    except ValueError as error:
        raise RefusedError(
            f"expected a complete notebook, got broken or truncated JSON: {str(error)[:120]}"
        ) from error
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list) or notebook.get("nbformat") != 4:
        raise RefusedError("expected a Jupyter notebook of format 4, got something else")
    if len(cells) > CELLS:
        raise RefusedError(f"expected at most {CELLS} cells, got {len(cells)}")
    return notebook


def assignment(notebook: dict) -> str | None:
    """The assignment that a notebook says it belongs to."""
    metadata = notebook.get("metadata")
    own = metadata.get("ntkcourse") if isinstance(metadata, dict) else None
    name = own.get("assignment") if isinstance(own, dict) else None
    return name if isinstance(name, str) else None


def code_cells(notebook: dict) -> list[Cell]:
    """The code cells in their order."""
    cells = []
    for number, cell in enumerate(notebook["cells"], start=1):
        if not isinstance(cell, dict) or not isinstance(cell.get("cell_type"), str):
            raise RefusedError(f"expected a cell at place {number}, got something else")
        if cell["cell_type"] != "code":
            continue
        source = cell.get("source", "")
        if isinstance(source, list) and all(isinstance(line, str) for line in source):
            source = "".join(source)
        if not isinstance(source, str):
            raise RefusedError(f"expected text in cell {number}, got something else")
        cells.append(Cell(printable(grade_id(cell), 80), source))
    return cells
