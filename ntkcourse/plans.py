"""Exact optimal plans between two clouds of points, in NumPy, for :mod:`ntkcourse.transport`.

By sorting in one dimension; by SciPy's assignment for up to ``SMALL`` points of equal weight, more
of them by POT's network simplex on the pairs that matter; unequal weights by the network simplex on
all pairs.
"""

import numpy as np

SMALL = 200
"""Clouds of so many points are transported with all pairs at once."""


def equal(x, y, a, b):
    """Whether the plan is a permutation: as many points here as there, of equal weights."""
    return a is None and b is None and len(x) == len(y)


def solve(x, y, a, b):
    """An optimal plan as rows, columns and masses; n + m - 1 entries suffice, some may be 0."""
    x, y = (np.asarray(c, float).reshape(len(c), -1) for c in (x, y))
    if equal(x, y, a, b):
        return np.arange(len(x)), _assignment(x, y), np.full(len(x), 1 / len(x))
    a, b = (
        np.full(len(c), 1 / len(c)) if w is None else np.asarray(w, float)
        for w, c in ((a, x), (b, y))
    )
    if x.shape[1] == 1:
        return _on_the_line(x[:, 0], y[:, 0], a, b)
    has_a, has_b = np.flatnonzero(a), np.flatnonzero(b)
    a, b = a[has_a] / a.sum(), b[has_b] / b.sum()
    rows, columns, masses, _ = _network_simplex(_costs(x[has_a], y[has_b]), a, b)
    padding = (0, len(x) + len(y) - 1 - len(rows))
    return np.pad(has_a[rows], padding), np.pad(has_b[columns], padding), np.pad(masses, padding)


def _assignment(x, y):
    """The column of each row in the best assignment of two clouds of equal size."""
    if x.shape[1] == 1:
        best = np.empty(len(x), int)
        best[np.argsort(x[:, 0], kind="stable")] = np.argsort(y[:, 0], kind="stable")
        return best
    if len(x) <= SMALL:
        from scipy.optimize import linear_sum_assignment

        return linear_sum_assignment(_costs(x, y))[1]
    # whole numbers as weights: the masses on a vertex of the plans are then exactly 0 or 1
    rows, columns, masses, _ = _network_simplex(_costs(x, y), np.ones(len(x)), np.ones(len(x)))
    rows, columns = rows[masses > 0.5], columns[masses > 0.5]
    return columns[np.argsort(rows)]


def _on_the_line(x, y, a, b):
    """In one dimension the quantiles are coupled: between two levels of a or b nothing changes."""

    def quantiles(points, probabilities):
        order = np.argsort(points)
        # divided by the last entry, and not by a sum that rounds otherwise, it ends at exactly 1
        below = np.cumsum(probabilities[order])
        return order, below / below[-1]

    (u, up_to_u), (v, up_to_v) = quantiles(x, a), quantiles(y, b)
    levels = np.concatenate([up_to_u[:-1], up_to_v[:-1]])
    merged = np.argsort(levels, kind="stable")
    passed = np.append(0, np.cumsum(merged < len(x) - 1))
    masses = np.diff(levels[merged], prepend=0, append=1)
    return u[passed], v[np.arange(len(passed)) - passed], masses


def _costs(x, y):
    """Squared distances of the centred clouds, which have the same optimal plans.

    From differences, or in many dimensions from a matrix product, |x|^2 + |y|^2 - 2 x.y. It may
    lose small distances by rounding: a plan is chosen by these numbers, the cost of a plan is not.
    """
    from scipy.spatial.distance import cdist

    x, y = x - x.mean(0), y - y.mean(0)
    if x.shape[1] <= 32:
        return cdist(x, y, "sqeuclidean")
    return np.maximum((x**2).sum(1)[:, None] + (y**2).sum(1) - 2 * x @ y.T, 0)


def _network_simplex(costs, a, b):
    """Rows, columns and masses of an optimal plan of positive weights, and the rows' potential.

    With all pairs for small clouds and for unequal weights. Large clouds of equal weights need few
    of them: a plan P and potentials u, v with u_i + v_j <= C_ij everywhere, and = where P_ij > 0,
    are optimal. So it is enough to solve with some pairs if none of the others violates the
    inequality; those that do are added. The first pairs come from the potentials of a quarter of
    the points.
    """
    try:
        import ot  # takes a second, and small clouds of equal weights do not need it
    except ImportError as error:
        raise ImportError('such plans need POT: pip install "ntkcourse[book]"') from error

    def solve(matrix):
        plan, log = ot.emd(a, b, matrix, numItermax=10_000_000, log=True)
        return plan, log["u"], log["v"], log["result_code"] == 1

    shape = costs.shape
    sparse = min(shape) > SMALL and np.ptp(a) == np.ptp(b) == 0
    if sparse:
        from scipy.sparse import coo_array

        generator = np.random.default_rng(0)  # any sample will do, and the same one every time
        some = [generator.choice(n, n // 4, replace=False) for n in shape]
        few = [w[chosen] / w[chosen].sum() for w, chosen in zip((a, b), some, strict=True)]
        *_, u = _network_simplex(costs[np.ix_(*some)], *few)
        v = np.min(costs[some[0]] - u[:, None], axis=0)
        slack = costs - v
        slack -= slack.min(1)[:, None]
        slack -= slack.min(0)
        pairs = slack <= np.partition(slack, 30, axis=1)[:, 30:31]
        pairs |= slack <= np.partition(slack, 30, axis=0)[30]
        # a staircase through the matrix, so that there is a plan with these pairs at all
        stairs = _on_the_line(*map(np.arange, shape), a, b)
        pairs[stairs[0], stairs[1]] = True
        for _ in range(20):
            i, j = np.nonzero(pairs)
            plan, u, v, solved = solve(coo_array((costs[i, j], (i, j)), shape))
            if not solved:
                break
            slack = costs - u[:, None] - v
            # what is violated among the pairs that took part is rounding, and elsewhere then too
            lowest, rounding = slack.min(), slack[i, j].min()
            if lowest >= min(rounding, 0) - 1e-14 * costs.max():
                return *plan.coords, plan.data, u
            pairs |= slack < -lowest  # with some to spare: the next round is the last as a rule
    plan, u, _, _ = solve(costs)
    rows, columns = np.nonzero(plan)
    return rows, columns, plan[rows, columns], u
