"""The examples of the API page and of the page for users of neural-tangents are run."""

import doctest
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import jax
import matplotlib as mpl
import numpy as np
import pytest

import ntkcourse

mpl.use("agg")
import matplotlib.pyplot as plt  # the backend has to be chosen first

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "chapters/api.md").read_text()
PEER = (ROOT / "chapters/from-neural-tangents.md").read_text()
INTRODUCTION, *ENTRIES = re.split(r"(?m)^(?=\.\. auto)", PAGE)
EXAMPLES = {
    match.group(1): entry.split("\n```")[0]
    for entry in ENTRIES
    if (match := re.match(r"\.\. autofunction:: ntkcourse\.(\S+)", entry))
}
MODULES = [
    module.name
    for module in pkgutil.iter_modules(ntkcourse.__path__)
    if f".. automodule:: ntkcourse.{module.name}\n" in PAGE
]


def public(module):
    """Functions by their names: those of ``__all__``, else those defined there without a _."""
    code = importlib.import_module(f"ntkcourse.{module}")
    for name in getattr(code, "__all__", vars(code)):
        thing = inspect.unwrap(getattr(code, name)) if not name.startswith("_") else None
        if inspect.isfunction(thing) and (
            "__all__" in vars(code) or thing.__module__ == code.__name__
        ):
            yield name, thing


def run(text, name, names):
    test = doctest.DocTestParser().get_doctest(text, names, name, name, 0)
    report = []
    doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(
        test, out=report.append, clear_globs=False
    )
    assert not report, "".join(report)
    names.update(test.globs)  # doctest works on a copy
    return test.examples


@pytest.fixture
def start(user):
    """What the page defines before its first function; settings are put back afterwards."""
    with np.printoptions(), mpl.rc_context(), jax.enable_x64(True):
        names = {}
        assert run(INTRODUCTION, "introduction", names)
        yield names
        plt.close("all")


def test_every_module_is_on_the_page_or_among_those_inside():
    inside = set(re.findall(r"py:module:: ntkcourse\.(\w+)", PAGE))
    assert inside | set(MODULES) == {m.name for m in pkgutil.iter_modules(ntkcourse.__path__)}
    assert not inside & set(MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_every_public_function_is_on_the_page(module):
    shown = {inspect.unwrap(_find(name)) for name in EXAMPLES}
    missing = [name for name, function in public(module) if function not in shown]
    assert not missing


def _find(name):
    module, function = name.split(".")
    return getattr(importlib.import_module(f"ntkcourse.{module}"), function)


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name, start):
    examples = run(EXAMPLES[name], name, start)
    sources = "".join(example.source for example in examples)
    assert name in sources or name.split(".")[1] + "(" in sources
    assert examples[-1].want, "an example shows what comes out"


def test_page_for_users_of_neural_tangents(start):
    assert run(PEER, "from-neural-tangents", start)
