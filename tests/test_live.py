"""Live figures: every rule of the compiler alone, every program in a browser, figures by hand."""

import importlib.util
import sys
from functools import lru_cache
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from test_site import ROOT

import book.compile as compiler
from book.live import SOURCES, Inline, cached, policy, programs, script
from ntkcourse import figures, live, transport

pytestmark = pytest.mark.browser


@pytest.fixture(autouse=True)
def plain(user):
    """JAX and the package as the build and a notebook have them."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture
def tab(browser):
    faults = []
    page = browser.new_page()
    page.on("pageerror", lambda error: faults.append(str(error)))
    yield page
    page.close()
    assert faults == []


# Rules alone

EDGES = np.array(
    [0.0, -0.0, 1.0, -1.0, 0.3, -0.7, 0.5, -0.5, 1.5, -1.5, 2.5, 3.7, -4.2, 1e-9, 9.0, -30.0,
     np.inf, -np.inf, np.nan]
)  # fmt: skip
A = np.linspace(-1.3, 2.1, 24).reshape(2, 3, 4) ** 3
V = np.array([0.3, -1.2, 2.2, 0.3, np.inf, -0.4])
M = np.array([[4.0, 1.0, 0.2], [1.0, 3.0, -0.5], [0.2, -0.5, 2.0]])
SMALL = EDGES[:16]
PAIRS = {"x": np.repeat(EDGES, len(EDGES)), "y": np.tile(EDGES, len(EDGES))}


def each(names, given=EDGES):
    return {name: (getattr(lax, name), {"x": given}) for name in names.split()}


def two(names, given=PAIRS):
    return {name: (getattr(lax, name), given) for name in names.split()}


def whole(f):
    """The function of integers made from floats, back as floats."""

    def g(x, y):
        result = f(x.astype(int), y.astype(int))
        return result.astype(float)

    return g


INTEGERS = {"x": np.array([7.0, -7.0, 0.0, 5.0, -3.0]), "y": np.array([2.0, 2.0, 3.0, -3.0, -2.0])}
GATHER = lax.GatherDimensionNumbers(
    offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,)
)


def scanned(x, reverse=False):
    return lax.scan(lambda c, row: (c * 0.5 + row, (jnp.sum(c), c + 1)), x[0], x, reverse=reverse)


def branched(x):
    branches = [lambda v: v + 1, lambda v: v * 2, lambda v: -v]
    return [lax.switch(jnp.sum(x[:1]).astype(int) + k, branches, x) for k in (-3, 0, 1, 2, 9)]


CASES = {
    **each("sqrt exp expm1 log log1p tanh sinh cosh abs sign floor ceil cbrt neg square rsqrt"
           " logistic exp2 erf erfc asinh acosh is_finite"),
    **each("sin cos tan asin acos atan atanh", SMALL),
    "erf_fine": (lax.erf, {"x": np.linspace(-7, 7, 400)}),
    "erfc_fine": (lax.erfc, {"x": np.linspace(-7, 25, 400)}),
    "round": (lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO), {"x": EDGES}),
    "round_even": (lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), {"x": EDGES}),
    **two("add sub mul div max min pow eq ne lt le gt ge"),
    "rem": (lax.rem, {"x": PAIRS["x"][:300], "y": PAIRS["y"][:300]}),
    "atan2": (lax.atan2, {"x": np.repeat(SMALL, 16), "y": np.tile(SMALL, 16)}),
    "integer_div": (whole(lax.div), INTEGERS), "integer_rem": (whole(lax.rem), INTEGERS),
    "bits": (whole(lambda x, y: ((x & y) | (x ^ 5)) + ~y), INTEGERS),
    "logic": (lambda x, y: ((x > 0) & ~(y > 1)) | ((x < 0) ^ (y < 0)), PAIRS),
    **{f"integer_pow_{y}".replace("-", "m"): (lambda x, y=y: lax.integer_pow(x, y), {"x": EDGES})
       for y in (-3, -1, 0, 2, 3, 4, 7)},
    "clamp": (lambda x: lax.clamp(-0.5, x, 1.2), {"x": EDGES}),
    "select": (lambda x: jnp.where(x > 0, x, 7.0), {"x": EDGES}),
    "select_many": (
        lambda x: lax.select_n(jnp.clip(x, 0, 2).astype(jnp.int32), x, 2 * x, 3 * x), {"x": SMALL}
    ),
    "convert": (lambda x: (x.astype(int), (x != 0).astype(float), x.astype(bool)), {"x": SMALL}),
    "reused": (lambda x: (jnp.exp(x) + 1) * jnp.exp(x) - jnp.sum(jnp.exp(x)), {"x": V[:4]}),
    # read twice by one loop, by two, in a sum, across a broadcast
    "shared": (
        lambda x: (jnp.sum((e := jnp.exp(x)) * e + e, 1), jnp.sin(e) + e[:1] * e, e[0, 0] + x),
        {"x": A},
    ),
    "shared_row": (
        lambda x: jnp.sum((x[:, None] / 3 < x[None] * 2) * (x / 7)[:, None], 0), {"x": V[:4]}
    ),
    "outer": (lambda x: (s := jnp.outer(x, x + 1) + x) * jnp.sin(s) @ x, {"x": V[:4]}),
    "not_a_number": (
        lambda x: jnp.where(x > 0, jnp.nan, x) + jnp.array([0.0, -0.0, jnp.nan, 1]), {"x": V[:4]}
    ),
    "uniform": (lambda x: jnp.full((3, 2), x[1] * 2 + 1).T * 3, {"x": V}),
    "one_meets_many": (lambda x: lax.add_p.bind(x, 2 * x), {"x": A}),
    "scalars": (lambda s: (s * 2 + 1, jnp.sin(s), s > 0), {"s": np.array(0.4)}),
    # sums and products
    **{f"reduce_{name}": (lambda x, f=f: (f(x), f(x, axis=0), f(x, axis=(0, 2))), {"x": A})
       for name, f in {"sum": jnp.sum, "prod": jnp.prod, "max": jnp.max, "min": jnp.min}.items()},
    "reduce_logic": (lambda x: (jnp.all(x > 0, 1), jnp.any(x > 0, 2), jnp.all(x < 99)), {"x": A}),
    "reduce_nan": (lambda x: (jnp.max(x), jnp.sum(x), jnp.min(x[:17])), {"x": EDGES}),
    "reduce_lazy": (lambda x: jnp.sum(jnp.exp(x) * x, axis=1), {"x": A}),
    "dot": (lambda x: (x[0] @ x[1].T, x[0] @ x[1, 0], x[0, 0] @ x[1, 2]), {"x": A}),
    "dot_batch": (lambda x: jnp.einsum("bij,bkj->bki", x, jnp.sin(x)), {"x": A}),
    "dot_two_axes": (lambda x: jnp.einsum("bij,cij->bc", x, x + 1), {"x": A}),
    "dot_middle": (lambda x: jnp.einsum("bij,bik->jk", x, x), {"x": A}),
    # moving entries
    "reshape": (lambda x: (x.reshape(4, 6) * 1, x.reshape(-1), x[None, :, :, :, None]), {"x": A}),
    "reshape_moved": (lambda x: x.transpose(2, 0, 1).reshape(8, 3) + 0, {"x": A}),
    "transpose": (lambda x: (x.transpose(2, 0, 1), jnp.sum(x.transpose(1, 2, 0), 0)), {"x": A}),
    "broadcast": (lambda x: jnp.exp(x[:, :1]) + x[0, 0][None, None] * jnp.ones(x.shape), {"x": A}),
    "broadcast_out": (lambda x: jnp.broadcast_to(x[:, None], (6, 2)), {"x": V}),
    "slice": (lambda x: x[1:, 0:3:2, 1:4] * 2, {"x": A}),
    "reverse": (lambda x: (x[:, ::-1], jnp.flip(x, (0, 2))), {"x": A}),
    "squeeze": (lambda x: jnp.squeeze(x[:, 1:2], 1), {"x": A}),
    "concatenate": (lambda x: jnp.concatenate([x[:, :1], x, 2 * x[:, 1:]], axis=1), {"x": A}),
    "concatenate_flat": (lambda x: jnp.concatenate([x[:1], x, x[:2]]), {"x": V}),
    "stack": (lambda x: (jnp.stack([x, x + 1, -x], -1), jnp.stack([x, 2 * x])), {"x": V}),
    "pad": (lambda x: lax.pad(x, 9.0, [(1, 2, 0), (0, 1, 2), (-1, 0, 0)]), {"x": A}),
    "split": (lambda x: jnp.split(x, [1, 3], axis=2), {"x": A}),
    "iota": (lambda x: jnp.arange(6) * x + lax.iota(float, 6), {"x": V}),
    "eye": (lambda x: jnp.eye(6) * x[None] + jnp.tri(6), {"x": A[0, 0].repeat(2)[:6]}),
    "dynamic_slice": (
        lambda x, s: [
            lax.dynamic_slice(x, (k, 0, s.astype(int)), (1, 2, 3))
            for k in (-5, 0, 1, 9)
        ],
        {"x": A, "s": np.array(1.0)},
    ),
    "dynamic_update": (
        lambda x, s: [lax.dynamic_update_slice(x, x[:1, :2] * 9, (k, s.astype(int), 0))
                      for k in (-4, 0, 1, 7)],
        {"x": A, "s": np.array(1.0)},
    ),
    "index": (lambda x, s: (x[s.astype(int)], x[:, s.astype(int)]), {"x": A, "s": np.array(1.0)}),
    "gather": (
        lambda x: [lax.gather(x, jnp.array([[2], [-1], [9], [0]]), GATHER, (1, 4), mode=mode)
                   for mode in ("clip", "fill")],
        {"x": A[0]},
    ),
    "gather_rows": (
        lambda x: jax.vmap(lambda r: r[jnp.sum(r > 0) - 1])(x), {"x": A[0]}
    ),
    "take": (
        lambda x: jnp.take_along_axis(x, jnp.arange(12).reshape(3, 4) * 7 % 4, axis=1), {"x": A[1]}
    ),
    "scatter": (
        lambda x: (x.at[1].set(5.0), x.at[jnp.array([0, 2, 0])].add(x[:1]), x.at[:, 2].add(1.0),
                   x.at[jnp.array([7])].set(1.0, mode="drop"),
                   x.at[jnp.array([-2, 9])].add(x[:2], mode="clip"),
                   lax.dynamic_update_slice(x, x[:2], (jnp.sum(x > 9).astype(int) + 2, 0))),
        {"x": A[0]},
    ),
    # loops and branches
    "scan": (scanned, {"x": A[0]}), "scan_reverse": (lambda x: scanned(x, True), {"x": A[0]}),
    "scan_numbers": (lambda x: lax.scan(lambda c, r: (c + r, c * r), 0.5, x[:4]), {"x": V}),
    "kept": (
        lambda x: lax.scan(
            lambda c, k: ((lax.cond(k < 2, lambda v: v[0] + 1, lambda v: v[1], c), c[0] * 2), c),
            (x, -x), jnp.arange(4),
        ),
        {"x": V[:4]},
    ),
    "kept_first": (  # the state of a loop of no rounds, inside another one
        lambda x: lax.scan(
            lambda c, k: (
                (lax.scan(lambda s, _: (s + k, None), c[0] * 0.5, length=0)[0], c[0] + c[1]), c
            ),
            (x, x), jnp.arange(4) - 1.0,
        ),
        {"x": V[:4]},
    ),
    "fori": (lambda x: lax.fori_loop(0, 3, lambda k, v: v * 0.5 + k, x), {"x": V}),
    "cond": (branched, {"x": V}),
    "derivative": (lambda x: jax.grad(lambda v: jnp.sum(jnp.tanh(v @ v.T) ** 2))(x), {"x": A[0]}),
    "calls": (lambda x: jax.jit(jax.checkpoint(jax.nn.relu))(x) + jax.nn.relu(x), {"x": SMALL}),
    "copied": (lambda x: lax.stop_gradient(x) + jnp.copy(x), {"x": V}),
    "hyperbolic": (lambda x: jnp.arctan2(x, 2.0) + jnp.hypot(x, 1.0), {"x": SMALL}),
    # matrices
    "eigh": (lambda x: jnp.linalg.eigvalsh(x), {"x": M}),
    "eigh_equal": (lambda x: jnp.linalg.eigvalsh(jnp.eye(3) * x[0, 0]), {"x": M}),
    "eigh_function": (
        lambda x: jnp.einsum("bij,bj,bkj->bik", *((v := jnp.linalg.eigh(x))[1], v[0] ** 3, v[1])),
        {"x": np.stack([M, np.ones((3, 3)), np.diag([1.0, 1.0, 1e-9])])},
    ),
    "cholesky": (lambda x: jnp.linalg.cholesky(x), {"x": np.stack([M, M @ M])}),
    "cholesky_none": (lambda x: jnp.linalg.cholesky(x - 5 * jnp.eye(3)), {"x": M}),
    "solve": (
        lambda x: [lax.linalg.triangular_solve(
            x, jnp.sin(x[:, :2] if left else x[:2]), left_side=left, lower=low,
            transpose_a=turned, unit_diagonal=unit)
            for left, low, turned, unit in product([True, False], repeat=4)],
        {"x": M},
    ),
}  # fmt: skip
TOLERANCE = 2e-13
"""Relative; functions of two libraries may differ in the last digits, here at most a few units."""


def named(f):
    """The function of a dictionary, with results in a dictionary."""

    def g(given):
        results = jax.tree.leaves(f(**given))
        return {f"r{k}": result for k, result in enumerate(results)}

    return g


def functions(cases):
    return {
        name: (named(f), {k: np.shape(v) for k, v in given.items()})
        for name, (f, given) in cases.items()
    }


RUN = """(calls) => calls.map(([set, name, given]) => {
    const inputs = {};
    for (const [key, [value, shape]] of Object.entries(given))
        inputs[key] = shape.length ? Float64Array.from(value) : value[0];
    const made = ntkcourse[set][name](inputs);
    return Object.fromEntries(Object.entries(made).map(
        ([key, v]) => [key, typeof v === "object" ? Array.from(v) : [Number(v)]]));
})"""


def compute(tab, calls):
    """What JavaScript makes of [(set, function, inputs), ...]."""
    packed = [
        [group, name, {k: [np.ravel(v).tolist(), np.shape(v)] for k, v in given.items()}]
        for group, name, given in calls
    ]
    return tab.evaluate(RUN, packed)


@lru_cache
def expected():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return {
            name: {k: np.asarray(v, float) for k, v in named(f)(_arrays(given)).items()}
            for name, (f, given) in CASES.items()
        }


def _arrays(given):
    return {k: jnp.asarray(v) for k, v in given.items()}


def wrong(made):
    """The cases whose results differ from JAX's."""
    return [
        name
        for name, results in zip(CASES, made, strict=True)
        if not all(
            np.allclose(np.asarray(results[k], float), v.ravel(), TOLERANCE, 1e-15, equal_nan=True)
            for k, v in expected()[name].items()
        )
    ]


