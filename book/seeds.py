"""Run every check of the book again with other random numbers, and store how often it held.

    python -m book.seeds                 all chapters, master seeds 1 to 10; what is stored is kept
    python -m book.seeds 04-ntk --count 3
    python -m book.seeds --failed        print what did not hold, run nothing

A master seed is folded into every key and generator that a chapter makes, so other inputs, labels,
networks and splits come out; the code stays the same. Results go to `chapters/seeds.json`, from
which the page "Other seeds" is made. Each run is stored when it ends: given again, a command that
was stopped goes on where it was. It takes an hour or two; `nice make seeds` yields to other work.
Where code changed but no number of the stored notebook did, the results of other seeds are kept.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue

import jupytext

from book import notebooks
from ntkcourse.claims import MIME as CLAIM

ROOT = notebooks.ROOT
STORE = "chapters/seeds.json"
COUNT = 10
CHECKED = "claims.check("
LONGEST = 3600
"""Seconds after which a run of one chapter is given up."""


def code_of(source: Path) -> list[str]:
    """The cells of a chapter that compute; the one that installs packages is left out."""
    cells = jupytext.read(source).cells
    return [c.source for c in cells if c.cell_type == "code" and "google.colab" not in c.source]


def reseed(master: int) -> None:
    """Fold a number into every key of JAX and every generator of NumPy that is made from now on."""
    import jax
    import numpy as np

    if not master:
        return
    key, generator, old = jax.random.key, np.random.default_rng, np.random.RandomState

    def folded(seed):
        """A number or several with the master seed; what is a generator already stays."""
        known = isinstance(seed, int | np.integer | list | tuple)
        return [*np.atleast_1d(seed), master] if known else seed

    class RandomState(old):  # which scikit-learn makes from `random_state=`
        def __init__(self, seed=None):
            super().__init__(folded(seed))

    jax.random.key = lambda seed, **options: jax.random.fold_in(key(seed, **options), master)
    np.random.default_rng = lambda seed=None: generator(folded(seed))
    np.random.RandomState = RandomState


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
        before = len(outcomes)
        try:
            exec(compile(cell, f"<{source.stem}, cell {number}>", "exec"), scope)
        except Exception as error:  # the cells that need this one will say so, the others go on
            why = f"cell {number} stopped: {type(error).__name__}: {error}"
            print(f"{source.stem}, seed {master}: {why}", file=sys.stderr)
            reached = [outcome["claim"] for outcome in outcomes[before:]]
            for claim in re.findall(r'claims\.check\(\s*"([A-Z]+-\d\d)"', cell):
                if claim in reached:
                    reached.remove(claim)
                else:
                    outcomes.append({"claim": claim, "what": "", "held": False, "why": why})
    return outcomes


def worker(arguments: list[str]) -> None:
    """`python -m book.seeds --worker chapter seed file [cores]`: one run in its own process."""
    name, master, target, *cores = arguments
    if cores:
        os.sched_setaffinity(0, map(int, cores[0].split(",")))
    outcomes = run(ROOT / f"chapters/{name}.md", int(master))
    Path(target).write_text(json.dumps(outcomes))


def started(name: str, master: int, cores: SimpleQueue) -> list[dict] | None:
    """The outcomes from a fresh process, which knows nothing of other seeds; None if it died."""
    own = cores.get()
    try:
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "outcomes.json"
            run = [sys.executable, "-m", "book.seeds", "--worker", name, str(master), str(target)]
            done = subprocess.run(
                run + own, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
                capture_output=True, text=True, timeout=LONGEST,
            )  # fmt: skip
            print(*done.stderr.splitlines()[-20:], sep="\n", end="", file=sys.stderr)
            return None if done.returncode else json.loads(target.read_text())
    except subprocess.TimeoutExpired:
        print(f"{name}, seed {master}: no end after {LONGEST} s", file=sys.stderr)
        return None
    finally:
        cores.put(own)


def stored(root: Path = ROOT) -> dict:
    """By chapter: the key of the code that was run, and the outcomes by master seed."""
    path = root / STORE
    return json.loads(path.read_text()) if path.exists() else {}


def unchanged(source: Path, outcomes: list[dict]) -> bool:
    """Whether the notebook that the present code made has just the records of an earlier run."""
    if not notebooks.is_current(source):
        return False
    cells = json.loads(source.with_suffix(".ipynb").read_text())["cells"]
    outputs = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
    records = [{"held": True, **data[CLAIM]} for data in outputs if CLAIM in data]
    return records == outcomes


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
    """One row per check of a chapter: the stored outcome (seed 0) and one for each other seed.

    Checks are told apart by statement and `what`. Where a seed has no outcome because its cell
    stopped, the outcome is that it did not hold, and why.
    """
    others = [results[seed] for seed in sorted(results, key=int) if seed != "0"]
    table = []
    for outcome in results.get("0", []):
        again = [_same(outcome, there) for there in others]
        table.append({**outcome, "others": again, "tried": len(others)})
    return table


def _same(outcome: dict, there: list[dict]) -> dict:
    of_claim = [o for o in there if o["claim"] == outcome["claim"]]
    for o in of_claim:
        if o["what"] == outcome["what"]:
            return o
    stopped = (o["why"] for o in of_claim if not o["held"] and not o["what"])
    return {"claim": outcome["claim"], "held": False, "why": next(stopped, "no outcome")}


def failures(root: Path = ROOT) -> list[str]:
    """What did not hold under every seed, in words."""
    found = []
    for chapter, entry in stored(root).items():
        for row in rows(entry["seeds"]):
            held = sum(o["held"] for o in row["others"])
            if held < row["tried"]:
                why = next(o.get("why", "") for o in row["others"] if not o["held"])
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
        before = results.get(name, {"key": "", "seeds": {}})
        if before["key"] != key:
            kept = unchanged(sources[name], before["seeds"].get("0", []))
            results[name] = {"key": key, "seeds": before["seeds"] if kept else {}}
        known = results[name]["seeds"]
        jobs += [(name, m) for m in range(options.count + 1) if str(m) not in known]
    cores: SimpleQueue = SimpleQueue()
    for own in shares(options.jobs):
        cores.put(own)
    lost, begin = 0, time.monotonic()
    with ThreadPoolExecutor(options.jobs) as pool:
        waiting = {pool.submit(started, *job, cores): job for job in jobs}
        try:
            for done, future in enumerate(as_completed(waiting), start=1):
                name, master = waiting[future]
                outcomes = future.result()
                if outcomes is None:
                    lost += 1
                    continue
                if master:  # the rest is that of seed 0
                    kept = ("claim", "what", "measured", "held", "why")
                    outcomes = [{k: o[k] for k in kept if k in o} for o in outcomes]
                results[name]["seeds"][str(master)] = outcomes
                notebooks.write(ROOT / STORE, serialised(results))
                held = sum(o["held"] for o in outcomes)
                left = (time.monotonic() - begin) / done * (len(jobs) - done) / 60
                print(
                    f"{name}, seed {master}: {held} of {len(outcomes)} hold; "
                    f"{len(jobs) - done} runs left, about {left:.0f} minutes",
                    flush=True,
                )
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return 1 if lost else 0


def shares(jobs: int) -> list[list[str]]:
    """The cores of each of so many runs at a time, as an argument of its worker."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) < jobs:
        return [[]] * jobs
    return [[",".join(map(str, cores[i::jobs]))] for i in range(jobs)]


if __name__ == "__main__":
    sys.exit(main())
