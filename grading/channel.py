"""Listen to a worker, believing nothing it says, and end it when it goes too far."""

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil

from . import compare
from .group import Group
from .meter import Meter

MESSAGES = 20_000
LINE = 8 << 20
KEPT = 1 << 20  # bytes of what was printed
MB = 1 << 20
AFTER = 1.0  # seconds in which the last of what was printed is read


@dataclass(frozen=True)
class Limits:
    """Seconds, bytes and counts that one submission may use.

    Seconds are of its own work: time in which it waited for a processor that others had does not
    count, and several busy threads count each.
    """

    start: float = 60.0  # until Python is up
    cell: float = 60.0
    call: float = 20.0
    total: float = 300.0  # all restarts together
    memory: int = 2048 * MB  # resident, of all processes together
    address_space: int = 8192 * MB  # of one process; JAX maps 2 GB without using them
    processes: int = 128  # threads included; JAX has about 20
    disk: int = 64 * MB  # of the writable directory
    files: int = 10_000  # in it, folders included
    results: int = 32 * MB
    output: int = 16 * MB


@dataclass
class Run:
    """What came back from one worker: messages in order, and why it ended (None: it was done)."""

    messages: list[dict] = field(default_factory=list)
    at: tuple[str, int] | None = None
    output: str = ""  # printed by cells; what is printed beside hidden inputs is not kept
    end: str | None = None
    doubtful: bool = False  # whether the end may be the fault of the machine
    spent: float = 0.0
    lines: int = 0
    ready: bool = False


def listen(
    process, results, limits: Limits, left: float, ask: Callable[[], None],
    group: Group | None = None,
) -> Run:  # fmt: skip
    """Read results and output until the worker is done, dead or beyond a limit.

    `left` are the seconds that the submission has left; `ask` sends the calls, once the cells have
    run. Time, memory and sizes are looked at in every round, whatever was said before.
    """
    run, printed, received = Run(), bytearray(), bytearray()
    meter, sizes, over = Meter(process.pid, group), {results: 0, process.stdout: 0}, None
    phase, look = meter.read(), 0.0
    with selectors.DefaultSelector() as selector:
        for source in sizes:
            os.set_blocking(source.fileno(), False)
            selector.register(source, selectors.EVENT_READ)
        while run.end is None:
            if time.monotonic() > look:
                _late(run, limits, meter, phase, left)
                run.end = run.end or _excess(meter, limits)
                look = time.monotonic() + 0.05
            if over is not None and (time.monotonic() > over or not selector.get_map()):
                break
            ready = selector.select(0.05)
            if over is not None and not ready:
                break  # what was printed before the end has been read
            # First what was printed: it belongs to the time before the message beside it.
            for key, _ in sorted(ready, key=lambda pair: pair[0].fileobj is results):
                if (data := _read(key.fd)) is None:
                    continue
                sizes[key.fileobj] += len(data)
                if not data:
                    selector.unregister(key.fileobj)
                if key.fileobj is process.stdout:
                    printed += data[: KEPT - len(printed)] if not run.ready else b""
                    continue
                if not data:
                    over = over or time.monotonic() + AFTER
                received += data
                if b"\n" not in data or over is not None:
                    continue
                *lines, received = received.split(b"\n")
                run.lines += len(lines)
                lines = lines[: len(lines) - max(0, run.lines - MESSAGES)]
                if any([_take(run, bytes(line)) for line in lines if line]):
                    phase = meter.read()
                if not run.ready and {"ready": True} in run.messages[-len(lines) :]:
                    if process.stdout in selector.get_map():
                        printed += (_read(process.stdout.fileno()) or b"")[: KEPT - len(printed)]
                    run.ready = True
                    ask()
                if {"done": True} in run.messages[-1:]:
                    over = time.monotonic() + AFTER
            if sizes[process.stdout] > limits.output:
                run.end = f"it printed more than {limits.output // MB} MB"
            if sizes[results] > limits.results or run.lines > MESSAGES:
                run.end = f"it sent more than {limits.results // MB} MB of results"
    if run.end is None and {"done": True} not in run.messages[-1:]:
        run.end, run.doubtful = "its process ended", _killed(process)
        if group is not None and group.starved():
            run.end, run.doubtful = _greedy(limits), False
    run.spent = meter.read().since(meter.first)
    run.output = printed.decode("utf-8", "replace")
    return run


def _killed(process) -> bool:
    """Whether it was killed, as the kernel does when the machine is short of memory."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(1) in (-signal.SIGKILL, 128 + signal.SIGKILL)
    return False


def _read(handle: int) -> bytes | None:
    with contextlib.suppress(BlockingIOError):
        return os.read(handle, MB)
    return None


def _late(run: Run, limits: Limits, meter: Meter, phase, left: float) -> None:
    """Note the end of a run that has used up its time."""
    now = meter.read()
    allowed = {"cell": limits.cell, "call": limits.call}[run.at[0]] if run.at else limits.start
    if now.since(meter.first) > left or now.wall - meter.first.wall > 10 * left:
        run.end, run.doubtful = f"the whole submission took longer than {limits.total:g} s", True
    elif now.since(phase) > allowed:
        run.end, run.doubtful = f"it did not finish within {allowed:g} s", True


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
            why = _without_inputs(why) if run.ready else why
            run.messages.append({"failed": [kind, number], "why": why[:600]})
        case {"note": ["cell", int(number)], "why": str(why)} if run.at == ("cell", number):
            run.messages.append({"note": number, "why": why[:100]})
        case {"result": int(number), "value": value} if run.at == ("call", number):
            try:
                run.messages.append({"result": number, "value": compare.checked(value)})
            except compare.MalformedError as error:
                run.messages.append({"failed": ["call", number], "why": str(error)})
        case {"ready": True} | {"done": True}:
            run.messages.append(message)
    return False


def _without_inputs(why: str) -> str:
    """The text of an error without numbers that may come from hidden inputs; shapes stay."""
    return re.sub(r"[-+]?(\d+\.\d*|\.\d+|\d{5,})(e[-+]?\d+)?", "…", why)[:300]


def _excess(meter: Meter, limits: Limits) -> str | None:
    tree = meter.tree()
    if len(tree) > limits.processes:
        return f"it started more than {limits.processes} processes"
    # The resident sizes count shared pages once per process, but are quick to read.
    if _memory(tree, False) > limits.memory and _memory(tree, True) > limits.memory:
        return _greedy(limits)
    if meter.files() > limits.files:
        return f"it made more than {limits.files} files"
    return None


def _greedy(limits: Limits) -> str:
    return f"it used more than {limits.memory // MB} MB of memory"


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
