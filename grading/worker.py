"""The program inside the sandbox: run cells, call functions, send back plain numbers.

It gets one JSON document on standard input and writes JSON lines to the file descriptor named on
its command line. It knows inputs, never answers: whatever the student's code does to this process,
the grader receives numbers and compares them elsewhere. It shares no import with the grader.
"""

import builtins
import json
import linecache
import os
import random
import resource
import sys
import types

import numpy

# The functions below keep these names even when a student's cell replaces len or isinstance.
__builtins__ = dict(vars(builtins))
quoted, to_array, write = json.encoder.encode_basestring_ascii, numpy.array, os.write
seed_numpy, seed_python = numpy.random.seed, super(random.Random, random._inst).seed
my_id, leave, PROCESS = os.getpid, os._exit, os.getpid()
ELEMENTS = 200_000  # an array with more is described, not sent
CHANNEL = int(sys.argv[1])


def say(message: dict) -> None:
    """Send one line to the grader."""
    if my_id() != PROCESS:
        leave(0)  # a copy that a student's cell made of this process; it has nothing to say
    rest = text(message).encode() + b"\n"
    while rest:
        rest = rest[write(CHANNEL, rest) :]


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
    """A number, an array or a tuple of these as lists of numbers; anything else by its name."""
    if isinstance(value, tuple) and depth < 2 and len(value) <= 16:
        return {"tuple": [plain(part, depth + 1) for part in tuple(value)]}
    other = {"other": "None" if value is None else type(value).__name__[:80]}
    if value is None or isinstance(value, str | bytes | dict | set):
        return other
    try:
        array = to_array(value)
    except BaseException:  # a list of lists of different lengths, or an object that fights back
        return other
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


def compiled(source: str, name: str):
    """The code of a cell; lines for IPython (%magic, !command) are left out where they stop it."""
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    try:
        return compile(source, name, "exec")
    except SyntaxError as error:
        lines = source.splitlines()
        for i, line in enumerate(lines):
            bare = line.lstrip()
            if bare.startswith(("%", "!", "?")) or bare.rstrip().endswith("?"):
                lines[i] = line[: len(line) - len(bare)] + "pass"
        try:
            return compile("\n".join(lines), name, "exec")
        except SyntaxError:
            raise error from None


def run_cell(number: int, source: str, names: dict) -> None:
    """Run one cell; an error is reported and the next cell follows."""
    say({"at": ["cell", number]})
    try:
        exec(compiled(source, f"<cell {number}>"), names)
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
    seed(number)
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
    order = json.loads(sys.stdin.buffer.read())
    for name, limit in order["limits"].items():
        resource.setrlimit(getattr(resource, name), (limit, limit))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    stage = types.ModuleType("__main__")
    stage.display, stage.get_ipython = print, lambda: None
    sys.modules["__main__"], sys.argv = stage, [""]
    for number, source in enumerate(order["cells"]):
        if source is not None:
            run_cell(number, source, stage.__dict__)
    for number, call in enumerate(order["calls"]):
        if call is not None:
            run_call(number, call, stage.__dict__)
    say({"done": True})
    leave(0)


main()
