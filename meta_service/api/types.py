"""Values of the MetaService's API.

A revision numbers the catalog's mutations, 1 and up, without gaps; every answer says at which
revision it is true.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from lakemq.meta_service.api.auth import AuthPort
from lakemq.meta_service.api.schemas import SchemasPort


@dataclass(frozen=True, slots=True)
class KeyValue:
    """One key of the catalog, as etcd has it."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    """Number of writes since it was created."""


@dataclass(frozen=True, slots=True)
class Compare:
    """Condition of a transaction: the key's `mod_revision` is exactly this; 0: key is absent."""

    key: bytes
    mod_revision: int


@dataclass(frozen=True, slots=True)
class Put:
    """Part of a transaction: write a key."""

    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Delete:
    """Part of a transaction: delete a key, if it is there."""

    key: bytes


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One mutation. `value` is None for a deletion."""

    revision: int
    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """Who serves a partition. Changed by compare-and-set on `partition_epoch` only."""

    partition: int
    leader: str | None
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[str, ...]
    """The preferred leader first."""
    in_sync: tuple[str, ...]
    target: tuple[str, ...] = ()
    """Replicas that it shall have when they are all in sync; empty: those that it has."""
    eligible: tuple[str, ...] = ()
    """Left the in-sync set while it was too small, yet hold all that was acknowledged (KIP-966)."""
    min_in_sync: int = 1
    """With fewer in-sync replicas nothing is acknowledged as replicated."""


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic, and who serves its partitions, as of one revision."""

    name: str
    topic_id: str
    """32 hex digits, new at every creation."""
    partitions: tuple[PartitionDescription, ...]
    config: Mapping[str, str | int | None]
    """Opaque to the MetaService, but for `unclean_leader_election`; only what differs from the
    broker's defaults."""
    revision: int
    replication: int = 0
    """Replicas that each partition shall have; 0: those that it was made with."""
    min_in_sync: int = 1
    """What new partitions get; each partition has its own, which was changed with its epoch."""


@dataclass(frozen=True, slots=True)
class TopicChange:
    """A topic was created or altered (`topic` is set) or deleted (None)."""

    revision: int
    name: str
    topic: TopicDescription | None


@dataclass(frozen=True, slots=True)
class PartitionsChange:
    """Some partitions of a topic changed, and nothing else of it."""

    revision: int
    name: str
    topic_id: str
    partitions: tuple[PartitionDescription, ...]
    """Those that may have changed, by number. One whose `partition_epoch` is not above the known
    one has not."""


@dataclass(frozen=True, slots=True)
class InSyncChange:
    """A leader's wish: who shall be in sync with one partition from now on."""

    topic_id: str
    partition: int
    leader_epoch: int
    partition_epoch: int
    """Of the set that the wish is about to replace: compare-and-set on both epochs."""
    in_sync: Mapping[str, int]
    """Node id -> broker epoch under which the leader heard it (KIP-903); of members that were in
    sync already it is not looked at. The leader is among them."""


DONE: Final = "DONE"
STALE: Final = "STALE"
INELIGIBLE: Final = "INELIGIBLE"
UNKNOWN: Final = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class InSyncAnswer:
    """What came of an `InSyncChange`, and what holds now."""

    code: str
    """`DONE`; `STALE`: an epoch has passed, or the sender does not lead; `INELIGIBLE`: a new member
    is fenced, leaving, registered again or no replica; `UNKNOWN`: there is no such partition, and
    the other fields are empty."""
    partition_epoch: int = 0
    in_sync: tuple[str, ...] = ()
    leader: str | None = None
    leader_epoch: int = 0


