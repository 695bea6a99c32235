"""What coordinators keep in internal topics, and requests of the native protocol."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from lakemq.broker_core.api.errors import InvalidRequest
from lakemq.broker_core.api.groups.types import GroupCommit, OffsetToCommit, check_group_name
from lakemq.broker_core.api.queues.types import QueueSettings
from lakemq.broker_core.api.transactions.types import CommitTry, Owner, StagedBatchId
from lakemq.broker_core.api.types import TopicConfig, TopicPartition
from lakemq.broker_core.groups.asked_offsets import decode_asked, encode_asked
from lakemq.broker_core.groups.held_offsets import (
    HeldOffsets,
    decode_held,
    decode_held_key,
    encode_held,
    held_key,
)
from lakemq.broker_core.groups.offset_expiry import OffsetExpiry
from lakemq.broker_core.groups.offset_table import (
    Committed,
    OffsetKey,
    OffsetTable,
    check_commit,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from lakemq.broker_core.queues import snapshot as queues
from lakemq.broker_core.queues.settings import (
    agreed,
    checked,
    decode_settings,
    encode_settings,
    known,
)
from lakemq.broker_core.scheduling.formats import (
    EndedSchedule,
    StoredSchedule,
    decode_schedule,
    decode_schedule_id,
    encode_ended,
    encode_schedule,
    encode_schedule_id,
)
from lakemq.broker_core.transactions.formats import (
    StagedKey,
    decode_floor,
    decode_owner,
    decode_record_key,
    decode_staged_key,
    decode_state,
    encode_floor,
    encode_owner,
    encode_staged_key,
    encode_state,
)
from lakemq.broker_core.transactions.state import (
    CommitTarget,
    OwnerState,
    PendingCommit,
    StagedRef,
)
from lakemq.plugins.native.proto import (
    admin_pb2,
    native_pb2,
    queues_pb2,
    schedules_pb2,
    schemas_pb2,
    security_pb2,
    transactions_pb2,
)
from lakemq.plugins.native.queues.convert import given_settings
from lakemq.plugins.native.server.convert import config_values, topic_config
from lakemq.plugins.native.services.transactions import owner_of
from tests.fuzz.registry import pieces, target

ID = "00112233445566778899aabbccddeeff"
COMMITTED = Committed(5, 1, 1_700_000_000_000, ID, "note")
PLACE = TopicPartition("t", 3)
TRY = CommitTry(Owner("transaction", "w"), 3, 4, 2**62)
STATE = OwnerState(
    2,
    3,
    4,
    5,
    60_000,
    1_700_000_000_000,
    PendingCommit(
        (CommitTarget("rooms", ID, 1, 9, (StagedRef(2, 10, 11),)),), (("offsets", b"xy"),)
    ),
)
QUEUE = queues.Snapshot(
    ID,
    7,
    (queues.Run(3, None), queues.Run(300, queues.DeliveryState(2, 1))),
    queues.DeadLetterBatch(9, "dead", 1, (8, 300)),
)

Pair = tuple[Callable[[bytes], Any], Callable[[Any], bytes]]
"""A decoder that raises ValueError alone, and its inverse."""


def _record_key(key: Owner | StagedKey) -> bytes:
    return encode_staged_key(key) if isinstance(key, StagedKey) else encode_owner(key)


def _round(data: bytes, *pairs: Pair) -> None:
    for decode, encode in pairs:
        with contextlib.suppress(ValueError):
            found = decode(data)
            assert decode(encode(found)) == found


@target(
    "coordination.offsets",
    seeds=[
        encode_key(OffsetKey("g", PLACE)) + b"\xff\x00\xff" + encode_value(COMMITTED),
        encode_held(HeldOffsets("g", {PLACE: (None, COMMITTED)})),
        encode_held(HeldOffsets("g", {PLACE: (None, COMMITTED)}, TRY)),
        held_key("g", TRY.owner),
    ],
)
def offsets(data: bytes) -> None:
    """Committed offsets: records of another kind are left alone, never stop a start."""
    parts = [*pieces(data), data]
    _round(
        data, (decode_held, encode_held), (decode_held_key, lambda names: held_key(*names))
    )  # fmt: skip
    table = OffsetTable()
    for key, value in zip(parts, [*parts[1:], None], strict=True):
        _round(key, (decode_key, encode_key), (decode_value, encode_value))
        with contextlib.suppress(ValueError):
            table.apply(key, value)
    expiry = OffsetExpiry(retention_ms=1, session_timeout_max_ms=1, started_ms=0)
    for group in expiry.expired(table, (), 10, 10):
        assert table.of(group)


@target("coordination.asked_offsets", seeds=[
    encode_asked(GroupCommit("g", {PLACE: OffsetToCommit(7, "m")}, "m", 1 << 33, 9)),
])  # fmt: skip
def asked_offsets(data: bytes) -> None:
    """Offsets that another node asks for are read, or InvalidRequest says that they are none."""
    with contextlib.suppress(InvalidRequest):
        commit = decode_asked(data)
        assert decode_asked(encode_asked(commit)) == commit


@target(
    "coordination.queues",
    seeds=[
        queues.encode_snapshot(QUEUE),
        queues.encode_key(queues.QueueKey("g", "t", 1)),
        encode_settings(QueueSettings(attempts_max=3, dead_letter="d")),
    ],
)
def queue_records(data: bytes) -> None:
    """Queues: settings and states are read, or ValueError says that they are none."""
    _round(
        data,
        (queues.decode_snapshot, queues.encode_snapshot),
        (queues.decode_key, queues.encode_key),
        (decode_settings, encode_settings),
    )


@target(
    "coordination.transactions",
    seeds=[
        encode_owner(Owner("transaction", "t")),
        encode_state(STATE),
        encode_schedule_id("a"),
        encode_staged_key(
            StagedKey(StagedBatchId(Owner("sink", "s"), 2, 3, 4, 5, 6), "r", ID, 7, 8, 9)
        ),
        encode_schedule(StoredSchedule(5, True, "rooms", ID, 1, 2, b"batch")),
        encode_ended(EndedSchedule(5)),
        encode_floor(77),
    ],
)
def transactions(data: bytes) -> None:
    """Staged batches, owners' states, schedules: read, or ValueError."""
    _round(
        data,
        (decode_owner, encode_owner),
        (decode_staged_key, encode_staged_key),
        (decode_record_key, _record_key),
        (decode_floor, encode_floor),
        (decode_state, encode_state),
        (decode_schedule_id, encode_schedule_id),
        (
            decode_schedule,
            lambda one: (
                encode_ended(one) if isinstance(one, EndedSchedule) else encode_schedule(one)
            ),
        ),
    )


