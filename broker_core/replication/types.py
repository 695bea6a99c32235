"""What leaders and followers of a partition tell each other, and what they look at."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from lakemq.broker_core.api.types import Offset

NO_EPOCH: Final = -1
"""Epoch of the batch before the first one."""


class LogState(Protocol):
    """What replication looks at in a partition's log; a `ReplicaLog` has it all."""

    @property
    def log_start_offset(self) -> Offset:
        """First offset that is still there."""

    @property
    def high_watermark(self) -> Offset:
        """Readers see offsets below it."""

    @property
    def durable_end(self) -> Offset:
        """Offset behind the last fsynced record."""

    @property
    def log_end_offset(self) -> Offset:
        """Offset that the next record gets."""

    def last_epoch(self, offset: Offset | None = None) -> int:
        """Leader epoch of the last batch below `offset` (None: the log's end); -1 without one."""

    def epoch_end(self, epoch: int) -> tuple[int, Offset]:
        """(greatest epoch of the log that is not above `epoch`, or -1; where it ends)."""

    def segment_start(self, offset: Offset) -> Offset:
        """Base offset of the segment that holds `offset`."""


class View(NamedTuple):
    """What the catalog says of a partition, for its leader, as of one partition epoch."""

    epoch: int
    """Leader epoch."""
    partition_epoch: int
    """Raised by every change of the row (KIP-497), that of `min_in_sync` too."""
    in_sync: frozenset[str]
    replicas: frozenset[str]
    """With those of a move's target."""
    min_in_sync: int


class KnownRow(Protocol):
    """What a node knows of the catalog's row of a partition."""

    @property
    def counts(self) -> bool:
        """Whether it counts on the replica here (in sync or eligible), in this leader epoch or a
        later one."""

    @property
    def partition_epoch(self) -> int:
        """Of the newest row that was obeyed here: no older one will be."""


class Ask(NamedTuple):
    """What a follower wants next, and how far it is. A `SlotAsk` on the wire."""

    offset: Offset
    """Its log's end."""
    last_epoch: int
    """Leader epoch of the batch before `offset`; -1: its log is empty."""
    durable: Offset
    """Its durable end."""
    full: bool = False
    """Its disk is full: it wants no records, and counts as out of sync."""
    partition_epoch: int = 0
    """`KnownRow.partition_epoch`."""


class FollowerAsk(NamedTuple):
    """An ask, and who said it. The node is that of the connection, never a field of a message."""

    node: str
    broker_epoch: int
    """Of the registration that the follower's process has (KIP-903)."""
    epoch: int
    """Leader epoch under which the follower opened its slot."""
    ask: Ask


class Code(enum.StrEnum):
    """Why a leader sends no records."""

    STALE_EPOCH = "STALE_EPOCH"
    """The follower's epoch is older than the leader's, or its registration is."""
    UNKNOWN_EPOCH = "UNKNOWN_EPOCH"
    """The follower's epoch is newer: the leader has not heard of it yet, and stops leading."""
    NOT_LEADER = "NOT_LEADER"
    """The node asked does not lead the partition, as far as it knows."""
    NOT_REPLICA = "NOT_REPLICA"
    """The leader's catalog does not name the follower, yet or any more."""
    NOT_READY = "NOT_READY"
    """The leader can't compare the logs before a flush has ended: ask again soon."""
    RESTART = "RESTART"
    """What the follower has ends before the leader's log starts: it drops all and begins there."""
    CORRUPT = "CORRUPT"
    """The leader can't read its log there."""


class Diverging(NamedTuple):
    """The follower's log is not a beginning of the leader's (KIP-595 in place of a second call)."""

    epoch: int
    """Greatest epoch of the leader's log that is not above the one that the follower named."""
    end_offset: Offset
    """Where it ends in the leader's log."""


class LeaderSend(NamedTuple):
    """What a leader tells a follower of one partition. A `SlotSend` on the wire."""

    base: Offset
    """The offset that was asked for, whatever offset the first batch has (compaction)."""
    batches: bytes = b""
    """Whole batches, back to back, as they lie; none: only the numbers have changed."""
    high_watermark: Offset = Offset(0)
    log_start: Offset = Offset(0)
    roll_at: int = 0
    """`base`, when a segment of the leader's log starts there; 0: none does."""
    diverging: Diverging | None = None
    code: Code | None = None
    leader_epoch: int = 0
    """With STALE_EPOCH, UNKNOWN_EPOCH, NOT_LEADER: the epoch that the answering node knows."""


class InSyncWish(NamedTuple):
    """Whom a leader wants in sync. Compare-and-set on both epochs in the catalog."""

    epoch: int
    partition_epoch: int
    members: Mapping[str, int]
    """Node -> broker epoch as the leader heard it (KIP-903); 0: it has said nothing in this epoch,
    which only a member that is in sync already can be."""


class WishCode(enum.StrEnum):
    """What became of a wish: the catalog's answers, and UNANSWERED when none came."""

    DONE = "DONE"
    STALE = "STALE"
    INELIGIBLE = "INELIGIBLE"
    UNKNOWN = "UNKNOWN"
    UNANSWERED = "UNANSWERED"


class WishAnswer(NamedTuple):
    """The catalog's answer to a wish, an `InSyncAnswer` on the wire. All but the code counts with
    DONE and STALE only."""

    code: WishCode
    leader_epoch: int = 0
    partition_epoch: int = 0
    in_sync: frozenset[str] = frozenset()


class Place(NamedTuple):
    """A partition, by what never changes."""

    topic_id: str
    """32 hex digits."""
    partition: int
