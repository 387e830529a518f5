"""Which lines of the package the tests run, noted by the package itself.

A tracer looks at every step of the interpreter, and most steps of these tests are JAX's: on Python
3.11 coverage's own added a third to the time of test_regression. Here each statement of the package
is preceded by a note of its line, all other code runs as it is, and `coverage` combines and reports
what was noted.
"""

import ast
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path

import coverage
from jaxtyping._import_hook import JaxtypingTransformer, Typechecker

ROOT = Path(__file__).resolve().parent.parent
RAN: dict[str, set[int]] = {str(path): set() for path in (ROOT / "ntkcourse").glob("*.py")}
"""The lines of each file that ran; a file that nobody imports has none."""


def documented(node) -> bool:
    """Whether the first statement is a docstring, which has to stay the first one."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef
    return isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None


class Notes(ast.NodeTransformer):
    """Put a note before each statement, docstrings apart."""

    def generic_visit(self, node):
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            if isinstance(block := getattr(node, name, None), list):
                first = block[:1] if documented(node) else []
                rest = block[len(first) :]
                setattr(node, name, first + [p for s in rest for p in (*self.notes(s), s)])
        if isinstance(node, ast.ExceptHandler | ast.match_case):
            head = node.pattern if isinstance(node, ast.match_case) else node
            node.body.insert(0, self.note(head, head.lineno))
        return node

    def notes(self, statement) -> list[ast.stmt]:
        decorators = getattr(statement, "decorator_list", [])
        return [self.note(statement, part.lineno) for part in (*decorators, statement)]

    def note(self, where, line: int) -> ast.stmt:
        note = ast.parse(f"__ran__({line})").body[0]
        for part in ast.walk(note):
            ast.copy_location(part, where)
        return note


class Loader(SourceFileLoader):
    """Import a module with notes, and with its shapes checked as jaxtyping's own hook does."""

    typecheck: Typechecker

    def get_code(self, fullname):
        """Compile and store nothing: what a user imports has no notes."""
        tree = Notes().visit(ast.parse(self.get_data(self.path)))
        tree = JaxtypingTransformer(typechecker=self.typecheck).visit(tree)
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)

    def exec_module(self, module):
        vars(module)["__ran__"] = RAN.setdefault(self.path, set()).add
        super().exec_module(module)


class Finder(MetaPathFinder):
    """Find the package, and leave everything else to others."""

    def find_spec(self, name, path=None, target=None):
        spec = PathFinder.find_spec(name, path) if name.split(".")[0] == "ntkcourse" else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = Loader(name, spec.loader.path)
            return spec
        return None


def install(typecheck: str):
    """From now on the package is imported with notes and with this check of its shapes."""
    Loader.typecheck = Typechecker(typecheck)
    sys.meta_path.insert(0, Finder())


def write():
    """Leave a file for `coverage combine`, one of each process."""
    data = coverage.CoverageData(suffix=True)
    data.add_lines(RAN)
    data.touch_files(RAN)
    data.write()
