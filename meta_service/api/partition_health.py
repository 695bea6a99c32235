"""What a partition lacks, in the words that operators, metrics and alarms use. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

LEADERLESS: Final = "leaderless"
"""Nothing can be read or written."""
UNDER_MIN_IN_SYNC: Final = "under-min-in-sync"
"""Fewer in sync than `min_in_sync`: nothing is acknowledged as replicated."""
UNDER_REPLICATED: Final = "under-replicated"
"""Fewer in sync than the topic wants, or than there are nodes named."""
MOVING: Final = "moving"
"""It has a target."""
LACKS: Final = (LEADERLESS, UNDER_MIN_IN_SYNC, UNDER_REPLICATED, MOVING)


class WantedReplicas(Protocol):
    """A topic, in the words of the MetaService or of the broker."""

    @property
    def replication(self) -> int:
        """Replicas that it wants; 0: those that it was made with."""


class HeldReplicas(Protocol):
    """A partition, likewise."""

    @property
    def leader(self) -> str | None:
        """None: no node leads it."""

    @property
    def replicas(self) -> Sequence[str]:
        """The preferred leader first."""

    @property
    def in_sync(self) -> Sequence[str]:
        """Those that hold everything up to the high watermark."""

    @property
    def min_in_sync(self) -> int:
        """How many of them it takes."""

    @property
    def target(self) -> Sequence[str]:
        """Where it moves; empty: it does not."""


def lacks(topic: WantedReplicas, partition: HeldReplicas) -> tuple[str, ...]:
    """Those of `LACKS` that hold, in their order; none: it is healthy.

    A move alone makes no partition under-replicated: what counts is how many are in sync, not that
    all that are named are (as Kafka leaves out replicas that are being added).
    """
    wanted = topic.replication or len(partition.target or partition.replicas)
    found = {
        LEADERLESS: partition.leader is None,
        UNDER_MIN_IN_SYNC: len(partition.in_sync) < partition.min_in_sync,
        UNDER_REPLICATED: len(partition.in_sync) < wanted,
        MOVING: bool(partition.target),
    }
    return tuple(name for name in LACKS if found[name])