def run_rules(tab, module):
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        text = module.script(functions(CASES), "rules")
    tab.add_script_tag(content=text)
    return compute(tab, [("rules", name, given) for name, (_, given) in CASES.items()])


def test_every_rule_gives_what_jax_gives(tab):
    assert wrong(run_rules(tab, compiler)) == []


def test_every_rule_stands_in_some_case():
    seen = set()

    def walk(program):
        ins = [compiler.variable(v.aval) for v in compiler.opened(program)[0].invars]
        for eqn in compiler.Flat(program, ins).eqns:
            seen.add(eqn.name)
            for p in eqn.params.values():
                for q in p if isinstance(p, (tuple, list)) else [p]:
                    if isinstance(q, (compiler.Jaxpr, compiler.ClosedJaxpr)):
                        walk(q)

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for f, given in CASES.values():
            walk(jax.make_jaxpr(named(f))(_arrays(given)))
    rules = {*compiler.ENTRY, *compiler.GATHERED, *compiler.VIEWS, *compiler.STATEMENTS}
    other_names = {"scatter_add", "expand_dims", "add_any", "stack"}  # of other versions
    assert rules - seen <= other_names


@pytest.mark.parametrize(
    ("f", "words"),
    [
        (lambda i: {"r": jnp.fft.fft(i["x"]).real}, r"demo\.see: no rule for the primitive fft"),
        (lambda i: {"r": i["x"] + np.arange(5000.0)[:6]}, ""),
        (lambda i: {"r": jnp.sum(i["x"]) + jnp.sin(np.arange(5000.0))}, "constant of 5000 entries"),
        (lambda i: {"r": i["x"].astype(jnp.float32)}, "expected float64"),
        (lambda i: {"r": jax.random.normal(jax.random.key(0), (2,)) + i["x"][:2]}, "random|key|u"),
    ],
)
def test_what_cannot_be_compiled_is_named(f, words):
    def compiled():
        return compiler.script({"see": (f, {"x": (6,)})}, "demo")

    if not words:
        assert "demo" in compiled()
        return
    with pytest.raises((compiler.CompileError, TypeError), match=words):
        compiled()


