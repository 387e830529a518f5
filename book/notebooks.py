"""Run the chapters that changed and store what they printed and drew.

    python -m book.notebooks            run what changed
    python -m book.notebooks 04-ntk     the same for one chapter
    python -m book.notebooks --force    run everything
    python -m book.notebooks --check    run nothing, report what is wrong with the stored files

A chapter is a pair: `NN-name.md` is edited, `NN-name.ipynb` is written here and nowhere else.
"""

import argparse
import ast
import copy
import hashlib
import json
import os
import re
import sys
import time
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from ntkcourse.claims import MIME as CLAIM

ROOT = Path(__file__).resolve().parent.parent
WIDGET = "application/vnd.jupyter.widget-view+json"
# A cell that raises, hangs or kills its kernel, and a disk that is full
STOPPED = (CellExecutionError, CellTimeoutError, DeadKernelError, OSError)
# What the site knows how to render; anything else would silently disappear from a page.
MIME_TYPES = {"text/plain", "text/html", "image/png", CLAIM}


def chapters(root: Path = ROOT) -> list[Path]:
    """The sources of all executed pages."""
    pages = sorted((root / "chapters").glob("*.md"))
    return [page for page in pages if page.read_text().startswith("---\njupytext:")]


def key(chapter: nbformat.NotebookNode, root: Path = ROOT) -> str:
    """What the outputs of a chapter depend on: its code, the modules that it imports, the pins.

    The chapter's prose, modules that it does not reach, and comments and docstrings of the package
    are left out: to change them runs nothing again.
    """
    cells = [cell.source for cell in chapter.cells if cell.cell_type == "code"]
    digest = hashlib.sha256(json.dumps(cells).encode())
    for module in reached(cells, root / "ntkcourse"):
        digest.update(module.name.encode() + _code(module.read_text()).encode())
    for pins in ("requirements.txt", "constraints.txt"):
        lines = (root / pins).read_text().splitlines() if (root / pins).exists() else []
        digest.update(
            "\n".join(filter(None, (line.split("#")[0].strip() for line in lines))).encode()
        )
    return digest.hexdigest()[:16]


def reached(cells: list[str], package: Path) -> list[Path]:
    """The modules of the package that code cells import, and what these import in turn.

    `figures` can show live figures, which reach nearly everything: on a page that shows none, their
    modules do not count.
    """
    shows_live = any("figures.live(" in cell for cell in cells)
    modules = {path.stem: path for path in sorted(package.glob("*.py"))}
    # Lines for IPython are no Python; they import nothing of ours.
    sources = [re.sub(r"^(\s*)[%!].*$", r"\1pass", cell, flags=re.MULTILINE) for cell in cells]
    found, waiting = {"__init__"} & set(modules), sources
    while waiting:
        named = _imported(waiting.pop(), package.name)
        if named is None or not named <= set(modules):  # the package as a whole, or what it exports
            return list(modules.values())
        named = {name for name in named if shows_live or not name.startswith("live")}
        waiting += [modules[name].read_text() for name in sorted(named - found)]
        found |= named
    return [modules[name] for name in sorted(found)]


def _imported(source: str, package: str) -> set[str] | None:
    """The modules of a package that some code names; None if that is not to be seen."""
    names: set[str] = set()
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None if package in source else names
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            paths = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and (node.level or node.module):
            head = ([package] if node.level else []) + (node.module or "").split(".")
            head = [part for part in head if part]
            paths = [[*head, alias.name] for alias in node.names]
        else:
            continue
        for path in paths:
            if path[0] == package and path[1:2] != ["*"]:
                names.update(path[1:2] or {""})
            elif path[0] == package:
                names.add("")
    return names


def _code(text: str) -> str:
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node, clean=False
        ):
            doc = node.body[0]
            lines[doc.lineno - 1 : doc.end_lineno] = [""] * (doc.end_lineno - doc.lineno + 1)
    return "\n".join(line for line in lines if line.strip() and not line.lstrip().startswith("#"))


def run(source: Path, root: Path = ROOT) -> nbformat.NotebookNode:
    """Execute a chapter in a fresh kernel and return it in canonical form."""
    notebook = jupytext.read(source)
    stamp = key(notebook, root)  # now: the files may be edited while the chapter runs
    client = NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(source.parent)}},
        store_widget_state=False,
        # The kernel would warn about its transport once per chapter.
        extra_arguments=["--IPKernelApp.log_level=40"],
    )
    client.execute()
    return canonical(notebook, stamp)


def reworded(source: Path) -> nbformat.NotebookNode:
    """The chapter's present text with the stored outputs; its code must not have changed."""
    notebook, stored = jupytext.read(source), nbformat.read(source.with_suffix(".ipynb"), 4)
    ran = (cell for cell in stored.cells if cell.cell_type == "code")
    for cell in notebook.cells:
        if cell.cell_type == "code":
            before = next(ran)
            cell.outputs, cell.execution_count = before.outputs, before.execution_count
    return canonical(notebook, stored.metadata.ntkcourse.key)


def canonical(notebook: nbformat.NotebookNode, stamp: str) -> nbformat.NotebookNode:
    """The same notebook without anything that differs between two runs of it."""
    result = nbformat.v4.new_notebook(
        metadata={
            "jupytext": {"formats": "ipynb,md:myst"},
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
            "ntkcourse": {"key": stamp},
        }
    )
    seen: dict[str, int] = {}
    for cell in notebook.cells:
        name = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:12]
        seen[name] = seen.get(name, 0) + 1
        metadata = _kept(cell.metadata)
        clean = nbformat.from_dict(
            {
                "cell_type": cell.cell_type,
                "id": f"{name}-{seen[name]}",
                "metadata": metadata,
                "source": cell.source,
            }
        )
        if cell.cell_type == "code":
            clean.execution_count = cell.execution_count
            clean.outputs = _outputs(cell.outputs)
        result.cells.append(clean)
    nbformat.validate(result)
    return result


