"""Medians, spread, ratios of rounds, growth, and latencies. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Final, NamedTuple

import numpy
from hdrh.histogram import HdrHistogram  # type: ignore[import-untyped]  # has no types

LONGEST_US: Final = 600_000_000
DIGITS: Final = 3


class Estimate(NamedTuple):
    """A median of rounds, and the least and greatest of them."""

    median: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """Half of what lies between the least and the greatest, as a share of the median."""
        return (self.high - self.low) / 2 / abs(self.median) if self.median else 0.0


def estimate(values: Sequence[float]) -> Estimate:
    if not values:
        raise ValueError("no round gave a value")
    return Estimate(median(values), min(values), max(values))


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Estimate | None:
    """Ours divided by theirs, round by round: what the machine did in a round meets both. None
    where no round has both, or theirs is nothing."""
    rounds = [mine / other for mine, other in zip(ours, theirs, strict=False) if other]
    return estimate(rounds) if rounds else None


def exponent(points: Sequence[tuple[float, float]]) -> float | None:
    """k of y ~ x^k by least squares of the logarithms: 0 constant, 1 linear. None below two
    points."""
    known = [(math.log(x), math.log(y)) for x, y in points if x > 0 and y > 0]
    if len({x for x, _ in known}) < 2:
        return None
    xs, ys = zip(*known, strict=True)
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    above = sum((x - mean_x) * (y - mean_y) for x, y in known)
    return above / sum((x - mean_x) ** 2 for x in xs)


class Latencies:
    """A histogram of latencies in microseconds, three digits exact, up to ten minutes."""

    def __init__(self, encoded: bytes | None = None) -> None:
        self._histogram = HdrHistogram(1, LONGEST_US, DIGITS)
        if encoded:
            self._histogram.decode_and_add(encoded)

    def record(self, seconds: Sequence[float] | numpy.ndarray) -> None:
        micros = numpy.asarray(seconds, dtype=float) * 1e6
        whole = numpy.clip(numpy.rint(micros), 1, LONGEST_US).astype(int)
        for value, count in zip(*numpy.unique(whole, return_counts=True), strict=True):
            self._histogram.record_value(int(value), int(count))

    def add(self, encoded: bytes) -> None:
        """Those of another process."""
        self._histogram.decode_and_add(encoded)

    def encode(self) -> bytes:
        return bytes(self._histogram.encode())

    @property
    def count(self) -> int:
        return int(self._histogram.get_total_count())

    def figures(self) -> dict[str, float]:
        """p50, p99 and p99.9 in ms; nothing where nothing was recorded."""
        if not self.count:
            return {}
        percents = (("p50_ms", 50), ("p99_ms", 99), ("p999_ms", 99.9))
        found = self._histogram.get_percentile_to_value_dict([percent for _, percent in percents])
        return {key: found[percent] / 1000 for key, percent in percents}
