"""Find submissions in a folder and read them without trusting a byte."""

import json
import os
import re
import stat
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from .masters import grade_id

MB = 1 << 20
SIZE = 20 * MB
CELLS = 2000
FILES = 50  # of one student that are looked at
# Letters and marks that show nothing: fillers, joiners, selectors of variants, an empty pattern
UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


@dataclass(frozen=True)
class Submission:
    """A file that a student handed in, not yet read; or why there is none."""

    student: str
    path: Path
    problem: str = ""


@dataclass(frozen=True)
class Cell:
    """A code cell: the name that the starter gave it, its source, its place in the notebook."""

    name: str
    source: str
    number: int = 0


class RefusedError(ValueError):
    """A submission that cannot be marked; the text is for the student."""


def find(folder: Path) -> list[Submission]:
    """Everything in a folder, sorted: `<student>.ipynb`, the notebooks in `<student>/`, the rest.

    Whatever somebody managed to hand in gets an entry, never an error that stops the others.
    """
    if not folder.is_dir():
        raise NotADirectoryError(f"expected a folder with submissions, got {folder}")
    found: list[Submission] = []
    for entry in os.scandir(folder):
        if entry.name.startswith(".") or entry.name == "__MACOSX":
            continue
        try:
            found += _handed_in(entry)
        except OSError as error:
            reason = f"expected a folder or file that can be read, got: {error.strerror}"
            found.append(Submission(name(entry.name), Path(entry.path), reason))
    return sorted(found, key=lambda s: (s.student, s.path.name))


def _handed_in(entry: os.DirEntry) -> list[Submission]:
    path = Path(entry.path)
    if not entry.is_dir(follow_symlinks=False):
        if _is_notebook(entry.name):
            return [Submission(name(path.stem), path)]
        if entry.is_symlink():
            kind = "a symbolic link"
        else:
            kind = name(entry.name)
            kind += ", an archive: unpack it" if path.suffix in (".zip", ".gz", ".7z") else ""
        return [Submission(name(entry.name), path, f"expected a notebook (.ipynb), got {kind}")]
    inside = sorted(other for other in os.listdir(path) if not other.startswith("."))
    books = [path / other for other in inside if _is_notebook(other)][:FILES]
    if books:
        return [Submission(name(entry.name), book) for book in books]
    listed = ", ".join(name(other) for other in inside[:5]) or "nothing"
    reason = f"expected a notebook (.ipynb) in the folder, got {listed}"
    return [Submission(name(entry.name), path, reason)]


def _is_notebook(text: str) -> bool:
    return text.lower().endswith(".ipynb")


def name(text: str) -> str:
    """A file's name as text; characters that one cannot see are written out, so none look alike."""
    text = text.replace("\\", "\\\\")  # what is written out is nobody's own spelling
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    text = re.sub("^ | $|(?<= ) ", r"\\x20", text)
    unseen = [unicodedata.category(c)[0] in "CZ" or UNSEEN.match(c) for c in text]
    return "".join(
        ascii(c)[1:-1] if u and c != " " else c for c, u in zip(text, unseen, strict=True)
    )


def printable(text: str, length: int | None = None) -> str:
    """A text that can be stored as UTF-8 and shown: no lone surrogates, no control characters."""
    text = text.encode("utf-8", "backslashreplace").decode()
    text = re.sub(
        r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff"
        r"\U000e0000-\U000e007f]",
        "�",
        text,
    )
    text = re.sub(r"\b0x[0-9a-f]{6,}\b", "0x…", text)  # addresses differ from run to run
    return text if length is None or len(text) <= length else text[:length] + " …"


def load(path: Path) -> bytes:
    """The bytes of a plain file of at most 20 MB; links, folders and devices are refused."""
    try:
        if stat.S_ISLNK(path.lstat().st_mode):
            raise RefusedError("expected a notebook file, got a symbolic link")
        # No following and no waiting: the file may have been exchanged, or be a pipe.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise RefusedError("expected a notebook file, got a folder, device or pipe")
            content = b""
            if status.st_size <= SIZE:
                with os.fdopen(os.dup(handle), "rb") as file:
                    content = file.read(SIZE + 1)
        finally:
            os.close(handle)
    except OSError as error:
        raise RefusedError(f"expected a notebook file, got: {error.strerror}") from error
    if status.st_size > SIZE or len(content) > SIZE:
        raise RefusedError(
            f"expected a file of at most {SIZE // MB} MB, got {status.st_size / MB:.0f} MB; "
            "clear the outputs and hand in again"
        )
    return content


def parse(content: bytes) -> dict:
    """The notebook as JSON, with the parts that matter checked."""
    try:
        text = content.decode("utf-8-sig")  # some editors put a mark in front
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
        cells.append(Cell(printable(grade_id(cell), 80), source, number))
    return cells
