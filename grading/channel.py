"""Listen to a worker, believing nothing it says, and end it when it goes too far."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from dataclasses import dataclass, field

import psutil

from . import compare

MESSAGES = 20_000
LINE = 8 << 20
KEPT = 1 << 20  # bytes of what was printed
MB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Seconds, bytes and counts that one submission may use."""

    start: float = 60.0  # until Python is up
    cell: float = 60.0
    call: float = 20.0
    total: float = 300.0  # all restarts together
    memory: int = 2048 * MB  # resident, of all processes together
    address_space: int = 8192 * MB  # of one process; JAX maps 2 GB without using them
    processes: int = 128  # threads included; JAX has about 20
    disk: int = 64 * MB  # of the writable directory
    results: int = 32 * MB
    output: int = 16 * MB


@dataclass
class Run:
    """What came back from one worker: messages in order, and why it ended (None: it was done)."""

    messages: list[dict] = field(default_factory=list)
    at: tuple[str, int] | None = None
    output: str = ""
    end: str | None = None


def listen(process, results, limits: Limits, until: float) -> Run:
    """Read results and output until the worker is done, dead or beyond a limit."""
    run, printed, received = Run(), bytearray(), bytearray()
    closing, deadline, look = False, time.monotonic() + limits.start, 0.0
    sizes = {results: 0, process.stdout: 0}
    with selectors.DefaultSelector() as selector:
        for source in sizes:
            selector.register(source, selectors.EVENT_READ)
        while run.end is None or closing:
            if not closing:
                run.end = _late(run, limits, deadline, until)
            if not closing and run.end is None and time.monotonic() > look:
                run.end = _excess(process, limits)
                look = time.monotonic() + 0.05
            ready = selector.select(0 if closing else 0.05)
            if closing and not ready:
                break  # what was printed before the end has been read
            for key, _ in ready:
                data = os.read(key.fd, MB)
                sizes[key.fileobj] += len(data)
                if not data:
                    selector.unregister(key.fileobj)
                if key.fileobj is process.stdout:
                    printed += data[: KEPT - len(printed)]
                    continue
                if not data:
                    run.end = run.end if closing else "its process ended"
                    closing = True
                received += data
                if b"\n" in data:
                    *lines, received = received.split(b"\n")
                    if any([_take(run, bytes(line)) for line in lines]):
                        phase = limits.call if run.at[0] == "call" else limits.cell
                        deadline = time.monotonic() + phase
                    closing = closing or {"done": True} in run.messages[-1:]
            if sizes[process.stdout] > limits.output:
                closing, run.end = False, f"it printed more than {limits.output // MB} MB"
            if sizes[results] > limits.results or len(run.messages) > MESSAGES:
                closing, run.end = False, f"it sent more than {limits.results // MB} MB of results"
    run.output = printed.decode("utf-8", "replace")
    return run


def _late(run: Run, limits: Limits, deadline: float, until: float) -> str | None:
    now = time.monotonic()
    if now > until:
        return f"the whole submission took longer than {limits.total:g} s"
    if now > deadline:
        allowed = {"cell": limits.cell, "call": limits.call}
        return f"it did not finish within {allowed[run.at[0]] if run.at else limits.start:g} s"
    return None


def _take(run: Run, line: bytes) -> bool:
    """Keep a message that makes sense at this point; the result says whether a new step begins.

    A student's code can write to the channel. Steps go forward only, and news is about the step
    that runs: so nobody can speak for the setup or for a cell before their own.
    """
    try:
        message = json.loads(line) if len(line) <= LINE else None
    except (ValueError, RecursionError):
        return False
    match message:
        case {"at": ["cell" | "call" as kind, int(number)]}:
            order = ("cell", "call").index
            if run.at and (order(kind), number) <= (order(run.at[0]), run.at[1]):
                return False
            run.at = (kind, number)
            return True
        case {"failed": [str(kind), int(number)], "why": str(why)} if run.at == (kind, number):
            run.messages.append({"failed": [kind, number], "why": why[:600]})
        case {"result": int(number), "value": value} if run.at == ("call", number):
            try:
                run.messages.append({"result": number, "value": compare.checked(value)})
            except compare.MalformedError as error:
                run.messages.append({"failed": ["call", number], "why": str(error)})
        case {"done": True}:
            run.messages.append({"done": True})
    return False


def _excess(process, limits: Limits) -> str | None:
    try:
        tree = [process.pid, *(p.pid for p in psutil.Process(process.pid).children(recursive=True))]
    except psutil.Error:
        return None
    if len(tree) > limits.processes:
        return f"it started more than {limits.processes} processes"
    # The resident sizes count shared pages once per process, but are quick to read.
    if _memory(tree, False) > limits.memory and _memory(tree, True) > limits.memory:
        return f"it used more than {limits.memory // MB} MB of memory"
    return None


def _memory(tree: list[int], exact: bool) -> int:
    used = 0
    for pid in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            try:
                used += process.memory_full_info().pss if exact else process.memory_info().rss
            except (psutil.AccessDenied, AttributeError):
                used += process.memory_info().rss
    return used


def kill(process, user: int | None, own_namespace: bool) -> None:
    """End the whole tree: the first process of the namespace takes all others with it."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.kill()
    if user is not None:  # no namespace: what has left the tree is known by its user
        for other in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if other.uids().real == user:
                    other.kill()
    if own_namespace:  # bubblewrap ends when everything inside has ended
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
