"""Values that the broker core and its plugins exchange.

Units: times are milliseconds since the Unix epoch (UTC), sizes are bytes, offsets are record
numbers in a partition.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NewType

from lakemq.broker_core.api.access import ANONYMOUS as ANONYMOUS
from lakemq.broker_core.api.access import NO_CONTEXT as NO_CONTEXT
from lakemq.broker_core.api.access import Accepted as Accepted
from lakemq.broker_core.api.access import AccessContext as AccessContext
from lakemq.broker_core.api.access import Challenge as Challenge
from lakemq.broker_core.api.access import Credentials as Credentials
from lakemq.broker_core.api.access import Operation as Operation
from lakemq.broker_core.api.access import Principal as Principal
from lakemq.broker_core.api.access import Resource as Resource
from lakemq.broker_core.api.access import Rule as Rule

Offset = NewType("Offset", int)
"""Record number in a partition; the first record ever appended has offset 0."""

Headers = tuple[tuple[str, bytes | None], ...]
"""Record headers, in order; a key may occur more than once."""


class Acks(enum.IntEnum):
    """How durable a record must be before its append is acknowledged."""

    MEMORY = 0
    """In the leader's memory; lost if the process or machine dies before the next flush."""
    LEADER = 1
    """On the leader's disk: written and fsynced."""
    REPLICATED = 2
    """On the disks of all in-sync replicas."""


class Compression(enum.IntEnum):
    """Codec of a record batch's body; the value is what the batch header stores."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2


class Record(NamedTuple):
    """One record as a reader sees it."""

    offset: Offset
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class TopicPartition(NamedTuple):
    """A partition, by its topic's name."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """Settings of one topic. Storage engines obey them; `None` means without limit."""

    segment_max_bytes: int = 256 * 1024 * 1024
    """A segment is rolled when the next batch would make it larger than this (bytes)."""
    segment_age_max_ms: int = 24 * 60 * 60 * 1000
    """A segment is rolled when its first record is older than this (ms)."""
    retention_bytes: int | None = None
    """Oldest sealed segments of a partition are deleted while it is larger than this (bytes)."""
    retention_ms: int | None = 7 * 24 * 60 * 60 * 1000
    """Sealed segments that are older than this are deleted (ms); `retention_by` says since when."""
    retention_by: str = "append"
    """`append`: age counts from the append, by the broker's clock; `record`: from the timestamps
    that producers gave."""
    cleanup: str = "delete"
    """`delete` obeys retention; `compact` keeps the latest value of every key;
    `compact,delete` does both."""
    tombstone_retention_ms: int = 24 * 60 * 60 * 1000
    """How long a record with a null value outlives compaction (ms)."""
    compression: str = "producer"
    """`none`, `lz4`, `zstd`, or `producer`: batches stay as their producer made them."""
    batch_max_bytes: int = 16 * 1024 * 1024
    """Largest record batch accepted (bytes, header included)."""
    timestamp_ahead_max_ms: int | None = 24 * 60 * 60 * 1000
    """How far a record's timestamp may be ahead of the broker's clock (ms); records from before
    1970 are never taken."""
    schema: str = ""
    """Subject whose schema every value must fit; empty: values are not looked at."""
    acks_min: str = ""
    """`memory`, `leader` or `replicated`: appends that ask for less wait for so much all the same;
    empty: `replicated` where there are several replicas, else `memory`."""
    ledger: str = ""
    """Whose records are counted for completeness, and how (`records.ledger_rule`), like
    `device=key; sequence=$.seq`; empty: none."""


class Leadership(NamedTuple):
    """The leader of a partition as the catalog has it."""

    leader: str | None
    """Node id; None: no node leads it now."""
    epoch: int
    """Leader epoch: raised at every change of leader."""
    replicas: tuple[str, ...] = ()
    """The preferred leader first."""
    in_sync: tuple[str, ...] = ()
    """Replicas that hold everything up to the high watermark."""
    partition_epoch: int = 0
    """Raised at every change of this entry."""
    eligible: tuple[str, ...] = ()
    """Replicas that left `in_sync` while it was short, and hold everything acknowledged."""
    min_in_sync: int = 1
    """Members of `in_sync` without which the high watermark stands still."""
    target: tuple[str, ...] = ()
    """Replicas that it shall have when they are all in sync; empty: those that it has."""


