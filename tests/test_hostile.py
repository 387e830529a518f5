"""Submissions that attack the grader: each gets what it deserves and touches nothing else.

All of them are marked in one run, beside an honest one, on the small assignment of
`homework_sample`: 4 points for energy, 5 for gram, 6 for centre.
"""

import contextlib
import csv
import json
import os
import re
import shutil
import socket
import threading
import time
from html.parser import HTMLParser
from pathlib import Path

import homework_sample as sample
import psutil
import pytest

from grading import __main__ as command
from grading import seccomp

ROOT = Path(__file__).resolve().parent.parent
LIMITS = {"cell": 1, "call": 1, "total": 20, "memory": 200_000_000, "files": 3000,
          "processes": 40, "disk": 8_388_608, "output": 4_000_000,
          "results": 8_000_000}  # fmt: skip
ENERGY = "def energy(v, mass):\n"
RIGHT = "    return 0.5 * mass * np.sum(v**2)\n"
FULL, WITHOUT = 15, 11  # with and without the points for energy

# What takes the place of the cell for energy, the points it deserves, words of the message
CELLS = {
    "endless-cell": ("while True: pass", WITHOUT, "did not finish within 1 s"),
    "endless-call": (ENERGY + "    while True: pass", WITHOUT, "did not finish within 1 s"),
    "sleeping-error": (
        "class Slow(Exception):\n    def __str__(self):\n        while True: pass\nraise Slow()",
        WITHOUT, "did not finish",
    ),
    "memory-slowly": (
        "hog = []\nwhile True: hog.append(np.ones(1_000_000))", WITHOUT, "more than 190 MB",
    ),
    "memory-at-once": (ENERGY + "    return np.ones(10**11).sum()", WITHOUT, "MemoryError"),
    "memory-in-children": (
        "import os, time\nfor _ in range(8):\n    if os.fork() == 0:\n"
        "        hog = np.ones(20_000_000)\n        time.sleep(60)\ntime.sleep(60)",
        WITHOUT, "PermissionError",
    ),
    "memory-shared": (
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "if libc.shmget(0, 10**9, 0o1600) < 0: print('shmget refused')\n"
        "try: os.memfd_create('x')\nexcept OSError: print('memfd refused')\n" + ENERGY + RIGHT,
        FULL, "right",
    ),
    "fork-bomb": ("import os\nwhile True: os.fork()", WITHOUT, "PermissionError"),
    "fork-bomb-in-shell": (
        "import subprocess\nsubprocess.run(['sh', '-c', 'f() { f | f & }; f; sleep 60'])",
        WITHOUT, "PermissionError",
    ),
    "thread-bomb": (
        "import threading, time\n"
        "while True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        WITHOUT, "can't start new thread",
    ),
    "daemon": (
        "import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        while True: pass\n    os._exit(0)\n" + ENERGY + RIGHT,
        WITHOUT, "PermissionError",
    ),
    "huge-output": ("while True: print('x' * 1000)", WITHOUT, "printed more than"),
    "huge-errors": (ENERGY + "    raise ValueError('x' * 10**7)", WITHOUT, "ValueError"),
    "huge-array": (ENERGY + "    return np.zeros(10**7)", WITHOUT, "too large to be sent"),
    "huge-file": (
        "with open('big', 'wb') as file:\n    while True: file.write(bytes(10**6))",
        WITHOUT, "OSError",
    ),
    "many-files": (
        "n = 0\nwhile True:\n    n += 1\n    open(f'f{n}', 'wb').write(bytes(10**6))",
        WITHOUT, "No space left",
    ),
    "exit": ("import os\nos._exit(0)", WITHOUT, "process ended"),
    "exit-in-call": (ENERGY + "    import os\n    os._exit(0)", WITHOUT, "process ended"),
    "system-exit": ("raise SystemExit(0)", WITHOUT, "SystemExit"),
    "kill-itself": ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", WITHOUT, "ended"),
    "kill-all": ("import os\nos.kill(-1, 9)", WITHOUT, ""),
    "kill-parents": (
        "import os\nfor pid in (1, os.getppid()):\n    os.kill(pid, 9)", WITHOUT, "",
    ),
    "segfault": ("import ctypes\nctypes.string_at(0)", WITHOUT, "process ended"),
    "recursion": (ENERGY + "    return energy(v, mass)", WITHOUT, "RecursionError"),
    "patched-testing": (
        "import numpy.testing, builtins\n"
        "numpy.testing.assert_allclose = np.allclose = np.array_equal = lambda *a, **k: True\n"
        "np.abs = np.max = np.all = lambda *a, **k: 0.0\n"
        "builtins.AssertionError = Warning\nbuiltins.abs = lambda x: 0\n"
        + ENERGY + "    return 0.0",
        WITHOUT, "differs",
    ),
    "patched-builtins": (
        "import builtins, json, os\n"
        "builtins.all = builtins.any = builtins.abs = builtins.round = lambda *a: True\n"
        "builtins.repr = builtins.str = builtins.float = lambda *a: '1.0'\n"
        "json.dumps = json.loads = np.array = np.asarray = lambda *a, **k: None\n"
        "os.write = lambda *a: 1\n" + ENERGY + "    return 0.0",
        WITHOUT, "differs",
    ),
    # With isinstance gone NumPy itself fails: such a cell ruins its author's other functions, too.
    "broken-builtins": (
        "import builtins\nbuiltins.isinstance = builtins.len = builtins.type = lambda *a: True\n"
        + ENERGY + "    return 0.0",
        0, "differs",
    ),
    "no-exceptions": (
        "import sys\nsys.excepthook = sys.settrace = None\nraise BaseException('x')",
        WITHOUT, "BaseException",
    ),
    "reads-files": (
        "import os, sys\nfound, python = [], (sys.prefix, sys.base_prefix, '/proc', '/usr')\n"
        "for top in PLACES:\n    try:\n"
        "        if os.path.isfile(top): found.append(open(top).read())\n"
        "        else: found += [f for f in os.listdir(top) if f not in ('.venv', '.pyenv')]\n"
        "    except OSError: pass\n"
        "for top, folders, files in os.walk('/'):\n"
        "    folders[:] = [f for f in folders if not os.path.join(top, f).startswith(python)]\n"
        "    found += [f for f in files if f in ('master.ipynb', 'CANARY.ipynb', 'grade.py')]\n"
        "print('FOUND', found)\n" + ENERGY + RIGHT,
        FULL, "right",
    ),
    "reads-memory": (
        "import gc, sys\nframe, seen = sys._getframe(), []\nwhile frame:\n"
        "    seen += [str(frame.f_locals), str(frame.f_globals)]\n    frame = frame.f_back\n"
        "seen += [x for x in gc.get_objects() if type(x) is str]\n"
        "print('ANSWERS', any('toler' 'ance' in s and 'draw' '(rng)' in s for s in seen))\n"
        + ENERGY + RIGHT,
        FULL, "right",
    ),
    "writes-outside": (
        "import os\nfor top in PLACES + ['/', '/usr', '/course', '/dev', '/etc', '/proc/sys']:\n"
        "    try:\n        open(os.path.join(top, 'WRITTEN'), 'w').write('x')\n"
        "        print('WROTE', top)\n    except OSError: pass\n" + ENERGY + RIGHT,
        FULL, "right",
    ),
    "deletes": (
        "import shutil\nfor top in PLACES[:4] + ['/course', '/box']:\n"
        "    shutil.rmtree(top, ignore_errors=True)\n" + ENERGY + RIGHT,
        FULL, "right",
    ),
    "socket": (
        "import socket\nsocket.create_connection(('127.0.0.1', PORT), timeout=2)",
        WITHOUT, "Error",
    ),
    "socket-in-call": (
        ENERGY + "    import urllib.request\n"
        "    return float(urllib.request.urlopen('http://127.0.0.1:PORT').read())",
        WITHOUT, "URLError",
    ),
    "namespaces": (
        "import ctypes, os\nlibc = ctypes.CDLL(None)\n"
        "assert libc.unshare(0x10000000) == -1\nprint('unshare refused')\n" + ENERGY + RIGHT,
        FULL, "right",
    ),
    "becomes-root": (
        "import os\nfor act, to in ((os.setuid, 0), (os.setgid, 0), (os.chroot, '/')):\n"
        "    try:\n        act(to)\n        print('BECAME ROOT')\n    except OSError: pass\n"
        "print('capabilities', open('/proc/self/status').read().split('CapEff:')[1].split()[0])\n"
        + ENERGY + RIGHT,
        FULL, "right",
    ),
    "more-limits": (
        "import resource\nresource.setrlimit(resource.RLIMIT_NPROC, (10**6, 10**6))",
        WITHOUT, "ValueError",
    ),
    "pickle-bomb": (
        "class Bomb:\n    def __reduce__(self):\n        import os\n"
        "        return os.system, ('touch CANARY/WRITTEN',)\n" + ENERGY + "    return Bomb()",
        WITHOUT, "an object of type Bomb",
    ),
    "always-equal": (
        "class Yes:\n    __eq__ = __le__ = __ge__ = __lt__ = lambda *a: True\n"
        "    __sub__ = __rsub__ = __abs__ = lambda *a: 0.0\n    __hash__ = None\n"
        + ENERGY + "    return Yes()",
        WITHOUT, "an object of type Yes",
    ),
    "equal-array": (
        "class Yes(np.ndarray):\n    __eq__ = __le__ = lambda *a: True\n"
        "    __sub__ = __rsub__ = lambda *a: 0.0\n"
        + ENERGY + "    return np.zeros(()).view(Yes)",
        WITHOUT, "differs",
    ),
    "liar": (
        "class Liar:\n    def __array__(self, *a, **k):\n        while True: pass\n"
        + ENERGY + "    return Liar()",
        WITHOUT, "did not finish within 1 s",
    ),
    "nan": (ENERGY + "    return np.nan", WITHOUT, "NaN, expected finite"),
    "infinite": (ENERGY + "    return np.inf", WITHOUT, "infinity, expected finite"),
    "none": (ENERGY + "    pass", WITHOUT, "does the function return"),
    "shape": (ENERGY + "    return np.full(2, 0.5 * mass * np.sum(v**2))", WITHOUT,
              "expected a number, got an array of shape (2,)"),
    "complex": (ENERGY + "    return 0.5 * mass * np.sum(v**2) + 1j", WITHOUT,
                "expected real numbers, got complex numbers"),
    "boolean": (ENERGY + "    return True", WITHOUT, "got true or false"),
    "string": (ENERGY + "    return str(0.5 * mass * np.sum(v**2))", WITHOUT, "of type str"),
    "objects": (ENERGY + "    return np.array([v, None, mass], dtype=object)", WITHOUT, "ndarray"),
    "ragged": (ENERGY + "    return [[1.0], [1.0, 2.0]]", WITHOUT, "a tuple of 2"),
    "single": (ENERGY + "    return np.float32(0.5 * mass * np.sum(v**2) + 3e-4)", WITHOUT,
               "single precision"),
    "not-a-function": ("energy = 3", WITHOUT, "TypeError"),
    "closes-all": ("import os\nos.closerange(0, 256)", WITHOUT, "process ended"),
    "forges-results": (
        "import os, json\nfor fd in range(3, 1024):\n    try:\n        for k in range(9):\n"
        "            value = {'kind': 'f', 'dtype': 'f8', 'shape': [], 'values': [1.0]}\n"
        "            line = {'result': k, 'value': value}\n"
        "            os.write(fd, json.dumps({'at': ['call', k]}).encode() + b'\\n')\n"
        "            os.write(fd, json.dumps(line).encode() + b'\\n')\n"
        "    except OSError: pass\nos._exit(0)",
        WITHOUT - 11, "",
    ),
    "forges-setup": (
        "import os\nfor fd in range(3, 1024):\n    try:\n"
        '        os.write(fd, b\'{"at": ["cell", 0]}\\n{"failed": ["cell", 0], "why": ""}\\n\')\n'
        "    except OSError: pass\nos._exit(0)",
        WITHOUT, "process ended",
    ),
    "forges-end": (
        "import os\nfor fd in range(3, 1024):\n    try: os.write(fd, b'{\"done\": true}\\n')\n"
        "    except OSError: pass\nwhile True: pass",
        WITHOUT, "ended the program early",
    ),
    "floods-channel": (
        "import os\nfds = []\nfor fd in range(3, 1024):\n"
        "    try: os.write(fd, b'\\n'); fds.append(fd)\n"
        "    except OSError: pass\n"
        "while True:\n    for fd in fds: os.write(fd, b'[' * 60000)",
        WITHOUT, "of results",
    ),
    "nested-results": (
        "import os\nfor fd in range(3, 1024):\n    try: os.write(fd, b'[' * 50000 + b'\\n')\n"
        "    except OSError: pass\n" + ENERGY + RIGHT,
        FULL, "right",
    ),
    "markup": (
        ENERGY + "    raise ValueError('<script>alert(1)</script>\\x1b[31m\\ud800')",
        WITHOUT, "<script>",
    ),
    "syntax": ("def energy(v, mass) return 1", WITHOUT, "SyntaxError"),
    "surrogates": ("x = '\\ud800'\nprint(x)\n" + ENERGY + RIGHT, WITHOUT, "UnicodeEncodeError"),
    # Memory that no limit on a process counts
    "socket-memory": (
        "import socket\nsocket.socketpair()[0].send(bytes(10**5))", WITHOUT, "PermissionError",
    ),
    "other-sockets": (
        "import socket\nfor family in (socket.AF_UNIX, socket.AF_NETLINK, socket.AF_VSOCK, 38):\n"
        "    try: socket.socket(family, socket.SOCK_DGRAM); print('SOCKET', family)\n"
        "    except OSError: pass\n" + ENERGY + RIGHT,
        FULL, "right",
    ),
    "empty-files": (
        "n = 0\nwhile True:\n    n += 1\n    open(f'f{n}', 'w').close()",
        WITHOUT, "more than 3000 files",
    ),
    "empty-folders-in-shm": (
        "import os\nn = 0\nwhile True:\n    n += 1\n    os.mkdir(f'/dev/shm/{n}')",
        WITHOUT, "more than 3000 files",
    ),
    "shared-pages": (
        "import mmap\nwhile True:\n    kept = mmap.mmap(-1, 10**8)\n    kept[:] = bytes(10**8)",
        WITHOUT, "PermissionError",
    ),
    "file-locks": (
        "import fcntl\nfile, n = open('x', 'w'), 0\n"
        "while True:\n    n += 2\n    fcntl.lockf(file, fcntl.LOCK_EX, 1, n)",
        WITHOUT, "PermissionError",
    ),
    "large-pipes": (
        "import fcntl, os\nfor _ in range(100): fcntl.fcntl(os.pipe()[0], 1031, 1 << 20)",
        WITHOUT, "PermissionError",
    ),
    "terminals": ("import os\nwhile True: os.openpty()", WITHOUT, "Error"),
    # System calls by number: personality, modify_ldt, fanotify_init, mq_open, ptrace, userfaultfd,
    # io_uring_setup, keyctl, timer_create, setns, inotify_init, vmsplice, acct, swapon, reboot
    "odd-calls": (
        "import ctypes\nlibc = ctypes.CDLL(None)\n"
        "for n in (135, 154, 300, 240, 101, 323, 425, 250, 222, 308, 253, 278, 163, 167, 169):\n"
        "    if libc.syscall(n, 0, 0, 0, 0) != -1: print('CALLED', n)\n" + ENERGY + RIGHT,
        FULL, "right",
    ),
    "new-filter": (
        "import ctypes\nlibc = ctypes.CDLL(None)\n"
        "assert libc.prctl(22, 0, 0, 0, 0) == -1 and libc.syscall(317, 1, 0, 0) == -1\n"
        + ENERGY + RIGHT,
        FULL, "right",
    ),
    # The channel
    "forged-done-then-work": (
        "import os\nfor fd in range(3, 1024):\n    try: os.write(fd, b'{\"done\": true}\\n')\n"
        "    except OSError: pass\nhog = []\n"
        "while True:\n    hog.append(np.ones(10**6))\n    for fd in range(3, 20):\n"
        "        try: os.write(fd, b'\\n' * 60000)\n        except OSError: pass",
        WITHOUT, "",
    ),
    "newlines": (
        "import os\nfds = []\nfor fd in range(3, 1024):\n"
        "    try: os.write(fd, b'\\n'); fds.append(fd)\n    except OSError: pass\n"
        "while True:\n    for fd in fds: os.write(fd, b'\\n' * 60000)",
        WITHOUT, "of results",
    ),
    "small-messages": (
        "import os\nfds = []\nfor fd in range(3, 1024):\n"
        "    try: os.write(fd, b'\\n'); fds.append(fd)\n    except OSError: pass\n"
        "while True:\n    for fd in fds: os.write(fd, b'{\"ready\": true}\\n' * 50)",
        WITHOUT, "of results",
    ),
    "forged-steps": (
        "import os\nn = 0\nwhile True:\n    n += 1\n    for fd in range(3, 12):\n"
        "        try: os.write(fd, b'{\"at\": [\"cell\", %d]}\\n' % (100 + n))\n"
        "        except OSError: pass\n    np.linalg.eigvalsh(np.ones((50, 50)))",
        WITHOUT, "",
    ),
    # Hidden inputs must not come back
    "prints-inputs": (
        ENERGY + "    print('INPUTS', v, mass)\n" + RIGHT, FULL, "right",
    ),
    "raises-inputs": (ENERGY + "    raise ValueError(f'INPUTS {v.tolist()}')", WITHOUT, "INPUTS"),
    "reads-the-order": (
        "import gc, sys, os\nframe = sys._getframe()\nwhile frame.f_back: frame = frame.f_back\n"
        "print('ORDER', [k for k in ('argu' 'ments',) if k in str(frame.f_locals)])\n"
        "for fd in range(3, 20):\n    try: os.write(fd, b'{\"ready\": true}\\n')\n"
        "    except OSError: pass\n"
        "import time; time.sleep(0.3)\n"
        "for fd in range(3, 20):\n    try:\n        os.set_blocking(fd, False)\n"
        "        print('STOLEN', os.read(fd, 10**6)[:2000])\n    except OSError: pass\n"
        + ENERGY + RIGHT,
        None, "",  # it steals its own inputs; whether it comes in time is chance
    ),
    "paths-of-the-machine": (
        "for place in ('/proc/1/cmdline', '/proc/self/mountinfo', '/proc/self/mounts',\n"
        "              '/proc/mounts', '/proc/self/cgroup', '/proc/self/task/1/mountinfo'):\n"
        "    try: print('SEEN', place, open(place).read())\n    except OSError: pass\n"
        + ENERGY + RIGHT,
        FULL, "right",
    ),
    # Code that keeps the grader's clock or memory busy in other ways
    "sleeps": (ENERGY + "    import time\n    time.sleep(10**6)", WITHOUT, "did not finish"),
    "many-threads": (
        "import threading\ndef work():\n    while True: np.linalg.eigvalsh(np.ones((200, 200)))\n"
        "for _ in range(20): threading.Thread(target=work, daemon=True).start()\n"
        "import time\ntime.sleep(10**6)", WITHOUT, "did not finish",
    ),
    "deaf": (
        "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass",
        WITHOUT, "did not finish within 1 s",
    ),
    "magic-flood": ("!ls\n" * 3000 + "x = (", WITHOUT, "there is no function"),
    "nested-code": ("x = " + "-" * 200_000 + "1", WITHOUT, ""),
    "nested-results-by-hand": (
        ENERGY + "    part = ()\n    for _ in range(10**5): part = (part,)\n    return part",
        WITHOUT, "",
    ),
    "endless-tuple": (
        "class Long(tuple):\n    def __len__(self): return 2\n"
        "    def __iter__(self):\n        while True: yield 1.0\n"
        + ENERGY + "    return Long()", WITHOUT, "",
    ),
    "lying-list": (
        "class Lie(np.ndarray):\n    def tolist(self): return [float('nan')]\n"
        "    def reshape(self, *a): return self\n" + ENERGY
        + "    return np.zeros(()).view(Lie)", WITHOUT, "differs",
    ),
    "lying-class": (
        "class Lie:\n    __class__ = tuple\n    def __len__(self): return 10**9\n"
        "    def __iter__(self): return iter([1.0])\n" + ENERGY + "    return Lie()",
        WITHOUT, "",
    ),
    "two-cells-of-one-name": ("def energy(v, mass):\n    return 0.0", WITHOUT, "differs"),
    "weird-error": (
        "class Odd(Exception):\n    def __str__(self): return 'x\\n<li>' * 10**6\n"
        "Odd.__name__ = '<img src=x>' * 1000\n" + ENERGY + "    raise Odd",
        WITHOUT, "<img",
    ),
    "replaced-worker": (
        "import sys\nframe = sys._getframe()\nwhile frame.f_back: frame = frame.f_back\n"
        "names = frame.f_globals\nnames['plain'] = lambda *a: {'kind': 'f', 'dtype': 'f8', "
        "'shape': [], 'values': [1.0]}\n" + ENERGY + "    return 0.0",
        0, "differs",
    ),
    "limits-as-root": (
        "import os\nfor act in (lambda: os.nice(-5), lambda: os.setpriority(0, 0, -5),\n"
        "            lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))):\n"
        "    try: act(); print('FASTER')\n    except OSError: pass\n" + ENERGY + RIGHT,
        FULL, "right",
    ),
    "note-flood": (
        "import os\nfor fd in range(3, 256):\n    try:\n        for _ in range(3000):\n"
        "            os.write(fd, b'{\"note\": [\"cell\", 1], \"why\": \"'\n"
        "                     + b'x' * 90 + b'\"}\\n')\n"
        "    except OSError: pass\n" + ENERGY + RIGHT,
        FULL, "left out",
    ),
    "forged-huge-step": (
        "import os\nfor fd in range(3, 256):\n"
        "    try: os.write(fd, b'{\"at\": [\"call\", ' + b'9' * 4000 + b']}\\n')\n"
        "    except OSError: pass\n" + ENERGY + RIGHT,
        0, "",
    ),
    "forged-nonsense": (
        "import os\nfor fd in range(3, 256):\n"
        "    try: os.write(fd, b'{\"result\": NaN, \"value\": 1}\\n'\n"
        "                      b'{\"at\": [\"cell\", 1e400]}\\n'\n"
        "                      b'{\"failed\": null}\\n\\xff\\xfe\\n')\n"
        "    except OSError: pass\n" + ENERGY + RIGHT,
        FULL, "right",
    ),
    "thread-that-forges": (
        "import json, os, threading\ndef work():\n    while True:\n"
        "        for fd in range(3, 60):\n            for k in range(9):\n"
        "                line = json.dumps({'failed': ['call', k], 'why': 'x'}).encode() + b'\\n'\n"
        "                try: os.write(fd, line)\n                except OSError: pass\n"
        "threading.Thread(target=work, daemon=True).start()\n" + ENERGY + RIGHT,
        None, "",
    ),
    "alarm": (
        "import signal\ndef ring(*_): raise KeyError('ring')\n"
        "signal.signal(signal.SIGALRM, ring)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.05, 0.001)\n" + ENERGY + RIGHT,
        None, "",
    ),
    "tracer": (
        "import sys\ndef spy(frame, event, value):\n"
        "    if frame.f_code.co_name == 'energy': frame.f_locals.clear()\n    return spy\n"
        "sys.settrace(spy)\nsys.setprofile(spy)\n" + ENERGY + RIGHT,
        None, "",  # versions of Python differ in what this does
    ),
    "no-names": (ENERGY + RIGHT + "\nglobals().clear()", 0, "no function energy"),
    "no-modules": ("import sys\nsys.modules.clear()\n" + ENERGY + RIGHT, FULL, "right"),
    "closed-output": ("import os\nos.close(1)\nos.close(2)\n" + ENERGY + RIGHT, FULL, "right"),
    "cyclic": (ENERGY + "    x = []\n    x.append(x)\n    return x", WITHOUT, "expected"),
    "structured": (ENERGY + "    return np.zeros(1, dtype=[('a', float)])", WITHOUT, "expected"),
    "too-large-a-number": (ENERGY + "    return 10**400", WITHOUT, "expected"),
    "long-double": (
        ENERGY + "    return np.longdouble(0.5) * mass * np.sum(v**2)", FULL, "right",
    ),
    "two-faced-number": (
        "class F(float):\n    def __array__(self, *a, **k): return np.zeros(3)\n"
        + ENERGY + "    return F(0.5 * mass * np.sum(v**2))",
        FULL, "right",
    ),
    "deep-recursion": (
        "import sys\nsys.setrecursionlimit(10**9)\n" + ENERGY
        + "    f = lambda n: f(n + 1) + 1\n    return f(0)",
        WITHOUT, "",
    ),
    "deep-folders": (
        "import os\nwhile True:\n    os.mkdir('d')\n    os.chdir('d')",
        WITHOUT, "more than 3000 files",
    ),
    "descriptors": (
        "files = []\nwhile True: files.append(open('/dev/null'))", WITHOUT, "Too many open files",
    ),
    "unlinked-files": (
        "import os\nheld = []\nwhile True:\n    f = open('x', 'wb')\n    f.write(bytes(10**6))\n"
        "    f.flush()\n    os.unlink('x')\n    held.append(f)",
        WITHOUT, "No space left",
    ),
    "large-stacks": (
        "import threading, time\nthreading.stack_size(2**31 - 4096)\n"
        "while True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        WITHOUT, "can't start new thread",
    ),
    "slow-in-c": (ENERGY + "    return len(str(9**9**8))", WITHOUT, "did not finish"),
    "slow-pattern": (
        ENERGY + "    import re\n    return re.match('(a+)+$', 'a' * 60 + 'b')",
        WITHOUT, "did not finish",
    ),
}  # fmt: skip

