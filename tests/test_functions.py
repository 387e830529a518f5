"""Functions that are not what a tangent kernel needs: each mistake has its own words."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntkcourse import functions, networks, tangent

KEY = jax.random.key(0)
X = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)))
INIT, APPLY = networks.mlp((3, 5, 1), "tanh", 1.2, 0.3)


def normalised(params, x):
    h = x @ params[0]
    h = (h - jnp.mean(h, axis=0, keepdims=True)) / (jnp.std(h, axis=0, keepdims=True) + 1e-3)
    return jnp.tanh(h) @ params[1]


@pytest.mark.usefixtures("user")
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            (INIT(key=KEY), APPLY),
            TypeError,
            "expected apply, a function of .*, got list; the order",
        ),
        (
            (lambda x, p: APPLY(p, x), INIT(key=KEY)),
            TypeError,
            r"got a function of \(x, params\)",
        ),
        ((lambda p, a: jnp.tanh(p @ a), jnp.ones(3)), ValueError, r"got an error; .*jax.vmap"),
        ((lambda p, a: p @ a, jnp.ones((2, 3))), ValueError, r"got an error; .*jax.vmap"),
        ((lambda p, a: jnp.sum(a) * p, jnp.ones(())), ValueError, r"got shape \(\); .*jax.vmap"),
        ((lambda p, a: a @ p, {"a": jnp.ones(3)}), TypeError, "unsupported operand"),
        ((APPLY, {"a": jnp.arange(3)}), TypeError, "expected params of arrays of floats, got"),
        ((lambda p, a: jnp.sqrt(p) * a[:, 0], jnp.zeros(())), ValueError, "expected finite deriv"),
    ],
)
def test_mistakes(arguments, error, message):
    with pytest.raises(error, match=message):
        tangent.empirical_ntk(*arguments, X)


@pytest.mark.parametrize("n", [1, 4])
def test_rows_that_depend_on_each_other(n):
    params = [jnp.eye(3), jnp.ones(3)]
    with pytest.raises(ValueError, match="expected apply to treat the rows of x one by one"):
        tangent.empirical_ntk(normalised, params, X[:n])
    by_row = jax.vmap(lambda p, a: normalised(p, a[None])[0], (None, 0))
    assert not functions.mixed(by_row, params, X)


def test_a_start_at_zero_is_not_taken_for_mixing():
    """Outputs of rounding errors only, whose relative differences are large."""
    params = INIT(key=KEY, antisymmetric=True)
    assert tangent.empirical_ntk(APPLY, params, X).shape == (4, 4)


def test_equinox():
    model = eqx.nn.MLP(3, 2, 8, 2, key=KEY)
    with pytest.raises(TypeError, match=r"eqx\.partition"):
        tangent.empirical_ntk(lambda m, x: jax.vmap(m)(x), model, X)
    params, static = eqx.partition(model, eqx.is_inexact_array)
    f = lambda p, x: jax.vmap(eqx.combine(p, static))(x)  # noqa: E731
    jacobian = jax.tree.leaves(jax.jacrev(f)(params, X))
    flat = np.concatenate([np.reshape(j, (4, 2, -1)) for j in jacobian], axis=2)
    expected = np.einsum("iap,jbp->ijab", flat, flat)
    np.testing.assert_allclose(
        tangent.empirical_ntk(f, params, X), expected, rtol=1e-10, atol=1e-12
    )


def test_whole_numbers_are_indices_where_nothing_else_is_accepted():
    table, words = (
        jnp.asarray(np.random.default_rng(1).normal(size=(5, 2))),
        jnp.array([[1, 2], [2, 2]]),
    )
    f = lambda p, x: jnp.sum(p[x] ** 2, axis=(1, 2)) / 2  # noqa: E731
    count = np.stack([np.bincount(row, minlength=5) for row in words])
    expected = np.einsum("iw,jw,w->ij", count, count, np.sum(np.asarray(table) ** 2, axis=1))
    np.testing.assert_allclose(tangent.empirical_ntk(f, table, words), expected, rtol=1e-12)
