"""Staged batches and transactions: values that plugins and the coordinator exchange.

An *owner* (a sink, or a transactional id) stages record batches: they are durable and no reader
sees them. A commit names which of them count; it is one durable record, and from then on they will
be in their partitions exactly once, whatever crashes. The others are dropped and their space freed.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

SINK = "sink"
TRANSACTION = "transaction"


class Owner(NamedTuple):
    """Who stages. `kind` is `sink` or `transaction`; the name is the client's choice."""

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
class OpenedOwner:
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
    """What a participant that agrees returns."""

    data: bytes
    """Kept in the commit's record, for `apply`."""
    undo: Callable[[], None]
    """Called when the commit's record could not be written: takes the effect back."""


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
    waiting_bytes: int = 0
    """Staged and not committed, now."""
    applying: int = 0
    """Commits that are decided and not applied, now."""