def test_a_program_is_made_again_only_when_a_source_changed(tmp_path):
    source, made = tmp_path / "a.py", []

    def make():
        made.append(1)
        return f"text {len(made)}"

    source.write_text("1")
    assert [cached(tmp_path, "x", [source], make) for _ in range(2)] == ["text 1"] * 2
    source.write_text("2")
    assert cached(tmp_path, "x", [source], make) == "text 2"
    assert len(list(tmp_path.glob("*.js"))) == 1


# Faults planted in the compiler

FAULTS = {
    "compile.py": [
        ('"sub": "-"', '"sub": "+"'),
        ('"le": "<="', '"le": "<"'),
        ('"max": template("Math.max', '"max": template("Math.min'),
        ('"rsqrt": template("(1/Math', '"rsqrt": template("(Math'),
        ('return f"({which}?{cases[1]}:{cases[0]})"', 'return f"({which}?{cases[0]}:{cases[1]})"'),
        ("power if y >= 0", "power if y >= -1"),
        ('"reduce_max": ("-Infinity"', '"reduce_max": ("0"'),
        ('"reduce_prod": ("1"', '"reduce_prod": ("0"'),
        ("math.prod(shape[k + 1 :])", "math.prod(shape[:k])"),
        ("index[order.index(d)]", "index[order[d]]"),
        ('f"({shape[d] - 1}-{i})"', 'f"({shape[d]}-{i})"'),
        ("i if s == 1 or", "i if s >= 1 or"),
        ('else f"({i}{by:+d})"', 'else f"({i}+{by})"'.replace("+{by}", "{-by:+d}")),
        ("start += var.shape[axis]", "start += 1"),
        ("w.bind(ins[1].at([*batch, str(j)]))", "w.bind(ins[1].at([*batch, '0']))+'*0'"),
        ("(n - 1) * (inside + 1) + 1", "n"),
        ('"scatter-add": "+="', '"scatter-add": "="'),
        ("back if p[\"reverse\"] else", "back if not p[\"reverse\"] else"),
        ("clamped(w.place(var).at([]), n - m)", "w.place(var).at([])"),
        ('if({which}<={k})', 'if({which}=={k})'),
        ("for b, (name, _) in zip(between, pairs", "for b, (name, _) in zip(between[::-1], pairs"),
        ("rest[:cut], rest[cut:]", "rest[cut:], rest[:cut]"),
        ('f"Math.trunc{text}" if', 'f"Math.floor{text}" if'),
        ("key = (name, *names, str(params))", "key = (name, *names)"),
        ('["0" if n == 1 else i for i, n in', '[i for i, n in'),
        ("set(map(number, entries))) == 1", "set(map(number, entries[:1]))) == 1"),
        ("if int(eqn.params[\"rounding_method\"]) == 1", "if True"),
        ("if place.uniform:\n", "if place.cheap:\n"),
        ("{name}.slice()", "{name}"),
        ("{name} if first in w.filled_again else set()", "set()"),
        ("self.lines, self.bound = outside", "self.lines = outside[0]"),
        ("self.bound[var, *index]", "self.bound[var, *index[1:]]"),
        ("(var, *index) not in", "(var, *index[1:]) not in"),
        ("self.used[kind, size] += 1", "self.used[kind, size] = 1"),
    ],
    "runtime.js": [
        ("x === 1 || (x === -1", "(x === -1"),
        ("x + 6755399441055744 - 6755399441055744", "Math.round(x)"),
        ("a[i * n + i] - a[j * n + j]", "a[j * n + j] - a[i * n + i]"),
        ("a[i] = c * x - s * y", "a[i] = c * x + s * y"),
        ("if (i === j && !(s > 0)) return", "if (false) return"),
        ("unit ? s :", "!unit ? s :"),
        ("lower !== (transposed === left)", "lower"),
        ("let k = 11; k >= 0", "let k = 6; k >= 0"),
        ("2 - rt.erfc(-x)", "1 - rt.erfc(-x)"),
    ],
}  # fmt: skip


