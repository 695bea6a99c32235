"""Staged batches and transactions: what a protocol plugin may ask of the coordinator. Pure values
and one port.

An *owner* (a sink, or a transactional id) stages record batches: they are durable and nobody sees
them. One commit names which of them count; it is one durable record, and from then on they will be
in their partitions, each once, whatever crashes. Everything else is forgotten and its space freed.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from broker_core.api.types import Principal

SINK = "sink"
TRANSACTION = "transaction"


class Owner(NamedTuple):
    """Who stages. `kind` is `sink` or `transaction`; the name is the client's choice."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class StagePlace(NamedTuple):
    """What a staged batch is, seen from its owner."""

    owner: Owner
    epoch: int
    """That `open` gave; a lower one than the newest is fenced."""
    batch_id: int
    """Number of the commit it is for; every commit has a higher one than the last."""
    task: int
    attempt: int
    """Attempts of one task compete; the commit names one of them."""
    number: int
    """From 0, without gaps, within one attempt."""


class Winner(NamedTuple):
    """An attempt that counts, and how many batches it staged."""

    task: int
    attempt: int
    batches: int


class CommitOutcome(enum.IntEnum):
    COMMITTED = 1
    ALREADY_COMMITTED = 2
    """This batch id was committed before; nothing was done now."""
    OLDER = 3
    """A higher batch id was committed before; nothing was done now."""


@dataclass(frozen=True, slots=True)
class Opened:
    epoch: int
    last_batch_id: int
    """Of the newest commit; -1: there was none."""


@dataclass(frozen=True, slots=True)
class CommitAnswer:
    outcome: CommitOutcome
    last_batch_id: int
    applied: bool
    """Whether all records are in their partitions by now; if not, they will be."""


@dataclass(frozen=True, slots=True)
class OwnerStatus:
    """What `lakemq transaction list` shows of one owner."""

    owner: Owner
    epoch: int
    last_batch_id: int
    state: str
    """`idle`, `staging` or `applying`."""
    staged_batches: int
    staged_bytes: int
    timeout_ms: int
    detail: str = ""
    """Why applying takes long."""


@dataclass(frozen=True, slots=True)
class Effect:
    """Something that takes effect with a commit besides records, such as committed offsets."""

    participant: str
    asked: object
    """For the participant's `decide`."""


class Decision(NamedTuple):
    """A participant's yes."""

    data: bytes
    """Kept in the commit's record, for `apply`."""
    undo: Callable[[], None]
    """The commit's record could not be written: as if it had never been asked."""


@dataclass
class TransactionCounters:
    """Plain numbers that metrics are read from."""

    staged_batches: int = 0
    staged_bytes: int = 0
    commits: int = 0
    applied_batches: int = 0
    resumed: int = 0
    """Commits that a restart found half applied."""
    expired: int = 0
    fenced: int = 0


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
    """The coordinator. Errors are those of `broker_core.api.errors`."""

    @property
    def counters(self) -> TransactionCounters: ...

    async def open(self, owner: Owner, *, principal: Principal, timeout_ms: int = 0) -> Opened:
        """Become the only one who acts for this owner: older epochs are fenced, what they staged
        and did not commit is forgotten. `timeout_ms`: how long staged batches wait for their
        commit; 0: the broker's default.

        Unavailable: a commit of it is still being applied. NotAuthorized, InvalidRequest.
        """

    def stage(
        self, place: StagePlace, topic: str, partition: int, batch: bytes, *, principal: Principal
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
        """Put an end to whoever acts for the owner, and forget what was staged."""

    async def forget(self, owner: Owner, *, principal: Principal) -> None:
        """Forget the owner and which batch it committed last."""

    def take_part(self, name: str, participant: Participant) -> None:
        """Register a participant: commits that waited for it since the start are restored at
        once, and applied."""
