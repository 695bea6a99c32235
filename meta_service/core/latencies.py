"""How long proposals took: a histogram in plain integers."""

from __future__ import annotations

from typing import Final

LATENCY_BOUNDS_MS: Final = (0.5, 1, 2, 5, 10, 20, 50, 100, 500, 1000)


class Latencies:
    """Counts of durations by upper bound, like a histogram, in plain integers."""

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BOUNDS_MS) + 1)
        self.total_ms = 0.0

    def note(self, duration_s: float, count: int = 1) -> None:
        """Count `count` proposals that took `duration_s` each."""
        duration_ms = duration_s * 1000
        self.total_ms += duration_ms * count
        for number, bound in enumerate(LATENCY_BOUNDS_MS):
            if duration_ms <= bound:
                self.counts[number] += count
                return
        self.counts[-1] += count
