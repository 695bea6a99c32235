"""Staged batches and transactions: values that plugins and the coordinator exchange.

An *owner* (a sink, or a transactional id) stages record batches: they are durable and no reader
sees them. A commit names which of them count; it is one durable record, and from then on they will
be in their partitions exactly once, whatever crashes. The others are dropped and their space freed.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

SINK = "sink"
TRANSACTION = "transaction"


class Owner(NamedTuple):
    """Who stages batches. `kind` is `sink` or `transaction`; the client chooses the name."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class StagedBatchId(NamedTuple):
    """Names a staged batch within its owner."""

    owner: Owner
    epoch: int
    """The one that `open` returned; a lower one than the newest is fenced."""
    batch_id: int
    """Of the commit that it is for; ids of commits ascend."""
    task: int
    attempt: int
    """Attempts of one task compete; the commit names one of them."""
    number: int
    """From 0, without gaps, within one attempt."""


class CommitTry(NamedTuple):
    """One attempt of a coordinator to decide a commit. Of an owner's tries a later one has the
    higher number, whichever node makes it: an earlier one is void then."""

    owner: Owner
    epoch: int
    batch_id: int
    number: int
    """Below 2**63."""


class Winner(NamedTuple):
    """The attempt of a task that a commit takes, and how many batches it staged."""

    task: int
    attempt: int
    batches: int


class CommitOutcome(enum.IntEnum):
    """What a commit did."""

    COMMITTED = 1
    ALREADY_COMMITTED = 2
    """This batch id was committed before; nothing was done now."""
    OLDER = 3
    """A higher batch id was committed before; nothing was done now."""


@dataclass(frozen=True, slots=True)
class OpenedOwner:
    """Answer of `Transactions.open`: the owner's new epoch and where it goes on."""

    epoch: int
    last_batch_id: int
    """Of the newest commit; -1: there was none."""


@dataclass(frozen=True, slots=True)
class CommitAnswer:
    """Answer of `Transactions.commit`."""

    outcome: CommitOutcome
    last_batch_id: int
    applied: bool
    """Whether all records are in their partitions by now; if not, they follow."""


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
    """Something else than records that a commit makes effective, such as offsets."""

    participant: str
    asked: object
    """For the participant's `encode`."""


@dataclass
class TransactionCounters:
    """Counts since the start, and current levels, for metrics."""

    staged_batches: int = 0
    staged_bytes: int = 0
    commits: int = 0
    applied_batches: int = 0
    resumed: int = 0
    """Commits that were not fully applied before a restart."""
    expired: int = 0
    fenced: int = 0
    waiting_bytes: int = 0
    """Currently staged and not committed."""
    applying: int = 0
    """Commits that are currently decided and not applied."""
