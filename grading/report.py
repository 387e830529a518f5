"""Write marks: a record per submission, a page for the student, results for Gradescope, a table."""

import csv
import hashlib
import html
import io
import json
import os
import re
from pathlib import Path

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .4rem .6rem }
tr { border-bottom: 1px solid #bbb }
td.mark { white-space: nowrap } .full { color: #1c6b3f } .none { color: #9b2c3f }
pre { overflow-x: auto; background: #f3f3f3; padding: .6rem }
"""


def write(path: Path, text: str) -> None:
    """Replace a file in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".tmp")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)


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


def written_marks(path: Path) -> dict[tuple[str, str, str], float]:
    """Marks given by hand, from a table with the columns student, assignment, task and score."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file)
        needed = ["student", "assignment", "task", "score"]
        if missing := set(needed) - set(rows.fieldnames or []):
            raise ValueError(f"expected columns {needed} in {path}, {sorted(missing)} are missing")
        marks = {}
        for row in rows:
            try:
                score = float(row["score"])
            except (TypeError, ValueError):
                raise ValueError(
                    f"expected a number as score in line {rows.line_num} of {path}, "
                    f"got {row['score']!r}"
                ) from None
            marks[row["student"], row["assignment"], row["task"]] = score
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


def write_all(out: Path, records: list[dict], marks: dict | None = None) -> None:
    """The table, and for every record a page and a file for Gradescope."""
    records = with_written(records, marks or {})
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
    """A cell that no spreadsheet takes for a formula."""
    if value is None:
        return ""
    if isinstance(value, int | float):
        return f"{value:g}"
    return f"'{value}" if value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def page(record: dict) -> str:
    """The report for a student: marks and a sentence per task; everything escaped."""
    e = html.escape
    score, points, partial = total(record)
    rows = []
    for part in record["tasks"]:
        look = "full" if part["score"] == part["points"] else "none"
        rows.append(
            f'<tr><td>{e(part["title"])}</td><td class="mark {look}">{part["score"]:g} of '
            f"{part['points']:g}</td><td>{e(part['message'])}</td></tr>"
        )
    for part in record["written"]:
        given = "to be marked by hand" if part["score"] is None else f"{part['score']:g} of"
        rows.append(
            f'<tr><td>{e(part["title"])}</td><td class="mark">{given} {part["points"]:g}</td>'
            "<td>marked by hand</td></tr>"
        )
    remarks = "".join(f"<p>{e(text)}</p>" for text in record["remarks"])
    printed = f"<h2>What the code printed</h2><pre>{e(record['output'])}</pre>"
    title = e(f"{record['title'] or 'Homework'}: {record['student']}")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head><body><h1>{title}</h1>"
        f"<p><strong>{score:g} of {points:g} points</strong>"
        f"{'; some tasks are still to be marked by hand' if partial else ''}</p>{remarks}"
        "<table><thead><tr><th>task</th><th>points</th><th>feedback</th></tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>{printed if record['output'] else ''}"
        "</body></html>\n"
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
