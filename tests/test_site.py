"""The built site: complete, self-contained, usable by keyboard, mouse, phone and screen reader."""

import contextlib
import functools
import http.server
import re
import subprocess
import sys
import threading
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest
import yaml

from book import ledger, lessons
from ntkcourse import sliders

ROOT = Path(__file__).resolve().parent.parent
CONTENTS = yaml.safe_load((ROOT / "_toc.yml").read_text())
ADDRESS = yaml.safe_load((ROOT / "_config.yml").read_text())["html"]["baseurl"]


def files(entries: list[dict]) -> list[str]:
    """The pages of a part of the contents, notes below their lesson."""
    return [f for e in entries for f in (e["file"], *files(e.get("sections", [])))]


PAGES = [CONTENTS["root"], *(f for part in CONTENTS["parts"] for f in files(part["chapters"]))]
LESSONS = [f"chapters/{source.stem}" for source in lessons.lessons(ROOT)]
# Faults of the theme that its templates leave no way to mend; everything else has to pass.
AXE_ALLOWED: dict[str, str] = {}


@pytest.fixture(scope="session")
def site():
    """The folder of the site, built from the stored notebooks as they are now."""
    result = subprocess.run(
        [sys.executable, "-m", "book"], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return ROOT / "_build/html"


# Files


class Links(HTMLParser):
    """Addresses and anchors of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.links, self.ids = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.ids.add(attributes.get("id"))
        self.links += [attributes[name] for name in ("href", "src") if attributes.get(name)]


def test_every_link_inside_the_site_leads_somewhere(site):
    paths = [path for path in site.rglob("*.html") if path.parent.name != "_static"]
    pages = {path: Links(path.read_text()) for path in paths}
    assert len(pages) > len(PAGES)
    dead = []
    for path, page in pages.items():
        for link in page.links:
            address, anchor = (unquote(part).split("?")[0] for part in urldefrag(link))
            if re.match(r"[a-z]+:|//", link):
                continue
            start = site if address.startswith("/") else path.parent
            address = address.removeprefix(urlsplit(ADDRESS).path + "/")
            target = (start / address).resolve() if address else path
            known = target in pages and (not anchor or anchor in pages[target].ids)
            if not (known or (target.is_file() and target.suffix != ".html")):
                dead.append(f"{path.relative_to(site)} → {link}")
    assert dead == []


def test_pages_ask_for_nothing_elsewhere(site):
    foreign = []
    for path in site.rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|img|link|iframe|source)\b[^>]*?(?:src|href)=\"(?://|https?:)[^\"]*\"[^>]*>",
            path.read_text(),
        )
        foreign += [f"{path.name}: {tag}" for tag in loaded if 'rel="canonical"' not in tag]
    assert foreign == []


@pytest.mark.parametrize("page", PAGES)
def test_a_page_describes_itself(site, page):
    text = (site / f"{page}.html").read_text()
    for tag in (
        'name="description"',
        'property="og:title"',
        'property="og:image"',
        'property="og:url"',
    ):
        [content] = re.findall(rf'<meta {tag} content="([^"]+)"', text)
        assert content
    assert "favicon.svg" in text


def test_site_map_missing_page_and_card(site):
    addresses = [
        element.text
        for element in ET.parse(site / "sitemap.xml").iter()
        if element.tag.endswith("loc")
    ]
    assert len(addresses) == len(PAGES)
    assert all((site / address.removeprefix(ADDRESS + "/")).is_file() for address in addresses)
    missing = Links((site / "404.html").read_text()).links
    assert f"{ADDRESS}/" in missing
    # it is shown at any depth, where a link that does not start at the root leads elsewhere
    start = ("#", urlsplit(ADDRESS).path + "/", "https://")
    assert [link for link in missing if not link.startswith(start)] == []
    assert (site / "_static/card.png").stat().st_size > 10_000


def test_every_statement_is_on_the_page_of_the_lectures(site):
    text = (site / "chapters/coverage.html").read_text()
    for name in ledger.register(ROOT):
        assert re.search(rf'<span class="claim">{name}</span>', text), name


def test_chapters_offer_notebook_and_text(site):
    for page in PAGES:
        if (ROOT / f"{page}.ipynb").exists():
            # A starter of the homework is generated from a master; it has no text beside it.
            for suffix in (".ipynb", ".md") if page.startswith("chapters/") else (".ipynb",):
                assert (site / "_sources" / f"{page}{suffix}").read_bytes() == (
                    ROOT / f"{page}{suffix}"
                ).read_bytes()
                assert f"_sources/{page}{suffix}" in (site / f"{page}.html").read_text()


# The browser


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="session")
def address(site):
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextlib.contextmanager
def visits(browser, address):
    """Open pages; at the end no visit may have left a fault behind."""
    faults, contexts = [], []

    def open_page(page: str, width=1280, theme="light", **options):
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=theme,
            has_touch=width < 500,
            **options,
        )
        context.set_default_timeout(60_000)  # a busy machine is slow
        contexts.append(context)
        tab = context.new_page()
        tab.on(
            "console", lambda m: faults.append(m.text) if m.type in ("error", "warning") else None
        )
        tab.on("pageerror", lambda error: faults.append(str(error)))
        tab.on(
            "request",
            lambda r: faults.append(r.url) if not r.url.startswith((address, "data:")) else None,
        )
        tab.on(
            "response", lambda r: faults.append(f"{r.status} {r.url}") if r.status >= 400 else None
        )
        tab.goto(f"{address}/{page}.html", wait_until="networkidle")
        if options.get("java_script_enabled", True):
            # formulas move the page as they are typeset; when they are done, the theme makes what
            # is wider than the page reachable by keyboard
            tab.evaluate("() => window.MathJax?.startup?.promise.then(() => true)")
            tab.wait_for_function(
                "() => [...document.querySelectorAll('pre')].every("
                "p => p.scrollWidth <= p.clientWidth || p.tabIndex === 0)"
            )
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []


@pytest.fixture
def visit(browser, address):
    with visits(browser, address) as open_page:
        yield open_page


@pytest.fixture(scope="module", params=PAGES)
def page(request):
    return request.param


@pytest.fixture(scope="module")
def desk(browser, address, page):
    """A page on a wide screen, opened once for all the tests that look at it."""
    with visits(browser, address) as open_page:
        yield open_page(page)


def unfit_formulas_and_width(tab) -> tuple[int, int, int]:
    """How many formulas are raw, how many are wrong, how far the page is wider than its screen."""
    return tuple(
        tab.evaluate(
            """() => [
                [...document.querySelectorAll('.math')].filter(
                    m => !m.querySelector('mjx-container')).length,
                document.querySelectorAll('mjx-merror, [data-mjx-error]').length,
                Math.max(0, document.documentElement.scrollWidth - innerWidth)]"""
        )
    )


@pytest.mark.browser
def test_formulas_are_typeset_and_nothing_is_wider_than_the_screen(desk):
    assert unfit_formulas_and_width(desk) == (0, 0, 0)


@pytest.mark.browser
def test_the_same_as_narrow_as_a_phone(desk):
    """The page that is open anyway: to typeset each once more costs a minute."""
    desk.set_viewport_size({"width": 390, "height": 900})
    assert unfit_formulas_and_width(desk) == (0, 0, 0)
    desk.set_viewport_size({"width": 1280, "height": 900})


# One page of each kind; the others are soaked.
PHONE = {"chapters/index", "chapters/how-live", *LESSONS[:1], f"{LESSONS[0]}{lessons.NOTES}"}
PHONE |= {"chapters/ledger", next(page for page in PAGES if page.startswith("homework/0"))}


@pytest.mark.browser
@pytest.mark.parametrize(
    "name",
    [name if name in PHONE else pytest.param(name, marks=pytest.mark.soak) for name in PAGES],
)
def test_the_same_on_a_phone(visit, name):
    assert unfit_formulas_and_width(visit(name, 390)) == (0, 0, 0)


@pytest.mark.browser
def test_every_slider_moves_by_key_and_by_mouse(desk):
    for figure in desk.locator("figure.explore").all():
        figure.scroll_into_view_if_needed()
        image = figure.locator("img")
        for slider in figure.locator("input[type=range]").all():
            slider.press("Home")
            seen = {
                (
                    image.get_attribute("src"),
                    image.get_attribute("alt"),
                    slider.get_attribute("aria-valuetext"),
                )
            }
            slider.focus()
            for _ in range(int(slider.get_attribute("max"))):
                desk.keyboard.press("ArrowRight")
                assert image.evaluate("i => i.decode().then(() => i.naturalWidth)") > 100
                seen.add(
                    (
                        image.get_attribute("src"),
                        image.get_attribute("alt"),
                        slider.get_attribute("aria-valuetext"),
                    )
                )
            for column in zip(*seen, strict=True):
                assert len(set(column)) == int(slider.get_attribute("max")) + 1, (
                    "frames, texts and values differ"
                )
            last = image.get_attribute("src")
            box = slider.bounding_box()
            desk.mouse.click(box["x"] + box["width"] / 4, box["y"] + box["height"] / 2)
            assert image.get_attribute("src") != last
            assert figure.locator("figcaption").inner_text() == image.get_attribute("alt")


# Contrast depends on these alone, so one element of each kind stands for thousands of its like.
MARK_ONE_OF_EACH_COLOUR = """() => {
    const seen = new Set();
    for (const e of document.querySelectorAll('body *')) {
        e.removeAttribute('data-one-of-each');
        if (![...e.childNodes].some(c => c.nodeType === 3 && c.textContent.trim())) continue;
        const style = getComputedStyle(e);
        let under = e, ground;
        do {
            ground = getComputedStyle(under).backgroundColor;
            under = under.parentElement;
        } while (under && ground === 'rgba(0, 0, 0, 0)');
        const kind = [style.color, ground, style.fontSize, style.fontWeight,
                      style.opacity, style.visibility, style.display].join();
        if (!seen.has(kind)) e.setAttribute('data-one-of-each', '');
        seen.add(kind);
    }
    return seen.size;
}"""


@pytest.mark.browser
def test_accessible_in_light_and_dark(desk, page):
    """Formulas are made by MathJax, alike everywhere: one page with hundreds stands for all."""
    from axe_playwright_python.sync_playwright import Axe

    def violations(context=None, **options):
        # Preloading would fetch imported style sheets from wrong addresses.
        options |= {"preload": False, "resultTypes": ["violations"]}
        results = Axe().run(desk, context=context, options=options).response
        assert results["passes"]
        return [
            f"{v['id']}: {node['target']} {node['html'][:120]} {node['failureSummary']}"
            for v in results["violations"]
            if v["id"] not in AXE_ALLOWED
            for node in v["nodes"]
        ]

    without_contrast = {"color-contrast": {"enabled": False}}
    if page == "chapters/05-convergence":
        assert desk.locator("mjx-container").count() > 100
        assert violations(rules=without_contrast) == []
    # For contrast they do not matter either: they have the colour of the text around them.
    desk.evaluate("() => document.querySelectorAll('mjx-container').forEach(m => m.remove())")
    if page != "chapters/05-convergence":
        assert violations(rules=without_contrast) == []
    for theme in ("light", "dark"):
        desk.emulate_media(color_scheme=theme)
        desk.wait_for_function(
            "theme => document.documentElement.dataset.theme === theme"
            " && document.getAnimations().length === 0",
            arg=theme,
        )
        assert desk.evaluate(MARK_ONE_OF_EACH_COLOUR) > 5
        assert violations({"include": [["[data-one-of-each]"]]}, runOnly=["color-contrast"]) == []


@pytest.mark.browser
def test_dark_mode_turns_page_and_figures_dark(visit):
    brightness = "() => getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    assert min(visit(PAGES[1], theme="light").evaluate(brightness)) > 200
    tab = visit(PAGES[1], theme="dark")
    assert max(tab.evaluate(brightness)) < 60
    filters = tab.eval_on_selector_all(
        ".cell_output img", "all => all.map(i => getComputedStyle(i).filter)"
    )
    assert filters
    assert all("invert" in value for value in filters)


@pytest.mark.browser
def test_some_page_has_a_slider_and_works_by_touch(visit):
    tab = visit(
        next(p for p in PAGES if "explore" in (ROOT / "_build/html" / f"{p}.html").read_text()),
        width=390,
    )
    slider = tab.locator("figure.explore input").first
    slider.scroll_into_view_if_needed()
    before = tab.locator("figure.explore img").first.get_attribute("src")
    box = slider.bounding_box()
    assert box["height"] >= 40
    tab.touchscreen.tap(box["x"] + box["width"] * 0.7, box["y"] + box["height"] / 2)
    assert tab.locator("figure.explore img").first.get_attribute("src") != before


@pytest.mark.browser
def test_without_script_the_first_frame_stands_alone(visit):
    tab = visit(
        next(p for p in PAGES if "explore" in (ROOT / "_build/html" / f"{p}.html").read_text()),
        java_script_enabled=False,
    )
    figure = tab.locator("figure.explore").first
    assert figure.locator("img").is_visible()
    assert not figure.locator(".explore-controls").is_visible()


@pytest.mark.browser
def test_print_shows_the_frame_and_hides_the_controls(visit):
    tab = visit(
        next(p for p in PAGES if "explore" in (ROOT / "_build/html" / f"{p}.html").read_text())
    )
    tab.emulate_media(media="print")
    assert tab.locator("figure.explore img").first.is_visible()
    assert not tab.locator(".explore-controls").first.is_visible()


@pytest.mark.parametrize("page", PAGES)
def test_a_policy_forbids_to_make_code_from_text(site, page):
    [text] = re.findall(
        r'<head>\s*<meta http-equiv="Content-Security-Policy" content="([^"]+)"',
        (site / f"{page}.html").read_text(),
    )
    rules = {rule.split()[0]: rule.split()[1:] for rule in text.split("; ")}
    assert "'self'" in rules["script-src"]
    assert not {"'unsafe-eval'", "'unsafe-inline'", "*"} & {*rules["script-src"]}
    assert rules["object-src"] == ["'none'"]


@pytest.mark.browser
def test_the_policy_is_in_force(browser, address):
    tab = browser.new_page()
    tab.goto(f"{address}/chapters/index.html")
    # in a task of the page's own: what a test evaluates itself is exempt
    attempt = """() => new Promise(done => setTimeout(() => {
        try { (0, eval)('1'); done('ran'); } catch (error) { done(error.name); } }))"""
    assert tab.evaluate(attempt) == "EvalError"
    tab.close()


@pytest.mark.browser
def test_a_program_is_loaded_when_its_figure_comes_near(visit):
    tab = visit("chapters/how-live")
    loaded = "() => performance.getEntriesByType('resource').map(e => e.name.split('?')[0])"
    figures = tab.locator("figure.live")
    last = figures.last.get_attribute("data-live")
    assert not any(name.endswith(f"/live/{last}.js") for name in tab.evaluate(loaded))
    figures.last.scroll_into_view_if_needed()
    tab.wait_for_function("() => [...document.querySelectorAll('figure.live')].at(-1).live.took")
    assert any(name.endswith(f"/live/{last}.js") for name in tab.evaluate(loaded))


@pytest.mark.browser
def test_a_page_with_live_figures_stays_small_and_does_not_jump(visit, site):
    import gzip

    for page in ("chapters/index", "chapters/how-live"):
        names = re.findall(
            r'data-program="[./]*(_static/[^?"]+)', (site / f"{page}.html").read_text()
        )
        assert names
        scripts = [site / name for name in names] + [site / "_static/live.js"]
        assert sum(len(gzip.compress(path.read_bytes())) for path in scripts) < 300_000
    tab = visit("chapters/index")
    shift = """() => new Promise(done => new PerformanceObserver(list => done(
        list.getEntries().reduce((sum, e) => sum + e.value, 0))).observe(
        {type: 'layout-shift', buffered: true}) || setTimeout(() => done(0), 500))"""
    assert tab.evaluate(shift) < 0.1  # the bound that browsers call good


@pytest.fixture
def stage(browser):
    """A bare page with one exploration and the site's script, for what no chapter may show yet."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    def frame(t):
        figure = plt.figure(figsize=(2, 1))
        figure.text(0.5, 0.5, str(t))
        return figure

    contexts = []

    def open_stage(animate: bool, reduced: bool, **values):
        frames = [
            (sliders._png(frame(i))[0], f"frame number {i} of all") for i in range(3 ** len(values))
        ]
        labels = dict.fromkeys(values, "a")
        markup = sliders._static(frames, (200, 100), values, labels, animate)
        context = browser.new_context(reduced_motion="reduce" if reduced else "no-preference")
        contexts.append(context)
        tab = context.new_page()
        tab.clock.install()
        tab.set_content(markup)
        tab.add_script_tag(path=str(ROOT / "book/static/book.js"))
        return tab

    yield open_stage
    for context in contexts:
        context.close()


def shown(tab) -> str:
    return tab.locator("img").get_attribute("alt")


@pytest.mark.browser
def test_an_animation_plays_pauses_and_ends(stage):
    tab = stage(animate=True, reduced=False, t=[0, 1, 2])
    tab.get_by_role("button", name="Play").click()
    tab.get_by_role("button", name="Pause").click()
    tab.clock.run_for(2000)
    assert shown(tab) == "frame number 0 of all"
    tab.get_by_role("button", name="Play").click()
    tab.clock.run_for(300)
    assert shown(tab) == "frame number 1 of all"
    tab.clock.run_for(2000)
    assert shown(tab) == "frame number 2 of all"
    assert tab.get_by_role("button", name="Play").is_visible()


@pytest.mark.browser
def test_an_animation_respects_reduced_motion(stage):
    tab = stage(animate=True, reduced=True, t=[0, 1, 2])
    tab.get_by_role("button", name="Play").click()
    tab.clock.run_for(2000)
    assert shown(tab) == "frame number 1 of all"


@pytest.mark.browser
def test_two_sliders_choose_from_a_grid(stage):
    tab = stage(animate=False, reduced=False, s=[0, 1, 2], t=[0, 1, 2])
    tab.locator("input").nth(0).press("ArrowRight")
    tab.locator("input").nth(1).press("ArrowRight")
    tab.locator("input").nth(1).press("ArrowRight")
    assert shown(tab) == "frame number 5 of all"


@pytest.mark.browser
def test_search_finds_wasserstein(visit, address):
    tab = visit("search")
    tab.goto(f"{address}/search.html?q=Wasserstein")
    tab.locator("#search-results li p.context").first.wait_for()
    results = tab.locator("#search-results li").all_inner_texts()
    assert "Mean-field networks" in results[0]
    assert any("ntkcourse.transport" in result for result in results)
    # the excerpts are of the text, not of the contents beside it
    assert not any("\nContents" in result or ".pdf" in result for result in results)


@pytest.mark.browser
def test_the_ledger_can_be_filtered(visit):
    tab = visit("chapters/ledger")
    rows = tab.locator(".ledger-row:visible")
    everything = rows.count()
    tab.get_by_label("verdict").select_option("erratum")
    tab.get_by_label("lecture").select_option("000")
    some = rows.count()
    assert 0 < some < everything
    assert tab.locator(".ledger-row.verdict-erratum.lecture-000").count() == some
    assert tab.locator(".ledger-filter output").inner_text() == f"{some} shown"


@pytest.mark.browser
def test_a_badge_leads_to_its_row_and_back_to_statement_and_cell(visit):
    page = next(p for p in PAGES if 'class="claim"' in (ROOT / f"_build/html/{p}.html").read_text())
    tab = visit(page)
    badge = tab.locator("a:has(.claim)").first
    name = badge.inner_text().lower()
    badge.click()
    tab.wait_for_url(f"**/ledger.html#ledger-{name}")
    row = tab.locator(f"#ledger-{name}")
    row.get_by_role("link", name="measurement").click()
    tab.wait_for_url(f"**/*.html#check-{name}")
    assert tab.locator(f"#check-{name}").is_visible()
    tab.go_back()
    row.get_by_role("link", name="statement").click()
    tab.wait_for_url(f"**/*.html#statement-{name}")


# Lessons


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_tick_in_a_lesson_leads_to_a_check_in_its_notes(site, lesson):
    text = (site / f"{lesson}.html").read_text()
    links = re.findall(r'<a class="[^"]*measured[^"]*" href="([^"]+)"', text)
    name = Path(lesson).name
    assert links
    assert all(re.match(rf"{name}{lessons.NOTES}\.html#check-", link) for link in links)


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_shows_no_ids_and_links_to_its_notes(site, lesson):
    text = (site / f"{lesson}.html").read_text()
    article = text[text.index("<article") : text.index("</article>")]
    assert 'class="claim"' not in article
    assert not re.search(r">✓ [A-Z]+-\d\d", article)
    assert f"{Path(lesson).name}{lessons.NOTES}.html" in article


@pytest.mark.parametrize("lesson", LESSONS)
def test_notes_stand_below_their_lesson_and_share_its_numbers(site, lesson):
    assert PAGES[PAGES.index(lesson) + 1] == lesson + lessons.NOTES
    chapter = int(Path(lesson).name[:2])
    for page in (lesson, lesson + lessons.NOTES):
        text = (site / f"{page}.html").read_text()
        numbers = re.findall(r'class="caption-number">\w+\.? (\d+)\.\d+', text)
        assert set(numbers) == {str(chapter)}