# These wait for a limit on time, as others do that are tried by default: soak only
SLOW = {"sleeping-error", "liar", "deaf", "many-threads", "magic-flood", "endless-tuple",
        "forged-steps", "small-messages", "empty-folders-in-shm", "huge-file",
        "nested-code", "slow-in-c", "slow-pattern"}  # fmt: skip


def hostile_files(folder: Path, outside: Path) -> dict[str, tuple[float, str]]:
    """Submissions that are no notebooks, or odd ones; points and words for each."""
    good = json.dumps(sample.submission())
    cells = sample.submission()["cells"]
    (folder / "truncated.ipynb").write_text(good[: len(good) // 2])
    (folder / "empty.ipynb").write_text("")
    (folder / "malformed.ipynb").write_text("{'cells': [],}")
    (folder / "a-list.ipynb").write_text("[1, 2]")
    (folder / "no-cells.ipynb").write_text('{"nbformat": 4, "cells": 3}')
    (folder / "odd-cells.ipynb").write_text('{"nbformat": 4, "cells": [3]}')
    (folder / "nested.ipynb").write_text("[" * 200_000 + "]" * 200_000)
    (folder / "not-utf8.ipynb").write_bytes(b'{"cells": "\xff\xfe"}')
    (folder / "latin1.ipynb").write_bytes(
        good.replace("½", "é").encode().replace(b"\\u00bd", b"\xe9")
    )
    (folder / "link.ipynb").symlink_to(outside / "CANARY.ipynb")
    (folder / "loop.ipynb").symlink_to(folder / "loop.ipynb")
    (folder / "linked-folder").symlink_to(outside, target_is_directory=True)
    os.mkfifo(folder / "pipe.ipynb")
    (folder / "a-folder.ipynb").mkdir()
    (folder / "in-a-folder").mkdir()
    (folder / "in-a-folder" / f"{sample.NAME}.ipynb").write_text(good)
    (folder / "nothing").mkdir()
    big = sample.submission()
    big["cells"][0] = big["cells"][0] | {"source": "x" * 50_000_000}
    (folder / "big.ipynb").write_text(json.dumps(big))
    other = sample.submission()
    other["metadata"]["ntkcourse"] = {"assignment": "07-other"}
    (folder / "other-assignment.ipynb").write_text(json.dumps(other))
    (folder / "reordered.ipynb").write_text(
        json.dumps(sample.submission() | {"cells": cells[::-1]})
    )
    (folder / "deleted.ipynb").write_text(json.dumps(sample.submission(
        setup=None, task_energy=None, test_gram=None, task_gram_text=None)))  # fmt: skip
    bare = [cell | {"metadata": {}} for cell in cells]
    (folder / "no-metadata.ipynb").write_text(json.dumps(sample.submission() | {"cells": bare}))
    (folder / "=cmd()<b>.ipynb").write_text(good)
    (folder / "notes.txt").write_text("not a submission")
    (folder / "a-notebook-that-is-a-folder" / f"{sample.NAME}.ipynb").mkdir(parents=True)
    (folder / "archive.zip").write_bytes(b"PK")
    (folder / "download").mkdir()
    (folder / "download" / "starter (1).ipynb").write_text(good)
    (folder / "download" / ".ipynb_checkpoints").mkdir()
    (folder / "two-files").mkdir()
    for file in ("a.ipynb", "b.ipynb"):
        (folder / "two-files" / file).write_text(good)
    (folder / "two-sheets").mkdir()
    (folder / "two-sheets" / "starter.ipynb").write_text(good)
    (folder / "two-sheets" / "07-other.ipynb").write_text(json.dumps(other))
    (folder / "x;=1+1;y\u200b\u200f\n.ipynb").write_text(good)
    (folder / os.fsdecode(b"latin-\xe9.ipynb")).write_text(good)
    (folder / "null-bytes.ipynb").write_bytes(bytes(1000))
    (folder / "lists.ipynb").write_text("[" + "[]," * 3_000_000 + "[]]")
    (folder / "huge-number.ipynb").write_text(
        '{"nbformat": 4, "cells": [], "x": ' + "9" * 10**6 + "}"
    )
    many = [{"cell_type": "code", "metadata": {}, "source": f"raise ValueError({n})"}
            for n in range(1500)]  # fmt: skip
    (folder / "many-cells.ipynb").write_text(
        json.dumps(sample.submission() | {"cells": many + cells})
    )
    odd = [cell | {"metadata": [], "source": [*cell["source"]]} for cell in cells]
    (folder / "odd-metadata.ipynb").write_text(
        json.dumps(sample.submission() | {"cells": odd, "metadata": 7})
    )
    (folder / f"{'n' * 249}.ipynb").write_text(good)
    (folder / "bom.ipynb").write_bytes(b"\xef\xbb\xbf" + good.encode())
    (folder / "utf16.ipynb").write_bytes(good.encode("utf-16"))
    (folder / "keys-twice.ipynb").write_text('{"cells": [], ' + good[1:])
    (folder / "link-inside").mkdir()
    (folder / "link-inside" / "starter.ipynb").symlink_to(outside / "CANARY.ipynb")
    with contextlib.chdir(folder), socket.socket(socket.AF_UNIX) as ear:  # its name must be short
        ear.bind("socket-file.ipynb")
    number = [*cells, {"cell_type": "code", "metadata": {}, "source": 3}]
    (folder / "source-number.ipynb").write_text(json.dumps(sample.submission() | {"cells": number}))
    for name in ("@SUM(A1).ipynb", "-2.ipynb", "\t=1.ipynb", "upper.IPYNB"):
        (folder / name).write_text(good)
    return {
        "truncated": (0, "truncated JSON"), "empty": (0, "truncated JSON"),
        "malformed": (0, "broken"), "a-list": (0, "format 4"), "no-cells": (0, "format 4"),
        "odd-cells": (0, "a cell at place 1"), "nested": (0, "nested too deeply"),
        "not-utf8": (0, "UTF-8"), "latin1": (0, "UTF-8"), "link": (0, "symbolic link"),
        "loop": (0, "symbolic link"), "linked-folder": (0, "symbolic link"),
        "pipe": (0, "pipe"), "a-folder.ipynb": (0, "in the folder, got nothing"),
        "in-a-folder": (FULL, ""), "nothing": (0, "in the folder, got nothing"),
        "big": (0, "at most 20 MB"),
        "other-assignment": (0, "of 07-other"), "reordered": (FULL, ""),
        "deleted": (WITHOUT, ""), "no-metadata": (FULL, ""), "=cmd()<b>": (FULL, ""),
        "notes.txt": (0, "got notes.txt"),
        "a-notebook-that-is-a-folder": (0, "got a folder"), "archive.zip": (0, "unpack it"),
        "download": (FULL, ""), "two-files": (0, "got 2: a.ipynb, b.ipynb"),
        "two-sheets": (FULL, ""), "x;=1+1;y\\u200b\\u200f\\n": (FULL, ""),
        "latin-\\xe9": (FULL, ""), "null-bytes": (0, "broken"), "lists": (0, "format 4"),
        "huge-number": (0, "broken"), "many-cells": (FULL, "Cell 1 (“raise ValueError(0)”) raised"),
        "odd-metadata": (FULL, ""), "n" * 249: (FULL, ""), "bom": (FULL, ""),
        "utf16": (0, "UTF-8"), "keys-twice": (FULL, ""), "link-inside": (0, "symbolic link"),
        "socket-file": (0, "No such device"), "source-number": (0, "text in cell"),
        "@SUM(A1)": (FULL, ""), "-2": (FULL, ""), "\\t=1": (FULL, ""), "upper": (FULL, ""),
    }  # fmt: skip


def listing(*folders: Path) -> dict[str, tuple]:
    found = {}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if "__pycache__" not in path.parts:
                status = path.lstat()
                found[str(path)] = (status.st_mode, status.st_size, status.st_mtime_ns)
    return found


@pytest.fixture(scope="module")
def run(request, isolation, tmp_path_factory):
    """Everything that one run over the hostile submissions leaves behind."""
    soak = request.config.option.markexpr == "soak"
    base = tmp_path_factory.mktemp("hostile")
    folder, outside, out, homework = (base / n for n in ("handed-in", "CANARY", "out", "homework"))
    for path in (folder, outside):
        path.mkdir()
    (outside / "CANARY.ipynb").write_text(json.dumps(sample.submission()))
    for path in (base, folder, outside):
        path.chmod(0o777)  # permissions alone must not be what protects it
    sample.write(homework)
    connections = []
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(0.2)
    closing = threading.Event()

    def accept():
        while not closing.is_set():
            try:
                connections.append(server.accept()[1])
            except TimeoutError:
                continue

    thread = threading.Thread(target=accept)
    thread.start()
    places = [folder, outside, out, homework, ROOT, Path.home(), outside / "CANARY.ipynb"]
    places = [str(path) for path in (*places, *(ROOT / n for n in ("tests", "book", "grading")))]
    deserved = hostile_files(folder, outside)
    for name, (source, points, words) in CELLS.items():
        if (name in SLOW) != soak:
            continue
        source = source.replace("PORT", str(server.getsockname()[1]))
        source = source.replace("CANARY/", f"{outside}/").replace("PLACES", repr(places))
        (folder / f"{name}.ipynb").write_text(json.dumps(sample.submission(task_energy=source)))
        deserved[name] = (points, words)
    (folder / "honest.ipynb").write_text(json.dumps(sample.submission()))
    deserved["honest"] = (FULL, "right in all 3 cases")
    before = listing(folder, outside, homework, ROOT / "grading", ROOT / "ntkcourse")
    threads = threading.active_count()
    options = [f"--max-{name}={value}" for name, value in LIMITS.items()]
    start = time.monotonic()
    (base / "seed").write_text("7")
    status = command.main(["grade", str(folder), "--seed", str(base / "seed"),
                           "--assignment", sample.NAME, "--out", str(out),
                           "--homework", str(homework), *options])  # fmt: skip
    seconds = time.monotonic() - start
    closing.set()
    thread.join()
    server.close()
    while threading.active_count() > threads and time.monotonic() < start + seconds + 10:
        time.sleep(0.05)  # the last ones end by themselves, on a busy machine a little later
    left = [p.cmdline() for p in psutil.Process().children(recursive=True) if p.name() == "bwrap"]
    records = {}
    for path in (out / "results").iterdir():
        record = json.loads(path.read_text())
        records[record["student"]] = record
    yield {
        "status": status, "deserved": deserved, "records": records, "left": left, "out": out,
        "connections": connections, "before": before, "seconds": seconds,
        "after": listing(folder, outside, homework, ROOT / "grading", ROOT / "ntkcourse"),
        "threads": threading.active_count() - threads,
    }  # fmt: skip
    shutil.rmtree(base)


NAMES = [*CELLS, "truncated", "empty", "malformed", "a-list", "no-cells", "odd-cells", "nested",
         "not-utf8", "latin1", "link", "loop", "linked-folder", "pipe", "a-folder.ipynb",
         "in-a-folder", "nothing", "big", "other-assignment", "reordered", "deleted",
         "no-metadata", "=cmd()<b>", "notes.txt", "a-notebook-that-is-a-folder", "archive.zip",
         "download", "two-files", "two-sheets", "x;=1+1;y\\u200b\\u200f\\n", "latin-\\xe9",
         "null-bytes", "lists", "huge-number", "many-cells", "odd-metadata", "n" * 249, "bom",
         "utf16", "keys-twice", "link-inside", "socket-file", "source-number", "@SUM(A1)", "-2",
         "\\t=1", "upper", "honest"]  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.soak if n in SLOW else ()) for n in NAMES]
)
def test_each_gets_what_it_deserves_and_a_clear_message(run, name):
    points, words = run["deserved"][name]
    record = run["records"][name]
    said = " ".join([*record["remarks"], record["tasks"][0]["message"]])
    if points is not None:  # None: whether the forgery comes in time is chance
        assert record["score"] == points, said
    assert record["score"] <= FULL
    assert len(said) < 3000
    assert words in said
    assert record["points"] == FULL