_MESSAGES: tuple[Any, ...] = tuple(
    getattr(module, name)
    for module in (native_pb2, queues_pb2, transactions_pb2, schedules_pb2, schemas_pb2,
                   security_pb2, admin_pb2)
    for name in sorted(module.DESCRIPTOR.message_types_by_name)
    if name.endswith("Request")
)  # fmt: skip


def _request(name: str, message: Any) -> bytes:
    number = [each.DESCRIPTOR.name for each in _MESSAGES].index(name)
    return bytes((number,)) + message.SerializeToString()


@target("coordination.requests", seeds=[
    _request("CreateTopicRequest", native_pb2.CreateTopicRequest(
        name="t", config={"retention_ms": "5", "cleanup_policy": "delete"})),
    _request("CommitOffsetsRequest", native_pb2.CommitOffsetsRequest(group="g")),
    _request("OpenOwnerRequest", transactions_pb2.OpenOwnerRequest(
        owner=transactions_pb2.Owner(kind=2, name="t"))),
])  # fmt: skip
def requests(data: bytes) -> None:
    """Whatever a client sends is a request, or InvalidRequest says what is wrong."""
    if not data:
        return
    kind = _MESSAGES[data[0] % len(_MESSAGES)]
    try:
        message = kind.FromString(data[1:])
    except DecodeError:
        return
    for field, value in message.ListFields():
        with contextlib.suppress(InvalidRequest):
            if field.name == "config":
                config_values(value)
                topic_config(value, TopicConfig())
            elif field.name == "group" and isinstance(value, str):
                check_group_name(value)
            elif field.name == "owner" and hasattr(value, "kind"):
                owner_of(value)
            elif field.name == "settings":
                given = known(given_settings(value))
                agreed(checked(QueueSettings(**given)), given)
            elif field.name == "offsets":
                for each in value:
                    check_commit(getattr(each, "offset", 0), getattr(each, "metadata", ""))
