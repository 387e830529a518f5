"""Compare stored pictures with freshly drawn ones, while nbval runs the notebooks.

nbval compares text but not pictures, and it compares nothing in a cell that was never run. As a
pytest plugin this module closes both holes after each cell, so no chapter has to run twice.
"""

import base64
import io
import re

import numpy as np
import pytest
from nbval.plugin import IPyNbCell
from PIL import Image

# Anti-aliasing differs between processors; a moved marker changes more pixels, and by more.
STEP = 32
SHARE = 2e-4
_INLINE = re.compile(r"data:image/png;base64,([A-Za-z0-9+/=]+)")


def pictures(outputs: list) -> list[bytes]:
    """Every PNG of a cell in order: plain figures and all frames of its sliders."""
    found = []
    for output in outputs:
        data = output.get("data", {})
        if "image/png" in data:
            found.append(base64.b64decode(_joined(data["image/png"])))
        found += [
            base64.b64decode(code) for code in _INLINE.findall(_joined(data.get("text/html", "")))
        ]
    return found


def share_changed(stored: bytes, fresh: bytes) -> float:
    """The share of pixels that differ visibly; 1 when the sizes differ."""
    old, new = (
        np.asarray(Image.open(io.BytesIO(raw)).convert("RGB"), dtype=np.int16)
        for raw in (stored, fresh)
    )
    if old.shape != new.shape:
        return 1.0
    return float((np.abs(old - new).max(axis=-1) > STEP).mean())


def difference(stored_outputs: list, fresh_outputs: list) -> str:
    """What changed between the pictures of two runs of a cell, or an empty string."""
    stored, fresh = pictures(stored_outputs), pictures(fresh_outputs)
    if len(stored) != len(fresh):
        return f"{len(stored)} pictures are stored, a fresh run draws {len(fresh)}"
    shares = [share_changed(*pair) for pair in zip(stored, fresh, strict=True)]
    changed = [f"picture {i + 1}: {share:.2%}" for i, share in enumerate(shares) if share > SHARE]
    return "pixels that differ from a fresh run: " + ", ".join(changed) if changed else ""


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """After nbval has run and compared a cell, compare its pictures."""
    result = yield
    if isinstance(item, IPyNbCell):
        if item.cell.execution_count is None:
            item.raise_cell_error("The stored cell was never run, so there is nothing to compare")
        if message := difference(item.cell.outputs, item.test_outputs):
            item.raise_cell_error(message)
    return result
