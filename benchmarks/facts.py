"""What is measured once: the machine, the time of an import, the weight of the site's pages."""

import gzip
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
BOOK = {"__init__", "claims", "figures", "sliders"}
CORE = sorted(p.stem for p in (ROOT / "ntkcourse").glob("*.py") if p.stem not in BOOK)


def load(seconds: float = 1.0) -> float:
    """How many cores others keep busy, while we wait; the load average would count ourselves."""

    def ticks():
        found = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        return np.array(found[:8], float)

    if not Path("/proc/stat").exists():
        return round(os.getloadavg()[0], 2)
    before = ticks()
    time.sleep(seconds)
    spent = ticks() - before
    idle = spent[3] + spent[4]  # waiting for a disk is no work
    return round(float(os.cpu_count() * (1 - idle / max(spent.sum(), 1))), 2)


def machine() -> dict:
    """Model, cores and memory of this machine."""
    model = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        found = re.search(r"model name\s*:\s*(.*)", information.read_text())
        model = found[1] if found else model
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "model": model,
        "cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        "memory": memory,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def _seconds(python: str, code: str) -> float:
    start = time.perf_counter()
    subprocess.run([python, "-c", code], cwd=ROOT, check=True, env=os.environ | {"PYTHONPATH": "."})
    return time.perf_counter() - start


def imports(python: str, rounds: int = 7) -> dict:
    """Seconds of `import jax`, and beyond it of all core modules; medians and ranges."""
    ours = "import jax\n" + "\n".join(f"import ntkcourse.{m}" for m in CORE)
    _seconds(python, ours)  # files into the cache of the system
    pairs = [(_seconds(python, "import jax"), _seconds(python, ours)) for _ in range(rounds)]
    beyond = [b - a for a, b in pairs]
    return {
        "jax": statistics.median(a for a, _ in pairs),
        "beyond": statistics.median(beyond),
        "range": [min(beyond), max(beyond)],
        "modules": len(CORE),
    }


class Page(HTMLParser):
    """The files that a page asks for, and which of them it waits for before it paints."""

    def __init__(self, text: str):
        super().__init__()
        self.files: dict[str, str] = {}
        self.blocking: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        """Scripts, style sheets, pictures; lazy pictures load only when they come near."""
        attrs = dict(attrs)
        if tag == "script" and attrs.get("src"):
            self.files[attrs["src"]] = "scripts"
            if not {"defer", "async"} & set(attrs) and attrs.get("type") != "module":
                self.blocking.append(attrs["src"])
        elif tag == "link" and attrs.get("rel") in ("stylesheet", "preload"):
            kind = {"font": "fonts", "script": "scripts"}.get(attrs.get("as"), "styles")
            self.files.setdefault(attrs["href"], kind)
        elif tag == "img" and attrs.get("src") and attrs.get("loading") != "lazy":
            self.files[attrs["src"]] = "pictures"


FONTS = {
    "": ["vendor/fontawesome/webfonts/fa-solid-900.woff2"],
    "mathjax": [
        f"mathjax/output/chtml/fonts/woff-v2/MathJax_{name}.woff"
        for name in ("Zero", "Main-Regular", "Main-Bold", "Math-Italic", "AMS-Regular",
                     "Calligraphic-Regular", "Size1-Regular", "Size2-Regular")
    ],
}  # fmt: skip
"""Fonts that a browser asked for on a chapter, by the script that must be there; not in a page."""


def weigh(path: Path) -> int:
    """Bytes on the wire: text compressed by gzip, what is compressed already as it is."""
    content = path.read_bytes()
    packed = path.suffix in (".png", ".jpg", ".woff", ".woff2", ".gz")
    return len(content) if packed else len(gzip.compress(content, 6))


def site(folder: Path = ROOT / "_build/html") -> list[dict]:
    """Compressed weight of each page of the built site with what it asks for at once, by kind.

    From the files alone, without a browser: for the fonts that style sheets and MathJax ask for
    see ``FONTS``; icons come on every page, the others where there is MathJax.
    """
    pages = []
    for path in sorted(folder.glob("chapters/*.html")):
        page = Page(path.read_text())
        weights = {"text": weigh(path)}
        for address, kind in page.files.items():
            parts = urlsplit(address)
            target = (path.parent / unquote(parts.path)).resolve()
            if not parts.scheme and target.is_file():
                weights[kind] = weights.get(kind, 0) + weigh(target)
        needed = [
            f for script, fonts in FONTS.items() for f in fonts if script in " ".join(page.files)
        ]
        found = [folder / "_static" / font for font in needed]
        weights["fonts"] = weights.get("fonts", 0) + sum(weigh(f) for f in found if f.is_file())
        pages.append(
            {
                "page": path.stem,
                "bytes": sum(weights.values()),
                "by kind": weights,
                "blocking scripts": len(page.blocking),
            }
        )
    return pages
