"""Ports: what the host and its plugins call on each other, as `typing.Protocol`s.

All methods are called on the node's event loop. Sync methods never block.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from opentelemetry.metrics import Meter

from lakemq.broker_core.api.access import Verdict
from lakemq.broker_core.api.administration.audit import AuditLog
from lakemq.broker_core.api.administration.routes import Administered as Administered
from lakemq.broker_core.api.administration.routes import AdminListing as AdminListing
from lakemq.broker_core.api.administration.routes import AdminRequest as AdminRequest
from lakemq.broker_core.api.administration.routes import AdminRoute as AdminRoute
from lakemq.broker_core.api.cluster.channels import Channel, ChannelEvents
from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.groups.ports import GroupCoordinators
from lakemq.broker_core.api.partition_ports import AppendDone as AppendDone
from lakemq.broker_core.api.partition_ports import AppendTarget as AppendTarget
from lakemq.broker_core.api.partition_ports import BatchFilter as BatchFilter
from lakemq.broker_core.api.partition_ports import PartitionLog as PartitionLog
from lakemq.broker_core.api.partition_ports import PartitionReader as PartitionReader
from lakemq.broker_core.api.partition_ports import Tap as Tap
from lakemq.broker_core.api.partition_ports import Wanted as Wanted
from lakemq.broker_core.api.queues.ports import QueueCoordinators
from lakemq.broker_core.api.scheduling.schedules import Schedules
from lakemq.broker_core.api.schemas.types import Schemas
from lakemq.broker_core.api.security.access_ports import AskingAuthorizer as AskingAuthorizer
from lakemq.broker_core.api.security.access_ports import Authenticator as Authenticator
from lakemq.broker_core.api.security.access_ports import Authorizer as Authorizer
from lakemq.broker_core.api.security.access_ports import Exchange as Exchange
from lakemq.broker_core.api.security.access_ports import (
    ExplainingAuthorizer as ExplainingAuthorizer,
)
from lakemq.broker_core.api.security.access_ports import Mechanism as Mechanism
from lakemq.broker_core.api.settings import PluginSettings
from lakemq.broker_core.api.tracing import Traces
from lakemq.broker_core.api.transactions.ports import Transactions
from lakemq.broker_core.api.types import (
    NO_CONTEXT,
    AccessContext,
    Acks,
    AppendResult,
    ClusterInfo,
    Columns,
    Disowned,
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
from lakemq.broker_core.api.types import Credentials as Credentials  # pure, so it lives there


class ProcessShare(NamedTuple):
    """Which of the processes of a node this is. They listen on the same ports (SO_REUSEPORT)."""

    number: int
    """From 1 on. What only one process can have, like a unix socket, is the first one's."""
    port: int
    """Where clients reach this process and none of the others; 0: the system chooses one."""


@dataclass(frozen=True)
class PluginContext:
    """What a plugin gets when it is loaded."""

    name: str
    settings: PluginSettings
    """The plugin's own section, validated against what `register_settings` gave."""
    node_id: str
    data_dir: Path
    """Folder for the files of this plugin; it may not exist yet."""
    meter: Meter
    traces: Traces | None = None
    """None: traces are off."""
    process: ProcessShare | None = None
    """None: the node is a process alone."""


class Storage(Protocol):
    """A storage engine: owns all partition logs of this node."""

    name: str

    async def start(self) -> None:
        """Recover what is on disk. StartupError when the engine can't run."""

    async def stop(self) -> None:
        """Flush everything and close. Appends still in flight are completed or failed."""

    async def open_partition(self, topic: TopicInfo, partition: int) -> PartitionLog:
        """Open the log, created if absent. The same log is returned while it is open."""

    def together(self) -> AbstractContextManager[None]:
        """A block within one turn of the event loop. What is appended inside may be handed to the
        disk when it ends, rather than at the end of the turn."""

    async def configure_topic(self, topic: TopicInfo) -> None:
        """Obey a changed topic config from now on."""

    async def delete_topic(self, topic_id: str) -> None:
        """Close and delete all partitions of that topic and free the disk."""

    async def delete_partition(self, topic_id: str, partition: int) -> None:
        """Close and delete what this node holds of that partition, which has other replicas, or
        none any more; nothing happens without it."""

    async def stored_topic_ids(self) -> set[str]:
        """Topics that have anything on disk: the host deletes those the catalog forgot."""

    async def stored_partitions(self) -> set[tuple[str, int]]:
        """(topic id, partition) of all that is on disk."""

    def is_full(self) -> bool:
        """Whether the disk takes no more records."""

    def disowned(self) -> Sequence[Disowned]:
        """What the last start found missing or damaged. To be told to the catalog when the node
        registers, before anything of it is opened."""


