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
_NAME_MAX: Final = 64
_FIGURE_MAX: Final = 1e18
"""Sums and slopes of such figures are numbers still."""
_HOUR_S: Final = 3600.0


def figures_of(load: Mapping[str, float]) -> dict[str, float]:
    """What is believed of a heartbeat's figures: without those that are no numbers to reckon with,
    one of which would be in the advice for all nodes, and without more than can be kept."""
    usable = (
        name
        for name, value in load.items()
        if len(name) <= _NAME_MAX and -_FIGURE_MAX <= value <= _FIGURE_MAX
    )
    return {name: load[name] for name in sorted(usable)[:FIGURES_MAX]}


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
        """Take a sample if the last one is `SAMPLE_S` old. Nodes and figures that `loads` has no
        more are forgotten. `loads`: as `figures_of` gives them, by node."""
        if not loads or now_s - self._sampled_s < SAMPLE_S:
            return
        self._sampled_s = now_s
        before, self._nodes = self._nodes, {}
        for node_id, figures in loads.items():
            old = before.get(node_id, {})
            kept = self._nodes[node_id] = {name: old.get(name, _Samples()) for name in figures}
            for name, samples in kept.items():
                samples.points.append((now_s, figures[name]))

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
