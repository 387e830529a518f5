"""The notes of `lines` say what coverage's own tracer says."""

import ast

import coverage
import lines

SOURCE = '''"""A module with some of everything."""

import contextlib
import functools

LIMIT = 3
"""A constant with a docstring."""


@functools.cache
@functools.lru_cache(
    maxsize=None
)
def kind(n):
    """One of four words."""
    match n:
        case 0:
            return "zero"
        case int():
            word = "small" if n < LIMIT else "large"
        case _:
            return "odd"
    return word


class Box:
    """A class."""

    size: int = 1

    def grow(self, by):
        try:
            self.size += by
        except TypeError:
            self.size = 0
            return
        except ValueError:
            raise
        else:
            self.size += 1
        finally:
            self.last = by


def walk(steps):
    for step in range(steps):
        if step > 5:
            break
        elif step > 1:
            with contextlib.suppress(ValueError):
                raise ValueError
        else:
            continue
    else:
        steps = -1
    while steps > 0:
        steps -= 1
        unused = (lambda: 1
                  )
    return (
        steps,
        "a string"
    )


def never():
    def inner():
        return 2
    return inner()


kind(1), kind("x"), walk(3), walk(9)
Box().grow(1)
Box().grow("x")
'''


def test_the_notes_are_the_lines_of_the_tracer(tmp_path):
    path = tmp_path / "sample.py"
    path.write_text(SOURCE)
    tracer = coverage.Coverage(data_file=None, config_file=False, include=[str(path)])
    tracer.start()
    exec(compile(SOURCE, str(path), "exec"), {})
    tracer.stop()
    _, statements, _, missing, _ = tracer.analysis2(str(path))

    noted = set()
    tree = ast.fix_missing_locations(lines.Notes().visit(ast.parse(SOURCE)))
    exec(compile(tree, str(path), "exec"), {"__ran__": noted.add})
    # a case that was looked at and not entered has not run, by the notes
    unmatched = SOURCE.splitlines().index("        case 0:") + 1
    assert sorted({*statements} - noted) == sorted([*missing, unmatched])
    assert unmatched + 1 in missing


def test_every_file_of_the_package_is_counted():
    names = {path.name for path in (lines.ROOT / "ntkcourse").glob("*.py")}
    assert {name.split("/")[-1] for name in lines.RAN} >= names
