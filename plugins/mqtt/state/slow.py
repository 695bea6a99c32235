"""Slow subscribers: who took longest to acknowledge, or to read.

The time runs from when a publish was there for a connected client (sent, or waiting behind others)
to its PUBACK or PUBCOMP; at QoS 0, from when the client's socket was full until it took bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NEVER_MS: Final = 1 << 60


@dataclass(slots=True)
class SlowClient:
    """One client that was slow, with its slowest delivery."""

    client_id: str
    latency_ms: int
    """The longest."""
    topic: str
    """Topic name of that publish; empty: its socket was full."""
    at_ms: int
    """When it was slow last."""
    count: int = 1
    """How often it was."""


class SlowClients:
    """The slowest clients, at most `count_max`, forgotten `expiry_ms` after they were slow last."""

    def __init__(self, threshold_ms: int, count_max: int = 100, expiry_ms: int = 300_000) -> None:
        self.limit(threshold_ms, count_max, expiry_ms)
        self._found: dict[str, SlowClient] = {}
        self.noted = 0
        """How often a client was slow."""

    def limit(self, threshold_ms: int, count_max: int, expiry_ms: int) -> None:
        """Bounds from now on; who is in the list stays until it is full or they expire."""
        self.threshold_ms = threshold_ms or NEVER_MS
        self._count_max = count_max
        self._expiry_ms = expiry_ms

    def note(
        self, client_id: str, topic: str, latency_ms: int, now_ms: int, count: int = 1
    ) -> None:
        """A client took `latency_ms`, which is `threshold_ms` or more; `count`: of so many
        deliveries that were slow, the longest."""
        self.noted += count
        known = self._found.get(client_id)
        if known is not None:
            known.count += count
            known.at_ms = now_ms
            if latency_ms >= known.latency_ms:
                known.latency_ms, known.topic = latency_ms, topic
            return
        if len(self._found) >= self._count_max:
            self._forget(now_ms)
            quickest = min(self._found.values(), key=lambda one: one.latency_ms, default=None)
            if quickest is not None and len(self._found) >= self._count_max:
                if quickest.latency_ms >= latency_ms:
                    return
                del self._found[quickest.client_id]
        self._found[client_id] = SlowClient(client_id, latency_ms, topic, now_ms, count)

    def _forget(self, now_ms: int) -> None:
        old_ms = now_ms - self._expiry_ms
        self._found = {name: one for name, one in self._found.items() if one.at_ms > old_ms}

    def top(self, now_ms: int) -> list[SlowClient]:
        """Slowest first."""
        self._forget(now_ms)
        return sorted(self._found.values(), key=lambda one: (-one.latency_ms, one.client_id))

    def clear(self) -> None:
        """Forget all of them; `noted` stays."""
        self._found.clear()
