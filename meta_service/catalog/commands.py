"""Every change that the cluster can agree on. Pure.

A command goes through the Raft log as one MessagePack array: kind, client id, sequence,
acknowledged sequence, fields. Commands are checked when made and when decoded, so that a poison
command answers an error and changes nothing. A field is never re-used for another meaning; a new
kind or field needs a new feature level.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final, NamedTuple

import msgpack

from meta_service.api.errors import InvalidArgument, UnsupportedCommand

COMMAND_BYTES_MAX: Final = 1024 * 1024
"""Largest command (bytes)."""
KEY_BYTES_MAX: Final = 4096
VALUE_BYTES_MAX: Final = 512 * 1024
OPERATIONS_MAX: Final = 1024
"""Compares and operations in one transaction."""
PARTITIONS_MAX: Final = 10_000
FEATURE_LEVEL: Final = 1
"""Highest feature level that this code understands."""
CLIENT_ID_BYTES: Final = 16

_HEX: Final = re.compile("[0-9a-f]{32}")
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")

Operation = tuple[bytes, bytes | None, int]
"""(key, value or None to delete it, lease id or 0)."""


class Header(NamedTuple):
    """Who sends a command, so that a retry is applied once. No client id: applied every time."""

    client_id: bytes = b""
    sequence: int = 0
    acknowledged: int = 0
    """The client has the results of all sequences up to this."""


@dataclass(frozen=True, slots=True)
class Command:
    """Base of all commands."""

    kind: ClassVar[str] = ""
    level: ClassVar[int] = 1
    """Feature level that the cluster must have reached."""

    def check(self) -> None:
        """Raises InvalidArgument that names the field."""


@dataclass(frozen=True, slots=True)
class SetClusterId(Command):
    """Name the cluster, once: the first leader does it."""

    kind: ClassVar[str] = "cluster"
    cluster_id: str

    def check(self) -> None:
        _hex(self.cluster_id, "cluster_id")


@dataclass(frozen=True, slots=True)
class SetFeatureLevel(Command):
    kind: ClassVar[str] = "feature"
    feature_level: int

    def check(self) -> None:
        _integer(self.feature_level, "feature_level", 1, 2**31)


@dataclass(frozen=True, slots=True)
class Tick(Command):
    """Bring time into the catalog: leases and sessions end by it and by no clock."""

    kind: ClassVar[str] = "tick"
    now_ms: int

    def check(self) -> None:
        _integer(self.now_ms, "now_ms", 0, 2**53)


@dataclass(frozen=True, slots=True)
class OpenSession(Command):
    """Make the header's client known; its commands are applied once from now on."""

    kind: ClassVar[str] = "session"
    client_id: bytes

    def check(self) -> None:
        _blob(self.client_id, "client_id", CLIENT_ID_BYTES)
        if len(self.client_id) != CLIENT_ID_BYTES:
            raise InvalidArgument(f"client_id: must be {CLIENT_ID_BYTES} bytes")


@dataclass(frozen=True, slots=True)
class Txn(Command):
    """The only write primitive of the KV space: compare all, then do one of two lists at once."""

    kind: ClassVar[str] = "txn"
    compares: tuple[tuple[bytes, int], ...]
    """(key, its `mod_revision`, 0: absent)."""
    then: tuple[Operation, ...]
    otherwise: tuple[Operation, ...] = ()

    def check(self) -> None:
        for name in ("compares", "then", "otherwise"):
            _list(getattr(self, name), name)
        if len(self.compares) + len(self.then) + len(self.otherwise) > OPERATIONS_MAX:
            raise InvalidArgument(f"a transaction holds at most {OPERATIONS_MAX} operations")
        for compare in self.compares:
            key, revision = _items(compare, "compare", 2)
            _key(key, "compare.key")
            _integer(revision, "compare.mod_revision", 0, 2**63)
        for operation in (*self.then, *self.otherwise):
            key, value, lease_id = _items(operation, "operation", 3)
            _key(key, "operation.key")
            if value is not None:
                _blob(value, "operation.value", VALUE_BYTES_MAX)
            _integer(lease_id, "operation.lease_id", 0, 2**63)


@dataclass(frozen=True, slots=True)
class RegisterNode(Command):
    kind: ClassVar[str] = "node"
    node_id: str
    addresses: Mapping[str, str]
    rack: str
    version: str
    feature_level: int

    def check(self) -> None:
        _name(self.node_id, "node_id")
        _mapping(self.addresses, "addresses", 64)
        for listener, address in self.addresses.items():
            _text(listener, "addresses", 64)
            _text(address, f"addresses.{listener}", 300)
        _text(self.rack, "rack", 128)
        _text(self.version, "version", 64)
        _integer(self.feature_level, "feature_level", 1, 2**31)


@dataclass(frozen=True, slots=True)
class CreateTopic(Command):
    kind: ClassVar[str] = "topic+"
    name: str
    topic_id: str
    partitions: int
    replication: int
    """Replicas of each partition; fewer where the cluster has fewer nodes."""
    config: Mapping[str, str | int | None]

    def check(self) -> None:
        _name(self.name, "topic")
        _hex(self.topic_id, "topic_id")
        _integer(self.partitions, "partitions", 1, PARTITIONS_MAX)
        _integer(self.replication, "replication", 1, 32)
        _config(self.config)


