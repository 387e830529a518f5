"""Write marks: a record per submission, a page for the student, results for Gradescope, a table."""

import contextlib
import csv
import fcntl
import hashlib
import html
import io
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

STYLE = """
:root { color-scheme: light dark; --good: #1c6b3f; --bad: #9b2c3f; --line: #8886; --ground: #8881 }
@media (prefers-color-scheme: dark) { :root { --good: #7fd0a2; --bad: #f0a0ae } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 44rem; margin: 1.5rem auto; padding: 0 1rem;
       overflow-wrap: anywhere }
h1 { font-size: 1.4rem; line-height: 1.25 } h2 { font-size: 1.1rem; margin-top: 2rem }
.sum { font-size: 1.2rem } .next { border-left: .25rem solid var(--bad); padding-left: .8rem }
ol { list-style: none; padding: 0 } li { border-top: 1px solid var(--line); padding: .6rem 0 }
li p { margin: .2rem 0 0 } .head { display: flex; gap: 1rem; justify-content: space-between }
.mark { white-space: nowrap } .full .mark { color: var(--good) } .none .mark { color: var(--bad) }
pre { overflow: auto; max-height: 24rem; background: var(--ground); padding: .6rem;
      white-space: pre-wrap }
"""
WRITTEN = ["student", "assignment", "task", "score"]
# A cell that a spreadsheet takes for a formula; it may also begin after another table's separator.
FORMULA = re.compile(r"(^|[,;|\t])([\s'\"]*)(?=[=+\-@\t\r＝＋－＠])")


def private(folder: Path) -> None:
    """Make a folder that nobody else can look into."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace a file in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name[:200]}.{os.getpid()}.tmp")
    draft.unlink(missing_ok=True)
    try:
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


@contextlib.contextmanager
def alone(out: Path) -> Iterator[None]:
    """Refuse a second run into the same folder; the lock ends with the process."""
    private(out)
    with (out / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"expected no other run into {out}, but one is under way") from None
        yield


def file_name(student: str, assignment: str) -> str:
    """A name that is a file's name everywhere, and another one for every student."""
    start = re.sub(r"[^A-Za-z0-9_-]+", "_", f"{assignment}-{student}")[:80].strip("_-")
    return f"{start}-{hashlib.sha256(f'{assignment}/{student}'.encode()).hexdigest()[:8]}"


def store(out: Path, record: dict) -> None:
    """Keep the record of one submission."""
    name = file_name(record["student"], record["assignment"])
    write(out / "results" / f"{name}.json", json.dumps(record, indent=1, sort_keys=True) + "\n")


def stored(out: Path, student: str, master, stamp: str) -> dict | None:
    """The record that an earlier run left, if nothing that it depends on has changed."""
    path = out / "results" / f"{file_name(student, master.name if master else '')}.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if record.get("key") == stamp else None


