"""Badges and ticks beside statements, and the pages that list what was measured for each of them.

The register `chapters/claims.yml` says what a statement is; the records that `claims.check` left
in the stored notebooks say what was measured. Nothing on the ledger is typed a second time.
"""

import functools
import hashlib
import json
import math
import re
from pathlib import Path
from typing import ClassVar

import yaml
from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective, SphinxRole
from sphinx.util.nodes import make_refnode

from book import seeds
from book.lessons import NOTES
from ntkcourse.claims import KINDS
from ntkcourse.claims import MIME as CLAIM

VERDICTS = ("right", "repaired", "erratum", "hypothesis missing", "opinion")
SORTS = ("mathematical", "typographical")
FIELDS = {
    "printed": "Printed",
    "holds": "Holds",
    "slip": "In the lecture's favour",
    "doubt": "In doubt",
}
PAGES = ("chapters/ledger", "chapters/errata", "chapters/coverage", "chapters/seeds")
LINE = re.compile(r"✓ ([A-Z]+-\d\d)  (.*)", re.DOTALL)
logger = logging.getLogger(__name__)


@functools.lru_cache(maxsize=4)
def _parsed(path: Path, _changed: int) -> dict:
    return yaml.load(path.read_text(), yaml.CSafeLoader)


def claims_file(root: Path) -> dict:
    """`claims.yml`, read again only when it changed: each badge on a page asks for it."""
    path = root / "chapters/claims.yml"
    return _parsed(path, path.stat().st_mtime_ns)


def register(root: Path) -> dict[str, dict]:
    """All statements and errata by id; an erratum inherits from its statement."""
    data = claims_file(root)
    entries = {name: {"of": name} | entry for name, entry in data["statements"].items()}
    for name, entry in data["errata"].items():
        parent = entries[entry["of"]]
        inherited = {field: parent[field] for field in ("chapter", "untested") if field in parent}
        entries[name] = {"verdict": "erratum"} | inherited | entry
    for name, entry in entries.items():
        erratum = ("printed", "holds") if page_of(name) == "errata" else ()
        needed = ("statement", "where", "verdict", "chapter", *erratum)
        if missing := [field for field in needed if field not in entry]:
            raise ValueError(
                f"claims.yml, {name}: expected {', '.join(missing)} beside {', '.join(entry)}; "
                "where is {} for a statement of this book"
            )
        if unknown := set(entry["where"]) - set(data["lectures"]):
            raise ValueError(
                f"claims.yml, {name}: expected where in {', '.join(data['lectures'])}, "
                f"got {', '.join(sorted(unknown))}"
            )
        if entry["verdict"] not in VERDICTS:
            raise ValueError(
                f"claims.yml, {name}: expected verdict {' | '.join(VERDICTS)}, "
                f"got {entry['verdict']!r}"
            )
        if "sort" in entry and (page_of(name) != "errata" or entry["sort"] not in SORTS):
            raise ValueError(
                f"claims.yml, {name}: expected sort of an erratum as one of {', '.join(SORTS)}, "
                f"got {entry['sort']!r}"
            )
    return entries


def lectures(root: Path) -> dict[str, dict]:
    """Title and parts of each lecture by its number."""
    return claims_file(root)["lectures"]


def titles_of(root: Path) -> dict[str, str]:
    """The titles of the lectures by their number."""
    return {number: lecture["title"] for number, lecture in lectures(root).items()}


def by_part(root: Path, number: str) -> dict[str, list[str]]:
    """The ids that belong to each part of a lecture, in the order of its lines."""
    parts = lectures(root)[number]["parts"]
    found: dict[str, list[tuple]] = {title: [] for title in parts.values()}
    for name, entry in register(root).items():
        for line in map(int, re.findall(r"L(\d+)", entry["where"].get(number, ""))):
            starts = [start for start in parts if start <= line]
            if not starts:
                raise ValueError(f"claims.yml, {name}: no part of {number} holds line {line}")
            found[parts[max(starts)]].append((line, name))
    return {
        title: list(dict.fromkeys(name for _, name in sorted(rows)))
        for title, rows in found.items()
    }


def records(root: Path) -> dict[str, list[dict]]:
    """What the stored notebooks measured, by statement, in the order of the book."""
    paths = sorted((root / "chapters").glob("*.ipynb"))
    return _collected(tuple((path, path.stat().st_mtime_ns) for path in paths))


