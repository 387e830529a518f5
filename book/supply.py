"""What the course is made of: licences, newer versions, and what these change.

python -m book.supply licences     a table of all packages with their licences
python -m book.supply newer FILE   write the versions that FILE (of pip freeze) has into the pins
python -m book.supply moved [REV]  how far stored numbers are from those of a revision
"""

import importlib.metadata
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PINS = ("requirements.txt", *(f"requirements-{kind}.txt" for kind in ("site", "homework", "test")))
NUMBER = re.compile(r"[-+]?\d+\.?\d*(?:e[-+]?\d+)?")


def canonical(name: str) -> str:
    """A package's name as all tools spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(text: str) -> dict[str, str]:
    """Versions by name in a list of requirements."""
    found = re.findall(r"^([A-Za-z0-9][\w.-]*)==([^\s\\;#]+)", text, re.MULTILINE)
    return {canonical(name): version for name, version in found}


def licence(name: str) -> str:
    """What a package says of its licence, in a few words."""
    about = importlib.metadata.metadata(name)
    if about.get("License-Expression"):
        return about["License-Expression"]
    classes = [c.split(" :: ")[-1] for c in about.get_all("Classifier", []) if "License ::" in c]
    words = (about.get("License") or "").strip()
    for file in importlib.metadata.files(name) or []:
        if not words and re.match(r"licen[cs]e|copying", file.name, re.IGNORECASE):
            words = file.read_text().strip()
    return ", ".join(classes) or words.splitlines()[0][:60] if classes or words else "not said"


def licences(root: Path = ROOT) -> Iterator[str]:
    """A line for every package that is installed by the lock."""
    for name, version in sorted(pinned((root / "requirements.lock").read_text()).items()):
        try:
            yield f"{name:34s} {version:14s} {licence(name)}"
        except importlib.metadata.PackageNotFoundError:
            yield f"{name:34s} {version:14s} not installed here"


def newer(freeze: str, text: str) -> str:
    """A list of requirements with the versions of a freeze; comments and order stay."""
    versions = pinned(freeze)

    def replace(match: re.Match) -> str:
        return f"{match[1]}=={versions.get(canonical(match[1]), match[2])}"

    return re.sub(r"^([A-Za-z0-9][\w.-]*)==([^\s;#]+)", replace, text, flags=re.MULTILINE)


def printed(notebook: str) -> list[str]:
    """What each code cell of a stored notebook printed, pictures aside."""
    texts = []
    for cell in json.loads(notebook)["cells"]:
        parts = []
        for output in cell.get("outputs", []):
            parts.append("".join(output.get("text", output.get("data", {}).get("text/plain", ""))))
        if cell["cell_type"] == "code":
            texts.append("\n".join(parts))
    return texts


def moved(before: str, after: str) -> Iterator[str]:
    """The cells of a notebook that say something else, and the largest change of a number."""
    old, new = printed(before), printed(after)
    if len(old) != len(new):
        yield f"{len(old)} cells before, {len(new)} now"
    for place, (one, two) in enumerate(zip(old, new, strict=False), start=1):
        if one == two:
            continue
        if NUMBER.sub("#", one) != NUMBER.sub("#", two):
            yield f"cell {place}: other words"
            continue
        pairs = [(float(a), float(b)) for a, b in zip(NUMBER.findall(one), NUMBER.findall(two),
                                                      strict=True)]  # fmt: skip
        a, b = max(pairs, key=lambda p: abs(p[1] - p[0]) / max(abs(p[0]), abs(p[1]), 1e-300))
        yield f"cell {place}: {sum(x != y for x, y in pairs)} numbers, most {a:g} → {b:g}"


def main(arguments: list[str]) -> int:
    """The command line; the result is the exit status."""
    match arguments:
        case ["licences"]:
            print("\n".join(licences()))
        case ["newer", freeze]:
            for name in PINS:
                path = ROOT / name
                path.write_text(newer(Path(freeze).read_text(), path.read_text()))
        case ["moved", *revision]:
            for path in sorted((ROOT / "chapters").glob("*.ipynb")):
                place = f"{(revision or ['HEAD'])[0]}:chapters/{path.name}"
                shown = subprocess.run(["git", "show", place], capture_output=True, cwd=ROOT)
                lines = list(moved(shown.stdout or '{"cells": []}', path.read_text()))
                print("\n".join(f"{path.stem}: {line}" for line in lines) or f"{path.stem}: same")
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
