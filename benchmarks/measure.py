"""Workers of both sides, alternately: start, compare, time."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np

from benchmarks.problems import EXACT, Case

ROOT = Path(__file__).resolve().parent.parent
TARGET = 0.3
"""Seconds that one measurement lasts at least; a short call is repeated for so long."""


class DisagreementError(Exception):
    """Two sides of a case do not compute the same numbers."""


class GaveUpError(Exception):
    """A side took more time or memory than there is: that is a result too."""


FAILURES = (DisagreementError, GaveUpError, RuntimeError)


class Worker:
    """A process that runs one side of one case and answers in JSON lines."""

    def __init__(self, python: str, side: str, case: Case, size: dict, patience: float):
        # compiled programs of earlier runs must not hide what the first call costs
        environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
        environment |= {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
        environment["JAX_ENABLE_X64"] = "1" if size["dtype"] == "float64" else "0"
        command = [python, "-m", "benchmarks.worker", side, case.name, json.dumps(size)]
        self.side, self.patience = side, patience
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.errors: list[str] = []
        self.ready: dict = {}
        self.drain = threading.Thread(target=lambda: self.errors.extend(self.process.stderr))
        self.drain.start()

    def answer(self) -> dict:
        """The next report; a worker that is silent for too long is ended."""
        clock = threading.Timer(self.patience, self.process.kill)
        clock.start()
        line = self.process.stdout.readline()
        clock.cancel()
        if line:
            return json.loads(line)
        code = self.process.wait()
        self.drain.join()
        if code < 0:  # by us, out of patience, or by the system, out of memory
            raise GaveUpError(
                f"{self.side} was ended by signal {-code} (limit {self.patience:g} s)"
            )
        raise RuntimeError(f"{self.side} failed: {''.join(self.errors[-8:]).strip()}")

    def time(self, repeats: int) -> dict:
        """Wall and CPU seconds of one call, the mean of `repeats`."""
        self.process.stdin.write(f"{repeats}\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self) -> dict:
        """End the process, and hear its peak of memory."""
        self.process.stdin.close()
        report = self.answer()
        self.process.wait()
        return report

    def end(self) -> None:
        """End the process whatever it does."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.drain.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            pipe.close()


def compare(case: Case, size: dict, ready: dict[str, dict]) -> float:
    """The largest relative difference between our numbers and those of a peer."""
    worst = 0.0
    for side in set(case.peers) & set(ready):
        for ours, theirs in zip(ready["ours"]["sample"], ready[side]["sample"], strict=True):
            ours, theirs = np.asarray(ours), np.asarray(theirs)
            if ours.shape != theirs.shape or not np.all(np.isfinite(ours)):
                raise DisagreementError(
                    f"{case.name}: {side} gives {theirs.shape}, ours {ours.shape}"
                )
            error = np.abs(ours - theirs).max() / np.abs(theirs).max()
            if not error <= (case.agree or EXACT)[size["dtype"]]:
                raise DisagreementError(
                    f"{case.name} {size}: ours and {side} differ by {error:.2g}"
                )
            worst = max(worst, float(error))
    return worst


def run(case: Case, size: dict, pythons: dict[str, str], rounds: int, patience: float) -> dict:
    """Time all sides of a case at one size, one process busy at a time.

    Each round asks every side once, in turn; the lists in the result have one entry per round.
    """
    sides = ["ours", *case.peers] + (["machine"] if case.limit else [])
    workers: dict[str, Worker] = {}
    result: dict = {"size": size, "sides": {}}
    try:
        for side in sides:
            python = pythons.get(side, pythons["current"])
            workers[side] = Worker(python, side, case, size, patience)
            try:
                workers[side].ready = workers[side].answer()
            except GaveUpError:
                if side == "ours":
                    raise
                result["gave up"] = [*result.get("gave up", []), side]
                workers.pop(side).end()
        result["difference"] = compare(case, size, {s: w.ready for s, w in workers.items()})
        for side, worker in workers.items():
            kept = {key: worker.ready[key] for key in ("first", "versions")}
            result["sides"][side] = kept | {"wall": [], "cpu": []}
            if case.once:
                result["sides"][side] |= {"wall": [kept["first"]], "cpu": [worker.ready["busy"]]}
        for _ in range(0 if case.once else rounds):
            for side, worker in workers.items():
                report = worker.time(max(1, int(TARGET / max(worker.ready["again"], 1e-6))))
                for clock in ("wall", "cpu"):
                    result["sides"][side][clock].append(report[clock])
        for side, worker in workers.items():
            result["sides"][side] |= worker.close()
    finally:
        for worker in workers.values():
            worker.end()
    return result


def exponent(sizes: list[float], seconds: list[float]) -> float:
    """The power of growth: the slope of log seconds over log size, by least squares."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def growth(case: Case, pythons: dict[str, str], patience: float) -> dict:
    """Exponents of CPU time and of memory over a range of sizes, ours and the first peer's."""
    plain = {k: v for k, v in case.__dict__.items() if k not in ("peers", "limit")}
    alone = Case(**plain, peers=case.peers[:1])
    runs = [run(alone, size, pythons, 3, patience) for size in case.growth]
    found = {"sizes": [size[case.axis] for size in case.growth], "axis": case.axis, "sides": {}}
    for side in runs[0]["sides"]:
        cpu = [float(np.median(r["sides"][side]["cpu"])) for r in runs]
        memory = [r["sides"][side]["beyond"] for r in runs]
        found["sides"][side] = {
            "cpu": cpu, "exponent": exponent(found["sizes"], cpu), "beyond": memory,
        }  # fmt: skip
    return found


def pythons(ours: str = sys.executable) -> dict[str, str]:
    """The interpreter of each environment that `make bench` has made."""
    made = ROOT / ".cache/bench"
    return {
        "ours": ours,
        "machine": ours,
        "current": str(made / "current/bin/python"),
        "neural_tangents": str(made / "tangents/bin/python"),
    }
