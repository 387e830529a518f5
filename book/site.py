"""What the site needs beyond the theme: local MathJax, pictures with texts, and light pages."""

import base64
import hashlib
import importlib.metadata
import inspect
import re
import shutil
from pathlib import Path
from urllib.parse import urlsplit

from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.osutil import relative_uri

STATIC = Path(__file__).parent / "static"
INLINE = re.compile(r"data:image/png;base64,([A-Za-z0-9+/=]+)")
logger = logging.getLogger(__name__)


def exclude_sources(app, config) -> None:
    """Pages come from executed notebooks; the text beside a notebook is its source, not a page."""
    root = Path(app.srcdir)
    config.exclude_patterns += [
        str(notebook.relative_to(root).with_suffix(".md"))
        for notebook in (root / "chapters").glob("*.ipynb")
    ]


def tell_address(app, config) -> None:
    """Tell name and address of the site, which `_config.yml` has once, to those who ask for them.

    The page for missing addresses is shown at any depth, so its links start at the root.
    """
    home = config.html_baseurl.rstrip("/") + "/"
    config.ogp_site_url, config.ogp_site_name = home, config.html_title
    config.notfound_urls_prefix = urlsplit(home).path
    title = "This page does not exist"
    first = f'<a href="{home}">The first page of the course</a>'
    config.notfound_context = {
        "title": title,
        "body": f"<h1>{title}</h1><p>It may have moved. {first} has a map of all chapters.</p>",
    }


def give_alt_texts(app, doctree: nodes.document) -> None:
    """Take the alternative text of a figure from its stored output; warn where there is none."""
    for bundle in doctree.findall(
        lambda node: getattr(node, "get", lambda *_: "")("nb_element") == "mime_bundle"
    ):
        texts = [part.astext() for part in bundle.children if part.get("mime_type") == "text/plain"]
        for image in bundle.findall(nodes.image):
            if texts and not texts[0].startswith("<"):
                image["alt"] = texts[0]
            # A stored width suits JupyterLab; on the site it would overflow a phone.
            for size in ("width", "height"):
                image.attributes.pop(size, None)
    for image in doctree.findall(nodes.image):
        if not image.get("alt"):
            logger.warning("a picture without alt text: %s", image.get("uri"), location=image)


class Caption(SphinxDirective):
    """`{caption} fig-name` after a cell: number and caption of the picture that the cell shows.

    A directive of its own, because sliders and live figures are not images to Sphinx, and because
    in a notebook the caption still reads as text.
    """

    required_arguments = 1
    has_content = True

    def run(self):
        """A figure that consists of its caption; the picture stands right above it."""
        body = nodes.Element()
        self.state.nested_parse(self.content, self.content_offset, body)
        caption = nodes.caption("", "", *(body[0].children if len(body) else []))
        caption.source, caption.line = self.get_source_info()
        figure = nodes.figure("", caption, classes=["caption-of-cell"])
        figure["names"].append(nodes.fully_normalize_name(self.arguments[0]))
        self.state.document.note_explicit_target(figure)
        if len(body) != 1:
            logger.warning("expected a caption of one paragraph", location=figure)
        return [figure]


def move_captions(app, doctree: nodes.document) -> None:
    """Put a caption into the cell before it, between the picture and the code that draws it."""
    for figure in list(doctree.findall(nodes.figure)):
        if "caption-of-cell" in figure["classes"]:
            siblings = figure.parent.children
            cell = siblings[siblings.index(figure) - 1]
            if not isinstance(cell, nodes.container) or cell.get("nb_element") != "cell_code":
                logger.warning("a caption that does not follow a cell", location=figure)
                continue
            figure.parent.remove(figure)
            cell += figure


def unpack_frames(app, doctree: nodes.document, docname: str) -> None:
    """Store the frames of sliders as files: pages stay light, frames load when they come near."""
    if app.builder.format != "html":
        return
    folder = Path(app.outdir) / "_images"

    def save(match: re.Match) -> str:
        picture = base64.b64decode(match.group(1))
        name = hashlib.sha256(picture).hexdigest()[:20] + ".png"
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(picture)
        return relative_uri(app.builder.get_target_uri(docname), f"_images/{name}")

    for block in doctree.findall(nodes.raw):
        if re.search('class="(explore|live)"', block.astext()):
            block[0] = nodes.Text(INLINE.sub(save, block.astext()))


def mend_signatures(app, pagename: str, templatename: str, context: dict, doctree) -> None:
    """Sphinx puts long signatures into lists of definitions that define nothing."""

    def flat(match: re.Match) -> str:
        lines = match[2].replace("<dd>", '<span class="parameter">').replace("</dd>", "</span>")
        return f"{match[1]}{lines}"

    pattern = r'(<span class="sig-paren">\(</span>)\s*<dl>(.*?)</dl>\s*(?=<span class="sig-paren">)'
    if "body" in context:
        context["body"] = re.sub(pattern, flat, context["body"], flags=re.DOTALL)


def add_source_download(app, pagename: str, templatename: str, context: dict, doctree) -> None:
    """Offer the text source of a chapter beside its notebook."""
    source = Path(app.srcdir) / f"{pagename}.md"
    if context.get("page_source_suffix") != ".ipynb" or not source.exists():
        return
    copy = Path(app.outdir) / "_sources" / f"{pagename}.md"
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, copy)
    for group in context["header_buttons"]:
        if group["label"] == "download-buttons":
            button = dict(
                group["buttons"][0],
                text=".md",
                url=f"{context['pathto']('_sources', 1)}/{pagename}.md",
            )
            group["buttons"].insert(
                1, button | {"tooltip": "Download text source", "label": "download-text-button"}
            )


