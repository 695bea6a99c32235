"""Scheduled batches: kept until their time, then appended to their partition exactly once.
Implements the `Schedules` port.

The clock is the wall clock, read once a second at least: when it jumps ahead, what became due is
delivered; when it jumps back, deliveries come later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from lakemq.broker_core.api.errors import (
    LakeMQError,
    NotLeader,
    Unavailable,
    UnknownSchedule,
)
from lakemq.broker_core.api.leadership import check_partition, leadership, leads
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.scheduling.schedules import (
    ScheduleAnswer,
    ScheduleAsked,
    ScheduleCounters,
    ScheduledBatch,
)
from lakemq.broker_core.api.state.residents import Residents
from lakemq.broker_core.api.types import AppendResult, Operation, Principal, Resource, TopicInfo
from lakemq.broker_core.configuration.settings import ScheduleSettings
from lakemq.broker_core.publishing.admission import Admission
from lakemq.broker_core.scheduling.delivering import Deliveries, DeliveryContext
from lakemq.broker_core.scheduling.formats import StoredSchedule
from lakemq.broker_core.scheduling.log import ScheduleLog, StoredSchedules
from lakemq.broker_core.scheduling.queue import PendingSchedule, ScheduleLimits, ScheduleQueue
from lakemq.broker_core.transactions.participants import Participants
from lakemq.broker_core.transactions.targets import Call, Targets


class Scheduler:
    """The schedules of those partitions of their topic that this node leads; each partition
    delivers on its own. Others are refused (NotLeader, with the leader's address)."""

    def __init__(
        self,
        broker: Broker,
        settings: ScheduleSettings,
        now_ms: Callable[[], int],
        admission: Admission | None = None,
        call: Call | None = None,
    ) -> None:
        """`call`: to other nodes; None: there are none."""
        self._admission = admission or Admission(
            lambda *given: broker.schemas.check_batch(*given), now_ms
        )
        self.counters = ScheduleCounters()
        self.now_ms = now_ms
        self._broker = broker
        self._log = ScheduleLog(broker)
        self._residents = Residents(broker, self._log.topic, self)
        self._queue = ScheduleQueue(_limits(settings))
        self._context = DeliveryContext(
            broker, self._log, self._queue, Participants(), Targets(broker, call), self.counters,
            now_ms, settings.remembered_ms, self._count,
        )  # fmt: skip
        self._deliveries: dict[int, Deliveries] = {}
        """By partition of the topic of schedules."""

    def reconfigure(self, settings: ScheduleSettings) -> None:
        """Bounds of what is scheduled from now on."""
        self._queue.limits = _limits(settings)
        self._context.remembered_ms = settings.remembered_ms

    # -- life

    async def start(self) -> None:
        """Read back what this node delivers; continue deliveries that were decided."""
        await self._residents.start()

    async def stop(self) -> None:
        """What is being delivered is continued at the next start, here or elsewhere."""
        await self._residents.stop()
        await asyncio.gather(*(each.stop() for each in self._deliveries.values()))

    # -- what this node delivers

    async def load(self, partition: int, end: int) -> StoredSchedules:
        """As `Resident.load`."""
        return await self._log.load(partition, end)

    def serve(self, partition: int, epoch: int, state: StoredSchedules) -> None:
        """As `Resident.serve`."""
        for schedule_id, found in state.schedules.items():
            if isinstance(found, PendingSchedule):
                self._queue.add(found)
            else:
                self._queue.end(schedule_id, partition, found.ended_ms)
        deliveries = self._deliveries[partition] = Deliveries(self._context, partition, state.state)
        deliveries.start()
        self._count()

    def drop(self, partition: int) -> None:
        """As `Resident.drop`."""
        deliveries = self._deliveries.pop(partition, None)
        if deliveries is not None:
            deliveries.end()
        self._queue.drop(partition)
        self._count()

    def _wake(self, partition: int) -> None:
        deliveries = self._deliveries.get(partition)
        if deliveries is not None:
            deliveries.wake.set()

    def coordinators(self) -> Sequence[str]:
        """See `Schedules.coordinators`."""
        info = self._log.topic.info
        return sorted({each.leader or "" for each in info.leaders} - {""}) if info else []

    # -- what callers ask

    async def schedule(self, asked: ScheduleAsked, *, principal: Principal) -> ScheduleAnswer:
        """Keep a batch until its time; done when it is durable. An id that is known answers
        again. Raises InvalidRequest, StagingFull, NotAuthorized, NotLeader (another node keeps the
        schedules of the partition)."""
        self._broker.authorize(principal, Operation.WRITE, Resource("topic", asked.topic))
        info = self._broker.topic(asked.topic)
        check_partition(info, asked.partition)
        header = self._admission.header(info, asked.batch)
        batch, header = await self._admission.check(info, asked.batch, header, principal)
        await self._log.ensure()
        await self._residents.arrive(self._log.partition_of(asked.topic, asked.partition))
        ended_ms = self._queue.ended_ms(asked.schedule_id)
        # The id was delivered or cancelled not long ago: a retry of the client must not schedule it
        # again.
        if ended_ms is not None:
            return ScheduleAnswer(min(asked.deliver_at_ms, ended_ms), True)
        found = self._queue.find(asked.schedule_id)
        if found is None:
            now_ms = self.now_ms()
            size = len(batch)
            self._queue.check(asked.schedule_id, asked.deliver_at_ms, size, now_ms)
            stored = StoredSchedule(
                asked.deliver_at_ms,
                asked.keep_timestamps,
                asked.topic,
                info.topic_id,
                asked.partition,
                header.record_count,
                batch,
            )
            waiting, written = self._log.append_batch(asked.schedule_id, stored)
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
        self._wake(waiting.log_partition)

    async def cancel(self, schedule_id: str, *, principal: Principal) -> None:
        """Give a schedule up before its time. Raises UnknownSchedule, NotAuthorized, Unavailable
        (another node may have it, which is not known yet)."""
        waiting = self._queue.find(schedule_id)
        if waiting is None:
            self._check_known()
        if waiting is None or not self._queue[waiting.log_partition].is_scheduled(schedule_id):
            raise UnknownSchedule(
                f"unknown schedule {schedule_id[:100]!r}; it may have been delivered or cancelled"
            )
        self._broker.authorize(principal, Operation.WRITE, Resource("topic", waiting.topic))
        # From here on it is not delivered, however long the append takes.
        self._queue[waiting.log_partition].unschedule(schedule_id)
        await asyncio.shield(self._cancel(waiting))

    def _check_known(self) -> None:
        """Raises Unavailable where schedules have no leader, or this node still reads some back."""
        info = self._log.topic.info
        for number in range(info.partitions if info is not None else 0):
            with suppress(NotLeader):
                self._residents.check(number)
            if info is not None and not self._is_led(info, number):
                raise Unavailable(f"no node leads {info.name}/{number} now; ask again")

    def _is_led(self, info: TopicInfo, number: int) -> bool:
        lead = leadership(info, number)
        return lead.leader is not None or leads(self._broker.node_id, info, number)

    async def _cancel(self, waiting: PendingSchedule) -> None:
        number, now_ms = waiting.log_partition, self.now_ms()
        try:
            await self._log.append_ended(number, [waiting.key], now_ms)
        except LakeMQError:
            self._queue[number].schedule(waiting)
            self._wake(number)
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


def _limits(settings: ScheduleSettings) -> ScheduleLimits:
    return ScheduleLimits(settings.batches_max, settings.bytes_max, settings.horizon_ms)