@functools.lru_cache(maxsize=4)
def _collected(notebooks: tuple[tuple[Path, int], ...]) -> dict[str, list[dict]]:
    found: dict[str, list[dict]] = {}
    for path, _changed in notebooks:
        for cell in json.loads(path.read_text())["cells"]:
            for output in cell.get("outputs", []):
                if record := output.get("data", {}).get(CLAIM):
                    found.setdefault(record["claim"], []).append(record)
    return found


def experiments(entry: dict, measured: dict[str, list[dict]]) -> list[dict]:
    """The checks in which the printed version of an erratum is the rival, and fails."""
    found = []
    for wanted in entry.get("shown", []):
        other = re.match(r"([A-Z]+-\d\d): ", wanted)
        source, what = (other[1], wanted[other.end() :]) if other else (entry["of"], wanted)
        found += [r for r in measured.get(source, []) if r["what"] == what and "rival" in r]
    return found


def badge(name: str) -> nodes.inline:
    """The id of a statement; one look for all, whatever the verdict on some lecture is."""
    return nodes.inline(name, name, classes=["claim"])


class RowLink(nodes.Element):
    """A link to the row of a statement; which page that row is on is known once all are read."""


def link(name: str, content: nodes.Node) -> RowLink:
    """A placeholder for the link from `content` to the row of a statement."""
    return RowLink("", content, claim=name)


def page_of(name: str) -> str:
    """The page that has the row of this id."""
    return "errata" if name.startswith("E-") else "ledger"


class ClaimRole(SphinxRole):
    """`{claim}` with an id: a badge that leads to the row of the statement."""

    def run(self):
        """The badge, and the anchor that the row links back to."""
        if self.text not in register(Path(self.env.srcdir)):
            logger.warning("unknown statement %s", self.text, location=self.get_location())
            return [nodes.literal(self.text, self.text)], []
        return [*statement_here(self.env, self.text), link(self.text, badge(self.text))], []


def statement_here(env, claim: str) -> list[nodes.Node]:
    """The anchor that the row of a statement links back to, once on a page."""
    name = f"statement-{claim.lower()}"
    if env.domains["std"].anonlabels.get(name, ("",))[0] == env.docname:
        return []
    anchor(env, name)
    return [nodes.target("", "", ids=[name])]


def anchor(env, name: str) -> None:
    """Remember the first place that carries this name, a lesson rather than notes.

    Rows of the ledger link there.
    """
    labels = env.domains["std"].anonlabels
    known = labels.get(name, (NOTES,))[0]
    if known.endswith(NOTES) and (known == NOTES or not env.docname.endswith(NOTES)):
        labels[name] = (env.docname, name)


def check_id(claim: str, what: str) -> str:
    """The anchor of the line that one check printed."""
    return f"check-{claim.lower()}-{hashlib.sha256(what.encode()).hexdigest()[:6]}"


# A record in words that a student understands, unless the page gives its own.
IN_WORDS = {
    ("identity", "<"): "equal up to rounding",
    ("law", "<"): "within {} standard errors",
    ("law", "≥"): "p-value {}",
    ("rate", "≈"): "measured exponent {}",
}


class CheckLink(nodes.Element):
    """A link to the cell that measured something; where that is, is known once all are read."""


class MeasuredRole(SphinxRole):
    """`{measured}`: a tick, a measured number in words, and the way to the cell that measured it.

    The text is `words <NTK-04: what>` or the target alone. In the words `{}` is the measured
    number, `{rival}` and `{bound}` are the other numbers of the check, taken from its record.
    """

    def run(self):
        """The line, and the anchor of the statement that it stands beside."""
        explicit = re.fullmatch(r"(.*?)\s*<([^<>]+)>", self.text, re.DOTALL)
        said, target = explicit.groups() if explicit else ("", self.text)
        claim, _, what = (part.strip() for part in target.partition(":"))
        found = records(Path(self.env.srcdir)).get(claim, [])
        found = [r for r in found if r["what"] == what] if what else found
        if not found:
            logger.warning("nothing was measured for %s", target, location=self.get_location())
            return [nodes.literal(self.text, self.text)], []
        record = found[0]
        said = said or IN_WORDS.get((record.get("kind"), record["relation"]), "measured: {}")
        try:
            # A minus sign in a sentence is not a hyphen.
            shown = {k: re.sub(r"^-(?=\d)", "−", str(v)) for k, v in record.items()}
            text = said.format(shown["measured"], **shown)
        except (KeyError, IndexError) as error:
            logger.warning("no %s was measured for %s", error, target, location=self.get_location())
            text = said
        line = CheckLink("", nodes.Text(text), check=check_id(claim, record["what"]), name=claim)
        return [*statement_here(self.env, claim), line], []


