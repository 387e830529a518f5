"""The program inside the sandbox: run cells, call functions, send back plain numbers.

It gets JSON lines on standard input, first the cells and, when these have run, the calls, and
writes JSON lines to the file descriptor named on its command line. It knows inputs, never answers:
whatever the student's code does to this process, the grader receives numbers and compares them
elsewhere. It shares no import with the grader.
"""

import builtins
import ctypes
import json
import linecache
import os
import random
import re
import resource
import struct
import sys
import types
from itertools import islice

import numpy

# The functions below keep these names even when a student's cell replaces len or isinstance.
__builtins__ = dict(vars(builtins))
quoted, to_array, write = json.encoder.encode_basestring_ascii, numpy.array, os.write
seed_numpy, seed_python = numpy.random.seed, super(random.Random, random._inst).seed
scan, my_id, leave, PROCESS = json.JSONDecoder().scan_once, os.getpid, os._exit, os.getpid()
ELEMENTS = 200_000  # an array with more is described, not sent
CHANNEL: list[int] = []

# Rights of Landlock: to read a file and list a folder; to change files; what only files have
READ, CHANGE, FILES = 0x4 | 0x8, 0x2 | 0x10 | 0x20 | 0x80 | 0x100 | 0x2000 | 0x4000, 0xC007


def confine(rules: dict, system_calls: str) -> None:
    """Give up files outside the two lists, then all system calls that the filter does not name."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(38, 1, 0, 0, 0)  # no new privileges
    version = libc.syscall(444, None, 0, 1)
    if version > 0 and rules:
        known = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)) - 1
        handled = struct.pack("QQQ", known, 3, 3)[: 8 * (1 + (version > 3) + (version > 5))]
        ruleset = libc.syscall(444, handled, len(handled), 0)
        for rights, places in ((READ, rules["read"]), (READ | CHANGE, rules["write"])):
            for place in places:
                if not os.path.exists(place):
                    continue
                handle = os.open(place, os.O_PATH)
                allowed = rights & known & (-1 if os.path.isdir(place) else FILES)
                libc.syscall(445, ruleset, 1, struct.pack("=Qi", allowed, handle), 0)
                os.close(handle)
        if ruleset < 0 or libc.syscall(446, ruleset, 0):
            raise OSError(ctypes.get_errno(), "Landlock")
        os.close(ruleset)
    if system_calls:
        code = ctypes.create_string_buffer(bytes.fromhex(system_calls))
        steps = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(code))
        if libc.prctl(22, 2, steps, 0, 0):
            raise OSError(ctypes.get_errno(), "seccomp")


def say(message: dict) -> None:
    """Send one line to the grader."""
    if my_id() != PROCESS:
        leave(0)  # a copy that a student's cell made of this process; it has nothing to say
    rest = text(message).encode() + b"\n"
    while rest:
        rest = rest[write(CHANNEL[0], rest) :]


def text(value) -> str:
    """JSON by hand: json.dumps would use whatever a student put in place of isinstance."""
    if type(value) is dict:
        return "{" + ",".join([quoted(key) + ":" + text(part) for key, part in value.items()]) + "}"
    if type(value) is list:
        return "[" + ",".join([text(part) for part in value]) + "]"
    if type(value) is str:
        return quoted(value)
    if type(value) is bool:
        return "true" if value else "false"
    written = repr(value)
    return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(written, written)


def plain(value, depth: int = 0) -> dict:
    """A number, an array, or several of these; anything else by its name."""
    if hasattr(value, "__next__"):
        value = tuple(islice(value, 17))
    parts = isinstance(value, tuple | list) and depth < 2 and len(value) <= 16
    if parts and isinstance(value, tuple):
        return {"tuple": [plain(part, depth + 1) for part in tuple(value)]}
    other = {"other": "None" if value is None else type(value).__name__[:80]}
    if value is None or isinstance(value, str | bytes | dict | set):
        return other
    try:
        array = to_array(value)
        if array.dtype.kind == "O":
            array = to_array(array.tolist(), dtype=float)
    except BaseException:  # lists of different lengths, or an object that fights back
        return {"tuple": [plain(part, depth + 1) for part in list(value)]} if parts else other
    if type(array) is not numpy.ndarray or array.dtype.kind not in "biufc":
        return other
    shape, kind = list(array.shape), array.dtype.kind
    if array.size > ELEMENTS:
        return {"other": f"array of shape {tuple(shape)}, too large to be sent"}
    flat = array.reshape(-1)
    if kind == "c":
        flat = flat.astype("c16").view("f8")
    elif kind == "f":
        flat = flat.astype("f8")
    return {
        "kind": kind,
        "dtype": kind + repr(array.dtype.itemsize),
        "shape": shape,
        "values": flat.tolist(),
    }


def argument(value):
    """What the grader sent: a number, a string, or an array."""
    if not isinstance(value, dict):
        return value
    if value["kind"] == "c":
        flat = to_array(value["values"], dtype="f8").view("c16")
    else:
        flat = to_array(value["values"], dtype=value["dtype"])
    return flat.reshape(value["shape"])


def why(error: BaseException) -> str:
    """The name of an error, its text and the line of the student's cell where it arose."""
    try:
        said = str(error)
    except BaseException:
        said = ""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith("<cell"):
            line = trace.tb_lineno
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and type(error.lineno) is int:
        line, said = error.lineno, str(error.msg)
    start = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return (f"{start[:500]} (line {line} of the cell)" if line else start[:500]).strip()


