"""Live figures on the site: their programs compiled, their scripts placed, and a strict policy.

The policy (Content-Security-Policy) allows scripts of this site and the inline scripts that the
build itself wrote, by their hashes, and nothing that makes code from text.
"""

import base64
import hashlib
import re
from collections.abc import Callable
from html import unescape
from html.parser import HTMLParser
from itertools import product
from pathlib import Path

import jax
from docutils import nodes
from sphinx.util.osutil import relative_uri

from book import compile as compiler
from ntkcourse import live

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "ntkcourse").glob("*.py"))
FIGURE = re.compile(r'<figure class="live" data-live="([a-z-]+)"')


def programs(figure: live.Figure) -> dict[str, tuple]:
    """All functions that a figure needs, with the shapes of their arguments, by name."""
    controls = figure.controls.items()
    choices = {k: c.values for k, c in controls if isinstance(c, live.Choice)}
    inputs = {k: () for k, c in controls if isinstance(c, live.Slider)}
    inputs |= dict.fromkeys(("x", "y", "mask"), (live.PLACES,)) if figure.points else {}
    functions = {}
    for words in product(*choices.values()):
        shapes = inputs
        for kind in ("see", "step", "look"):
            if (make := getattr(figure, kind)) is None:
                continue
            if kind == "step":  # and look: the state as well
                shapes = shapes | figure.random | figure.zeros
            function = make(**dict(zip(choices, words, strict=True)))
            functions["_".join([kind, *map(str, words)])] = function, shapes
            if kind == "see":  # the others take its results
                given = {k: jax.ShapeDtypeStruct(shape, float) for k, shape in shapes.items()}
                results = jax.eval_shape(function, given)
                shapes = shapes | {k: v.shape for k, v in results.items()}
    return functions


def script(name: str) -> str:
    """The JavaScript of a figure."""
    with jax.enable_x64(True):
        return compiler.script(programs(live.figures()[name]), name)


def cached(folder: Path, name: str, sources: list[Path], make: Callable[[], str]) -> str:
    """The text that ``make`` gives, kept in ``folder`` for as long as no source changes."""
    paths = sorted({*sources, Path(compiler.__file__), compiler.RUNTIME})
    digest = hashlib.sha256(jax.__version__.encode() + b"".join(p.read_bytes() for p in paths))
    kept = folder / f"{name}-{digest.hexdigest()[:16]}.js"
    if not kept.exists():
        folder.mkdir(parents=True, exist_ok=True)
        text = make()
        for old in folder.glob(f"{name}-????????????????.js"):
            old.unlink()
        kept.write_text(text)
    return kept.read_text()


def write_programs(app) -> None:
    """Compile the figures that changed; every page finds their scripts in one folder."""
    if app.builder.format != "html":
        return
    folder = Path(app.outdir) / "_static/live"
    folder.mkdir(parents=True, exist_ok=True)
    app.live_versions = {}
    for name in live.figures():
        text = cached(ROOT / ".cache/live", name, SOURCES, lambda: script(name))  # noqa: B023
        (folder / f"{name}.js").write_text(text)
        app.live_versions[name] = hashlib.sha256(text.encode()).hexdigest()[:8]


def place_scripts(app, doctree: nodes.document, docname: str) -> None:
    """Tell each figure of a page where its program is."""
    if app.builder.format != "html":
        return

    def address(match: re.Match) -> str:
        name = match.group(1)
        here = app.builder.get_target_uri(docname)
        there = relative_uri(here, f"_static/live/{name}.js")
        return f'{match.group()} data-program="{there}?v={app.live_versions[name]}"'

    for block in doctree.findall(nodes.raw):
        if FIGURE.search(block.astext()):
            block[0] = nodes.Text(FIGURE.sub(address, block.astext()))


def add_script(app, pagename: str, templatename: str, context: dict, doctree) -> None:
    """Load the drawing script on pages with a live figure only."""
    if doctree is not None and any(
        'class="live"' in block.astext() for block in doctree.findall(nodes.raw)
    ):
        app.add_js_file("live.js", loading_method="defer")


class Inline(HTMLParser):
    """The scripts and event handlers that a page has in its own text."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=False)
        self.scripts, self.handlers, self.inside = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):  # noqa: D102
        attributes = dict(attrs)
        data = attributes.get("type", "").endswith("json")
        self.inside = tag == "script" and "src" not in attributes and not data
        if self.inside:
            self.scripts.append("")
        self.handlers += [
            unescape(value) for key, value in attrs if key.startswith("on") and value is not None
        ]

    def handle_data(self, data):  # noqa: D102
        if self.inside:
            self.scripts[-1] += data

    def handle_endtag(self, tag):  # noqa: D102
        self.inside = self.inside and tag != "script"


def policy(page: Inline, handlers: set[str]) -> str:
    """What a page may load and run; the search page parses others, with all their handlers."""
    hashes = sorted({f"'sha256-{_hash(text)}'" for text in {*page.scripts, *handlers}})
    allowed = ["'unsafe-hashes'"] if handlers else []
    # MathJax and the theme set styles in the page; a style computes nothing.
    rules = {
        "default-src": ["'self'"],
        "script-src": ["'self'", *allowed, *hashes],
        "style-src": ["'self'", "'unsafe-inline'"],
        "img-src": ["'self'", "data:"],
        "font-src": ["'self'", "data:"],
        "object-src": ["'none'"],
        "base-uri": ["'self'"],
    }
    return "; ".join(" ".join([rule, *values]) for rule, values in rules.items())


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def write_policies(app, error) -> None:
    """Give every page its policy."""
    if error or app.builder.format != "html":
        return
    pages = {path: path.read_text() for path in Path(app.outdir).rglob("*.html")}
    found = {path: Inline(page) for path, page in pages.items()}
    handlers = {text for inline in found.values() for text in inline.handlers}
    for path, page in pages.items():
        text = (
            f'<meta http-equiv="Content-Security-Policy" content="{policy(found[path], handlers)}">'
        )
        page = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>\n?', "", page)
        path.write_text(page.replace("<head>", f"<head>\n{text}", 1))


def setup(app) -> dict:
    """Connect everything above to the build."""
    app.connect("builder-inited", write_programs)
    app.connect("doctree-resolved", place_scripts)
    app.connect("html-page-context", add_script)
    # after everything else has written its pages
    app.connect("build-finished", write_policies, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
