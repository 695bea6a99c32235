"""What members of the MetaService send each other and keep."""

from __future__ import annotations

import contextlib
from typing import Any

import msgpack

from lakemq.meta_service.api.errors import InvalidArgument, MetaError, UnsupportedCommand
from lakemq.meta_service.catalog.apply import MemberTooOld, apply
from lakemq.meta_service.catalog.command_codec import (
    _FIELDS,
    _KINDS,
    Header,
    decode_command,
    encode_command,
)
from lakemq.meta_service.catalog.commands import AllocateIds, RegisterNode, RegisterStorage
from lakemq.meta_service.catalog.tables import STATE_KEY, State, encode_state
from lakemq.meta_service.raft.log.log_format import (
    RECORD_MAGIC,
    VOTE_MAGIC,
    Entry,
    LogDamaged,
    encode_log_header,
    encode_record,
    encode_vote,
    parse_log,
    parse_vote,
)
from lakemq.meta_service.raft.wire_format import BadMessage, decode_message, encode_message
from lakemq.meta_service.storage.snapshot_stream import BadSnapshot, FileNote, parse_manifest
from tests.fuzz.registry import Values, packed, pieces, target, with_crc
from tests.support.meta.disk import MemoryStore

MESSAGES: list[dict[str, Any]] = [
    {"type": "vote", "term": 1, "pre": False, "transfer": False, "last_index": 2, "last_term": 1},
    {"type": "append", "term": 1, "prev_index": 0, "prev_term": None, "commit": 0, "round": 1,
     "entries": [(b"\x00x", 1, 1), (b"\x00y", 2, 1)]},
    {"type": "snapshot", "term": 1, "index": 5, "index_term": 1, "size": 9, "position": 0,
     "data": b"abc"},
    {"type": "append_reply", "term": 1, "ok": True, "index": 2, "round": 1},
]  # fmt: skip


@target("meta.wire", seeds=[encode_message(each) for each in MESSAGES])
def wire(data: bytes) -> None:
    """A member's message is checked whole, or BadMessage."""
    for each in (data, _changed_message(data)):
        with contextlib.suppress(BadMessage):
            message = decode_message(each)
            assert decode_message(encode_message(message)) == message


def _changed_message(data: bytes) -> bytes:
    """A message whose fields have other values."""
    values = Values(data)
    message = dict(MESSAGES[len(data) % len(MESSAGES)])
    for name, value in zip(list(message)[1:], values.values(), strict=False):
        if value is not None:
            message[name] = value
    return packed(message)


ENTRIES = [Entry(b"\x00a", 1, 1), Entry(b"\x00bb", 2, 1), Entry(b"", 3, 2)]
LOG = encode_log_header() + b"".join(encode_record(each, each.log_index) for each in ENTRIES)


@target(
    "meta.log",
    seeds=[
        LOG[16:],
        encode_vote(3, "n1")[12:],
        LOG[16:80] + b"\0" * 5 + LOG[80:],
        RECORD_MAGIC * 400,
    ],
    bytes_max=16_384,
)
def log(data: bytes) -> None:
    """A log file gives its entries, or LogDamaged; so does the file of the vote."""
    with contextlib.suppress(LogDamaged):
        parsed = parse_log(encode_log_header() + data)
        assert len(parsed.entries) == len(parsed.positions)
        assert parsed.end <= 16 + len(data)
    for each in (data, with_crc(VOTE_MAGIC, data)):
        with contextlib.suppress(LogDamaged):
            assert parse_vote(encode_vote(*parse_vote(each))) == parse_vote(each)
        with contextlib.suppress(LogDamaged):
            parse_log(each)


KINDS = {kind: len(_FIELDS[made]) for kind, made in sorted(_KINDS.items())}
COMMANDS = [
    encode_command(
        RegisterStorage("n1", {}, "r", "0.1", 3, True, "0" * 32), Header(b"i" * 16, 1, 0)
    ),
    encode_command(AllocateIds("producer", 100)),
    encode_command(RegisterNode("n1", {"native": "h:1"}, "", "0.1", 2, True)),
]


@target(
    "meta.commands",
    seeds=[
        *COMMANDS,
        *(bytes((number,)) + COMMANDS[0] for number in range(len(KINDS))),
    ],
    weight=2,
)
def commands(data: bytes) -> None:
    """A command is checked, or InvalidArgument or UnsupportedCommand; one that is decoded changes
    the catalog or answers an error, and none trips a bug."""
    store, state = MemoryStore(), State(feature_level=3)
    for index, each in enumerate([*pieces(data), _any_command(data)], 1):
        with contextlib.suppress(InvalidArgument, UnsupportedCommand):
            header, command = decode_command(each)
            assert decode_command(encode_command(command, header)) == (header, command)
        try:
            applied = apply(store, state, index, 1, each)
        except MemberTooOld:
            return
        assert applied.result.code != MetaError.code, applied.result
        store.write({**applied.writes, STATE_KEY: encode_state(applied.state)})
        state = applied.state


def _any_command(data: bytes) -> bytes:
    values = Values(data)
    kind = list(KINDS)[values.some(1)[0] % len(KINDS)]
    fields = list(values.values())[: KINDS[kind]]
    fields += [None] * (KINDS[kind] - len(fields))
    return packed((kind, b"", 0, 0, fields))


@target(
    "meta.snapshot",
    seeds=[
        packed([FileNote("a.sst", 5, b"\0" * 32), FileNote("b", 0, b"")]),
        packed({"a": 1}),
        packed(["abc", "def"]),
        packed(5),
    ],
)
def snapshot(data: bytes) -> None:
    """The manifest of a snapshot that comes in is checked, or BadSnapshot."""
    for each in (data, packed(list(Values(data).values()))):
        with contextlib.suppress(BadSnapshot):
            notes = parse_manifest(each)
            assert parse_manifest(bytes(msgpack.packb(notes))) == notes
            assert all(note.size >= 0 and "/" not in note.name for note in notes)
