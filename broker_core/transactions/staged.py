"""Staged batches that are not committed, by owner, batch id and attempt; bounded in bytes and time.

Sizes are bytes, times milliseconds of a clock that never goes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from lakemq.broker_core.api.errors import (
    InvalidRequest,
    StagingFull,
    TransactionAborted,
    Unavailable,
)
from lakemq.broker_core.api.transactions.types import Owner, StagedBatchId, Winner
from lakemq.broker_core.transactions.formats import StagedKey
from lakemq.broker_core.transactions.state import StagedRef


@dataclass(frozen=True, slots=True)
class StagingLimits:
    """What may be staged at a time."""

    owner_max_bytes: int
    total_max_bytes: int
    owner_batches_max: int


@dataclass(slots=True, eq=False)
class Staged:
    """One staged batch."""

    key: StagedKey
    log_partition: int
    offset: int
    size_bytes: int
    durable: bool = False
    waiting: list[Any] = field(default_factory=list)
    """Futures of the callers that wait for it; `settle` sets them."""

    def when_durable(self, future: Any) -> None:
        """Set the future once the batch is durable: to whether it was durable already."""
        if self.durable:
            future.set_result(True)
        else:
            self.waiting.append(future)

    def settle(self, error: BaseException | None) -> None:
        """The append ended: answer all callers that wait, with the error if there is one."""
        self.durable = error is None
        for future in self.waiting:
            if future.done():  # its caller was cancelled
                continue
            if error is None:
                future.set_result(False)
            else:
                future.set_exception(error)
        self.waiting.clear()

    @property
    def entry(self) -> StagedRef:
        """How a commit names this batch."""
        return StagedRef(self.log_partition, self.offset, self.key.records)


@dataclass(slots=True)
class _StagedOfBatch:
    """The batches staged for one batch id."""

    touched_ms: int
    attempts: dict[tuple[int, int], list[Staged]] = field(default_factory=dict)

    def batches(self) -> Iterator[Staged]:
        for staged in self.attempts.values():
            yield from staged


@dataclass(slots=True)
class _StagedOfOwner:
    size_bytes: int = 0
    batches: int = 0
    open: dict[int, _StagedOfBatch] = field(default_factory=dict)


class StagedTable:
    """All staged batches of a node."""

    def __init__(self, limits: StagingLimits) -> None:
        self.total_bytes = 0
        self.dropped = 0
        """Batches that were dropped so far."""
        self.limits = limits
        self._owners: dict[Owner, _StagedOfOwner] = {}

    def size_of(self, owner: Owner) -> tuple[int, int]:
        """(batches, bytes)"""
        owned = self._owners.get(owner)
        return (owned.batches, owned.size_bytes) if owned else (0, 0)

    def find(self, key: StagedKey, now_ms: int) -> Staged | None:
        """The batch, if it is staged already. Unavailable: one before it is missing and has to be
        sent again. InvalidRequest: a different one was sent under that number."""
        place = key.place
        staged = self._attempt(place)
        if place.number < len(staged):
            found = staged[place.number]
            # Number and content: a writer that gives other records the same number is wrong, and
            # would lose one of them.
            if found.key != key:
                raise InvalidRequest(
                    f"{place.owner} task {place.task} attempt {place.attempt}: batch "
                    f"{place.number} differs from the one staged before; use a new attempt"
                )
            self._touch(place, now_ms)
            return found
        # Without gaps, so that the number of batches is all that a commit need name.
        if place.number > len(staged):
            raise Unavailable(
                f"{place.owner} task {place.task} attempt {place.attempt}: batch {place.number} "
                f"is out of order, {len(staged)} is next; send again from there"
            )
        return None

    def check_room(self, owner: Owner, size_bytes: int) -> None:
        """Raises StagingFull."""
        batches, owned_bytes = self.size_of(owner)
        limits = self.limits
        if owned_bytes + size_bytes > limits.owner_max_bytes:
            raise StagingFull(
                f"{owner} has {owned_bytes} bytes staged; the limit is {limits.owner_max_bytes}"
            )
        if self.total_bytes + size_bytes > limits.total_max_bytes:
            raise StagingFull(
                f"{self.total_bytes} bytes are staged in all; the limit is {limits.total_max_bytes}"
            )
        if batches >= limits.owner_batches_max:
            raise StagingFull(
                f"{owner} has {batches} batches staged; the limit is {limits.owner_batches_max}"
            )

    def add(self, staged: Staged, now_ms: int) -> None:
        """After the last one of its attempt."""
        place = staged.key.place
        owned = self._owners.setdefault(place.owner, _StagedOfOwner())
        opened = owned.open.setdefault(place.batch_id, _StagedOfBatch(now_ms))
        opened.attempts.setdefault((place.task, place.attempt), []).append(staged)
        owned.size_bytes += staged.size_bytes
        owned.batches += 1
        self.total_bytes += staged.size_bytes
        opened.touched_ms = now_ms

    def load(self, staged: Staged, now_ms: int) -> None:
        """Add one that was found on disk. A duplicate is ignored; a gap ends an attempt."""
        if staged.key.place.number == len(self._attempt(staged.key.place)):
            self.add(staged, now_ms)

    def lost(self, staged: Staged) -> None:
        """It could not be written: drop it and those after it in its attempt."""
        place = staged.key.place
        attempt = self._attempt(place)
        if place.number < len(attempt) and attempt[place.number] is staged:
            # Those after it go too: a commit would otherwise take an attempt with a hole.
            behind = attempt[place.number :]
            del attempt[place.number :]
            self._forget(place.owner, behind)

    def _touch(self, place: StagedBatchId, now_ms: int) -> None:
        self._owners[place.owner].open[place.batch_id].touched_ms = now_ms

    def _attempt(self, place: StagedBatchId) -> list[Staged]:
        owned = self._owners.get(place.owner)
        opened = owned.open.get(place.batch_id) if owned else None
        return opened.attempts.get((place.task, place.attempt), []) if opened else []

    def chosen(self, owner: Owner, batch_id: int, winners: Sequence[Winner]) -> list[Staged]:
        """The winners' batches, in the order of a commit. Raises TransactionAborted."""
        owned = self._owners.get(owner)
        opened = owned.open.get(batch_id) if owned else None
        found: list[Staged] = []
        for task, attempt, count in winners:
            staged = opened.attempts.get((task, attempt), []) if opened else []
            durable = [each for each in staged if each.durable]
            # Exactly these: fewer means that one was lost, more that the commit means another state
            # of the attempt.
            if len(durable) != count or len(staged) != count:
                raise TransactionAborted(
                    f"{owner} batch {batch_id}: task {task} attempt {attempt} has {len(durable)} "
                    f"batches staged, the commit names {count}"
                )
            found += staged
        return found

    def _forget(self, owner: Owner, staged: Iterable[Staged]) -> int:
        owned, count = self._owners[owner], 0
        for each in staged:
            owned.size_bytes -= each.size_bytes
            owned.batches -= 1
            self.total_bytes -= each.size_bytes
            count += 1
        self.dropped += count
        return count

    def drop(self, owner: Owner, *, up_to: int | None = None, only: int | None = None) -> int:
        """Drop what is staged: all, for batch ids up to one, or for one. How many batches."""
        owned = self._owners.get(owner)
        if owned is None:
            return 0
        count = 0
        for batch_id in list(owned.open):
            if (up_to is None or batch_id <= up_to) and only in (None, batch_id):
                count += self._forget(owner, owned.open.pop(batch_id).batches())
        if not owned.open:
            del self._owners[owner]
        return count

    def expired(self, timeout_ms: dict[Owner, int], now_ms: int) -> list[tuple[Owner, int]]:
        """(owner, batch id) of what was not touched for the timeout of its owner."""
        return [
            (owner, batch_id)
            for owner, owned in self._owners.items()
            for batch_id, opened in owned.open.items()
            if now_ms - opened.touched_ms >= timeout_ms.get(owner, 0)
        ]

    def extend_after_stall(self, gap_ms: int) -> None:
        """The node was suspended for that time, in which no client could stage: expire later."""
        for owned in self._owners.values():
            for opened in owned.open.values():
                opened.touched_ms += gap_ms

    def lowest_offsets(self) -> dict[int, int]:
        """Partition of the topic of staged batches -> lowest offset that is still needed."""
        found: dict[int, int] = {}
        for owned in self._owners.values():
            for opened in owned.open.values():
                for staged in opened.batches():
                    lowest = found.get(staged.log_partition, staged.offset)
                    found[staged.log_partition] = min(lowest, staged.offset)
        return found
