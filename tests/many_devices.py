"""Runs in a process of its own, see test_grams.py: Gram matrices and ridge regression on a mesh.

Alone, `many_devices.py`, on the virtual devices of XLA_FLAGS; or as one of two processes,
`many_devices.py address number`, joined by jax.distributed. Prints what it found as JSON; with one
word more it says so when it has begun to work, and works until its partner is gone.
"""

import json
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from ntkcourse import infinite, kernels

jax.config.update("jax_enable_x64", True)
if sys.argv[1:]:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        sys.argv[1], 2, int(sys.argv[2]), initialization_timeout=60, heartbeat_timeout_seconds=10
    )

rng = np.random.default_rng(0)
x = jnp.asarray(rng.normal(size=(400, 12)))
y, new = jnp.sin(x.sum(1)), jnp.asarray(rng.normal(size=(37, 12)))  # 37 is divisible by nothing
v = jnp.asarray(rng.normal(size=(400, 3)))
mesh = jax.sharding.Mesh(np.array(jax.devices()), ("rows",))


def apart(shared, alone):
    """The largest difference, from the parts that this process holds."""
    parts = [(p.data, alone[p.index]) for p in shared.addressable_shards]
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in parts)


def grid():
    """The devices as a mesh of two axes of the explicit kind, as `jax.make_mesh` gives it."""
    return jax.make_mesh((2, len(jax.devices()) // 2), ("a", "b"))


found = {"devices": len(jax.devices()), "processes": jax.process_count()}
if sys.argv[3:]:  # until the other process is gone, for two minutes at most
    start, k = time.monotonic(), kernels.rbf(3.0)
    while time.monotonic() - start < 120:
        np.asarray(kernels.matvec(k, new, v, x, mesh=mesh).addressable_shards[0].data)
        if found:  # at the first time
            print(json.dumps(found), flush=True)
            found.clear()
    print("nothing happened")
    sys.exit()
for name, k in {"rbf": kernels.rbf(3.0), "ntk": infinite.ntk(3)}.items():
    matrix = kernels.gram(k, x, mesh=mesh)
    found[f"gram {name}"] = apart(matrix, kernels.gram(k, x))
    found[f"matvec {name}"] = apart(
        kernels.matvec(k, new, v, x, mesh=mesh), kernels.gram(k, new, x) @ v
    )
    fit = kernels.ridge_regression(k, x, y, 1.0, solver="cg", tolerance=1e-13, mesh=mesh)
    found[f"ridge {name}"] = apart(fit(new), kernels.ridge_regression(k, x, y, 1.0)(new))
found["bytes"] = max(p.data.nbytes for p in matrix.addressable_shards)
found["grid"] = apart(kernels.gram(k, x, mesh=grid()), kernels.gram(k, x))
print(json.dumps(found), flush=True)