@dataclass(frozen=True, slots=True)
class AlterTopic(Command):
    kind: ClassVar[str] = "topic~"
    name: str
    partitions: int | None
    config: Mapping[str, str | int | None] | None

    def check(self) -> None:
        _name(self.name, "topic")
        if self.partitions is not None:
            _integer(self.partitions, "partitions", 1, PARTITIONS_MAX)
        if self.config is not None:
            _config(self.config)


@dataclass(frozen=True, slots=True)
class DeleteTopic(Command):
    kind: ClassVar[str] = "topic-"
    name: str

    def check(self) -> None:
        _name(self.name, "topic")


@dataclass(frozen=True, slots=True)
class AllocateIds(Command):
    kind: ClassVar[str] = "ids"
    id_kind: str
    count: int

    def check(self) -> None:
        _text(self.id_kind, "kind", 64)
        _integer(self.count, "count", 1, 1_000_000)


_KINDS: Final[dict[str, type[Command]]] = {
    command.kind: command for command in Command.__subclasses__()
}


def encode_command(command: Command, header: Header = Header()) -> bytes:  # noqa: B008 - immutable
    """Raises InvalidArgument when a field is wrong or the whole is too large."""
    command.check()
    values = [getattr(command, field.name) for field in fields(command)]
    data: bytes = msgpack.packb((command.kind, *header, values), use_bin_type=True)
    if len(data) > COMMAND_BYTES_MAX:
        raise InvalidArgument(f"the command has {len(data)} bytes, {COMMAND_BYTES_MAX} are allowed")
    return data


def decode_command(data: bytes) -> tuple[Header, Command]:
    """Raises InvalidArgument or UnsupportedCommand, whatever the bytes are."""
    try:
        value = msgpack.unpackb(data, use_list=False, raw=False, max_ext_len=0)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise InvalidArgument(f"a command that is not MessagePack: {error}") from error
    kind, client_id, sequence, acknowledged, values = _items(value, "command", 5)
    _text(kind, "kind", 64)
    if kind not in _KINDS:
        raise UnsupportedCommand(f"command {kind!r} is not known")
    _blob(client_id, "client_id", CLIENT_ID_BYTES)
    _integer(sequence, "sequence", 0, 2**63)
    _integer(acknowledged, "acknowledged", 0, 2**63)
    command_type = _KINDS[kind]
    if not isinstance(values, tuple) or len(values) != len(fields(command_type)):
        raise InvalidArgument(f"command {kind!r}: wrong number of fields")
    command = command_type(*values)
    command.check()
    return Header(client_id, sequence, acknowledged), command


# ------------------------------------------------------------ checks of single fields


def _items(value: Any, what: str, count: int) -> tuple[Any, ...]:
    if not isinstance(value, tuple) or len(value) != count:
        raise InvalidArgument(f"{what}: must have {count} items")
    return value


def _list(value: object, what: str) -> None:
    if not isinstance(value, tuple):
        raise InvalidArgument(f"{what}: must be a list")


def _integer(value: object, what: str, lowest: int, highest: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise InvalidArgument(f"{what}: must be a whole number from {lowest} to {highest}")


def _text(value: object, what: str, length_max: int) -> None:
    if not isinstance(value, str) or len(value) > length_max:
        raise InvalidArgument(f"{what}: must be text of at most {length_max} characters")


def _blob(value: object, what: str, bytes_max: int) -> None:
    if not isinstance(value, bytes) or len(value) > bytes_max:
        raise InvalidArgument(f"{what}: must be at most {bytes_max} bytes")


def _hex(value: object, what: str) -> None:
    if not isinstance(value, str) or not _HEX.fullmatch(value):
        raise InvalidArgument(f"{what}: must be 32 hex digits")


def _key(value: object, what: str) -> None:
    _blob(value, what, KEY_BYTES_MAX)
    if not value:
        raise InvalidArgument(f"{what}: must not be empty")
    if isinstance(value, bytes) and value[:1] == b"\x00":
        raise InvalidArgument(f"{what}: keys that begin with a zero byte are reserved")


def _name(value: object, what: str) -> None:
    if not isinstance(value, str) or not _NAME.fullmatch(value) or value in (".", ".."):
        raise InvalidArgument(
            f"{what}: must be 1 to 249 letters, digits, '.', '_' or '-', not '.' or '..'"
        )


def _mapping(value: object, what: str, count_max: int) -> None:
    if not isinstance(value, Mapping) or len(value) > count_max:
        raise InvalidArgument(f"{what}: must be a mapping of at most {count_max} items")


def _config(value: Mapping[str, object]) -> None:
    _mapping(value, "config", 256)
    for name, setting in value.items():
        _text(name, "config", 128)
        if setting is not None and not isinstance(setting, int):
            _text(setting, f"config.{name}", 4096)
        if isinstance(setting, int) and not -(2**63) <= setting < 2**63:
            raise InvalidArgument(f"config.{name}: must fit 64 bits")
