"""Run every check of the book again with other random numbers, and store how often it held.

    python -m book.seeds                 all chapters, master seeds 1 to 10; what is stored is kept
    python -m book.seeds 04-ntk --count 3
    python -m book.seeds --failed        print what did not hold, run nothing

A master seed is folded into every key and generator that a chapter makes, so other inputs, labels,
networks and splits come out; the code stays the same. Results go to `chapters/seeds.json`, from
which the page "Other seeds" is made. It takes about an hour on two cores.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jupytext

from book import notebooks

ROOT = notebooks.ROOT
STORE = "chapters/seeds.json"
COUNT = 10
CHECKED = "claims.check("


def code_of(source: Path) -> list[str]:
    """The cells of a chapter that compute; the one that installs packages is left out."""
    cells = jupytext.read(source).cells
    return [c.source for c in cells if c.cell_type == "code" and "google.colab" not in c.source]


def reseed(master: int) -> None:
    """Fold a number into every key of JAX and every generator of NumPy that is made from now on."""
    import jax
    import numpy as np

    key, generator = jax.random.key, np.random.default_rng
    if master:
        jax.random.key = lambda seed, **options: jax.random.fold_in(key(seed, **options), master)
        np.random.default_rng = lambda seed: generator([*np.atleast_1d(seed), master])


def run(source: Path, master: int) -> list[dict]:
    """The outcome of every check of a chapter, in order, with this master seed (0: as stored)."""
    import matplotlib as mpl

    mpl.use("agg")
    from ntkcourse import claims, figures

    reseed(master)
    # Pictures are not looked at here, and drawing the frames of sliders takes most of the time.
    figures.show = figures.explore = figures.live = lambda *_, **__: None
    outcomes: list[dict] = []
    original = claims.check
    claims._publish = lambda line, record: outcomes.append({"held": True, **record})

    def check(claim, **arguments):
        try:
            original(claim, **arguments)
        except claims.ClaimError as error:
            value = re.search(r"measured (\S+)$|beside (\S+)$", str(error))
            failed = {"claim": claim, "what": arguments.get("what", ""), "held": False}
            failed["measured"] = (value[1] or value[2]) if value else "nan"
            failed["why"] = str(error)
            outcomes.append(failed)

    claims.check = check
    scope: dict = {"__name__": "__main__"}
    for number, cell in enumerate(code_of(source), start=1):
        try:
            exec(compile(cell, f"<{source.stem}, cell {number}>", "exec"), scope)
        except Exception as error:
            if CHECKED not in cell:
                raise
            why = f"cell {number} stopped: {type(error).__name__}: {error}"
            for claim in re.findall(r'claims\.check\(\s*"([A-Z]+-\d\d)"', cell):
                outcomes.append({"claim": claim, "what": "", "held": False, "why": why})
    return outcomes


def worker(arguments: list[str]) -> None:
    """`python -m book.seeds --worker chapter seed file`: one run in a process of its own."""
    name, master, target = arguments
    outcomes = run(ROOT / f"chapters/{name}.md", int(master))
    Path(target).write_text(json.dumps(outcomes))


def started(name: str, master: int) -> list[dict] | None:
    """The outcomes from a fresh process, which knows nothing of other seeds."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "outcomes.json"
        done = subprocess.run(
            [sys.executable, "-m", "book.seeds", "--worker", name, str(master), str(target)],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            print(f"{name}, seed {master}: {done.stderr[-2000:]}", file=sys.stderr)
            return None
        return json.loads(target.read_text())


def stored(root: Path = ROOT) -> dict:
    """By chapter: the key of the code that was run, and the outcomes by master seed."""
    path = root / STORE
    return json.loads(path.read_text()) if path.exists() else {}


def serialised(results: dict) -> str:
    """The results as text, a line for each outcome."""
    chapters = []
    for name, entry in sorted(results.items()):
        seeds = [
            f'   "{seed}": [\n'
            + ",\n".join(f"    {json.dumps(o, ensure_ascii=False)}" for o in outcomes)
            + "\n   ]"
            for seed, outcomes in sorted(entry["seeds"].items(), key=lambda item: int(item[0]))
        ]
        body = ",\n".join(seeds)
        chapters.append(
            f' "{name}": {{\n  "key": "{entry["key"]}",\n  "seeds": {{\n{body}\n  }}\n }}'
        )
    return "{\n" + ",\n".join(chapters) + "\n}\n"


def rows(results: dict[str, list[dict]]) -> list[dict]:
    """One row per check of a chapter: the stored outcome (seed 0) and all others."""
    first = results.get("0", [])
    others = [results[seed] for seed in sorted(results, key=int) if seed != "0"]
    table = []
    for i, outcome in enumerate(first):
        again = [o[i] for o in others if len(o) == len(first) and o[i]["claim"] == outcome["claim"]]
        table.append({**outcome, "others": again, "tried": len(others)})
    return table


def failures(root: Path = ROOT) -> list[str]:
    """What did not hold under every seed, in words."""
    found = []
    for chapter, entry in stored(root).items():
        for row in rows(entry["seeds"]):
            held = sum(o["held"] for o in row["others"])
            if held < row["tried"]:
                why = next((o.get("why", "") for o in row["others"] if not o["held"]), "no outcome")
                found.append(
                    f"{chapter} {row['claim']} {row['what']}: {held}/{row['tried']}; {why}"
                )
    return found


def main(arguments: list[str] | None = None) -> int:
    """The command line; the result is the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["--worker"]:
        worker(arguments[1:])
        return 0
    parser = argparse.ArgumentParser(
        prog="python -m book.seeds", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--count", type=int, default=COUNT, help="how many other master seeds")
    parser.add_argument("--jobs", type=int, default=2, help="how many runs at a time")
    parser.add_argument(
        "--failed", action="store_true", help="print what did not hold, run nothing"
    )
    parser.add_argument("names", nargs="*", help="chapters such as 04-ntk; all with checks if none")
    options = parser.parse_args(arguments)
    if options.failed:
        print("\n".join(failures()) or "every check held under every seed that was tried")
        return 0
    sources = {s.stem: s for s in notebooks.chapters() if CHECKED in s.read_text()}
    if unknown := set(options.names) - set(sources):
        parser.error(f"expected some of {', '.join(sources)}, got {', '.join(sorted(unknown))}")
    results = stored()
    jobs = []
    for name in options.names or sources:
        key = notebooks.key(jupytext.read(sources[name]))
        if results.get(name, {}).get("key") != key:
            results[name] = {"key": key, "seeds": {}}
        known = results[name]["seeds"]
        jobs += [(name, m) for m in range(options.count + 1) if str(m) not in known]
    with ThreadPoolExecutor(options.jobs) as pool:
        for (name, master), outcomes in zip(
            jobs, pool.map(lambda j: started(*j), jobs), strict=True
        ):
            if outcomes is None:
                continue
            if master:  # the rest is that of seed 0
                kept = ("claim", "measured", "held", "why")
                outcomes = [{k: o[k] for k in kept if k in o} for o in outcomes]
            results[name]["seeds"][str(master)] = outcomes
            notebooks.write(ROOT / STORE, serialised(results))
            held = sum(o["held"] for o in outcomes)
            print(f"{name}, seed {master}: {held} of {len(outcomes)} hold", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
