"""Values that the SDK gives and takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from lakemq.broker_core.api.state.internal_topics import is_internal
from lakemq.broker_core.api.types import Acks, Headers, TopicPartition


class NewRecord(NamedTuple):
    """A record to be produced. Key and value: bytes or None, or what the producer's serializers
    take. `timestamp_ms`: milliseconds since the epoch, or a datetime with a time zone; None: the
    producer's time of sending."""

    value: Any
    key: Any = None
    headers: Headers = ()
    timestamp_ms: int | datetime | None = None


class ConsumerRecord(NamedTuple):
    """A record as a consumer gets it. Key and value: bytes or None, or what the consumer's
    deserializers made of them."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: Any
    value: Any
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """A partition as its leader describes it. Offsets are record numbers, sizes bytes."""

    partition: int
    log_start_offset: int
    high_watermark: int
    """Readers see offsets below it."""
    size_bytes: int
    state: str = "online"
    log_end_offset: int = 0
    segments: int = 0
    detail: str = ""
    leader: str = ""
    """Node id; empty: it has no leader now."""
    leader_epoch: int = 0
    leader_address: str = ""
    """`host:port` of its native listener; empty: not known."""
    replicas: tuple[str, ...] = ()
    """Node ids, the preferred leader first."""
    in_sync: tuple[str, ...] = ()
    """Replicas that hold everything up to the high watermark."""
    eligible: tuple[str, ...] = ()
    """Replicas that left `in_sync` while it was short, and hold everything acknowledged."""
    target: tuple[str, ...] = ()
    """Replicas that it shall have when they are all in sync; empty: those that it has."""
    min_in_sync: int = 1
    """With fewer in sync nothing is acknowledged as replicated."""
    lags: Mapping[str, int] = field(default_factory=dict)
    """Replica -> records that it is behind the leader; missing: not known."""


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """A topic and what its partitions hold."""

    name: str
    topic_id: str
    """32 hex digits, new at every creation."""
    partitions: tuple[PartitionOffsets, ...]
    config: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_internal(self) -> bool:
        """Whether the broker keeps it for itself: operators alone see it, patterns leave it out."""
        return is_internal(self.name)


class RecordMetadata(NamedTuple):
    """Where a produced record lies, and how durable it is."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    acks: Acks


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """Where a consumer group stands in one partition."""

    topic: str
    partition: int
    committed_offset: int
    """Of the next record to read; -1: nothing was committed."""
    log_start_offset: int
    """-1 where the node that was asked does not lead the partition."""
    high_watermark: int
    """As `log_start_offset`."""
    committed_ms: int
    metadata: str = ""

    @property
    def lag(self) -> int:
        """Records that are there and not committed; 0 where the high watermark is not known."""
        if self.high_watermark < 0:
            return 0
        return self.high_watermark - max(self.committed_offset, self.log_start_offset, 0)


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a consumer group."""

    member_id: str
    instance_id: str
    """Empty: not a static member."""
    epoch: int
    topics: tuple[str, ...]
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A consumer group: its members and where it stands."""

    name: str
    state: str
    """`empty`, `rebalancing` or `stable`."""
    epoch: int
    members: tuple[GroupMember, ...]
    offsets: tuple[GroupOffset, ...]

    @property
    def lag(self) -> int:
        """Records from the committed offsets to the high watermarks, of all partitions."""
        return sum(each.lag for each in self.offsets)


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """A node of the cluster."""

    node_id: str
    addresses: Mapping[str, str]
    """Listener name -> `host:port`."""
    rack: str
    version: str
    state: str
    """`active`, `fenced` or `draining`."""


@dataclass(frozen=True, slots=True)
class PluginDescription:
    """A plugin of one node."""

    name: str
    version: str
    distribution: str
    enabled: bool
    hooks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """A cluster as one of its nodes sees it."""

    cluster_id: str
    node_id: str
    """Of the node that answered."""
    nodes: tuple[NodeDescription, ...]
    meta_leader: str
    """Member of the MetaService that leads; empty: there is no leader."""
    meta_members: tuple[str, ...]
    revision: int
    plugins: tuple[PluginDescription, ...]
    """Of the node that answered."""


@dataclass(frozen=True, slots=True)
class QueuePartitionDescription:
    """Where a queue stands in one partition."""

    partition: int
    start_offset: int
    """Every record below is finished."""
    high_watermark: int
    held: int
    """Records that consumers have now."""
    backlog: int
    """Records that are not finished, at most: gaps in offsets count."""
    dead_letters: int
    """Records on their way to the dead letters."""


@dataclass(frozen=True, slots=True)
class QueueDescription:
    """A queue: what one group has on one topic."""

    group: str
    topic: str
    settings: Mapping[str, str | int]
    consumers: int
    partitions: tuple[QueuePartitionDescription, ...]

    @property
    def backlog(self) -> int:
        """Records that are still to be settled, in all partitions."""
        return sum(each.backlog for each in self.partitions)