def faulty(file, old, new, folder):
    """The compiler with one fault; programs are traced once for all of them."""
    text = {
        "compile.py": (ROOT / "book/compile.py").read_text(),
        "runtime.js": (ROOT / "book/runtime.js").read_text(),
    }
    assert old in text[file], f"{old} is not in {file} any more"
    text[file] = text[file].replace(old, new)
    (folder / "runtime.js").write_text(text["runtime.js"])
    (folder / "planted.py").write_text(text["compile.py"])
    spec = importlib.util.spec_from_file_location("planted", folder / "planted.py")
    sys.modules["planted"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@lru_cache
def traced(name):
    f, given = CASES[name]
    return jax.make_jaxpr(named(f), return_shape=True)(_arrays(given))


EVERY = [(file, *fault) for file, faults in FAULTS.items() for fault in faults]
SOME = EVERY[::6]  # the others are soaked


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [pytest.param(*f, marks=() if f in SOME else pytest.mark.soak) for f in EVERY],
)
def test_a_fault_in_the_compiler_is_caught(browser, monkeypatch, tmp_path, file, old, new):
    module = faulty(file, old, new, tmp_path)
    names = iter(CASES)
    monkeypatch.setattr(jax, "make_jaxpr", lambda f, **_: lambda _: traced(next(names)))
    page = browser.new_page()
    try:
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            made = run_rules(page, module)
    except Exception as error:  # a program that does not run is noticed as well
        print(error)
    else:
        assert wrong(made) != []
    finally:
        page.close()