def test_nobody_is_forgotten_and_nothing_else_is_marked(run):
    assert set(run["records"]) == set(run["deserved"]) == {*NAMES} - SLOW
    assert run["status"] == 0


def test_no_file_outside_is_touched(run):
    assert run["after"] == run["before"]
    assert not any("WRITTEN" in name for name in run["after"])
    assert "WROTE" not in run["records"]["writes-outside"]["output"]


def test_no_file_with_answers_is_found(run):
    assert "FOUND []" in run["records"]["reads-files"]["output"]
    assert "ANSWERS False" in run["records"]["reads-memory"]["output"]


def test_nothing_reaches_the_network(run):
    assert run["connections"] == []
    assert "SOCKET" not in run["records"]["other-sockets"]["output"]


def test_hidden_inputs_do_not_come_back(run):
    for name in ("prints-inputs", "raises-inputs", "reads-the-order"):
        record = run["records"][name]
        said = json.dumps([record["remarks"], record["tasks"]])
        assert not re.search(r"INPUTS[^,]*\d\.\d", said), said
        assert "INPUTS" not in record["output"]
        assert "arguments" not in record["output"].replace("'arguments'", "")
    assert "ORDER []" in run["records"]["reads-the-order"]["output"]


def test_paths_of_the_machine_and_rights_are_out_of_reach(run):
    assert "SEEN" not in run["records"]["paths-of-the-machine"]["output"]
    assert "FASTER" not in run["records"]["limits-as-root"]["output"]
    if seccomp.program(os.uname().machine):
        assert "CALLED" not in run["records"]["odd-calls"]["output"]