def compiled(source: str, name: str) -> tuple:
    """The code of a cell without the lines for IPython that stop it, and these lines."""
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    lines, left = source.split("\n"), []
    first = source.lstrip().split("\n")[0]
    if first.startswith("%%"):
        if first[2:].split()[:1] not in (["time"], ["timeit"], ["capture"], ["prun"]):
            return compile("", name, "exec"), [first]
        lines[lines.index(first)] = ""
    while True:
        try:
            return compile("\n".join(lines), name, "exec"), left
        except SyntaxError as error:
            at = (error.lineno or 0) - 1
            line = lines[at] if 0 <= at < len(lines) else ""
            found = re.match(r"(\s*)([\w, ]+=\s*)?(%time(?:it)?\s+)?(.*)", line)
            indent, target, timed, rest = found.groups(default="")
            if timed:
                lines[at] = indent + target + rest
            elif rest.startswith(("%", "!", "?")) or line.rstrip().endswith("?"):
                lines[at] = indent + (target + "[]" if target else "pass")
                left.append(line.strip())
            else:
                raise


def run_cell(number: int, source: str, names: dict) -> None:
    """Run one cell; an error is reported and the next cell follows."""
    say({"at": ["cell", number]})
    try:
        code, left = compiled(source, f"<cell {number}>")
        for line in left[:5]:
            say({"note": ["cell", number], "why": line[:100]})
        exec(code, names)
    except BaseException as error:
        say({"failed": ["cell", number], "why": why(error)})


def seed(number: int) -> None:
    """Make what the function draws at random reproducible."""
    try:
        seed_numpy(number)
        seed_python(number)
    except BaseException:  # NumPy needed a builtin that the student's cell had broken
        return


def run_call(number: int, call: dict, names: dict) -> None:
    """Call one function with fresh arguments and send what it returns."""
    say({"at": ["call", number]})
    seed(call["seed"])
    try:
        function = names.get(call["function"])
        if function is None:
            say({"failed": ["call", number], "why": f"there is no function {call['function']}"})
            return
        value = plain(function(*[argument(part) for part in call["arguments"]]))
    except BaseException as error:
        say({"failed": ["call", number], "why": why(error)})
        return
    say({"result": number, "value": value})


def main() -> None:
    """Read the order, give up what is not needed, run."""
    CHANNEL.append(int(sys.argv[1]))
    orders = os.fdopen(os.dup(0), "rb")
    order, _ = scan(orders.readline().decode(), 0)
    for name, limit in order["limits"].items():
        resource.setrlimit(getattr(resource, name), (limit, limit))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    confine(order["files"], order["filter"])
    stage = types.ModuleType("__main__")
    stage.display, stage.get_ipython = print, lambda: None
    sys.modules["__main__"], sys.argv = stage, [""]
    for number, source in enumerate(order["cells"]):
        if source is not None:
            run_cell(number, source, stage.__dict__)
    say({"ready": True})
    calls, _ = scan(orders.readline().decode(), 0)
    for number, call in enumerate(calls):
        if call is not None:
            run_call(number, call, stage.__dict__)
    say({"done": True})
    leave(0)


if __name__ == "__main__":
    main()
