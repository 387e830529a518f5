"""The package as a whole: small, typed, cheap to import, in need of little."""

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted(path.stem for path in (ROOT / "ntkcourse").glob("*.py"))
LIVE = {name for name in MODULES if name.startswith("live")}
BOOK = {"claims", "evidence", "figures", "sliders"} | LIVE
CORE = [name for name in MODULES if name not in BOOK and name != "__init__"]
OTHERS = {"matplotlib", "ipywidgets", "IPython", "sklearn", "ot", "optax", "diffrax", "tqdm"}


def lines(module: str) -> int:
    """Lines of code: neither blank, nor a comment, nor of a docstring."""
    text = (ROOT / "ntkcourse" / f"{module}.py").read_text()
    said = set()
    for node in ast.walk(ast.parse(text)):
        # a string that is a statement documents a module, a function or the constant above it
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            said |= set(range(node.lineno, node.end_lineno + 1))
    code = (line.strip() for i, line in enumerate(text.splitlines(), 1) if i not in said)
    return sum(1 for line in code if line and line[0] != "#")


@pytest.mark.parametrize("module", MODULES)
def test_a_module_has_at_most_250_lines(module):
    assert len((ROOT / "ntkcourse" / f"{module}.py").read_text().splitlines()) <= 250


def test_the_library_is_read_in_one_sitting():
    counts = {module: lines(module) for module in CORE}
    assert sum(counts.values()) <= 2530, f"{sum(counts.values())}: {counts}"


def run(code: str, folder: Path) -> str:
    """What a fresh interpreter prints; it keeps its bytecode in a folder of its own."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONPYCACHEPREFIX": str(folder),
        "PYTHONDONTWRITEBYTECODE": "",
    }
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize("modules", [CORE, sorted(BOOK)])
def test_importing_loads_no_library_that_only_some_functions_need(modules, tmp_path):
    code = f"import sys; from ntkcourse import {', '.join(modules)}; print(*sys.modules)"
    loaded = set(run(code, tmp_path).split())
    assert f"ntkcourse.{modules[0]}" in loaded
    assert not OTHERS & loaded
    # SciPy's own subpackages take longer to load than all of ours
    assert not {"scipy.optimize", "scipy.sparse", "scipy.linalg", "scipy.special"} & loaded


def test_importing_starts_no_device(tmp_path):
    code = (
        f"from ntkcourse import {', '.join(CORE)}; from jax._src import xla_bridge;"
        "print(len(xla_bridge._backends))"
    )
    assert run(code, tmp_path).strip() == "0"


def test_the_library_and_the_book_name_what_they_need():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    need = lambda requirements: {r.split(">")[0] for r in requirements}  # noqa: E731
    library = need(project["project"]["dependencies"])
    book = need(project["project"]["optional-dependencies"]["book"])
    assert library == {"numpy", "jax", "scipy", "jaxtyping", "tqdm"}
    assert {"matplotlib", "ipywidgets", "scikit-learn", "POT"} <= book
    pins = (ROOT / "requirements.txt").read_text().splitlines()
    assert library | book <= {line.split("==")[0] for line in pins}


def test_types_are_announced():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["package-data"]["ntkcourse"] == ["py.typed"]
    assert (ROOT / "ntkcourse/py.typed").exists()


def test_the_type_of_a_claim_is_written_in_one_place():
    sources = [*ROOT.glob("book/*.py"), *ROOT.glob("ntkcourse/*.py"), *ROOT.glob("grading/*.py")]
    places = [path.name for path in sources if "vnd.ntkcourse.claim" in path.read_text()]
    assert places == ["claims.py"]


def test_weighted_transport_without_pot_names_the_extra(monkeypatch):
    import jax.numpy as jnp

    from ntkcourse import transport

    monkeypatch.setitem(sys.modules, "ot", None)
    x = jnp.eye(2)
    assert float(transport.wasserstein2(x, x)) == 0  # equal weights need no POT
    with pytest.raises(ImportError, match=r'pip install "ntkcourse\[book\]"'):
        transport.coupling(x, x, jnp.array([0.3, 0.7]))


def test_mutants_are_made_of_every_module_and_meet_its_tests():
    import mutants

    assert set(mutants.MODULES) == set(MODULES) - {"__init__"}
    for module in mutants.MODULES:
        assert (ROOT / f"tests/test_{mutants.TESTS.get(module, module)}.py").exists()
