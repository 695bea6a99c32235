"""One partition of a queue: who may have which record. Pure: events and `now` in, deliveries out.

Records between `start` (all below are finished) and `end` (none at or behind was looked at) are
finished or have an entry. An entry is free, held by a session until its lock ends, waiting for its
pause to end, or dying (on its way to the dead letters, delivered to nobody any more).

With `order=key` only the oldest unfinished record of a key may be delivered, so one key is in one
place at a time, and order per key outlives redeliveries.
"""

from __future__ import annotations

import enum
import heapq
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from lakemq.plugins.native.queues.settings import QueueSettings
from lakemq.plugins.native.queues.snapshot import Burial, Fate, Run, Snapshot, compact

TOO_OFTEN: Final = 1
REJECTED: Final = 2


class Settlement(enum.IntEnum):
    """What a consumer says of a record that it holds."""

    ACCEPT = 0
    """Done with."""
    RETRY = 1
    """Failed: deliver it again after a pause."""
    RELEASE = 2
    """Not tried: deliver it again, and do not count this time."""
    REJECT = 3
    """Never again: to the dead letters, or away when the queue has none."""
    EXTEND = 4
    """Still at it: begin the lock's time anew."""


class Delivered(NamedTuple):
    """A record that a session holds from now on."""

    offset: int
    attempt: int
    """1 for the first delivery."""


@dataclass(slots=True)
class _Entry:
    """An unfinished record."""

    attempts: int
    key: bytes | None
    dying: int = 0
    owner: int = 0
    """Session that holds it; 0: nobody."""
    due_ms: int = 0
    """Held: when the lock ends. Free: when the pause ends."""


