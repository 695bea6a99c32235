"""Applies a decided commit: appends its batches to their partitions, exactly once across crashes.

In every target partition the batches go in the order of the commit, with the producer id and epoch
of that commit and sequence numbers from 0. So what an interrupted attempt has appended is a prefix,
which the partition's leader finds by reading batch headers from the log end that the commit
recorded. The journal refuses a duplicate besides (idempotent producer, KIP-98). So whichever node
goes on with a commit, and however many try at once, each record is appended once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from lakemq.broker_core.api.errors import LakeMQError, UnknownTopic
from lakemq.broker_core.api.ports import AppendTarget, Broker
from lakemq.broker_core.api.records.batch import HEADER_BYTES, pack_header, read_header
from lakemq.broker_core.api.records.outcomes import outcome_of
from lakemq.broker_core.api.types import Acks, AppendResult
from lakemq.broker_core.transactions.state import CommitTarget, OwnerState, StagedRef
from lakemq.broker_core.transactions.targets import Targets

ReadBatch = Callable[[StagedRef], Awaitable[bytes]]
"""Reads the batch that a `StagedRef` names."""

_TARGETS_AT_ONCE: Final = 8
_BATCHES_AHEAD: Final = 64
_BYTES_AHEAD: Final = 8 * 1024 * 1024


class Applier:
    """Appends the batches of commits to their target partitions."""

    def __init__(
        self,
        broker: Broker,
        targets: Targets,
        read: ReadBatch,
        on_appended: Callable[[int], None],
    ) -> None:
        self._broker = broker
        self._targets = targets
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
            # Nothing can be there at the first attempt: the producer id and epoch are of this
            # commit alone.
            appended = await self._targets.appended(state, target) if resumed else 0
            way = self._broker.route(target.topic, target.partition)
            await self._append_all(way, state, target, appended)

    async def _append_all(
        self, way: AppendTarget, state: OwnerState, target: CommitTarget, appended: int
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
                appending = way.append(stamped, header, Acks.REPLICATED)
                appending.add_done_callback(outcome_of)  # a cancelled commit waits no more
                under_way.append((len(stamped), appending))
                sequence += entry.records
                ahead += len(stamped)
                # Bounded by number and bytes, so that one large commit does not hold all of it in
                # memory.
                while under_way and (len(under_way) > _BATCHES_AHEAD or ahead > _BYTES_AHEAD):
                    ahead -= await self._settle(*under_way.popleft())
            while under_way:
                await self._settle(*under_way.popleft())
        except LakeMQError:
            # The next attempt reads what is appended, so no append of this one may be in flight.
            await asyncio.gather(*(each for _, each in under_way), return_exceptions=True)
            raise

    async def _settle(self, size: int, future: asyncio.Future[AppendResult]) -> int:
        await future
        self._on_appended(size)
        return size
