"""The port of a replicated partition log: what replication calls on a storage engine.

Three positions matter besides the log's start: `log_end_offset` (appended), `durable_end` (fsynced
here) and `high_watermark` (readable). A log that is alone, of replication 1, moves its high
watermark with its own disk. Of a replicated partition it moves only by `commit_to`: the leader
calls that when every in-sync replica has fsynced a record, a follower with what its leader says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, runtime_checkable

from lakemq.broker_core.api.partition_ports import EpochEnd as EpochEnd
from lakemq.broker_core.api.partition_ports import EpochLog, PartitionLog
from lakemq.broker_core.api.types import Acks, Offset

FetchCommitted = Callable[[Offset, Offset], Awaitable[tuple[bytes, Offset]]]
"""Committed batches that another replica has of [offset, end), some of them or all, and the offset
up to which these are all. Raises Unavailable, CorruptLog."""


@runtime_checkable
class Repairable(Protocol):
    """A partition log whose damaged parts can be copied from another replica. All methods are
    called on the node's event loop."""

    def damaged(self) -> Sequence[Offset]:
        """Segments, by their base offsets, that are known to be damaged and can be repaired: no
        more is appended to them, all of them is committed, and their bytes are on this disk."""

    async def repair(self, base: Offset, fetch: FetchCommitted) -> bool:
        """Repair one of `damaged`; False: it does not need it any more. Readers may read meanwhile,
        and a crash leaves the log as it was. Raises Unavailable (try again), CorruptLog (what
        `fetch` gave does not fit), StorageFenced, what `fetch` raises."""

    def when_damaged(self, repair: Callable[[], Awaitable[bool]] | None) -> None:
        """Have readers that meet damage wait for `repair()` before they are refused; if it returns
        True they read again. None: refuse at once."""


@runtime_checkable
class ReplicaLog(PartitionLog, EpochLog, Protocol):
    """A partition log that can lead or follow.

    It starts as neither: it takes no append and no replica batch before `lead` or `follow`. All
    methods are called on the node's event loop.
    """

    @property
    def durable_end(self) -> Offset:
        """Offset behind the last fsynced record: high watermark <= durable end <= log end."""

    @property
    def sendable_end(self) -> Offset:
        """How far `read_replica` reads: at least to the durable end, and of a leader perhaps what
        it appended and still flushes."""

    @property
    def leads(self) -> bool:
        """Whether it takes appends. A leader whose flush fails after `read_replica` gave away what
        it was to write stops by itself: those offsets are never used again in its epoch, so it
        has to be given another one."""

    def lead(self, epoch: int, *, alone: bool, acks_min: Acks = Acks.MEMORY) -> None:
        """Take appends from now on and stamp their batches with `epoch`, which starts at the log's
        end. `alone`: the high watermark follows the disk by itself, up to the log's end at once.

        `acks_min` raises the acks that an append asks for. Called again in the same epoch when
        `alone` or `acks_min` have changed. Raises ValueError for an epoch below the log's last.
        """

    def follow(self, epoch: int) -> None:
        """Take replica batches in place of appends; appends that wait for acks fail with NotLeader,
        their outcome open. Raises ValueError for an epoch below the log's last."""

    def refuse_replicated(self, reason: str) -> None:
        """Refuse appends with acks `replicated` before they are stored, with NotEnoughReplicas and
        this reason; an empty reason takes them again. Those that wait already go on waiting."""

    def commit_to(self, offset: Offset) -> None:
        """Move the high watermark forward to `offset`, or as far as this log is durable: readers,
        taps and waiting appends with acks `replicated` are told. Never moves it back."""

    def answer_while(self, holds: Callable[[], bool] | None) -> None:
        """Ask `holds()` at the end of each flush, on the event loop: where it is false, what has
        waited for the disk fails with NotLeader, its outcome open. None: always answer."""

    def when_durable(self, callback: Callable[[], None] | None) -> None:
        """Call `callback()` on the event loop, with no argument, after each flush that moved
        `durable_end`, or that failed; one callback, None removes it."""

    def when_appended(self, callback: Callable[[], None] | None) -> None:
        """Call `callback()` within each append: from the next turn of the event loop on
        `sendable_end` may be further, and is read so far. One callback; None removes it, and
        `sendable_end` is the durable end then."""

    def append_replica(self, batches: bytes) -> asyncio.Future[Offset]:
        """Append whole batches of the leader's log as they lie there, without stamping them.

        They are checked first, in linear time: header and body CRC, sizes, base offsets that
        ascend from the log's end (gaps are those that the leader's compaction left), epochs that
        never fall, nor pass that of `follow`. Done with the new durable end; at once without a
        batch. Fails with CorruptBatch (nothing of `batches` is taken), StorageFull, StorageFenced,
        Unavailable; the log then ends at its durable end.
        """

    def read_replica(self, offset: Offset, bytes_max: int) -> asyncio.Future[bytes]:
        """Whole batches of one segment from `offset` up to `sendable_end`, at least one if one is
        there; empty behind it. Done at once where the tail in memory has them. Fails with
        OffsetOutOfRange (below the log's start, above its end), CorruptLog, Unavailable."""

    async def truncate(self, offset: Offset) -> None:
        """Cut all from `offset` on; it is gone from the disk when this returns, and nothing is
        appended meanwhile. Only while it follows, and at the word of the leader. A batch that
        reaches over `offset` goes as a whole: the log may end lower. Nothing happens at or above
        the log's end, but that an empty last segment goes if it begins at `offset`: what is
        appended continues the one before, unless that was rewritten or is elsewhere.

        Raises ValueError below the high watermark, within a batch that is committed and in what
        compaction has rewritten (such a log has to restart); Unavailable (nothing is cut, try
        again), CorruptLog, StorageFenced.
        """

    async def restart_at(self, offset: Offset) -> None:
        """Drop every record: the log starts and ends at `offset`, and so does the high watermark.
        Only while it follows. Durable when this returns. Raises as `truncate` does."""

    def roll_at(self, offset: Offset) -> None:
        """The leader's segment ended at `offset`: the batch from there on starts a new one. To be
        called before that batch is appended, as often as one likes; ignored behind it."""

    def segment_start(self, offset: Offset) -> Offset:
        """Base offset of the segment that holds `offset`: to be told to a follower, as `roll_at`,
        with batches of `read_replica(offset)`."""
