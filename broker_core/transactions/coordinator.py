"""The transaction coordinator: implements the `Transactions` port.

The decisions are in `state` and `staged`, which do no IO; this module orders and awaits the writes.
One owner does one thing at a time (its lock). Staging needs no lock: what is staged has no effect
until a commit names it.

A node coordinates the owners of those partitions of the topic of staged batches that it leads, and
refuses others (NotLeader, with the coordinator's address).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from lakemq.broker_core.api.errors import (
    BatchCommitted,
    InvalidRequest,
    LakeMQError,
    NotLeader,
    OutcomeUnknown,
    Unavailable,
    UnknownTransaction,
)
from lakemq.broker_core.api.leadership import check_partition, leadership
from lakemq.broker_core.api.limits.name_shares import NameShares
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.records.batch import BatchHeader
from lakemq.broker_core.api.state.residents import Residents
from lakemq.broker_core.api.transactions.ports import Participant
from lakemq.broker_core.api.transactions.types import (
    SINK,
    CommitAnswer,
    CommitOutcome,
    CommitTry,
    Effect,
    OpenedOwner,
    Owner,
    OwnerStatus,
    StagedBatchId,
    TransactionCounters,
    Winner,
)
from lakemq.broker_core.api.types import AppendResult, Operation, Principal, Resource
from lakemq.broker_core.configuration.settings import TransactionSettings
from lakemq.broker_core.publishing.admission import Admission
from lakemq.broker_core.transactions import state as states
from lakemq.broker_core.transactions.formats import StagedKey
from lakemq.broker_core.transactions.owner_log import OwnerLog, StoredOwners
from lakemq.broker_core.transactions.owners import CommitRunner, OwnerRuntime
from lakemq.broker_core.transactions.participants import Participants
from lakemq.broker_core.transactions.staged import Staged, StagedTable, StagingLimits
from lakemq.broker_core.transactions.state import (
    OwnerState,
    PendingCommit,
    check_epoch,
    outcome_of,
)
from lakemq.broker_core.transactions.targets import Call, Targets
from lakemq.broker_core.transactions.upkeep import Upkeep

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

_TICK_S: Final = 0.5
_FREE_EVERY_TICKS: Final = 4
_TRY_BITS: Final = 32
"""Tries of a leadership, numbered behind its epoch: each is above all earlier ones of its owner."""


def wall_clock_ms() -> int:
    """Milliseconds since 1970, UTC."""
    return time.time_ns() // 1_000_000


def steady_clock_ms() -> int:
    """Milliseconds of a clock that never goes back."""
    return time.monotonic_ns() // 1_000_000


class TransactionCoordinator:
    """Opens, commits and expires the owners that this node coordinates."""

    def __init__(
        self,
        broker: Broker,
        settings: TransactionSettings,
        *,
        now_ms: Callable[[], int] = wall_clock_ms,
        steady_ms: Callable[[], int] = steady_clock_ms,
        admission: Admission | None = None,
        call: Call | None = None,
    ) -> None:
        """`call`: to other nodes; None: there are none."""
        self._admission = admission or Admission(
            lambda *given: broker.schemas.check_batch(*given), now_ms
        )
        self.counters = TransactionCounters()
        self.participants = Participants(broker.node_id, call, self._is_decided_here)
        self.targets = Targets(broker, call)
        self._broker = broker
        self._settings = settings
        self._now_ms = now_ms
        self._steady_ms = steady_ms
        self._log = OwnerLog(broker)
        self._residents = Residents(broker, self._log.topic, self)
        self._staged = StagedTable(_limits(settings))
        self._owners: dict[Owner, OwnerRuntime] = {}
        self._shares = NameShares(
            "sinks and transactional ids",
            self._owners,
            names_max=settings.owners_max,
            user_share_max=settings.user_share_max,
        )
        self._upkeep = Upkeep(self._owners, self._staged, self._log, self.counters, steady_ms)
        self._tries = 0
        self._first_tries: dict[int, int] = {}
        """By partition: behind which numbers of tries begin, above all of former coordinators."""
        self._tasks: set[asyncio.Task[Any]] = set()

    def reconfigure(self, settings: TransactionSettings) -> None:
        """Bounds and time-outs from now on."""
        self._settings = settings
        self._staged.limits = _limits(settings)

    # -- life

    async def start(self) -> None:
        """Read back what this node coordinates; continue the commits that were decided."""
        await self._residents.start()
        self._spawn(self._run())

    async def stop(self) -> None:
        """Commits that are not applied yet are continued at the next start, here or elsewhere."""
        await self._residents.stop()
        tasks, self._tasks = set(self._tasks), set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        _retrieve_exception(task)

    def _spawn_for(self, owned: OwnerRuntime, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Work that changes an owner; it ends where it is when another node may coordinate it."""
        task = self._spawn(work)
        owned.tasks.add(task)
        task.add_done_callback(owned.tasks.discard)
        return task

    async def _run_to_completion(
        self, owner: Owner, owned: OwnerRuntime, work: Coroutine[Any, Any, _T]
    ) -> _T:
        """Await work that changes an owner; it is finished also when the caller is cancelled."""
        # A state whose record is on its way must reach `owned.known`, or the two would differ.
        task = self._spawn_for(owned, work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():  # by `drop` or `stop`
                raise Unavailable(f"{owner} has another coordinator by now; ask again") from None
            raise
        except OutcomeUnknown as error:
            # Asked again, the coordinator of then tells what became of it.
            raise Unavailable(f"{owner}: {error}") from None

    async def _run(self) -> None:
        ticks = 0
        while True:
            await asyncio.sleep(_TICK_S)
            ticks += 1
            try:
                await self.tick()
                if ticks % _FREE_EVERY_TICKS == 0:
                    await self.free()
            except LakeMQError as error:
                _log.warning("could not expire transactions, trying again: %s", error)

    async def tick(self) -> None:
        """Drop batches that were staged too long ago without a commit, and owners that are idle."""
        self._upkeep.expire()
        idle_since_ms = self._now_ms() - self._settings.transaction_expiry_ms
        for owner, owned in list(self._owners.items()):
            if owner.kind != SINK and not owned.busy and owned.state.updated_ms < idle_since_ms:
                await self._run_to_completion(owner, owned, self._forget(owner, owned))

    async def free(self) -> None:
        """Free the disk below the lowest offset that is still needed, if that may have changed."""
        await self._upkeep.free(
            [number for number in self._log.partitions() if self._residents.serves(number)]
        )

    # -- what this node coordinates

    async def load(self, partition: int, end: int) -> StoredOwners:
        """As `Resident.load`."""
        return await self._log.load(partition, end)

    def serve(self, partition: int, epoch: int, state: StoredOwners) -> None:
        """As `Resident.serve`."""
        steady_ms = self._steady_ms()
        self._first_tries[partition] = epoch << _TRY_BITS
        for owner, (known, offset) in state.states.items():
            self._owners[owner] = OwnerRuntime(known, offset)
        for staged in state.staged:
            self._staged.load(staged, steady_ms)
        for owner in state.states:
            owned = self._owners[owner]
            if owned.state.pending is not None:
                self.participants.restore(owned.state.pending.effects)
                self.counters.resumed += 1
                self._begin_applying(owner, owned, resumed=True)

    def drop(self, partition: int) -> None:
        """As `Resident.drop`."""
        for owner in list(self._owners):
            if self._log.partition_of(owner) in (partition, None):
                self._owners.pop(owner).end()
                self._staged.drop(owner)

    def coordinator_of(self, owner: Owner) -> str:
        """Node that coordinates the owner; empty: none does now, or the first use will tell."""
        partition, info = self._log.partition_of(owner), self._log.topic.info
        if partition is None or info is None:
            return ""
        return leadership(info, partition).leader or ""

    def coordinators(self) -> Sequence[str]:
        """Nodes that coordinate owners, in order."""
        info = self._log.topic.info
        return sorted({each.leader or "" for each in info.leaders} - {""}) if info else []

    async def _arrive(self, owner: Owner) -> None:
        """Raises NotLeader where another node coordinates the owner, Unavailable while this one
        reads back what is known of it, after a while."""
        partition = self._log.partition_of(owner)
        if partition is not None:
            await self._residents.arrive(partition)

    # -- owners

    async def open(self, owner: Owner, *, principal: Principal, timeout_ms: int = 0) -> OpenedOwner:
        """Open an owner with a new epoch, which fences who had it before (KIP-98). Raises
        NotAuthorized, NotLeader, Unavailable."""
        states.check_owner(owner)
        self._authorize(principal, Operation.WRITE, owner)
        timeout_ms = self._timeout(owner, timeout_ms)
        await self._log.ensure()
        await self._arrive(owner)
        state = await self._opened(owner, timeout_ms, principal)
        return OpenedOwner(state.epoch, state.last_batch_id)

    def _timeout(self, owner: Owner, asked_ms: int) -> int:
        settings = self._settings
        if not asked_ms:
            sink = owner.kind == SINK
            return settings.sink_timeout_ms if sink else settings.transaction_timeout_ms
        if not 100 <= asked_ms <= settings.timeout_max_ms:
            raise InvalidRequest(
                f"timeout_ms is {asked_ms}; it takes 100 to {settings.timeout_max_ms}"
            )
        return asked_ms

    async def _opened(self, owner: Owner, timeout_ms: int, principal: Principal) -> OwnerState:
        owned = self._owners.get(owner)
        if owned is None:
            self._shares.take(owner, principal)
            owned = self._owners[owner] = OwnerRuntime(None)
        return await self._run_to_completion(owner, owned, self._open(owner, owned, timeout_ms))

    async def _open(self, owner: Owner, owned: OwnerRuntime, timeout_ms: int) -> OwnerState:
        async with owned.lock:
            await self._applied(owner, owned)
            state = states.opened(owned.known, timeout_ms, self._now_ms())
            known = owned.known is not None
            await self._store(owner, owned, state)
            self.counters.fenced += known
            self._staged.drop(owner)
            return state

    async def _store(self, owner: Owner, owned: OwnerRuntime, state: OwnerState) -> None:
        """Write a state; it holds when this returns."""
        owned.in_doubt = True
        result = await self._log.append(owner, state)
        owned.known, owned.offset, owned.in_doubt = state, int(result.base_offset), False

    async def _settle(self, owner: Owner, owned: OwnerRuntime) -> None:
        """A decision that was tried, and may be on disk, is void when this returns."""
        if owned.in_doubt and owned.known is not None:
            await self._store(owner, owned, owned.known)

    async def _applied(self, owner: Owner, owned: OwnerRuntime) -> None:
        """Wait until the newest commit is applied. Raises Unavailable."""
        if not await owned.wait_applied(self._settings.commit_wait_ms / 1000):
            raise Unavailable(
                f"{owner}: batch {owned.state.last_batch_id} is committed and still being applied"
                + (f": {owned.detail}" if owned.detail else "")
            )

    def _owned(self, owner: Owner, epoch: int) -> OwnerRuntime:
        """Raises UnknownTransaction, ProducerFenced; NotLeader, Unavailable as `_arrive`."""
        owned = self._known(owner)
        check_epoch(owner, owned.state, epoch)
        return owned

    def _known(self, owner: Owner) -> OwnerRuntime:
        partition = self._log.partition_of(owner)
        if partition is not None:
            self._residents.check(partition)
        owned = self._owners.get(owner)
        if owned is None or owned.known is None:
            raise UnknownTransaction(f"unknown {owner}: open it first")
        return owned

    def _authorize(self, principal: Principal, operation: Operation, owner: Owner) -> None:
        kind = "sink" if owner.kind == SINK else "transaction"
        self._broker.authorize(principal, operation, Resource(kind, owner.name))

    # -- staging

    def stage(
        self,
        place: StagedBatchId,
        topic: str,
        partition: int,
        batch: bytes,
        *,
        principal: Principal,
    ) -> asyncio.Future[bool]:
        """Keep a batch for a later commit; True: it was staged already. Raises ProducerFenced,
        BatchCommitted, StagingFull."""
        self._check_open(place)
        self._authorize(principal, Operation.WRITE, place.owner)
        self._broker.authorize(principal, Operation.WRITE, Resource("topic", topic))
        info = self._broker.topic(topic)
        check_partition(info, partition)
        header = self._admission.header(info, batch)
        key = StagedKey(
            place, topic, info.topic_id, partition, header.record_count, header.body_crc32c
        )

        # The key is of the batch as it came: sent again, it is found whatever interceptors add.
        def keep(batch: bytes, _header: BatchHeader) -> asyncio.Future[bool]:
            self._check_open(place)  # it may have ended while the batch was checked
            return self._keep(key, batch)

        return self._admission.admit(place.owner, info, batch, header, principal, keep)

    def _check_open(self, place: StagedBatchId) -> None:
        """Raises when nothing can be staged under that batch id any more."""
        owned = self._owned(place.owner, place.epoch)
        states.check_batch_id(place.batch_id)
        if place.batch_id <= owned.state.last_batch_id:
            raise BatchCommitted(
                f"{place.owner}: batch {place.batch_id} cannot be staged, "
                f"{owned.state.last_batch_id} is committed"
            )

    def _keep(self, key: StagedKey, batch: bytes) -> asyncio.Future[bool]:
        steady_ms = self._steady_ms()
        kept: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        kept.add_done_callback(_retrieve_exception)
        # A batch that was sent again, as its answer was lost: it must not be staged twice.
        found = self._staged.find(key, steady_ms)
        if found is not None:
            found.when_durable(kept)
            return kept
        self._staged.check_room(key.place.owner, len(batch))
        # Added to the table at once, before it is durable: the same batch sent again finds it and
        # waits for the same write.
        staged, written = self._log.append_batch(key, batch)
        self._staged.add(staged, steady_ms)
        staged.when_durable(kept)
        written.add_done_callback(lambda done: self._written(staged, done))
        return kept

    def _written(self, staged: Staged, done: asyncio.Future[AppendResult]) -> None:
        error = Unavailable("the append was cancelled") if done.cancelled() else done.exception()
        if error is None and done.result().base_offset != staged.offset:
            error = Unavailable("the batch got another offset than the one it was given")
        if error is None:
            self.counters.staged_batches += 1
            self.counters.staged_bytes += staged.size_bytes
            staged.settle(None)
            return
        self._staged.lost(staged)
        staged.settle(error)

    # -- commit

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
        """Decide a commit and wait a while until it is applied. Raises ProducerFenced,
        TransactionAborted, Unavailable."""
        states.check_batch_id(batch_id)
        states.check_winners(winners)
        self._authorize(principal, Operation.WRITE, owner)
        await self._arrive(owner)
        owned = self._owned(owner, epoch)
        outcome = await self._run_to_completion(
            owner, owned, self._commit(owner, owned, epoch, batch_id, winners, effects)
        )
        applied = await owned.wait_applied(self._settings.commit_wait_ms / 1000)
        return CommitAnswer(outcome, owned.state.last_batch_id, applied)

    async def _commit(
        self,
        owner: Owner,
        owned: OwnerRuntime,
        epoch: int,
        batch_id: int,
        winners: Sequence[Winner],
        effects: Sequence[Effect],
    ) -> CommitOutcome:
        async with owned.lock:
            check_epoch(owner, owned.state, epoch)  # it may have been fenced while it waited
            outcome = outcome_of(owned.state, batch_id)
            # A batch id that was committed answers so again: committing is idempotent, as streaming
            # sinks need.
            if outcome is CommitOutcome.COMMITTED:
                await self._applied(owner, owned)
                await self._decide(owner, owned, batch_id, winners, effects)
            return outcome

    async def _decide(
        self,
        owner: Owner,
        owned: OwnerRuntime,
        batch_id: int,
        winners: Sequence[Winner],
        effects: Sequence[Effect],
    ) -> None:
        """Write the commit's record: from then on the commit is decided."""
        await self._settle(owner, owned)
        fresh = await self._broker.allocate_producer_id() if owned.state.needs_producer_id else None
        targets = await self.targets.of(self._staged.chosen(owner, batch_id, winners))
        self._tries += 1
        first = self._first_tries.get(self._log.partition_of(owner) or 0, 0)
        commit = CommitTry(owner, owned.state.epoch, batch_id, first + self._tries)
        decided = await self.participants.prepare(commit, effects)
        pending = PendingCommit(targets, decided, commit.number if decided else -1)
        state = states.committed(owned.state, batch_id, pending, fresh, self._now_ms())
        # Should it fail, the record may be there all the same: what is held for the effects is
        # given up when its holders ask, once that is settled.
        await self._store(owner, owned, state)
        self.counters.commits += 1
        self._begin_applying(owner, owned, resumed=False)

    def _begin_applying(self, owner: Owner, owned: OwnerRuntime, *, resumed: bool) -> None:
        owned.begin()
        self._spawn_for(owned, self._apply(owner, owned, resumed))

    async def _apply(self, owner: Owner, owned: OwnerRuntime, resumed: bool) -> None:
        work = CommitRunner(
            owned,
            self._broker,
            self._log,
            self.participants,
            self._on_appended,
            self._log.read,
            targets=self.targets,
        )
        self.counters.applying += 1
        try:
            await work.run(owner, resumed)
        finally:
            self.counters.applying -= 1
        # Only now: until all is appended the batches are read from the topic of staged batches.
        self._staged.drop(owner, up_to=owned.state.last_batch_id)
        owned.finish()
        state = owned.state
        with suppress(LakeMQError):  # who reads it back finds all batches appended
            result = await self._log.append(owner, state)
            if owned.known is state:
                owned.offset = int(result.base_offset)

    def _on_appended(self, _: int) -> None:
        self.counters.applied_batches += 1

    # -- the rest

    async def is_decided(self, commit: CommitTry) -> bool:
        """Whether what was prepared for this try is to be applied. Raises NotLeader,
        Unavailable."""
        try:
            return await self._is_decided_here(commit)
        except NotLeader as error:
            return await self.participants.ask_decided(commit, error)

    async def _is_decided_here(self, commit: CommitTry) -> bool:
        owner = commit.owner
        await self._arrive(owner)
        owned = self._owners.get(owner)
        if owned is None:
            return False
        if owned.lock.locked():  # it may be on its way to be decided: who asks waits, not a call
            raise Unavailable(f"{owner} is being committed or opened; ask again")
        return await self._run_to_completion(owner, owned, self._is_decided(owned, commit))

    async def _is_decided(self, owned: OwnerRuntime, commit: CommitTry) -> bool:
        async with owned.lock:
            await self._settle(commit.owner, owned)
            pending = owned.known.pending if owned.known else None
            return pending is not None and pending.number == commit.number

    async def abort(self, owner: Owner, epoch: int, batch_id: int, *, principal: Principal) -> None:
        """Drop what is staged under a batch id that is not committed. Raises ProducerFenced."""
        self._authorize(principal, Operation.WRITE, owner)
        await self._arrive(owner)
        owned = self._owned(owner, epoch)
        async with owned.lock:
            if batch_id > owned.state.last_batch_id:
                self._staged.drop(owner, only=batch_id)

    def describe(self, *, principal: Principal) -> Sequence[OwnerStatus]:
        """The owners of this node that the principal may describe, in order."""
        return [
            owned.status(owner, *self._staged.size_of(owner))
            for owner, owned in sorted(self._owners.items())
            if owned.known is not None and self._may_describe(principal, owner)
        ]

    def _may_describe(self, principal: Principal, owner: Owner) -> bool:
        try:
            self._authorize(principal, Operation.DESCRIBE, owner)
        except LakeMQError:
            return False
        return True

    async def fence(self, owner: Owner, *, principal: Principal) -> None:
        """Give the owner a new epoch, as an operator does with a stuck writer. Raises
        UnknownTransaction."""
        self._authorize(principal, Operation.ALTER, owner)
        await self._arrive(owner)
        await self._opened(owner, self._known(owner).state.timeout_ms, principal)

    async def delete(self, owner: Owner, *, principal: Principal) -> None:
        """Forget an owner, once its newest commit is applied. Raises UnknownTransaction."""
        self._authorize(principal, Operation.DELETE, owner)
        await self._arrive(owner)
        owned = self._known(owner)
        await self._run_to_completion(owner, owned, self._forget(owner, owned))

    async def _forget(self, owner: Owner, owned: OwnerRuntime) -> None:
        async with owned.lock:
            await self._applied(owner, owned)
            await self._log.append(owner, None)
            self._staged.drop(owner)
            self._owners.pop(owner, None)

    def register_participant(self, name: str, participant: Participant) -> None:
        """Let `participant` take part in commits, first restoring effects that still wait."""
        # Before it is added: a commit that waits for it must find its effects restored.
        for owned in self._owners.values():
            for effect, data in owned.waiting_effects():
                if effect == name:
                    participant.restore(data)
        self.participants.add(name, participant)


def _retrieve_exception(done: asyncio.Future[Any]) -> None:
    """Mark the exception as retrieved: the caller may be gone, and asyncio would log it."""
    if not done.cancelled():
        done.exception()


def _limits(settings: TransactionSettings) -> StagingLimits:
    return StagingLimits(
        settings.owner_max_bytes, settings.staged_max_bytes, settings.owner_batches_max
    )
