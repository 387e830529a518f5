"""Strong and weak scaling on virtual devices and on two processes of this machine.

`python -m benchmarks.scaling [address number]` is one process of it and prints its seconds.
"""

import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROWS = 8000
LAYOUTS = ((1, 1), (2, 1))
"""Processes, and virtual devices of each. A process has one core for itself: without that, one
process with one device would use all of them."""


def start(python: str, devices: int, core: int, arguments: list[str]) -> subprocess.Popen:
    """One process with so many virtual devices, on one core."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    environment |= {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    cores = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else [0]
    pin = ["taskset", "-c", str(cores[core % len(cores)])] if shutil.which("taskset") else []
    return subprocess.Popen(
        [*pin, python, "-m", "benchmarks.scaling", *arguments],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def measure(python: str, layouts=LAYOUTS, rows: int = ROWS, patience: float = 200) -> list[dict]:
    """Seconds on the wall for each layout, of the same work and of work that grows with it."""
    found = []
    for processes, devices in layouts:
        arguments = [[str(rows)]]
        if processes > 1:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                address = f"127.0.0.1:{free.getsockname()[1]}"
            arguments = [[str(rows), address, str(i)] for i in range(processes)]
        running = [start(python, devices, i, a) for i, a in enumerate(arguments)]
        try:
            outputs = [process.communicate(timeout=patience)[0] for process in running]
        except subprocess.TimeoutExpired:
            continue
        finally:
            for process in running:
                process.kill()
                process.wait()
        if all(process.returncode == 0 for process in running):
            seconds = json.loads(outputs[0].splitlines()[-1])
            found.append({"processes": processes, "devices": devices, "rows": rows} | seconds)
    return found


def main(rows: int, address: str | None = None, number: int = 0) -> None:
    """Time products with the Gaussian kernel on all devices that there are."""
    import jax
    import numpy as np

    if address:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(address, 2, number, initialization_timeout=60)
    from ntkcourse import kernels

    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("rows",))
    rng, k = np.random.default_rng(0), kernels.rbf(4.0)
    y = rng.normal(size=(rows, 16)).astype("float32")
    v = np.ones(rows, "float32")

    def seconds(x):
        times = []
        for _ in range(6):  # the first one compiles
            start = time.perf_counter()
            kernels.matvec(k, x, v, y, mesh=mesh).block_until_ready()
            times.append(time.perf_counter() - start)
        return statistics.median(times[1:])

    grown = np.concatenate([y] * mesh.size)
    print(json.dumps({"strong": seconds(y), "weak": seconds(grown)}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:3], *map(int, sys.argv[3:4]))
