"""The state of one partition of a queue: which consumer may have which record.

Records between `start` (all below are finished) and `end` (none at or above was loaded) are
finished or have an entry. An entry is available, acquired by a consumer until its lock expires,
delayed by a backoff, or exhausted (rejected or out of attempts: on its way to the dead letters, not
delivered any more). The states are those of KIP-932.

With `order=key` only the oldest unfinished record of a key may be delivered, so a key is with one
consumer at a time, and order per key survives redeliveries.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lakemq.broker_core.api.queues.types import QueueSettings, Settlement
from lakemq.broker_core.queues.snapshot import (
    DeadLetterBatch,
    DeadLetterReason,
    DeliveryState,
    Run,
    Snapshot,
    compact,
)


class Delivered(NamedTuple):
    """A record that was acquired for a consumer."""

    offset: int
    attempt: int
    """1 for the first delivery."""


@dataclass(slots=True)
class _Entry:
    """An unfinished record."""

    attempts: int
    key: bytes | None
    reason: DeadLetterReason = DeadLetterReason.NONE
    owner: int = 0
    """Number of the consumer that acquired it; 0: none."""
    due_ms: int = 0
    """Acquired: when the lock expires. Available: when the backoff ends."""


class QueuePartitionState:
    """Deliveries and acknowledgements of one partition, in memory; `snapshot` is what to persist.

    Consumers are numbers; times are of any clock that does not go back (ms).
    """

    def __init__(self, settings: QueueSettings, restored: Snapshot) -> None:
        self.settings = settings
        """May be replaced while no record is acquired."""
        self.topic_id = restored.topic_id
        self.end = restored.start
        self.dead_letter_batch = restored.dead_letter_batch
        self.finished = 0
        """Records finished since this object was made; so are the next."""
        self.redelivered = 0
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._restored = deque(restored.runs)
        """Runs from `end` on."""
        # Offset behind the last record that was delivered: what is loaded but was never delivered
        # need not be kept.
        self._touched_end = restored.start + sum(run.length for run in restored.runs)
        # `order=key`: the unfinished records of each key, ascending; only the first may be
        # delivered.
        self._by_key: dict[bytes, deque[int]] = {}
        # Heaps of offsets, and of (due, offset). They may hold entries that are no longer current,
        # which are left out when they come up: removing from the middle of a heap costs more.
        self._ready: list[int] = []
        self._delayed: list[tuple[int, int]] = []
        self._locks: list[tuple[int, int]] = []
        self._held: dict[int, set[int]] = {}
        self._exhausted: set[int] = set()

    # -- what it is

    @property
    def start(self) -> int:
        """Every record below is finished."""
        return next(iter(self._entries), self.end)

    def held_by(self, consumer: int) -> int:
        """How many records the consumer holds."""
        return len(self._held.get(consumer, ()))

    @property
    def held(self) -> int:
        """How many records are acquired."""
        return sum(map(len, self._held.values()))

    @property
    def unfinished(self) -> int:
        """Records between `start` and `end` that are not finished."""
        return len(self._entries)

    @property
    def ready(self) -> int:
        """About how many records may be delivered now."""
        return len(self._ready)

    def backlog(self, high_watermark: int) -> int:
        """Upper bound of the records that are not finished: gaps in offsets not loaded yet
        count."""
        unfinished = sum(run.length for run in self._restored if run.delivery is not None)
        behind = self.end + sum(run.length for run in self._restored)
        return len(self._entries) + unfinished + max(0, high_watermark - behind)

    @property
    def is_restored(self) -> bool:
        """Whether everything that was ever delivered has been loaded again."""
        return not self._restored

    def has_ready(self, now_ms: int) -> bool:
        """Whether a record may be delivered now."""
        self._end_pauses(now_ms)
        while self._ready and not self._is_free(self._ready[0], now_ms):
            heapq.heappop(self._ready)
        return bool(self._ready)

    def next_due_ms(self) -> int | None:
        """When the next lock or backoff ends; None: there is none."""
        for heap, held in ((self._locks, True), (self._delayed, False)):
            while heap and not self._is_due(*heap[0], held=held):
                heapq.heappop(heap)
        return min((heap[0][0] for heap in (self._locks, self._delayed) if heap), default=None)

    def _is_due(self, due_ms: int, offset: int, *, held: bool) -> bool:
        """Whether an entry of a heap is current: heaps are cleaned lazily."""
        entry = self._entries.get(offset)
        return entry is not None and entry.due_ms == due_ms and bool(entry.owner) == held

    def _is_free(self, offset: int, now_ms: int) -> bool:
        entry = self._entries.get(offset)
        if entry is None or entry.owner or entry.reason or entry.due_ms > now_ms:
            return False
        if self.settings.order != "key" or entry.key is None:
            return True
        return self._by_key[entry.key][0] == offset

    # -- records come

    def load(self, offsets: Sequence[int], keys: Sequence[bytes | None] | None, end: int) -> None:
        """Add records of the log, ascending, from `self.end` on. Offsets below `end` that are not
        among them are gaps, and finished. `keys`: needed for `order=key`."""
        by_key = self.settings.order == "key"
        for at, offset in enumerate(offsets):
            if offset < self.end:
                continue
            delivery = self._delivery_of(offset)
            if delivery is None:
                continue
            key = keys[at] if by_key and keys is not None else None
            entry = self._entries[offset] = _Entry(delivery.attempts, key, delivery.reason)
            if key is not None:
                line = self._by_key.setdefault(key, deque())
                line.append(offset)
                if line[0] != offset:
                    self._note_exhausted(offset, entry)
                    continue
            if not self._note_exhausted(offset, entry):
                heapq.heappush(self._ready, offset)
        self._skip_restored(end)
        self.end = max(self.end, end)
        self._touched_end = max(self._touched_end, self.start)

    def _note_exhausted(self, offset: int, entry: _Entry) -> bool:
        if entry.reason:
            self._exhausted.add(offset)
        return bool(entry.reason)

    def _delivery_of(self, offset: int) -> DeliveryState | None:
        """The restored state of a record at or above `end`, which moves behind it; None:
        finished."""
        self._skip_restored(offset)
        delivery: DeliveryState | None = DeliveryState()
        if self._restored:
            delivery = self._restored[0].delivery
        self._skip_restored(offset + 1)
        self.end = offset + 1
        return delivery

    def _skip_restored(self, offset: int) -> None:
        count = offset - self.end
        while count > 0 and self._restored:
            run = self._restored.popleft()
            if run.length > count:
                self._restored.appendleft(Run(run.length - count, run.delivery))
            count -= run.length
        self.end = max(self.end, offset)

    def advance(self, log_start: int) -> bool:
        """Drop records below the log's start, which retention deleted; whether anything changed."""
        gone = []
        for offset in self._entries:
            # Entries are in the order of offsets, as they were loaded.
            if offset >= log_start:
                break
            gone.append(offset)
        for offset in gone:
            self._finish(offset)
        moved = bool(gone) or self.end < log_start
        if self.end < log_start:
            self._skip_restored(log_start)
        self._touched_end = max(self._touched_end, self.start)
        return moved

    # -- deliveries

    def acquire(self, consumer: int, count: int, now_ms: int) -> list[Delivered]:
        """Acquire up to `count` records for a consumer, the oldest first."""
        found: list[Delivered] = []
        self._end_pauses(now_ms)
        held = self._held.setdefault(consumer, set())
        due_ms = now_ms + self.settings.lock_ms
        while self._ready and len(found) < count:
            offset = heapq.heappop(self._ready)
            # Not lost: if it waits for an older record of its key, `_finish` of that one pushes it
            # again.
            if not self._is_free(offset, now_ms):
                continue
            entry = self._entries[offset]
            entry.attempts += 1
            self.redelivered += entry.attempts > 1
            entry.owner, entry.due_ms = consumer, due_ms
            held.add(offset)
            heapq.heappush(self._locks, (due_ms, offset))
            found.append(Delivered(offset, entry.attempts))
            self._touched_end = max(self._touched_end, offset + 1)
        return found

    def settle(
        self, consumer: int, offset: int, settlement: Settlement, now_ms: int, delay_ms: int = -1
    ) -> bool:
        """Settle a record for a consumer; False: it does not hold the record (any more).

        `delay_ms`: backoff before it is delivered again; -1: by the settings.
        """
        entry = self._entries.get(offset)
        if entry is None or entry.owner != consumer:
            return False
        if settlement is Settlement.EXTEND:
            entry.due_ms = now_ms + self.settings.lock_ms
            # The entry for the old time stays in the heap, and is left out as no longer due.
            heapq.heappush(self._locks, (entry.due_ms, offset))
            return True
        self._held[consumer].discard(offset)
        if settlement is Settlement.ACCEPT:
            self._finish(offset)
        elif settlement is Settlement.REJECT:
            self._give_up(offset, entry, DeadLetterReason.REJECTED)
        elif settlement is Settlement.RELEASE:
            # KIP-932: a released record was not processed, so this delivery does not count.
            entry.attempts -= 1
            self._free(offset, entry, max(0, delay_ms), now_ms)
        else:
            pause_ms = self.settings.backoff_of(entry.attempts) if delay_ms < 0 else delay_ms
            self._give_back(offset, entry, pause_ms, now_ms)
        return True

    def expire(self, now_ms: int) -> list[int]:
        """Release records whose lock expired; their offsets."""
        found = []
        while self._locks and self._locks[0][0] <= now_ms:
            due_ms, offset = heapq.heappop(self._locks)
            if self._is_due(due_ms, offset, held=True):
                entry = self._entries[offset]
                self._held[entry.owner].discard(offset)
                self._give_back(offset, entry, 0, now_ms)
                found.append(offset)
        return found

    def leave(self, consumer: int, now_ms: int) -> bool:
        """Release what a consumer held when it left; whether it held anything. These deliveries
        count as attempts: the consumer may have crashed on one of them."""
        held = sorted(self._held.pop(consumer, ()))
        for offset in held:
            self._give_back(offset, self._entries[offset], 0, now_ms)
        return bool(held)

    def _give_back(self, offset: int, entry: _Entry, pause_ms: int, now_ms: int) -> None:
        limit = self.settings.attempts_max
        if limit and entry.attempts >= limit:
            self._give_up(offset, entry, DeadLetterReason.ATTEMPTS)
        else:
            self._free(offset, entry, pause_ms, now_ms)

    def _free(self, offset: int, entry: _Entry, pause_ms: int, now_ms: int) -> None:
        entry.owner, entry.due_ms = 0, now_ms + pause_ms
        if pause_ms:
            heapq.heappush(self._delayed, (entry.due_ms, offset))
        else:
            heapq.heappush(self._ready, offset)

    def _end_pauses(self, now_ms: int) -> None:
        while self._delayed and self._delayed[0][0] <= now_ms:
            due_ms, offset = heapq.heappop(self._delayed)
            if self._is_due(due_ms, offset, held=False):
                heapq.heappush(self._ready, offset)

    def _finish(self, offset: int) -> None:
        entry = self._entries.pop(offset)
        self.finished += 1
        self._exhausted.discard(offset)
        if entry.owner:
            self._held[entry.owner].discard(offset)
        if entry.key is not None and entry.key in self._by_key:
            line = self._by_key[entry.key]
            line.remove(offset)  # it is the first, or all before it go too
            if not line:
                del self._by_key[entry.key]
            else:
                # The next record of the key was passed over while this one was unfinished.
                heapq.heappush(self._ready, line[0])

    # -- dead letters

    def _give_up(self, offset: int, entry: _Entry, reason: DeadLetterReason) -> None:
        entry.owner, entry.due_ms = 0, 0
        if not self.settings.dead_letter:
            self._finish(offset)
            return
        # It stays first of its key until its copy is written: records behind it wait, so that order
        # holds.
        entry.reason = reason
        self._exhausted.add(offset)

    def exhausted(self, count: int) -> list[tuple[int, DeliveryState]]:
        """The oldest records that are not delivered any more: rejected, or out of attempts. They
        are to be written to the dead letters."""
        found = sorted(self._exhausted)[:count]
        return [
            (at, DeliveryState(self._entries[at].attempts, self._entries[at].reason))
            for at in found
        ]

    def begin_dead_letters(self, batch: DeadLetterBatch) -> None:
        """Its records are written next. Persist a snapshot first: written again after a crash,
        under the same producer id, they are recognized as duplicates."""
        self.dead_letter_batch = batch

    def finish_dead_letters(self) -> None:
        """They are in the topic of dead letters: finish them."""
        assert self.dead_letter_batch is not None
        for offset in self.dead_letter_batch.offsets:
            if offset in self._entries:
                self._finish(offset)
        self.dead_letter_batch = None

    # -- what to keep

    def snapshot(self) -> Snapshot:
        """What to persist."""
        return Snapshot(self.topic_id, self.start, compact(self._runs()), self.dead_letter_batch)

    def _runs(self) -> Iterator[Run]:
        at = self.start
        for offset, entry in self._entries.items():
            if offset >= self._touched_end:
                break
            yield Run(offset - at, None)
            # An open delivery does not count: that the broker stopped is not the record's fault.
            yield Run(1, DeliveryState(entry.attempts - bool(entry.owner), entry.reason))
            at = offset + 1
        # Restored runs that are not loaded yet go on at `end`: the run before them reaches up to
        # there.
        end = self.end if self._restored else min(self.end, self._touched_end)
        yield Run(max(0, end - at), None)
        yield from self._restored


def fresh(topic_id: str, start: int) -> Snapshot:
    """The snapshot of a partition from which nothing was delivered yet."""
    return Snapshot(topic_id, start)


def ranges(offsets: Collection[int]) -> list[tuple[int, int]]:
    """Offsets as (first, last) of runs without gap."""
    found: list[tuple[int, int]] = []
    for offset in sorted(offsets):
        if found and found[-1][1] == offset - 1:
            found[-1] = (found[-1][0], offset)
        else:
            found.append((offset, offset))
    return found
