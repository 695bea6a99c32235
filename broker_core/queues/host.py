"""All queues that this node coordinates: creates, opens, describes, changes and deletes them."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from weakref import WeakValueDictionary

from lakemq.broker_core.api.errors import (
    GroupNotEmpty,
    InvalidRequest,
    LakeMQError,
    NotLeader,
    OffsetOutOfRange,
    UnknownGroup,
    UnknownTopic,
)
from lakemq.broker_core.api.groups.types import check_group_name
from lakemq.broker_core.api.leadership import leadership
from lakemq.broker_core.api.limits.name_shares import NameShares
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.queues.types import (
    EARLIEST,
    LATEST,
    GivenSettings,
    QueueCounters,
    QueueDescription,
    QueueLevels,
    QueueLimits,
    QueueSettings,
)
from lakemq.broker_core.api.state.residents import Residents
from lakemq.broker_core.api.types import Offset, Operation, Principal, Resource, TopicInfo
from lakemq.broker_core.queues.consumer import QueueConsumer
from lakemq.broker_core.queues.partition_state import fresh
from lakemq.broker_core.queues.queue import RunningQueue
from lakemq.broker_core.queues.settings import agreed, checked, known
from lakemq.broker_core.queues.snapshot import QUEUES_TOPIC, QueueKey
from lakemq.broker_core.queues.store import QueueName, QueueStore, QueueTable

_log = logging.getLogger(__name__)
_PREFETCH: int = 100


class QueueHost:
    """Implements the `QueueCoordinators` port: queues of the partitions of the topic of queues that
    this node leads. All calls are made on the event loop."""

    def __init__(self, broker: Broker, limits: QueueLimits | None = None) -> None:
        self._counters = QueueCounters()
        self._broker = broker
        self._limits = limits or QueueLimits()
        self._store = QueueStore(broker)
        self._residents = Residents(broker, self._store.topic, self)
        self._shares = self._shares_of_now()
        self._running: dict[QueueName, RunningQueue] = {}
        # Held by all that creates, alters or deletes a queue: these write several records of the
        # state topic, and look at what is there before.
        self._changing: WeakValueDictionary[QueueName, asyncio.Lock] = WeakValueDictionary()
        self._cleaning: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count(1)

    def configure(self, limits: QueueLimits) -> None:
        """As in the port."""
        before, self._limits = self._limits, limits
        if (limits.queues_max, limits.user_share_max) != (before.queues_max, before.user_share_max):
            self._shares = self._shares_of_now()

    def _shares_of_now(self) -> NameShares:
        return NameShares(
            "queues",
            self._store,
            names_max=self._limits.queues_max,
            user_share_max=self._limits.user_share_max,
        )

    async def start(self) -> None:
        """Read back the queues of this node, and follow which these are."""
        await self._residents.start()

    async def stop(self) -> None:
        """Stop all running queues."""
        for task in self._cleaning:
            task.cancel()
        await asyncio.gather(*self._cleaning, return_exceptions=True)
        await self._residents.stop()
        queues, self._running = list(self._running.values()), {}
        await asyncio.gather(*(queue.stop() for queue in queues))

    # -- what this node coordinates

    async def load(self, partition: int, end: int) -> QueueTable:
        """As `Resident.load`."""
        return await self._store.load(partition, end)

    def serve(self, partition: int, epoch: int, state: QueueTable) -> None:
        """As `Resident.serve`."""
        self._store.tables[partition] = state
        topics = {topic.name for topic in self._broker.topics()}
        gone = [name for name in state.settings if name[1] not in topics]
        if gone:
            task = asyncio.create_task(self._clean(state, gone))
            self._cleaning.add(task)
            task.add_done_callback(self._cleaning.discard)

    async def _clean(self, table: QueueTable, names: Sequence[QueueName]) -> None:
        """Delete queues whose topic is gone."""
        for name in names:
            try:
                async with self._change(name):
                    if name in table.settings and self._table(name) is table:
                        await self._delete(table, name)
            except LakeMQError as error:
                _log.warning(
                    "could not delete queue %s of a deleted topic, retrying at the next start: %s",
                    name,
                    error,
                )

    def drop(self, partition: int) -> None:
        """As `Resident.drop`."""
        self._store.tables.pop(partition, None)
        for name in list(self._running):
            if self._store.partition_of(name) in (partition, None):
                error = NotLeader(f"queue {name} has another coordinator by now")
                self._running.pop(name).abandon(error)

    def _check_here(self, name: QueueName) -> None:
        """Raises NotLeader, with the address, where another node coordinates the queue;
        Unavailable while this one takes it over."""
        partition = self._store.partition_of(name)
        if partition is not None:
            self._residents.check(partition)

    async def _arrive(self, name: QueueName) -> None:
        """As `_check_here`, for a queue that may be the first one; waits a while until it is taken
        over."""
        await self._store.topic.ensure()
        partition = self._store.partition_of(name)
        assert partition is not None
        await self._residents.arrive(partition)

    def _table(self, name: QueueName) -> QueueTable:
        """What holds the queue, if there is such a queue. Raises as `_check_here`: leadership may
        have moved at any await."""
        self._check_here(name)
        table = self._store.table_of(name)
        if table is None:
            raise UnknownGroup(f"there is no queue of group {name[0]!r} on topic {name[1]!r}")
        return table

    def coordinator_of(self, group: str, topic: str) -> str:
        """As in the port."""
        partition = self._store.partition_of((group, topic))
        if partition is None:
            return ""
        return leadership(self._broker.topic(QUEUES_TOPIC), partition).leader or ""

    def coordinators(self) -> Sequence[str]:
        """As in the port, in order."""
        info = self._store.topic.info
        leaders = info.leaders if info is not None else ()
        return sorted({each.leader for each in leaders if each.leader})

    def _change(self, name: QueueName) -> asyncio.Lock:
        return self._changing.setdefault(name, asyncio.Lock())

    # -- what metrics read

    def queues(self) -> Iterable[RunningQueue]:
        """The running queues."""
        return list(self._running.values())

    def levels(self) -> Sequence[QueueLevels]:
        """As in the port."""
        return [queue.levels() for queue in self.queues()]

    @property
    def counters(self) -> QueueCounters:
        """As in the port."""
        written = sum(
            each.written for queue in self.queues() for each in queue.dead_letter_writers.values()
        )
        return replace(self._counters, dead_letters=written)

    # -- consumers

    async def open(
        self,
        group: str,
        topic: str,
        *,
        principal: Principal,
        prefetch: int = 0,
        given: GivenSettings | None = None,
    ) -> QueueConsumer:
        """As in the port."""
        self._check(group, topic, principal, Operation.READ)
        prefetch, limits = prefetch or _PREFETCH, self._limits
        if not 1 <= prefetch <= limits.prefetch_max:
            raise InvalidRequest(f"prefetch is {prefetch}; it takes 1 to {limits.prefetch_max}")
        asked, name = known(given), (group, topic)
        await self._arrive(name)
        async with self._change(name):
            info = self._broker.topic(topic)
            settings = self._table(name).settings.get(name)
            if settings is None:
                await self._create(name, info, asked, principal)
            else:
                agreed(settings, asked)
            queue = await self._queue(name)
        if len(queue.consumers) >= self._limits.consumers_max:
            raise InvalidRequest(
                f"queue {name} has {len(queue.consumers)} consumers, as many as "
                "queue_consumers_max allows"
            )
        consumer = QueueConsumer(next(self._numbers), prefetch, queue)
        queue.join(consumer)
        return consumer

    def _check(self, group: str, topic: str, principal: Principal, operation: Operation) -> None:
        check_group_name(group)
        self._broker.authorize(principal, operation, Resource("group", group))
        may = Operation.READ if operation is Operation.READ else Operation.DESCRIBE
        self._broker.authorize(principal, may, Resource("topic", topic))

    async def _create(
        self, name: QueueName, topic: TopicInfo, given: GivenSettings, principal: Principal
    ) -> None:
        """Its start offsets are persisted before its settings: a queue exists with both or not at
        all."""
        settings = checked(_with(QueueSettings(), given))
        await self._check_dead_letter(settings.dead_letter, topic.name, principal)
        bounds = await self._bounds(topic.name, range(topic.partitions))
        table = self._table(name)
        self._shares.take(name, principal)
        for number, (low, high) in bounds.items():
            key = QueueKey(*name, number)
            start = high if settings.start == "latest" else low
            table.snapshots[key] = fresh(topic.topic_id, start)
            await self._store.keep(key, table.snapshots[key])
        await self._store.keep(QueueKey(*name), settings)
        table.settings[name] = settings

    async def _bounds(self, topic: str, numbers: Iterable[int]) -> dict[int, tuple[Offset, Offset]]:
        """Partition -> where it starts and ends, of any nodes."""
        readers = {number: self._broker.reader(topic, number) for number in numbers}
        found = await asyncio.gather(*(reader.bounds() for reader in readers.values()))
        return dict(zip(readers, found, strict=True))

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

    async def _queue(self, name: QueueName) -> RunningQueue:
        """The running queue. Raises UnknownGroup, UnknownTopic, and as `_table`."""
        table = self._table(name)
        settings = table.settings.get(name)
        if settings is None:
            raise UnknownGroup(f"there is no queue of group {name[0]!r} on topic {name[1]!r}")
        topic = self._broker.topic(name[1])
        queue = self._running.get(name)
        if queue is not None and queue.topic.topic_id == topic.topic_id:
            return queue
        if queue is not None:
            await queue.stop(UnknownTopic(f"topic {topic.name} was deleted and created again"))
            table = self._table(name)
            table.forget_snapshots(name)
        queue = self._running[name] = RunningQueue(
            self._broker, name[0], topic, settings, self._store.keep, self._limits, self._counters,
            partial(self._check_here, name),
        )  # fmt: skip
        for number in range(topic.partitions):
            snapshot = table.snapshots.get(QueueKey(*name, number))
            if snapshot is None or snapshot.topic_id != topic.topic_id:
                # A partition that was added, or one of a topic of that name that is gone.
                snapshot = fresh(topic.topic_id, 0)
            queue.add_partition(snapshot, number)
        return queue

    # -- operators

    def names(self) -> Sequence[QueueName]:
        """As in the port."""
        return self._store.names()

    async def describe(
        self, group: str = "", topic: str = "", *, principal: Principal
    ) -> Sequence[QueueDescription]:
        """As in the port."""
        found = []
        for name in sorted(self._store.names()):
            if group not in ("", name[0]) or topic not in ("", name[1]):
                continue
            try:
                self._check(*name, principal, Operation.DESCRIBE)
                async with self._change(name):
                    queue = await self._queue(name)
            except LakeMQError:  # not the caller's to see, or its topic is gone, or it has moved
                continue
            await queue.look()
            found.append(queue.description())
        return found

    async def alter(
        self, group: str, topic: str, given: GivenSettings, *, principal: Principal
    ) -> QueueSettings:
        """As in the port."""
        self._check(group, topic, principal, Operation.ALTER)
        asked, name = known(given), (group, topic)
        await self._arrive(name)
        async with self._change(name):
            info = self._broker.topic(topic)
            table = self._table(name)
            if name not in table.settings:
                await self._create(name, info, asked, principal)
                return table.settings[name]
            queue = await self._queue(name)
            settings = checked(_with(queue.settings, asked))
            if settings.order != queue.settings.order and queue.consumers:
                raise GroupNotEmpty(f"queue {name} has consumers; its order can't change now")
            if settings.dead_letter != queue.settings.dead_letter:
                await self._check_dead_letter(settings.dead_letter, topic, principal)
            await self._store.keep(QueueKey(*name), settings)
            table = self._table(name)
            table.settings[name] = settings
            if settings.order != queue.settings.order:
                await self._restart(table, name, queue)
            else:
                queue.change_settings(settings)
            return settings

    async def _restart(self, table: QueueTable, name: QueueName, queue: RunningQueue) -> None:
        """Load it again from its state: from now on keys count, or do not."""
        await queue.stop()
        for number, partition in queue.partitions.items():
            table.snapshots[QueueKey(*name, number)] = partition.state.snapshot()
        self._running.pop(name, None)

    async def reset(
        self, group: str, topic: str, offsets: Mapping[int, int], *, principal: Principal
    ) -> None:
        """As in the port."""
        self._check(group, topic, principal, Operation.ALTER)
        name = (group, topic)
        await self._arrive(name)
        async with self._change(name):
            await self._unused(name)
            bounds = await self._bounds(topic, offsets)
            wanted = {}
            for number, offset in offsets.items():
                low, high = bounds[number]
                wanted[number] = {EARLIEST: low, LATEST: high}.get(offset, offset)
                if not low <= wanted[number] <= high:
                    raise OffsetOutOfRange(
                        f"offset {offset} is not within {low}..{high} of {topic} partition {number}"
                    )
            queue = await self._unused(name)
            for number in wanted.keys() - queue.partitions.keys():
                queue.add_partition(fresh(queue.topic.topic_id, 0), number)
            await queue.reset(wanted)

    async def delete(self, group: str, topic: str, *, principal: Principal) -> None:
        """As in the port."""
        self._check(group, topic, principal, Operation.DELETE)
        name = (group, topic)
        await self._arrive(name)
        async with self._change(name):
            queue = await self._unused(name)
            await queue.stop()
            table = self._table(name)
            self._running.pop(name, None)
            for number in queue.partitions:
                # Snapshots that were written since the partition was read back are not in
                # `table.snapshots`; `_delete` has to find them.
                table.snapshots.setdefault(QueueKey(*name, number), fresh("0" * 32, 0))
            await self._delete(table, name)

    async def _unused(self, name: QueueName) -> RunningQueue:
        queue = await self._queue(name)
        if queue.consumers:
            raise GroupNotEmpty(f"queue {name} has {len(queue.consumers)} consumer(s)")
        return queue

    async def _delete(self, table: QueueTable, name: QueueName) -> None:
        """Settings last: what is half deleted is deleted when it is read back."""
        for key in [each for each in table.snapshots if each[:2] == name]:
            await self._store.keep(key, None)
            del table.snapshots[key]
        await self._store.keep(QueueKey(*name), None)
        del table.settings[name]


def _with(settings: QueueSettings, given: GivenSettings) -> QueueSettings:
    return replace(settings, **given)  # type: ignore[arg-type]  # `known` has checked the kinds
