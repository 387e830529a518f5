"""A filter of system calls for bubblewrap: refuse what no homework needs.

Refused are new namespaces, tracing of other processes, and ways to hold memory that is counted
nowhere (shared segments, files in memory). The filter is a classic BPF program, written by hand
because it is short, for x86-64; on another processor there is none.
"""

import contextlib
import errno
import platform
import struct
import tempfile

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
CLONE3 = 435  # its flags are out of a filter's sight; the C library then uses clone

ARCHITECTURE, CLONE = 0xC000003E, 56  # x86-64 as the kernel names it, and its number of clone
REFUSED = {
    "shmget": 29, "msgget": 68, "semget": 64, "ptrace": 101, "mount": 165, "umount2": 166,
    "unshare": 272, "setns": 308, "memfd_create": 319, "memfd_secret": 447, "bpf": 321,
    "userfaultfd": 323, "perf_event_open": 298, "io_uring_setup": 425, "keyctl": 250,
    "add_key": 248, "request_key": 249, "process_vm_readv": 310, "process_vm_writev": 311,
    "kexec_load": 246, "open_by_handle_at": 304, "pidfd_getfd": 438,
}  # fmt: skip


def program(machine: str) -> bytes | None:
    """The filter as the kernel reads it, or None for a processor on which it was never tried."""
    if machine != "x86_64":
        return None
    steps = [
        (LOAD, 0, 0, 4),  # the architecture: another one means another table of numbers
        (EQUAL, 1, 0, ARCHITECTURE),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, 0),  # the number of the call
        (AT_LEAST, 0, 1, 0x40000000),  # the second set of numbers that x86 has
        (RETURN, 0, 0, REFUSE | errno.ENOSYS),
        (EQUAL, 0, 1, CLONE3),
        (RETURN, 0, 0, REFUSE | errno.ENOSYS),
    ]
    for number in sorted(REFUSED.values()):
        steps += [(EQUAL, 0, 1, number), (RETURN, 0, 0, REFUSE | errno.EPERM)]
    steps += [
        (EQUAL, 0, 3, CLONE),
        (LOAD, 0, 0, 16),  # its flags
        (ANY_BIT, 0, 1, NEW_NAMESPACES),
        (RETURN, 0, 0, REFUSE | errno.EPERM),
        (RETURN, 0, 0, ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


@contextlib.contextmanager
def rules():
    """An open file with the filter for this machine, or None."""
    code = program(platform.machine())
    if code is None:
        yield None
        return
    with tempfile.TemporaryFile() as file:
        file.write(code)
        file.flush()
        file.seek(0)
        yield file
