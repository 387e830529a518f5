"""Products with Gram matrices that are not stored; many devices give what one gives."""

import functools
import itertools
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from shared import normal

from ntkcourse import convolution, grams, infinite, kernels, solving, tiles

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def compiled_anew():
    """The size of a tile is read when a program is compiled."""
    grams._times.clear_cache()


def some(*lists):
    """All combinations; by default those in which each pair of entries meets, the others soaked."""
    everything = itertools.product(*(range(len(entries)) for entries in lists))
    return [
        pytest.param(
            *(entries[i] for entries, i in zip(lists, at, strict=True)),
            marks=() if sum(at) % min(map(len, lists)) == 0 else pytest.mark.soak,
        )
        for at in everything
    ]


KERNELS = {
    "rbf": kernels.rbf(3.0),
    "ntk": infinite.ntk(2),
    "function": lambda a, b: jnp.sum(jnp.abs(a - b)),
}
X, Y = normal(20, 12), normal(16, 12, seed=1)


@functools.cache
def matrix(name, other):
    """The whole Gram matrix, of which fewer points have a part: compiled once."""
    return np.asarray(kernels.gram(KERNELS[name], X, Y if other else None))


# Each program is compiled anew. By default each pair of entries meets; all together are soaked.
SIZES, OTHERS, COLUMNS = [1, 6, 7, 8, 20], [None, 3, 7, 16], [(), (1,), (3,)]
PRODUCTS = [
    pytest.param(
        SIZES[i], OTHERS[j], COLUMNS[c], name,
        marks=() if (i + j + c) % 3 == 0 == (i + 2 * j + kind) % 3 else pytest.mark.soak,
    )
    for i, j, c in itertools.product(range(5), range(4), range(3))
    for kind, name in enumerate(KERNELS)
]  # fmt: skip


@pytest.mark.parametrize(("n", "m", "columns", "name"), PRODUCTS)
def test_matvec_is_the_product_with_the_gram_matrix(monkeypatch, n, m, columns, name):
    expected = matrix(name, m is not None)[:n, : m or n]
    monkeypatch.setattr(tiles, "TILE", 7)
    v = normal(m or n, *(columns or (1,)), seed=2).reshape(-1, *columns)
    product = kernels.matvec(KERNELS[name], X[:n], v, None if m is None else Y[:m])
    assert product.shape == (n, *columns)
    np.testing.assert_allclose(product, expected @ v, rtol=1e-12, atol=1e-12)


def test_each_pair_of_sizes_columns_and_kernels_is_tried():
    chosen = [case.values for case in PRODUCTS if not case.marks]
    for a, b in itertools.combinations(range(4), 2):
        met = {(case[a], case[b]) for case in chosen}
        assert met == {(case.values[a], case.values[b]) for case in PRODUCTS}


def test_matvec_stores_no_matrix():
    x = jax.ShapeDtypeStruct((20_000, 10), jnp.float32)
    v = jax.ShapeDtypeStruct((20_000,), jnp.float32)
    memory = grams._times.lower(kernels.rbf(), x, x, v).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 10e6
    gradient = jax.jit(jax.grad(lambda x, v: jnp.sum(grams._times(kernels.rbf(), x, x, v) ** 2)))
    memory = gradient.lower(x, v).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 400e6  # 1.6 GB is one matrix


def test_matvec_of_images_and_its_errors(user):
    x = normal(5, 3, 3, 1)
    k = convolution.ntk(2)
    np.testing.assert_allclose(
        kernels.matvec(k, x, jnp.ones(5)), kernels.gram(k, x).sum(1), rtol=1e-12
    )
    with pytest.raises(ValueError, match="expected v of shape"):
        kernels.matvec(k, x, jnp.ones(4))
    with pytest.raises(ValueError, match=r"expected k.* to be a number"):
        kernels.matvec(lambda a, b: a + b, x, jnp.ones(5))
    with pytest.raises(TypeError, match="expected a kernel first"):
        kernels.matvec(x, k, jnp.ones(5))


@pytest.mark.parametrize(
    ("k", "ridge", "columns"),
    some([kernels.rbf(2.0), infinite.ntk(3), kernels.laplace(2.0)], [1.0, 1e-3], [(), (2,)]),
)
def test_conjugate_gradients_are_cholesky(dtype, k, ridge, columns):
    x = normal(300, 5, dtype=dtype)
    y = jnp.stack([jnp.sin(x.sum(1)), 100 * x[:, 0]], 1)[:, 0 if columns == () else slice(None)]
    new = normal(20, 5, seed=1, dtype=dtype)
    fit = kernels.ridge_regression(k, x, y, ridge, solver="cg")
    exact = kernels.ridge_regression(k, x.astype(float), y.astype(float), ridge)
    assert fit(new).dtype == dtype
    error = np.abs(np.asarray(fit(new), float) - np.asarray(exact(new.astype(float)))).max(0)
    assert np.all(error <= (2e-3 if dtype == "float32" else 1e-7) * np.abs(y).max(0))