def written_marks(path: Path) -> dict[tuple[str, str, str], float | None]:
    """Marks given by hand, from a table with these columns; an empty score takes a mark back."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file)
        if missing := set(WRITTEN) - set(rows.fieldnames or []):
            raise ValueError(f"expected columns {WRITTEN} in {path}, {sorted(missing)} are missing")
        marks: dict[tuple[str, str, str], float | None] = {}
        for row in rows:
            try:
                score = float(row["score"]) if (row["score"] or "").strip() else None
            except ValueError:
                raise ValueError(
                    f"expected a number as score in line {rows.line_num} of {path}, "
                    f"got {row['score']!r}"
                ) from None
            marks[row["student"], row["assignment"], row["task"]] = score
    return marks


def remembered(out: Path, given: dict, records: list[dict]) -> dict:
    """The hand marks of earlier runs with those given now; these are checked, then all are kept."""
    path = out / "written.csv"
    with_written(records, {place: score for place, score in given.items() if score is not None})
    marks = (written_marks(path) if path.exists() else {}) | given
    marks = {place: score for place, score in marks.items() if score is not None}
    if marks:
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        lines.writerows([WRITTEN, *((*place, score) for place, score in sorted(marks.items()))])
        write(path, text.getvalue(), mode=0o600)
    elif path.exists():
        path.unlink()
    return marks


def with_written(records: list[dict], marks: dict[tuple[str, str, str], float]) -> list[dict]:
    """The records with hand marks; a mark for nobody, or beyond the points, is an error."""
    known = {
        (r["student"], r["assignment"], w["name"]): w["points"]
        for r in records
        for w in r["written"]
    }
    for place, score in marks.items():
        if place not in known:
            raise ValueError(f"expected a student, assignment and written task, got {place}")
        if not 0 <= score <= known[place]:
            raise ValueError(f"expected 0 to {known[place]:g} points for {place}, got {score:g}")
    return [
        record | {"written": [
            part | {"score": marks.get((record["student"], record["assignment"], part["name"]))}
            for part in record["written"]
        ]}
        for record in records
    ]  # fmt: skip


def total(record: dict) -> tuple[float, float, bool]:
    """Points so far, points in all, and whether hand marks are missing."""
    given = [part["score"] for part in record["written"]]
    score = record["score"] + sum(part for part in given if part is not None)
    points = record["points"] + sum(part["points"] for part in record["written"])
    return score, points, None in given


def write_all(out: Path, records: list[dict], given: dict | None = None) -> None:
    """The table, and for every record a page and a file for Gradescope."""
    known = {(r["student"], r["assignment"], w["name"]) for r in records for w in r["written"]}
    marks = remembered(out, given or {}, records)
    records = with_written(records, {place: marks[place] for place in marks if place in known})
    write(out / "marks.csv", table(records))
    for record in records:
        name = file_name(record["student"], record["assignment"])
        write(out / "reports" / f"{name}.html", page(record))
        results = json.dumps(gradescope(record), indent=1, ensure_ascii=False)
        write(out / "gradescope" / f"{name}.json", results + "\n")


def table(records: list[dict]) -> str:
    """A CSV with one line per submission and a column per task."""
    columns = list(dict.fromkeys(
        f"{record['assignment']}: {part['name']}"
        for record in records for part in (*record["tasks"], *record["written"])
    ))  # fmt: skip
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    head = ("student", "assignment", "score", "points", "state", *columns, "remarks")
    lines.writerow([_cell(name) for name in head])
    for record in records:
        score, points, partial = total(record)
        parts = {
            f"{record['assignment']}: {p['name']}": p["score"]
            for p in (*record["tasks"], *record["written"])
        }
        state = "refused" if record["refused"] else "by hand" if partial else "complete"
        row = [record["student"], record["assignment"], score, points, state]
        row += [parts.get(column) for column in columns]
        lines.writerow([_cell(c) for c in (*row, " ".join(record["remarks"]))])
    return text.getvalue()


def _cell(value) -> str:
    """A cell that no spreadsheet takes for a formula, whatever separator it believes in."""
    if value is None:
        return ""
    if isinstance(value, int | float):
        return f"{value:g}"
    return FORMULA.sub(r"\1\2'", " ".join(value.splitlines()))


def advice(record: dict) -> str:
    """What to look at next."""
    if record["refused"]:
        return "Mend what is said above and hand in again."
    lost = [part for part in record["tasks"] if part["score"] < part["points"]]
    if not lost:
        return ""
    first = min(lost, key=lambda part: "not solved yet" in part["message"])
    return (
        f"Look next at {first['title']}: run its test cell after restarting the kernel, and call "
        "the function with other sizes than the test does."
    )


def page(record: dict) -> str:
    """The report for a student: marks and a sentence per task; everything escaped."""
    e = html.escape
    score, points, partial = total(record)
    items = []
    for part in (*record["tasks"], *record["written"]):
        by_hand = "message" not in part
        given = "–" if part["score"] is None else f"{part['score']:g}"
        look = "" if by_hand else "full" if part["score"] == part["points"] else "none"
        said = "" if by_hand and part["score"] is not None else part.get("message", "by hand")
        items.append(
            f'<li class="{look}"><div class="head"><strong>{e(part["title"])}</strong>'
            f'<span class="mark">{given} of {part["points"]:g}</span></div>'
            f"{f'<p>{e(said)}</p>' if said else ''}</li>"
        )
    remarks = "".join(f"<p>{e(text)}</p>" for text in record["remarks"])
    first, last = (remarks, "") if record["refused"] else ("", remarks)
    last = f"<h2>About your cells</h2>{last}" if last else ""
    then = f'<p class="next">{e(advice(record))}</p>' if advice(record) else ""
    printed = f"<h2>What the code printed</h2><pre>{e(record['output'])}</pre>"
    title = e(f"{record['title'] or 'Homework'}: {record['student']}")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head><body><h1>{title}</h1>"
        f'<p class="sum"><strong>{score:g} of {points:g} points</strong>'
        f"{'; some tasks are still to be marked by hand' if partial else ''}</p>{first}{then}"
        f"<ol>{''.join(items)}</ol>{last}{printed if record['output'] else ''}</body></html>\n"
    )


def gradescope(record: dict) -> dict:
    """The record in the form that Gradescope reads from results.json."""
    tests = [
        {"name": part["title"], "number": str(number), "score": part["score"],
         "max_score": part["points"], "output": part["message"], "visibility": "visible"}
        for number, part in enumerate(record["tasks"], start=1)
    ]  # fmt: skip
    tests += [
        {"name": part["title"], "number": str(number), "score": part["score"],
         "max_score": part["points"], "output": "marked by hand", "visibility": "visible"}
        for number, part in enumerate(record["written"], start=len(tests) + 1)
        if part["score"] is not None
    ]  # fmt: skip
    waiting = [part["title"] for part in record["written"] if part["score"] is None]
    said = [*record["remarks"], *(f"To be marked by hand: {title}." for title in waiting)]
    return {"score": total(record)[0], "output": "\n".join(said), "visibility": "visible",
            "stdout_visibility": "hidden", "tests": tests}  # fmt: skip
