"""Where the catalog keeps what: keys and values of its one ordered key space.

The first byte of a key names the table. `docs/formats/meta.md` describes every byte.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

import msgpack

KEYS: Final = b"k"
"""Keys of the KV space: `k` + key -> row."""
EVENTS: Final = b"e"
"""History: `e` + revision (8 bytes, big-endian) -> what that revision changed."""
SESSIONS: Final = b"s"
"""Clients whose commands are applied once: `s` + client id -> session."""
RESULTS: Final = b"r"
"""Answers kept for retries: `r` + client id + sequence (8 bytes, big-endian) -> result."""
ID_BLOCKS: Final = b"i"
"""`i` + kind -> next free id (8 bytes, little-endian)."""
REPLICA_COUNTS: Final = b"n"
"""`n` + node id -> partition replicas placed there (8 bytes, little-endian)."""
LEADER_COUNTS: Final = b"u"
"""`u` + node id -> partitions that it leads (8 bytes, little-endian)."""
MEMBER_COUNTS: Final = b"h"
"""`h` + node id -> partitions that it is in sync with or eligible for (8 bytes, little-endian)."""
NODE_PAGES: Final = b"N"
"""`N` + node id + 0 + page id -> nothing: the pages that name a node."""
STATE_KEY: Final = b"mstate"
PAGING_KEY: Final = b"mpages"
"""How far topics of earlier feature levels have been moved to pages: MessagePack, the name of the
last one that was looked at; nil: all of them."""
CLUSTER_KEY: Final = b"mcluster"
"""The cluster id, 32 hex digits."""
GROUP_KEY: Final = b"mgroup"
"""Members of the Raft group, once they were changed: MessagePack, voters and learners."""

RESERVED: Final = b"\x00"
"""Keys of the KV space that begin so belong to the catalog; clients cannot touch them."""
TOPIC_PREFIX: Final = b"\x00topic/"
NODE_PREFIX: Final = b"\x00node/"
PAGE_PREFIX: Final = b"\x00part/"
LOST_PREFIX: Final = b"\x00lost/"

_ROW: Final = struct.Struct("<QQQQ")
_STATE: Final = struct.Struct("<QQQQQQQI16s")
_U64: Final = struct.Struct("<Q")
_PACK_BYTES: Final = 1024
"""What a packer takes at first; it grows. Left alone it takes 256 KiB for each value."""


class Row(NamedTuple):
    """One key of the KV space. What is stored has 8 bytes more, of a retired field."""

    value: bytes
    create_revision: int
    mod_revision: int
    version: int


class State(NamedTuple):
    """Counters of the whole catalog; written with every command."""

    applied_index: int = 0
    """Log index of the last command applied."""
    applied_term: int = 0
    revision: int = 0
    compact_revision: int = 0
    """Events up to this revision are gone."""
    event_bytes: int = 0
    """Size of the events kept (bytes)."""
    clock_ms: int = 0
    """The catalog's time: the latest that a command brought (ms since 1970, UTC)."""
    uptime_ms: int = 0
    """Like `clock_ms`, but without time in which no command brought it. Client sessions
    expire by it: not because the cluster was down, or a clock jumped."""
    feature_level: int = 1
    digest: bytes = bytes(16)
    """Hash chain over all writes so far: equal on members that applied the same commands."""


class Session(NamedTuple):
    """A client whose commands are applied once."""

    low: int
    """Results of sequences up to this were received by the client and are gone."""
    used_ms: int
    """`State.uptime_ms` at its last command, to the minute."""


def encode_row(row: Row) -> bytes:
    """The stored bytes of a row; the last number is that of a retired field."""
    return _ROW.pack(row.create_revision, row.mod_revision, row.version, 0) + row.value


def decode_row(data: bytes) -> Row:
    """The row from the bytes that `encode_row` made."""
    create, mod, version, _ = _ROW.unpack_from(data)
    return Row(data[_ROW.size :], create, mod, version)


def encode_state(state: State) -> bytes:
    """The stored bytes of the state row."""
    return _STATE.pack(*state)


def decode_state(data: bytes | None) -> State:
    """The state from the bytes that `encode_state` made; None: that of an empty catalog."""
    return State(*_STATE.unpack(data)) if data is not None else State()


def event_key(revision: int) -> bytes:
    """Where the events of a revision are kept; big-endian, so that keys are in their order."""
    return EVENTS + revision.to_bytes(8, "big")


def encode_events(events: list[tuple[bytes, bytes | None]]) -> bytes:
    """The stored bytes of (key, value) pairs; None: deleted."""
    return pack(events)


def decode_events(data: bytes) -> list[tuple[bytes, bytes | None]]:
    """The (key, value) pairs from the bytes that `encode_events` made."""
    return [(key, value) for key, value in unpack(data)]


def result_key(client_id: bytes, sequence: int) -> bytes:
    """Where the result of a client's command is kept."""
    return RESULTS + client_id + sequence.to_bytes(8, "big")


def encode_number(number: int) -> bytes:
    """The stored bytes of a counter."""
    return _U64.pack(number)


def decode_number(data: bytes | None) -> int:
    """The counter; 0 where nothing is stored."""
    return int(_U64.unpack(data)[0]) if data is not None else 0


def pack(value: object) -> bytes:
    """MessagePack; the only encoding of structured values in the catalog."""
    data: bytes = msgpack.Packer(buf_size=_PACK_BYTES).pack(value)
    return data


def unpack(data: bytes) -> Any:
    """The value of trusted bytes: those that the catalog itself wrote."""
    return msgpack.unpackb(data, use_list=False, raw=False, strict_map_key=False)


def prefix_end(prefix: bytes) -> bytes | None:
    """First key behind all keys with that prefix; None: there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None
