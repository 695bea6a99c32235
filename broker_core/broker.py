"""The broker core, composed: implements the `Broker` port over storage and the MetaService."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from lakemq.broker_core.access import Access
from lakemq.broker_core.administration.audit_log import TopicAuditLog
from lakemq.broker_core.api.access import Verdict
from lakemq.broker_core.api.cluster.channels import Channel, ChannelEvents
from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.groups.ports import GroupCoordinators
from lakemq.broker_core.api.ports import (
    AppendTarget,
    BatchFilter,
    BoundPublish,
    Credentials,
    Exchange,
    PartitionLog,
    PartitionReader,
    Storage,
    Tap,
    Wanted,
)
from lakemq.broker_core.api.queues.ports import QueueCoordinators
from lakemq.broker_core.api.scheduling.schedules import Schedules
from lakemq.broker_core.api.schemas.types import Schemas
from lakemq.broker_core.api.transactions.ports import Transactions
from lakemq.broker_core.api.types import (
    NO_CONTEXT,
    AccessContext,
    Acks,
    AppendResult,
    ClusterInfo,
    Columns,
    NodeInfo,
    Offset,
    Operation,
    PartitionStatus,
    Placed,
    PluginInfo,
    Principal,
    Resource,
    TopicConfig,
    TopicInfo,
)
from lakemq.broker_core.catalog_view import CatalogView
from lakemq.broker_core.cluster.append_service import AppendService
from lakemq.broker_core.cluster.channels.channels import Channels
from lakemq.broker_core.cluster.network import PeerNetwork
from lakemq.broker_core.cluster.reading.fetch_service import FetchService
from lakemq.broker_core.cluster.reading.readers import Readers
from lakemq.broker_core.cluster.routing import Router
from lakemq.broker_core.cluster.segment_repair import CommittedReads, SegmentRepairs
from lakemq.broker_core.cluster_nodes import node_infos
from lakemq.broker_core.configuration.settings import (
    ClusterSettings,
    ScheduleSettings,
    TopicSettings,
    TransactionSettings,
)
from lakemq.broker_core.groups.host import GroupHost
from lakemq.broker_core.meta_failures import broker_error
from lakemq.broker_core.node_replicas import NodeReplicas
from lakemq.broker_core.partition_sizes import PartitionSizes
from lakemq.broker_core.partitions import Partitions
from lakemq.broker_core.publishing.admission import Admission
from lakemq.broker_core.publishing.interception import Interception
from lakemq.broker_core.publishing.producer_ids import ProducerIds
from lakemq.broker_core.publishing.record_writer import RecordWriter
from lakemq.broker_core.queues.host import QueueHost
from lakemq.broker_core.scheduling.scheduler import Scheduler
from lakemq.broker_core.schemas import SchemaRegistry
from lakemq.broker_core.security.quotas import Use
from lakemq.broker_core.topics.shared_topics import SharedTopics
from lakemq.broker_core.topics.topic_admin import TopicAdmin, default_topic_config
from lakemq.broker_core.transactions import participants, targets
from lakemq.broker_core.transactions.coordinator import TransactionCoordinator
from lakemq.meta_service.api.errors import MetaError
from lakemq.meta_service.api.remote.control_calls import ControlCalls, HeartbeatReport
from lakemq.meta_service.api.types import MetaClient, ReplicaEnd


class CoreBroker:
    """One object for plugins; each part of it lives in a module of its own."""

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
        plugins: Callable[[], Sequence[PluginInfo]] = tuple,
        transaction_settings: TransactionSettings | None = None,
        schedule_settings: ScheduleSettings | None = None,
        network: PeerNetwork,
        control: ControlCalls,
        cluster_settings: ClusterSettings,
        audit_retention_ms: int | None = None,
    ) -> None:
        self.node_id, self.cluster_id = node_id, cluster_id
        self.audit = TopicAuditLog(self, audit_retention_ms, now_ms)
        self._meta, self._access, self.interception = meta, access, interception
        self._plugins = plugins
        self._default_config = default_topic_config(topic_settings)
        self.network, self._nodes = network, network.nodes
        self.channels = Channels(node_id, network.peers, self._nodes.broker_epochs)
        self.replicas = NodeReplicas(node_id, network, control, cluster_settings, storage.is_full)
        self._partitions = Partitions(
            node_id, storage, self.replicas.assignments, self._nodes.address_of
        )
        self._repairs = SegmentRepairs(network, self._partitions, cluster_settings)
        self._sizes = PartitionSizes(self._partitions)
        self._catalog = CatalogView(meta, self._partitions, self._default_config)
        self._schemas = SchemaRegistry(meta)
        self._topic_admin = TopicAdmin(
            meta, self._catalog, self._partitions, self._schemas, topic_settings
        )
        self._shared = SharedTopics(meta, self._partitions, self._nodes, topic_settings.min_in_sync)
        self._producer_ids = ProducerIds(meta, now_ms)
        self._admission = Admission(self._schemas.check_batch, now_ms, interception)
        self._router = Router(
            node_id, self._partitions, network.peers, self.allocate_producer_id,
            cluster_settings.ack_wait_ms / 1000,
        )  # fmt: skip
        self._fetches = FetchService(self._partitions)
        self._readers = Readers(node_id, self._partitions, network.peers)
        self._writer = RecordWriter(
            self._partitions, self._router.target, access, interception, self._admission,
            self._schemas, self._producer_ids, now_ms,
        )  # fmt: skip
        self._coordinator = TransactionCoordinator(
            self, transaction_settings or TransactionSettings(), now_ms=now_ms,
            admission=self._admission, call=network.peers.call,
        )  # fmt: skip
        self._scheduler = Scheduler(
            self, schedule_settings or ScheduleSettings(), now_ms, self._admission,
            network.peers.call,
        )  # fmt: skip
        self._groups = GroupHost(self)
        self._queues = QueueHost(self)

    def reconfigure(
        self,
        topics: TopicSettings,
        transactions: TransactionSettings,
        schedules: ScheduleSettings,
        cluster: ClusterSettings,
    ) -> None:
        """Use what is `Reloadable` in these sections."""
        self._default_config = default_topic_config(topics)
        self._topic_admin.reconfigure(topics)
        self._coordinator.reconfigure(transactions)
        self._scheduler.reconfigure(schedules)
        self._router.ack_wait_s = cluster.ack_wait_ms / 1000
        rate = cluster.replication_max_bytes_per_s
        self.replicas.replication.limit(cluster.replica_lag_max_ms / 1000, rate)
        self._repairs.throttle.per_second = rate

    # -- life

    @property
    def failed(self) -> asyncio.Future[BaseException] | None:
        """Done when the catalog can't be followed any more: the node must stop."""
        return self._catalog.failed

    async def start(self) -> None:
        """Open the partitions of this node, take up what was under way, follow the catalog."""
        self._catalog.watch(self._router.changed)
        self._catalog.watch(self._readers.changed)
        self.replicas.start(self._catalog)
        self._repairs.start()
        server = self.network.server
        server.serve_stream("Append", AppendService(self._partitions).serve)
        server.serve_stream("Fetch", self._fetches.serve)
        server.serve_call("Read", CommittedReads(self._partitions).answer)
        server.serve_stream("Talk", self.channels.serve)
        server.serve_call(targets.METHOD, targets.AppendedService(self._partitions).answer)
        server.serve_call(participants.METHOD, self._coordinator.participants.answer)
        # Partitions first: the coordinator and the scheduler read their state from internal topics.
        revision, topics = await self._catalog.load()
        self._nodes.start()
        await self._producer_ids.start(fresh=not topics)
        await self._schemas.start()
        await self._coordinator.start()
        await self._scheduler.start()
        await self._groups.start()
        self._nodes.watch(
            lambda: self._router.nodes_changed({each.node_id for each in self._nodes.nodes})
        )
        self._nodes.watch(self.channels.nodes_changed)
        # From the next revision on: `load` has applied all up to this one, and none is missed
        # between.
        self._catalog.start(revision + 1)
        self._shared.start()
        await self._queues.start()

    async def refresh(self) -> None:
        """Know what the catalog says now, without waiting for its watch. Raises MetaError."""
        await self._catalog.refresh()

    async def stop(self) -> None:
        """Stop what `start` started, in reverse, and append what was gathered."""
        await self._queues.stop()
        await self._shared.stop()
        await self._groups.stop()
        await self._scheduler.stop()
        await self._schemas.stop()
        await self._coordinator.stop()
        await self._catalog.stop()
        await self._nodes.stop()
        await self._writer.stop()
        await self._router.stop()
        self._readers.stop()
        await self._repairs.stop()
        await self.replicas.stop()
        await self.network.peers.close()

    # -- topics

    def topics(self) -> Sequence[TopicInfo]:
        """All topics of the catalog, as this node knows it."""
        return self._partitions.topics()

    def topic(self, name: str) -> TopicInfo:
        """The topic of that name. Raises UnknownTopic."""
        return self._partitions.topic(name)

    def watch_topics(
        self, on_change: Callable[[str, TopicInfo | None], None]
    ) -> Callable[[], None]:
        """Call `on_change` with every topic that changes, None if deleted; returns its removal."""
        return self._catalog.watch(on_change)

    def topic_defaults(self) -> TopicConfig:
        """The config of topics that are created without one."""
        return self._default_config

    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        config: TopicConfig | None = None,
        *,
        replication: int | None = None,
        min_in_sync: int | None = None,
    ) -> TopicInfo:
        """Create a topic; this node knows it on return. Raises TopicExists, InvalidTopicName,
        InvalidRequest."""
        return await self._topic_admin.create(name, partitions, config, replication, min_in_sync)

    async def ensure_topic(self, name: str, partitions: int | None = None) -> TopicInfo:
        """The topic, created with the defaults if there is none of that name."""
        return await self._topic_admin.ensure(name, partitions)

    async def alter_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        config: Mapping[str, str | int | None] | None = None,
        replication: int | None = None,
        min_in_sync: int | None = None,
    ) -> TopicInfo:
        """Change settings, partitions, replicas. Raises UnknownTopic, InvalidRequest."""
        return await self._topic_admin.alter(name, partitions, config, replication, min_in_sync)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records. Raises UnknownTopic."""
        await self._topic_admin.delete(name)

    # -- the cluster

    def nodes(self) -> Sequence[NodeInfo]:
        """The registered nodes, as of the last poll of the catalog."""
        return self._nodes.nodes

    def watch_nodes(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Call `on_change` whenever `nodes` has changed; returns its removal."""
        return self._nodes.watch(on_change)

    def channel(self, name: str, events: ChannelEvents) -> Channel:
        """This node's side of a channel between nodes. Raises InvalidRequest."""
        return self.channels.open(name, events)

    def in_touch(self) -> bool:
        """Whether the node's lease holds, or there is no other node to lead instead."""
        return len(self._nodes.nodes) < 2 or self.replicas.holds_lease()

    async def describe_cluster(self) -> ClusterInfo:
        """Ids, nodes and the state of the MetaService, asked for now. Raises Unavailable."""
        try:
            status, nodes = await asyncio.gather(self._meta.status(), self._meta.nodes())
        except MetaError as error:
            raise broker_error(error, "the cluster") from None
        return ClusterInfo(
            self.cluster_id,
            self.node_id,
            node_infos(nodes),
            status.leader_id or "",
            status.members,
            status.revision,
            tuple(self._plugins()),
        )

    def heartbeat(self, now_s: float) -> HeartbeatReport:
        """What the next heartbeat says of the broker: `stored_bytes`, `led_bytes`,
        `replica_lag_records`, and sizes of some partitions. `now_s`: a monotonic time."""
        sizes = self._sizes.look(now_s)
        lag = float(max(0, self.replicas.lag_records()))
        load = {**self._sizes.figures(), "replica_lag_records": lag}
        return HeartbeatReport(load, sizes=sizes)

    # -- partitions

    def disowned(self) -> Sequence[tuple[str, int]]:
        """(topic id, partition) of replicas that this disk can't vouch for since its last start,
        for the node's registration."""
        return self._partitions.disowned()

    def leaderless(self) -> Sequence[ReplicaEnd]:
        """Where this node's replicas of partitions without a leader end."""
        return self._partitions.leaderless()

    def partition(self, topic: str, partition: int, leader_epoch: int = 0) -> PartitionLog:
        """The log of a partition that this node serves. Raises UnknownTopic, UnknownPartition,
        NotLeader, StaleEpoch."""
        return self._partitions.log(topic, partition, leader_epoch)

    def readable(self, topic: str, partition: int, leader_epoch: int = 0) -> PartitionLog:
        """As `partition`, also of a replica that follows and is in sync."""
        # Cut off from the MetaService, it may be out of sync for long.
        find = self._partitions.readable if self.in_touch() else self._partitions.log
        return find(topic, partition, leader_epoch)

    def route(self, topic: str, partition: int) -> AppendTarget:
        """The way to a partition, on this node or another. Raises UnknownTopic,
        UnknownPartition."""
        return self._router.target(topic, partition)

    def reader(self, topic: str, partition: int, wanted: Wanted | None = None) -> PartitionReader:
        """What is committed of a partition, on this node or another. Raises UnknownTopic,
        UnknownPartition."""
        return self._readers.reader(topic, partition, wanted)

    def filter_batches(self, name: str, wants: BatchFilter) -> Callable[[], None]:
        """Ask `wants` which batches readers of other nodes get; returns its removal."""
        return self._fetches.filter_by(name, wants)

    def serves(self, topic: str, partition: int) -> bool:
        """Whether this node takes appends and fetches of the partition. Raises UnknownTopic."""
        return self._partitions.serves(self._partitions.topic(topic), partition)

    def watch_serving(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` when `serves` may answer otherwise; returns its removal."""
        return self._partitions.watch_serving(changed)

    def readable_end(self, topic: str, partition: int) -> Offset | None:
        """High watermark of this node's replica; None: it has none."""
        return self._partitions.readable_end(topic, partition)

    def check_leads(self, topic: str, partition: int, role: str) -> None:
        """Raises NotLeader, naming `role`, when the catalog names another leader."""
        self._partitions.check_leads(topic, partition, role)

    def partition_status(self, topic: str, partition: int) -> PartitionStatus:
        """Offsets and state of a partition; `remote` where another node leads it."""
        return self._partitions.status(topic, partition)

    def tap(self, topic: str, tap: Tap) -> Callable[[], None]:
        """Call `tap` with every batch of the topic that becomes readable here; returns its
        removal."""
        return self._partitions.tap(topic, tap)

    # -- records

    def reserve_headers(self, topic: str, names: Iterable[str]) -> Callable[[], None]:
        """Refuse clients' batches for the topic with these record headers; returns its end."""
        return self._admission.reserve(topic, names)

    def publish(
        self,
        topic: str,
        columns: Columns,
        *,
        principal: Principal,
        acks: Acks = Acks.LEADER,
        partition: int | None = None,
    ) -> asyncio.Future[list[Placed | LakeMQError]]:
        """Append records; the future has one outcome a record, in order."""
        return self._writer.publish(
            topic, columns, principal=principal, acks=acks, partition=partition
        )

    def publish_bound(self, publishes: Sequence[BoundPublish]) -> None:
        """Append the records of many clients, whose rights to write were checked before."""
        self._writer.publish_bound(publishes)

    def append(
        self,
        topic: str,
        partition: int,
        batch: bytes,
        *,
        principal: Principal,
        acks: Acks = Acks.LEADER,
        leader_epoch: int = 0,
    ) -> asyncio.Future[AppendResult]:
        """Append a whole batch as its producer made it, checked but not changed."""
        return self._writer.append(
            topic, partition, batch, principal=principal, acks=acks, leader_epoch=leader_epoch
        )

    async def allocate_producer_id(self, principal: Principal | None = None) -> int:
        """A new producer id (KIP-98) of the principal; None: for the broker's own use."""
        try:
            return await self._producer_ids.allocate(principal)
        except MetaError as error:
            raise broker_error(error, "producer ids") from None

    @property
    def schemas(self) -> Schemas:
        """The registry of schemas."""
        return self._schemas

    @property
    def transactions(self) -> Transactions:
        """The coordinator of this node's transactions."""
        return self._coordinator

    @property
    def groups(self) -> GroupCoordinators:
        """The consumer groups that this node coordinates."""
        return self._groups

    @property
    def queues(self) -> QueueCoordinators:
        """The queues that this node coordinates."""
        return self._queues

    @property
    def schedules(self) -> Schedules:
        """The scheduled records of this node."""
        return self._scheduler

    # -- who may do what

    def recognize(self, credentials: Credentials) -> Principal | None:
        """See `Broker`."""
        return self._access.recognize(credentials)

    async def authenticate(self, credentials: Credentials) -> Principal:
        """The principal of these credentials. Raises NotAuthenticated, Unavailable."""
        return await self._access.authenticate(credentials)

    def begin_exchange(self, mechanism: str, credentials: Credentials) -> Exchange:
        """Start one run of a SASL mechanism. Raises UnknownMechanism."""
        return self._access.begin_exchange(mechanism, credentials)

    def mechanisms(self) -> Sequence[str]:
        """Names of the SASL mechanisms of several steps."""
        return self._access.mechanisms()

    def issue_token(self, principal: Principal) -> tuple[str, int]:
        """A bearer token and when it expires (ms since 1970). Raises UnknownMechanism."""
        return self._access.issue_token(principal)

    def charge(
        self,
        principal: Principal,
        *,
        bytes_in: int = 0,
        bytes_out: int = 0,
        records_in: int = 0,
        records_out: int = 0,
    ) -> int:
        """Charge a use to the principal's quota; how long it has to wait now (ms)."""
        if not self._access.quotas.limited:
            return 0
        return self._access.charge(principal, Use(bytes_in, bytes_out, records_in, records_out))

    def authorize(
        self,
        principal: Principal,
        operation: Operation,
        resource: Resource,
        context: AccessContext = NO_CONTEXT,
    ) -> None:
        """Raises NotAuthorized, NotAuthenticated or Undecided unless the operation is allowed."""
        self._access.authorize(principal, operation, resource, context)

    def verdict(
        self,
        principal: Principal,
        operation: Operation,
        resource: Resource,
        context: AccessContext = NO_CONTEXT,
    ) -> Verdict:
        """What `authorize` decides, and why."""
        return self._access.verdict(principal, operation, resource, context)

    async def decide(
        self,
        principal: Principal,
        operation: Operation,
        resource: Resource,
        context: AccessContext = NO_CONTEXT,
    ) -> None:
        """Ask the backends that `authorize` was undecided about."""
        await self._access.decide(principal, operation, resource, context)

    def ended(self, principal: Principal) -> bool:
        """Whether the principal's credentials have expired or were withdrawn."""
        return self._access.ended(principal)

    def on_access_change(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` when rules have changed; returns its removal."""
        return self._access.on_access_change(changed)
