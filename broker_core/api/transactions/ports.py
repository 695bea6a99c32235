"""Ports of transactions: the coordinator that plugins call, and participants of commits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from lakemq.broker_core.api.transactions.types import (
    CommitAnswer,
    CommitTry,
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
    """Takes part in commits with effects of its own, under a registered name: what is held at
    `prepare` takes effect when the commit's record says so, and not otherwise.

    An effect may be the matter of another node than the one that coordinates the commit. All
    methods but `encode` raise NotLeader with that node's id then, and it is called instead. They
    may be called again, late, and by several nodes.
    """

    def encode(self, asked: object) -> bytes:
        """The effect as `prepare` takes it. Called at the commit's coordinator, with the rights of
        who asks still to be checked here. Raises NotAuthorized, InvalidRequest."""

    async def prepare(self, commit: CommitTry, asked: bytes) -> bytes:
        """Consent to the effect and hold it, so that nothing else can get in its way; what is
        returned goes into the commit's record. Void by this is what was held for an earlier try of
        the same owner; a try that is earlier itself is refused. Raises a LakeMQError: the commit is
        refused.

        What is held for long, because neither `apply` nor `undo` comes, is asked for
        (`Transactions.is_decided`).
        """

    async def undo(self, data: bytes) -> None:
        """Give up what `prepare` has held, if it still is: the try is void."""

    def restore(self, data: bytes) -> None:
        """Take up the effect of a commit that was decided before a restart, or by another node, and
        is not applied. Called when the participant registers, or this node takes the commit over,
        before `apply`; must not block. Does nothing where the effect is another node's matter."""

    async def apply(self, data: bytes) -> None:
        """Make the effect of a decided commit durable."""


class Transactions(Protocol):
    """The coordinator of the owners that this node is to coordinate. Of others all methods raise
    NotLeader, with the coordinator's native address; Unavailable while this node takes one over.
    Other errors are those of `lakemq.broker_core.api.errors`."""

    @property
    def counters(self) -> TransactionCounters:
        """Read by metrics."""

    def coordinator_of(self, owner: Owner) -> str:
        """Node that coordinates the owner; empty: none does now, or the first use will tell."""

    def coordinators(self) -> Sequence[str]:
        """Nodes that coordinate owners."""

    async def open(self, owner: Owner, *, principal: Principal, timeout_ms: int = 0) -> OpenedOwner:
        """Become the only one who acts for this owner: older epochs are fenced, what they staged
        and did not commit is forgotten. `timeout_ms`: how long staged batches wait for their
        commit; 0: the broker's default.

        Raises Unavailable (a commit of it is still being applied), NotAuthorized, InvalidRequest.
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
        """Keep one batch durably; True: it was staged before. Header and CRCs are checked here.

        Raises at once, or the future fails: ProducerFenced, UnknownTransaction, BatchCommitted,
        StagingFull, Unavailable (an earlier `number` is missing: resend from there on), and what
        `Broker.append` raises.
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
        """Append the winners' batches to their partitions, in the order of `winners`, all or none.

        Raises TransactionAborted (not all of them are staged any more), ProducerFenced,
        UnknownTopic, UnknownTransaction, and what participants raise. Unavailable: it may have been
        taken; the same call again tells.
        """

    async def abort(self, owner: Owner, epoch: int, batch_id: int, *, principal: Principal) -> None:
        """Delete what was staged for `batch_id`. Raises ProducerFenced, UnknownTransaction."""

    def describe(self, *, principal: Principal) -> Sequence[OwnerStatus]:
        """All owners of this node that the principal may describe."""

    async def fence(self, owner: Owner, *, principal: Principal) -> None:
        """Fence those who act for the owner, and drop what was staged. UnknownTransaction."""

    async def delete(self, owner: Owner, *, principal: Principal) -> None:
        """Delete the owner, with the id of the batch that it committed last. UnknownTransaction."""

    async def is_decided(self, commit: CommitTry) -> bool:
        """Whether what was prepared for this try is part of a decided commit that is not applied;
        if not, it never will be. Asked of the owner's coordinator, whichever node that is. Raises
        NotLeader, Unavailable: not known now."""

    def register_participant(self, name: str, participant: Participant) -> None:
        """Register a participant: commits that waited for it since the start are restored at
        once, and applied."""
