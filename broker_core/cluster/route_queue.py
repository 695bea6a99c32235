"""What one node has to append to one partition that it does not simply own: numbers batches as an
idempotent producer, so that one which is sent again after a lost link or a failover is stored once,
and keeps them in the order in which they came.

Source: KIP-98 (producer id, epoch, sequence), KIP-360 (a new epoch after a gap).
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

from lakemq.broker_core.api.errors import (
    InvalidRequest,
    LakeMQError,
    NotEnoughReplicas,
    NotLeader,
    OutcomeUnknown,
    OutOfOrderSequence,
    ProducerFenced,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from lakemq.broker_core.api.ports import AppendDone
from lakemq.broker_core.api.records.batch import (
    HEADER_BYTES,
    RECORDS_MAX,
    BatchHeader,
    ProducerStamp,
    encode_with_header,
    pack_header,
)
from lakemq.broker_core.api.types import Acks, AppendResult, Columns, Offset
from lakemq.broker_core.publishing.joined_columns import joined

UNDER_WAY_MAX: Final = 5
"""As many batches of a producer as a log remembers: one more, and a repeated one could be taken for
a new one."""
EPOCH_MAX: Final = 0xFFFF
_SEQUENCE_MASK: Final = 0x7FFF_FFFF
_HEADER_ROOM_BYTES: Final = 256
_AGAIN: Final = (NotEnoughReplicas, NotLeader, Unavailable, UnknownPartition, UnknownTopic)
"""Refused before it was stored, and taken soon perhaps: the callee does not lead yet, or any more,
has too much to do, or too few replicas are in sync."""
_GAP: Final = (OutOfOrderSequence, ProducerFenced)
"""The log misses what came before: of this producer epoch it takes no more."""


class Entry:
    """What one caller gave: records, or a whole batch."""

    __slots__ = ("acks", "batch", "columns", "deadline_s", "done", "header", "now_ms", "size_bytes")

    def __init__(
        self,
        acks: Acks,
        done: AppendDone,
        *,
        deadline_s: float,
        size_bytes: int,
        columns: Columns | None = None,
        now_ms: int = 0,
        batch: bytes = b"",
        header: BatchHeader | None = None,
    ) -> None:
        """`deadline_s`: when the caller is to be answered, whatever happens; not before that of the
        entry before. Either `columns` and `now_ms`, or `batch` and `header`, are given."""
        self.acks = acks
        self.done = done
        self.deadline_s = deadline_s
        self.size_bytes = size_bytes
        self.columns = columns
        self.now_ms = now_ms
        self.batch = batch
        self.header = header


class RouteBatch:
    """A batch that is sent, or sent again. `data` is the whole batch, `header` its header."""

    __slots__ = ("acks", "data", "entries", "header", "number", "numbered", "refusal", "sent")

    def __init__(
        self, number: int, entries: list[Entry], header: BatchHeader, data: bytes, *, numbered: bool
    ) -> None:
        """`numbered`: it has a sequence of this node; else its producer numbers its batches."""
        self.number = number
        self.entries = entries
        self.header = header
        self.data = data
        self.acks = entries[0].acks
        self.numbered = numbered
        self.sent = 0
        """How often it was sent and may have been stored, as far as is known."""
        self.refusal: NotEnoughReplicas | None = None
        """The last one."""

    def stamp(self, producer: ProducerStamp) -> None:
        """Give it another place in the order of a producer."""
        self.header = self.header._replace(
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=producer.base_sequence,
        )
        self.data = b"".join((pack_header(self.header), memoryview(self.data)[HEADER_BYTES:]))


class WaitingBytes:
    """Size of all entries of several queues that have not been answered."""

    __slots__ = ("size_bytes",)

    def __init__(self) -> None:
        self.size_bytes = 0


class RouteQueue:
    """Batches for one partition. Callers are answered by their `done`, once each."""

    def __init__(self, waiting: WaitingBytes) -> None:
        """`waiting`: what this queue and others keep in memory together."""
        self._bytes = waiting
        self._producer_id = -1
        self._epoch = 0
        self._sequence = 0
        self._numbers = 0
        self._waiting: deque[Entry] = deque()
        self._again: list[RouteBatch] = []
        """To be sent before what waits, in order."""
        self._under_way: list[RouteBatch] = []
        self._drains = False
        """Nothing is sent until all that is under way is answered: else it could overtake."""
        self._gap = False
        """What is sent next begins a new producer epoch."""

    def __len__(self) -> int:
        return len(self._waiting) + len(self._again) + len(self._under_way)

    @property
    def needs_producer_id(self) -> bool:
        """Nothing can be sent before `use` is called: there is none yet, or its epochs are used
        up."""
        return self._producer_id < 0 or (self._gap and self._epoch == EPOCH_MAX)

    def use(self, producer_id: int) -> None:
        """Number batches as this producer, which has written to the partition never before."""
        self._producer_id = producer_id
        self._epoch = -1
        self._gap = self._drains = True

    def add(self, entry: Entry) -> None:
        """Take one more."""
        self._waiting.append(entry)
        self._count(entry.size_bytes)

    def _count(self, size_bytes: int) -> None:
        self._bytes.size_bytes += size_bytes

    def next(self, batch_max_bytes: int) -> RouteBatch | None:
        """The next batch to send; None: wait. Records of several callers share one, up to
        `batch_max_bytes`."""
        if self.needs_producer_id or (self._drains and self._under_way):
            return None
        self._drains = False
        if self._gap:
            self._renumber()
        if self._again:
            if len(self._under_way) == UNDER_WAY_MAX:
                return None
            batch = self._again.pop(0)
        else:
            # Counted from the oldest, though some behind it may be answered: the log must remember
            # that one still.
            if self._under_way and self._numbers - self._under_way[0].number >= UNDER_WAY_MAX - 1:
                return None
            built = self._build(batch_max_bytes - _HEADER_ROOM_BYTES)
            if built is None:
                return None
            batch = built
        batch.sent += 1
        insort(self._under_way, batch, key=_number)
        return batch

    def _renumber(self) -> None:
        self._gap = False
        self._epoch += 1
        self._sequence = 0
        for batch in self._again:
            if batch.numbered:
                batch.stamp(self._stamp(batch.header.record_count))

    def _stamp(self, count: int) -> ProducerStamp:
        stamp = ProducerStamp(self._producer_id, self._epoch, self._sequence)
        self._sequence = (self._sequence + count) & _SEQUENCE_MASK
        return stamp

    # -- from entries to batches

    def _build(self, room_bytes: int) -> RouteBatch | None:
        while self._waiting:
            first = self._waiting[0]
            if first.header is not None:
                self._waiting.popleft()
                return self._whole(first, first.header)
            entries = self._together(room_bytes)
            batch = self._encoded(entries)
            if batch is None and len(entries) > 1:
                # One of them holds what no batch does: each for itself, to find it.
                entries = entries[:1]
                batch = self._encoded(entries)
            for _ in entries:
                self._waiting.popleft()
            if batch is not None:
                return batch
            self._answer(entries, InvalidRequest("the records make no batch"))
        return None

    def _whole(self, entry: Entry, header: BatchHeader) -> RouteBatch:
        numbered = header.producer_id < 0
        self._numbers += 1
        batch = RouteBatch(self._numbers, [entry], header, entry.batch, numbered=numbered)
        if numbered:
            batch.stamp(self._stamp(header.record_count))
        return batch

    def _together(self, room_bytes: int) -> list[Entry]:
        """The first entries that may share a batch."""
        found: list[Entry] = []
        size = count = 0
        for entry in self._waiting:
            columns = entry.columns
            if columns is None or entry.acks is not self._waiting[0].acks:
                break
            size += entry.size_bytes
            count += len(columns.values)
            if found and (size > room_bytes or count > RECORDS_MAX):
                break
            found.append(entry)
        return found

    def _encoded(self, entries: list[Entry]) -> RouteBatch | None:
        times = [entry.now_ms for entry in entries]
        parts = [entry.columns for entry in entries if entry.columns is not None]
        stamp = ProducerStamp(self._producer_id, self._epoch, self._sequence)
        try:
            header, data = encode_with_header(
                joined(parts, times), now_ms=times[-1], producer=stamp
            )
        except (ValueError, TypeError):
            return None
        self._stamp(header.record_count)
        self._numbers += 1
        return RouteBatch(self._numbers, entries, header, data, numbered=True)

    # -- answers

    def answered(self, batch: RouteBatch, outcome: AppendResult | LakeMQError) -> bool:
        """What became of a batch that is under way. False: it is to be sent again, not at once."""
        if batch not in self._under_way:
            return True
        self._under_way.remove(batch)
        if isinstance(outcome, AppendResult):
            self._stored(batch, outcome)
            return True
        if isinstance(outcome, NotEnoughReplicas):  # the one answer that says it is not stored
            batch.sent -= 1
            batch.refusal = outcome
        if isinstance(outcome, _AGAIN) or (isinstance(outcome, _GAP) and batch.numbered):
            # Only of the first one a gap says that neither it nor those behind it are stored; with
            # one before it, that one is sent again first, under the number that it has.
            self._gap |= isinstance(outcome, _GAP) and self._is_first(batch)
            self._drains = True
            self._put_back(batch)
            return isinstance(outcome, _GAP)
        # What comes behind it is taken for out of order then, and numbered again; not before: the
        # refused batch may have been stored when it was sent first, and those behind it too.
        self._answer(batch.entries, outcome)
        return True

    def _is_first(self, batch: RouteBatch) -> bool:
        return all(
            each.number > batch.number or not each.numbered
            for each in chain(self._under_way, self._again)
        )

    def _stored(self, batch: RouteBatch, result: AppendResult) -> None:
        offset = int(result.base_offset)
        entries, batch.entries = batch.entries, []
        for entry in entries:
            columns = entry.columns
            following = offset + (
                batch.header.record_count if columns is None else len(columns.values)
            )
            self._count(-entry.size_bytes)
            entry.done(
                AppendResult(Offset(offset), Offset(following - 1), result.acks, result.duplicate)
            )
            offset = following

    def lost(self) -> None:
        """The link, or the leader, of all that is under way is lost: it is sent again."""
        under_way, self._under_way = self._under_way, []
        for batch in under_way:
            self._put_back(batch)

    def _put_back(self, batch: RouteBatch) -> None:
        if batch.entries:
            insort(self._again, batch, key=_number)

    def expire(self, now_s: float, why: str) -> None:
        """Answer who waits no longer: OutcomeUnknown where the records may be stored, else
        NotEnoughReplicas if that is why, or NotLeader."""
        late: list[tuple[list[Entry], LakeMQError]] = []
        for batch in (*self._under_way, *self._again):
            if batch.entries and batch.entries[0].deadline_s <= now_s:
                late.append((batch.entries, _expired(why, batch)))
                batch.entries = []
        self._again = [batch for batch in self._again if batch.entries]
        waiting: list[Entry] = []
        while self._waiting and self._waiting[0].deadline_s <= now_s:
            waiting.append(self._waiting.popleft())
        late.append((waiting, NotLeader(why)))
        # Last: who is answered may come again at once.
        for entries, error in late:
            self._answer(entries, error)

    def deadline_s(self) -> float | None:
        """When the first caller is to be answered; None: none waits."""
        return next((entry.deadline_s for entry in self._entries()), None)

    def fail(self, error: LakeMQError) -> None:
        """Answer all: there is no way for them any more."""
        entries = list(self._entries())
        self._waiting.clear()
        self._again, self._under_way = [], []
        self._answer(entries, error)

    def _entries(self) -> Iterator[Entry]:
        for batch in chain(self._under_way, self._again):
            yield from batch.entries
        yield from self._waiting

    def _answer(self, entries: Sequence[Entry], error: LakeMQError) -> None:
        for entry in entries:
            self._count(-entry.size_bytes)
            entry.done(error)


def _number(batch: RouteBatch) -> int:
    return batch.number


def _expired(why: str, batch: RouteBatch) -> LakeMQError:
    if batch.sent:
        return OutcomeUnknown(f"{why}; the records may be stored or not")
    if batch.refusal is not None:
        return NotEnoughReplicas(f"{why}: {batch.refusal}")
    return NotLeader(why)
