"""Bytes of this node's partition logs, for its heartbeats: a few logs are looked at with each one,
so that it costs the same with ten thousand of them."""

from __future__ import annotations

from typing import Final

from lakemq.broker_core.api.ports import PartitionLog
from lakemq.broker_core.partitions import Partitions
from lakemq.broker_core.replication.types import Place

LOOKS: Final = 128
"""Logs that are looked at at a time."""
ROUND_S: Final = 5.0
"""No log is looked at again before."""


class PartitionSizes:
    """Goes round all open logs. Lives on the event loop."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._left: list[tuple[Place, PartitionLog]] = []
        """To be looked at in this round."""
        self._began_s = float("-inf")
        self._round: dict[Place, tuple[int, bool]] = {}
        self._known: dict[Place, tuple[int, bool]] = {}
        """Bytes, and whether this node leads it: of the round before, and what this one found."""

    def look(self, now_s: float) -> list[tuple[str, int, int]]:
        """(topic id, partition, bytes) of those that were looked at now and are led here. `now_s`:
        a monotonic time."""
        if not self._left and now_s - self._began_s >= ROUND_S:
            self._began_s = now_s
            self._known, self._round = self._round, {}
            self._left = self._partitions.opened()
        seen, self._left = self._left[:LOOKS], self._left[LOOKS:]
        told = []
        for place, log in seen:
            size, led = log.status().size_bytes, self._partitions.is_leader(place)
            self._round[place] = self._known[place] = size, led
            if led:
                told.append((place.topic_id, place.partition, size))
        return told

    def figures(self) -> dict[str, float]:
        """`stored_bytes`: of all logs, `led_bytes`: of those that this node leads, as they were
        when they were looked at."""
        return {
            "stored_bytes": float(sum(size for size, _ in self._known.values())),
            "led_bytes": float(sum(size for size, led in self._known.values() if led)),
        }
