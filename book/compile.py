"""JAX functions as plain JavaScript: a walk over the jaxpr, made when the site is built.

A rule says what *one entry* of a result is, as an expression in entries of the operands. A value
that only one loop reads is never stored: its expression stands inside that loop. What only moves
entries (reshape, transpose, slice, broadcast, ...) changes the index and copies nothing. The
other values are arrays; each is made by a small function, a loop, shared by all equal loops.

Supported: float64, integers of 32 bits, bool; the primitives of ENTRY, REDUCTIONS, VIEWS and
STATEMENTS below; calls (jit, custom derivatives, checkpoint, custom_vmap) are opened. Everything
else, and a constant of more than LARGEST entries, is an error that names function and primitive.
No random numbers: draw them before, and give them to the function.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from ntkcourse.jaxprs import scan_sizes

LARGEST = 4096
"""Entries of a constant that a page may carry."""
RUNTIME = Path(__file__).with_name("runtime.js")


class CompileError(Exception):
    """A function that cannot be compiled; says which, and which primitive or constant is why."""


@dataclass(eq=False)
class Var:
    """A variable of the program: shape, dtype, for a constant its entries, which loops read it."""

    shape: tuple
    dtype: np.dtype
    constant: np.ndarray | None = None
    readers: list = field(default_factory=list)
    """For each time that it is read an object that stands for the loop."""

    def in_one_loop(self) -> bool:
        return len(set(map(id, self.readers))) == 1


@dataclass(eq=False)
class Eqn:
    """One operation: a primitive with operands, results and parameters."""

    name: str
    ins: list[Var]
    outs: list[Var]
    params: dict


class Place(NamedTuple):
    """Where the entries of a value are."""

    at: Callable[[list[str]], str]
    """The JavaScript expression of the entry with an index."""
    base: str | None = None
    """The name of an array with all entries in order, or of the number if the shape is ()."""
    cheap: bool = True
    """Whether an entry may be read often."""
    uniform: bool = False
    """Whether all entries are the same number."""


# From a jaxpr to a list of equations without calls, repetitions and what nobody reads


def opened(program) -> tuple[Jaxpr, list]:
    """A jaxpr and its constants."""
    return (program.jaxpr, program.consts) if isinstance(program, ClosedJaxpr) else (program, [])


def called(eqn) -> Jaxpr | ClosedJaxpr | None:
    """The program that a call (jit, custom_jvp_call, remat, ...) runs with its own operands."""
    if eqn.primitive.name in OWN_PROGRAMS:
        return None
    programs = [p for p in eqn.params.values() if isinstance(p, (Jaxpr, ClosedJaxpr))]
    return next((p for p in programs if len(opened(p)[0].invars) == len(eqn.invars)), None)


def variable(aval) -> Var:
    """A variable with the shape and dtype of an abstract value."""
    return Var(tuple(aval.shape), np.dtype(aval.dtype))


def constant(value, dtype=None) -> Var:
    """A variable that is known."""
    value = np.asarray(value, dtype)
    return Var(value.shape, value.dtype, value)


OWN_PROGRAMS = {"scan", "cond"}
"""Primitives that run a program other than once, with their operands."""
SAME = {"stop_gradient", "copy", "copy_p", "reduce_precision", "optimization_barrier", "pvary"}


class Flat:
    """The equations of a program whose arguments are ``ins``, and its results."""

    def __init__(self, program, ins: list[Var]):
        self.eqns: list[Eqn] = []
        self.seen: dict = {}
        self.outs = self.run(program, ins)
        for var in self.outs:
            var.readers += [object(), object()]  # a result is stored
        self.eqns = [eqn for eqn in reversed(self.eqns) if self.read(eqn)][::-1]

    def read(self, eqn: Eqn) -> bool:
        """Tell the operands which loop reads them; returns whether anybody reads the results."""
        out = eqn.outs[0]
        loop = out.readers[0] if out.in_one_loop() else out
        for var in eqn.ins if any(var.readers for var in eqn.outs) else []:
            same = eqn.name in ENTRY and var.shape == out.shape
            var.readers.append(loop if same else object())
        return any(var.readers for var in eqn.outs)

    def run(self, program, ins: list[Var]) -> list[Var]:
        """Append the equations of ``program``; returns its results."""
        jaxpr, constants = opened(program)
        known = dict(zip(jaxpr.constvars, map(constant, constants), strict=True))
        known |= dict(zip(jaxpr.invars, ins, strict=True))

        def read(atom):
            return constant(atom.val, atom.aval.dtype) if isinstance(atom, Literal) else known[atom]

        for eqn in jaxpr.eqns:
            outs = self.equation(eqn, [read(atom) for atom in eqn.invars])
            known.update(zip(eqn.outvars, outs, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def equation(self, eqn, ins: list[Var]) -> list[Var]:
        name, params = eqn.primitive.name, eqn.params
        if (inner := called(eqn)) is not None:
            return self.run(inner, ins)
        if name in SAME or (name == "convert_element_type" and ins[0].dtype == params["new_dtype"]):
            return ins
        if name == "platform_index":  # a choice between processors: ours is the default one
            choices = params["platforms"]
            default = [k for k, c in enumerate(choices) if c is None or "cpu" in c]
            return [constant(default[0] if default else 0, np.int32)]
        if name == "cond" and ins[0].constant is not None:
            branches = params["branches"]
            return self.run(branches[min(int(ins[0].constant), len(branches) - 1)], ins[1:])
        names = [
            (var.constant.item(), var.dtype)
            if var.constant is not None and var.shape == ()
            else id(var)
            for var in ins
        ]
        key = (name, *names, str(params)) if name not in OWN_PROGRAMS else object()
        if key not in self.seen:
            outs = [variable(v.aval) for v in eqn.outvars]
            self.eqns.append(Eqn(name, ins, outs, params))
            self.seen[key] = outs
        return self.seen[key]


# From equations to JavaScript


def flat(index: list[str], shape) -> str:
    """The position, in order, of the entry with this index."""
    steps = [math.prod(shape[k + 1 :]) for k in range(len(shape))]
    pairs = zip(index, steps, strict=True)
    terms = [i if s == 1 else f"{i}*{s}" for i, s in pairs if i != "0"]
    return "+".join(terms) or "0"


def at_ones(index: list[str], shape) -> list[str]:
    """The index where axes of length 1 have nothing but 0."""
    return ["0" if n == 1 else i for i, n in zip(index, shape, strict=True)]


def number(x) -> str:
    """A number as JavaScript reads it."""
    x = float(x)
    if not math.isfinite(x):
        return "NaN" if math.isnan(x) else "Infinity" if x > 0 else "(-Infinity)"
    text = str(int(x)) if x.is_integer() and 0 < abs(x) < 1e15 else repr(x).removesuffix(".0")
    return f"({text})" if text[0] == "-" else text


def offset(i: str, by: int | str) -> str:
    """An index moved by a number, or by the value of a name."""
    if isinstance(by, str):
        return f"({by}+{i})"
    return i if by == 0 else str(int(i) + by) if i.isdigit() else f"({i}{by:+d})"


ARRAYS = {"f": "Float64Array", "i": "Int32Array", "u": "Int32Array", "b": "Uint8Array"}
NAME = re.compile(r"\b[a-z]_\d+\b")


@dataclass
class Writer:
    """Writes the body of one function; ``lines`` grows, ``places`` says where each value is."""

    name: str
    loops: dict[str, str] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)
    buffers: dict[str, str] = field(default_factory=dict)
    used: Counter = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)
    places: dict[Var, Place] = field(default_factory=dict)
    filled_again: set[str] = field(default_factory=set)
    """Arrays that the next round of a loop, or the next call, overwrites."""
    bound: dict[tuple, str] | None = None
    """Entries that have a name in the loop at hand."""
    count: int = 0

    def fresh(self, kind: str) -> str:
        """A new name: a for arrays, s for numbers, i for indices, r for numbers inside a loop."""
        self.count += 1
        return f"{kind}_{self.count}"

    def fail(self, what: str):
        raise CompileError(f"{self.name}: {what}")

    def array_type(self, var: Var) -> str:
        if var.dtype.kind not in ARRAYS or (var.dtype.kind == "f" and var.dtype.itemsize != 8):
            self.fail(f"expected float64, integers or bool, got {var.dtype} {var.shape}")
        return ARRAYS[var.dtype.kind]

    def place(self, var: Var) -> Place:
        if var not in self.places:
            self.places[var] = self.place_constant(var)
        return self.places[var]

    def place_constant(self, var: Var) -> Place:
        entries = var.constant.ravel()
        if len(texts := set(map(number, entries))) == 1:
            return self.at_number(var, texts.pop())
        if entries.size > LARGEST:
            self.fail(f"a constant of {entries.size} entries, at most {LARGEST} fit on a page")
        text = ",".join(number(e).strip("()") for e in entries.tolist())
        text = f"{self.array_type(var)}.of({text})"
        return self.at_array(var, self.constants.setdefault(text, f"C{len(self.constants)}"))

    def at_array(self, var: Var, name: str) -> Place:
        """The place of a value whose entries are in the array (the number, if it is one)."""
        if var.shape == ():
            return self.at_number(var, name)
        return Place(lambda index: f"{name}[{flat(index, var.shape)}]", name)

    def at_number(self, var: Var, text: str) -> Place:
        """The place of a value whose entries are all this number."""
        return Place(lambda index: text, text if var.shape == () else None, uniform=True)

    def named(self, text: str, kind: str = "s") -> str:
        """A new name for a number."""
        name = self.fresh(kind)
        self.lines.append(f"const {name}={text};")
        return name

    def put(self, values: list[Var], names: list[str]) -> None:
        """Say in which arrays these values are."""
        self.places |= {v: self.at_array(v, name) for v, name in zip(values, names, strict=True)}

    def captured(self, make: Callable[[], str]) -> tuple[str, str]:
        """What ``make`` returns, and before it the lines that it wrote."""
        outside, self.lines, self.bound = (self.lines, self.bound), [], dict(self.bound or {})
        result = make()
        inside = "".join(self.lines)
        self.lines, self.bound = outside
        return inside, result

    def bind(self, text: str) -> str:
        """A name for a number that the expression in hand reads more than once."""
        short = re.fullmatch(r"\w+|\(-[\d.e+-]+\)", text)
        return text if short else self.named(text, "r")

    def lazy(self, var: Var, at: Callable[[list[str]], str], *, cheap: bool = False) -> Place:
        """The place of a value that is not stored; a loop that reads an entry again names it."""

        def once(index):
            if self.bound is None or len(var.readers) == 1:
                return at(index)
            if (var, *index) not in self.bound:
                self.bound[var, *index] = self.bind(at(index))
            return self.bound[var, *index]

        return Place(once, cheap=cheap)

    def heads(self, shape) -> tuple[str, list[str]]:
        """Nested loops over all indices of a shape, and the index."""
        index = [self.fresh("i") if n != 1 else "0" for n in shape]
        text = "".join(
            f"for(let {i}=0;{i}<{n};{i}++)" for i, n in zip(index, shape, strict=True) if n != 1
        )
        return text, index

    def store(self, var: Var) -> str:
        """The name of an array that holds the entries in order, or of the number of shape ()."""
        place = self.place(var)
        if place.base is None:
            self.places[var] = place = self.at_array(var, self.loop(var, place.at))
        return place.base

    def loop(self, var: Var, at: Callable[[list[str]], str]) -> str:
        """Make an array of the entries ``at(index)`` by a function of its own.

        Engines leave very long functions without optimisation, and a shared one is warm sooner.
        """
        heads, index = self.heads(var.shape)
        body, entry = self.captured(lambda: at(index))
        text = f"{body}return {entry};"
        if var.shape:
            text = f"{body}out[k]={entry};".replace(f"[{flat(index, var.shape)}]", "[k]")
            text = f"let k=0;{heads}{{{text}k++;}}return out;"
        names = list(dict.fromkeys(NAME.findall(text)))
        short = {name: f"v{k}" for k, name in enumerate(names)}
        free = [name for name in names if name[0] in "as"]
        text = NAME.sub(lambda match: short[match.group()], text)
        out = [self.buffer(var)] if var.shape else []
        text = f"({','.join(['out'] * len(out) + [short[name] for name in free])}){{{text}}}"
        function = self.loops.setdefault(text, f"loop{len(self.loops)}")
        name = self.fresh("a" if var.shape else "s")
        self.lines.append(f"const {name}={function}({','.join(out + free)});")
        self.filled_again |= {name} if var.shape else set()
        return name

    def kept(self, var: Var) -> str:
        """The entries where the next round of a loop, or the next call, leaves them alone."""
        name = self.store(var)
        return f"{name}.slice()" if name in self.filled_again else name

    def buffer(self, var: Var) -> str:
        """An array that only one place of the program fills, at each call; others share it."""
        kind, size = self.array_type(var), math.prod(var.shape)
        self.used[kind, size] += 1
        name = f"{kind[0]}{size}_{self.used[kind, size]}"
        self.buffers[name] = f"new {kind}({size})"
        return name

    def program(self, program, places: list[Place]) -> list[Var]:
        """Write a jaxpr whose arguments are at these places; returns its results."""
        ins = [variable(v.aval) for v in opened(program)[0].invars]
        self.places |= dict(zip(ins, places, strict=True))
        content = Flat(program, ins)
        for eqn in content.eqns:
            self.equation(eqn)
        return content.outs

    def equation(self, eqn: Eqn) -> None:
        if eqn.name in STATEMENTS:
            STATEMENTS[eqn.name](self, eqn)
        elif eqn.name in VIEWS:
            self.view(eqn)
        elif eqn.name in ENTRY:
            self.entry(eqn)
        elif eqn.name in GATHERED:
            for var in eqn.ins:
                if eqn.name in OFTEN and not self.place(var).cheap:
                    self.store(var)
            ins, out = [self.place(var) for var in eqn.ins], eqn.outs[0]
            at = partial(GATHERED[eqn.name], self, eqn, ins)
            self.places[out] = self.lazy(out, at, cheap=eqn.name == "iota")
            if eqn.name != "iota" and not (is_product(eqn) and out.in_one_loop()):
                self.store(out)
        else:
            self.fail(f"no rule for the primitive {eqn.name}")

    def entry(self, eqn: Eqn) -> None:
        """Each entry comes from the entries of the operands at the same index."""
        out = eqn.outs[0]
        if any(len(var.shape) not in (0, len(out.shape)) for var in eqn.ins):
            self.fail(f"{eqn.name} of shapes {[var.shape for var in eqn.ins]}")
        for var in eqn.ins:  # an axis of length 1 may meet a longer one
            if math.prod(var.shape) < math.prod(out.shape) and not self.place(var).cheap:
                self.store(var)
        ins = [(self.place(var), var.shape) for var in eqn.ins]

        def at(index):
            entries = [p.at(at_ones(index, shape) if shape else []) for p, shape in ins]
            return ENTRY[eqn.name](self, eqn, entries)

        if all(place.uniform for place, _ in ins):
            self.places[out] = self.at_number(out, self.named(at(["0"] * len(out.shape))))
        else:
            self.places[out] = self.lazy(out, at)
            if not out.in_one_loop():
                self.store(out)

    def view(self, eqn: Eqn) -> None:
        """The same entries under another index; copied only where that would compute them twice."""
        source, out = eqn.ins[0], eqn.outs[0]
        place = self.place(source)
        if not place.cheap and math.prod(out.shape) > math.prod(source.shape):
            self.store(source)
            place = self.place(source)
        if place.uniform:
            self.places[out] = self.at_number(out, place.at([]))
            return
        long = [[n for n in var.shape if n != 1] for var in (source, out)]
        if VIEWS[eqn.name] is reshape and long[0] != long[1]:  # all entries in the same order
            self.places[out] = self.at_array(out, self.store(source))
        else:
            at = lambda index: place.at(VIEWS[eqn.name](eqn, index))  # noqa: E731
            self.places[out] = Place(at) if place.cheap else self.lazy(out, at)
        if out.shape == ():
            found = self.places[out]
            one = f"{found.base}[0]" if found.base else found.at([])
            self.places[out] = self.at_number(out, self.named(one))
        elif not out.in_one_loop() and not self.places[out].cheap:
            self.store(out)


# One entry of the result, from the entries of the operands at the same index


def first_true(tests: list[str], cases: list[str]) -> str:
    """The case of the first test that holds, and the last case if none does."""
    return f"({''.join(f'{test}?{case}:' for test, case in zip(tests, cases))}{cases[-1]})"  # noqa: B905


def template(text: str) -> Callable:
    """A rule that puts the operands in place of {0}, {1}, ..."""
    repeated = [k for k in range(3) if text.count(f"{{{k}}}") > 1]

    def rule(w, eqn, ins):
        return text.format(*(w.bind(x) if k in repeated else x for k, x in enumerate(ins)))

    return rule


def convert(w, eqn, ins):
    new, old = np.dtype(eqn.params["new_dtype"]), eqn.ins[0].dtype
    if new.kind == "b":
        return f"({ins[0]}!=0)"
    return f"Math.trunc({ins[0]})" if new.kind in "iu" and old.kind == "f" else f"(+{ins[0]})"


def divide(w, eqn, ins):
    text = f"({ins[0]}/{ins[1]})"
    return f"Math.trunc{text}" if eqn.outs[0].dtype.kind in "iu" else text


def integer_pow(w, eqn, ins):
    y, x = eqn.params["y"], w.bind(ins[0])
    power = f"({'*'.join([x] * abs(y))})" if 0 < abs(y) <= 4 else f"rt.pow({x},{abs(y)})"
    return power if y >= 0 else f"(1/{power})"


def select_n(w, eqn, ins):
    which, *cases = ins
    if len(cases) == 2:
        return f"({which}?{cases[1]}:{cases[0]})"
    which = w.bind(which)
    return first_true([f"{which}=={k}" for k in range(len(cases) - 1)], cases)


def round_(w, eqn, ins):
    if int(eqn.params["rounding_method"]) == 1:
        return f"rt.even({ins[0]})"
    x = w.bind(ins[0])
    return f"(Math.sign({x})*Math.round(Math.abs({x})))"


def not_(w, eqn, ins):
    return f"(!{ins[0]})" if eqn.outs[0].dtype.kind == "b" else f"(~{ins[0]})"


MATH = [
    "sqrt", "exp", "expm1", "log", "log1p", "sin", "cos", "tan", "tanh", "sinh", "cosh", "asin",
    "acos", "atan", "asinh", "acosh", "atanh", "abs", "sign", "floor", "ceil", "cbrt",
]  # fmt: skip
SIGNS = {
    "add": "+", "add_any": "+", "sub": "-", "mul": "*", "rem": "%", "eq": "==", "ne": "!=",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "and": "&", "or": "|", "xor": "^",
}  # fmt: skip
ENTRY = {
    **{name: template(f"Math.{name}({{0}})") for name in MATH},
    **{name: template(f"({{0}}{sign}{{1}})") for name, sign in SIGNS.items()},
    "neg": template("(-{0})"), "square": template("({0}*{0})"),
    "rsqrt": template("(1/Math.sqrt({0}))"), "logistic": template("(1/(1+Math.exp(-{0})))"),
    "is_finite": template("Number.isFinite({0})"), "exp2": template("rt.pow(2,{0})"),
    "erf": template("rt.erf({0})"), "erfc": template("rt.erfc({0})"),
    "pow": template("rt.pow({0},{1})"), "max": template("Math.max({0},{1})"),
    "min": template("Math.min({0},{1})"), "atan2": template("Math.atan2({0},{1})"),
    "clamp": template("Math.min(Math.max({1},{0}),{2})"), "convert_element_type": convert,
    "div": divide, "integer_pow": integer_pow, "select_n": select_n, "round": round_, "not": not_,
}  # fmt: skip


# One entry of the result, from entries of the operands elsewhere


def accumulated(w, shape, start, make):
    """A number that an inner loop over ``shape`` makes; ``make(name, index)`` is its step."""
    heads, index = w.heads(shape)
    total = w.fresh("r")
    body, step = w.captured(lambda: make(total, index))
    w.lines.append(f"let {total}={start};{heads}{{{body}{step};}}")
    return total


REDUCTIONS = {
    "reduce_sum": ("0", "{0}+={1}"), "reduce_prod": ("1", "{0}*={1}"),
    "reduce_max": ("-Infinity", "{0}=Math.max({0},{1})"),
    "reduce_min": ("Infinity", "{0}=Math.min({0},{1})"),
    "reduce_and": ("1", "{0}&={1}"), "reduce_or": ("0", "{0}|={1}"),
}  # fmt: skip


def merged(axes, inner, outer, length) -> list[str]:
    """An index whose entries at ``axes`` are ``inner``, and the others ``outer`` in order."""
    rest, chosen = iter(outer), dict(zip(axes, inner, strict=True))
    return [chosen[d] if d in chosen else next(rest) for d in range(length)]


def reduce(w, eqn, ins, index):
    (start, step), shape, axes = REDUCTIONS[eqn.name], eqn.ins[0].shape, eqn.params["axes"]
    return accumulated(
        w, [shape[d] for d in axes], start,
        lambda total, k: step.format(total, ins[0].at(merged(axes, k, index, len(shape)))),
    )  # fmt: skip


def dot_general(w, eqn, ins, index):
    contracted, batch = eqn.params["dimension_numbers"]
    shapes = [var.shape for var in eqn.ins]
    shared, rest = index[: len(batch[0])], index[len(batch[0]) :]
    cut = len(shapes[0]) - len(batch[0]) - len(contracted[0])
    outer = [rest[:cut], rest[cut:]]

    def step(total, k):
        entries = [
            side.at(merged((*b, *c), (*shared, *k), o, len(s)))
            for side, b, c, o, s in zip(ins, batch, contracted, outer, shapes, strict=True)
        ]
        return f"{total}+={entries[0]}*{entries[1]}"

    return accumulated(w, [shapes[0][d] for d in contracted[0]], "0", step)


def is_product(eqn: Eqn) -> bool:
    """Whether this is a dot_general whose sums have one term."""
    if eqn.name != "dot_general":
        return False
    return all(eqn.ins[0].shape[d] == 1 for d in eqn.params["dimension_numbers"][0][0])


def concatenate(w, eqn, ins, index):
    axis, start, tests, cases = eqn.params["dimension"], 0, [], []
    for var, place in zip(eqn.ins, ins, strict=True):
        moved = [offset(i, -start) if d == axis else i for d, i in enumerate(index)]
        cases.append(place.at(at_ones(moved, var.shape)))
        start += var.shape[axis]
        tests.append(f"{index[axis]}<{start}")
    return first_true(tests[:-1], cases)


def stack(w, eqn, ins, index):
    axis = eqn.params.get("axis", eqn.params.get("dimension"))
    moved = [i for d, i in enumerate(index) if d != axis]
    tests = [f"{index[axis]}=={k}" for k in range(len(ins) - 1)]
    return first_true(tests, [place.at(moved) for place in ins])


def where_all(tests: list[str], case: str, other: str) -> str:
    return f"({'&&'.join(tests)}?{case}:{other})" if tests else case


def pad(w, eqn, ins, index):
    tests, moved = [], []
    for i, (low, high, inside), n in zip(
        index, eqn.params["padding_config"], eqn.ins[0].shape, strict=True
    ):
        k = offset(i, -low)
        tests += [f"{k}>=0", f"{k}<{(n - 1) * (inside + 1) + 1}"] if (low, high) != (0, 0) else []
        tests += [f"{k}%{inside + 1}==0"] if inside else []
        moved.append(f"({k}/{inside + 1})" if inside else k)
    return where_all(tests, ins[0].at(moved), ins[1].at([]))


def clamped(text: str, top: int) -> str:
    return f"Math.min(Math.max({text},0),{top})" if top > 0 else "0"


def dynamic_update_slice(w, eqn, ins, index):
    (old, new), tests, moved = eqn.ins[:2], [], []
    for i, n, m, start in zip(index, old.shape, new.shape, ins[2:], strict=True):
        k = i if n == m else w.bind(f"({i}-{clamped(start.at([]), n - m)})")
        tests += [] if n == m else [f"{k}>=0&&{k}<{m}"]
        moved.append("0" if m == 1 else k)
    return where_all(tests, ins[1].at(moved), ins[0].at(index))


def window(index, length, own, dropped, mapped, start, batched, batches) -> list[str]:
    """The index of the large array, for one of the windows that gather reads or scatter writes.

    Axes ``own`` of the index run inside a window and the others over windows; ``start(batch, j)``
    says where a window begins on the axis ``mapped[j]``; ``dropped`` axes have length 1 in it.
    """
    batch = [i for d, i in enumerate(index) if d not in own]
    outer = {d: batch[b] for d, b in zip(batched, batches, strict=True)}
    starts = {d: start(batch, j) for j, d in enumerate(mapped)}
    inside = iter([index[d] for d in own])
    moved = []
    for d in range(length):
        k = outer[d] if d in outer else "0" if d in dropped else next(inside)
        moved.append(f"({starts[d]}+{k})" if d in starts else k)
    return moved


def gather(w, eqn, ins, index):
    dims, sizes, shape = (
        eqn.params["dimension_numbers"], eqn.params["slice_sizes"], eqn.ins[0].shape
    )  # fmt: skip
    fill, tests = "FILL" in str(eqn.params["mode"]), []

    def start(batch, j):
        d = dims.start_index_map[j]
        at, top = w.bind(ins[1].at([*batch, str(j)])), shape[d] - sizes[d]
        tests.extend([f"{at}>=0&&{at}<={top}"] if fill else [])
        return clamped(at, top)

    moved = window(
        index, len(shape), dims.offset_dims, dims.collapsed_slice_dims, dims.start_index_map, start,
        dims.operand_batching_dims, dims.start_indices_batching_dims,
    )  # fmt: skip
    value = eqn.params["fill_value"]
    other = "NaN" if value is None and eqn.outs[0].dtype.kind == "f" else number(value or 0)
    return where_all(tests, ins[0].at(moved), other)


GATHERED = {
    **dict.fromkeys(REDUCTIONS, reduce), "dot_general": dot_general,
    "concatenate": concatenate, "stack": stack, "pad": pad, "gather": gather,
    "dynamic_update_slice": dynamic_update_slice,
    "iota": lambda w, eqn, ins, index: index[eqn.params["dimension"]],
}  # fmt: skip
OFTEN = {"dot_general", "gather", "dynamic_update_slice"}
"""Rules that read an entry more than once."""


# Views: the index of the operand, for an index of the result


def broadcast_in_dim(eqn, index):
    return at_ones([index[d] for d in eqn.params["broadcast_dimensions"]], eqn.ins[0].shape)


def reshape(eqn, index):  # only axes of length 1 come and go
    long = iter([i for i, n in zip(index, eqn.outs[0].shape, strict=True) if n != 1])
    return ["0" if n == 1 else next(long) for n in eqn.ins[0].shape]


def transpose(eqn, index):
    order = eqn.params["permutation"]
    return [index[order.index(d)] for d in range(len(order))]


def rev(eqn, index):
    dims, shape = eqn.params["dimensions"], eqn.ins[0].shape
    return [f"({shape[d] - 1}-{i})" if d in dims else i for d, i in enumerate(index)]


def slice_(eqn, index):
    starts = eqn.params["start_indices"]
    steps = eqn.params["strides"] or (1,) * len(starts)
    scaled = [i if s == 1 or i == "0" else f"({i}*{s})" for i, s in zip(index, steps, strict=True)]
    return [offset(i, start) for i, start in zip(scaled, starts, strict=True)]


VIEWS = {
    "broadcast_in_dim": broadcast_in_dim, "reshape": reshape, "squeeze": reshape,
    "expand_dims": reshape, "transpose": transpose, "rev": rev, "slice": slice_,
}  # fmt: skip


# Statements: loops, branches, several results, and what the runtime does


def split(w, eqn):
    axis, start = eqn.params["axis"], 0
    for out in eqn.outs:
        starts = [start if d == axis else 0 for d in range(len(out.shape))]
        w.view(Eqn("slice", eqn.ins, [out], {"start_indices": starts, "strides": None}))
        start += out.shape[axis]


def dynamic_slice(w, eqn):
    (source, *at), sizes, starts = eqn.ins, eqn.params["slice_sizes"], []
    for var, n, m in zip(at, source.shape, sizes, strict=True):
        starts.append(w.named(clamped(w.place(var).at([]), n - m)))
    w.view(Eqn("slice", [source], eqn.outs, {"start_indices": starts, "strides": None}))


def scatter(w, eqn):
    dims, (old, where, new), out = eqn.params["dimension_numbers"], eqn.ins, eqn.outs[0]
    dropped, clip = dims.inserted_window_dims, "CLIP" in str(eqn.params["mode"])
    whole = [d for d in range(len(old.shape)) if d not in (*dropped, *dims.operand_batching_dims)]
    sizes = dict(zip(whole, (new.shape[d] for d in dims.update_window_dims), strict=True))
    name, source, at = w.fresh("a"), w.store(old), w.place(new).at
    w.lines.append(f"const {name}={source}.slice();")
    heads, index = w.heads(new.shape)

    def start(batch, j):
        d, k = dims.scatter_dims_to_operand_dims[j], w.place(where).at([*batch, str(j)])
        return clamped(k, old.shape[d] - sizes.get(d, 1)) if clip else k

    moved = window(
        index, len(old.shape), dims.update_window_dims, dropped, dims.scatter_dims_to_operand_dims,
        start, dims.operand_batching_dims, dims.scatter_indices_batching_dims,
    )  # fmt: skip
    tests = [f"{moved[d]}>=0&&{moved[d]}<{old.shape[d]}" for d in dims.scatter_dims_to_operand_dims]
    sign = {"scatter": "=", "scatter-add": "+=", "scatter_add": "+="}[eqn.name]
    target = f"{name}[{flat(moved, old.shape)}]"
    w.lines.append(f"{heads}if({'&&'.join(tests) or 1}){target}{sign}{at(index)};")
    w.put([out], [name])


def carried(w, values: list[Var]) -> list[str]:
    """Variables for the state of a loop, with the first values."""
    names = [w.fresh("a" if var.shape else "s") for var in values]
    for name, var in zip(names, values, strict=True):
        first = w.store(var)
        w.lines.append(f"let {name}={first};")
        w.filled_again |= {name} if first in w.filled_again else set()
    return names


def assign(w, names: list[str], values: list[Var]) -> None:
    """All variables get their new values at once."""
    texts = [w.kept(var) for var in values]
    pairs = [(name, text) for name, text in zip(names, texts, strict=True) if name != text]
    between = [w.fresh("s") for _ in pairs]
    w.lines += [f"const {b}={text};" for b, (_, text) in zip(between, pairs, strict=True)]
    w.lines += [f"{name}={b};" for b, (name, _) in zip(between, pairs, strict=True)]


def scan(w, eqn):
    p = eqn.params
    axes = [[len(var.shape) for var in side] for side in (eqn.ins, eqn.outs)]
    cut, count = scan_sizes(p["jaxpr"].jaxpr, *axes)
    fixed, state, length = eqn.ins[:cut], eqn.ins[cut : cut + count], p["length"]
    for var in eqn.ins:
        w.store(var)
    names, rows = carried(w, state), eqn.outs[count:]
    stores = [w.fresh("a") for _ in rows]
    for name, var in zip(stores, rows, strict=True):
        w.lines.append(f"const {name}=new {w.array_type(var)}({math.prod(var.shape)});")
    t = w.fresh("s")
    back = f"for(let {t}={length - 1};{t}>=0;{t}--){{"
    w.lines.append(back if p["reverse"] else f"for(let {t}=0;{t}<{length};{t}++){{")
    given = []
    for var in eqn.ins[cut + count :]:
        source = w.place(var)
        given.append(Place(lambda index, at=source.at: at([t, *index])))
        if len(var.shape) == 1:
            given[-1] = w.at_number(Var((), var.dtype), w.named(source.at([t])))
    inside = [*map(w.place, fixed), *map(w.at_array, state, names), *given]
    outs = w.program(p["jaxpr"], inside)
    for name, var in zip(stores, outs[count:], strict=True):
        value = w.store(var)
        set_row = f"{name}.set({value},{t}*{math.prod(var.shape)});"
        w.lines.append(set_row if var.shape else f"{name}[{t}]={value};")
    assign(w, names, outs[:count])
    w.lines.append("}")
    w.put(eqn.outs, [*names, *stores])


def cond(w, eqn):
    which, *arguments = [w.store(var) for var in eqn.ins]
    places = [w.at_array(v, name) for v, name in zip(eqn.ins[1:], arguments, strict=True)]
    names = [w.fresh("a" if var.shape else "s") for var in eqn.outs]
    w.lines.append(f"let {','.join(names)};")
    for k, branch in enumerate(eqn.params["branches"]):
        last = k == len(eqn.params["branches"]) - 1
        w.lines.append(("else " if k else "") + ("{" if last else f"if({which}<={k}){{"))
        assign(w, names, w.program(branch, places))
        w.lines.append("}")
    w.put(eqn.outs, names)


def runtime(call: str, options: Callable = lambda w, eqn: []) -> Callable:
    """A call of the runtime with arrays, each followed by its shape."""

    def write(w, eqn):
        given = [f"{w.store(var)},{json.dumps(var.shape)}" for var in eqn.ins]
        names = [w.fresh("a") for _ in eqn.outs]
        text = ",".join([*given, *options(w, eqn)])
        w.lines.append(f"const [{','.join(names)}]=rt.{call}({text});")
        w.put(eqn.outs, names)

    return write


def solve_options(w, eqn):
    keys = ("left_side", "lower", "transpose_a", "unit_diagonal")
    return [json.dumps(bool(eqn.params[key])) for key in keys]


STATEMENTS = {
    "split": split, "dynamic_slice": dynamic_slice, "scatter": scatter, "scatter-add": scatter,
    "scatter_add": scatter, "scan": scan, "cond": cond, "eigh": runtime("eigh"),
    "cholesky": runtime("cholesky"), "triangular_solve": runtime("solve", solve_options),
}  # fmt: skip


# Functions and scripts


def script(functions: dict[str, tuple[Callable, dict]], name: str) -> str:
    """A classic script that sets ``ntkcourse[name]`` to an object of functions.

    A function takes arrays and numbers by keyword, like its entry ``{argument: shape}``, and
    returns a dictionary of arrays; in JavaScript both are objects.
    """
    loops, constants, buffers, parts = {}, {}, {}, []
    for key, (function, shapes) in functions.items():
        w = Writer(f"{name}.{key}", loops, constants, buffers)
        arguments = {k: jax.ShapeDtypeStruct(shape, float) for k, shape in shapes.items()}
        program, out = jax.make_jaxpr(function, return_shape=True)(arguments)
        ins = [variable(v.aval) for v in program.jaxpr.invars]
        names = [w.fresh("a" if var.shape else "s") for var in ins]
        outs = w.program(program, [*map(w.at_array, ins, names)])
        given = ",".join(f"{k}:{n}" for k, n in zip(sorted(arguments), names, strict=True))
        made = ",".join(f"{k}:{w.kept(v)}" for k, v in zip(sorted(out), outs, strict=True))
        body = "\n".join(w.lines)
        parts.append(f"live.{key}=({{{given}}})=>{{\n{body}\nreturn {{{made}}};}};\n")
    head = "".join(f"const {n}={text};\n" for text, n in constants.items())
    head += "".join(f"const {n}={text};\n" for n, text in buffers.items())
    head += "".join(f"function {n}{text}\n" for text, n in loops.items())
    target = f"((globalThis.ntkcourse??={{}})[{json.dumps(name)}]={{}})"
    head = f"{runtime_text()}const live={target};\n{head}"
    return f"'use strict';(()=>{{\n{head}{''.join(parts)}}})();\n"


def runtime_text() -> str:
    """The runtime, with values of erf and coefficients of erfc that SciPy finds for it."""
    from numpy.polynomial import chebyshev
    from scipy.special import erf, erfcx

    # x in [0, inf) as z in [-1, 1)
    series = chebyshev.chebinterpolate(lambda z: erfcx(3.75 * (1 + z) / (1 - z)), 30)
    text = RUNTIME.read_text().replace("[/* erfcx */]", json.dumps(series.tolist()))
    return text.replace("[/* erf */]", json.dumps(erf(np.arange(49) / 8).tolist()))
