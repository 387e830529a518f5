r"""The tangent kernel of a finite network, its linearisation, and how curved it is.

Derived in the chapters :ref:`ntk` and :ref:`lazy` (the norms).
"""

from functools import lru_cache, partial
from math import isqrt

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ntkcourse import checks, functions, structure
from ntkcourse.functions import Apply
from ntkcourse.kernels import Kernel
from ntkcourse.products import contract

BUDGET = 2**26
"""Numbers that :func:`empirical_ntk` may hold beside its arguments and its result."""


def empirical_ntk(
    apply: Apply, params: PyTree, x: Array, y: Array | None = None, *, trace: bool = False
) -> Array:
    r"""The tangent kernel :math:`\Theta_{ij} = \nabla_\theta f(x_i) \cdot \nabla_\theta f(y_j)`.

    ``apply(params, x)`` is any differentiable function that treats the rows of x (n, ...) one by
    one; ``params`` any pytree of arrays of floats. For outputs (n,) the result is (n, m). For
    outputs (n, c) it is (n, m, c, c), entry (i, j, a, b) for output a at x_i and b at y_j, or with
    ``trace`` their sum over a = b, (n, m), at a cost of order c.

    Parameters that enter matrix products and convolutions are found in the jaxpr of ``apply``, and
    their gradients are not formed where inner products of factors are cheaper; see
    :mod:`ntkcourse.structure`. Rows are taken in blocks, so that about ``BUDGET`` numbers are held
    at a time (more only if those of a single row need it); y = None computes half of the blocks.
    """
    apply, params, x = functions.expect(apply, params, x)
    if y is not None:
        y = checks.points(y, "y", like=x).astype(x.dtype)
    known = checks.known((apply, params, x, y))
    kernel, mixed = _kernel(apply, params, x, y, trace, known, BUDGET)
    if checks.known(mixed) and mixed:
        raise ValueError(
            "expected apply to treat the rows of x one by one, but its output at one row "
            "changes with another row; batch normalisation needs fixed statistics"
        )
    return checks.finite(kernel, "derivatives by params")


