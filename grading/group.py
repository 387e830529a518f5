"""A control group of Linux, version 2, around each worker, where the grader may make one.

The kernel then counts for all its processes what a walk through /proc can only estimate: seconds on
processors, also of processes that have ended, seconds in which all of them waited for one, and
memory with what the kernel itself holds. Elsewhere rlimits and the walk have to do; `described`
says which it is. Groups are made below the grader's own, so a lid on that one holds for all.
"""

import contextlib
import functools
import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

COUNTERS = ("memory", "pids")
NUMBERS = itertools.count()
OWN = 8  # processes of bubblewrap's, beside those of the student


@dataclass(frozen=True)
class Group:
    """The control group of one worker."""

    folder: Path

    def add(self, process: int, tree) -> None:
        """Take in a process and those below it; `tree` lists them, parents first.

        A child of a member is a member. So once a list has no stranger, there will be none.
        """
        known: set[int] = set()
        while new := [pid for pid in tree(process) if pid not in known]:
            for pid in new:
                with contextlib.suppress(ProcessLookupError):
                    (self.folder / "cgroup.procs").write_text(f"{pid}\n")
            known.update(new)

    def cpu(self) -> float | None:
        """Seconds on processors."""
        found = self._number("cpu.stat", "usage_usec ")
        return None if found is None else found / 1e6

    def waited(self) -> float | None:
        """Seconds in which members were ready to run and none had a processor."""
        found = self._number("cpu.pressure", "full ", "total=")
        return None if found is None else found / 1e6

    def starved(self) -> bool:
        """Whether the kernel killed a member that needed more memory than the group has."""
        return bool(self._number("memory.events", "oom_kill "))

    def _number(self, file: str, start: str, before: str = " ") -> int | None:
        with contextlib.suppress(OSError, ValueError):
            for line in (self.folder / file).read_text().splitlines():
                if line.startswith(start):
                    return int(line.rpartition(before)[2])
        return None


def own(
    mounts: Path = Path("/proc/self/mounts"), membership: Path = Path("/proc/self/cgroup")
) -> Path | None:
    """The folder of the group in which this process is."""
    with contextlib.suppress(OSError):
        table = [line.split() for line in mounts.read_text().splitlines()]
        places = [line[3:] for line in membership.read_text().splitlines() if line[:3] == "0::"]
        points = [row[1] for row in table if row[2] == "cgroup2"]
        if points and places:
            return Path(points[0] + places[0])
    return None


@functools.cache
def prepared() -> tuple[Path, frozenset[str]] | None:
    """The folder in which groups can be made, and what they limit; None if there is none."""
    home = own()
    try:
        if home is None:
            return None
        _sweep(home)
        with _made(home):
            pass
        known = (home / "cgroup.controllers").read_text().split()
        wanted = [counter for counter in COUNTERS if counter in known]
        return home, frozenset(c for c in wanted if _switched_on(home, c))
    except OSError:
        return None


def _switched_on(home: Path, counter: str) -> bool:
    """Let the groups below count; if need be this process leaves for one of them, as it has to."""
    switch = home / "cgroup.subtree_control"
    if counter in switch.read_text().split():
        return True
    with contextlib.suppress(OSError):
        switch.write_text(f"+{counter}")
        return True
    leaf = home / f"ntkcourse-{os.getpid()}-grader"
    leaf.mkdir(exist_ok=True)
    try:
        (leaf / "cgroup.procs").write_text("0\n")
        switch.write_text(f"+{counter}")
        return True
    except OSError:  # others are there, too, and it is not for us to move them
        with contextlib.suppress(OSError):
            (home / "cgroup.procs").write_text("0\n")
            leaf.rmdir()
        return False


def _sweep(home: Path) -> None:
    """Remove what a run that was killed has left."""
    for old in home.glob("ntkcourse-*-*"):
        if not Path("/proc", old.name.split("-")[1]).exists():
            with contextlib.suppress(OSError):
                old.rmdir()


@contextlib.contextmanager
def _made(home: Path) -> Iterator[Path]:
    folder = home / f"ntkcourse-{os.getpid()}-{next(NUMBERS)}"
    folder.mkdir()
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):
            (folder / "cgroup.kill").write_text("1")
        until = time.monotonic() + 2
        while folder.exists() and time.monotonic() < until:
            try:
                folder.rmdir()
            except OSError:  # the dead are still being buried
                time.sleep(0.01)


@contextlib.contextmanager
def around(memory: int, processes: int) -> Iterator[Group | None]:
    """A group with these limits for one worker, killed and removed at the end; or None."""
    with contextlib.ExitStack() as stack:
        group = None
        with contextlib.suppress(OSError):
            if prepared() is not None:
                home, counters = prepared()
                folder = stack.enter_context(_made(home))
                limits = {"memory": {"memory.max": memory, "memory.swap.max": 0},
                          "pids": {"pids.max": processes + OWN}}  # fmt: skip
                for counter in counters:
                    for file, limit in limits[counter].items():
                        with contextlib.suppress(FileNotFoundError):  # a kernel without swap
                            (folder / file).write_text(f"{limit}\n")
                group = Group(folder)
        yield group


def described() -> str:
    """What limits submissions here, for the log of a run."""
    if prepared() is None:
        return "no control group: time and memory are watched, processes limited by rlimits"
    counters = prepared()[1]
    words = {"memory": "memory with the kernel's own", "pids": "processes"}
    counted = ["time", *(words[c] for c in COUNTERS if c in counters)]
    rest = [name for c, name in (("memory", "memory"), ("pids", "processes")) if c not in counters]
    watched = f"; {' and '.join(rest)} by rlimits and watching" if rest else ""
    return f"control group of version 2: {', '.join(counted)}{watched}"
