"""Medians, 99th percentiles, and the straight line of a call's cost over its descriptors."""

from __future__ import annotations

from collections.abc import Sequence


def median(values: Sequence[float]) -> float:
    """The middle value; of an even number, the mean of the two. 0 of none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` (0 .. 1) of them do not exceed. 0 of none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(a, b) of y = a + b x, least squares of the relative error: every point counts the same,
    however large. Raises ValueError for fewer than two different x, or a y that is not positive."""
    if len({x for x, _ in points}) < 2:
        raise ValueError("a line needs two different x")
    if any(y <= 0 for _, y in points):
        raise ValueError("relative errors need positive y")
    weights = [1 / (y * y) for _, y in points]
    total = sum(weights)
    mean_x = sum(w * x for w, (x, _) in zip(weights, points)) / total
    mean_y = sum(w * y for w, (_, y) in zip(weights, points)) / total
    above = sum(w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, points))
    below = sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, points))
    slope = above / below
    return mean_y - slope * mean_x, slope