_INTERNAL_PREFIXES: Final = ("__", "_lakemq_")
_SHARED: Final = frozenset(
    {
        "__bridge", "__mqtt_bans", "__mqtt_delayed", "__mqtt_homes", "__mqtt_retained",
        "_lakemq_delayed", "_lakemq_offsets", "_lakemq_queues", "_lakemq_staged",
    }
)  # fmt: skip
STORAGE_LEVEL: Final = 3
"""Feature level from which the catalog keeps the storage id of a node, and fences it."""
CLUSTER_LEVEL: Final = 4
"""Feature level from which partitions have an eligible set and lie in pages."""


@dataclass(frozen=True, slots=True)
class NodeRegistration:
    """A broker known to the catalog."""

    node_id: str
    addresses: Mapping[str, str]
    """Listener name -> `host:port`."""
    rack: str = ""
    version: str = ""
    feature_level: int = 1
    broker_epoch: int = 0
    """Revision of the registration; a restarted broker gets a higher one."""
    state: str = "active"
    """`fenced`, `active` or `draining`; the controller decides."""
    heartbeats: bool = False
    """The node sends heartbeats: it is fenced until the first one and whenever they stay away."""
    storage_id: str = ""
    """32 hex digits that name the content of the node's disk; empty: not known."""
    roles: tuple[str, ...] = ()
    """What the node does; empty: everything. A node without `broker` among them holds no
    replicas."""
    clean: bool = False
    """The process before this one stopped in good order. For operators; nothing rests on it."""
    leaving: bool = False
    """This process is about to stop in good order: it leads nothing more and never will."""
    admitted: bool = True
    """This registration has been active. Before, it leads nothing: what the process before it led
    has ended."""


PROCESS_ROLE: Final = "process"
"""Of a node that is one of several processes of a machine; its rack ends with `/` and the machine's
name."""


_FURTHER_PROCESS: Final = re.compile(r"\.p[0-9]{1,2}$")


def process_id(node_id: str, number: int) -> str:
    """Node id of one of a node's processes; the first one has the node's own."""
    return node_id if number == 1 else f"{node_id}.p{number}"


def node_of(node_id: str) -> str:
    """Inverse: the node that a process belongs to. No node is named as a further process is."""
    return _FURTHER_PROCESS.sub("", node_id)


def machine_of(node: NodeRegistration) -> str:
    """What fails with the node: replicas of a partition go to different machines. The node itself,
    unless it is one of several processes of a machine."""
    return node.rack if PROCESS_ROLE in node.roles else node.node_id


LEADERLESS_MAX: Final = 100
"""Replicas without a leader that a heartbeat tells of."""


@dataclass(frozen=True, slots=True)
class ReplicaEnd:
    """Where a replica ends on its disk, for who must choose among replicas that may have lost
    records."""

    topic_id: str
    """32 hex digits."""
    partition: int
    last_epoch: int
    """Leader epoch of its last batch; -1: it has none."""
    start: int
    """Its first offset."""
    end: int
    """Offset behind its last record that is durable."""


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """What the leader of the MetaService has heard from a node."""

    node_id: str
    figures: Mapping[str, float]
    """Of its last heartbeat, such as `disk_used_ratio`."""
    silent_s: float
    """Time since that heartbeat."""
    leaderless: tuple[ReplicaEnd, ...] = ()
    """Its replicas of partitions that have no leader."""


@dataclass(frozen=True, slots=True)
class ClusterLoad:
    """What the leader has heard from nodes, and what follows from it."""

    nodes: tuple[NodeLoad, ...]
    """By id; none that has been silent since it began to lead."""
    nodes_wanted: int
    """More than there are; negative: fewer."""
    advice: tuple[str, ...]
    """One sentence each."""


@dataclass(frozen=True, slots=True)
class ReplicaMove:
    """One partition whose replicas are to be moved."""

    topic: str
    partition: int
    replicas: tuple[str, ...]
    target: tuple[str, ...]
    """The preferred leader first."""


@dataclass(frozen=True, slots=True)
class Rebalance:
    """What is left to move."""

    moves: tuple[ReplicaMove, ...]
    """Not begun yet; at most 10,000 of them."""
    moving: int
    """Partitions under way."""
    running: bool