PublishDone = Callable[[Sequence[int], Placed | LakeMQError], None]
"""Told places of records among those of the call, ascending, and where the first of them is stored,
with the others right behind it, or why none of them is; until each record has been named once."""


class BoundPublish(NamedTuple):
    """Records for one topic, of one or many clients, that `Broker.publish_bound` takes."""

    topic: str
    columns: Columns
    """Not to be changed from now on."""
    principals: Sequence[tuple[Principal, int]]
    """Who publishes, and how many of the records, in their order."""
    acks: Acks
    done: PublishDone
    """Called on the event loop, when `acks` is reached and taps have got the records, in the same
    turn; maybe before `publish_bound` returns. Partitions answer each for itself."""


@runtime_checkable
class Connected(Protocol):
    """A listener that knows how many clients are connected to it."""

    def connections(self) -> int:
        """Open now; asked for after `start`."""


@runtime_checkable
class Sharing(Protocol):
    """A listener that has addresses beside those of `Listener.addresses`, at which any process of
    the node may answer."""

    def shared_addresses(self) -> Sequence[str]:
        """`host:port`; none where the node is a process alone."""


@runtime_checkable
class Listener(Protocol):
    """A socket (or several) that a protocol plugin opens."""

    name: str

    async def start(self) -> None:
        """Bind and accept. StartupError, naming the address, when it is taken."""

    def addresses(self) -> Sequence[str]:
        """`host:port` of every bound socket, real ports in place of 0."""

    async def stop(self) -> None:
        """Stop accepting, end connections as the protocol prescribes, close."""


@runtime_checkable
class Interceptor(Protocol):
    """Sees records that arrive one by one (MQTT, line protocols) before they are stored; never
    those of internal topics. Whole batches: `BatchInterceptor`."""

    def intercept(self, topic: str, columns: Columns, principal: Principal) -> Columns:
        """The columns to store, as many records as came.

        Raises LakeMQError to refuse them; a group of several is tried again by halves then, so
        the same record may be shown more than once. Anything else that it raises, and columns
        that can't be stored, refuse them with InterceptorFailed. Called on the event loop: it
        must not block.
        """


@runtime_checkable
class BatchInterceptor(Interceptor, Protocol):
    """An interceptor that is shown whole batches of clients, too: what the native SDK and Spark
    produce, also in transactions and for a later time. Without one no batch is opened."""

    def takes_batches(self, topic: str) -> bool:
        """Whether `intercept` gets the batches of that topic. Asked once for each topic, and again
        when the configuration was reloaded.

        A batch is one call, with its records as columns. What `intercept` returns is stored in
        its place under the producer's id, epoch and sequence; what it raises refuses all of it.
        """