def _outputs(outputs: list) -> list:
    kept: list = []
    for output in outputs:
        if output.output_type == "stream" and kept and kept[-1].get("name") == output.name:
            kept[-1].text += output.text
            continue
        if "data" in output:
            # A stored view refers to a widget that died with its kernel; the HTML stays.
            output.data.pop(WIDGET, None)
        kept.append(output)
    return kept


def serialised(notebook: nbformat.NotebookNode) -> str:
    """The notebook as text, byte for byte the same for the same content."""
    # Text as lists of lines, as notebooks are stored, so that a diff shows the line that changed.
    notebook = nbformat.v4.rwbase.split_lines(copy.deepcopy(notebook))
    return json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def write(path: Path, text: str) -> None:
    """Replace a file in one step, so that an interrupted run leaves the old one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # another run may write the same file
    try:
        draft.write_text(text)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def is_current(source: Path, root: Path = ROOT) -> bool:
    """Whether the stored outputs were made by this code, package and pins."""
    stored = source.with_suffix(".ipynb")
    if not stored.exists():
        return False
    metadata = json.loads(stored.read_text())["metadata"]
    return metadata.get("ntkcourse", {}).get("key") == key(jupytext.read(source), root)


def problems(source: Path) -> list[str]:
    """Everything wrong with a stored chapter that can be seen without running it."""
    stored = source.with_suffix(".ipynb")
    if not stored.exists():
        return [f"{source.name} was never run: make notebooks"]
    text, notebook = jupytext.read(source), nbformat.read(stored, as_version=4)
    found = []
    if _content(text) != _content(notebook):
        found.append(f"{source.name} and {stored.name} differ: make notebooks")
    stamp = notebook.metadata.get("ntkcourse", {}).get("key", "")
    if serialised(canonical(notebook, stamp)) != stored.read_text():
        found.append("the notebook was saved by another program: make notebooks writes it")
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for expected, cell in enumerate(code, start=1):
        start = cell.source.strip().splitlines()[0] if cell.source.strip() else "(empty)"
        found += [f"cell {expected} ({start}): {fault}" for fault in _cell_faults(cell, expected)]
    return found


def _content(notebook: nbformat.NotebookNode) -> list[tuple]:
    return [(cell.cell_type, cell.source, _kept(cell.metadata)) for cell in notebook.cells]


def _kept(metadata: dict) -> dict:
    return {name: value for name, value in metadata.items() if name in ("tags", "mystnb")}


def _cell_faults(cell: nbformat.NotebookNode, expected: int) -> list[str]:
    found = []
    if cell.execution_count != expected:
        found.append(f"run out of order or not at all, its count is {cell.execution_count}")
    if "claims.check(" in cell.source and not any(CLAIM in o.get("data", {}) for o in cell.outputs):
        found.append("it checks a claim but stores no record")
    for output in cell.outputs:
        if output.output_type == "error":
            found.append(f"a stored error, {output.ename}")
        elif output.output_type == "stream" and output.name == "stderr":
            found.append(f"a warning, {output.text[:80]!r}")
        for mime in sorted(set(output.get("data", {})) - MIME_TYPES):
            found.append(f"an output the site cannot render, {mime}")
        if "image/png" in output.get("data", {}) and output.data["text/plain"].startswith("<"):
            found.append("a figure without alt text: figures.show(figure, alt=…)")
        for tag in re.findall(r"<img\b[^>]*>", output.get("data", {}).get("text/html", "")):
            if not re.search(r'\balt="[^"]+"', tag):
                found.append("a picture without alt text in HTML")
    return found


def main(arguments: list[str] | None = None) -> int:
    """The command line; the result is the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m book.notebooks", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--force", action="store_true", help="run chapters that did not change, too"
    )
    parser.add_argument("--check", action="store_true", help="run nothing, report what is wrong")
    parser.add_argument("names", nargs="*", help="chapters such as 04-ntk; all if none is named")
    options = parser.parse_args(arguments)
    sources = {source.stem: source for source in chapters()}
    if unknown := set(options.names) - set(sources):
        parser.error(f"expected some of {', '.join(sources)}, got {', '.join(sorted(unknown))}")
    failed = 0
    for source in [sources[name] for name in options.names] or sources.values():
        if options.check:
            found = problems(source) + (
                [] if is_current(source) else ["out of date: make notebooks"]
            )
            failed += bool(found)
            print("\n".join(f"{source.name}: {fault}" for fault in found) or f"{source.name}: ok")
            continue
        stored = source.with_suffix(".ipynb")
        if is_current(source) and not options.force:
            text = serialised(reworded(source))
            same = text == stored.read_text()
            if not same:
                write(stored, text)
            print(f"{source.name}: {'nothing' if same else 'only the text'} changed, nothing run")
            continue
        start = time.monotonic()
        print(f"{source.name}: running", flush=True)
        try:
            write(stored, serialised(run(source)))
        except STOPPED as error:
            failed += 1
            print(
                f"{source.name}: stopped, the stored notebook is unchanged\n"
                f"{type(error).__name__}: {error}",
                file=sys.stderr,
            )
            continue
        print(f"{source.name}: run in {time.monotonic() - start:.0f} s")
        for fault in problems(source):
            failed += 1
            print(f"{source.name}: {fault}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
