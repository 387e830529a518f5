"""Mutation test: change the package in one place at a time and see whether the tests notice.

``python tests/mutants.py`` draws 100 changes with a fixed seed over the whole package,
runs that module's tests on a copy of the package with each, prints the survivors and fails when
fewer than 90 % were killed. ``python tests/mutants.py kernels 20`` takes 20 changes of one module.
"""

import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted(path.stem for path in (ROOT / "ntkcourse").glob("[!_]*.py"))
# Modules that have no tests of their own are tested where they are used.
TESTS = {
    "descent": "training", "jaxprs": "structure", "products": "structure",
    "plans": "transport", "sliders": "figures", "evidence": "claims",
    "live_drawing": "live", "live_kernels": "live",
    "live_networks": "live", "live_particles": "live", "live_training": "live",
    "processes": "regression",
}  # fmt: skip
LIMIT = 600  # seconds after which a mutant counts as killed: it made a loop endless

SWAPS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.MatMult: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Lt: ast.GtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


def places(tree):
    """Every (node, change) of a module; ``change`` alters the node in place."""
    for node in code(tree):
        if isinstance(node, (ast.BinOp, ast.BoolOp)) and type(node.op) in SWAPS:
            yield node, lambda n: setattr(n, "op", SWAPS[type(n.op)]())
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
            yield node, lambda n: n.ops.__setitem__(0, SWAPS[type(n.ops[0])]())
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            yield node, lambda n: setattr(n, "op", ast.UAdd())
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield node, lambda n: setattr(n, "operand", ast.UnaryOp(ast.Not(), n.operand))
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield node, lambda n: setattr(n, "value", not n.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            yield node, lambda n: setattr(n, "value", n.value + 1)
        elif isinstance(node, ast.IfExp):
            yield node, lambda n: n.__dict__.update(body=n.orelse, orelse=n.body)


def code(node):
    """The nodes that compute something: not annotations, decorators, docstrings, messages."""
    yield node
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list") or isinstance(node, ast.Raise):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from code(child)


def mutant(module, index):
    """The source of ``module`` with its change number ``index``, and what was changed."""
    tree = ast.parse((ROOT / "ntkcourse" / f"{module}.py").read_text())
    node, change = list(places(tree))[index]
    before = ast.unparse(copy.deepcopy(node))
    change(node)
    after = ast.unparse(node)
    return ast.unparse(tree), f"{module}.py:{node.lineno}  {before}  ->  {after}"


def survives(module, index):
    """The description of a mutant that its module's tests do not notice, else None."""
    source, what = mutant(module, index)
    with tempfile.TemporaryDirectory() as folder:
        for part in ("ntkcourse", "tests", "pyproject.toml"):
            place = Path(folder, part)
            (shutil.copytree if (ROOT / part).is_dir() else shutil.copy)(ROOT / part, place)
        Path(folder, "ntkcourse", f"{module}.py").write_text(source)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        try:
            done = subprocess.run(
                [*command, f"tests/test_{TESTS.get(module, module)}.py"],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": folder},
                capture_output=True,
                timeout=LIMIT,
            )
        except subprocess.TimeoutExpired:
            return None
    return what if done.returncode == 0 else None


def main(modules=MODULES, number=100):
    """Draw mutants, run them two at a time, report."""
    every = [
        (module, index)
        for module in modules
        for index in range(
            sum(1 for _ in places(ast.parse((ROOT / "ntkcourse" / f"{module}.py").read_text())))
        )
    ]
    drawn = random.Random(0).sample(every, min(number, len(every)))
    with ThreadPoolExecutor(2) as pool:
        results = list(tqdm(pool.map(lambda m: survives(*m), drawn), total=len(drawn)))
    survivors = sorted(result for result in results if result)
    print(*survivors, sep="\n")
    killed = len(drawn) - len(survivors)
    print(f"{killed} of {len(drawn)} mutants killed")
    return 0 if killed >= 0.9 * len(drawn) else 1


if __name__ == "__main__":
    arguments = sys.argv[1:]
    sys.exit(main(arguments[:1] or MODULES, int(arguments[1]) if arguments[1:] else 100))