# Every program of every figure

FIGURES = live.figures()
SLIDERS = ("start", "low", "high")
POINTS = {
    "start": None,
    "equal": [(0.4, 1.0), (0.4, -1.0), (0.4, 0.5)],
    "opposite": [(0.3, 1.0), (0.3 - np.pi, -1.0)],
    "close": [(0.3, 1.0), (0.3 + 1e-6, -1.0), (1.3, 0.2)],
    "one": [(0.5, -0.5)],
    "empty": [],
    "random": np.random.default_rng(0).uniform(-1.5, 1.5, (12, 2)).tolist(),
}


def settings(figure):
    """Sessions with ordinary and awkward choices of sliders and data."""
    for end, points in product(SLIDERS, POINTS if figure.points else ["start"]):
        session = live.Session(figure)
        if POINTS[points] is not None:
            session.points = POINTS[points]
        for name, control in figure.controls.items():
            if isinstance(control, live.Slider) and end != "start":
                session.chosen[name] = control.values[0 if end == "low" else -1]
        yield f"{end}, {points}", session


def turned(values):
    """The same data in another order: rounding errors are others, and nothing else."""
    return {
        k: np.flip(v, [d for d, n in enumerate(np.shape(v)) if n == live.PLACES])
        for k, v in values.items()
    }


def rounds(figure, run):
    """Inputs and results of all programs of a figure, as a page would call them."""
    for words, session in settings(figure):
        given = session.inputs() | session.state
        for kind in run:
            for _ in range(2 if kind == "step" else 1):
                made = run[kind](given)
                other = turned(run[kind](turned(given)))
                yield f"{kind}: {words}", kind, given, made, other
                if kind == "step":
                    given = given | {k: np.asarray(made[k]) for k in session.state}
            if kind == "see":
                given = given | {k: np.asarray(v) for k, v in made.items()}