def test_conjugate_gradients_keep_their_promise():
    x, k = normal(200, 3), kernels.rbf(1.0)
    y = jnp.sin(x.sum(1))
    for tolerance in (1e-2, 1e-6, 1e-10):
        alpha = kernels.ridge_regression(k, x, y, 0.1, solver="cg", tolerance=tolerance).args[2]
        rest = y - kernels.gram(k, x) @ alpha - 0.1 * alpha
        assert jnp.linalg.norm(rest) <= 1.01 * tolerance * jnp.linalg.norm(y)
    zero = kernels.ridge_regression(k, x, jnp.zeros_like(y), 0.1, solver="cg")
    assert np.all(zero(x) == 0)


def test_conjugate_gradients_that_do_not_end_say_so(monkeypatch):
    monkeypatch.setattr(solving, "STEPS", 3)
    x, k = normal(200, 3), kernels.laplace()
    with pytest.raises(
        ValueError, match=r"after 3 steps of conjugate gradients, got .* larger ridge"
    ):
        kernels.ridge_regression(k, x, x[:, 0], 1e-6, solver="cg")


def test_what_conjugate_gradients_cannot():
    x, k = normal(8, 3), kernels.rbf()
    with pytest.raises(TypeError, match=r"inside jax\.jit"):
        jax.jit(lambda x: kernels.ridge_regression(k, x, x[:, 0], 0.1, solver="cg")(x))(x)
    for options in ({"solver": "cg"}, {"ridge": 0.1, "solver": "lu"}):
        with pytest.raises(ValueError, match=r'solver="cg" with a ridge > 0'):
            kernels.ridge_regression(k, x, x[:, 0], **options)


# Virtual devices compile as users do; two processes, which give the same numbers, optimise little.
LITTLE = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


def start(arguments, devices=1, flags=""):
    environment = os.environ | {
        "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices} {flags}",
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, str(ROOT / "tests/many_devices.py"), *arguments],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def right(found):
    differences = [found[key] for key in found if " " in key or key == "grid"]
    assert len(differences) == 7
    assert max(differences) < 1e-10, found


def test_virtual_devices_give_what_one_gives():
    process = start([], devices=8)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors[-2000:]
    found = json.loads(output)
    assert found["devices"] == 8
    assert found["bytes"] * 8 == 400 * 400 * 8  # each device has an eighth of the matrix
    right(found)


def pair(*rest):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    return [start([address, str(i), *rest], flags=LITTLE) for i in range(2)]


def end(processes):
    for process in processes:
        process.kill()  # nothing happens to one that has ended
        process.communicate()


def test_two_processes_give_what_one_gives():
    processes = pair()
    try:
        for process in processes:
            output, errors = process.communicate(timeout=300)
            assert process.returncode == 0, errors[-2000:]
            found = json.loads(output.splitlines()[-1])
            assert found["processes"] == found["devices"] == 2
            right(found)
    finally:
        end(processes)


@pytest.mark.parametrize("killed", [0, 1])
def test_a_process_whose_partner_is_killed_ends_with_an_error(killed):
    processes = pair("work on")
    try:
        for process in processes:
            assert any('"devices": 2' in line for line in process.stdout)  # Gloo prints too
        processes[killed].kill()
        other = processes[1 - killed]
        output, errors = other.communicate(timeout=100)
        assert other.returncode != 0
        assert "nothing happened" not in output
        assert errors
    finally:
        end(processes)


def test_rows_that_the_devices_cannot_share():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1] * 2), ("rows",))
    with pytest.raises(ValueError, match="expected n to be a multiple of 2 devices, got 3 rows"):
        kernels.gram(kernels.rbf(), normal(3, 2), mesh=mesh)
    one = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("rows",))
    with pytest.raises(TypeError, match=r"inside jax\.jit"):
        jax.jit(lambda x: kernels.gram(kernels.rbf(), x, mesh=one))(normal(4, 2))
    with pytest.raises(ValueError, match="without a mesh"):
        kernels.ridge_regression(kernels.rbf(), normal(4, 2), jnp.ones(4), 0.1, mesh=one)