class Ledger(SphinxDirective):
    """`{ledger}`: all statements with their numbers; with `:errata:` the errata instead."""

    option_spec: ClassVar = {"errata": directives.flag}

    def run(self):
        """A summary, the filters and one row per entry."""
        root = Path(self.env.srcdir)
        for path in [root / "chapters/claims.yml", *(root / "chapters").glob("*.ipynb")]:
            self.env.note_dependency(str(path))
        wanted = "errata" if "errata" in self.options else "ledger"
        entries = {k: v for k, v in register(root).items() if page_of(k) == wanted}
        measured, titles = records(root), titles_of(root)
        rows = nodes.bullet_list(classes=["ledger"])
        done = 0
        for name, entry in entries.items():
            found = experiments(entry, measured) if wanted == "errata" else measured.get(name, [])
            done += bool(found)
            rows += self.row(name, entry, found, titles, wanted)
        summary = f"{len(entries)} entries, {done} of them measured."
        if wanted == "ledger":
            summary += by_kind([r for rows in measured.values() for r in rows])
        else:
            summary += by_sort(entries)
        return [nodes.paragraph(summary, summary), filters(entries, titles), rows]

    def row(
        self, name: str, entry: dict, measured: list[dict], titles: dict, page: str
    ) -> nodes.list_item:
        """What is stated, by whom, with which verdict, and what was measured."""
        row_id = f"{page}-{name.lower()}"
        kinds = [f"verdict-{entry['verdict']}", f"chapter-{entry['chapter']}"]
        kinds += [f"lecture-{lecture}" for lecture in entry["where"] or ["own"]]
        row = nodes.list_item(
            ids=[row_id], classes=["ledger-row", *(kind.replace(" ", "-") for kind in kinds)]
        )
        self.env.domains["std"].note_hyperlink_target(row_id, self.env.docname, row_id, name)
        head = nodes.paragraph(
            "", "", badge(name), nodes.Text(" "), *words(self, entry["statement"])
        )
        verdict = nodes.inline("", entry["verdict"], classes=["ledger-verdict"])
        source = "; ".join(
            f"{titles[lecture]}, {place}" for lecture, place in entry["where"].items()
        )
        origin = nodes.paragraph(
            "", "", verdict, nodes.Text(f" · {source or 'this book'}"), classes=["ledger-source"]
        )
        if "sort" in entry:
            origin += nodes.Text(f" · {entry['sort']}")
        if name != entry["of"]:
            origin += [nodes.Text(" · "), link(entry["of"], nodes.Text(entry["of"]))]
        origin += nodes.inline(
            "", "", classes=["ledger-links"], claim=entry["of"] if measured else name
        )
        row += [head, origin]
        for field, title in FIELDS.items():
            if field in entry:
                label = nodes.strong("", title + ":")
                text = [label, nodes.Text(" "), *words(self, entry[field])]
                row += nodes.paragraph("", "", *text, classes=["ledger-field"])
        for record in measured:
            row += nodes.paragraph("", sentence(record, page), classes=["ledger-measured"])
        if not measured:
            reason = entry.get("untested") or (
                "an opinion" if entry["verdict"] == "opinion" else ""
            )
            text = f"Not measured: {reason}." if reason else "Not measured yet."
            row += nodes.paragraph("", text, classes=["ledger-open"])
        return row


class Seeds(SphinxDirective):
    """`{seeds}`: how each check fared when its chapter was run again with other random numbers."""

    def run(self):
        """A sentence, and for each check its bound, how often it held, and all values."""
        root = Path(self.env.srcdir)
        self.env.note_dependency(str(root / seeds.STORE))
        table = []
        for chapter, entry in seeds.stored(root).items():
            table += [(chapter, row) for row in seeds.rows(entry["seeds"]) if row["tried"]]
        held = sum(all(o["held"] for o in row["others"]) for _, row in table)
        tried = max((row["tried"] for _, row in table), default=0)
        text = (
            f"{len(table)} checks, run again under up to {tried} other master seeds: "
            f"{held} held under every one."
        )
        lines = nodes.bullet_list(classes=["seeds"])
        for _, row in table:
            good = sum(o["held"] for o in row["others"])
            line = nodes.paragraph("", "", link(row["claim"], badge(row["claim"])))
            bound = f"{row['relation']} {row['bound']}" if "bound" in row else "did not run"
            line += nodes.Text(f" {row['what'] or 'measured'}, {bound}: {good} of {row['tried']}. ")
            line += nodes.raw("", strip(row), format="html")
            lines += nodes.list_item("", line, classes=[] if good == row["tried"] else ["missed"])
        return [nodes.paragraph(text, text), lines]


