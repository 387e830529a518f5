"""How long a tree of processes has worked, fairly on a busy machine, and what it holds."""

import contextlib
import os
import time
from typing import NamedTuple

import psutil

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


class Meter:
    """The clock of one worker and everything that it started."""

    def __init__(self, process: int):
        self.process = process
        self.waits: dict[int, float] = {}
        self.cpu = 0.0
        self.first = self.read()

    def tree(self) -> list[int]:
        """The worker and all processes below it; those that left their group, too."""
        if not CHILDREN:
            with contextlib.suppress(psutil.Error):
                below = psutil.Process(self.process).children(recursive=True)
                return [self.process, *(child.pid for child in below)]
        found = [self.process]
        for pid in found:
            with contextlib.suppress(OSError):
                for thread in os.listdir(f"/proc/{pid}/task"):
                    with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                        found += map(int, file.read().split())
        return found

    def read(self) -> Reading:
        """The time now."""
        cpu = 0.0
        for pid in self.tree():
            with contextlib.suppress(OSError):
                with open(f"/proc/{pid}/stat", "rb") as file:
                    cpu += sum(map(int, file.read().rpartition(b")")[2].split()[11:15])) / TICK
                for thread in os.listdir(f"/proc/{pid}/task"):
                    with open(f"/proc/{pid}/task/{thread}/schedstat", "rb") as file:
                        self.waits[int(thread)] = int(file.read().split()[1]) / 1e9
        self.cpu = max(self.cpu, cpu)  # the dead take their seconds with them
        return Reading(time.monotonic(), self.cpu, sum(self.waits.values()))

    def files(self) -> int:
        """The number of files and folders in the writable directories of a sandbox."""
        count = 0
        for pid in self.tree()[1:2]:  # the first process of the namespace
            for place in PLACES:
                with contextlib.suppress(OSError):
                    size = os.statvfs(f"/proc/{pid}/root/{place}")
                    count += size.f_files - size.f_ffree
        return count
