"""How the tests are run: what a machine lacks is installed, one pool, the longest files first."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import machine
import nbformat
import pytest

from book import cores

ROOT = Path(__file__).resolve().parent.parent

APT = """#!/bin/sh
echo "$*" >> {folder}/said
[ "$1" = update ] && touch {folder}/fresh
[ -e {folder}/fresh ]
"""


@pytest.mark.parametrize("fresh", [True, False])
def test_an_old_list_of_packages_is_updated_before_a_second_try(tmp_path, monkeypatch, fresh):
    (tmp_path / "apt-get").write_text(APT.format(folder=tmp_path))
    (tmp_path / "apt-get").chmod(0o755)
    if fresh:
        (tmp_path / "fresh").touch()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    machine.apt_install("bubblewrap")
    tries = ["install -y bubblewrap"]
    assert (tmp_path / "said").read_text().splitlines() == (
        tries if fresh else [*tries, "update", *tries]
    )
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    (tmp_path / "said").unlink()
    machine.apt_install("bubblewrap")
    assert not (tmp_path / "said").exists()


def test_the_longest_files_come_first_and_each_of_them_exists():
    files = {path.stem for path in [*ROOT.glob("tests/test_*.py"), *ROOT.glob("chapters/*.ipynb")]}
    assert {*cores.LONGEST} <= files
    assert len({*cores.LONGEST}) == len(cores.LONGEST)
    names = ["test_pool", cores.LONGEST[3], "test_seeds", cores.LONGEST[0], cores.LONGEST[3]]
    items = [SimpleNamespace(location=(f"x/{n}.y", i, "")) for i, n in enumerate(names)]
    cores.pytest_collection_modifyitems(items)
    assert [item.location[1] for item in items] == [3, 1, 4, 0, 2]


def test_a_kernel_has_the_flags_of_the_notebooks_and_is_not_measured(tmp_path):
    book = nbformat.v4.new_notebook()
    book.cells = [nbformat.v4.new_code_cell(
        "import os, sys\nprint(os.environ['XLA_FLAGS'], 'coverage' in sys.modules)",
        execution_count=1,
        outputs=[nbformat.v4.new_output("stream", text="of notebooks False\n")],
    )]  # fmt: skip
    nbformat.write(book, tmp_path / "small.ipynb")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "book.cores", "--nbval", "--cov=nothing"]
    said = subprocess.run(
        [*command, "-p", "no:cacheprovider", "--cov-report=", str(tmp_path / "small.ipynb")],
        cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "NOTEBOOK_XLA_FLAGS": "of notebooks"},
    )  # fmt: skip
    assert said.returncode == 0, said.stdout + said.stderr
