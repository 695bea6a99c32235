"""How commands are encoded and checked.

A command goes through the Raft log as one MessagePack array: kind, client id, sequence,
acknowledged sequence, fields. Commands are checked when made and when decoded, so that a poison
command answers an error and changes nothing. A field is never re-used for another meaning; a new
kind or field needs a new feature level.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

import msgpack

from lakemq.meta_service.api.errors import InvalidArgument, UnsupportedCommand
from lakemq.meta_service.catalog.tables import pack

COMMAND_MAX_BYTES: Final = 1024 * 1024
"""Largest command (bytes)."""
KEY_MAX_BYTES: Final = 4096
FEATURE_LEVEL: Final = 4
"""Highest feature level that this code understands. What belongs to each is in
`docs/formats/meta.md`."""
CLIENT_ID_BYTES: Final = 16

_HEX: Final = re.compile("[0-9a-f]{32}")
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
RETIRED_KINDS: Final = (
    "mqtt.claim", "mqtt.save", "mqtt.release", "mqtt.end", "mqtt.expire", "mqtt.join", "mqtt.leave",
    "journal.upload", "journal.change", "journal.garbage-", "journal.collect", "lease+", "lease-",
)  # fmt: skip
"""Kinds that old logs may hold: they answer UNSUPPORTED_COMMAND, change nothing and are never
used again."""
_KINDS: Final[dict[str, type[Command]]] = {}
_FIELDS: Final[dict[type[Command], tuple[str, ...]]] = {}
"""Names of a command's fields, in order."""


class Header(NamedTuple):
    """Who sends a command, so that a retry is applied once. No client id: applied every time."""

    client_id: bytes = b""
    sequence: int = 0
    acknowledged: int = 0
    """The client has the results of all sequences up to this."""


@dataclass(frozen=True, slots=True)
class Command:
    """Base of all commands: frozen dataclasses whose fields MessagePack can hold."""

    kind: ClassVar[str] = ""
    level: ClassVar[int] = 1
    """Feature level that the cluster must have reached."""

    def check(self) -> None:
        """Raises InvalidArgument that names the field."""


CommandType = TypeVar("CommandType", bound=type[Command])


def command(kind: str) -> Callable[[CommandType], CommandType]:
    """Make a class known under the kind that stands for it in the log."""

    def register(command_type: CommandType) -> CommandType:
        # A kind stands in logs and snapshots for ever: another meaning would change what old
        # entries do.
        assert kind not in _KINDS and kind not in RETIRED_KINDS
        command_type.kind = kind
        _KINDS[kind] = command_type
        _FIELDS[command_type] = tuple(field.name for field in fields(command_type))
        return command_type

    return register


def encode_command(command: Command, header: Header = Header()) -> bytes:  # noqa: B008 - immutable
    """Raises InvalidArgument when a field is wrong or the whole is too large."""
    command.check()
    values = [getattr(command, name) for name in _FIELDS[type(command)]]
    data = pack((command.kind, *header, values))
    if len(data) > COMMAND_MAX_BYTES:
        raise InvalidArgument(f"the command has {len(data)} bytes, {COMMAND_MAX_BYTES} are allowed")
    return data


def decode_command(data: bytes) -> tuple[Header, Command]:
    """Raises InvalidArgument or UnsupportedCommand, whatever the bytes are."""
    try:
        value = msgpack.unpackb(data, use_list=False, raw=False, max_ext_len=0)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise InvalidArgument(f"a command that is not MessagePack: {error}") from error
    # Nothing of the bytes is trusted: a command may come from a member with other code.
    kind, client_id, sequence, acknowledged, values = check_items(value, "command", 5)
    check_text(kind, "kind", 64)
    if kind not in _KINDS:
        raise UnsupportedCommand(f"command {kind!r} is not known")
    check_blob(client_id, "client_id", CLIENT_ID_BYTES)
    check_integer(sequence, "sequence", 0, 2**63)
    check_integer(acknowledged, "acknowledged", 0, 2**63)
    command_type = _KINDS[kind]
    if not isinstance(values, tuple) or len(values) != len(_FIELDS[command_type]):
        raise InvalidArgument(f"command {kind!r}: wrong number of fields")
    command = command_type(*values)
    command.check()
    return Header(client_id, sequence, acknowledged), command


# ------------------------------------------------------------ checks of single fields


def check_items(value: Any, what: str, count: int) -> tuple[Any, ...]:
    """The value, if it is an array of exactly `count` items; else raises InvalidArgument."""
    if not isinstance(value, tuple) or len(value) != count:
        raise InvalidArgument(f"{what}: must have {count} items")
    return value


def check_list(value: object, what: str) -> None:
    """Raises InvalidArgument unless it is an array, of any length."""
    if not isinstance(value, tuple):
        raise InvalidArgument(f"{what}: must be a list")


def check_integer(value: object, what: str, lowest: int, highest: int) -> None:
    """Raises InvalidArgument unless it is a whole number within the bounds, both included."""
    # `bool` is a subclass of `int`, but is packed as another type.
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise InvalidArgument(f"{what}: must be a whole number from {lowest} to {highest}")


def check_text(value: object, what: str, length_max: int) -> None:
    """Raises InvalidArgument unless it is text of at most `length_max` characters."""
    if not isinstance(value, str) or len(value) > length_max:
        raise InvalidArgument(f"{what}: must be text of at most {length_max} characters")


def check_blob(value: object, what: str, bytes_max: int) -> None:
    """Raises InvalidArgument unless it is at most `bytes_max` bytes."""
    if not isinstance(value, bytes) or len(value) > bytes_max:
        raise InvalidArgument(f"{what}: must be at most {bytes_max} bytes")


def check_hex(value: object, what: str) -> None:
    """Raises InvalidArgument unless it is 32 lower-case hex digits, as a UUID without dashes."""
    if not isinstance(value, str) or not _HEX.fullmatch(value):
        raise InvalidArgument(f"{what}: must be 32 hex digits")


def check_key(value: object, what: str) -> None:
    """Raises InvalidArgument unless it is a key that clients may use: 1 to 4096 bytes, not
    reserved."""
    check_blob(value, what, KEY_MAX_BYTES)
    if not value:
        raise InvalidArgument(f"{what}: must not be empty")
    if isinstance(value, bytes) and value[:1] == b"\x00":
        raise InvalidArgument(f"{what}: keys that begin with a zero byte are reserved")


def check_name(value: object, what: str) -> None:
    """Raises InvalidArgument unless it is a name as Kafka allows for topics."""
    if not isinstance(value, str) or not _NAME.fullmatch(value) or value in (".", ".."):
        raise InvalidArgument(
            f"{what}: must be 1 to 249 letters, digits, '.', '_' or '-', not '.' or '..'"
        )


def check_mapping(value: object, what: str, count_max: int) -> None:
    """Raises InvalidArgument unless it is a mapping of at most `count_max` items."""
    if not isinstance(value, Mapping) or len(value) > count_max:
        raise InvalidArgument(f"{what}: must be a mapping of at most {count_max} items")


def check_config(value: Mapping[str, object]) -> None:
    """Raises InvalidArgument unless all settings have names and are text, numbers or None."""
    check_mapping(value, "config", 256)
    for name, setting in value.items():
        check_text(name, "config", 128)
        if setting is not None and not isinstance(setting, int):
            check_text(setting, f"config.{name}", 4096)
        if isinstance(setting, int) and not -(2**63) <= setting < 2**63:
            raise InvalidArgument(f"config.{name}: must fit 64 bits")