def check_programs(tab, name, choices):
    figure = FIGURES[name]
    chosen = [
        words for words in product(*choices_of(figure)) if choices is None or words == choices
    ]
    functions = {
        k: f
        for k, f in programs(figure).items()
        if tuple(k.split("_")[1:]) in {tuple(map(str, words)) for words in chosen}
    }
    tab.add_script_tag(content=compiler.script(functions, name))
    calls, references = [], []
    for words in chosen:
        keys = {kind: "_".join([kind, *map(str, words)]) for kind in ("see", "step", "look")}
        run = {kind: jax.jit(functions[k][0]) for kind, k in keys.items() if k in functions}
        for says, kind, given, made, other in rounds(figure, run):
            shapes = functions[keys[kind]][1]
            calls.append((name, keys[kind], {k: given[k] for k in shapes}))
            references.append((f"{keys[kind]}: {says}", made, other))
    for (says, made, other), results in zip(references, compute(tab, calls), strict=True):
        for k, v in made.items():
            v, got, again = np.ravel(v), np.asarray(results[k], float), np.ravel(other[k])
            assert np.all(np.isfinite(v)), f"{says}: {k} is not finite in JAX"
            if k == "spread":  # the root of a variance, which at 0 magnifies rounding without limit
                v, got, again = v**2, got**2, again**2
            # what conditioning allows: a multiple of what a new order of the data changes
            bound = 1e-10 * (1 + np.max(np.abs(v))) + 100 * np.max(np.abs(v - again))
            assert np.max(np.abs(v - got)) <= bound, f"{says}: {k}"


def choices_of(figure):
    return [c.values for c in figure.controls.values() if isinstance(c, live.Choice)]


@pytest.mark.parametrize("name", FIGURES)
def test_a_program_gives_what_jax_gives(tab, name):
    check_programs(tab, name, tuple(values[0] for values in choices_of(FIGURES[name])))


@pytest.mark.soak
@pytest.mark.parametrize("name", FIGURES)
def test_every_choice_gives_what_jax_gives(tab, name):
    check_programs(tab, name, None)


def test_displacement_is_the_geodesic_of_the_package():
    session = live.Session(FIGURES["mf-geodesic"])
    from ntkcourse import live_particles

    i = {k: jnp.asarray(v) for k, v in session.inputs().items()}
    level = (jnp.arange(live_particles.HILLS) + 0.5) / live_particles.HILLS
    clouds = [live_particles._quantiles(i, side, level) for side in (i["y"] < 0, i["y"] >= 0)]
    middle = transport.geodesic(clouds[0][::-1][:, None], clouds[1][:, None], i["t"])
    z = jnp.linspace(*live_particles.PLAIN, live_particles.GRID)
    made = session.results(1)
    np.testing.assert_allclose(made["moved"], live_particles._density(middle[:, 0], z), atol=1e-9)
    distance = transport.wasserstein2(clouds[0][:, None], clouds[1][:, None])
    np.testing.assert_allclose(made["distance"], distance, rtol=1e-9)


# The figures in a browser, under a strict policy

STRICT = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src data:"


@lru_cache
def stored(name):
    """A figure as a notebook stores it, with a picture that costs nothing."""
    return live.markup(name, FIGURES[name], b"png", (600, 300))


@lru_cache
def program(name):
    return cached(ROOT / ".cache/live", name, SOURCES, lambda: script(name))