def copy_mathjax(app, error) -> None:
    """MathJax from its package: the TeX component and its fonts, nothing else."""
    if error or app.builder.format != "html":
        return
    files = importlib.metadata.files("sphinx-mathjax-offline") or []
    needed = [
        f
        for f in files
        if re.search(r"/mathjax/(tex-chtml\.js|output/chtml/fonts/woff-v2/.*)$", str(f))
    ]
    if not needed:
        raise FileNotFoundError("expected MathJax inside sphinx-mathjax-offline, found none")
    for file in needed:
        target = Path(app.outdir) / "_static" / str(file).split("/static/")[1]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file.locate(), target)


def lighten(app, error) -> None:
    """Pages that paint before their scripts run, and without half a megabyte of drawn icons.

    The theme's script draws what its style sheet and font show as well. A deferred script runs in
    its order when the page is there; so does a line that needs one, as a module.
    """
    if error or app.builder.format != "html":
        return
    for path in Path(app.outdir).rglob("*.html"):
        text = re.sub(
            r"<script src=\"[^\"]*/fontawesome\.js[^>]*></script>\n?", "", path.read_text()
        )
        text = re.sub(
            r"<script (?![^>]*\b(?:defer|async)\b)(?=[^>]*\bsrc=)", "<script defer ", text
        )
        text = text.replace("<script>DOCUMENTATION_", '<script type="module">DOCUMENTATION_')
        # pictures beyond the first two come when they come near
        first, second, *others = [*re.split(r"(?=<img )", text, maxsplit=2), "", ""][:3]
        later = re.sub(r"<img (?![^>]*\bloading=)", '<img loading="lazy" ', "".join(others))
        path.write_text(first + second + later)


def write_extras(app, error) -> None:
    """Site map, and the picture that link previews show."""
    if error or app.builder.format != "html":
        return
    base, out = app.config.html_baseurl.rstrip("/"), Path(app.outdir)
    # sphinx-sitemap would list only the pages that this build wrote anew (its issue 13).
    addresses = "".join(
        f"<url><loc>{base}/{name}.html</loc></url>" for name in sorted(app.env.found_docs)
    )
    (out / "sitemap.xml").write_text(
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{addresses}</urlset>\n'
    )
    draw_card(out / "_static/card.png", app.config.html_title)


def draw_card(path: Path, title: str) -> None:
    """An ensemble pinched together at data, 1200 by 630 pixels."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt
    import numpy as np

    from ntkcourse import figures

    generator = np.random.default_rng(0)
    data = np.array([0.18, 0.4, 0.62, 0.82])
    x = np.linspace(0, 1, 300)
    modes = np.arange(1, 9)[:, None]
    wiggle = generator.normal(size=(40, 8)) / modes.T @ np.sin(np.pi * modes * (x + 0.13))
    envelope = 1 - np.exp(-((np.abs(x[:, None] - data).min(axis=1) / 0.07) ** 2))
    figure, ax = plt.subplots(figsize=(12, 6.3), dpi=100)
    ax.plot(
        x, (np.sin(5 * x) + 0.6 * wiggle * envelope).T, color=figures.NETWORK["color"], alpha=0.25
    )
    ax.plot(x, np.sin(5 * x), **figures.KERNEL)
    ax.plot(data, np.sin(5 * data), "o", color=figures.DATA["color"], markersize=12)
    ax.text(0.04, 0.08, title, transform=ax.transAxes, fontsize=34, weight="bold")
    ax.axis("off")
    figure.savefig(path, metadata={"Software": None})
    plt.close(figure)


def link_to_source(app, config) -> None:
    """Give `sphinx.ext.linkcode` the addresses of functions in the repository of `_config.yml`."""
    theme = config.html_theme_options
    base = f"{theme['repository_url']}/blob/{theme.get('repository_branch', 'main')}"

    def resolve(domain: str, info: dict) -> str | None:
        thing = importlib.import_module(info["module"])
        for name in info["fullname"].split("."):
            thing = inspect.unwrap(getattr(thing, name))
        path = Path(inspect.getsourcefile(thing)).relative_to(app.srcdir)
        lines, first = inspect.getsourcelines(thing)
        return f"{base}/{path}#L{first}-L{first + len(lines) - 1}"

    config.linkcode_resolve = resolve


def setup(app) -> dict:
    """Connect everything above to the build."""
    app.setup_extension("book.ledger")
    app.setup_extension("book.live")
    # Jupyter Book sets this for an extension that would add a comment service; we do not load it.
    app.add_config_value("comments_config", {}, "html")
    app.config.html_static_path.append(str(STATIC))
    app.add_directive("caption", Caption)
    app.add_css_file("book.css")
    app.add_js_file("book.js", loading_method="defer")
    app.connect("config-inited", exclude_sources)
    app.connect("config-inited", link_to_source)
    app.connect("config-inited", tell_address)
    app.connect("doctree-read", give_alt_texts)
    app.connect("doctree-read", move_captions)
    app.connect("doctree-resolved", unpack_frames)
    app.connect("html-page-context", mend_signatures)
    # After the theme has made its own buttons, at 501.
    app.connect("html-page-context", add_source_download, priority=600)
    app.connect("build-finished", copy_mathjax)
    app.connect("build-finished", lighten)
    app.connect("build-finished", write_extras)
    # Pages are cached by their sources; a change of this engine is a reason to read them again.
    engine = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    version = int(hashlib.sha256(engine).hexdigest()[:8], 16)
    return {"env_version": version, "parallel_read_safe": True, "parallel_write_safe": True}
