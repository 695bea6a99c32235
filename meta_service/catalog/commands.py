"""Commands of keys, nodes, topics and ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from lakemq.meta_service.api.errors import InvalidArgument
from lakemq.meta_service.api.types import STORAGE_LEVEL
from lakemq.meta_service.catalog.command_codec import (
    CLIENT_ID_BYTES,
    Command,
    check_blob,
    check_config,
    check_hex,
    check_integer,
    check_items,
    check_key,
    check_list,
    check_mapping,
    check_name,
    check_text,
    command,
)

VALUE_MAX_BYTES: Final = 512 * 1024
OPERATIONS_MAX: Final = 1024
"""Compares and operations in one transaction."""
PARTITIONS_MAX: Final = 10_000
AVOID_MAX: Final = 1000

Operation = tuple[bytes, bytes | None, int]
"""(key, value or None to delete it, 0: a retired field)."""


@command("cluster")
@dataclass(frozen=True, slots=True)
class SetClusterId(Command):
    """Name the cluster, once: the first leader does it."""

    cluster_id: str

    def check(self) -> None:
        """Raises InvalidArgument unless it is 32 hex digits."""
        check_hex(self.cluster_id, "cluster_id")


@command("feature")
@dataclass(frozen=True, slots=True)
class SetFeatureLevel(Command):
    """Raise the cluster's feature level, once every member knows it."""

    feature_level: int

    def check(self) -> None:
        """Raises InvalidArgument unless it is 1 to 2**31."""
        check_integer(self.feature_level, "feature_level", 1, 2**31)


@command("tick")
@dataclass(frozen=True, slots=True)
class Tick(Command):
    """Bring time into the catalog: client sessions end by it and by no clock."""

    now_ms: int

    def check(self) -> None:
        """Raises InvalidArgument unless it is 0 to 2**53 ms."""
        check_integer(self.now_ms, "now_ms", 0, 2**53)


@command("session")
@dataclass(frozen=True, slots=True)
class OpenSession(Command):
    """Make the header's client known; its commands are applied once from now on."""

    client_id: bytes

    def check(self) -> None:
        """Raises InvalidArgument unless the client id has its full length."""
        check_blob(self.client_id, "client_id", CLIENT_ID_BYTES)
        if len(self.client_id) != CLIENT_ID_BYTES:
            raise InvalidArgument(f"client_id: must be {CLIENT_ID_BYTES} bytes")


@command("txn")
@dataclass(frozen=True, slots=True)
class Txn(Command):
    """The only write primitive of the KV space: compare all, then do one of two lists at once."""

    compares: tuple[tuple[bytes, int], ...]
    """(key, its `mod_revision`, 0: absent)."""
    then: tuple[Operation, ...]
    otherwise: tuple[Operation, ...] = ()

    def check(self) -> None:
        """Raises InvalidArgument that names the field; reserved keys are refused."""
        for name in ("compares", "then", "otherwise"):
            check_list(getattr(self, name), name)
        if len(self.compares) + len(self.then) + len(self.otherwise) > OPERATIONS_MAX:
            raise InvalidArgument(f"a transaction holds at most {OPERATIONS_MAX} operations")
        for compare in self.compares:
            key, revision = check_items(compare, "compare", 2)
            check_key(key, "compare.key")
            check_integer(revision, "compare.mod_revision", 0, 2**63)
        for operation in (*self.then, *self.otherwise):
            key, value, retired = check_items(operation, "operation", 3)
            check_key(key, "operation.key")
            if value is not None:
                check_blob(value, "operation.value", VALUE_MAX_BYTES)
            check_integer(retired, "operation", 0, 2**63)


