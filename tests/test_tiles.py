"""Gram matrices by tiles: the borders, the mirror, the memory, the compilations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.distance import cdist
from shared import normal

from ntkcourse import convolution, infinite, kernels, tiles


@pytest.fixture(autouse=True)
def compile_anew():
    """TILE is read when a program is compiled, so no test may use the program of another."""
    tiles.fill.clear_cache()


@pytest.mark.parametrize("n", [1, 6, 7, 8, 14, 20, 29])
@pytest.mark.parametrize("m", [None, 3, 7, 16])
def test_tiles(monkeypatch, n, m):
    monkeypatch.setattr(tiles, "TILE", 7)
    x = normal(n, 1)
    y = x if m is None else normal(m, 1, seed=1)
    matrix = np.asarray(kernels.gram(kernels.laplace(0.7), x, None if m is None else y))
    np.testing.assert_allclose(matrix, np.exp(-cdist(x, y, "cityblock") / 0.7), rtol=1e-14)
    if m is None:
        assert np.array_equal(matrix, matrix.T)
        assert np.all(np.diagonal(matrix) == 1)


def test_the_diagonal_is_the_kernel_of_equal_points(dtype, monkeypatch):
    monkeypatch.setattr(tiles, "TILE", 7)
    k, x = infinite.ntk(3, "relu"), normal(23, 300, dtype=dtype)
    matrix = np.asarray(kernels.gram(k, x))
    assert np.array_equal(matrix, matrix.T)
    exact = 3 * 2 * np.mean(np.asarray(x, float) ** 2, axis=1)  # depth times sigma_w^2 |x|^2 / d
    np.testing.assert_allclose(np.diagonal(matrix), exact, rtol=8 * float(jnp.finfo(dtype).eps))


def test_a_kernel_that_is_not_symmetric_is_evaluated_below_the_diagonal(monkeypatch):
    monkeypatch.setattr(tiles, "TILE", 3)
    x = jnp.arange(1.0, 9.0)[:, None]
    matrix = kernels.gram(lambda a, b: a[0] + 10 * b[0], x)
    lower = np.tril(np.asarray(x) + 10 * np.asarray(x).T)
    assert np.array_equal(matrix, lower + np.tril(lower, -1).T)


def test_gram_of_images(monkeypatch):
    monkeypatch.setattr(tiles, "TILE", 2)
    x, y = normal(5, 3, 2, 1), normal(4, 3, 2, 1, seed=1)
    matrix = kernels.gram(lambda a, b: jnp.sum(a * b), x, y)
    np.testing.assert_allclose(matrix, np.einsum("nhwc,mhwc->nm", x, y), rtol=1e-12)


@pytest.mark.parametrize(
    ("k", "shape"),
    [
        (kernels.rbf(), (6000, 3)),
        (kernels.rbf(), (4000, 400)),
        (lambda a, b: jnp.sum(jnp.sort(a - b)), (4000, 400)),
        (infinite.ntk(3, "tanh"), (4000, 3)),
        (convolution.nngp(2), (1500, 6, 6, 1)),
    ],
)
def test_memory_beyond_the_result_does_not_grow_with_the_number_of_points(k, shape):
    def beyond(n):
        x = jax.ShapeDtypeStruct((n, *shape[1:]), jnp.float32)
        memory = tiles.fill.lower(kernels.as_kernel(k), x, x, True).compile().memory_analysis()
        assert memory.output_size_in_bytes == 4 * n**2
        return memory.temp_size_in_bytes - 4 * n * np.prod(shape[1:])

    n = shape[0]
    assert beyond(n) < 20e6
    assert beyond(2 * n) - beyond(n) < 4 * n * np.prod(shape[1:]) + 32 * n  # one more copy of x


def tile_size(k, d):
    x = jax.ShapeDtypeStruct((1000, d), jnp.float64)
    return tiles.tile_size(kernels.as_kernel(k), x, x)


def test_tile_shrinks_with_the_arrays_that_the_kernel_makes():
    assert tile_size(kernels.linear(), 100) == tiles.TILE
    assert tile_size(jax.jit(lambda a, b: jnp.sum(jnp.abs(a - b))), 100) == tiles.TILE // 10


def looped(a, b):
    step = lambda s: (s[0] + 1, jnp.abs(a - b) + s[1])  # noqa: E731
    return jnp.sum(jax.lax.while_loop(lambda s: s[0] < 3, step, (0, 0 * a))[1])


def branched(a, b):
    return jax.lax.cond(a[0] > 0, lambda: jnp.sum(jnp.abs(a - b)), lambda: 0.0)


def outer(a, b):
    return jnp.sum(jnp.tanh(a[:, None] * b[None]))


@pytest.mark.parametrize(
    ("k", "d", "tile"), [(looped, 100, 12), (branched, 100, 12), (outer, 600, 1)]
)
def test_tile_shrinks_with_what_loops_and_branches_make(k, d, tile):
    assert tile_size(k, d) == tile


def test_a_new_lengthscale_compiles_nothing(user, dtype):
    x = normal(5, 2, dtype=dtype)
    for make in (kernels.rbf, kernels.cauchy, kernels.laplace, lambda s: kernels.polynomial(2, s)):
        kernels.gram(make(1.0), x)
        size = tiles.fill._cache_size()
        for scale in (0.5, 2.0, np.float64(3.0), jnp.asarray(4.0)):
            assert kernels.gram(make(scale), x).dtype == dtype
        assert tiles.fill._cache_size() == size


@pytest.mark.parametrize("d", [3, 40])
def test_close_pairs_keep_their_digits(user, dtype, d):
    # two points 1e-6 apart, far from the origin in comparison, among ordinary ones
    x = np.array(normal(60, d), dtype)
    near = x.copy()
    near[::3, 0] += dtype.type(1e-6) * np.maximum(1, np.abs(x[::3, 0]))
    distance = cdist(np.asarray(x, float), np.asarray(near, float))
    matrix = kernels.gram(kernels.laplace(1e-3, norm=2), x[:20], near[:20])
    expected = np.exp(-distance[:20, :20] / 1e-3)
    eps = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(matrix, expected, rtol=0, atol=200 * eps)
    # in wide units the exponential is linear in the distance, and shows its relative error
    flat = kernels.gram(kernels.rbf(1e-6), x, near)
    assert np.allclose(flat, np.exp(-(distance**2) / 2e-12), rtol=0, atol=200 * eps)


def test_many_close_pairs_are_all_mended():
    x = 5.0 + 1e-7 * normal(300, 20)  # all pairs are close in comparison with their norms
    y = jnp.concatenate([x[:150], -x[150:]])
    for other in (x, y):
        exact = np.exp(-cdist(x, other) / 1e-6)
        np.testing.assert_allclose(
            kernels.gram(kernels.laplace(1e-6, 2), x, other), exact, atol=1e-12
        )


def test_products_cost_no_accuracy_far_from_the_origin():
    x = 1e4 + normal(50, 30)
    exact = np.exp(-(cdist(x, x) ** 2) / 2 / 30)
    np.testing.assert_allclose(kernels.gram(kernels.rbf(30**0.5), x), exact, rtol=1e-11)
