"""Planted faults: each of them has to turn the test command red, or the tests are decoration.

Every test works on a copy of the repository with one small chapter, `sample.md`, breaks one thing
in it and runs the real command.
"""

import base64
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

ROOT = Path(__file__).resolve().parent.parent
CHAPTER = "chapters/04-ntk"
NBVAL = ["-p", "book.pixels", "--nbval", "--nbval-sanitize-with", "book/nbval.cfg"]
FRAME = re.compile(r"(data:image/png;base64,)([A-Za-z0-9+/=]+)")


TOC = f"""format: jb-book
root: chapters/index
chapters:
  - file: {CHAPTER}
  - file: chapters/ledger
  - file: chapters/errata
  - file: chapters/bibliography
"""


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """A small book of one executed chapter, with the real package, engine and tests."""
    root = tmp_path_factory.mktemp("book")
    for name in ("book", "ntkcourse", "tests"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("_config.yml", "pyproject.toml", "requirements.txt"):
        shutil.copy(ROOT / name, root)
    (root / "chapters").mkdir()
    for name in ("ledger.md", "errata.md", "bibliography.md", "references.bib", "claims.yml"):
        shutil.copy(ROOT / "chapters" / name, root / "chapters")
    claims = root / "chapters/claims.yml"
    claims.write_text(re.sub(r"^finished:.*", "finished: []", claims.read_text(), flags=re.M))
    shutil.copy(ROOT / "tests/sample.md", root / f"{CHAPTER}.md")
    (root / "chapters/index.md").write_text(
        "# A book\n\nA book of one chapter, after {cite:t}`Jacot2018`, to plant faults in.\n"
    )
    (root / "_toc.yml").write_text(TOC)
    result = call(root, "book.notebooks")
    assert result.returncode == 0, result.stdout + result.stderr
    return root


@pytest.fixture
def copy(book, tmp_path):
    """A copy of the small book, to be broken."""
    return Path(shutil.copytree(book, tmp_path / "copy"))


def call(root: Path, *command: str, **variables: str) -> subprocess.CompletedProcess:
    # The copy comes first on the path, so that it is tested and not the installed package.
    environment = os.environ | {"PYTHONPATH": str(root)} | variables
    environment = {k: v for k, v in environment.items() if not k.startswith(("PYTEST", "COV_"))}
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )


def failures(root: Path, *arguments: str) -> list[str]:
    """The failed tests, one line each; the command must have failed because of them."""
    result = call(root, "pytest", "-q", "-rf", "-p", "no:cacheprovider", *arguments)
    assert result.returncode == 1, result.stdout + result.stderr
    return re.findall(r"^FAILED (.*)$", result.stdout, re.MULTILINE)