@command("node")
@dataclass(frozen=True, slots=True)
class RegisterNode(Command):
    """Register a node, or the next incarnation of one: it gets a new broker epoch (KIP-500)."""

    node_id: str
    addresses: Mapping[str, str]
    rack: str
    version: str
    feature_level: int
    heartbeats: bool
    """The node sends heartbeats: it is fenced until the first one and whenever they stay away."""

    def check(self) -> None:
        """Raises InvalidArgument that names the field."""
        check_name(self.node_id, "node_id")
        check_mapping(self.addresses, "addresses", 64)
        for listener, address in self.addresses.items():
            check_text(listener, "addresses", 64)
            check_text(address, f"addresses.{listener}", 300)
        check_text(self.rack, "rack", 128)
        check_text(self.version, "version", 64)
        check_integer(self.feature_level, "feature_level", 1, 2**31)
        if not isinstance(self.heartbeats, bool):
            raise InvalidArgument("heartbeats: must be true or false")


@command("node+at")
@dataclass(frozen=True, slots=True)
class RegisterStorage(RegisterNode):
    """Register a node together with the disk content that it holds."""

    level: ClassVar[int] = STORAGE_LEVEL

    storage_id: str
    """32 hex digits; the same for as long as the node's partition logs are there."""

    def check(self) -> None:
        """Raises InvalidArgument that names the field."""
        # Not `super()`: with `slots=True` the decorator makes another class, which the `__class__`
        # cell of a method does not name.
        RegisterNode.check(self)
        check_hex(self.storage_id, "storage_id")


@command("topic+")
@dataclass(frozen=True, slots=True)
class CreateTopic(Command):
    """Create a topic and place its partitions on nodes."""

    name: str
    topic_id: str
    partitions: int
    replication: int
    """Replicas of each partition; fewer where the cluster has fewer nodes."""
    config: Mapping[str, str | int | None]

    def check(self) -> None:
        """Raises InvalidArgument that names the field."""
        check_name(self.name, "topic")
        check_hex(self.topic_id, "topic_id")
        check_integer(self.partitions, "partitions", 1, PARTITIONS_MAX)
        check_integer(self.replication, "replication", 1, 32)
        check_config(self.config)


@command("topic~")
@dataclass(frozen=True, slots=True)
class AlterTopic(Command):
    """Change the number of partitions or the whole config of a topic; None: leave it as it is."""

    name: str
    partitions: int | None
    config: Mapping[str, str | int | None] | None

    def check(self) -> None:
        """Raises InvalidArgument that names the field."""
        check_name(self.name, "topic")
        if self.partitions is not None:
            check_integer(self.partitions, "partitions", 1, PARTITIONS_MAX)
        if self.config is not None:
            check_config(self.config)


@command("topic+at")
@dataclass(frozen=True, slots=True)
class PlaceTopic(CreateTopic):
    """Create a topic, rather not on nodes whose heartbeats say that they are full."""

    level: ClassVar[int] = 2

    avoid: tuple[str, ...]

    def check(self) -> None:
        """Raises InvalidArgument that names the field."""
        CreateTopic.check(self)
        check_avoid(self.avoid)


@command("topic~at")
@dataclass(frozen=True, slots=True)
class GrowTopic(AlterTopic):
    """Alter a topic; new partitions rather not on nodes that are full."""

    level: ClassVar[int] = 2

    avoid: tuple[str, ...]

    def check(self) -> None:
        """Raises InvalidArgument that names the field."""
        AlterTopic.check(self)
        check_avoid(self.avoid)


def check_avoid(value: object) -> None:
    """Raises InvalidArgument unless it is an array of at most `AVOID_MAX` node names."""
    check_list(value, "avoid")
    if not isinstance(value, tuple) or len(value) > AVOID_MAX:
        raise InvalidArgument(f"avoid: must be at most {AVOID_MAX} nodes")
    for name in value:
        check_name(name, "avoid")


@command("topic-")
@dataclass(frozen=True, slots=True)
class DeleteTopic(Command):
    """Delete a topic with all its partitions."""

    name: str

    def check(self) -> None:
        """Raises InvalidArgument unless the name is one of a topic."""
        check_name(self.name, "topic")


@command("ids")
@dataclass(frozen=True, slots=True)
class AllocateIds(Command):
    """Take a block of ids that no other call gets."""

    id_kind: str
    count: int

    def check(self) -> None:
        """Raises InvalidArgument that names the field."""
        check_text(self.id_kind, "kind", 64)
        check_integer(self.count, "count", 1, 1_000_000)
