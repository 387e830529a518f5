"""Compare what a student's function returned with what the solution returns.

Both come as plain lists with a shape. A list, a tuple and an array with the same numbers are equal
here, as they are to the public checks. The message says what is wrong in kind, never the answer,
and too coarsely to find the answer by trying.
"""

import numpy as np

KINDS = {"b": "true or false", "i": "whole numbers", "u": "whole numbers", "f": "real numbers",
         "c": "complex numbers"}  # fmt: skip

ACCEPTED = {"b": "b", "i": "iuf", "u": "iuf", "f": "iuf", "c": "iufc"}
SINGLE = 1e-5  # what single precision is asked for; NumPy's isclose asks for no more


class MalformedError(ValueError):
    """A message that is not a value."""


def difference(expected: dict, got: dict, tolerance: float) -> str | None:
    """None if the values agree, else a sentence about how they differ."""
    if "tuple" in expected:
        parts, own = expected["tuple"], _parts(got)
        if own is None or len(own) != len(parts):
            return f"expected {described(expected)}, got {described(got)}"
        for number, (one, other) in enumerate(zip(parts, own, strict=True), start=1):
            if message := difference(one, other, tolerance):
                return f"part {number} of the result: {message}"
        return None
    got = _joined(got)
    if "values" in got and _long(got["shape"]) == _long(expected["shape"]):
        got = got | {"shape": expected["shape"]}  # axes of length one are a matter of taste
    if "values" not in got or got["shape"] != expected["shape"]:
        return f"expected {described(expected)}, got {described(got)}"
    right, ours = array(expected), array(got)
    if got["kind"] == "c" != expected["kind"] and (np.abs(ours.imag) <= tolerance).all():
        got, ours = got | {"kind": "f"}, ours.real
    if got["kind"] not in ACCEPTED[expected["kind"]]:
        return f"expected {KINDS[expected['kind']]}, got {KINDS[got['kind']]}"
    for name, bad in (
        ("NaN", np.isnan(ours) & ~np.isnan(right)),
        ("infinity", np.isinf(ours) & np.isfinite(right)),
    ):
        if bad.any():
            return f"{name}{_place(bad)}, expected finite numbers"
    return _coarse(right, ours, tolerance, single=got["dtype"] in ("f2", "f4"))


def _long(shape: list[int]) -> list[int]:
    return [length for length in shape if length != 1]


def _parts(value: dict) -> list[dict] | None:
    """The parts of a tuple, or the rows of an array in its place."""
    if "tuple" in value:
        return value["tuple"]
    if "values" not in value or not value["shape"]:
        return None
    count, *shape = value["shape"]
    rows = np.split(np.array(value["values"]), count) if 0 < count <= 16 else []
    return [value | {"shape": shape, "values": row.tolist()} for row in rows]


def _joined(value: dict) -> dict:
    """A tuple of arrays of one shape as the array that NumPy makes of it."""
    parts = [_joined(part) for part in value.get("tuple", ())]
    shapes = {tuple(part["shape"]) if "values" in part else None for part in parts}
    if len(shapes) != 1 or None in shapes:
        return value
    kind = max((part["kind"] for part in parts), key="biufc".index)
    if kind == "c" and len({part["kind"] for part in parts}) > 1:
        return value
    numbers = [number for part in parts for number in part["values"]]
    return {"kind": kind, "dtype": max(part["dtype"] for part in parts),
            "shape": [len(parts), *parts[0]["shape"]], "values": numbers}  # fmt: skip


@np.errstate(all="ignore")  # numbers near the largest one are somebody's choice
def _coarse(right: np.ndarray, ours: np.ndarray, tolerance: float, single: bool) -> str | None:
    asked = max(tolerance, SINGLE) if single else tolerance
    gap = np.abs(ours - right) / (1 + np.abs(right))
    if (gap <= asked).all():
        return None
    place, worst = _place(gap == gap.max()), gap.max()
    size = np.abs(right).max()
    if np.allclose(ours, -right, atol=1e-6 * size):
        return "has the wrong sign"
    if size > 0 and worst > 1e-3 and right.size > 1:
        factor = np.vdot(right, ours) / np.vdot(right, right)
        if abs(factor) > 1e-3 and np.allclose(ours, factor * right, atol=1e-6 * size):
            return "differs by a factor, the same for all entries"
    if worst <= 1e-4:
        hint = "; it has single precision, was jax_enable_x64 switched off?" if single else ""
        return f"differs in the last digits{place}, {asked:g} is asked{hint}"
    return f"differs by {'less' if worst <= 0.01 else 'more'} than one per cent{place}"


def _place(where: np.ndarray) -> str:
    index = np.argwhere(where)[0]
    if index.size == 0:
        return ""
    return (
        f" at index {index[0]}" if index.size == 1 else f" at index ({', '.join(map(str, index))})"
    )


def described(value: dict) -> str:
    """A value in kind: "an array of shape (6, 6)"."""
    if "tuple" in value:
        return f"a tuple of {len(value['tuple'])}"
    if "other" in value:
        none = "nothing (None); does the function return its result?"
        return none if value["other"] == "None" else f"an object of type {value['other']}"
    if not value["shape"]:
        return "a number"
    return f"an array of shape {tuple(value['shape'])}"


def array(value: dict) -> np.ndarray:
    """The numbers of a checked value."""
    flat = np.array(value["values"], dtype=float)
    flat = flat.view(complex) if value["kind"] == "c" else flat
    return flat.reshape(value["shape"])


def finite(value: dict) -> bool:
    """Whether a checked value consists of finite numbers."""
    if "tuple" in value:
        return all(finite(part) for part in value["tuple"])
    return "values" in value and bool(np.isfinite(array(value)).all())


def checked(value, depth: int = 0) -> dict:
    """A value as the worker sends it, every part of it of the promised kind."""
    match value:
        case {"tuple": list(parts)} if depth < 3 and len(parts) <= 16:
            return {"tuple": [checked(part, depth + 1) for part in parts]}
        case {"other": str(name)}:
            return {"other": name[:120]}
        case {"kind": str(kind), "dtype": str(dtype), "shape": list(shape), "values": list(values)}:
            if (
                kind not in KINDS
                or len(shape) > 16
                or not all(type(n) is int and n >= 0 for n in shape)
            ):
                raise MalformedError("expected a kind and a shape of whole numbers")
            clean = {"kind": kind, "dtype": dtype[:20], "shape": shape, "values": values}
            if not {type(n) for n in values} <= {int, float, bool}:
                raise MalformedError("expected numbers only")
            try:
                array(clean)
            except (ValueError, OverflowError, TypeError) as error:
                raise MalformedError(f"expected numbers that fill the shape: {error}") from error
            return clean
    raise MalformedError("expected a number, an array or a tuple of these")


def sendable(argument):
    """An argument for the worker: a number or string as it is, an array as lists."""
    if isinstance(argument, np.generic):
        argument = argument.item()
    if isinstance(argument, bool | int | float | str):
        return argument
    if not isinstance(argument, np.ndarray) or argument.dtype.kind not in KINDS:
        raise TypeError(
            f"expected numbers, strings and numeric arrays from draw, got {type(argument).__name__}"
        )
    flat = argument.reshape(-1)
    values = flat.astype(complex).view(float) if argument.dtype.kind == "c" else flat
    return {"kind": argument.dtype.kind, "dtype": argument.dtype.str,
            "shape": list(argument.shape), "values": values.tolist()}  # fmt: skip