class QueuePartition:
    """The state of one partition. Not yet durable: `snapshot` is what to keep."""

    def __init__(self, settings: QueueSettings, restored: Snapshot) -> None:
        self.settings = settings
        """May be replaced while nobody holds a record."""
        self.topic_id = restored.topic_id
        self.end = restored.start
        self.burial = restored.burial
        self.finished = 0
        """Records finished since this object was made; so are the next."""
        self.redelivered = 0
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._restored = deque(restored.runs)
        """Runs from `end` on."""
        self._touched_end = restored.start + sum(run.length for run in restored.runs)
        self._by_key: dict[bytes, deque[int]] = {}
        self._ready: list[int] = []
        self._delayed: list[tuple[int, int]] = []
        self._locks: list[tuple[int, int]] = []
        self._held: dict[int, set[int]] = {}
        self._dying: set[int] = set()

    # -- what it is

    @property
    def start(self) -> int:
        """Every record below is finished."""
        return next(iter(self._entries), self.end)

    def held_by(self, session: int) -> int:
        """How many records the session holds."""
        return len(self._held.get(session, ()))

    @property
    def held(self) -> int:
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
        """Records that are not finished, at most: gaps in offsets that nobody has seen count."""
        unfinished = sum(run.length for run in self._restored if run.fate is not None)
        behind = self.end + sum(run.length for run in self._restored)
        return len(self._entries) + unfinished + max(0, high_watermark - behind)

    @property
    def is_restored(self) -> bool:
        """Whether everything that was ever delivered has been looked at again."""
        return not self._restored

    def has_ready(self, now_ms: int) -> bool:
        """Whether a record may be delivered now."""
        self._end_pauses(now_ms)
        while self._ready and not self._is_free(self._ready[0], now_ms):
            heapq.heappop(self._ready)
        return bool(self._ready)

    def next_due_ms(self) -> int | None:
        """When time brings something next; None: it does not."""
        for heap, held in ((self._locks, True), (self._delayed, False)):
            while heap and not self._is_due(*heap[0], held=held):
                heapq.heappop(heap)
        return min((heap[0][0] for heap in (self._locks, self._delayed) if heap), default=None)

    def _is_due(self, due_ms: int, offset: int, *, held: bool) -> bool:
        """Whether a note in a heap still holds."""
        entry = self._entries.get(offset)
        return entry is not None and entry.due_ms == due_ms and bool(entry.owner) == held

    def _is_free(self, offset: int, now_ms: int) -> bool:
        entry = self._entries.get(offset)
        if entry is None or entry.owner or entry.dying or entry.due_ms > now_ms:
            return False
        if self.settings.order != "key" or entry.key is None:
            return True
        return self._by_key[entry.key][0] == offset

    # -- records come

    def load(self, offsets: Sequence[int], keys: Sequence[bytes | None] | None, end: int) -> None:
        """Take records from the log in, ascending, from `self.end` on. Offsets below `end` that
        are not among them are of no record and finished. `keys`: needed for `order=key`."""
        by_key = self.settings.order == "key"
        for at, offset in enumerate(offsets):
            if offset < self.end:
                continue
            fate = self._fate_of(offset)
            if fate is None:
                continue
            key = keys[at] if by_key and keys is not None else None
            entry = self._entries[offset] = _Entry(fate.attempts, key, fate.dying)
            if key is not None:
                line = self._by_key.setdefault(key, deque())
                line.append(offset)
                if line[0] != offset:
                    self._note_dying(offset, entry)
                    continue
            if not self._note_dying(offset, entry):
                heapq.heappush(self._ready, offset)
        self._skip_restored(end)
        self.end = max(self.end, end)
        self._touched_end = max(self._touched_end, self.start)

    def _note_dying(self, offset: int, entry: _Entry) -> bool:
        if entry.dying:
            self._dying.add(offset)
        return bool(entry.dying)

    def _fate_of(self, offset: int) -> Fate | None:
        """What is known of a record at or behind `end`, which moves there."""
        self._skip_restored(offset)
        fate: Fate | None = Fate()
        if self._restored:
            fate = self._restored[0].fate
        self._skip_restored(offset + 1)
        self.end = offset + 1
        return fate

    def _skip_restored(self, offset: int) -> None:
        count = offset - self.end
        while count > 0 and self._restored:
            run = self._restored.popleft()
            if run.length > count:
                self._restored.appendleft(Run(run.length - count, run.fate))
            count -= run.length
        self.end = max(self.end, offset)

    def advance(self, log_start: int) -> bool:
        """Records below the log's start are gone; whether any was unfinished."""
        gone = []
        for offset in self._entries:
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

    def acquire(self, session: int, count: int, now_ms: int) -> list[Delivered]:
        """Up to `count` records for a session, the oldest first."""
        found: list[Delivered] = []
        self._end_pauses(now_ms)
        held = self._held.setdefault(session, set())
        due_ms = now_ms + self.settings.lock_ms
        while self._ready and len(found) < count:
            offset = heapq.heappop(self._ready)
            if not self._is_free(offset, now_ms):
                continue
            entry = self._entries[offset]
            entry.attempts += 1
            self.redelivered += entry.attempts > 1
            entry.owner, entry.due_ms = session, due_ms
            held.add(offset)
            heapq.heappush(self._locks, (due_ms, offset))
            found.append(Delivered(offset, entry.attempts))
            self._touched_end = max(self._touched_end, offset + 1)
        return found

    def settle(
        self, session: int, offset: int, settlement: Settlement, now_ms: int, delay_ms: int = -1
    ) -> bool:
        """What a session says of a record; False: it does not hold it (any more).

        `delay_ms`: pause before it is delivered again; -1: as the settings have it.
        """
        entry = self._entries.get(offset)
        if entry is None or entry.owner != session:
            return False
        if settlement is Settlement.EXTEND:
            entry.due_ms = now_ms + self.settings.lock_ms
            heapq.heappush(self._locks, (entry.due_ms, offset))
            return True
        self._held[session].discard(offset)
        if settlement is Settlement.ACCEPT:
            self._finish(offset)
        elif settlement is Settlement.REJECT:
            self._condemn(offset, entry, REJECTED)
        elif settlement is Settlement.RELEASE:
            entry.attempts -= 1
            self._free(offset, entry, max(0, delay_ms), now_ms)
        else:
            pause_ms = self.settings.backoff_of(entry.attempts) if delay_ms < 0 else delay_ms
            self._give_back(offset, entry, pause_ms, now_ms)
        return True

    def expire(self, now_ms: int) -> list[int]:
        """Free what was held for too long; the offsets."""
        found = []
        while self._locks and self._locks[0][0] <= now_ms:
            due_ms, offset = heapq.heappop(self._locks)
            if self._is_due(due_ms, offset, held=True):
                entry = self._entries[offset]
                self._held[entry.owner].discard(offset)
                self._give_back(offset, entry, 0, now_ms)
                found.append(offset)
        return found

    def leave(self, session: int, now_ms: int) -> bool:
        """The session is over; whether it held anything. Deliveries count: it may have died of
        one of them."""
        held = sorted(self._held.pop(session, ()))
        for offset in held:
            self._give_back(offset, self._entries[offset], 0, now_ms)
        return bool(held)

    def _give_back(self, offset: int, entry: _Entry, pause_ms: int, now_ms: int) -> None:
        limit = self.settings.attempts_max
        if limit and entry.attempts >= limit:
            self._condemn(offset, entry, TOO_OFTEN)
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
        self._dying.discard(offset)
        if entry.owner:
            self._held[entry.owner].discard(offset)
        if entry.key is not None and entry.key in self._by_key:
            line = self._by_key[entry.key]
            line.remove(offset)  # it is the first, or all before it go too
            if not line:
                del self._by_key[entry.key]
            else:
                heapq.heappush(self._ready, line[0])

    # -- dead letters

    def _condemn(self, offset: int, entry: _Entry, reason: int) -> None:
        entry.owner, entry.due_ms = 0, 0
        if not self.settings.dead_letter:
            self._finish(offset)
            return
        entry.dying = reason
        self._dying.add(offset)

    def dying(self, count: int) -> list[tuple[int, Fate]]:
        """The oldest records that are to be buried."""
        found = sorted(self._dying)[:count]
        return [(at, Fate(self._entries[at].attempts, self._entries[at].dying)) for at in found]

    def begin_burial(self, burial: Burial) -> None:
        """Its records are written next; keep a snapshot first, so that a repetition is known."""
        self.burial = burial

    def end_burial(self) -> None:
        """They are among the dead letters."""
        assert self.burial is not None
        for offset in self.burial.offsets:
            if offset in self._entries:
                self._finish(offset)
        self.burial = None

    # -- what to keep

    def snapshot(self) -> Snapshot:
        return Snapshot(self.topic_id, self.start, compact(self._runs()), self.burial)

    def _runs(self) -> Iterator[Run]:
        at = self.start
        for offset, entry in self._entries.items():
            if offset >= self._touched_end:
                break
            yield Run(offset - at, None)
            # A delivery counts when its end is known: that a broker dies is no record's fault.
            yield Run(1, Fate(entry.attempts - bool(entry.owner), entry.dying))
            at = offset + 1
        end = self.end if self._restored else min(self.end, self._touched_end)
        yield Run(max(0, end - at), None)
        yield from self._restored


def fresh(topic_id: str, start: int) -> Snapshot:
    """A partition of which nothing was ever delivered."""
    return Snapshot(topic_id, start)


def ranges(offsets: Collection[int]) -> list[tuple[int, int]]:
    """Offsets as (first, last) of rows without gap."""
    found: list[tuple[int, int]] = []
    for offset in sorted(offsets):
        if found and found[-1][1] == offset - 1:
            found[-1] = (found[-1][0], offset)
        else:
            found.append((offset, offset))
    return found
