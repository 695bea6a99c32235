"""A replicated partition log in memory, over a disk that forgets what was not fsynced.

`SimulatedLog` has no event loop: the simulation says when a flush ends, and how. Batches are real
ones, checked as a storage engine checks them.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

from lakemq.broker_core.api.errors import CorruptBatch
from lakemq.broker_core.api.records.batch import (
    HEADER_BYTES,
    BatchHeader,
    check_body,
    pack_header,
    split,
)
from lakemq.broker_core.api.types import Offset
from lakemq.plugins.journal.segment.epochs import EpochStarts, EpochTable

DUPLICATES = 5
"""Batches of a producer that are known again."""


class Stored(NamedTuple):
    """A batch at its place."""

    header: BatchHeader
    data: bytes


class Disk:
    """What is left of a log when its process ends."""

    def __init__(self, storage_id: str) -> None:
        self.storage_id = storage_id
        self.start = 0
        self.batches: list[Stored] = []
        self.synced = 0
        """How many of `batches` are fsynced."""
        self.committed = 0
        """The high watermark as it was written last."""
        self.rolls: list[int] = [0]
        """Where segments begin."""
        self.epochs: EpochStarts = ()
        """Those of batches that were deleted or compacted away, and others."""
        self.compacted_end = 0
        """Segments below it can't be cut: compaction has rewritten them."""
        self.damaged = False
        """Batches that were fsynced are gone, and the cluster does not know it."""

    @property
    def durable_end(self) -> int:
        return self.batches[self.synced - 1].header.last_offset + 1 if self.synced else self.start

    def lose_power(self, rng: random.Random) -> None:
        """What was written and not fsynced may be there, up to where it is torn."""
        if rng.random() < 0.5:
            self.synced = rng.randint(self.synced, len(self.batches))
        del self.batches[self.synced :]
        self.rolls = [each for each in self.rolls if each <= self.durable_end] or [self.start]

    def damage(self, rng: random.Random) -> None:
        """Some of what was fsynced is gone, or all of it."""
        self.damaged = True
        self.synced = rng.choice((0, rng.randint(0, self.synced)))
        self.cut(self.durable_end)

    def cut(self, offset: int) -> None:
        """Durable when it returns."""
        while self.batches and self.batches[-1].header.last_offset >= offset:
            self.batches.pop()
        self.synced = min(self.synced, len(self.batches))
        self.committed = min(self.committed, self.durable_end)
        # Where compaction has rewritten the segment before it, an empty one stays.
        keeps = max(offset, self.compacted_end + 1)
        self.rolls = [each for each in self.rolls if each < keeps] or self.rolls[:1]
        self.epochs = tuple(each for each in self.epochs if each[1] < self.durable_end)

    def restart(self, offset: int) -> None:
        """Durable when it returns."""
        self.start = self.committed = self.compacted_end = offset
        self.batches.clear()
        self.synced = 0
        self.rolls = [offset]
        self.epochs = ()


class Refused(Exception):
    """The log takes no such append."""


