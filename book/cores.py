"""Pytest plugin: each worker keeps to its own share of the processor cores.

Two processes with as many threads each as there are cores spend half of their time waiting for
each other.
"""

import os


def pytest_configure(config):
    """Pin this worker, and what it starts, to every n-th core, n being the number of workers."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if worker and hasattr(os, "sched_setaffinity"):
        count = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) >= count:
            os.sched_setaffinity(0, cores[int(worker.removeprefix("gw")) :: count])
