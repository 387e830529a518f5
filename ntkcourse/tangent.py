"""The tangent kernel of a finite network, its linearisation, and how curved it is.

Derived in the chapters :ref:`ntk` and :ref:`lazy` (the norms).
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse.linalg
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ntkcourse import checks
from ntkcourse.networks import Apply

BUDGET = 2**26
"""Numbers that the Jacobian of one block of points may hold in :func:`empirical_ntk`."""


def empirical_ntk(
    apply: Apply,
    params: PyTree,
    x: Float[Array, "n *d"],
    y: Float[Array, "m *d"] | None = None,
    *,
    trace: bool = False,
) -> Array:
    r"""The tangent kernel :math:`\Theta_{ij} = \nabla_\theta f(x_i) \cdot \nabla_\theta f(y_j)`.

    ``apply(params, x)`` is any differentiable function that treats the rows of x one by one;
    ``params`` any pytree of arrays. For outputs (n,) the result is (n, m). For outputs (n, c) it
    is (n, m, c, c), entry (i, j, a, b) for output a at x_i and b at y_j, or with ``trace`` their
    sum over a = b, (n, m). An ``apply`` that has an attribute ``tangent_kernel(params, x, y)``
    is asked for it; otherwise Jacobians are contracted block by block, so that memory beyond the
    result is bounded.
    """
    x = checks.points(x)
    y = x if y is None else checks.points(y, "y", like=x)
    outputs = jax.eval_shape(apply, params, x[:1]).shape
    if len(outputs) not in (1, 2) or outputs[0] != 1:
        raise ValueError(f"expected apply to map (1, d) to (1,) or (1, c), got shape {outputs}")
    size = sum(jnp.size(leaf) for leaf in jax.tree.leaves(params))
    if size == 0:
        raise ValueError("expected parameters to differentiate by, got none in params")
    if hasattr(apply, "tangent_kernel"):
        # with trace, the blocks of all pairs would be larger than the result
        block = max(1, BUDGET // (len(y) * outputs[-1] ** 2)) if trace else len(x)
        starts = range(0, len(x), block)
        rows = [_layerwise(apply, trace, params, x[i : i + block], y) for i in starts]
    else:
        rows = _by_jacobians(apply, trace, params, x, y, max(1, BUDGET // (size * outputs[-1])))
    return jnp.concatenate(list(rows))


@partial(jax.jit, static_argnums=(0, 1))
def _layerwise(apply, trace, params, x, y):
    kernel = apply.tangent_kernel(params, x, y)
    return jnp.einsum("ijaa->ij", kernel) if trace and kernel.ndim == 4 else kernel


def _by_jacobians(apply, trace, params, x, y, block):
    for i in range(0, len(x), block):
        left = _jacobian(apply, params, x[i : i + block])
        right = (_jacobian(apply, params, y[j : j + block]) for j in range(0, len(y), block))
        yield jnp.concatenate([_contract(trace, left, r) for r in right], axis=1)


@partial(jax.jit, static_argnums=0)
def _jacobian(apply, params, x):
    """The Jacobian at each point of x, one matrix (n, c, p) or (n, p) over all parameters."""
    flat, unravel = ravel_pytree(params)
    return jax.vmap(jax.jacrev(lambda p, a: apply(unravel(p), a[None])[0]), (None, 0))(flat, x)


@partial(jax.jit, static_argnums=0)
def _contract(trace, left, right):
    letters = "ip,jp->ij" if left.ndim == 2 else "iap,jap->ij" if trace else "iap,jbp->ijab"
    return jnp.einsum(letters, left, right)


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
    itself is never formed. Not for use inside ``jax.jit``.
    """
    x = checks.points(x)
    flat, unravel = ravel_pytree(params)
    outputs = jax.eval_shape(apply, params, x[:1]).shape[1:]

    @jax.jit
    def product(v, point, output):
        def gradient(p):
            return jax.grad(lambda q: apply(unravel(q), point[None]).reshape(-1)[output])(p)

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
        top = scipy.sparse.linalg.eigsh(
            hessian, 1, v0=start, tol=tolerance, return_eigenvectors=False
        )
        return abs(top[0])

    return jnp.asarray(max(norm(a, o) for a in x for o in range(int(np.prod(outputs)))), flat.dtype)
