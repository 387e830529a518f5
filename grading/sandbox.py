"""Run the worker where it can do no harm, and listen to it with limits on everything.

With bubblewrap: an unprivileged user, own process, network and IPC namespaces, a read-only file
system with Python and the course's package in it and nothing else of the machine, one small
writable directory in memory. Without it, only when asked for and only as root: another user. In
both cases the worker gives up, for good, all files (Landlock, where the kernel has it) and all
system calls (on x86-64) that it does not need, before any code of the student runs.
"""

import contextlib
import functools
import itertools
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from . import channel, group, meter, seccomp
from .channel import Limits, Run

ROOT = Path(__file__).resolve().parent.parent
WORKER = Path(__file__).with_name("worker.py")
BOX = "/box"  # the one directory that a student's code can write to
DEVICES = ("/dev/null", "/dev/random", "/dev/urandom")
USERS = itertools.count(os.getpid())
SETTINGS = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/fonts", "/etc/localtime")
PROBE = "import numpy\nopen('x', 'w').write('y')\nopen('x').read()"
# Parts of /proc that NumPy and JAX read; the rest shows paths of the machine
PROC = ("/proc/self/maps", "/proc/self/stat", "/proc/self/statm", "/proc/self/status",
        "/proc/cpuinfo", "/proc/meminfo", "/proc/stat")  # fmt: skip


class SandboxError(RuntimeError):
    """The sandbox itself does not work; no student is to blame."""


def check(unsafe: bool = False) -> None:
    """Raise a SandboxError unless a worker can be started here in the way that was asked for."""
    advice = (
        "install bubblewrap (apt-get install bubblewrap), or pass --unsafe as root, in a container "
        "that is thrown away, to run students' code as another user"
    )
    if not unsafe and not shutil.which("bwrap"):
        raise SandboxError(f"expected the program bwrap, found none: {advice}")
    if unsafe and os.geteuid() != 0:
        raise SandboxError("expected root for --unsafe: students' code has to run as another user")
    try:
        probe = run([PROBE], [], Limits(), unsafe)
    except PermissionError as error:  # only without bubblewrap: root gives its rights away
        raise SandboxError(
            f"expected a Python that other users than root can run: {error}"
        ) from error
    if probe.end is not None or any("failed" in message for message in probe.messages):
        said = f"{probe.end} {probe.messages[:1]} {probe.output.strip()[-600:]}"
        raise SandboxError(f"students' code cannot be isolated here: {said}\n{advice}")


def readable() -> dict[str, str]:
    """Directories that are bound read-only: destination and source."""
    bound = {"/usr": "/usr"}
    for prefix in (sys.base_prefix, sys.prefix):
        for name in (prefix, os.path.realpath(prefix)):
            bound[name] = os.path.realpath(prefix)
    covered = [name for name in bound if any(name.startswith(f"{b}/") for b in bound)]
    return {name: source for name, source in bound.items() if name not in covered}


def guard(*private: Path) -> None:
    """Refuse to run where a student's code could read what it must not."""
    for path in private:
        for place in readable().values():
            if path.resolve().is_relative_to(place):
                raise SandboxError(f"expected {path} outside {place}, which students' code can see")


def isolated(limits: Limits) -> list[str]:
    """The options of bubblewrap."""
    options = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    options += ["--unshare-cgroup-try", "--die-with-parent", "--new-session", "--clearenv"]
    options += ["--hostname", "box"]
    for name in ("/bin", "/sbin", "/lib", "/lib32", "/lib64"):
        if os.path.islink(name):
            options += ["--symlink", os.readlink(name), name]
        elif os.path.isdir(name):
            options += ["--ro-bind", name, name]
    for name in _parents([*readable(), "/course/ntkcourse", "/dev/shm", *SETTINGS]):
        options += ["--perms", "0755", "--dir", name]  # bubblewrap itself would close some of them
    for name in SETTINGS:
        options += ["--ro-bind-try", name, name]
    for name, source in readable().items():
        options += ["--ro-bind", source, name]
    options += ["--ro-bind", str(ROOT / "ntkcourse"), "/course/ntkcourse"]
    options += ["--ro-bind", str(WORKER), "/course/worker.py", "--proc", "/proc"]
    for name in DEVICES:  # not /dev/zero, whose shared pages nobody counts, and no terminals
        options += ["--dev-bind", name, name]
    for name in ("/dev/shm", BOX):
        options += ["--perms", "1777", "--size", str(limits.disk), "--tmpfs", name]
    options += ["--remount-ro", "/", "--chdir", BOX]
    for name, value in environment(BOX, "/course").items():
        options += ["--setenv", name, value]
    if os.geteuid() != 0:
        options += ["--unshare-user", "--uid", "65534", "--gid", "65534"]
    return options


