"""Write starters, solutions and hidden tests from the masters; run a master only if it changed.

`homework/NN-name/starter.ipynb` is committed and published. The solved notebook and the hidden
tests go to `_build/homework/NN-name/`. The results that a starter shows are kept in it, so that
rewording a task runs nothing.
"""

import argparse
import copy
import json
import re
import time
from pathlib import Path

import nbformat
import yaml
from nbclient import NotebookClient

from book import notebooks

from . import masters
from .masters import Master, MasterError, grade_id
from .report import write
from .starter import KERNEL, canonical, entangled, starter

ROOT = Path(__file__).resolve().parent.parent
LIST = re.compile(r"(<!-- assignments: .*? -->\n).*?(<!-- end -->)", re.DOTALL)


def solve(master: Master, folder: Path) -> nbformat.NotebookNode:
    """The master with the outputs of a run in a fresh kernel."""
    notebook = copy.deepcopy(master.notebook)
    notebook.metadata.kernelspec = KERNEL
    client = NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(folder)}},
        record_timing=False, store_widget_state=False,
        extra_arguments=["--IPKernelApp.log_level=40"],
    )  # fmt: skip
    client.execute()
    return notebook


def results(solved: nbformat.NotebookNode) -> dict[str, str]:
    """What the show cells of a solved notebook printed and drew, as Markdown, by their names."""
    shown, faults = {}, []
    for cell in solved.cells:
        name = grade_id(cell)
        if not name.startswith("show-"):
            continue
        parts = []
        for output in cell.outputs:
            data = output.get("data", {})
            if output.output_type == "stream" and output.name == "stdout":
                parts.append(_fenced(output.text))
            elif "image/png" in data and not data.get("text/plain", "<").startswith("<"):
                alt = re.sub(r"([\[\]\\*_`$])", r"\\\1", " ".join(data["text/plain"].split()))
                image = "".join(data["image/png"].split())
                parts.append(f"![{alt}](data:image/png;base64,{image})")
            elif "image/png" not in data and "text/plain" in data:
                parts.append(_fenced(data["text/plain"]))
            else:
                faults.append(
                    f"{name}: expected text or a figure by figures.show, got {output}"[:300]
                )
        if not parts:
            faults.append(f"{name}: expected it to print or draw something, got nothing")
        shown[name] = "**Expected result**\n\n" + "\n\n".join(parts)
    if faults:
        raise MasterError("\n".join(faults))
    return shown


def _fenced(text: str) -> str:
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}text\n{text.rstrip()}\n{fence}"


def stored(path: Path) -> tuple[str, dict[str, str]]:
    """The key of a stored notebook and the expected results in it; nothing if there is none."""
    if not path.exists():
        return "", {}
    notebook = nbformat.read(path, as_version=4)
    shown = {
        grade_id(cell).replace("expected-", "show-"): cell.source
        for cell in notebook.cells
        if grade_id(cell).startswith("expected-")
    }
    return notebook.metadata.get("ntkcourse", {}).get("key", ""), shown


def hidden(master: Master) -> str:
    """The hidden tests as JSON, for whoever wants to read them in one place."""
    tests = [
        {"task": t.name, "points": t.points, "function": t.function, "cases": t.cases,
         "tolerance": t.tolerance, "declarations": t.source}
        for t in master.tasks
    ]  # fmt: skip
    return json.dumps(tests, indent=1, ensure_ascii=False) + "\n"


def release(path: Path, build: Path, force: bool = False) -> str:
    """Bring what belongs to one master up to date; the result says what was done."""
    master = masters.read(path)
    stamp = notebooks.key(master.notebook, ROOT)
    target, solution = path.with_name("starter.ipynb"), build / master.name / "solved.ipynb"
    key, shown = stored(target)
    ran = ""
    if force or key != stamp or stored(solution)[0] != stamp:
        start = time.monotonic()
        solved = solve(master, path.parent)
        ran = f"run in {time.monotonic() - start:.0f} s"
        shown = shown if key == stamp and not force else results(solved)
        own = {"assignment": master.name, "title": master.title, "key": stamp}
        write(solution, notebooks.serialised(canonical(solved.cells, own)))
    write(solution.with_name("hidden-tests.json"), hidden(master))
    text = notebooks.serialised(starter(master, shown, stamp))
    if target.exists() and target.read_text() == text:
        return f"{ran or 'nothing run'}, the starter is as it was"
    write(target, text)
    return f"{ran or 'nothing run, only the text changed'}, starter written"


def problems(path: Path) -> list[str]:
    """What is wrong with a master or its starter, without running anything."""
    try:
        master = masters.read(path)
    except (MasterError, ValueError) as error:
        return [str(error)]
    if faults := entangled(master):
        return faults
    target, stamp = path.with_name("starter.ipynb"), notebooks.key(master.notebook, ROOT)
    key, shown = stored(target)
    if key != stamp:
        return ["the starter is missing or out of date: make homework"]
    if notebooks.serialised(starter(master, shown, stamp)) != target.read_text():
        return ["the starter is not what the master gives: make homework"]
    return []


def listed(page: str, found: dict[str, Master]) -> str:
    """The page for students with the present list of assignments between its two marks."""
    repository = yaml.safe_load((ROOT / "_config.yml").read_text())["repository"]
    base = repository["url"].replace(
        "https://github.com", "https://colab.research.google.com/github"
    )
    lines = ["| assignment | points | start | download |", "|---|---|---|---|"]
    for name, master in found.items():
        colab = f"{base}/blob/{repository['branch']}/homework/{name}/starter.ipynb"
        lines.append(
            f"| {{doc}}`{master.title} <{name}/starter>` | {master.points:g} | "
            f"[on Colab]({colab}) | {{download}}`notebook <{name}/starter.ipynb>` |"
        )
    table = "\n".join(lines if found else ["There are no assignments yet."])
    return LIST.sub(lambda match: f"{match[1]}{table}\n{match[2]}", page)


def main(options: argparse.Namespace) -> int:
    """The command `release`; the result is the exit status."""
    found = masters.find(options.homework)
    if unknown := set(options.names) - set(found):
        raise ValueError(f"expected some of {', '.join(found)}, got {', '.join(sorted(unknown))}")
    failed = 0
    for name in options.names or found:
        if options.check:
            faults = problems(found[name])
            failed += bool(faults)
            print("\n".join(f"{name}: {fault}" for fault in faults) or f"{name}: ok")
            continue
        try:
            done = release(found[name], ROOT / "_build/homework", options.force)
        except (MasterError, *notebooks.STOPPED) as error:
            failed += 1
            done = f"stopped, the starter is unchanged\n{type(error).__name__}: {error}"
        print(f"{name}: {done}")
    page = options.homework / "index.md"
    if not failed and page.exists():
        text = listed(page.read_text(), {n: masters.read(p) for n, p in found.items()})
        if text != page.read_text() and options.check:
            failed += 1
            print("index.md: its list of assignments is out of date: make homework")
        elif text != page.read_text():
            write(page, text)
            print("index.md: list of assignments written")
    return 1 if failed else 0
