"""A filter of system calls: what Python, NumPy and JAX need is allowed, everything else is not.

So there are no other processes, no sockets of any family, no files in memory, no locks or shared
pages that would be counted nowhere. The filter is a classic BPF program, written by hand because
it is short, for x86-64; on another processor there is none. The worker puts it on itself.
"""

import errno
import struct

LOAD, AND, EQUAL, ANY_BIT, RETURN = 0x20, 0x54, 0x15, 0x45, 0x06
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
X86_64 = 0xC000003E
NUMBER, ARCHITECTURE, ARGUMENT = 0, 4, 16  # places in what the kernel shows to a filter

ALLOWED = {
    "read": 0, "write": 1, "open": 2, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7,
    "lseek": 8, "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14,
    "rt_sigreturn": 15, "pread64": 17, "pwrite64": 18, "readv": 19, "writev": 20, "access": 21,
    "pipe": 22, "select": 23, "sched_yield": 24, "mremap": 25, "madvise": 28, "dup": 32,
    "dup2": 33, "pause": 34, "nanosleep": 35, "getitimer": 36, "alarm": 37, "setitimer": 38,
    "getpid": 39, "sendfile": 40, "exit": 60, "wait4": 61, "kill": 62, "uname": 63, "fsync": 74,
    "fdatasync": 75, "truncate": 76, "ftruncate": 77, "getdents": 78, "getcwd": 79, "chdir": 80,
    "rename": 82, "mkdir": 83, "rmdir": 84, "link": 86, "unlink": 87, "readlink": 89,
    "chmod": 90, "fchmod": 91, "umask": 95, "gettimeofday": 96, "getrlimit": 97, "getrusage": 98,
    "sysinfo": 99, "times": 100,
    "getuid": 102, "getgid": 104, "geteuid": 107, "getegid": 108, "getppid": 110, "getpgrp": 111,
    "getgroups": 115, "getresuid": 118, "getresgid": 120, "getpgid": 121, "getsid": 124,
    "rt_sigpending": 127, "rt_sigtimedwait": 128, "rt_sigsuspend": 130, "sigaltstack": 131,
    "statfs": 137, "fstatfs": 138, "getpriority": 140, "sched_getparam": 143,
    "sched_getscheduler": 145, "arch_prctl": 158, "setrlimit": 160, "gettid": 186, "time": 201,
    "futex": 202, "sched_setaffinity": 203, "sched_getaffinity": 204, "getdents64": 217,
    "set_tid_address": 218, "restart_syscall": 219, "fadvise64": 221, "clock_gettime": 228,
    "clock_getres": 229, "clock_nanosleep": 230, "exit_group": 231, "epoll_wait": 232,
    "epoll_ctl": 233, "tgkill": 234, "mbind": 237, "get_mempolicy": 239, "openat": 257,
    "mkdirat": 258, "newfstatat": 262, "unlinkat": 263, "renameat": 264, "readlinkat": 267,
    "faccessat": 269, "pselect6": 270, "ppoll": 271, "set_robust_list": 273,
    "get_robust_list": 274, "epoll_pwait": 281, "fallocate": 285, "eventfd2": 290,
    "epoll_create1": 291, "dup3": 292, "pipe2": 293, "prlimit64": 302, "getcpu": 309,
    "renameat2": 316, "getrandom": 318, "membarrier": 324, "copy_file_range": 326, "statx": 332,
    "rseq": 334, "close_range": 436, "faccessat2": 439,
}  # fmt: skip

# Refused with the error that Python turns into PermissionError. What is in no table does not
# exist, as on an older kernel: libraries then take another way (clone in place of clone3).
FORBIDDEN = {"socket": 41, "socketpair": 53, "fork": 57, "vfork": 58, "execve": 59,
             "execveat": 322, "memfd_create": 319}  # fmt: skip

# Calls that are allowed with some values of one argument only: number, place, values
SELECTED = {
    "ioctl": (16, 1, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)),  # is it a terminal, …
    "fcntl": (72, 1, (0, 1, 2, 3, 4, 1030)),  # no locks, no larger pipes
    "prctl": (157, 0, (15, 16, 0x53564D41)),  # names of threads and of memory
}
MMAP, SHARED_ANONYMOUS = 9, 0x21  # pages that stay in memory after they leave the process
CLONE, THREAD = 56, 0x10000


def program(machine: str) -> bytes | None:
    """The filter as the kernel reads it, or None for a processor on which it was never tried."""
    if machine != "x86_64":
        return None
    refuse = (RETURN, 0, 0, REFUSE | errno.EPERM)
    allow = (RETURN, 0, 0, ALLOW)
    steps = [
        (LOAD, 0, 0, ARCHITECTURE),  # another one means another table of numbers
        (EQUAL, 1, 0, X86_64),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER),
    ]
    for number in ALLOWED.values():
        steps += [(EQUAL, 0, 1, number), allow]
    for number in FORBIDDEN.values():
        steps += [(EQUAL, 0, 1, number), refuse]
    for number, place, values in SELECTED.values():
        steps += [(EQUAL, 0, 2 * len(values) + 2, number), (LOAD, 0, 0, ARGUMENT + 8 * place)]
        for value in values:
            steps += [(EQUAL, 0, 1, value), allow]
        steps += [refuse]
    steps += [
        (EQUAL, 0, 5, MMAP),
        (LOAD, 0, 0, ARGUMENT + 8 * 3),
        (AND, 0, 0, SHARED_ANONYMOUS),
        (EQUAL, 0, 1, SHARED_ANONYMOUS),
        refuse,
        allow,
        (EQUAL, 0, 4, CLONE),
        (LOAD, 0, 0, ARGUMENT),
        (ANY_BIT, 0, 1, THREAD),
        allow,
        refuse,
        (RETURN, 0, 0, REFUSE | errno.ENOSYS),
    ]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)
