"""The host, as plugins see it: implements the `Broker` port over storage and the MetaService."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from broker_core.access import Access
from broker_core.admission import Admission
from broker_core.api.errors import (
    InvalidRequest,
    LakeMQError,
    OutcomeUnknown,
    TopicExists,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from broker_core.api.internal_topics import is_internal
from broker_core.api.leadership import check_leads, leads
from broker_core.api.ports import (
    Credentials,
    Exchange,
    PartitionLog,
    Storage,
    Tap,
)
from broker_core.api.schedules import Schedules
from broker_core.api.schemas import Schemas
from broker_core.api.transaction_ports import Transactions
from broker_core.api.types import (
    NO_CONTEXT,
    AccessContext,
    Acks,
    AppendResult,
    ClusterInfo,
    Columns,
    Leadership,
    NodeInfo,
    Operation,
    Placed,
    PluginInfo,
    Principal,
    Resource,
    TopicConfig,
    TopicInfo,
)
from broker_core.interception import Interception, Piece
from broker_core.producer_ids import ProducerIds
from broker_core.publisher import Outcomes, Publisher
from broker_core.schemas import SchemaRegistry
from broker_core.security.quotas import Use
from broker_core.settings import ScheduleSettings, TopicSettings, TransactionSettings
from broker_core.taps import Taps
from broker_core.topic_names import (
    altered_config,
    check_config,
    check_topic_name,
    config_from_catalog,
    config_to_catalog,
)
from broker_core.transactions.coordinator import Coordinator
from broker_core.transactions.scheduler import Scheduler
from meta_service.api import errors as meta_errors
from meta_service.api.types import MetaClient, TopicDescription

PARTITIONS_MAX = 10_000
_APPLY_PAUSE_S: Final = 0.1
_APPLY_PAUSE_S_MAX: Final = 5.0
_log: Final = logging.getLogger(__name__)


def default_topic_config(settings: TopicSettings) -> TopicConfig:
    """Section `[topics]` as a topic config; -1 there means without limit."""
    values = settings.model_dump(exclude={"partitions"})
    for name in ("retention_bytes", "retention_ms", "timestamp_ahead_ms_max"):
        values[name] = None if values[name] == -1 else values[name]
    return TopicConfig(**values)


class CoreBroker:
    """Opens every partition this node leads and keeps them as the catalog says."""

    def __init__(
        self,
        *,
        node_id: str,
        cluster_id: str,
        meta: MetaClient,
        storage: Storage,
        access: Access,
        interception: Interception,
        topic_settings: TopicSettings,
        now_ms: Callable[[], int],
        plugins: Sequence[PluginInfo] = (),
        transaction_settings: TransactionSettings | None = None,
        schedule_settings: ScheduleSettings | None = None,
    ) -> None:
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.failed: asyncio.Future[BaseException] | None = None
        """Done when the catalog can't be followed any more: the node must stop."""
        self._meta = meta
        self._storage = storage
        self._access = access
        self._interception = interception
        self._default_partitions = topic_settings.partitions
        self._default_config = default_topic_config(topic_settings)
        self._topics: dict[str, TopicInfo] = {}
        self._logs: dict[tuple[str, int], PartitionLog] = {}
        self._taps = Taps()
        self._publisher = Publisher(self._led_partition, now_ms, self._leads)
        self._plugins = tuple(plugins)
        self._schemas = SchemaRegistry(meta)
        self._admission = Admission(self._schemas.check_batch, now_ms)
        self._coordinator = Coordinator(
            self,
            transaction_settings or TransactionSettings(),
            now_ms=now_ms,
            admission=self._admission,
        )
        self._scheduler = Scheduler(
            self, schedule_settings or ScheduleSettings(), now_ms, self._admission
        )
        self._changing = asyncio.Lock()
        self._altering = asyncio.Lock()
        self._watchers: dict[Callable[[str, TopicInfo | None], None], None] = {}
        self._producer_ids = ProducerIds(meta, now_ms)
        self._follower: asyncio.Task[None] | None = None

    # -- life

    async def start(self) -> None:
        """Open all partitions, delete from disk what the catalog forgot, follow the catalog."""
        self.failed = asyncio.get_running_loop().create_future()
        revision, topics = await self._meta.topics()
        known = {topic.topic_id for topic in topics}
        for topic_id in await self._storage.stored_topic_ids() - known:
            await self._storage.delete_topic(topic_id)
        for topic in topics:
            await self._apply(topic)
        await self._producer_ids.start(fresh=not topics)
        await self._schemas.start()
        await self._coordinator.start()
        await self._scheduler.start()
        self._follower = asyncio.create_task(self._follow(revision + 1))

    async def stop(self) -> None:
        await self._scheduler.stop()
        await self._schemas.stop()
        await self._coordinator.stop()
        if self._follower is not None:
            self._follower.cancel()
            with suppress(asyncio.CancelledError):
                await self._follower
        await self._admission.checks.stop()
        self._publisher.flush()

    async def _follow(self, revision: int) -> None:
        """Apply every change of the catalog, also those that other nodes made."""
        assert self.failed is not None
        try:
            async for change in self._meta.watch_topics(revision):
                if change.topic is not None:
                    await self._apply_in_time(change.topic)
                else:
                    await self._forget(change.name, change.revision)
        except (LakeMQError, meta_errors.MetaError, OSError) as error:
            if not self.failed.done():
                self.failed.set_result(error)

    async def _apply_in_time(self, described: TopicDescription) -> None:
        """As `_apply`, again and again while that is not possible now: no file descriptor or no
        space is left. Clients are told that the topic's partitions are not there meanwhile."""
        pause_s = _APPLY_PAUSE_S
        while True:
            try:
                await self._apply(described)
                return
            except LakeMQError as error:
                if not error.retriable:
                    raise
                _log.warning("topic %s is not open yet: %s", described.name, error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _APPLY_PAUSE_S_MAX)

    async def _apply(self, described: TopicDescription) -> TopicInfo:
        """Make this node agree with the catalog about one topic. Idempotent."""
        async with self._changing:
            before = self._topics.get(described.name)
            if before is not None and before.revision >= described.revision:
                return before
            if before is not None and before.topic_id != described.topic_id:
                await self._close(before)
            topic = TopicInfo(
                described.name,
                described.topic_id,
                len(described.partitions),
                config_from_catalog(described.config, self._default_config),
                described.revision,
                tuple(
                    Leadership(each.leader, each.leader_epoch, each.replicas)
                    for each in described.partitions
                ),
            )
            for number in range(topic.partitions):
                if (topic.name, number) not in self._logs:
                    log = await self._storage.open_partition(topic, number)
                    self._logs[topic.name, number] = log
                    self._taps.opened(topic.name, log)
            if before is not None and before.config != topic.config:
                await self._storage.configure_topic(topic)
            self._topics[topic.name] = topic
            self._tell(topic.name, topic)
            return topic

    async def _forget(self, name: str, revision: int) -> None:
        async with self._changing:
            topic = self._topics.get(name)
            if topic is not None and topic.revision < revision:
                await self._close(topic)

    async def _close(self, topic: TopicInfo) -> None:
        self._topics.pop(topic.name, None)
        self._tell(topic.name, None)
        for number in range(topic.partitions):
            self._logs.pop((topic.name, number), None)
        self._taps.closed(topic.name)
        await self._storage.delete_topic(topic.topic_id)

    # -- topics

    def topics(self) -> Sequence[TopicInfo]:
        return list(self._topics.values())

    def watch_topics(
        self, on_change: Callable[[str, TopicInfo | None], None]
    ) -> Callable[[], None]:
        self._watchers[on_change] = None
        return lambda: self._watchers.pop(on_change, None)

    def _tell(self, name: str, topic: TopicInfo | None) -> None:
        for watcher in list(self._watchers):
            watcher(name, topic)

    def topic(self, name: str) -> TopicInfo:
        try:
            return self._topics[name]
        except KeyError:
            raise UnknownTopic(f"topic {name!r} does not exist") from None

    def topic_defaults(self) -> TopicConfig:
        return self._default_config

    async def create_topic(
        self, name: str, partitions: int | None = None, config: TopicConfig | None = None
    ) -> TopicInfo:
        check_topic_name(name)
        count = self._default_partitions if partitions is None else partitions
        if not 1 <= count <= PARTITIONS_MAX:
            raise InvalidRequest(f"partitions is {count}; it takes 1 to {PARTITIONS_MAX}")
        chosen = config or self._default_config
        check_config(chosen)
        await self._schemas.check_subject(chosen.schema)
        try:
            described = await self._meta.create_topic(name, count, config_to_catalog(chosen))
        except meta_errors.MetaError as error:
            raise _translated(error, name) from None
        return await self._apply(described)

    async def ensure_topic(self, name: str, partitions: int | None = None) -> TopicInfo:
        if name in self._topics:
            return self._topics[name]
        try:
            return await self.create_topic(name, partitions)
        except TopicExists:  # another node was quicker, or the watch is behind
            _, topics = await self._meta.topics()
            return await self._apply(next(each for each in topics if each.name == name))

    async def alter_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        config: Mapping[str, str | int | None] | None = None,
    ) -> TopicInfo:
        async with self._altering:
            described = await self._described(name)
            count = len(described.partitions)
            if partitions is not None and not count <= partitions <= PARTITIONS_MAX:
                raise InvalidRequest(
                    f"partitions is {partitions}; topic {name} has {count}, "
                    f"and takes up to {PARTITIONS_MAX}"
                )
            changed = None
            if config:
                before = config_from_catalog(described.config, self._default_config)
                after = altered_config(before, config)
                if after.schema != before.schema:
                    await self._schemas.check_subject(after.schema)
                changed = config_to_catalog(after)
            if changed is None and partitions in (None, count):
                return await self._apply(described)
            try:
                described = await self._meta.alter_topic(
                    name, partitions=partitions, config=changed
                )
            except meta_errors.MetaError as error:
                raise _translated(error, name) from None
        return await self._apply(described)

    async def _described(self, name: str) -> TopicDescription:
        """The topic as the catalog has it now."""
        try:
            _, topics = await self._meta.topics()
        except meta_errors.MetaError as error:
            raise _translated(error, name) from None
        for topic in topics:
            if topic.name == name:
                return topic
        raise UnknownTopic(f"topic {name!r} does not exist")

    async def describe_cluster(self) -> ClusterInfo:
        try:
            status, nodes = await asyncio.gather(self._meta.status(), self._meta.nodes())
        except meta_errors.MetaError as error:
            raise _translated(error, "the cluster") from None
        return ClusterInfo(
            self.cluster_id,
            self.node_id,
            tuple(
                NodeInfo(each.node_id, each.addresses, each.rack, each.version, each.state)
                for each in nodes
            ),
            status.leader_id or "",
            status.members,
            status.revision,
            self._plugins,
        )

    async def delete_topic(self, name: str) -> None:
        try:
            await self._meta.delete_topic(name)
        except meta_errors.MetaError as error:
            raise _translated(error, name) from None
        async with self._changing:
            if name in self._topics:
                await self._close(self._topics[name])

    def partition(self, topic: str, partition: int) -> PartitionLog:
        try:
            return self._logs[topic, partition]
        except KeyError:
            known = self.topic(topic).partitions
            raise UnknownPartition(
                f"partition {partition}: topic {topic} has 0 to {known - 1}"
            ) from None

    def _leads(self, topic: TopicInfo, partition: int) -> bool:
        return is_internal(topic.name) or leads(self.node_id, topic, partition)

    def _led_partition(self, topic: str, partition: int) -> PartitionLog:
        """The log that takes appends: nobody would ever read what is stored here of a partition
        that another node leads. Raises NotLeader, UnknownTopic, UnknownPartition."""
        log = self.partition(topic, partition)
        if not is_internal(topic):
            check_leads(self.node_id, self._topics[topic], partition)
        return log

    def tap(self, topic: str, tap: Tap) -> Callable[[], None]:
        logs = [log for (name, _), log in self._logs.items() if name == topic]
        return self._taps.add(topic, tap, logs)

    def reserve_headers(self, topic: str, names: Iterable[str]) -> Callable[[], None]:
        return self._admission.reserve(topic, names)

    # -- records

    def publish(
        self,
        topic: str,
        columns: Columns,
        *,
        principal: Principal,
        acks: Acks = Acks.LEADER,
        partition: int | None = None,
        bound: bool = False,
    ) -> asyncio.Future[list[Placed | LakeMQError]]:
        if not bound or is_internal(topic):
            self._access.authorize(principal, Operation.WRITE, Resource("topic", topic))
        info = self.topic(topic)
        if partition is not None and not 0 <= partition < info.partitions:
            raise UnknownPartition(
                f"partition {partition}: topic {topic} has 0 to {info.partitions - 1}"
            )
        if self._interception and not is_internal(topic):
            pieces = self._interception.run(topic, columns, principal)
            if len(pieces) > 1:
                return self._publish_pieces(info, pieces, acks, partition)
            ((_, piece),) = pieces
            if isinstance(piece, LakeMQError):
                raise piece
            columns = piece
        return self._checked_publish(info, columns, acks, partition)

    def _checked_publish(
        self, info: TopicInfo, columns: Columns, acks: Acks, partition: int | None
    ) -> asyncio.Future[Outcomes]:
        if columns.timestamps_ms:
            self._admission.check_times(info, columns.timestamps_ms)
        if not info.config.schema:
            return self._publisher.publish(info, columns, acks, partition)
        publish = partial(self._publisher.publish_without, info, columns, acks, partition)
        return self._admission.publish(info, columns.values, self._schemas.mismatches, publish)

    def _publish_pieces(
        self,
        info: TopicInfo,
        pieces: Sequence[tuple[int, Piece]],
        acks: Acks,
        partition: int | None,
    ) -> asyncio.Future[Outcomes]:
        """What interceptors left of one call: each piece is stored or refused by itself."""
        loop = asyncio.get_running_loop()
        stored: list[asyncio.Future[Outcomes]] = []
        for count, piece in pieces:
            try:
                if isinstance(piece, LakeMQError):
                    raise piece
                stored.append(self._checked_publish(info, piece, acks, partition))
            except LakeMQError as error:
                refused: asyncio.Future[Outcomes] = loop.create_future()
                refused.set_result([error] * count)
                stored.append(refused)

        async def outcomes() -> Outcomes:
            found: Outcomes = []
            groups = await asyncio.gather(*stored, return_exceptions=True)
            for (count, _), group in zip(pieces, groups, strict=True):
                if isinstance(group, LakeMQError):  # its values do not fit the schema
                    found += [group] * count
                elif isinstance(group, BaseException):
                    raise group
                else:
                    found += group
            return found

        return loop.create_task(outcomes())

    def append(
        self,
        topic: str,
        partition: int,
        batch: bytes,
        *,
        principal: Principal,
        acks: Acks = Acks.LEADER,
    ) -> asyncio.Future[AppendResult]:
        self._access.authorize(principal, Operation.WRITE, Resource("topic", topic))
        log = self._led_partition(topic, partition)
        info = self._topics[topic]
        header = self._admission.header(info, batch)
        if header.producer_id >= 0:
            self._producer_ids.check(header.producer_id, principal)
        return self._admission.admit(
            (info.topic_id, partition),
            info,
            batch,
            header,
            lambda: log.append(batch, header, acks),
        )

    @property
    def schemas(self) -> Schemas:
        return self._schemas

    @property
    def transactions(self) -> Transactions:
        return self._coordinator

    @property
    def schedules(self) -> Schedules:
        return self._scheduler

    # -- who and what

    async def authenticate(self, credentials: Credentials) -> Principal:
        return await self._access.authenticate(credentials)

    def charge(
        self,
        principal: Principal,
        *,
        bytes_in: int = 0,
        bytes_out: int = 0,
        records_in: int = 0,
        records_out: int = 0,
    ) -> int:
        return self._access.charge(principal, Use(bytes_in, bytes_out, records_in, records_out))

    def issue_token(self, principal: Principal) -> tuple[str, int]:
        return self._access.issue_token(principal)

    def mechanisms(self) -> Sequence[str]:
        return self._access.mechanisms()

    def begin_exchange(self, mechanism: str, credentials: Credentials) -> Exchange:
        return self._access.begin_exchange(mechanism, credentials)

    def authorize(
        self,
        principal: Principal,
        operation: Operation,
        resource: Resource,
        context: AccessContext = NO_CONTEXT,
    ) -> None:
        self._access.authorize(principal, operation, resource, context)

    def ended(self, principal: Principal) -> bool:
        return self._access.ended(principal)

    async def decide(
        self,
        principal: Principal,
        operation: Operation,
        resource: Resource,
        context: AccessContext = NO_CONTEXT,
    ) -> None:
        await self._access.decide(principal, operation, resource, context)

    def on_access_change(self, changed: Callable[[], None]) -> Callable[[], None]:
        return self._access.on_access_change(changed)

    async def allocate_producer_id(self, principal: Principal | None = None) -> int:
        try:
            return await self._producer_ids.allocate(principal)
        except meta_errors.MetaError as error:
            raise _translated(error, "producer ids") from None


def _translated(error: meta_errors.MetaError, name: str) -> LakeMQError:
    """A MetaService error in the words of the broker."""
    if isinstance(error, meta_errors.AlreadyExists):
        return TopicExists(f"topic {name!r} exists already")
    if isinstance(error, meta_errors.NotFound):
        return UnknownTopic(f"topic {name!r} does not exist")
    if isinstance(error, meta_errors.InvalidArgument):
        return InvalidRequest(str(error))
    if not error.definite:
        return OutcomeUnknown(f"{name}: {error}")
    return Unavailable(f"{name}: {error}")
