"""Raft messages as bytes, and their check before anything acts on them.

A message is one MessagePack map. Whatever arrives is bounded and every field is checked here, so
the handlers meet nothing unexpected.
"""

from __future__ import annotations

from typing import Any, Final

import msgpack

from lakemq.meta_service.raft.log.log_format import ENTRY_MAX_BYTES, Entry

MESSAGE_MAX_BYTES: Final = 2 * 1024 * 1024
"""Largest message between members (bytes)."""
INDEX_MAX: Final = 2**62

_FIELDS: Final[dict[str, dict[str, str]]] = {
    "vote": {
        "term": "index",
        "pre": "flag",
        "transfer": "flag",
        "last_index": "index",
        "last_term": "index",
    },
    "vote_reply": {"term": "index", "granted": "flag", "pre": "flag"},
    "timeout_now": {"term": "index"},
    "recover": {"term": "index", "nonce": "index"},
    "recovered": {"term": "index", "nonce": "index", "index": "index"},
    "append": {
        "term": "index",
        "prev_index": "index",
        "prev_term": "index or nothing",
        "entries": "entries",
        "commit": "index",
        "round": "index",
    },
    "snapshot": {
        "term": "index",
        "index": "index",
        "index_term": "index",
        "size": "index",
        "position": "index",
        "data": "bytes",
    },
    "snapshot_reply": {"term": "index", "index": "index", "position": "index", "done": "flag"},
    "append_reply": {"term": "index", "ok": "flag", "index": "index", "round": "index"},
}


class BadMessage(Exception):
    """A message that no member of this cluster sends."""


def encode_message(message: dict[str, Any]) -> bytes:
    """One message as a MessagePack map; its sender made it, so it is not checked."""
    data: bytes = msgpack.packb(message, use_bin_type=True)
    return data


def decode_message(data: bytes) -> dict[str, Any]:
    """Raises BadMessage."""
    if len(data) > MESSAGE_MAX_BYTES:
        raise BadMessage(f"a message of {len(data)} bytes")
    try:
        message = msgpack.unpackb(data, use_list=False, raw=False, max_ext_len=0)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise BadMessage(f"not MessagePack: {error}") from error
    if not isinstance(message, dict):
        raise BadMessage("not a map")
    kind = message.get("type")
    fields = _FIELDS.get(kind) if isinstance(kind, str) else None
    # Exactly these fields and `type`: handlers index them without a check.
    if fields is None or len(message) != len(fields) + 1:
        raise BadMessage("unknown type or fields")
    for name, expected in fields.items():
        if not _is(expected, message.get(name)):
            raise BadMessage(f"field {name} of {kind}")
    if "entries" in message:
        # Behind the checks, so that each has exactly three parts of the right types.
        message["entries"] = [Entry(*entry) for entry in message["entries"]]
    return message


def _is(kind: str, value: object) -> bool:
    if kind == "flag":
        return isinstance(value, bool)
    if kind == "bytes":
        return isinstance(value, bytes)
    if kind == "entries":
        return isinstance(value, tuple) and all(map(_is_entry, value))
    if value is None:
        return kind == "index or nothing"
    # `bool` is a subclass of `int`: True would pass for index 1.
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= INDEX_MAX


def _is_entry(value: object) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) == 3
        and isinstance(value[0], bytes)
        and 1 <= len(value[0]) <= ENTRY_MAX_BYTES
        and _is("index", value[1])
        and _is("index", value[2])
    )
