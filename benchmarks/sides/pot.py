"""POT: the network simplex, and quantiles in one dimension."""

import numpy as np
import ot


def transport_plane(inputs, size):
    x, y = inputs["x"], inputs["y"]
    return lambda: np.sqrt(ot.emd2([], [], ot.dist(x, y), numItermax=10_000_000))


transport_ten = transport_plane


def transport_line(inputs, size):
    x, y = inputs["x"][:, 0], inputs["y"][:, 0]
    return lambda: np.sqrt(ot.wasserstein_1d(x, y, p=2))


def transport_weighted(inputs, size):
    x, y = inputs["x"], inputs["y"]
    a = np.arange(1.0, len(x) + 1)
    a = a / a.sum()
    b = a[::-1].copy()
    return lambda: np.sqrt(ot.emd2(a, b, ot.dist(x, y), numItermax=10_000_000))
