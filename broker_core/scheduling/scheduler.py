"""Scheduled batches: kept until their time, then appended to their partition exactly once.
Implements the `Schedules` port.

A delivery is a commit like any other: one durable record names what is delivered, then it is
appended with the producer id and epoch of that record, then it is marked as delivered. After a
crash the batches that were appended already are found by that producer id. The clock is the wall
clock, read once a second at least: when it jumps ahead, what became due is delivered; when it jumps
back, deliveries come later.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from lakemq.broker_core.api.backoff import Backoff
from lakemq.broker_core.api.errors import (
    LakeMQError,
    NotLeader,
    UnknownPartition,
    UnknownSchedule,
    UnknownTopic,
)
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.scheduling.schedules import (
    ScheduleAnswer,
    ScheduleAsked,
    ScheduleCounters,
    ScheduledBatch,
)
from lakemq.broker_core.api.transactions.types import Owner
from lakemq.broker_core.api.types import AppendResult, Operation, Principal, Resource
from lakemq.broker_core.configuration.settings import ScheduleSettings
from lakemq.broker_core.publishing.admission import Admission
from lakemq.broker_core.scheduling.formats import EndedSchedule, StoredSchedule
from lakemq.broker_core.scheduling.log import ScheduleLog
from lakemq.broker_core.scheduling.queue import PendingSchedule, ScheduleLimits, ScheduleQueue
from lakemq.broker_core.transactions import state as states
from lakemq.broker_core.transactions.formats import SCHEDULER
from lakemq.broker_core.transactions.logs import PARTITIONS, OwnerStates
from lakemq.broker_core.transactions.owners import CommitRunner, OwnerRuntime
from lakemq.broker_core.transactions.participants import Participants
from lakemq.broker_core.transactions.state import OwnerState, PendingCommit

_log = logging.getLogger(__name__)

_LOOK_S: Final = 1.0
_PAUSE_S: Final = 1.0
_PAUSE_FIRST_MS: Final = 50
_PAUSE_MAX_MS: Final = 5_000
_rng: Final = random.Random()
_BATCHES_AT_ONCE: Final = 5_000
_BYTES_AT_ONCE: Final = 16 * 1024 * 1024


class Scheduler:
    """All schedules of this node; each partition of their topic delivers on its own."""

    def __init__(
        self,
        broker: Broker,
        settings: ScheduleSettings,
        now_ms: Callable[[], int],
        admission: Admission | None = None,
    ) -> None:
        self._admission = admission or Admission(
            lambda *given: broker.schemas.check_batch(*given), now_ms
        )
        self.counters = ScheduleCounters()
        self.now_ms = now_ms
        self._broker = broker
        self._states = OwnerStates(broker)
        self._log = ScheduleLog(broker)
        self._participants = Participants()
        self._queue = ScheduleQueue(_limits(settings))
        self._remembered_ms = settings.remembered_ms
        self._owned = [OwnerRuntime(OwnerState()) for _ in range(PARTITIONS)]
        self._wake = [asyncio.Event() for _ in range(PARTITIONS)]
        self._tasks: list[asyncio.Task[None]] = []

    def reconfigure(self, settings: ScheduleSettings) -> None:
        """Bounds of what is scheduled from now on."""
        self._queue.limits = _limits(settings)
        self._remembered_ms = settings.remembered_ms

    # -- life

    async def start(self) -> None:
        """Read back what is pending; continue deliveries that were decided."""
        for owner, state in (await self._states.load()).items():
            if owner.kind == SCHEDULER and int(owner.name) < PARTITIONS:
                self._owned[int(owner.name)] = OwnerRuntime(state)
        async for schedule_id, number, found in self._log.load():
            self._load(schedule_id, number, found)
        for number, owned in enumerate(self._owned):
            # Not scheduled: what a decision names is delivered by it, and can't be cancelled.
            owned.delivering = self._decided(number, owned)
            for waiting in self._queue[number]:
                if waiting.key not in owned.delivering:
                    self._queue[number].schedule(waiting)
        self._count()
        self._tasks = [asyncio.create_task(self._run(number)) for number in range(PARTITIONS)]

    def _load(
        self, schedule_id: str, number: int, found: PendingSchedule | EndedSchedule | None
    ) -> None:
        if isinstance(found, PendingSchedule):
            self._queue.add(found)
            return
        newer = self._queue.find(schedule_id)
        if newer is not None and newer.log_partition != number:
            return  # the id was used again since, for another partition
        if isinstance(found, EndedSchedule):
            self._queue.end(schedule_id, number, found.ended_ms)
        else:
            self._queue.delete(schedule_id)

    async def stop(self) -> None:
        """What is being delivered is continued at the next start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- what callers ask

    async def schedule(self, asked: ScheduleAsked, *, principal: Principal) -> ScheduleAnswer:
        """Keep a batch until its time; done when it is durable. An id that is known answers
        again. Raises InvalidRequest, StagingFull, NotAuthorized."""
        self._broker.authorize(principal, Operation.WRITE, Resource("topic", asked.topic))
        info = self._broker.topic(asked.topic)
        self._broker.partition(asked.topic, asked.partition)
        header = self._admission.header(info, asked.batch)
        await self._admission.check(info, asked.batch, header)
        await self._states.ensure()
        await self._log.ensure()
        ended_ms = self._queue.ended_ms(asked.schedule_id)
        # The id was delivered or cancelled not long ago: a retry of the client must not schedule it
        # again.
        if ended_ms is not None:
            return ScheduleAnswer(min(asked.deliver_at_ms, ended_ms), True)
        found = self._queue.find(asked.schedule_id)
        if found is None:
            now_ms = self.now_ms()
            size = len(asked.batch)
            self._queue.check(asked.schedule_id, asked.deliver_at_ms, size, now_ms)
            stored = StoredSchedule(
                asked.deliver_at_ms,
                asked.keep_timestamps,
                asked.topic,
                info.topic_id,
                asked.partition,
                header.record_count,
                asked.batch,
            )
            waiting, written = self._log.append(asked.schedule_id, stored)
            # Before it is durable: the same id asked for again finds it and waits for the same
            # write.
            self._queue.add(waiting)
            waiting.written = written
            written.add_done_callback(lambda done: self._written(waiting, done))
        else:
            waiting = found
        if waiting.written is not None:
            # Shielded: another caller with the same id may wait for this write too.
            await asyncio.shield(waiting.written)
        return ScheduleAnswer(waiting.due_ms, found is not None)

    def _written(self, waiting: PendingSchedule, done: asyncio.Future[AppendResult]) -> None:
        if done.cancelled() or done.exception() is not None:
            self._queue[waiting.log_partition].remove(waiting.key)
            return
        waiting.written = None
        self._queue[waiting.log_partition].schedule(waiting)
        self.counters.scheduled += 1
        self._count()
        self._wake[waiting.log_partition].set()

    async def cancel(self, schedule_id: str, *, principal: Principal) -> None:
        """Give a schedule up before its time. Raises UnknownSchedule, NotAuthorized."""
        waiting = self._queue.find(schedule_id)
        if waiting is None or not self._queue[waiting.log_partition].is_scheduled(schedule_id):
            raise UnknownSchedule(
                f"unknown schedule {schedule_id[:100]!r}; it may have been delivered or cancelled"
            )
        self._broker.authorize(principal, Operation.WRITE, Resource("topic", waiting.topic))
        # From here on it is not delivered, however long the append takes.
        self._queue[waiting.log_partition].unschedule(schedule_id)
        await asyncio.shield(self._cancel(waiting))

    async def _cancel(self, waiting: PendingSchedule) -> None:
        number, now_ms = waiting.log_partition, self.now_ms()
        try:
            await self._log.append_ended(number, [waiting.key], now_ms)
        except LakeMQError:
            self._queue[number].schedule(waiting)
            self._wake[number].set()
            raise
        self._queue.end(waiting.key, number, now_ms)
        self.counters.cancelled += 1
        self._count()

    def describe(
        self, topic: str, count_max: int, *, principal: Principal
    ) -> Sequence[ScheduledBatch]:
        """At most `count_max` pending schedules, next first; an empty `topic` means all."""
        found: list[ScheduledBatch] = []
        for each in self._may_describe(topic, principal):
            if len(found) == count_max:
                break
            found.append(
                ScheduledBatch(
                    each.key,
                    each.topic,
                    each.partition,
                    each.due_ms,
                    each.records,
                    each.size_bytes,
                )
            )
        return found

    def _may_describe(self, topic: str, principal: Principal) -> Iterator[PendingSchedule]:
        allowed: dict[str, bool] = {}
        for each in self._queue.upcoming():
            if topic and each.topic != topic:
                continue
            if each.topic not in allowed:
                resource = Resource("topic", each.topic)
                try:
                    self._broker.authorize(principal, Operation.DESCRIBE, resource)
                    allowed[each.topic] = True
                except LakeMQError:
                    allowed[each.topic] = False
            if allowed[each.topic]:
                yield each

    def _count(self) -> None:
        self.counters.waiting = len(self._queue)
        self.counters.waiting_bytes = self._queue.size_bytes

    # -- delivering

    async def _run(self, number: int) -> None:
        owned = self._owned[number]
        while True:
            try:
                if owned.state.pending is not None:
                    await self._finish(number, owned, resumed=True)
                await self._wait(number)
                due = self._queue[number].take(self.now_ms(), _BATCHES_AT_ONCE, _BYTES_AT_ONCE)
                if due:
                    await self._deliver(number, owned, due)
                await self._delete_ended(number)
            except LakeMQError as error:
                _log.warning("could not deliver schedules of partition %d yet: %s", number, error)
                await asyncio.sleep(_PAUSE_S)

    async def _wait(self, number: int) -> None:
        """Until a schedule is due, a new one is on disk, or the clock is to be read again."""
        next_ms = self._queue[number].next_ms()
        wait_s = _LOOK_S
        if next_ms is not None:
            # Never longer than _LOOK_S: the wall clock may jump, and timers of the loop do not see
            # it.
            wait_s = min(_LOOK_S, max(0.0, (next_ms - self.now_ms()) / 1000))
        self._wake[number].clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._wake[number].wait()

    async def _deliver(
        self, number: int, owned: OwnerRuntime, due: Sequence[PendingSchedule]
    ) -> None:
        ready: list[PendingSchedule] = []
        later: list[PendingSchedule] = []
        for each in due:
            (ready if self._is_ready(each) else later).append(each)
        # Before anything can fail: what is neither delivered nor scheduled waits for a restart.
        self._put_back(number, later)
        try:
            if ready:
                await self._decide(number, owned, ready)
        except LakeMQError as error:
            if error.retriable:  # else the decision may be on disk, which the next start finds out
                self._put_back(number, ready)
            raise
        if ready:
            self.counters.late_ms = max(0, self.now_ms() - ready[0].due_ms)
            await self._finish(number, owned, resumed=False)
        if later:
            await asyncio.sleep(_PAUSE_S)

    def _put_back(self, number: int, some: Sequence[PendingSchedule]) -> None:
        for each in some:
            self._queue[number].schedule(each)

    def _is_ready(self, waiting: PendingSchedule) -> bool:
        """Whether its partition takes records; true where the topic is gone with its records."""
        try:
            info = self._broker.topic(waiting.topic)
            if info.topic_id != waiting.topic_id:
                return True
            return (
                self._broker.partition(waiting.topic, waiting.partition).status().state == "online"
            )
        except NotLeader:
            return False
        except LakeMQError:
            return True

    async def _decide(
        self, number: int, owned: OwnerRuntime, ready: Sequence[PendingSchedule]
    ) -> None:
        fresh = await self._broker.allocate_producer_id() if owned.state.needs_producer_id else None
        floors: dict[tuple[str, int], int] = {}
        for each in ready:
            # A topic that is gone has no floor: its records are left out of the commit. A leader
            # that moved while the producer id was allocated raises NotLeader: all is tried again.
            with suppress(UnknownTopic, UnknownPartition):
                log = self._broker.partition(each.topic, each.partition)
                floors.setdefault((each.topic, each.partition), log.log_end_offset)
        targets = states.targets_of(
            (
                (each.topic, each.topic_id, each.partition, each.entry)
                for each in ready
                if (each.topic, each.partition) in floors
            ),
            floors,
        )
        batch_id = owned.state.last_batch_id + 1
        state = states.committed(
            owned.state, batch_id, PendingCommit(targets), fresh, self.now_ms()
        )
        # All of them, also those without a target: they end with the others.
        owned.delivering = {each.key for each in ready}
        await self._states.append(Owner(SCHEDULER, str(number)), state)
        owned.known = state

    def _decided(self, number: int, owned: OwnerRuntime) -> set[str]:
        """Ids of the decision that a crash left pending, as far as they have not ended."""
        targets = owned.state.pending.targets if owned.state.pending else ()
        offsets = {entry.offset for target in targets for entry in target.entries}
        return {each.key for each in self._queue[number] if each.offset in offsets}

    async def _finish(self, number: int, owned: OwnerRuntime, *, resumed: bool) -> None:
        """Append what is decided, mark it as delivered, then clear the decision."""
        owner = Owner(SCHEDULER, str(number))
        work = CommitRunner(
            owned,
            self._broker,
            self._states,
            self._participants,
            self._delivered,
            self._log.read,
            persists_progress=False,
        )
        await work.run(owner, resumed)
        ids, now_ms = sorted(owned.delivering), self.now_ms()
        if ids:
            # Until it is durable: an id that is not marked would be delivered again after a
            # restart.
            backoff = Backoff(_PAUSE_FIRST_MS, _PAUSE_MAX_MS, _rng.random)
            await self._log.append_delivered(number, ids, now_ms, backoff)
        for each in ids:
            self._queue.end(each, number, now_ms)
        owned.delivering = set()
        # The decision is cleared behind the marks: a crash between them delivers nothing again, as
        # the producer id shows what is there.
        owned.finish()
        self._count()
        await self._states.append(owner, owned.state)

    def _delivered(self, _: int) -> None:
        self.counters.delivered += 1

    async def _delete_ended(self, number: int) -> None:
        """Ids that ended long ago need not be remembered."""
        gone = self._queue.expire_ended(number, self.now_ms() - self._remembered_ms)
        if gone:
            await self._log.delete(number, gone)


def _limits(settings: ScheduleSettings) -> ScheduleLimits:
    return ScheduleLimits(settings.batches_max, settings.bytes_max, settings.horizon_ms)