class Disowned(NamedTuple):
    """A replica of which this disk can't vouch any more for all that was durable."""

    topic_id: str
    partition: int
    reason: str
    missing: bool
    """Nothing of it is there: opened again, it is empty. Else it is damaged, and stays as it is:
    delete it to have it copied again, unless no other replica is left."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as the catalog knows it."""

    name: str
    topic_id: str
    """32 hex digits, new at every creation: distinguishes a re-created topic from the old one."""
    partitions: int
    config: TopicConfig = field(default_factory=TopicConfig)
    revision: int = 0
    """Catalog revision of the last change."""
    leaders: tuple[Leadership, ...] = ()
    """By partition."""
    replication: int = 0
    """Replicas that each partition shall have; 0: those that it was made with."""


@dataclass(frozen=True, slots=True)
class AppendResult:
    """Answer to an append, given when its `acks` was reached."""

    base_offset: Offset
    last_offset: Offset
    acks: Acks
    """What was reached; may be more than was requested."""
    duplicate: bool = False
    """True when an idempotent producer had sent the batch before; offsets are those it got then."""


@dataclass(frozen=True, slots=True)
class FetchResult:
    """Whole record batches as stored in the log, back to back.

    The first batch may start below the requested offset; readers skip records before it. `data` is
    empty when there are no records yet.
    """

    data: bytes
    next_offset: Offset
    """Offset after the last record in `data`; the requested offset when it is empty."""
    high_watermark: Offset
    log_start_offset: Offset


class Columns(NamedTuple):
    """Records to append, column by column; all four have the same length.

    `headers` holds each record's headers already encoded (`record_batch.encode_headers`), `b""` for
    none. `None` in place of a whole column means: no keys, or no headers, at all.
    """

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None = None
    headers: Sequence[bytes] | None = None
    timestamps_ms: Sequence[int] | None = None
    """`None`: the broker's clock at arrival."""


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """A batch that readers may now see, handed to taps in offset order."""

    topic: str
    partition: int
    base_offset: Offset
    data: bytes
    """Exactly one record batch, header stamped."""
    columns: Columns | None = field(default=None, compare=False)
    """Its records, each with its timestamp, where the log still has them as they were published:
    then `data` need not be opened."""


class Placed(NamedTuple):
    """Partition and offset of a published record."""

    partition: int
    offset: Offset


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """What `topic describe` shows of one partition."""

    partition: int
    state: str
    """`online`, `fenced` (a write or fsync failed; reads go on), `full` (no space), `offline`, or
    `remote`: another node leads it; the numbers are 0 then."""
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    size_bytes: int
    segments: int
    detail: str = ""
    """Why the state is not `online`, in one sentence."""
    lags: Mapping[str, int] = field(default_factory=dict)
    """Records that other replicas are behind this node, which leads, by node id. Those of which it
    has not heard in this leader epoch are missing."""


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node as the catalog knows it."""

    node_id: str
    addresses: Mapping[str, str]
    """Listener name -> `host:port`."""
    rack: str
    version: str
    state: str
    """`active`, `fenced` or `draining`."""
    broker_epoch: int = 0
    """Number of its registration."""
    machine: str = ""
    """Replicas of a partition go to different ones: the node itself, or what several processes
    share. Empty: the node itself."""


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """A plugin of one node."""

    name: str
    version: str
    distribution: str
    enabled: bool
    hooks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """What `lakemq cluster describe` shows."""

    cluster_id: str
    node_id: str
    """Of the node that answers."""
    nodes: tuple[NodeInfo, ...]
    meta_leader: str
    """Leader of the MetaService; empty: none is known."""
    meta_members: tuple[str, ...]
    revision: int
    """Of the catalog."""
    plugins: tuple[PluginInfo, ...]
    """Of the node that answers."""
