"""One side of one case in a process of its own: `python -m benchmarks.worker side case size`.

Reports JSON lines: first what the warm-up gave, then for each number k read from the standard
input the time of k calls, then the peak of memory.
"""

import importlib
import importlib.metadata
import json
import os
import resource
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks import problems

PACKAGES = {
    "ours": ("jax", "numpy", "scipy", "POT"),
    "neural_tangents": ("neural-tangents", "jax"),
    "sklearn": ("scikit-learn", "numpy", "scipy"),
    "pot": ("POT", "numpy"),
    "scipy": ("scipy", "numpy"),
    "ott": ("ott-jax", "jax"),
    "machine": ("numpy", "scipy"),
}


def memory(field: str) -> int:
    """Bytes of memory now (VmRSS) or at the peak (VmHWM); outside Linux only the peak is known."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith(field))
        return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def finished(result):
    """The result, after everything that JAX still computes in the background."""
    for part in result if isinstance(result, list | tuple) else [result]:
        getattr(part, "block_until_ready", lambda: None)()
    return result


def sample(result, count: int = 200) -> list[list[float]]:
    """Evenly spaced entries of each array of a result, by which two sides are compared."""
    arrays = result if isinstance(result, list | tuple) else [result]
    flat = [np.asarray(array).ravel() for array in arrays]  # a view: a copy would count as memory
    every = [np.linspace(0, a.size - 1, min(count, a.size)).astype(int) for a in flat]
    return [a[chosen].astype(float).tolist() for a, chosen in zip(flat, every, strict=True)]


def main(side: str, name: str, size: dict, say) -> None:
    """Warm up, then time as often as asked."""
    case = next(c for c in problems.CASES if c.name == name)
    module = importlib.import_module(f"benchmarks.sides.{side}")
    call = getattr(module, name)(getattr(problems, name)(size), size)
    before, start, busy = memory("VmRSS"), time.perf_counter(), time.process_time()
    result = finished(call())
    first, busy = time.perf_counter() - start, time.process_time() - busy
    seen = [] if side == "machine" else sample(case.view(result) if case.view else result)
    del result
    start = time.perf_counter()
    if not case.once:
        finished(call())
    again = time.perf_counter() - start
    versions = {package: importlib.metadata.version(package) for package in PACKAGES[side]}
    say(first=first, busy=busy, again=again, sample=seen, versions=versions)
    for line in sys.stdin:
        repeats = int(line)
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(repeats):
            finished(call())
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        say(wall=wall / repeats, cpu=cpu / repeats)
    say(peak=memory("VmHWM"), beyond=memory("VmHWM") - before)


if __name__ == "__main__":
    # reports have a channel of their own: what a library prints must not mix with them
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    main(
        sys.argv[1],
        sys.argv[2],
        json.loads(sys.argv[3]),
        lambda **report: print(json.dumps(report), file=channel, flush=True),
    )