@pytest.fixture
def show(browser):
    """Open a page with one live figure; at the end it may have left no fault."""
    faults, contexts = [], []

    def open_figure(name, **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: faults.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        address = f'data-live="{name}" data-program="{name}.js"'
        body = stored(name).replace(f'data-live="{name}"', address)
        files = {
            "": f'<html lang="en"><title>t</title><link rel="icon" href="data:,">'
            f'<link rel="stylesheet" href="book.css"><body><div class="bd-content">{body}</div>'
            '<script src="live.js"></script></body></html>',
            "live.js": (ROOT / "book/static/live.js").read_text(),
            "book.css": (ROOT / "book/static/book.css").read_text(),
            f"{name}.js": program(name),
        }
        kinds = {"js": "text/javascript", "css": "text/css"}

        def answer(route):
            path = route.request.url.split("/")[-1]
            kind = kinds.get(path.split(".")[-1], "text/html")
            headers = {"content-security-policy": STRICT, "content-type": f"{kind}; charset=utf-8"}
            route.fulfill(body=files[path], headers=headers)

        page.route("**/*", answer)
        page.goto("http://live.test/")
        rest(page)
        return page

    yield open_figure
    for context in contexts:
        context.close()
    assert faults == []


def rest(page):
    """Wait until the figure has computed what it has to."""
    page.wait_for_function(
        "() => { const l = document.querySelector('figure.live').live;"
        " return l.programs && !l.asked && !l.dirty && !l.chasing; }"
    )


def results(page):
    made = page.evaluate(
        "() => Object.fromEntries("
        "Object.entries(document.querySelector('figure.live').live.results)"
        ".map(([k, v]) => [k, typeof v === 'object' ? Array.from(v) : [Number(v)]]))"
    )
    return {k: np.asarray(v, float) for k, v in made.items()}


@pytest.mark.parametrize("name", FIGURES)
def test_the_page_shows_what_python_shows(show, name):
    page, session = show(name), live.Session(FIGURES[name])
    # a flow opens before its first step
    found = session.results(live.FRAMES if FIGURES[name].time else 0)
    for k, v in results(page).items():
        np.testing.assert_allclose(v, np.ravel(found[k]), rtol=1e-6, atol=1e-6, err_msg=k)
    paths = page.eval_on_selector_all(
        ".live-stage path", "all => all.map(p => p.getAttribute('d'))"
    )
    assert all(d and "NaN" not in d for d in paths)
    assert page.locator("img").is_hidden()
    assert "–" not in page.locator("figcaption").inner_text()
    page.emulate_media(media="print")
    assert page.locator("img").is_visible()
    assert page.locator(".live-body").is_hidden()


def mean(page):
    return page.locator(".kind-line.look-kernel path").get_attribute("d")


def test_a_point_follows_mouse_and_keys(show):
    page = show("welcome")
    before, handle = mean(page), page.locator(".handle").nth(2)
    box = handle.locator(".datum").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 20, y - 60, steps=4)
    page.wait_for_function(
        "before => document.querySelector("
        "'.kind-line.look-kernel path').getAttribute('d') !== before",
        arg=before,
    )
    page.mouse.up()
    box = handle.locator(".datum").bounding_box()
    assert abs(box["x"] + box["width"] / 2 - x - 20) < 1
    assert abs(box["y"] + box["height"] / 2 - y + 60) < 1
    said = handle.get_attribute("aria-valuetext")
    handle.press("ArrowUp")
    handle.press("Shift+ArrowLeft")
    assert handle.get_attribute("aria-valuetext") != said
    rest(page)
    assert results(page)["mean"].shape == (97,)
    page.wait_for_function("() => document.querySelector('.live-voice').textContent.length > 9")


def test_points_are_added_and_removed(show):
    page = show("ker-gp")
    count = page.locator(".handle").count
    page.get_by_role("button", name="Add a point").click()
    assert count() == 6
    places = page.evaluate("document.querySelector('figure.live').live.data.points.map((p) => p.x)")
    assert min(abs(places[-1] - x) for x in places[:-1]) > 0.5
    page.keyboard.press("Delete")
    assert count() == 5
    box = page.locator(".live-stage svg").bounding_box()
    page.mouse.dblclick(box["x"] + box["width"] * 0.52, box["y"] + 30)
    assert count() == 6
    for _ in range(9):
        page.get_by_role("button", name="Remove a point").click()
    assert count() == 1
    for _ in range(20):
        page.get_by_role("button", name="Add a point").click()
    assert count() == live.PLACES
    rest(page)
    assert np.all(np.isfinite(results(page)["mean"]))


def test_only_handles_hold_a_finger(show):
    page = show("welcome", viewport={"width": 390, "height": 800}, has_touch=True)
    style = "e => getComputedStyle(e).touchAction"
    assert page.locator(".handle").first.evaluate(style) == "none"
    assert page.locator(".live-stage svg").first.evaluate(style) == "auto"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for kind in ("button", "select", "input[type=range]", ".handle .reach"):
        heights = page.locator(kind).evaluate_all(
            "a => a.map(e => e.getBoundingClientRect().height)"
        )
        assert heights
        assert min(heights) >= 44, kind


def test_time_is_played_and_stopped(show):
    page = show("ker-modes")
    slider = page.locator("input[type=range]").first
    start = int(slider.input_value())
    page.get_by_role("button", name="Play").click()
    page.wait_for_function("start => document.querySelector('input').value > start + 2", arg=start)
    page.get_by_role("button", name="Pause").click()
    rest(page)
    assert page.evaluate("document.querySelector('figure.live').live.playing") is False


def test_less_motion_is_respected(show):
    for name in ("ker-modes", "mf-network"):
        page = show(name, reduced_motion="reduce")
        page.get_by_role("button", name="Play").click()
        page.wait_for_function("() => !document.querySelector('figure.live').live.playing")
    assert results(page)["now"] > 0