class SimulatedLog:
    """Implements `LogState`, and what a `ReplicaLog` does, without an event loop."""

    def __init__(self, disk: Disk) -> None:
        """Recover what is on the disk; all of that is fsynced then."""
        self.disk = disk
        disk.synced = len(disk.batches)
        self.epoch = -1
        """Of `lead` or `follow`; -1: it has no role."""
        self.leads = False
        self.fenced = False
        self.waiting: list[tuple[int, Callable[[bool], None]]] = []
        """(offset behind an append, told True when it is committed, False: outcome open)."""
        self.when_committed: Callable[[int], None] = lambda before: None
        """Called with the high watermark that was, before anyone is told of the new one."""
        self.log_start_offset = Offset(disk.start)
        self.log_end_offset = self.durable_end = Offset(disk.durable_end)
        self.high_watermark = Offset(min(max(disk.committed, disk.start), self.durable_end))
        self._look()

    def _look(self) -> None:
        """Epochs and producers, from the batches."""
        self._epochs = EpochTable(self.disk.epochs)
        self._bases: list[int] = []
        self._producers: dict[int, dict[int, int]] = {}
        end = self.disk.start
        for stored in self.disk.batches[: self.disk.synced] if self.fenced else self.disk.batches:
            self._note(stored.header, end)
            end = stored.header.last_offset + 1

    def _note(self, header: BatchHeader, end: int) -> None:
        self._epochs.note(header, end)
        self._bases.append(header.base_offset)
        if header.producer_id >= 0:
            known = self._producers.setdefault(header.producer_id, {})
            known[header.base_sequence] = header.last_offset + 1
            if len(known) > DUPLICATES:
                del known[next(iter(known))]

    # ------------------------------------------------------------ what is there

    @property
    def epochs(self) -> EpochStarts:
        return self._epochs.starts()

    def last_epoch(self, offset: Offset | None = None) -> int:
        return self._epochs.last if offset is None else self._epochs.epoch_at(offset)

    def epoch_end(self, epoch: int) -> tuple[int, Offset]:
        found, end = self._epochs.end_of(epoch, self.log_start_offset, self.log_end_offset)
        return found, Offset(end)

    def segment_start(self, offset: Offset) -> Offset:
        return Offset(
            max((each for each in self.disk.rolls if each <= offset), default=self.log_start_offset)
        )

    def read(self, offset: int, offset_end: int, batches_max: int) -> bytes:
        """Up to `offset_end`, of one segment, from the batch on that holds `offset`."""
        first = self._at_or_behind(offset)
        # Segments of which compaction left nothing are passed over.
        begin = max([offset, *self._bases[first : first + 1]])
        next_segment = min((each for each in self.disk.rolls if each > begin), default=None)
        last = min(first + batches_max, bisect_left(self._bases, offset_end))
        if next_segment is not None:
            last = min(last, bisect_left(self._bases, next_segment))
        return b"".join(each.data for each in self.disk.batches[first:last])

    def _at_or_behind(self, offset: int) -> int:
        """Number of the first batch that ends behind `offset`."""
        first = bisect_left(self._bases, offset)
        reaches = first > 0 and self.disk.batches[first - 1].header.last_offset >= offset
        return first - reaches

    def batches_between(self, start: int, end: int) -> list[Stored]:
        """Those that hold an offset of this range."""
        return self.disk.batches[self._at_or_behind(start) : bisect_left(self._bases, end)]

    # ------------------------------------------------------------ roles

    def lead(self, epoch: int) -> None:
        assert epoch >= self.last_epoch(), f"epoch {epoch} below {self.last_epoch()}"
        self.epoch, self.leads = epoch, True

    def follow(self, epoch: int) -> None:
        assert epoch >= self.last_epoch(), f"epoch {epoch} below {self.last_epoch()}"
        self.epoch, self.leads = epoch, False
        self.fail_waiting(0)

    def fail_waiting(self, behind: int) -> None:
        """Appends that end above `behind` are told that their outcome is open."""
        failed = [told for end, told in self.waiting if end > behind]
        self.waiting = [each for each in self.waiting if each[0] <= behind]
        for told in failed:
            told(False)

    # ------------------------------------------------------------ writing

    def append(self, data: bytes, header: BatchHeader, done: Callable[[int, bool], None]) -> None:
        """`done(offset behind it, committed)`. Raises Refused."""
        if not self.leads or self.fenced:
            raise Refused("does not lead")
        known = self._producers.get(header.producer_id, {})
        end = known.get(header.base_sequence)
        if end is None:
            due = max(known) + 1 if known else 0
            if header.producer_id >= 0 and header.base_sequence != due:
                raise Refused("out of order")
            header = header._replace(base_offset=self.log_end_offset, leader_epoch=self.epoch)
            self._take(Stored(header, pack_header(header) + data[HEADER_BYTES:]))
            end = self.log_end_offset
        if end <= self.high_watermark:
            done(end, True)
        else:
            stored_end = end
            self.waiting.append((end, lambda committed: done(stored_end, committed)))

    def append_replica(self, batches: bytes) -> None:
        """Raises Refused: nothing of it was taken."""
        if self.leads or self.fenced or self.epoch < 0:
            raise Refused("does not follow")
        end, epoch = self.log_end_offset, self.last_epoch()
        try:
            found = list(split(batches))
            for position, header in found:
                check_body(header, batches[position + HEADER_BYTES : position + header.total_bytes])
        except CorruptBatch as error:
            raise Refused(str(error)) from None
        for _, header in found:
            begins = end == self.log_start_offset and header.last_offset >= end
            if (
                header.base_offset < end and not begins
            ) or not epoch <= header.leader_epoch <= self.epoch:
                raise Refused(f"batch at {header.base_offset} of epoch {header.leader_epoch}")
            end, epoch = Offset(header.last_offset + 1), header.leader_epoch
        for position, header in found:
            self._take(Stored(header, batches[position : position + header.total_bytes]))

    def _take(self, stored: Stored) -> None:
        self.disk.batches.append(stored)
        self._note(stored.header, self.log_end_offset)
        self.log_end_offset = Offset(stored.header.last_offset + 1)

    def roll_at(self, offset: int) -> None:
        if not self.fenced and offset > self.disk.rolls[-1]:
            self.disk.rolls.append(offset)

    def commit_to(self, offset: int) -> None:
        before = self.high_watermark
        self.high_watermark = max(before, Offset(min(offset, self.durable_end)))
        if self.high_watermark > before:
            self.when_committed(before)
        done = [told for end, told in self.waiting if end <= self.high_watermark]
        self.waiting = [each for each in self.waiting if each[0] > self.high_watermark]
        for told in done:
            told(True)

    # ------------------------------------------------------------ the disk

    def flush(self, batches: int | None = None) -> bool:
        """The first `batches` that wait for the disk are fsynced; None: all. Whether any were."""
        before = self.disk.synced
        waiting = len(self.disk.batches) - before
        self.disk.synced += waiting if batches is None else min(batches, waiting)
        self.durable_end = Offset(self.disk.durable_end)
        return self.disk.synced > before

    def fail_flush(self) -> bool:
        """The disk was full: offsets that are not durable are free again. Whether any were."""
        if self.disk.synced == len(self.disk.batches):
            return False
        self._cut(self.durable_end)
        self.fail_waiting(self.durable_end)
        return True

    def fence(self) -> None:
        """An fsync failed: what it wrote may be there after a restart, and nothing more is written
        before that."""
        self.fenced = True
        self.log_end_offset = self.durable_end
        self._look()
        self.fail_waiting(0)

    def checkpoint(self) -> None:
        """The high watermark is written down."""
        self.disk.committed = max(self.disk.committed, self.high_watermark)

    def truncate(self, offset: int) -> None:
        """At the log's end only an empty segment goes. Raises ValueError below the high watermark,
        and where segments are compacted."""
        if offset < max(self.high_watermark, self.disk.compacted_end):
            raise ValueError(f"cut at {offset}, high watermark {self.high_watermark}")
        self._cut(offset)

    def delete_records(self, before: int) -> None:
        """The log starts at `before`, which is committed."""
        assert before <= self.high_watermark
        if before <= self.log_start_offset:
            return
        disk = self.disk
        self._epochs.forget_before(before)
        disk.epochs = tuple(each for each in self.epochs if each[1] < disk.durable_end)
        disk.start = self.log_start_offset = Offset(before)
        gone = self._at_or_behind(before)
        del disk.batches[:gone]
        disk.synced -= gone
        # The segment that holds `before` stays as it is.
        disk.rolls = [self.segment_start(Offset(before)), *(e for e in disk.rolls if e > before)]
        self._look()

    def remembered_from(self) -> int:
        """Where the oldest batch begins that its producer may send again. A storage engine knows
        producers of what it has deleted too."""
        known = {(id, number) for id, kept in self._producers.items() for number in kept}
        bases = (
            each.header.base_offset
            for each in self.disk.batches
            if (each.header.producer_id, each.header.base_sequence) in known
        )
        return min(bases, default=0)

    def compact(self, newer: Callable[[Stored], bool], end: int) -> list[Stored]:
        """Drop batches of sealed segments below `end` that `newer` ones replace, but for the last
        of them; those that are gone."""
        disk = self.disk
        sealed = max((each for each in disk.rolls if each <= end), default=0)
        count = bisect_left(self._bases, sealed)
        gone = [each for each in disk.batches[: max(0, count - 1)] if newer(each)]
        if gone:
            disk.epochs = tuple(each for each in self.epochs if each[1] < disk.durable_end)
            disk.compacted_end = max(disk.compacted_end, sealed)
            disk.batches = [each for each in disk.batches if each not in gone]
            disk.synced -= len(gone)
            self._look()
        return gone

    def _cut(self, offset: int) -> None:
        self.disk.cut(offset)
        self.durable_end = Offset(min(self.durable_end, self.disk.durable_end))
        batches = self.disk.batches
        end = batches[-1].header.last_offset + 1 if batches else self.log_start_offset
        self.log_end_offset = Offset(end)
        self._look()

    def restart_at(self, offset: int) -> None:
        self.disk.restart(offset)
        self.log_start_offset = self.log_end_offset = Offset(offset)
        self.durable_end = self.high_watermark = Offset(offset)
        self._look()
