"""A running queue: its consumers, its partitions, and the task that delivers records to them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from lakemq.broker_core.api.errors import LakeMQError, NotLeader, UnknownTopic
from lakemq.broker_core.api.leadership import check_partition
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.queues.types import (
    QueueCounters,
    QueueDelivery,
    QueueDescription,
    QueueLevels,
    QueueLimits,
    QueuePartition,
    QueueSettings,
    Settlement,
)
from lakemq.broker_core.api.types import CommittedBatch, TopicInfo
from lakemq.broker_core.queues.consumer import QueueConsumer, Ranges, Settled
from lakemq.broker_core.queues.dead_letters import DeadLetterWriter
from lakemq.broker_core.queues.partition_runtime import QueuePartitionRuntime, now_ms
from lakemq.broker_core.queues.partition_state import (
    QueuePartitionState,
    fresh,
    ranges,
)
from lakemq.broker_core.queues.snapshot import QueueKey, Snapshot
from lakemq.broker_core.queues.source_log import SourceLog

_log = logging.getLogger(__name__)
_REFRESH_S: Final = 1.0
"""How often to look for new partitions, and whether the topic still exists (s)."""
_DELIVERY_RECORDS_MAX: Final = 1000
_CLOSE_S: Final = 2.0

Keep = Callable[[QueueKey, QueueSettings | Snapshot | None], Awaitable[None]]


class RunningQueue:
    """A queue that has, or had, consumers since the node started. All calls are made on the event
    loop."""

    def __init__(
        self,
        broker: Broker,
        group: str,
        topic: TopicInfo,
        settings: QueueSettings,
        keep: Keep,
        limits: QueueLimits,
        counters: QueueCounters,
        check_here: Callable[[], None],
    ) -> None:
        """`check_here` raises NotLeader where another node coordinates the queue."""
        self.group, self.topic = group, topic
        self.settings = settings
        self.consumers: dict[int, QueueConsumer] = {}
        self.partitions: dict[int, QueuePartitionRuntime] = {}
        self.dead_letter_writers: dict[int, DeadLetterWriter] = {}
        self._broker = broker
        self._keep = keep
        self._limits = limits
        self._counters = counters
        self._check_here = check_here
        self._abandoned = False
        self._logs: dict[int, SourceLog] = {}
        self._woken = asyncio.Event()
        self._turn = 0
        self._pump: asyncio.Task[None] | None = None
        self._remove_tap = broker.tap(topic.name, self._readable)

    # -- life

    def add_partition(self, snapshot: Snapshot, number: int) -> QueuePartitionRuntime:
        """Run a partition from a snapshot."""
        key = QueueKey(self.group, self.topic.name, number)

        async def keep(snapshot: Snapshot) -> None:
            await self._keep(key, snapshot)

        log = SourceLog(self._broker, self.topic.name, number, self.wake)
        state = QueuePartitionState(self.settings, snapshot)
        partition = QueuePartitionRuntime(
            number,
            state,
            log,
            keep,
            topic=self.topic.name,
            window_max=self._limits.window_records_max,
        )
        if self._abandoned:
            partition.abandon()
        self._rest(number)
        self._logs[number] = log
        self.partitions[number] = partition
        self.dead_letter_writers[number] = DeadLetterWriter(
            self._broker, partition, self.group, self.topic.name, self.wake
        )
        return partition

    def change_settings(self, settings: QueueSettings) -> None:
        """Apply settings to all partitions."""
        self.settings = settings
        for partition in self.partitions.values():
            partition.state.settings = settings
        self.wake()

    async def stop(self, failure: LakeMQError | None = None) -> None:
        """Disconnect all consumers, with `failure` if any, and persist what is pending."""
        self._remove_tap()
        for consumer in list(self.consumers.values()):
            consumer.end(failure)
            self.leave(consumer)
        # Before the writers of dead letters, which it would start again.
        tasks = [self._pump] if self._pump is not None else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(each.stop() for each in self.dead_letter_writers.values()))
        await asyncio.gather(*(partition.close(_CLOSE_S) for partition in self.partitions.values()))

    def abandon(self, failure: LakeMQError) -> None:
        """Another node coordinates it from now on, or may: disconnect all consumers, write nothing
        any more."""
        self._abandoned = True
        self._remove_tap()
        for writer in self.dead_letter_writers.values():
            writer.abandon()
        for number, partition in self.partitions.items():
            partition.abandon()
            self._rest(number)
        for consumer in list(self.consumers.values()):
            consumer.end(failure)
            self.leave(consumer)
        if self._pump is not None:
            self._pump.cancel()

    def _rest(self, number: int) -> None:
        log = self._logs.get(number)
        if log is not None:
            log.rest()

    async def look(self) -> None:
        """Learn where partitions that other nodes lead end, as far as these can be asked."""
        await asyncio.gather(*(log.look() for log in self._logs.values()), return_exceptions=True)

    # -- consumers

    def join(self, consumer: QueueConsumer) -> None:
        """Add a consumer; the first one starts deliveries."""
        self.consumers[consumer.number] = consumer
        if self._pump is None:
            self._pump = asyncio.create_task(self._run())
        self.wake()

    def leave(self, consumer: QueueConsumer) -> None:
        """Remove a consumer and release what it holds."""
        self.consumers.pop(consumer.number, None)
        for partition in self.partitions.values():
            if partition.state.leave(consumer.number, now_ms()):
                partition.changed()
        self.wake()

    def settle(
        self,
        consumer: QueueConsumer,
        partition: int,
        given: Ranges,
        settlement: Settlement,
        delay_ms: int,
    ) -> Settled:
        """As `QueueConsumer.settle` of the port. Raises UnknownPartition, NotLeader."""
        self._check_here()
        check_partition(self._broker.topic(self.topic.name), partition)
        found = self.partitions.get(partition)
        if found is None:
            return list(given), None
        lost: set[int] = set()
        now = now_ms()
        for first, last in given:
            for offset in range(first, last + 1):
                if not found.state.settle(consumer.number, offset, settlement, now, delay_ms):
                    lost.add(offset)
                else:
                    self._counters.settled += settlement is not Settlement.EXTEND
        # Locks are not persisted, so there is nothing to wait for.
        if settlement is Settlement.EXTEND:
            return ranges(lost), None
        self.wake()
        return ranges(lost), found.persisted()

    # -- the pump

    def wake(self) -> None:
        """Deliver now: something changed."""
        self._woken.set()

    def _readable(self, _: Sequence[CommittedBatch]) -> None:
        self._woken.set()

    async def _run(self) -> None:
        try:
            while self.consumers:
                # Before the look at the state: what changes during this round starts the next one.
                self._woken.clear()
                try:
                    self._refresh()
                    delivered = await self._deliver()
                except LakeMQError as error:
                    await self._failed(error)
                    continue
                except Exception as error:  # consumers must not wait for ever
                    _log.exception("queue %s/%s", self.group, self.topic.name)
                    await self._failed(LakeMQError(f"queue failed: {error!r}"))
                    continue
                if not delivered and not self._woken.is_set():
                    self._await_more()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._pause_s()):
                            await self._woken.wait()
        finally:
            self._pump = None
            for partition in self.partitions.values():
                # Without consumers nothing is read: the memory of opened batches is given back.
                partition.source.clear()
            for number in self._logs:
                self._rest(number)

    def _await_more(self) -> None:
        """Be told when there is more in partitions that other nodes lead."""
        for number, log in self._logs.items():
            if self.partitions[number].state.end >= log.high_watermark:
                log.await_more()

    async def _failed(self, error: LakeMQError) -> None:
        """Retry after a transient error; disconnect the consumers with any other."""
        # NotLeader is for the consumers: they have to go to the other node.
        if error.retriable and not isinstance(error, NotLeader):
            await asyncio.sleep(_REFRESH_S)
            return
        _log.warning("queue %s/%s: %s", self.group, self.topic.name, error)
        for consumer in list(self.consumers.values()):
            consumer.end(error)
            self.leave(consumer)

    def _refresh(self) -> None:
        """Apply what time and others changed: partitions, locks, dead letters."""
        self._check_here()
        topic = self._broker.topic(self.topic.name)
        if topic.topic_id != self.topic.topic_id:
            raise UnknownTopic(
                f"topic {topic.name} was deleted and created again; reopen the queue"
            )
        for number in range(topic.partitions):
            if number not in self.partitions:  # it was added: read it from its beginning
                self.add_partition(fresh(topic.topic_id, 0), number)
        now = now_ms()
        for number, partition in self.partitions.items():
            expired = partition.state.expire(now)
            if expired:
                self._counters.expired += len(expired)
                partition.changed()
            self.dead_letter_writers[number].start_if_needed()

    def _pause_s(self) -> float:
        dues = [
            due for partition in self.partitions.values() if (due := partition.state.next_due_ms())
        ]
        if not dues:
            return _REFRESH_S
        return min(_REFRESH_S, max(0.001, (min(dues) - now_ms()) / 1000))

    async def _deliver(self) -> bool:
        """One round: each consumer with room gets records, the one that has waited longest first;
        whether any did."""
        some = False
        # By the turn in which they were served last, so that none starves behind fast ones.
        for consumer in sorted(self.consumers.values(), key=lambda each: each.served):
            numbers = sorted(self.partitions)
            # Each time another partition is first, so that a busy one does not starve the others.
            self._turn += 1
            for step in range(len(numbers)):
                partition = self.partitions[numbers[(self._turn + step) % len(numbers)]]
                room = consumer.prefetch - self._held_by(consumer)
                if room <= 0 or not consumer.takes_deliveries:
                    break
                some |= await self._deliver_from(partition, consumer, room)
        return some

    def _held_by(self, consumer: QueueConsumer) -> int:
        return sum(
            partition.state.held_by(consumer.number) for partition in self.partitions.values()
        )

    async def _deliver_from(
        self, partition: QueuePartitionRuntime, consumer: QueueConsumer, room: int
    ) -> bool:
        count = min(room, _DELIVERY_RECORDS_MAX)
        await partition.fill(count)
        if not consumer.takes_deliveries or not partition.state.has_ready(now_ms()):
            return False
        taken = await partition.take(consumer.number, count, self._limits.delivery_max_bytes)
        if taken is None:
            return True
        batch, delivered = taken
        # It left while its records were read, after `leave` had released what it held by then.
        if not consumer.is_open or consumer.number not in self.consumers:
            partition.state.leave(consumer.number, now_ms())
            partition.changed()
            return True
        self._counters.delivered += len(delivered)
        consumer.served = self._turn
        attempts = [each.attempt for each in delivered]
        consumer.send(QueueDelivery(partition.number, batch, attempts, self.settings.lock_ms))
        return True

    # -- for operators

    def description(self) -> QueueDescription:
        """As of the last `look`."""
        return QueueDescription(
            self.group,
            self.topic.name,
            self.settings,
            len(self.consumers),
            [
                QueuePartition(
                    number,
                    partition.state.start,
                    partition.log.high_watermark,
                    partition.state.held,
                    partition.state.backlog(partition.log.high_watermark),
                    len(partition.state.exhausted(1_000_000)),
                )
                for number, partition in sorted(self.partitions.items())
            ],
        )

    def levels(self) -> QueueLevels:
        """For metrics."""
        parts = self.partitions.values()
        return QueueLevels(
            self.group,
            self.topic.name,
            len(self.consumers),
            sum(each.state.held for each in parts),
            sum(each.state.backlog(each.log.high_watermark) for each in parts),
        )

    async def reset(self, offsets: dict[int, int]) -> None:
        """Continue from these offsets; only without consumers. Returns when that is on disk."""
        waits = []
        for number, offset in offsets.items():
            await self.dead_letter_writers[number].stop()
            await self.partitions[number].close(_CLOSE_S)
            partition = self.add_partition(fresh(self.topic.topic_id, offset), number)
            waits.append(partition.persisted())
        await asyncio.gather(*waits)
