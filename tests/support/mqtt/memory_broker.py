"""A `Broker` in memory for tests of the MQTT plugin: what is published is kept in lists and handed
to taps; tests choose who may do what, how long an append takes and how it fails.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress

from lakemq.broker_core.api.access import Verdict
from lakemq.broker_core.api.cluster.channels import Channel, ChannelEvents
from lakemq.broker_core.api.errors import (
    LakeMQError,
    NotAuthenticated,
    NotAuthorized,
    OffsetOutOfRange,
    Undecided,
    UnknownMechanism,
    UnknownTopic,
)
from lakemq.broker_core.api.partition_ports import BatchFilter, Wanted
from lakemq.broker_core.api.ports import (
    AppendDone,
    BoundPublish,
    Credentials,
    Exchange,
    Mechanism,
    PartitionLog,
    Tap,
)
from lakemq.broker_core.api.records.batch import BatchHeader, RecordBatch, encode, read_header
from lakemq.broker_core.api.state.internal_topics import is_internal
from lakemq.broker_core.api.types import (
    ANONYMOUS,
    NO_CONTEXT,
    AccessContext,
    Acks,
    AppendResult,
    ClusterInfo,
    Columns,
    CommittedBatch,
    FetchResult,
    Leadership,
    NodeInfo,
    Offset,
    Operation,
    PartitionStatus,
    Placed,
    Principal,
    Resource,
    TopicConfig,
    TopicInfo,
)
from lakemq.broker_core.publishing.publisher import answer_with, refuse
from lakemq.plugins.mqtt.config import MqttSettings
from lakemq.plugins.mqtt.server.engine import MqttEngine
from lakemq.plugins.mqtt.server.tcp import MqttListener
from tests.support.memory_channels import MemoryChannels


class MemoryBroker:
    """One partition a topic, in memory."""

    cluster_id = "memory"

    def __init__(self, cluster: MemoryChannels | None = None, node_id: str = "node-1") -> None:
        self.node_id = node_id
        self.cluster = cluster or MemoryChannels()
        """The nodes that it talks to."""
        self.published: dict[str, list[Columns]] = {}
        self.batches: dict[str, list[CommittedBatch]] = {}
        self.forbidden: set[tuple[Operation, str]] = set()
        """(operation, topic name) pairs that nobody may."""
        self.state = "active"
        """Of this node, as `describe_cluster` tells it."""
        self.undecided: set[tuple[Operation, str]] = set()
        """Those that are found out about when `answers` is set."""
        self.answers = asyncio.Event()
        self.users: dict[str, bytes] | None = None
        """User -> password; None: everybody is anonymous."""
        self.access_watchers: list[Callable[[], None]] = []
        """Called when tests say that rules have changed."""
        self.withdrawn: set[str] = set()
        """Users whose credentials hold no more."""
        self.exchanges: list[Mechanism] = []
        """Ways to authenticate in several steps."""
        self.failure: LakeMQError | None = None
        """When set, no record is stored and every outcome is this."""
        self.held: asyncio.Event | None = None
        """When set, appends wait for it."""
        self.reserved: dict[str, set[str]] = {}
        """Headers that clients' batches may not have, by topic."""
        self.created: dict[str, tuple[int | None, TopicConfig | None]] = {}
        """What each topic was asked to be made of."""
        self._topics: dict[str, TopicInfo] = {}
        self._numbers = itertools.count()
        self._topic_watchers: list[Callable[[str, TopicInfo | None], None]] = []
        self._offsets: dict[str, int] = {}
        self._taps: dict[str, list[Tap]] = {}
        self._waiting: dict[str, list[asyncio.Event]] = {}

    def topics(self) -> Sequence[TopicInfo]:
        return list(self._topics.values())

    def topic(self, name: str) -> TopicInfo:
        if name not in self._topics:
            raise UnknownTopic(f"topic {name!r} does not exist")
        return self._topics[name]

    def topic_defaults(self) -> TopicConfig:
        return TopicConfig()

    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        config: TopicConfig | None = None,
        *,
        replication: int | None = None,
        min_in_sync: int | None = None,
    ) -> TopicInfo:
        self.created[name] = (partitions, config)
        topic_id = f"{name.encode().hex()[:24]:0<24}{next(self._numbers):08x}"
        leaders = (Leadership(self.node_id, 1, (self.node_id,)),)
        made = TopicInfo(name, topic_id, 1, leaders=leaders)
        self._topics[name] = made
        self._tell(name, made)
        return made

    async def ensure_topic(self, name: str, partitions: int | None = None) -> TopicInfo:
        return self._topics.get(name) or await self.create_topic(name, partitions)

    async def delete_topic(self, name: str) -> None:
        del self._topics[name]
        self.batches.pop(name, None)
        self._offsets.pop(name, None)
        self._tell(name, None)

    def _tell(self, name: str, topic: TopicInfo | None) -> None:
        for watcher in list(self._topic_watchers):
            watcher(name, topic)

    def nodes(self) -> Sequence[NodeInfo]:
        return ()

    def in_touch(self) -> bool:
        return True

    def watch_nodes(self, on_change: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    def watch_topics(
        self, on_change: Callable[[str, TopicInfo | None], None]
    ) -> Callable[[], None]:
        self._topic_watchers.append(on_change)
        return lambda: self._topic_watchers.remove(on_change)

    def serves(self, topic: str, partition: int) -> bool:
        return True

    def watch_serving(self, changed: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    def readable_end(self, topic: str, partition: int) -> int | None:
        return self.partition(topic, partition).high_watermark

    def partition(self, topic: str, partition: int, leader_epoch: int = 0) -> PartitionLog:
        self.topic(topic)
        return MemoryLog(self, topic, self.batches.setdefault(topic, []))

    def filter_batches(self, name: str, wants: BatchFilter) -> Callable[[], None]:
        return lambda: None

    def reader(self, topic: str, partition: int, wanted: Wanted | None = None) -> MemoryReader:
        return MemoryReader(self.partition(topic, partition))

    def route(self, topic: str, partition: int) -> PartitionLog:
        return self.partition(topic, partition)

    def publish(
        self,
        topic: str,
        columns: Columns,
        *,
        principal: Principal,
        acks: Acks = Acks.LEADER,
        partition: int | None = None,
    ) -> asyncio.Future[list[Placed | LakeMQError]]:
        self.topic(topic)
        if is_internal(topic) and principal.kind != "node":
            raise NotAuthorized(f"topic {topic} belongs to the broker")
        future: asyncio.Future[list[Placed | LakeMQError]]
        future = asyncio.get_running_loop().create_future()
        if self.held is None:
            self._store(topic, columns, future)
        else:
            waiting = asyncio.ensure_future(self._store_later(topic, columns, future, self.held))
            future.add_done_callback(lambda _: waiting.cancel())
        return future

    def publish_bound(self, publishes: Sequence[BoundPublish]) -> None:
        for each in publishes:
            principal = each.principals[0][0]
            try:
                future = self.publish(each.topic, each.columns, principal=principal, acks=each.acks)
            except Exception as error:
                known = error if isinstance(error, LakeMQError) else LakeMQError(repr(error))
                refuse(each, known)
            else:
                answer_with(future, each)

    async def _store_later(
        self,
        topic: str,
        columns: Columns,
        future: asyncio.Future[list[Placed | LakeMQError]],
        held: asyncio.Event,
    ) -> None:
        await held.wait()
        self._store(topic, columns, future)

    def _store(
        self, topic: str, columns: Columns, future: asyncio.Future[list[Placed | LakeMQError]]
    ) -> None:
        count = len(columns.values)
        if self.failure is not None:
            future.set_result([self.failure] * count)
            return
        base = self._offsets.get(topic, 0)
        self._offsets[topic] = base + count
        self.published.setdefault(topic, []).append(columns)
        future.set_result([Placed(0, Offset(base + index)) for index in range(count)])
        batch = CommittedBatch(
            topic, 0, Offset(base), encode(columns, now_ms=1_700_000_000_000, base_offset=base)
        )
        self.batches.setdefault(topic, []).append(batch)
        for tap in self._taps.get(topic, ()):
            tap([batch])
        for waiting in self._waiting.pop(topic, ()):
            waiting.set()

    def append(
        self,
        topic: str,
        partition: int,
        batch: bytes,
        *,
        principal: Principal,
        acks: Acks = Acks.LEADER,
    ) -> asyncio.Future[AppendResult]:
        raise NotImplementedError

    async def more(self, topic: str, wait_ms: int) -> None:
        """Until a record of the topic comes, `wait_ms` at most."""
        came = asyncio.Event()
        self._waiting.setdefault(topic, []).append(came)
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_ms / 1000):  # `wait_for` may swallow a cancellation
                await came.wait()

    def tap(self, topic: str, tap: Tap) -> Callable[[], None]:
        taps = self._taps.setdefault(topic, [])
        taps.append(tap)
        return lambda: taps.remove(tap)

    def reserve_headers(self, topic: str, names: Iterable[str]) -> Callable[[], None]:
        self.reserved.setdefault(topic, set()).update(names)
        return lambda: None

    def channel(self, name: str, events: ChannelEvents) -> Channel:
        return self.cluster.open(self.node_id, name, events)

    def recognize(self, credentials: Credentials) -> Principal | None:
        # Those that tell something else have it asked.
        as_here = type(self).authenticate is MemoryBroker.authenticate
        return ANONYMOUS if as_here and self.users is None else None

    async def authenticate(self, credentials: Credentials) -> Principal:
        if self.users is None:
            return ANONYMOUS
        await asyncio.sleep(0)
        name = credentials.username
        if name is None or self.users.get(name) != credentials.password:
            raise NotAuthenticated("wrong user name or password")
        return Principal(name)

    def authorize(
        self,
        principal: Principal,
        operation: Operation,
        resource: Resource,
        context: AccessContext = NO_CONTEXT,
    ) -> None:
        if (operation, resource.name) in self.undecided:
            raise Undecided(resource.name)
        if (operation, resource.name) in self.forbidden:
            raise NotAuthorized(f"{principal.name} may not {operation.value} {resource.name}")

    def verdict(
        self,
        principal: Principal,
        operation: Operation,
        resource: Resource,
        context: AccessContext = NO_CONTEXT,
    ) -> Verdict:
        forbidden = (operation, resource.name) in self.forbidden
        return Verdict(not forbidden, "forbidden" if forbidden else "not forbidden")

    def ended(self, principal: Principal) -> bool:
        return principal.name in self.withdrawn

    async def decide(
        self,
        principal: Principal,
        operation: Operation,
        resource: Resource,
        context: AccessContext = NO_CONTEXT,
    ) -> None:
        await self.answers.wait()
        self.undecided.discard((operation, resource.name))

    def charge(
        self,
        principal: Principal,
        *,
        bytes_in: int = 0,
        bytes_out: int = 0,
        records_in: int = 0,
        records_out: int = 0,
    ) -> int:
        return 0

    def issue_token(self, principal: Principal) -> tuple[str, int]:
        raise NotImplementedError

    def mechanisms(self) -> Sequence[str]:
        return ()

    def begin_exchange(self, mechanism: str, credentials: Credentials) -> Exchange:
        for each in self.exchanges:
            if each.name == mechanism:
                return each.begin(credentials)
        raise UnknownMechanism(mechanism)

    def on_access_change(self, changed: Callable[[], None]) -> Callable[[], None]:
        self.access_watchers.append(changed)
        return lambda: self.access_watchers.remove(changed)

    async def describe_cluster(self) -> ClusterInfo:
        node = NodeInfo(self.node_id, {}, "", "1", self.state)
        return ClusterInfo(self.cluster_id, self.node_id, (node,), "", (), 1, ())

    async def allocate_producer_id(self, principal: Principal | None = None) -> int:
        return 1

    def values(self, topic: str) -> list[bytes | None]:
        """All values stored in a topic, in order."""
        return [value for columns in self.published.get(topic, ()) for value in columns.values]


class MemoryLog:
    """A topic's only partition."""

    def __init__(self, broker: MemoryBroker, topic: str, batches: list[CommittedBatch]) -> None:
        self._broker = broker
        self._topic = topic
        self._batches = batches

    @property
    def log_start_offset(self) -> Offset:
        return self._batches[0].base_offset if self._batches else Offset(0)

    @property
    def high_watermark(self) -> Offset:
        if not self._batches:
            return Offset(0)
        return Offset(read_header(self._batches[-1].data).last_offset + 1)

    @property
    def log_end_offset(self) -> Offset:
        return self.high_watermark

    def status(self) -> PartitionStatus:
        raise NotImplementedError

    def append(self, batch: bytes, header: BatchHeader, acks: Acks) -> asyncio.Future[AppendResult]:
        opened = RecordBatch(batch)
        columns = Columns(opened.values(), opened.keys(), opened.encoded_headers())
        stored = self._broker.publish(self._topic, columns, principal=Principal("test", "node"))
        future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()

        def ended(done: asyncio.Future[list[Placed | LakeMQError]]) -> None:
            if done.cancelled() or future.done():
                future.cancel()
                return
            outcomes = done.result()
            for outcome in outcomes:
                if isinstance(outcome, LakeMQError):
                    future.set_exception(outcome)
                    return
            offsets = [each.offset for each in outcomes if isinstance(each, Placed)]
            future.set_result(AppendResult(offsets[0], offsets[-1], acks))

        stored.add_done_callback(ended)
        future.add_done_callback(lambda _: stored.cancel())
        return future

    def append_records(self, columns: Columns, now_ms: int, acks: Acks, done: AppendDone) -> None:
        raise NotImplementedError

    async def fetch(self, offset: Offset, *, bytes_max: int, wait_ms: int = 0) -> FetchResult:
        await asyncio.sleep(0)
        if not self.log_start_offset <= offset <= self.high_watermark:
            raise OffsetOutOfRange(f"offset {offset}")
        if wait_ms and offset == self.high_watermark:
            await self._broker.more(self._topic, wait_ms)
        data, following = b"", offset
        for batch in self._batches:
            behind = Offset(read_header(batch.data).last_offset + 1)
            if behind <= offset:
                continue
            if data and len(data) + len(batch.data) > bytes_max:
                break
            data, following = data + batch.data, behind
        return FetchResult(data, following, self.high_watermark, self.log_start_offset)

    async def offset_for_timestamp(self, timestamp_ms: int) -> Offset:
        await asyncio.sleep(0)
        for batch in self._batches:
            opened = RecordBatch(batch.data)
            for offset, time_ms in zip(opened.offsets(), opened.timestamps_ms(), strict=True):
                if time_ms >= timestamp_ms:
                    return Offset(offset)
        return self.high_watermark

    def tap(self, tap: Tap) -> Callable[[], None]:
        raise NotImplementedError


class MqttServer:
    """An engine and its listeners over a memory broker."""

    def __init__(self, settings: MqttSettings, broker: MemoryBroker) -> None:
        self.engine = MqttEngine(settings, broker)
        self.hub = self.engine.hub
        self.listeners = [MqttListener(each, self.engine) for each in settings.all_listeners()]

    async def start(self) -> None:
        for listener in self.listeners:
            await listener.start()

    async def stop(self) -> None:
        for listener in reversed(self.listeners):
            await listener.stop()

    def port(self, name: str = "mqtt") -> int:
        (listener,) = [each for each in self.listeners if each.name == name]
        return int(listener.addresses()[0].rpartition(":")[2])


@asynccontextmanager
async def running_server(
    broker: MemoryBroker | None = None, **settings: object
) -> AsyncIterator[tuple[MqttServer, MemoryBroker, int]]:
    """A server over a memory broker on a free port: (server, broker, port)."""
    broker = broker or MemoryBroker()
    chosen = MqttSettings.model_validate({"host": "127.0.0.1", "port": 0, **settings})
    server = MqttServer(chosen, broker)
    await server.start()
    try:
        yield server, broker, server.port() if chosen.tcp else 0
    finally:
        await server.stop()


async def until(holds: Callable[[], bool], within_s: float = 30) -> None:
    """Wait for a condition; TimeoutError when it does not come."""
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class MemoryReader:
    """Implements `PartitionReader` over a log of this process."""

    def __init__(self, log: PartitionLog) -> None:
        self.fetch = log.fetch
        self.offset_for_timestamp = log.offset_for_timestamp
        self._log = log

    async def bounds(self) -> tuple[Offset, Offset]:
        return self._log.log_start_offset, self._log.high_watermark

    async def log_end(self) -> Offset:
        return self._log.log_end_offset
