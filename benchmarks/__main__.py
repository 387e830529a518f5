"""`python -m benchmarks`: run the cases, write results.json and the page. See bench.mk."""

import argparse
import json
import time
from pathlib import Path

from benchmarks import facts, measure, page, scaling
from benchmarks.problems import CASES

RESULTS = Path(__file__).parent / "results.json"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--cases", nargs="*", default=[], help="only these; others keep results")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, nothing is stored")
    parser.add_argument("--fast", action="store_true", help="one run of two rounds, no growth")
    parser.add_argument("--runs", type=int, default=3, help="each case in so many new processes")
    parser.add_argument("--rounds", type=int, default=3, help="alternations in each run")
    parser.add_argument("--patience", type=float, default=300, help="seconds before giving up")
    parser.add_argument("--no-growth", action="store_true", help="leave out the growth exponents")
    parser.add_argument("--page", action="store_true", help="only write the page from the results")
    chosen = parser.parse_args()
    if chosen.fast:
        chosen.runs, chosen.rounds, chosen.no_growth = 1, 2, True
    unknown = set(chosen.cases) - {case.name for case in CASES} - {"facts", "scaling"}
    if unknown:
        names = ", ".join(case.name for case in CASES)
        parser.error(
            f"expected cases among {names}, facts, scaling, got {', '.join(sorted(unknown))}"
        )
    return chosen


def merged(runs: list[dict]) -> dict:
    """Runs of one case and size as one: all rounds in a row, the largest memory.

    A side that gave up in one of them is left out.
    """
    whole = runs[0]
    gave_up = {side for run in runs for side in run.get("gave up", [])}
    if gave_up:
        whole["gave up"] = sorted(gave_up)
    whole["sides"] = {s: v for s, v in whole["sides"].items() if s not in gave_up}
    for other in runs[1:]:
        for side, kept in whole["sides"].items():
            values = other["sides"][side]
            for clock in ("wall", "cpu"):
                kept[clock] += values[clock]
            for peak in ("peak", "beyond"):
                kept[peak] = max(kept[peak], values[peak])
            kept["first"] = min(kept["first"], values["first"])
    return whole


def say(text: str) -> None:
    """Progress for a person."""
    print(text, flush=True)


def measure_case(case, chosen, pythons) -> dict:
    """All sizes of a case, in new processes for each run, and its growth."""
    sizes = [case.sizes[0] | case.quick] if chosen.quick else case.sizes
    entry = {"name": case.name, "date": time.strftime("%Y-%m-%d %H:%M"), "sizes": []}
    count = 1 if case.once else chosen.runs
    entry |= {"load": facts.load(), "runs": count}
    patience = chosen.patience * (6 if case.once else 1)
    for size in sizes:
        runs = []
        for index in range(count):
            start = time.perf_counter()
            try:
                runs.append(measure.run(case, size, pythons, chosen.rounds, patience))
            except measure.FAILURES as error:  # one case must not cost us the others
                say(f"  {page.label(case, size)}: {error}")
                runs = [{"size": size, "failed": str(error), "sides": {}}]
                break
            took = time.perf_counter() - start
            say(f"  {page.label(case, size)}  run {index + 1} of {count}, {took:.0f} s")
        entry["sizes"].append(merged(runs))
        say(f"    {page.summary(case, entry['sizes'][-1])}")
    if case.growth and not (chosen.quick or chosen.no_growth):
        try:
            entry["growth"] = measure.growth(case, pythons, chosen.patience)
            say(f"    growth: {page.powers(entry['growth'])}")
        except measure.FAILURES as error:
            say(f"    growth: {error}")
    return entry


def main() -> None:
    """Run, store after each case, write the page."""
    chosen = arguments()
    pythons = measure.pythons()
    stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if not chosen.page:
        cases = [case for case in CASES if not chosen.cases or case.name in chosen.cases]
        stored = {} if chosen.quick else stored
        stored |= {"machine": facts.machine()}
        for number, case in enumerate(cases, 1):
            say(f"[{number}/{len(cases)}] {case.title}")
            entry = measure_case(case, chosen, pythons)
            known = {old["name"]: old for old in stored.get("cases", [])} | {case.name: entry}
            stored["cases"] = [known[c.name] for c in CASES if c.name in known]
            if not chosen.quick:
                RESULTS.write_text(json.dumps(stored, indent=1) + "\n")
        if not chosen.cases or "facts" in chosen.cases:
            say("imports and site")
            stored |= {"imports": facts.imports(pythons["ours"]), "site": facts.site()}
            say(f"    {json.dumps(stored['imports'])}")
        if not chosen.quick and (not chosen.cases or "scaling" in chosen.cases):
            say("scaling")
            stored["scaling"] = scaling.measure(pythons["ours"])
            say(f"    {json.dumps(stored['scaling'])}")
        if chosen.quick:
            return
        RESULTS.write_text(json.dumps(stored, indent=1) + "\n")
    page.write(stored)


if __name__ == "__main__":
    main()
