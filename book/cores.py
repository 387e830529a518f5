"""Pytest plugin: tests and notebooks in one pool of workers, none of which waits for another.

The longest files start first, so that no worker is left with one of them at the end. Each worker
keeps to its own share of the processor cores: two processes with as many threads each as there
are cores spend half of their time waiting for each other.
"""

import os
import time
from collections import Counter
from pathlib import Path

import nbval.plugin
import pytest

# Coverage is that of the tests; inside the kernels nbval would measure it once more.
nbval.plugin.setup_coverage = nbval.plugin.teardown_coverage = lambda *_: None

LONGEST = [
    "test_site", "test_transformations", "test_homework", "10-benchmark", "test_faults",
    "test_live", "test_lessons", "02-random-features", "09-rich", "06-lazy", "04-ntk",
    "08-mean-field-notes", "04-ntk-notes", "11-outlook", "03-wide-networks", "07-limits",
    "test_regression", "test_flows", "05-convergence", "test_benchmarks", "01-kernels",
    "test_convolution", "test_documentation", "test_tangent", "test_training", "test_hostile",
    "test_structure", "test_networks", "test_tiles", "test_features", "test_attacks",
    "test_grading", "08-mean-field", "test_checks", "test_interruptions", "test_transport",
    "test_notebooks", "test_neighbours", "test_infinite", "test_grams", "test_kernels",
    "test_duals", "test_fuzz",
]  # fmt: skip
"""Files that take more than ten seconds, the longest first; the others follow as they come. Each
run ends with such a list of its own."""

SECONDS: Counter[str] = Counter()  # of each file
ENDS: dict[str, float] = {}  # when each worker reported last


def pytest_configure(config):
    """Pin this worker, and what it starts, to every n-th core, n being the number of workers."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if worker and hasattr(os, "sched_setaffinity"):
        count = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) >= count:
            os.sched_setaffinity(0, cores[int(worker.removeprefix("gw")) :: count])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Put the longest files first; within a file the order stays."""
    rank = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(Path(item.location[0]).stem, len(rank)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    """Kernels, which start with the first cell of a notebook, compile as `make notebooks` does."""
    flags = os.environ.get("NOTEBOOK_XLA_FLAGS")
    if flags is None or not isinstance(item, nbval.plugin.IPyNbCell):
        return (yield)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XLA_FLAGS", flags)
        return (yield)


def pytest_runtest_logreport(report):
    """Add up where the time goes."""
    SECONDS[Path(report.nodeid.split("::")[0]).stem] += report.duration
    if hasattr(report, "node"):
        ENDS[report.node.gateway.id] = time.monotonic()


def pytest_terminal_summary(terminalreporter):
    """Say which files took longest and how long a worker had nothing to do at the end."""
    if ENDS:
        long = [f"{name} {took:.0f}" for name, took in SECONDS.most_common() if took > 10]
        terminalreporter.section("seconds")
        terminalreporter.write_line(", ".join(long))
        apart = max(ENDS.values()) - min(ENDS.values())
        terminalreporter.write_line(f"The last worker ended {apart:.0f} seconds after the first.")
