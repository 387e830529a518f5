"""How long a tree of processes has worked, fairly on a busy machine, and what it holds."""

import contextlib
import os
import time
from typing import NamedTuple

import psutil

from .group import Group

TICK = os.sysconf("SC_CLK_TCK")
CHILDREN = os.path.exists(f"/proc/self/task/{os.getpid()}/children")
PLACES = ("box", "dev/shm")


class Reading(NamedTuple):
    """Seconds: on the wall, on processors, and ready to run while others had the processors."""

    wall: float
    cpu: float
    waited: float

    def since(self, before: "Reading") -> float:
        """Seconds of work: those on processors, or of sleep, without waiting for a processor."""
        wall, cpu, waited = (now - then for now, then in zip(self, before, strict=True))
        return max(cpu, wall - waited)


def tree(process: int) -> list[int]:
    """A process and all below it, parents first; those that left their group, too."""
    if not CHILDREN:
        with contextlib.suppress(psutil.Error):
            below = psutil.Process(process).children(recursive=True)
            return [process, *(child.pid for child in below)]
    found = [process]
    for pid in found:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                    found += map(int, file.read().split())
    return found


class Meter:
    """The clock of one worker and everything that it started, by its group where there is one."""

    def __init__(self, process: int, group: Group | None = None):
        self.process, self.group = process, group
        self.waits: dict[int, float] = {}
        self.cpu = self.waited = 0.0
        self.last = time.monotonic()
        self.first = self.read()

    def tree(self) -> list[int]:
        """The worker and all processes below it."""
        return tree(self.process)

    def read(self) -> Reading:
        """The time now."""
        wall = time.monotonic()
        cpu = waited = None
        if self.group is not None:
            cpu, waited = self.group.cpu(), self.group.waited()
        if cpu is None or waited is None:
            walked = self._walk(wall)
            cpu = walked[0] if cpu is None else cpu
            waited = walked[1] if waited is None else waited
        return Reading(wall, cpu, waited)

    def _walk(self, wall: float) -> tuple[float, float]:
        """Seconds on processors and of waiting for one, by /proc."""
        cpu, before = 0.0, sum(self.waits.values())
        for pid in self.tree():
            with contextlib.suppress(OSError):
                with open(f"/proc/{pid}/stat", "rb") as file:
                    cpu += sum(map(int, file.read().rpartition(b")")[2].split()[11:15])) / TICK
                for thread in os.listdir(f"/proc/{pid}/task"):
                    with open(f"/proc/{pid}/task/{thread}/schedstat", "rb") as file:
                        self.waits[int(thread)] = int(file.read().split()[1]) / 1e9
        self.cpu = max(self.cpu, cpu)  # the dead take their seconds with them
        # A hundred threads that wait for a second do not earn a hundred seconds of sleep.
        self.waited += min(sum(self.waits.values()) - before, wall - self.last)
        self.last = wall
        return self.cpu, self.waited

    def files(self) -> int:
        """The number of files and folders in the writable directories of a sandbox."""
        count = 0
        for pid in self.tree()[1:2]:  # the first process of the namespace
            for place in PLACES:
                with contextlib.suppress(OSError):
                    size = os.statvfs(f"/proc/{pid}/root/{place}")
                    count += size.f_files - size.f_ffree
        return count
