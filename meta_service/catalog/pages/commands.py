"""Commands of level 4: nodes that must be let in, partitions in pages, replicated topics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from lakemq.meta_service.api.errors import InvalidArgument
from lakemq.meta_service.api.types import CLUSTER_LEVEL
from lakemq.meta_service.catalog.command_codec import (
    Command,
    check_blob,
    check_hex,
    check_integer,
    check_items,
    check_list,
    check_name,
    check_text,
    command,
)
from lakemq.meta_service.catalog.commands import GrowTopic, PlaceTopic, RegisterNode, check_avoid
from lakemq.meta_service.catalog.control_commands import REPLICAS_MAX
from lakemq.meta_service.catalog.entries import check_flag
from lakemq.meta_service.catalog.pages.rows import PAGE_ID_BYTES

CHANGES_MAX: Final = 1000
"""Partitions, or pages, in one command, so that none takes long."""
DISOWNED_MAX: Final = 4096
"""Replicas that a registration may give up one by one. A disk that lost more is another disk: it
registers with a new storage id."""
ROLES_MAX: Final = 16
TOPIC_ID_BYTES: Final = 16

InSyncWish = tuple[bytes, int, int, int, tuple[tuple[str, int], ...]]
"""(topic id, partition, leader epoch, partition epoch, (node, broker epoch) of each member)."""
Led = tuple[bytes, int, int]
"""(topic id, partition, leader epoch)."""


def _check_count(value: object, what: str, highest: int = CHANGES_MAX) -> None:
    check_list(value, what)
    if not isinstance(value, tuple) or len(value) > highest:
        raise InvalidArgument(f"{what}: at most {highest} at once")


def _check_topic_id(value: object, what: str) -> None:
    check_blob(value, what, TOPIC_ID_BYTES)
    if not isinstance(value, bytes) or len(value) != TOPIC_ID_BYTES:
        raise InvalidArgument(f"{what}: must be {TOPIC_ID_BYTES} bytes")


def _check_partition(value: object, what: str) -> None:
    check_integer(value, what, 0, 2**31)


def _check_epoch(value: object, what: str) -> None:
    check_integer(value, what, 0, 2**62)


def _check_pages(pages: object) -> None:
    _check_count(pages, "pages")
    assert isinstance(pages, tuple)
    for page in pages:
        check_blob(page, "pages", PAGE_ID_BYTES)
        if len(page) != PAGE_ID_BYTES:
            raise InvalidArgument(f"pages: must be {PAGE_ID_BYTES} bytes each")


# ------------------------------------------------------------ nodes


@command("node+in")
@dataclass(frozen=True, slots=True)
class RegisterBroker(RegisterNode):
    """Register a process of a node with what its disk holds. It is fenced until it is let in."""

    level: ClassVar[int] = CLUSTER_LEVEL

    storage_id: str
    """32 hex digits; empty: the node keeps nothing on disk."""
    roles: tuple[str, ...]
    clean: bool
    disowned: tuple[tuple[bytes, int], ...]
    """(topic id, partition) of replicas whose log is damaged or missing on this disk."""

    def check(self) -> None:
        """Raises InvalidArgument that names the field."""
        RegisterNode.check(self)
        if self.storage_id:
            check_hex(self.storage_id, "storage_id")
        _check_count(self.roles, "roles", ROLES_MAX)
        for role in self.roles:
            check_text(role, "roles", 64)
        check_flag(self.clean, "clean")
        _check_count(self.disowned, "disowned", DISOWNED_MAX)
        for replica in self.disowned:
            topic_id, partition = check_items(replica, "disowned", 2)
            _check_topic_id(topic_id, "disowned.topic_id")
            _check_partition(partition, "disowned.partition")


@command("node.leave")
@dataclass(frozen=True, slots=True)
class LeaveNode(Command):
    """Fence a process that stops in good order, for good: it leads nothing more."""

    level: ClassVar[int] = CLUSTER_LEVEL

    node_id: str
    broker_epoch: int

    def check(self) -> None:
        """Raises InvalidArgument that names the field."""
        check_name(self.node_id, "node_id")
        _check_epoch(self.broker_epoch, "broker_epoch")


@command("lost-")
@dataclass(frozen=True, slots=True)
class ForgetLost(Command):
    """Nothing rests on the disk any more that a node has lost: the node may come in."""

    level: ClassVar[int] = CLUSTER_LEVEL

    node_id: str

    def check(self) -> None:
        """Raises InvalidArgument unless it is a node name."""
        check_name(self.node_id, "node_id")


# ------------------------------------------------------------ topics


@command("topic+in")
@dataclass(frozen=True, slots=True)
class CreateReplicatedTopic(PlaceTopic):
    """Create a topic that acknowledges only what so many replicas have."""

    level: ClassVar[int] = CLUSTER_LEVEL

    min_in_sync: int

    def check(self) -> None:
        """Raises InvalidArgument that names the field."""
        PlaceTopic.check(self)
        check_integer(self.min_in_sync, "min_in_sync", 1, self.replication)


@command("topic~in")
@dataclass(frozen=True, slots=True)
class AlterReplicatedTopic(GrowTopic):
    """Alter a topic; None: leave it as it is. Replicas come and go by moves that follow."""

    level: ClassVar[int] = CLUSTER_LEVEL

    replication: int | None
    min_in_sync: int | None

    def check(self) -> None:
        """Raises InvalidArgument that names the field."""
        GrowTopic.check(self)
        for value, what in (
            (self.replication, "replication"),
            (self.min_in_sync, "min_in_sync"),
        ):
            if value is not None:
                check_integer(value, what, 1, REPLICAS_MAX)


@command("pages")
@dataclass(frozen=True, slots=True)
class PageTopics(Command):
    """Move the partitions of the next topics into pages, as long as they lie in topic rows."""

    level: ClassVar[int] = CLUSTER_LEVEL

    partitions: int
    """About so many, so that the command does not take long."""

    def check(self) -> None:
        """Raises InvalidArgument that names the field."""
        check_integer(self.partitions, "partitions", 1, 100_000)


# ------------------------------------------------------------ partitions


@command("settle")
@dataclass(frozen=True, slots=True)
class SettlePages(Command):
    """Bring partitions in line with the states of nodes and disks. Does nothing where they are."""

    level: ClassVar[int] = CLUSTER_LEVEL

    pages: tuple[bytes, ...]
    preferred: bool
    """Also move leadership back to the first replica where it can lead."""
    avoid: tuple[str, ...] = ()
    """Nodes that lead only where no other can: their disks are full."""

    def check(self) -> None:
        """Raises InvalidArgument that names the field."""
        _check_pages(self.pages)
        check_flag(self.preferred, "preferred")
        check_avoid(self.avoid)


@command("in-sync+")
@dataclass(frozen=True, slots=True)
class ChangeInSyncMany(Command):
    """A leader changes who is in sync with its partitions; each change is judged for itself."""

    level: ClassVar[int] = CLUSTER_LEVEL

    node_id: str
    """The leader."""
    broker_epoch: int
    changes: tuple[InSyncWish, ...]

    def check(self) -> None:
        """Raises InvalidArgument that names the field."""
        check_name(self.node_id, "node_id")
        _check_epoch(self.broker_epoch, "broker_epoch")
        _check_count(self.changes, "changes")
        for change in self.changes:
            topic_id, partition, leader_epoch, partition_epoch, members = check_items(
                change, "changes", 5
            )
            _check_topic_id(topic_id, "changes.topic_id")
            _check_partition(partition, "changes.partition")
            _check_epoch(leader_epoch, "changes.leader_epoch")
            _check_epoch(partition_epoch, "changes.partition_epoch")
            _check_count(members, "changes.in_sync", REPLICAS_MAX)
            for member in members:
                node_id, broker_epoch = check_items(member, "changes.in_sync", 2)
                check_name(node_id, "changes.in_sync")
                _check_epoch(broker_epoch, "changes.in_sync")


@command("resign")
@dataclass(frozen=True, slots=True)
class Resign(Command):
    """A leader gives up partitions that it can't write: its disk is full or failed."""

    level: ClassVar[int] = CLUSTER_LEVEL

    node_id: str
    broker_epoch: int
    partitions: tuple[Led, ...]
    avoid: tuple[str, ...] = ()
    """As in `SettlePages`."""

    def check(self) -> None:
        """Raises InvalidArgument that names the field."""
        check_name(self.node_id, "node_id")
        _check_epoch(self.broker_epoch, "broker_epoch")
        check_avoid(self.avoid)
        _check_count(self.partitions, "partitions")
        for led in self.partitions:
            topic_id, partition, leader_epoch = check_items(led, "partitions", 3)
            _check_topic_id(topic_id, "partitions.topic_id")
            _check_partition(partition, "partitions.partition")
            _check_epoch(leader_epoch, "partitions.leader_epoch")


@command("unclean")
@dataclass(frozen=True, slots=True)
class ElectUnclean(Command):
    """An operator's word: a replica that may lack acknowledged records leads one partition."""

    level: ClassVar[int] = CLUSTER_LEVEL

    topic: str
    partition: int
    partition_epoch: int
    node_id: str

    def check(self) -> None:
        """Raises InvalidArgument that names the field."""
        check_name(self.topic, "topic")
        _check_partition(self.partition, "partition")
        _check_epoch(self.partition_epoch, "partition_epoch")
        check_name(self.node_id, "node_id")


@command("move==")
@dataclass(frozen=True, slots=True)
class FinishMovesInPages(Command):
    """Let partitions whose whole target is in sync go over to it."""

    level: ClassVar[int] = CLUSTER_LEVEL

    pages: tuple[bytes, ...]

    def check(self) -> None:
        """Raises InvalidArgument that names the field."""
        _check_pages(self.pages)
