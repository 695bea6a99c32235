"""An hour of the nodes' load figures, in memory of the Raft leader, and how they grow.

`now_s` is a monotonic time. A new leader begins without a history: trends are known again when it
has seen enough.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

SAMPLE_S: Final = 60.0
SAMPLES_MAX: Final = 60
TREND_MIN_S: Final = 600.0
"""Shorter histories say nothing of hours to come."""
FIGURES_MAX: Final = 32
"""Figures of one node that are kept; names come from brokers."""
_HOUR_S: Final = 3600.0


@dataclass
class _Samples:
    """One figure of one node: (time, value), oldest first."""

    points: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))

    def per_hour(self) -> float | None:
        """Slope of the least-squares line."""
        times = [time_s for time_s, _ in self.points]
        if len(times) < 2 or times[-1] - times[0] < TREND_MIN_S:
            return None
        mean_s = sum(times) / len(times)
        mean = sum(value for _, value in self.points) / len(times)
        above = sum((time_s - mean_s) * (value - mean) for time_s, value in self.points)
        return above / sum((time_s - mean_s) ** 2 for time_s in times) * _HOUR_S


class LoadHistory:
    """Samples in, trends out."""

    def __init__(self) -> None:
        self._nodes: dict[str, dict[str, _Samples]] = {}
        self._sampled_s = float("-inf")

    def restart(self) -> None:
        """This member has become the leader."""
        self._nodes.clear()
        self._sampled_s = float("-inf")

    def note(self, loads: Mapping[str, Mapping[str, float]], now_s: float) -> None:
        """Take a sample if the last one is `SAMPLE_S` old. Nodes that are not in `loads` any more
        are forgotten."""
        if not loads or now_s - self._sampled_s < SAMPLE_S:
            return
        self._sampled_s = now_s
        before, self._nodes = self._nodes, {}
        for node_id, figures in loads.items():
            kept = self._nodes[node_id] = before.get(node_id, {})
            for name in sorted(figures)[:FIGURES_MAX]:
                kept.setdefault(name, _Samples()).points.append((now_s, figures[name]))

    def mean(self, node_id: str, figure: str) -> float | None:
        """Of the samples of the last `TREND_MIN_S`; None: there is none."""
        samples = self._nodes.get(node_id, {}).get(figure)
        if samples is None:
            return None
        last = [v for time_s, v in samples.points if self._sampled_s - time_s < TREND_MIN_S]
        return sum(last) / len(last) if last else None

    def per_hour(self, node_id: str, figure: str) -> float | None:
        """How much the figure grows in an hour; None: the history is too short."""
        samples = self._nodes.get(node_id, {}).get(figure)
        return samples.per_hour() if samples is not None else None
