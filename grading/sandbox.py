"""Run the worker where it can do no harm, and listen to it with limits on everything.

With bubblewrap: an unprivileged user, own process, network and IPC namespaces, a read-only file
system with Python and the course's package in it and nothing else of the machine, one small
writable directory in memory. Without it, only when asked for: resource limits and a process group.
"""

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from . import channel, seccomp
from .channel import Limits, Run

ROOT = Path(__file__).resolve().parent.parent
WORKER = Path(__file__).with_name("worker.py")
BOX = "/box"  # the one directory that a student's code can write to


class SandboxError(RuntimeError):
    """The sandbox itself does not work; no student is to blame."""


def check(unsafe: bool = False) -> None:
    """Raise a SandboxError unless a worker can be started here in the way that was asked for."""
    advice = (
        "install bubblewrap (apt-get install bubblewrap), or pass --unsafe to run students' code "
        "with resource limits only: it could then read and write your files"
    )
    if not unsafe and not shutil.which("bwrap"):
        raise SandboxError(f"expected the program bwrap, found none: {advice}")
    try:
        probe = run({"cells": [], "calls": []}, Limits(), unsafe)
    except PermissionError as error:  # only without bubblewrap: root gives its rights away
        raise SandboxError(
            f"expected a Python that other users than root can run: {error}"
        ) from error
    if probe.end is not None:
        said = f"{probe.end}; {probe.output.strip()[-600:]}"
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


def isolated(channel: int, limits: Limits, filter_fd: int | None) -> list[str]:
    """The command line of bubblewrap and, inside it, the worker."""
    python = Path(os.path.realpath(sys.prefix), "bin", Path(sys.executable).name)
    command = ["bwrap", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    command += ["--unshare-cgroup-try", "--die-with-parent", "--new-session", "--clearenv"]
    command += ["--hostname", "box"]
    for name in ("/bin", "/sbin", "/lib", "/lib32", "/lib64"):
        if os.path.islink(name):
            command += ["--symlink", os.readlink(name), name]
        elif os.path.isdir(name):
            command += ["--ro-bind", name, name]
    for name in ("/etc/ld.so.cache", "/etc/alternatives", "/etc/fonts", "/etc/localtime"):
        command += ["--ro-bind-try", name, name]
    for name in _parents([*readable(), "/course/ntkcourse"]):
        command += ["--perms", "0755", "--dir", name]  # bubblewrap itself would close some of them
    for name, source in readable().items():
        command += ["--ro-bind", source, name]
    command += ["--ro-bind", str(ROOT / "ntkcourse"), "/course/ntkcourse"]
    command += ["--ro-bind", str(WORKER), "/course/worker.py"]
    command += ["--proc", "/proc", "--dev", "/dev"]
    for name in ("/dev/shm", BOX):
        command += ["--perms", "1777", "--size", str(limits.disk), "--tmpfs", name]
    command += ["--remount-ro", "/dev", "--remount-ro", "/"]
    command += ["--chdir", BOX]
    for name, value in environment(BOX, "/course").items():
        command += ["--setenv", name, value]
    if filter_fd is not None:
        command += ["--seccomp", str(filter_fd)]
    if os.geteuid() == 0:
        # Root in a user namespace would still be root to the limit on processes: become somebody
        # else for good.
        user = str(nobody())
        command += ["--", "setpriv", "--reuid", user, "--regid", user, "--clear-groups"]
        command += ["--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]
    else:
        command += ["--unshare-user", "--uid", "65534", "--gid", "65534", "--"]
    return [*command, str(python), "-s", "-B", "-u", "/course/worker.py", str(channel)]


def nobody() -> int:
    """A user without rights, another one for every worker: none uses up another's processes."""
    return 61184 + secrets.randbelow(4000)


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


def rlimits(limits: Limits, unsafe: bool) -> dict[str, int]:
    """Limits that the worker sets on itself before any code of the student runs."""
    chosen = {
        "RLIMIT_AS": limits.address_space,
        "RLIMIT_FSIZE": limits.disk,
        "RLIMIT_CORE": 0,
        "RLIMIT_CPU": int(limits.total * 4) + 10,  # several threads
        "RLIMIT_NOFILE": 256,
    }
    # Without a user or a namespace of its own the worker would be counted with all of yours.
    return chosen if unsafe and os.geteuid() != 0 else chosen | {"RLIMIT_NPROC": limits.processes}


def run(order: dict, limits: Limits, unsafe: bool = False, until: float | None = None) -> Run:
    """Start a worker, send it the order and listen until it is done, dead or beyond a limit.

    `until` is the time on the monotonic clock at which the submission as a whole has to end.
    """
    order = order | {"limits": rlimits(limits, unsafe)}
    until = time.monotonic() + limits.total if until is None else until
    with contextlib.ExitStack() as stack:
        receive, send = os.pipe()
        results = stack.enter_context(open(receive, "rb", buffering=0))
        sender = stack.enter_context(open(send, "wb", buffering=0))
        user = nobody() if unsafe and os.geteuid() == 0 else None
        if unsafe:
            home = stack.enter_context(_temporary(user))
            command = [sys.executable, "-s", "-B", "-u", "-P", str(WORKER), str(send)]
            options = {"env": environment(home, str(ROOT)), "cwd": home, "pass_fds": [send]}
            options |= {"user": user, "group": user, "extra_groups": [] if user else None}
        else:
            rules = stack.enter_context(seccomp.rules())
            command = isolated(send, limits, rules.fileno() if rules else None)
            options = {"env": {"PATH": os.environ.get("PATH", "/usr/bin:/bin")}, "cwd": "/"}
            options["pass_fds"] = [send, *([rules.fileno()] if rules else [])]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True, **options,
        )  # fmt: skip
        sender.close()
        try:
            feeder = threading.Thread(target=_feed, args=(process.stdin, order), daemon=True)
            feeder.start()
            return channel.listen(process, results, limits, until)
        finally:
            channel.kill(process, user, not unsafe)
            process.stdout.close()
            feeder.join(5)
            with contextlib.suppress(OSError):
                process.stdin.close()


@contextlib.contextmanager
def _temporary(user: int | None):
    home = tempfile.mkdtemp(prefix="homework-")
    if user is not None:
        os.chown(home, user, user)
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _feed(pipe, order: dict) -> None:
    with contextlib.suppress(OSError, ValueError):
        pipe.write(json.dumps(order).encode())
        pipe.close()