class Broker(Protocol):
    """The host, as plugins see it."""

    node_id: str
    cluster_id: str

    @property
    def audit(self) -> AuditLog:
        """What operators changed; protocols by which they do note it there."""

    def topics(self) -> Sequence[TopicInfo]:
        """All topics of the catalog."""

    def topic(self, name: str) -> TopicInfo:
        """Raises UnknownTopic."""

    def topic_defaults(self) -> TopicConfig:
        """Config of new topics unless they are given another: section `[topics]`."""

    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        config: TopicConfig | None = None,
        *,
        replication: int | None = None,
        min_in_sync: int | None = None,
    ) -> TopicInfo:
        """Each partition has `replication` replicas, of which `min_in_sync` must be in sync for
        records to be acknowledged as replicated. Raises TopicExists, InvalidTopicName,
        InvalidRequest. `None`: the defaults of section `[topics]`."""

    async def ensure_topic(self, name: str, partitions: int | None = None) -> TopicInfo:
        """The topic, created if absent."""

    async def alter_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        config: Mapping[str, str | int | None] | None = None,
        replication: int | None = None,
        min_in_sync: int | None = None,
    ) -> TopicInfo:
        """Change some settings (`TopicConfig` fields by name), add partitions up to a number, let
        partitions have more or fewer replicas, which come and go in the background.

        Raises UnknownTopic, InvalidRequest (a setting; fewer partitions than there are; more
        replicas than nodes).
        """

    async def delete_topic(self, name: str) -> None:
        """Raises UnknownTopic."""

    def watch_topics(
        self, on_change: Callable[[str, TopicInfo | None], None]
    ) -> Callable[[], None]:
        """Call `on_change` with a topic's name and what it is now (None: deleted) whenever it was
        created, altered or deleted, or has other leaders; returns its removal."""

    @property
    def schemas(self) -> Schemas:
        """The registry of schemas."""

    def nodes(self) -> Sequence[NodeInfo]:
        """The nodes of the cluster as last heard from the MetaService, some seconds ago at most
        while it is there; empty before the first answer."""

    def watch_nodes(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Call `on_change` whenever `nodes()` has changed; returns its removal."""

    def channel(self, name: str, events: ChannelEvents) -> Channel:
        """Talk to what opens a channel of this name on the other nodes; `events` hears of it. A
        node alone connects to nothing. Raises InvalidRequest when it is open already."""

    def in_touch(self) -> bool:
        """Whether this node may believe that it leads what the catalog last said: the MetaService
        has heard of it in time, or it is the only node."""

    async def describe_cluster(self) -> ClusterInfo:
        """Nodes, the MetaService and the plugins of this node. Raises Unavailable."""

    def partition(self, topic: str, partition: int, leader_epoch: int = 0) -> PartitionLog:
        """The log of a partition that this node leads; of an internal topic that is each node's
        own, this node's copy.

        `leader_epoch`: of the leadership that the client knows, 0 if of none. Leadership moves: who
        keeps a log must ask again for each request. Raises UnknownTopic, UnknownPartition,
        NotLeader (leader, its native address, epoch), StaleEpoch.
        """

    def readable(self, topic: str, partition: int, leader_epoch: int = 0) -> PartitionLog:
        """As `partition`, for reading alone: also the log of a replica that follows and is in sync.
        It may know of a lower high watermark than the leader (KIP-392)."""

    def route(self, topic: str, partition: int) -> AppendTarget:
        """The way to a partition, whichever node leads it: for what a plugin appends by itself, in
        whole batches. A batch with a producer id is stored once, also when it is sent again. Raises
        UnknownTopic, UnknownPartition; a failed append, what `publish` has for an outcome."""

    def reader(self, topic: str, partition: int, wanted: Wanted | None = None) -> PartitionReader:
        """The way to what is committed of a partition, whichever node leads it. `wanted`: batches
        may be missing between others of which the leader knows that they are not. Raises
        UnknownTopic, UnknownPartition."""

    def filter_batches(self, name: str, wants: BatchFilter) -> Callable[[], None]:
        """Ask `wants` before batches go to readers of other nodes that named this filter; returns
        its removal."""

    def serves(self, topic: str, partition: int) -> bool:
        """Whether `partition` gives a log rather than NotLeader. Raises UnknownTopic."""

    def watch_serving(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` when `serves` may answer otherwise than before, for any partition, beside
        what `watch_topics` tells: this node has begun to lead or has ended, or its lease has, half
        a second ago at most. Returns its removal."""

    def readable_end(self, topic: str, partition: int) -> Offset | None:
        """High watermark of this node's replica, whether it leads or follows: taps get what comes
        behind it. None: this node has no replica. Raises UnknownTopic, UnknownPartition."""

    def check_leads(self, topic: str, partition: int, role: str) -> None:
        """Raises NotLeader when the catalog names another node, also for internal topics. `role`
        tells what the partition is to the caller, for the message."""

    def partition_status(self, topic: str, partition: int) -> PartitionStatus:
        """Of any partition; state `remote` where another node leads it. Raises UnknownTopic,
        UnknownPartition."""

    def publish(
        self,
        topic: str,
        columns: Columns,
        *,
        principal: Principal,
        acks: Acks = Acks.LEADER,
        partition: int | None = None,
    ) -> asyncio.Future[list[Placed | LakeMQError]]:
        """Append records, each to its key's partition; one outcome a record, in order.

        What arrives in one turn of the loop, from whatever connection, shares batches. Records of
        partitions that other nodes lead go there, and are answered within `cluster.ack_wait_ms`:
        NotLeader where no node led, OutcomeUnknown where they may be stored. One without a key goes
        to a partition that this node leads, if there is one. A call raises UnknownTopic,
        NotAuthorized, SchemaMismatch and what interceptors refuse all records with at once; the
        future may raise SchemaMismatch too, what else happens later is an outcome.
        """

    def publish_bound(self, publishes: Sequence[BoundPublish]) -> None:
        """Append what a protocol has gathered in one turn of the loop: now, not at its end.

        The operator has bound the protocol's own names to these topics and the caller has
        authorized WRITE on those, so the right to write to the topics themselves is not asked for.
        Never raises: whatever happens is the outcome of the records that it happens to.
        """

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
        """Append one batch as its producer made it; its header and CRCs are checked here. Raises
        what `partition` does, NotAuthorized and InvalidRequest; the future may raise them too."""

    @property
    def transactions(self) -> Transactions:
        """Staged batches, and commits that take effect in many partitions at once."""

    @property
    def groups(self) -> GroupCoordinators:
        """Consumer groups and their committed offsets."""

    @property
    def queues(self) -> QueueCoordinators:
        """Queues, whose records are handed out one by one, locked and settled."""

    @property
    def schedules(self) -> Schedules:
        """Batches that are appended to their partition at a later time."""

    def tap(self, topic: str, tap: Tap) -> Callable[[], None]:
        """Call `tap` with every batch of the topic that becomes readable on this node, also of
        partitions added later; returns its removal. The topic need not exist yet."""

    def reserve_headers(self, topic: str, names: Iterable[str]) -> Callable[[], None]:
        """Refuse batches of clients (`append`, staged and scheduled ones) for the topic whose
        records have headers of these names, with InvalidRequest: what the caller publishes with
        them can't come from anyone else. Returns the removal."""

    def recognize(self, credentials: Credentials) -> Principal | None:
        """Who the client is, where that is known without asking anything: of one that shows no
        credentials, as a rule. None: `authenticate` tells. Raises NotAuthenticated."""

    async def authenticate(self, credentials: Credentials) -> Principal:
        """Who the client is. Raises NotAuthenticated, and Unavailable when that can't be determined
        now."""

    def begin_exchange(self, mechanism: str, credentials: Credentials) -> Exchange:
        """Start an authentication of several steps. Raises UnknownMechanism."""

    def charge(
        self,
        principal: Principal,
        *,
        bytes_in: int = 0,
        bytes_out: int = 0,
        records_in: int = 0,
        records_out: int = 0,
    ) -> int:
        """Charge what a principal used to its quotas; how long its protocol must neither read from
        it nor answer it (ms). A call is about reading or about writing; without any
        amount it asks how long to wait before writing."""

    def issue_token(self, principal: Principal) -> tuple[str, int]:
        """A bearer token of this node for a client that an exchange accepted, and when it expires
        (ms since the epoch); for protocols whose calls each carry credentials."""

    def mechanisms(self) -> Sequence[str]:
        """Names that `begin_exchange` takes."""

    def authorize(
        self,
        principal: Principal,
        operation: Operation,
        resource: Resource,
        context: AccessContext = NO_CONTEXT,
    ) -> None:
        """Raises NotAuthorized; Undecided, for a `topic_name` alone: `decide`, then ask again."""

    def verdict(
        self,
        principal: Principal,
        operation: Operation,
        resource: Resource,
        context: AccessContext = NO_CONTEXT,
    ) -> Verdict:
        """What `authorize` decides, and which rule or authorizer does, for people."""

    def ended(self, principal: Principal) -> bool:
        """Whether its credentials are void: they have expired, or its user was removed,
        disabled or given another password. `authorize` raises NotAuthenticated then; connections
        that ask for nothing look here when access has changed."""

    async def decide(
        self,
        principal: Principal,
        operation: Operation,
        resource: Resource,
        context: AccessContext = NO_CONTEXT,
    ) -> None:
        """Resolve a pending authorization so that `authorize` can answer."""

    def on_access_change(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` whenever kept answers of `authorize` may be wrong by now; returns its
        removal."""

    async def allocate_producer_id(self, principal: Principal | None = None) -> int:
        """A producer id that no other producer of the cluster has or had. With a principal: for a
        client, which alone may write with it."""


Commands = Iterable[tuple[str, object]]
"""(name, typer.Typer or click.Command) pairs."""