def inside(send: int) -> list[str]:
    """The command that bubblewrap runs."""
    python = Path(os.path.realpath(sys.prefix), "bin", Path(sys.executable).name)
    command = [str(python), "-s", "-B", "-u", "/course/worker.py", str(send)]
    if os.geteuid() != 0:
        return command
    # Root in a user namespace would still be root to the limit on processes: become somebody else
    # for good.
    user = str(nobody())
    become = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups"]
    return [*become, "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", *command]


def nobody() -> int:
    """A user without rights, another one for every worker: none uses up another's processes."""
    return 61184 + next(USERS) % 4000


def _parents(names: list[str]) -> list[str]:
    return sorted({str(p) for name in names for p in Path(name).parents} - {"/"})


def environment(home: str, course: str) -> dict[str, str]:
    """All the variables that the worker sees; one thread where libraries let us choose."""
    kept = {n: os.environ[n] for n in ("LD_LIBRARY_PATH", "TZ") if n in os.environ}
    single = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return kept | dict.fromkeys(single, "1") | {
        "PATH": "/usr/bin:/bin", "HOME": home, "TMPDIR": home, "PYTHONPATH": course,
        "MPLBACKEND": "agg", "MPLCONFIGDIR": home, "PYTHONHASHSEED": "0", "LANG": "C.UTF-8",
        "JAX_PLATFORMS": "cpu", "USER": "student",
    }  # fmt: skip


def rlimits(limits: Limits) -> dict[str, int]:
    """Limits that the worker sets on itself before any code of the student runs."""
    return {
        "RLIMIT_AS": limits.address_space,
        "RLIMIT_FSIZE": limits.disk,
        "RLIMIT_CORE": 1,  # 0 would still wake a program that collects what crashed
        "RLIMIT_CPU": int(limits.total * 4) + 10,  # several threads
        "RLIMIT_NOFILE": 256,
        "RLIMIT_NPROC": limits.processes,
        "RLIMIT_SIGPENDING": 64,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
    }


def files(home: str, course: str) -> dict[str, list[str]]:
    """What the worker may read and write at all: the order for Landlock."""
    read = [*readable(), "/lib", "/lib32", "/lib64", *SETTINGS, *DEVICES, *PROC]
    read += [course, "/sys/devices/system/cpu"]
    return {"read": read, "write": [home, "/dev/shm", "/dev/null"]}


def run(
    cells: list[str | None], calls: list[dict | None], limits: Limits, unsafe: bool = False,
    left: float | None = None,
) -> Run:  # fmt: skip
    """Start a worker, send it cells and then calls, listen until it is done or beyond a limit.

    `left` are the seconds that the submission as a whole has left.
    """
    home, course = BOX, "/course"
    with contextlib.ExitStack() as stack:
        receive, send = os.pipe()
        results = stack.enter_context(open(receive, "rb", buffering=0))
        sender = stack.enter_context(open(send, "wb", buffering=0))
        user = nobody() if unsafe else None
        if unsafe:
            home, course = stack.enter_context(_temporary(user)), str(ROOT / "ntkcourse")
            command = [sys.executable, "-s", "-B", "-u", "-P", str(WORKER), str(send)]
            options = {"env": environment(home, str(ROOT)), "cwd": home, "pass_fds": [send]}
            options |= {"user": user, "group": user, "extra_groups": []}
        else:
            # Options in a file: a command line can be read inside.
            chosen = stack.enter_context(tempfile.TemporaryFile())
            chosen.write("\0".join(isolated(limits)).encode() + b"\0")
            chosen.seek(0)
            command = ["bwrap", "--args", str(chosen.fileno()), "--", *inside(send)]
            options = {"env": {"PATH": os.environ.get("PATH", "/usr/bin:/bin")}, "cwd": "/"}
            options["pass_fds"] = [send, chosen.fileno()]
        order = {
            "cells": cells, "limits": rlimits(limits), "files": files(home, course),
            "filter": (seccomp.program(platform.machine()) or b"").hex(),
        }  # fmt: skip
        box = stack.enter_context(group.around(limits.memory + 2 * limits.disk, limits.processes))
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True, **options,
        )  # fmt: skip
        sender.close()
        try:
            try:
                if box is not None:  # the worker waits for its order: nothing of it runs before
                    box.add(process.pid, meter.tree)
            except OSError:
                box = None
            _feed(process.stdin, order)
            left = limits.total if left is None else left
            ask = functools.partial(_feed, process.stdin, calls)
            return channel.listen(process, results, limits, left, ask, box)
        finally:
            channel.kill(process, user, not unsafe)
            process.stdout.close()
            with contextlib.suppress(OSError, ValueError):
                process.stdin.close()


def _feed(pipe, order: dict | list) -> None:
    """Send a line without waiting for a worker that does not read."""

    def write() -> None:
        with contextlib.suppress(OSError, ValueError):
            pipe.write(json.dumps(order).encode() + b"\n")
            pipe.flush()

    threading.Thread(target=write, daemon=True).start()


@contextlib.contextmanager
def _temporary(user: int | None):
    home = tempfile.mkdtemp(prefix="homework-")
    if user is not None:
        os.chown(home, user, user)
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)