@partial(jax.jit, static_argnames=("trace", "known", "budget"))
def _kernel(apply, params, x, y, trace, known, budget):
    """The kernel, and whether (if known) the output at a row depends on another row."""
    point = functions.point(x)
    shape = functions.outputs(apply, params, point)
    how = structure.plan(apply, params, point, trace)
    gradients = partial(structure.factors, how, params, trace=trace)
    block = max(1, min(budget // (2 * how.row + 1), isqrt(budget // how.pair)))
    kept = sum(a.size for a in jax.tree.leaves(jax.eval_shape(gradients, point)))
    # where pairs cost most, a quarter of the rows at a time: 10 of 16 tiles, the rest mirrored
    many = y is None and shape and not trace
    tile = min(block, max(16, -(-len(x) // 4))) if many else block
    kernel = _tiles(gradients, x, y, block, tile, stored=budget // (2 * kept + 1))
    if trace or shape == ():
        kernel = kernel[:, :, 0, 0]
    return kernel, functions.mixed(apply, params, x) if known else False


def _tiles(gradients, x, y, block, tile, stored):
    """The kernel tile by tile; gradients are computed once if those of ``stored`` rows suffice."""
    n, m = len(x), len(x if y is None else y)
    if tile >= max(n, m):
        left = gradients(x)
        return contract(left, left if y is None else gradients(y)).transpose(0, 2, 1, 3)

    def source(points):
        size = -(-len(points) // -(-len(points) // tile))  # as equal as can be
        starts = np.minimum(np.arange(0, len(points), size), len(points) - size)
        if len(points) > stored:
            return starts, lambda i: gradients(lax.dynamic_slice_in_dim(points, i, size))
        # not in a loop of XLA, where convolutions are ten times slower on a CPU
        blocks = [gradients(points[i : i + block]) for i in range(0, len(points), block)]
        every = jax.tree.map(lambda *parts: jnp.concatenate(parts), *blocks)
        cut = lambda i: jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, i, size), every)  # noqa: E731
        return starts, cut

    rows, left = source(x)
    columns, right = (rows, left) if y is None else source(y)
    pairs = np.array([(i, j) for i in rows for j in columns if y is not None or i <= j])

    def fill(kernel, pair):
        i, j = pair
        part = contract(left(i), right(j)).transpose(0, 2, 1, 3)
        kernel = lax.dynamic_update_slice(kernel, part, (i, j, 0, 0))
        if y is None:
            kernel = lax.dynamic_update_slice(kernel, part.transpose(1, 0, 3, 2), (j, i, 0, 0))
        return kernel, None

    part = jax.eval_shape(lambda: contract(left(0), right(0)))
    empty = jnp.zeros((n, m, part.shape[1], part.shape[3]), part.dtype)
    return lax.scan(fill, empty, jnp.asarray(pairs))[0]


def kernel(apply: Apply, params: PyTree, *, trace: bool = False) -> Kernel:
    r"""The kernel :math:`k(x, y) = \nabla_\theta f(x) \cdot \nabla_\theta f(y)` of two points.

    It stands wherever :mod:`ntkcourse.kernels` takes one: ``gram``, sums, regression. For a network
    with c > 1 outputs it is, with ``trace``, the trace of the c by c matrix.
    """
    entry, matrix = _formulas(trace)
    return Kernel(entry, (functions.traceable(apply), params), matrix)


@lru_cache  # so that JAX recognises a kernel that it has compiled before
def _formulas(trace):
    def matrix(apply, params, x, y):
        values = empirical_ntk(apply, params, x, y, trace=trace)
        if values.ndim == 4:
            raise ValueError(
                f"expected apply with one output, got {values.shape[-1]}; kernel(apply, params, "
                "trace=True) is the trace over outputs, empirical_ntk has all of them"
            )
        return values

    def entry(apply, params, x, y):
        return matrix(apply, params, x[None], y[None])[0, 0]

    return entry, matrix


def monte_carlo(
    init, apply: Apply, x: Array, y: Array | None = None, *, keys: Array
) -> tuple[Array, Array]:
    r"""The mean tangent kernel of networks ``init(key=key)`` and its standard error.

    One network for each of K ``keys``, one after the other; both results have the shape of
    :func:`empirical_ntk`. The error of an entry is its standard deviation over :math:`\sqrt K`.
    """
    checks.random_key(checks.random_keys(keys, "at least two keys", 2)[0], "monte_carlo")
    return _moments(init, functions.traceable(apply), x, y, keys)


@partial(jax.jit, static_argnames="init")
def _moments(init, apply, x, y, keys):
    def draw(key):
        return empirical_ntk(apply, init(key=key), x, y)

    def update(state, step):
        # Welford's recursion: the squares of deviations without those of the mean
        mean, squares = state
        count, key = step
        change = (value := draw(key)) - mean
        mean = mean + change / count
        return (mean, squares + change * (value - mean)), None

    zero = jnp.zeros_like(draw(keys[0]))
    counts = jnp.arange(1, len(keys) + 1, dtype=zero.dtype)
    mean, squares = lax.scan(update, (zero, zero), (counts, keys))[0]
    return mean, jnp.sqrt(squares / (len(keys) * (len(keys) - 1)))


def linearize(apply: Apply, params: PyTree) -> Apply:
    r"""The first-order Taylor polynomial of the network in its parameters,

    .. math:: f^{lin}(\theta, x) = f(\theta_0, x) + \nabla_\theta f(\theta_0, x) \cdot
              (\theta - \theta_0), \qquad \theta_0 = \text{params}.
    """

    def f_lin(new: PyTree, x: Array) -> Array:
        step = jax.tree.map(jnp.subtract, new, params)
        value, change = jax.jvp(lambda p: apply(p, x), (params,), (step,))
        return value + change

    return f_lin


def jacobian_norm(apply: Apply, params: PyTree, x: Float[Array, "n *d"]) -> Float[Array, ""]:
    r"""The operator norm of the Jacobian of all outputs at ``x`` by all parameters.

    It is :math:`\sqrt{\lambda_{max}(\Theta)}` for the tangent kernel of ``x`` with itself. The
    largest norm of a single gradient is the root of the largest entry on its diagonal.
    """
    kernel = empirical_ntk(apply, params, x)
    if kernel.ndim == 4:
        n, _, c, _ = kernel.shape
        kernel = kernel.transpose(0, 2, 1, 3).reshape(n * c, n * c)
    return jnp.sqrt(jnp.linalg.eigvalsh(kernel)[-1])


def hessian_norm(apply: Apply, params: PyTree, x: Float[Array, "n *d"]) -> Float[Array, ""]:
    r"""The largest norm :math:`\max_{i, a} \|\nabla_\theta^2 f_a(x_i)\|` over points and outputs.

    Lanczos iteration on Hessian-vector products, until the eigenvalue has converged: the Hessian
    itself is never formed. Not for use inside ``jax.jit``, ``vmap`` or ``grad``.
    """
    import scipy.sparse.linalg

    x = checks.points(x)
    if not checks.known((params, x)):
        raise TypeError(
            "expected known x and params, got traced ones (inside jit, vmap or grad): the number "
            "of steps of hessian_norm depends on values"
        )
    flat, unravel = ravel_pytree(params)
    outputs = jax.eval_shape(apply, params, functions.point(x)).size

    @jax.jit
    def product(v, point, output):
        gradient = jax.grad(lambda p: apply(unravel(p), point[None]).reshape(-1)[output])
        return jax.jvp(gradient, (flat,), (v,))[1]

    # a fixed start vector, of no special direction: the result is the same in every run
    start = np.cos(np.arange(1, flat.size + 1) ** 2.0)

    def norm(point, output):
        def times(v):
            return np.asarray(product(jnp.asarray(v.ravel(), flat.dtype), point, output), float)

        if flat.size < 3:  # too small for Lanczos
            return np.linalg.norm(np.stack([times(e) for e in np.eye(flat.size)]), 2)
        hessian = scipy.sparse.linalg.LinearOperator((flat.size,) * 2, matvec=times, dtype=float)
        if not np.any(times(start)):
            return 0.0
        tolerance = float(jnp.finfo(flat.dtype).eps) ** 0.75
        # both ends: iteration for the largest magnitude stalls where they nearly cancel
        ends = scipy.sparse.linalg.eigsh(
            hessian, 2, which="BE", v0=start, tol=tolerance, return_eigenvectors=False
        )
        return np.abs(ends).max()

    return jnp.asarray(max(norm(a, o) for a in x for o in range(outputs)), flat.dtype)
