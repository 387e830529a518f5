"""What this machine can do at best: the matrix products, sorts and passes that a case cannot avoid.

In NumPy and its BLAS. A result here is only timed, it has no meaning.
"""

import numpy as np
import scipy.linalg


def _passes(product, count):
    """Write the product, then go over it `count` times."""
    left, right = product
    out = left @ right

    def call():
        np.matmul(left, right, out=out)
        for _ in range(count):
            np.multiply(out, 0.5, out=out)

    return call


def analytic(inputs, size):
    x = inputs["x"]
    return _passes((x, x.T.copy()), 2)


gram = analytic


def fourier(inputs, size):
    x = inputs["x"]
    return _passes((x, np.ones((size["d"], size["m"]), x.dtype)), 2)


def flops(size):
    """Of the tangent kernel by layers: forward, backward, and two inner products per layer."""
    n, width, hidden = size["n"], size["width"], size["hidden"]
    shapes = [(size["d"], width), *[(width, width)] * (hidden - 1), (width, size["outputs"])]
    forward = sum(2 * n * a * b for a, b in shapes)
    backward = sum(2 * n * a * b for a, b in shapes[1:])
    return forward + backward + sum(2 * n * n * (a + b) for a, b in shapes)


def empirical(inputs, size):
    n, width = size["n"], size["width"]
    columns = max(1, round(flops(size) / (2 * n * width)))
    rng = np.random.default_rng(0)
    left, right = (rng.normal(size=s).astype("float32") for s in ((n, width), (width, columns)))
    return lambda: left @ right


def ridge(inputs, size):
    matrix = inputs["x"] @ inputs["x"].T + size["n"] * np.eye(size["n"], dtype=size["dtype"])
    return lambda: scipy.linalg.cholesky(matrix, lower=True, check_finite=False)


def transport_line(inputs, size):
    x, y = inputs["x"][:, 0].copy(), inputs["y"][:, 0].copy()
    return lambda: np.sqrt(np.mean((np.sort(x) - np.sort(y)) ** 2))


def pairs(inputs, size):
    x, rows = inputs["x"], 1000  # a tile at a time: all pairs would not fit the cache
    out = np.empty((min(rows, len(x)), len(x)), x.dtype)

    def call():
        for i in range(0, len(x), rows):
            tile = np.matmul(x[i : i + rows], x.T, out=out[: len(x[i : i + rows])])
            np.multiply(tile, 0.5, out=tile)
            np.multiply(tile, 0.5, out=tile)
            tile @ x

    return call
