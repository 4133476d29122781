"""A curve through measured points: the polynomial of second degree with the least squares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Point = tuple[float, float]
CURVE_SEGMENTS = 24  # straight pieces of which a drawn curve consists


@dataclass(frozen=True)
class Quadratic:
    """y = a + b x + c x². share: R², the share of the variance that the curve explains."""

    a: float
    b: float
    c: float
    share: float = 0.0

    def __call__(self, x: float) -> float:
        return self.a + self.b * x + self.c * x * x


def fit_quadratic(points: Sequence[Point]) -> Quadratic | None:
    """Return the curve with the least squares; None for fewer than three different x.

    The normal equations: for k = 0, 1, 2 the sum of x^k (y - a - b x - c x²) is 0. They are solved by Gauss-Jordan
    elimination: in step k the row with the greatest coefficient in column k (the pivot, for precision) comes to
    place k, and column k becomes 0 in all other rows.
    """
    if len({x for x, _ in points}) < 3:
        return None
    powers = [sum(x**power for x, _ in points) for power in range(5)]
    # Row k: the coefficients of a, b and c, and the right side
    rows = [[*powers[k : k + 3], sum(x**k * y for x, y in points)] for k in range(3)]
    for k in range(3):
        pivot = max(range(k, 3), key=lambda row: abs(rows[row][k]))
        rows[k], rows[pivot] = rows[pivot], rows[k]
        for row in range(3):
            if row != k:
                factor = rows[row][k] / rows[k][k]
                rows[row] = [
                    value - factor * in_pivot_row
                    for value, in_pivot_row in zip(rows[row], rows[k], strict=True)
                ]
    a, b, c = (rows[k][3] / rows[k][k] for k in range(3))
    curve = Quadratic(a, b, c)
    mean = sum(y for _, y in points) / len(points)
    variance = sum((y - mean) ** 2 for _, y in points)  # times the number of points, as is the rest
    unexplained = sum((y - curve(x)) ** 2 for x, y in points)
    return Quadratic(a, b, c, share=1 - unexplained / variance if variance else 1.0)


def curve_points(points: Sequence[Point]) -> list[Point]:
    """Return points of the curve from the first x to the last, or the points themselves if there is no curve."""
    curve = fit_quadratic(points)
    if curve is None:
        return list(points)
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    xs = [first + (last - first) * step / CURVE_SEGMENTS for step in range(CURVE_SEGMENTS + 1)]
    return [(x, max(curve(x), 0.0)) for x in xs]  # no figure is below 0
