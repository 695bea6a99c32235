"""Applies a decided commit: appends its batches to their partitions, exactly once across crashes.

In every target partition the batches go in the order of the commit, with the producer id and epoch
of that commit and sequence numbers from 0. So what an interrupted attempt has appended is a prefix,
which is found by reading batch headers from the log end that the commit recorded. The journal
refuses a duplicate besides (idempotent producer, KIP-98).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from lakemq.broker_core.api.errors import LakeMQError, UnknownTopic
from lakemq.broker_core.api.ports import Broker, PartitionLog
from lakemq.broker_core.api.records.batch import HEADER_BYTES, pack_header, read_header, split
from lakemq.broker_core.api.types import Acks, AppendResult, Offset
from lakemq.broker_core.transactions.state import CommitTarget, OwnerState, StagedRef

ReadBatch = Callable[[StagedRef], Awaitable[bytes]]
"""Reads the batch that a `StagedRef` names."""

_TARGETS_AT_ONCE: Final = 8
_BATCHES_AHEAD: Final = 64
_BYTES_AHEAD: Final = 8 * 1024 * 1024
_SCAN_BYTES: Final = 4 * 1024 * 1024
_SCAN_WAIT_MS: Final = 500


class Applier:
    """Appends the batches of commits to their target partitions."""

    def __init__(self, broker: Broker, read: ReadBatch, on_appended: Callable[[int], None]) -> None:
        self._broker = broker
        self._read = read
        self._on_appended = on_appended
        self._room = asyncio.Semaphore(_TARGETS_AT_ONCE)

    async def apply(
        self, state: OwnerState, targets: Sequence[CommitTarget], *, resumed: bool
    ) -> tuple[list[CommitTarget], LakeMQError | None]:
        """One attempt: (targets that are left, why). `resumed`: some may be appended already."""
        outcomes = await asyncio.gather(
            *(self._target(state, target, resumed) for target in targets), return_exceptions=True
        )
        left, reason = [], None
        for target, outcome in zip(targets, outcomes, strict=True):
            if isinstance(outcome, LakeMQError):
                left.append(target)
                reason = outcome
            elif isinstance(outcome, BaseException):
                raise outcome
        return left, reason

    async def _target(self, state: OwnerState, target: CommitTarget, resumed: bool) -> None:
        async with self._room:
            try:
                if self._broker.topic(target.topic).topic_id != target.topic_id:
                    return
            except UnknownTopic:
                return  # the records were deleted with the topic
            log = self._broker.partition(target.topic, target.partition)
            # Nothing can be there at the first attempt: the producer id and epoch are of this
            # commit alone.
            appended = await count_appended(log, state, target.floor_offset) if resumed else 0
            await self._append_all(log, state, target, appended)

    async def _append_all(
        self, log: PartitionLog, state: OwnerState, target: CommitTarget, appended: int
    ) -> None:
        """Everything after the first `appended` records."""
        under_way: deque[tuple[int, asyncio.Future[AppendResult]]] = deque()
        ahead = sequence = 0
        try:
            for entry in target.entries:
                # Appends of one target end in order, so what is there is a prefix of the entries.
                if sequence < appended:
                    sequence += entry.records
                    continue
                batch = await self._read(entry)
                header = read_header(batch)._replace(
                    base_offset=0,
                    producer_id=state.producer_id,
                    producer_epoch=state.producer_epoch,
                    base_sequence=sequence,
                )
                stamped = b"".join((pack_header(header), memoryview(batch)[HEADER_BYTES:]))
                under_way.append((len(stamped), log.append(stamped, header, Acks.REPLICATED)))
                sequence += entry.records
                ahead += len(stamped)
                # Bounded by number and bytes, so that one large commit does not hold all of it in
                # memory.
                while under_way and (len(under_way) > _BATCHES_AHEAD or ahead > _BYTES_AHEAD):
                    ahead -= await self._settle(*under_way.popleft())
            while under_way:
                await self._settle(*under_way.popleft())
        finally:
            # The next attempt reads what is appended, so no append of this one may be in flight.
            await asyncio.gather(*(each for _, each in under_way), return_exceptions=True)

    async def _settle(self, size: int, future: asyncio.Future[AppendResult]) -> int:
        await future
        self._on_appended(size)
        return size


async def count_appended(log: PartitionLog, state: OwnerState, floor_offset: int) -> int:
    """How many records of the state's newest commit the partition has."""
    end = log.log_end_offset
    found, offset = 0, Offset(max(floor_offset, log.log_start_offset))
    while offset < end:
        # Waits for appends that were in flight when the last attempt ended, unless they failed.
        got = await log.fetch(offset, bytes_max=_SCAN_BYTES, wait_ms=_SCAN_WAIT_MS)
        # An append that failed takes its records back, and the end with them.
        end = min(end, log.log_end_offset)
        for _, header in split(got.data):
            if (header.producer_id, header.producer_epoch) == (
                state.producer_id,
                state.producer_epoch,
            ):
                # Sequences begin at 0 in each partition, so the last one tells how many there are.
                found = max(found, header.base_sequence + header.last_offset_delta + 1)
        offset = got.next_offset
    return found