def strip(row: dict) -> str:
    """All values of a check on one line, the stored one as a bar."""
    values = [number(o.get("measured")) for o in row["others"]]
    values, own = [v for v in values if v is not None], number(row.get("measured"))
    if own is None or not values:
        return ""
    low, high = min(own, *values), max(own, *values)
    at = lambda v: 4 + 92 * ((v - low) / (high - low) if high > low else 0.5)  # noqa: E731
    dots = "".join(f'<circle cx="{at(v):.1f}" cy="6" r="2.2"/>' for v in values)
    label = f"stored {own:.3g}; others from {min(values):.3g} to {max(values):.3g}"
    return (
        f'<svg class="strip" viewBox="0 0 100 12" role="img" aria-label="{label}">'
        f'<path d="M{at(own):.1f} 1v10"/>{dots}</svg> <span class="strip-text">{label}</span>'
    )


def number(text) -> float | None:
    """The measured value of a record as a number; "0 (to 1e-13)" is 0."""
    try:
        value = float(str(text).split(" ")[0])
    except ValueError:
        return None
    return value if math.isfinite(value) else None


class Coverage(SphinxDirective):
    """`{coverage} 000`: a lecture from top to bottom, and where this book has each part of it.

    With `own` instead of a number, the statements that are in no lecture.
    """

    required_arguments = 1

    def run(self):
        """A list of statements under the name of each part."""
        root, number = Path(self.env.srcdir), self.arguments[0]
        self.env.note_dependency(str(root / "chapters/claims.yml"))
        entries = register(root)
        if number == "own":
            own = [name for name, e in entries.items() if not e["where"]]
            return [self.listing(entries, own)]
        result = []
        for title, names in by_part(root, number).items():
            result.append(nodes.rubric(title, title[0].upper() + title[1:]))
            result.append(self.listing(entries, names))
        return result

    def listing(self, entries: dict, names: list[str]) -> nodes.Node:
        """One line per statement: badge, words, links to the place and to the measurement."""
        if not names:
            text = "Introduction or summary; nothing to state."
            return nodes.paragraph(text, text, classes=["ledger-open"])
        lines = nodes.bullet_list(classes=["coverage"])
        for name in names:
            entry = entries[name]
            line = nodes.paragraph("", "", link(name, badge(name)))
            line += [nodes.Text(" "), *words(self, entry["statement"])]
            line += nodes.inline("", "", classes=["ledger-links"], claim=entry["of"])
            lines += nodes.list_item("", line)
        return lines


def words(directive: SphinxDirective, text: str) -> list[nodes.Node]:
    """A text of the register, formulas included."""
    body = nodes.Element()
    directive.state.nested_parse(StringList([text]), 0, body)
    return list(body[0].children)


def sentence(record: dict, page: str) -> str:
    """A record in words."""
    result = f"{record['measured']} {record['relation']} {record['bound']}"
    text = f"{record['what'] or 'measured'}: {result}"
    if "kind" in record:
        text = f"{record['kind'].capitalize()}. {text}"
    wrong = "as printed" if page == "errata" else "the wrong version gives"
    alarm = record.get("false_alarm")
    return (
        text
        + (f"; {wrong} {record['rival']}" if "rival" in record else "")
        + (f"; a true law fails with probability {alarm}" if alarm else "")
    )


def by_kind(measured: list[dict]) -> str:
    """How many checks there are of each kind, in words."""
    counts = {kind: sum(r.get("kind") == kind for r in measured) for kind in KINDS}
    plural = {"identity": "identities", "inequality": "inequalities"}
    parts = [
        f"{count} {kind if count == 1 else plural.get(kind, kind + 's')}"
        for kind, count in counts.items()
        if count
    ]
    return f" Checks: {', '.join(parts)}." if parts else ""


def by_sort(entries: dict) -> str:
    """How many errata are mathematical and how many slips of the pen, in words."""
    right = sum(entry["verdict"] == "right" for entry in entries.values())
    counts = {sort: sum(e.get("sort") == sort for e in entries.values()) for sort in SORTS}
    parts = [f"{count} {sort}" for sort, count in counts.items() if count]
    if right:
        parts.append(f"{right} right after all")
    return f" {', '.join(parts)}." if parts else ""