def test_no_process_is_left(run):
    assert run["left"] == []
    assert run["threads"] <= 0  # one of an earlier test may have ended meanwhile


def test_rights_and_namespaces_are_refused(run):
    root = run["records"]["becomes-root"]["output"]
    assert "BECAME ROOT" not in root
    assert "capabilities 0000000000000000" in root
    if seccomp.program(os.uname().machine):
        assert "unshare refused" in run["records"]["namespaces"]["output"]
        for words in ("shmget refused", "memfd refused"):
            assert words in run["records"]["memory-shared"]["output"]


def test_what_the_code_printed_is_shown_in_part_only(run):
    assert 1000 < len(run["records"]["huge-output"]["output"]) < 25_000


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)


def test_reports_are_escaped_and_the_table_has_no_formulas(run):
    pages = list((run["out"] / "reports").iterdir())
    assert len(pages) == len({*NAMES} - SLOW)
    for page in pages:
        assert Tags(page.read_text()).tags.isdisjoint({"script", "b", "img", "a"})
    with (run["out"] / "marks.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(pages)
    assert "'=cmd()<b>" in {row["student"] for row in rows}
    text = (run["out"] / "marks.csv").read_text()
    for separator in ",;|\t":
        for row in csv.reader(text.splitlines(), delimiter=separator):
            assert not any(cell.strip(' "').startswith(("=", "+", "-", "@")) for cell in row), row


def test_one_hostile_student_takes_bounded_time(run):
    assert run["seconds"] < 3 * len(NAMES)
