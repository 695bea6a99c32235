"""Staged batches and transactions: what a protocol plugin may ask of the coordinator, and how it
takes part in commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from lakemq.broker_core.api.transactions.types import (
    CommitAnswer,
    Decision,
    Effect,
    OpenedOwner,
    Owner,
    OwnerStatus,
    StagedBatchId,
    TransactionCounters,
    Winner,
)
from lakemq.broker_core.api.types import Principal


class Participant(Protocol):
    """Takes part in commits under a name, with effects of its own."""

    def decide(self, asked: object) -> Decision:
        """Whether the effect may be taken: raises a LakeMQError if not. Called right before the
        commit's record is appended; must not block."""

    def restore(self, data: bytes) -> None:
        """The effect of a commit that was decided before a restart is in force again. Called when
        the participant registers, before `apply`; must not block."""

    async def apply(self, data: bytes) -> None:
        """Make the effect durable. Called at least once for every commit, also after a restart, so
        that it must not do harm when it was applied before."""


class Transactions(Protocol):
    """The coordinator. Errors are those of `lakemq.broker_core.api.errors`."""

    @property
    def counters(self) -> TransactionCounters: ...

    async def open(self, owner: Owner, *, principal: Principal, timeout_ms: int = 0) -> OpenedOwner:
        """Become the only one who acts for this owner: older epochs are fenced, what they staged
        and did not commit is forgotten. `timeout_ms`: how long staged batches wait for their
        commit; 0: the broker's default.

        Unavailable: a commit of it is still being applied. NotAuthorized, InvalidRequest.
        """

    def stage(
        self,
        place: StagedBatchId,
        topic: str,
        partition: int,
        batch: bytes,
        *,
        principal: Principal,
    ) -> asyncio.Future[bool]:
        """Keep one batch, durably; True: it was there already. Header and CRCs are checked here.

        Raises at once, or the future fails: ProducerFenced, UnknownTransaction, BatchCommitted,
        StagingFull, Unavailable (a number before it is not there: send again from there on), and
        what `Broker.append` refuses.
        """

    async def commit(
        self,
        owner: Owner,
        epoch: int,
        batch_id: int,
        winners: Sequence[Winner],
        *,
        principal: Principal,
        effects: Sequence[Effect] = (),
    ) -> CommitAnswer:
        """Let the winners' batches appear, in the order of `winners`. All or none, once.

        TransactionAborted: not all of them are staged (any more). ProducerFenced, UnknownTopic,
        UnknownTransaction, and what participants raise.
        """

    async def abort(self, owner: Owner, epoch: int, batch_id: int, *, principal: Principal) -> None:
        """Forget what was staged for `batch_id`. ProducerFenced, UnknownTransaction."""

    def describe(self, *, principal: Principal) -> Sequence[OwnerStatus]:
        """All owners that the principal may describe."""

    async def fence(self, owner: Owner, *, principal: Principal) -> None:
        """Fence those who act for the owner, and drop what was staged. UnknownTransaction."""

    async def delete(self, owner: Owner, *, principal: Principal) -> None:
        """Delete the owner, with the id of the batch that it committed last. UnknownTransaction."""

    def register_participant(self, name: str, participant: Participant) -> None:
        """Register a participant: commits that waited for it since the start are restored at
        once, and applied."""