def edit(root: Path, change) -> None:
    path = root / f"{CHAPTER}.ipynb"
    notebook = json.loads(path.read_text())
    change([cell for cell in notebook["cells"] if cell["cell_type"] == "code"])
    path.write_text(json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def find(cells, mime: str, text: str = "") -> int:
    """The first cell with an output of this kind that contains a text."""
    for index, cell in enumerate(cells):
        for output in cell["outputs"]:
            if mime in output.get("data", {}) and text in "".join(output["data"][mime]):
                return index
    raise LookupError(f"no {mime} with {text!r}")


def with_a_dot(code: str) -> str:
    """The same picture with one marker more."""
    image = Image.open(io.BytesIO(base64.b64decode(code))).convert("RGB")
    ImageDraw.Draw(image).ellipse((300, 200, 312, 212), fill="#0072b2")
    buffer = io.BytesIO()
    image.save(buffer, format="png")
    return base64.b64encode(buffer.getvalue()).decode()


def test_nbval_sees_changed_numbers_curves_frames_stripped_cells_bounds_and_exceptions(copy):
    """All of them in one run, each in a cell of its own: these cells fail, and no other."""
    planted = {}

    def change(cells):
        planted["number"] = find(cells, "text/plain", "✓ NTK-04")
        data = cells[planted["number"]]["outputs"][0]["data"]
        data["text/plain"] = [data["text/plain"][0].replace("rival: 0.", "rival: 1.")]

        planted["curve"] = find(cells, "image/png")
        data = cells[planted["curve"]]["outputs"][0]["data"]
        data["image/png"] = with_a_dot("".join(data["image/png"]))

        planted["frame"] = find(cells, "text/html", 'class="explore"')
        data = cells[planted["frame"]]["outputs"][0]["data"]
        page = "".join(data["text/html"])
        last = FRAME.findall(page)[-1][1]
        data["text/html"] = page.replace(last, with_a_dot(last))

        planted["stripped"] = find(cells, "text/plain", "✓ MF-11")
        cells[planted["stripped"]].update(execution_count=None, outputs=[])

        planted["bound"] = find(cells, "text/plain", "largest gap")
        source = "".join(cells[planted["bound"]]["source"])
        assert "below=4.0" in source
        cells[planted["bound"]]["source"] = source.replace("below=4.0", "below=0.5")

        planted["exception"] = 0  # the cell for Colab, on which nothing depends
        cells[planted["exception"]]["source"] = "1 / 0"

    edit(copy, change)
    failed = failures(copy, *NBVAL, f"{CHAPTER}.ipynb")
    cells = sorted(int(re.search(r"Cell (\d+)", line).group(1)) for line in failed)
    assert cells == sorted(planted.values())
    assert len(set(planted.values())) == 6


def plant_stale_pair(root):
    path = root / f"{CHAPTER}.md"
    path.write_text(path.read_text().replace("width=1024", "width=1000"))


def plant_stripped_output(root):
    edit(root, lambda cells: cells[-1].update(execution_count=None, outputs=[]))


def plant_missing_alt(root):
    def change(cells):
        data = cells[find(cells, "image/png")]["outputs"][0]["data"]
        data["text/plain"] = ["<Figure size 832x496 with 1 Axes>"]

    edit(root, change)


def plant_changed_package(root):
    path = root / "ntkcourse/kernels.py"
    path.write_text(path.read_text() + "\nCHANGED = True\n")


def plant_unknown_claim(root):
    path = root / f"{CHAPTER}.ipynb"
    path.write_text(path.read_text().replace('"NTK-04"', '"NTK-99"'))


def test_the_notebook_tests_see_five_faults(copy):
    """All of them in one run: each has a test or a sentence of its own."""
    for plant in (
        plant_missing_alt, plant_stripped_output, plant_unknown_claim, plant_stale_pair,
        plant_changed_package,
    ):  # fmt: skip
        plant(copy)
    command = ["-vv", "-rf", "-p", "no:cacheprovider", "tests/test_notebooks.py"]
    said = call(copy, "pytest", *command, "-k", "stored or measured")
    assert said.returncode == 1
    failed = set(re.findall(r"^FAILED tests/test_notebooks.py::(\w+)", said.stdout, re.MULTILINE))
    assert failed >= {
        "test_the_stored_notebook_has_no_faults", "test_the_stored_notebook_is_up_to_date",
        "test_every_measured_statement_is_in_the_register",
    }  # fmt: skip
    for fault in ("04-ntk.md and 04-ntk.ipynb differ", "its count is None", "without alt text"):
        assert fault in said.stdout


def test_the_build_sees_a_dead_link_an_unknown_badge_and_a_missing_alt_text(copy):
    path = copy / "chapters/index.md"
    faults = "See [the end](nowhere.md), {ref}`no-such-label` and {claim}`NTK-99`."
    path.write_text(path.read_text() + f"\n{faults}\n")
    plant_missing_alt(copy)
    result = call(copy, "book")
    assert result.returncode != 0, result.stderr
    for message in ("nowhere.md", "no-such-label", "unknown statement NTK-99", "without alt text"):
        assert message in result.stderr
    assert not (copy / "_build/html").exists()


@pytest.mark.soak  # by default the whole book is built, which is right: tests/test_site.py
def test_the_build_sees_nothing_in_a_right_book(copy):
    result = call(copy, "book")
    assert result.returncode == 0, result.stderr


# Errors in the package: the experiments of the book have to notice them.
PACKAGE_FAULTS = [
    (
        "bias variance dropped", "infinite.py",
        "w * s.xx + b, w * s.xy + b, w * s.yy + b", "w * s.xx, w * s.xy, w * s.yy", "NTK-04",
    ),
    (
        "a layer forgotten", "infinite.py",
        "theta=s.xy + s.theta", "theta=s.theta", "NTK-04",
    ),
    (
        "a factor in the derivative", "infinite.py",
        "kappa_dot(*s[:3]) * s.theta", "1.1 * kappa_dot(*s[:3]) * s.theta",
        "NTK-04",
    ),
    (
        "1/m for 1/sqrt(m)", "networks.py",
        "return sigma_w / fan_in ** (last_power", "return sigma_w / fan_in ** (2 * last_power",
        "NTK-04",
    ),
    (
        "bias gradient dropped", "networks.py",
        "_times(sigma_b, layer.bias) if", "_times(sigma_b, jax.lax.stop_gradient(layer.bias)) if",
        "NTK-04",
    ),
    ("sign of a flow", "flows.py", "return -jax.grad(F)", "return jax.grad(F)", "MF-11"),
]  # fmt: skip

# The chapter with each fault in turn, in one process that loads the package anew each time.
RUN = """
import json, pathlib, sys
import matplotlib
matplotlib.use("agg")
import jupytext
chapter, package = sys.argv[1], pathlib.Path("ntkcourse")
cells = [c.source for c in jupytext.read(chapter).cells if c.cell_type == "code"]
cells = [c for c in cells if "google.colab" not in c and "explore(" not in c]
for name, file, old, new in json.loads(sys.argv[2]):
    text = (package / file).read_text()
    assert old in text, f"{file} was rewritten: plant this fault anew"
    (package / file).write_text(text.replace(old, new))
    for module in [m for m in sys.modules if m.split(".")[0] == "ntkcourse"]:
        del sys.modules[module]
    from ntkcourse.claims import ClaimError
    scope = {}
    for cell in cells:
        try:
            exec(cell, scope)
        except ClaimError as error:
            print(name, "RED", error)
    print(name, "ended")
    (package / file).write_text(text)
"""


def test_a_wrong_package_breaks_the_claim_and_the_right_one_nothing(copy):
    (copy / "run_chapter.py").write_text(RUN)
    nothing = ("nothing", "infinite.py", "", "")
    faults = [*(fault[:4] for fault in PACKAGE_FAULTS), nothing]
    # no stored bytecode: two versions of a file may have one size and one time
    result = call(
        copy, "run_chapter", f"{CHAPTER}.md", json.dumps(faults), PYTHONDONTWRITEBYTECODE="1"
    )
    assert result.returncode == 0, result.stderr
    for name, *_, claim in PACKAGE_FAULTS:
        assert re.search(rf"^{re.escape(name)} RED {claim}", result.stdout, re.MULTILINE), name
    assert "nothing RED" not in result.stdout
    last = result.stdout[result.stdout.index(f"{PACKAGE_FAULTS[-1][0]} ended") :]
    for words in ("✓ NTK-04", "✓ MF-11", "nothing ended"):
        assert words in last