@dataclass(frozen=True, slots=True)
class MetaStatus:
    """How this member of the MetaService is."""

    cluster_id: str
    member_id: str
    leader_id: str | None
    term: int
    commit_index: int
    applied_index: int
    revision: int
    members: tuple[str, ...]
    detail: Mapping[str, str | int] = field(default_factory=dict)


class MetaClient(AuthPort, SchemasPort, Protocol):
    """What brokers call. Reads are linearizable unless `stale`; raises `MetaError`s."""

    async def status(self) -> MetaStatus:
        """Of the member that answers."""

    async def get(self, key: bytes, *, stale: bool = False) -> KeyValue | None:
        """None: there is no such key. `stale`: from memory, without asking the Raft group."""

    async def scan(
        self, prefix: bytes, *, limit: int = 0, stale: bool = False
    ) -> tuple[int, Sequence[KeyValue]]:
        """(revision, keys with that prefix in order); `limit` 0: all."""

    async def put(self, key: bytes, value: bytes) -> int:
        """Returns the revision."""

    async def delete(self, key: bytes) -> int:
        """Returns the revision; deleting what is not there is no error."""

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Put | Delete]
    ) -> tuple[bool, int]:
        """Apply `then` at once if every compare holds; (held, revision)."""

    def watch(self, prefix: bytes, start_revision: int) -> AsyncIterator[WatchEvent]:
        """Mutations from `start_revision` on, no gap, no repeat. Raises Compacted."""

    async def register_node(
        self, registration: NodeRegistration, disowned: Sequence[tuple[str, int]] = ()
    ) -> NodeRegistration:
        """Returns it as it is kept, with its new `broker_epoch`.

        `disowned`: (topic id, partition) of replicas whose log is damaged or missing on the node's
        disk, at most 4,096; more are a lost disk, which has a new storage id.
        Raises AlreadyExists when another node has the same storage id, CompareFailed when a live
        process runs under this node id with another one.
        """

    async def nodes(self) -> Sequence[NodeRegistration]:
        """All registered nodes by id."""

    async def create_topic(
        self,
        name: str,
        partitions: int,
        config: Mapping[str, str | int | None],
        *,
        replication: int = 1,
        min_in_sync: int = 1,
    ) -> TopicDescription:
        """Each partition has `replication` replicas, or as many as there are nodes; with fewer than
        `min_in_sync` of them in sync nothing is acknowledged as replicated.

        Raises AlreadyExists, InvalidArgument.
        """

    async def alter_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        config: Mapping[str, str | int | None] | None = None,
        replication: int | None = None,
        min_in_sync: int | None = None,
    ) -> TopicDescription:
        """`config` replaces the whole config; partitions may only grow; replicas that come and go
        with `replication` do so by moves that follow. None: as it is.

        Raises NotFound, InvalidArgument.
        """

    async def delete_topic(self, name: str) -> None:
        """Raises NotFound."""

    async def topics(self) -> tuple[int, Sequence[TopicDescription]]:
        """(revision, all topics by name)."""

    def watch_partitions(
        self, start_revision: int
    ) -> AsyncIterator[TopicChange | PartitionsChange]:
        """Changes of topics from `start_revision` on, no gap. A topic that was created, altered or
        deleted is told whole, as it is by now: that may be newer than the revision. Where only
        partitions changed these alone are told. Raises Compacted."""

    async def allocate_ids(self, kind: str, count: int) -> range:
        """A block of ids of that kind that were never handed out before."""

    async def close(self) -> None:
        """Close connections. The client cannot be used afterwards."""


def is_brokers_own(topic: str) -> bool:
    """Whether each broker has a topic of that name for itself: no other broker copies it. Internal
    topics are, by what their names begin with, but for those that brokers share."""
    return topic.startswith(_INTERNAL_PREFIXES) and topic not in _SHARED