def filters(entries: dict, titles: dict) -> nodes.raw:
    """Three menus; the script shows them, since without a script they would do nothing."""
    lecture_names = {"own": "this book"} | titles
    used = {lecture for entry in entries.values() for lecture in entry["where"] or ["own"]}
    menus = {
        "verdict": {
            v.replace(" ", "-"): v
            for v in VERDICTS
            if any(e["verdict"] == v for e in entries.values())
        },
        "chapter": {
            entry["chapter"]: entry["chapter"].replace("-", " ") for entry in entries.values()
        },
        "lecture": {key: lecture_names[key] for key in sorted(used)},
    }
    markup = "".join(
        f'<label>{kind} <select name="{kind}"><option value="">all</option>'
        + "".join(f'<option value="{value}">{text}</option>' for value, text in options.items())
        + "</select></label>"
        for kind, options in menus.items()
    )
    return nodes.raw(
        "", f'<form class="ledger-filter" hidden>{markup}<output></output></form>', format="html"
    )


def mark_checks(app, doctree: nodes.document) -> None:
    """Turn the printed line of a check into a line that links to its row, and can be linked to."""
    for block in list(doctree.findall(nodes.literal_block)):
        if match := LINE.fullmatch(block.astext().strip()):
            name, rest = match.groups()
            targets = [f"check-{name.lower()}"]
            for record in records(Path(app.srcdir)).get(name, []):
                label = ", ".join(filter(None, (record.get("kind"), record["what"])))
                if label and rest.startswith(f"{label}: "):
                    targets.append(check_id(name, record["what"]))
            labels = app.env.domains["std"].anonlabels
            targets = [target for target in dict.fromkeys(targets) if target not in labels]
            for target in targets:
                anchor(app.env, target)
            line = nodes.paragraph("", "", ids=targets, classes=["claim-line"])
            line += [nodes.Text("✓ "), link(name, nodes.Text(name)), nodes.Text(" " + rest)]
            # Not replace_self, which would hand on the look of program output.
            block.parent.replace(block, line)


def resolve_links(app, doctree: nodes.document, docname: str) -> None:
    """Fill in where a statement is made and where it is measured, now that all pages are read."""
    labels = app.env.domains["std"].anonlabels
    for place in list(doctree.findall(RowLink)):
        row = f"{page_of(place['claim'])}-{place['claim'].lower()}"
        if row not in labels:
            logger.warning("no row for %s on any page", place["claim"], location=place)
            place.replace_self(place.children)
            continue
        reference = make_refnode(app.builder, docname, *labels[row], place.children)
        place.replace_self(reference)
    for place in list(doctree.findall(CheckLink)):
        if place["check"] not in labels:
            logger.warning("no cell prints the check of %s", place["name"], location=place)
            place.replace_self(place.children)
            continue
        reference = make_refnode(app.builder, docname, *labels[place["check"]], place.children)
        reference["classes"].append("measured")
        place.replace_self(reference)
    for slot in list(doctree.findall(nodes.inline)):
        if "ledger-links" not in slot["classes"]:
            continue
        name = slot["claim"].lower()
        for target, text in [(f"statement-{name}", "statement"), (f"check-{name}", "measurement")]:
            if target in labels:
                page, node_id = labels[target]
                slot += [
                    nodes.Text(" · "),
                    make_refnode(app.builder, docname, page, node_id, nodes.Text(text)),
                ]


def outdated(app, env, added, changed, removed) -> list[str]:
    """The pages that collect from others, and the lessons whose notes were read again."""
    touched = set(added) | set(changed)
    ticked = {name.removesuffix(NOTES) for name in touched if name.endswith(NOTES)}
    return [page for page in [*PAGES, *ticked] if page in env.found_docs]


def setup(app) -> dict:
    """Register the badge, the tick, the two pages of rows, and the links between them."""
    app.add_node(RowLink)
    app.add_node(CheckLink)
    app.add_role("claim", ClaimRole())
    app.add_role("measured", MeasuredRole())
    app.add_directive("ledger", Ledger)
    app.add_directive("coverage", Coverage)
    app.add_directive("seeds", Seeds)
    # These pages collect from all others, so they are read again whenever anything is.
    # A tick shows a number that another page has measured.
    app.connect("env-get-outdated", outdated)
    app.connect("doctree-read", mark_checks)
    app.connect("doctree-resolved", resolve_links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