def test_a_flow_goes_on_when_a_point_moves_and_a_training_begins_anew(show):
    page = show("mf-network")
    page.get_by_role("button", name="Play").click()
    page.wait_for_function("() => document.querySelector('figure.live').live.state.now > 0.2")
    page.get_by_role("button", name="Pause").click()
    now = page.evaluate("document.querySelector('figure.live').live.state.now")
    page.locator(".handle").first.press("ArrowUp")
    rest(page)
    assert page.evaluate("document.querySelector('figure.live').live.state.now") == now
    page = show("ntk-train")
    first = results(page)
    page.get_by_role("button", name="New draw").click()
    page.wait_for_timeout(100)
    rest(page)
    again = results(page)
    assert abs(again["now"] - first["now"]) < 1e-9
    assert np.max(np.abs(again["network"] - first["network"])) > 1e-3


def test_axes_follow_curves_that_would_leave_them(show):
    page = show("welcome")
    wider = "document.querySelector('figure.live').live.panels[0].wider"
    weights, reach = page.locator("input[type=range]").nth(1), "e => [e.value, e.max]"
    start, most = weights.evaluate(reach)
    assert page.evaluate(wider) == 1
    page.locator("select").first.select_option(label="relu")
    weights.fill(most)
    rest(page)
    made, top = results(page), 3 * page.evaluate(wider)
    assert np.max(np.abs(made["high"])) > 3
    curves = np.concatenate([made[k] for k in ("low", "high", "mean", "curves")])
    assert np.mean(np.abs(curves) > top) <= 0.02
    labels = page.locator(".live-stage text").all_text_contents()
    assert "10" in labels
    page.locator("select").first.select_option(label="erf")
    weights.fill(start)
    rest(page)
    assert page.evaluate(wider) == 1


def test_a_handle_hides_no_particle(show):
    page = show("mf-potential")
    handles = page.locator(".live-stage .rings")
    order = "e => Boolean(e.compareDocumentPosition(document.querySelector('.kind-dots')) & 4)"
    assert handles.evaluate(order)
    datum = handles.locator(".datum").first
    assert datum.evaluate("e => getComputedStyle(e).fillOpacity") == "0"
    box = datum.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"], box["y"] + 40, steps=3)
    page.mouse.up()
    assert abs(datum.bounding_box()["y"] + box["height"] / 2 - box["y"] - 40) < 2


# In Python


def test_a_stored_figure_is_small_and_the_same_each_time(capsys):
    import matplotlib as mpl

    mpl.use("agg")
    session = live.Session(FIGURES["ker-gp"])
    pictures = {live._png(session.draw())[0] for _ in range(2)}
    assert len(pictures) == 1
    assert len(stored("welcome")) < 4000
    figures.live("ker-gp")
    assert capsys.readouterr().out.startswith("A mean curve through five data points")
    with pytest.raises(ValueError, match="expected one of ker-gp, "):
        figures.live("nothing")


def test_widgets_compute_in_python():
    from ipywidgets import Button, FloatSlider, Image, IntSlider, SelectionSlider

    from ntkcourse import live_drawing

    def inside(widget):
        yield widget
        for child in getattr(widget, "children", ()):
            yield from inside(child)

    for name in ("ker-gp", "mf-network"):
        session = live.Session(FIGURES[name])
        picture, size = live._png(session.draw())
        everything = list(inside(live_drawing.widgets(session, picture, size)))

        def find(kind, text=""):
            fit = [w for w in everything if type(w) is kind]  # noqa: B023
            return next(w for w in fit if text in getattr(w, "description", ""))

        seen = [picture]
        find(SelectionSlider).index += 3
        if name == "ker-gp":  # the speed of a flow shows only when it moves
            seen.append(find(Image).value)
        find(FloatSlider, "output").value = 1.7
        seen.append(find(Image).value)
        find(Button, "Add").click()
        find(IntSlider).value = 6
        find(Button, "Remove").click()
        assert len(session.points) == 5
        if name == "mf-network":
            find(Button, "Play on").click()
            seen.append(find(Image).value)
            find(Button, "New draw").click()
            assert session.seed == 2
        assert len(set(seen)) == len(seen)


# The policy


def test_a_policy_allows_what_the_build_wrote_and_nothing_that_makes_code():
    page = '<head></head><script>a()</script><button onclick="b(&quot;c&quot;)"><script src="x">'
    page += '</script><script type="application/json">{}</script>'
    found = Inline(page)
    assert (found.scripts, found.handlers) == (["a()"], ['b("c")'])
    text = policy(found, {*found.handlers})
    assert "unsafe-eval" not in text
    [rule] = [part for part in text.split("; ") if part.startswith("script-src")]
    assert "'unsafe-inline'" not in rule
    assert rule.count("sha256") == 2


@pytest.mark.parametrize("name", FIGURES)
def test_a_picture_says_what_its_layers_are(name):
    import matplotlib.pyplot as plt

    picture = live.Session(FIGURES[name]).draw(frames=1)
    words = {text.get_text() for legend in picture.legends for text in legend.get_texts()}
    wanted = {y.label for panel in FIGURES[name].panels for y in panel.layers if y.label}
    plt.close(picture)
    assert words == wanted
