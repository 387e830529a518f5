"""A lesson can be read in an hour, and each of its cells can be copied into a project."""

import subprocess
import sys
from pathlib import Path

import jupytext
import pytest

from book import lessons

ROOT = Path(__file__).resolve().parent.parent
LESSONS = lessons.lessons(ROOT)
each_lesson = pytest.mark.parametrize("source", LESSONS, ids=lambda path: path.stem)
HEAD = """---
jupytext:
  text_representation:
    format_name: myst
    extension: .md
kernelspec:
  name: python3
  display_name: Python 3
---

# Small
"""


@each_lesson
def test_a_lesson_is_short(source):
    words, cells, longest = lessons.length(source)
    assert words <= lessons.WORDS
    assert 1 < cells <= lessons.CELLS
    assert longest <= lessons.LINES


@each_lesson
def test_a_lesson_checks_nothing_and_names_no_statement(source):
    cells = jupytext.read(source).cells
    assert not [c.source for c in cells if c.cell_type == "code" and "claims." in c.source]
    assert "{claim}`" not in source.read_text()


@each_lesson
def test_each_visible_cell_runs_alone(source):
    # A process of its own: the settings of these tests are stricter than a reader's.
    result = subprocess.run(
        [sys.executable, "-m", "book.lessons", source.stem],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def page(tmp_path, *cells: str) -> Path:
    source = tmp_path / "01-small.md"
    blocks = (f"```{{code-cell}} ipython3\n{cell}\n```\n" for cell in cells)
    source.write_text(HEAD + "\n" + "\n".join(blocks))
    return source


def test_a_cell_that_needs_another_is_noticed(tmp_path):
    source = page(tmp_path, "import math", ":tags: [data]\n\nn = 3", "m = math.sqrt(n)", "print(m)")
    [fault] = lessons.alone(source)
    assert "print(m)" in fault
    assert "NameError" in fault


def test_a_cell_may_rely_on_imports_and_data(tmp_path):
    source = page(tmp_path, "import math", ":tags: [data]\n\nn = 3", "m = math.sqrt(n)\nprint(m)")
    assert lessons.alone(source) == []


def test_imports_come_first_and_data_once(tmp_path):
    data = ":tags: [data]\n\nn = 3"
    assert lessons.alone(page(tmp_path, "n = 3", "import math")) == [
        "the first visible cell does not import"
    ]
    assert lessons.alone(page(tmp_path, "import math", data, data)) == [
        "expected one cell tagged data, got 2"
    ]


def test_words_are_what_a_reader_reads():
    text = """(a-label)=
## Two words

:::{prf:theorem} Title here
:label: thm-x

Here $a + b$ is small.
:::

$$
x = y
$$ (eq-x)

See {ref}`the table <a-label>` and {measured}`24 networks: within {} errors <NTK-04: gap>`.

::::{solution} ex-x
:class: dropdown

Not counted at all.
::::
"""
    # "Two words", "Here x is small.", the formula, "See the table and 24 networks: within errors."
    assert lessons.words(text) == 2 + 4 + 1 + 8


def test_folded_and_removed_cells_are_not_visible(tmp_path):
    source = page(tmp_path, "import math", ":tags: [hide-input]\n\nx", ":tags: [remove-cell]\n\ny")
    assert lessons.length(source) == (1, 1, 1)
