"""The durable state of an owner, and how it changes.

One record in the topic of transactions holds the whole state of an owner; the newest one counts.
A commit is such a record with `pending` set: from then on it is decided, and the record names what
is left to do. The producer id makes applying idempotent: every commit has a producer epoch of its
own and its records are numbered from 0 in every partition, so those already appended are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from lakemq.broker_core.api.errors import InvalidRequest, ProducerFenced
from lakemq.broker_core.api.transactions.types import CommitOutcome, Owner, StagedBatchId, Winner

PRODUCER_EPOCH_MAX: Final = 0xFFFF
NAME_MAX_BYTES: Final = 249
BATCH_ID_MAX: Final = 2**63 - 1


class StagedRef(NamedTuple):
    """A stored batch of a commit, by its offset in the topic of staged batches or of schedules."""

    log_partition: int
    offset: int
    records: int


class CommitTarget(NamedTuple):
    """What a commit appends to one partition."""

    topic: str
    topic_id: str
    partition: int
    floor_offset: int
    """Log end offset when the commit was decided: all of its records get offsets from here on."""
    entries: tuple[StagedRef, ...]


@dataclass(frozen=True, slots=True)
class PendingCommit:
    """A commit that is decided and may not be applied yet."""

    targets: tuple[CommitTarget, ...]
    effects: tuple[tuple[str, bytes], ...] = ()
    """(participant, its data)"""
    number: int = -1
    """Of the try (`CommitTry`) that prepared the effects; -1: a build from before decided it."""


@dataclass(frozen=True, slots=True)
class OwnerState:
    """The whole durable state of an owner."""

    epoch: int = 0
    last_batch_id: int = -1
    producer_id: int = -1
    producer_epoch: int = 0
    """Of the newest commit."""
    timeout_ms: int = 0
    updated_ms: int = 0
    """Wall clock of the last change; only for telling which owners are idle."""
    pending: PendingCommit | None = None

    @property
    def needs_producer_id(self) -> bool:
        """Whether the next commit needs a fresh producer id: there is none, or its epochs are
        used up."""
        return self.producer_id < 0 or self.producer_epoch >= PRODUCER_EPOCH_MAX

    def needs(self, place: StagedBatchId) -> bool:
        """Whether a staged batch may still be committed, or is of the commit being applied."""
        if place.epoch != self.epoch:
            return False
        if self.pending is not None and place.batch_id == self.last_batch_id:
            return True
        return place.batch_id > self.last_batch_id


def check_owner(owner: Owner) -> None:
    """Raises InvalidRequest."""
    if not 1 <= len(owner.name.encode()) <= NAME_MAX_BYTES or not owner.name.isprintable():
        raise InvalidRequest(
            f"{owner.kind} id is {owner.name[:300]!r}; it takes 1 to {NAME_MAX_BYTES} printable "
            "characters"
        )


def opened(state: OwnerState | None, timeout_ms: int, now_ms: int) -> OwnerState:
    """The state with a new epoch, which fences those who opened the owner before."""
    before = state or OwnerState()
    # A pending commit stays: it is decided under the epoch before.
    return replace(before, epoch=before.epoch + 1, timeout_ms=timeout_ms, updated_ms=now_ms)


def check_epoch(owner: Owner, state: OwnerState, epoch: int) -> None:
    """Raises ProducerFenced."""
    if epoch != state.epoch:
        raise ProducerFenced(f"{owner}: epoch {epoch} is fenced by epoch {state.epoch}")


def check_batch_id(batch_id: int) -> None:
    """Raises InvalidRequest."""
    if not 0 <= batch_id <= BATCH_ID_MAX:
        raise InvalidRequest(f"batch_id is {batch_id}; it takes 0 and more")


def outcome_of(state: OwnerState, batch_id: int) -> CommitOutcome:
    """COMMITTED: it is new, and may be committed."""
    if batch_id > state.last_batch_id:
        return CommitOutcome.COMMITTED
    same = batch_id == state.last_batch_id
    return CommitOutcome.ALREADY_COMMITTED if same else CommitOutcome.OLDER


def check_winners(winners: Sequence[Winner]) -> None:
    """Raises InvalidRequest: a task with two winners, or a negative number."""
    seen = set()
    for each in winners:
        if min(each) < 0:
            raise InvalidRequest(f"winner {tuple(each)} has a negative number")
        if each.task in seen:
            raise InvalidRequest(f"task {each.task} has two winners")
        seen.add(each.task)


def committed(
    state: OwnerState,
    batch_id: int,
    pending: PendingCommit,
    producer_id: int | None,
    now_ms: int,
) -> OwnerState:
    """The decision. `producer_id`: a fresh one, when `needs_producer_id` said so."""
    fresh = producer_id is not None
    return replace(
        state,
        last_batch_id=batch_id,
        producer_id=state.producer_id if producer_id is None else producer_id,
        producer_epoch=0 if fresh else state.producer_epoch + 1,
        updated_ms=now_ms,
        pending=pending,
    )


def progressed(
    state: OwnerState, targets: Iterable[CommitTarget], effects_done: bool
) -> OwnerState:
    """Some of the commit is applied; `targets` are left."""
    assert state.pending is not None
    effects = () if effects_done else state.pending.effects
    return replace(state, pending=replace(state.pending, targets=tuple(targets), effects=effects))


def applied(state: OwnerState) -> OwnerState:
    """The state once everything of the newest commit is applied."""
    return replace(state, pending=None)


def targets_of(
    batches: Iterable[tuple[str, str, int, StagedRef]], floors: Mapping[tuple[str, int], int]
) -> tuple[CommitTarget, ...]:
    """(topic, topic id, partition, entry) in the order of the commit -> what each partition gets.

    `floors`: (topic, partition) -> log end offset now.
    """
    found: dict[tuple[str, str, int], list[StagedRef]] = {}
    for topic, topic_id, partition, entry in batches:
        found.setdefault((topic, topic_id, partition), []).append(entry)
    return tuple(
        CommitTarget(*place, floors[place[0], place[2]], tuple(entries))
        for place, entries in found.items()
    )
