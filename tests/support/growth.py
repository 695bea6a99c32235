"""What work costs as its input grows: CPU time of the same work at two sizes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

GROWTH: Final = 8
RATIO_MAX: Final = 3 * GROWTH
"""Linear work takes about 8 times as long, quadratic work about 64 times; the bound between them
leaves room for a busy machine."""
ROUNDS: Final = 5
Work = Callable[[], object]


def cpu_s(prepare: Callable[[], Work]) -> float:
    """Least CPU time of some runs; the work of each is prepared anew."""
    found = []
    for _ in range(ROUNDS):
        work = prepare()
        before = time.thread_time()
        work()
        found.append(time.thread_time() - before)
    return min(found)


def grows_linearly(prepare: Callable[[int], Work], size: int) -> None:
    """AssertionError when `GROWTH` times the size costs more than `RATIO_MAX` times as much.
    `prepare`: makes work of a size."""
    small = cpu_s(lambda: prepare(size))
    large = cpu_s(lambda: prepare(GROWTH * size))
    assert large / small <= RATIO_MAX, f"{size}: {small:.6f} s, {GROWTH * size}: {large:.6f} s"
