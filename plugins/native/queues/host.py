"""All queues of this node: creates, opens, describes, changes and deletes them."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from lakemq.broker_core.api.errors import (
    GroupNotEmpty,
    InvalidRequest,
    LakeMQError,
    OffsetOutOfRange,
    UnknownGroup,
    UnknownTopic,
)
from lakemq.broker_core.api.limits.name_shares import NameShares
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.types import Operation, Principal, Resource, TopicInfo
from lakemq.plugins.native.config import NativeSettings
from lakemq.plugins.native.groups.offset_table import check_group_name
from lakemq.plugins.native.proto import queues_pb2 as pb
from lakemq.plugins.native.queues.consumer import QueueConsumer
from lakemq.plugins.native.queues.convert import given_settings, queue_message
from lakemq.plugins.native.queues.partition_state import fresh
from lakemq.plugins.native.queues.queue import QueueCounters, QueueLimits, RunningQueue
from lakemq.plugins.native.queues.settings import QueueSettings, agreed, checked
from lakemq.plugins.native.queues.snapshot import QueueKey
from lakemq.plugins.native.queues.store import QueueStore

_log = logging.getLogger(__name__)
_PREFETCH: int = 100
_Name = tuple[str, str]
"""(group, topic)"""
EARLIEST, LATEST = -1, -2


class QueueHost:
    """The queues whose topics this node leads. All calls are made on the event loop."""

    def __init__(self, broker: Broker, settings: NativeSettings) -> None:
        self.counters = QueueCounters()
        self._broker = broker
        self.settings = settings
        self._store = QueueStore(broker)
        self._shares = NameShares(
            "queues",
            self._store.settings,
            names_max=settings.queues_max,
            user_share_max=settings.user_share_max,
        )
        self._running: dict[_Name, RunningQueue] = {}
        # Held by all that creates, alters or deletes: these write several records of the state
        # topic, and look at what is there before.
        self._changing = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._limits = QueueLimits(settings.queue_window_records_max, settings.fetch_max_bytes)

    async def start(self) -> None:
        """Read the persisted queues, and delete those whose topic is gone."""
        await self._store.load()
        topics = {topic.name for topic in self._broker.topics()}
        for name in [each for each in self._store.settings if each[1] not in topics]:
            try:
                await self._delete(name)
            except LakeMQError as error:
                _log.warning(
                    "could not delete queue %s of a deleted topic, retrying at the next start: %s",
                    name,
                    error,
                )

    async def stop(self) -> None:
        """Stop all running queues."""
        queues, self._running = list(self._running.values()), {}
        await asyncio.gather(*(queue.stop() for queue in queues))

    # -- what metrics read

    def queues(self) -> Iterable[RunningQueue]:
        """The running queues."""
        return list(self._running.values())

    def dead_letters(self) -> int:
        """Dead letters written since the broker started."""
        return sum(
            each.written for queue in self.queues() for each in queue.dead_letter_writers.values()
        )

    # -- consumers

    async def join(
        self, request: pb.OpenQueue, principal: Principal
    ) -> tuple[RunningQueue, QueueConsumer]:
        """Open a queue for one consumer; it is created if it does not exist. Raises InvalidRequest,
        NotAuthorized, UnknownTopic."""
        self._check(request.group, request.topic, principal, Operation.READ)
        prefetch = request.prefetch or _PREFETCH
        if not 1 <= prefetch <= self.settings.queue_prefetch_max:
            raise InvalidRequest(
                f"prefetch is {prefetch}; it takes 1 to {self.settings.queue_prefetch_max}"
            )
        given = given_settings(request.settings)
        async with self._changing:
            name = (request.group, request.topic)
            topic = self._broker.topic(request.topic)
            settings = self._store.settings.get(name)
            if settings is None:
                await self._create(name, topic, given, principal)
            else:
                agreed(settings, given)
            queue = await self._queue(name)
        if len(queue.consumers) >= self.settings.queue_consumers_max:
            raise InvalidRequest(
                f"queue {name} has {len(queue.consumers)} consumers, as many as "
                "queue_consumers_max allows"
            )
        consumer = QueueConsumer(next(self._numbers), prefetch)
        queue.join(consumer)
        return queue, consumer

    def _check(self, group: str, topic: str, principal: Principal, operation: Operation) -> None:
        check_group_name(group)
        self._broker.authorize(principal, operation, Resource("group", group))
        may = Operation.READ if operation is Operation.READ else Operation.DESCRIBE
        self._broker.authorize(principal, may, Resource("topic", topic))

    async def _create(
        self, name: _Name, topic: TopicInfo, given: dict[str, Any], principal: Principal
    ) -> None:
        """Its start offsets are persisted before its settings: a queue exists with both or not at
        all."""
        settings = checked(replace(QueueSettings(), **given))
        await self._check_dead_letter(settings.dead_letter, topic.name, principal)
        logs = [self._broker.partition(topic.name, each) for each in range(topic.partitions)]
        self._shares.take(name, principal)
        for number, log in enumerate(logs):
            latest = settings.start == "latest"
            start = log.high_watermark if latest else log.log_start_offset
            key = QueueKey(*name, number)
            self._store.snapshots[key] = fresh(topic.topic_id, start)
            await self._store.keep(key, self._store.snapshots[key])
        await self._store.keep(QueueKey(*name), settings)
        self._store.settings[name] = settings

    async def _check_dead_letter(self, name: str, topic: str, principal: Principal) -> None:
        if not name:
            return
        if name == topic:
            raise InvalidRequest(f"dead_letter is {name}, the queue's own topic")
        self._broker.authorize(principal, Operation.WRITE, Resource("topic", name))
        try:
            self._broker.topic(name)
        except UnknownTopic:
            self._broker.authorize(principal, Operation.CREATE, Resource("topic", name))
            await self._broker.ensure_topic(name)

    async def _queue(self, name: _Name) -> RunningQueue:
        """The running queue. Raises UnknownGroup, UnknownTopic, and NotLeader when another node
        leads any partition: a queue would not deliver the records of that one."""
        settings = self._store.settings.get(name)
        if settings is None:
            raise UnknownGroup(f"there is no queue of group {name[0]!r} on topic {name[1]!r}")
        topic = self._broker.topic(name[1])
        queue = self._running.get(name)
        if queue is not None and queue.topic.topic_id == topic.topic_id:
            return queue
        for number in range(topic.partitions):
            self._broker.partition(topic.name, number)
        if queue is not None:
            await queue.stop(UnknownTopic(f"topic {topic.name} was deleted and created again"))
            self._drop_snapshots(name)
        queue = self._running[name] = RunningQueue(
            self._broker, name[0], topic, settings, self._keep, self._limits, self.counters
        )
        for number in range(topic.partitions):
            snapshot = self._store.snapshots.get(QueueKey(*name, number))
            if snapshot is None or snapshot.topic_id != topic.topic_id:
                # A partition that was added, or one of a topic of that name that is gone.
                snapshot = fresh(topic.topic_id, 0)
            queue.add_partition(snapshot, number)
        return queue

    async def _keep(self, key: QueueKey, state: Any) -> None:
        await self._store.keep(key, state)

    def _drop_snapshots(self, name: _Name) -> None:
        for key in [each for each in self._store.snapshots if each[:2] == name]:
            del self._store.snapshots[key]

    # -- operators

    def names(self) -> list[tuple[str, str]]:
        """(group, topic) of all queues, in no order."""
        return list(self._store.settings)

    async def describe(
        self, request: pb.DescribeQueuesRequest, principal: Principal
    ) -> list[pb.Queue]:
        """Queues that the principal may see; those led elsewhere are left out."""
        found = []
        for name in sorted(self._store.settings):
            if request.group not in ("", name[0]) or request.topic not in ("", name[1]):
                continue
            try:
                self._check(*name, principal, Operation.DESCRIBE)
                async with self._changing:
                    found.append(queue_message(await self._queue(name)))
            except LakeMQError:  # not the caller's to see, or its topic is gone or led elsewhere
                continue
        return found

    async def alter(self, request: pb.AlterQueueRequest, principal: Principal) -> QueueSettings:
        """Change or create a queue; its settings from now on. Raises UnknownTopic, InvalidRequest,
        NotAuthorized, GroupNotEmpty (`order` of a queue in use)."""
        self._check(request.group, request.topic, principal, Operation.ALTER)
        given = given_settings(request.settings)
        async with self._changing:
            name = (request.group, request.topic)
            topic = self._broker.topic(request.topic)
            if name not in self._store.settings:
                await self._create(name, topic, given, principal)
                return self._store.settings[name]
            queue = await self._queue(name)
            settings = checked(replace(queue.settings, **given))
            if settings.order != queue.settings.order and queue.consumers:
                raise GroupNotEmpty(f"queue {name} has consumers; its order can't change now")
            if settings.dead_letter != queue.settings.dead_letter:
                await self._check_dead_letter(settings.dead_letter, topic.name, principal)
            await self._store.keep(QueueKey(*name), settings)
            self._store.settings[name] = settings
            if settings.order != queue.settings.order:
                await self._restart(name, queue)
            else:
                queue.change_settings(settings)
            return settings

    async def _restart(self, name: _Name, queue: RunningQueue) -> None:
        """Load it again from its state: from now on keys count, or do not."""
        await queue.stop()
        for number, partition in queue.partitions.items():
            self._store.snapshots[QueueKey(*name, number)] = partition.state.snapshot()
        del self._running[name]

    async def reset(self, request: pb.ResetQueueRequest, principal: Principal) -> None:
        """Continue from other offsets. Raises UnknownGroup, GroupNotEmpty, UnknownPartition,
        OffsetOutOfRange, NotAuthorized."""
        self._check(request.group, request.topic, principal, Operation.ALTER)
        async with self._changing:
            name = (request.group, request.topic)
            queue = await self._unused(name)
            offsets = {}
            for number, offset in request.offsets.items():
                log = self._broker.partition(request.topic, number)
                wanted = {EARLIEST: log.log_start_offset, LATEST: log.high_watermark}
                offsets[number] = wanted.get(offset, offset)
                if not log.log_start_offset <= offsets[number] <= log.high_watermark:
                    raise OffsetOutOfRange(
                        f"offset {offset} is not within {log.log_start_offset}.."
                        f"{log.high_watermark} of {request.topic} partition {number}"
                    )
                if number not in queue.partitions:
                    queue.add_partition(fresh(queue.topic.topic_id, 0), number)
            await queue.reset(offsets)

    async def delete(self, request: pb.DeleteQueueRequest, principal: Principal) -> None:
        """Delete a queue and its state. Raises UnknownGroup, GroupNotEmpty, NotAuthorized."""
        self._check(request.group, request.topic, principal, Operation.DELETE)
        async with self._changing:
            name = (request.group, request.topic)
            queue = await self._unused(name)
            await queue.stop()
            del self._running[name]
            for number in queue.partitions:
                # Snapshots that were written since the start are not in `_store.snapshots`;
                # `_delete` has to find them.
                self._store.snapshots.setdefault(QueueKey(*name, number), fresh("0" * 32, 0))
            await self._delete(name)

    async def _unused(self, name: _Name) -> RunningQueue:
        queue = await self._queue(name)
        if queue.consumers:
            raise GroupNotEmpty(f"queue {name} has {len(queue.consumers)} consumer(s)")
        return queue

    async def _delete(self, name: _Name) -> None:
        """Settings last: what is half deleted is deleted at the next start."""
        for key in [each for each in self._store.snapshots if each[:2] == name]:
            await self._store.keep(key, None)
            del self._store.snapshots[key]
        await self._store.keep(QueueKey(*name), None)
        del self._store.settings[name]
