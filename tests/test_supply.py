"""The lock, the pins and the licences."""

import json
import re
from pathlib import Path

import pytest

from book import supply

ROOT = Path(__file__).resolve().parent.parent
LOCK = (ROOT / "requirements.lock").read_text()


def test_the_lock_has_every_version_with_hashes_and_no_address():
    wanted = [
        supply.pinned((ROOT / name).read_text()) for name in ("constraints.txt", *supply.PINS)
    ]
    locked = supply.pinned(LOCK)
    for pins in wanted:
        assert pins.items() <= locked.items()
    assert set(locked) == set().union(*wanted)
    for entry in re.split(r"\n(?=\S)", LOCK.strip()):
        if not entry.startswith("#"):
            assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry[:60]
    assert "://" not in LOCK


def test_a_licence_is_known_for_every_package():
    lines = list(supply.licences())
    assert len(lines) == len(supply.pinned(LOCK))
    unknown = [line for line in lines if line.endswith(("not said", "not installed here"))]
    assert unknown == []


def test_newer_versions_are_written_into_the_pins():
    text = "# why\n-c constraints.txt\nJax==1.0\nsphinx_proof==2  # note\nold==3\n"
    expected = text.replace("Jax==1.0", "Jax==1.1").replace("proof==2", "proof==2.5")
    assert supply.newer("jax==1.1\nsphinx-proof==2.5\nother==9\n", text) == expected


def notebook(*printed: str) -> str:
    cells = [{"cell_type": "code", "outputs": [{"text": [text]}]} for text in printed]
    return json.dumps({"cells": [*cells, {"cell_type": "markdown"}]})


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (["gap 1.5e-3", "b"], []),
        (["gap 1.8e-3", "b"], ["cell 1: 1 numbers, most 0.0015 → 0.0018"]),
        (["no gap", "c"], ["cell 1: other words", "cell 2: other words"]),
        (["gap 1.5e-3"], ["2 cells before, 1 now"]),
    ],
)
def test_what_moved_is_said_with_its_size(after, said):
    assert list(supply.moved(notebook("gap 1.5e-3", "b"), notebook(*after))) == said
