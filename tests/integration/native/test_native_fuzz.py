"""Goal: whatever bytes a client sends, the broker answers with an error and goes on.

Method: for every call of the protocol random bytes, and real requests with bytes flipped, cut,
repeated and fields set to extremes, over raw gRPC. Then the broker still does its work.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

import lakemq
from lakemq.broker_core.api.records.batch import encode
from lakemq.plugins.native.proto import (
    admin_pb2,
    metadata_pb2,
    native_pb2,
    queues_pb2,
    schedules_pb2,
    schemas_pb2,
    security_pb2,
    transactions_pb2,
)
from tests.support.node.node import NodeProcess

PROTOS = (
    native_pb2,
    admin_pb2,
    queues_pb2,
    metadata_pb2,
    schedules_pb2,
    schemas_pb2,
    security_pb2,
    transactions_pb2,
)
ROUNDS = int(os.environ.get("LAKEMQ_FUZZ_ROUNDS", "60"))
_EXTREMES = (0, 1, -1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
_TEXTS = ("", "t", "nowhere", "_lakemq_offsets", "\x00", "ü" * 300, "a/b", "..")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path) as node:
        yield node


def wild(kind: type[Message], dice: random.Random, depth: int = 0) -> Message:
    """A message whose fields hold all sorts of things."""
    message: Any = kind()
    for field in kind.DESCRIPTOR.fields:
        if dice.random() < 0.3:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            put_entry(getattr(message, field.name), field, dice)
        elif field.is_repeated:
            for _ in range(dice.randrange(4)):
                put(message, field, dice, depth)
        else:
            put(message, field, dice, depth)
    return message  # type: ignore[no-any-return]


def put_entry(entries: Any, field: Any, dice: random.Random) -> None:
    """One entry of a map whose values are no messages."""
    key, value = (field.message_type.fields_by_name[each] for each in ("key", "value"))
    if value.message_type is None:
        entries[value_of(key, dice)] = value_of(value, dice)


def put(message: Any, field: Any, dice: random.Random, depth: int) -> None:
    """Set or append one value of the field's type."""
    if field.message_type is not None:
        if depth < 3:
            value = wild(GetMessageClass(field.message_type), dice, depth + 1)
            target = getattr(message, field.name)
            (target.add() if field.is_repeated else target).CopyFrom(value)
    elif field.is_repeated:
        getattr(message, field.name).append(value_of(field, dice))
    else:
        setattr(message, field.name, value_of(field, dice))


def value_of(field: Any, dice: random.Random) -> Any:
    """A value of a field's type."""
    if field.type == FieldDescriptor.TYPE_STRING:
        return dice.choice(_TEXTS)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return dice.choice((b"", dice.randbytes(90), encode(lakemq.Columns([b"x"]))))
    if field.type == FieldDescriptor.TYPE_BOOL:
        return dice.random() < 0.5
    if field.type == FieldDescriptor.TYPE_ENUM:
        return dice.choice((0, 1, 2, 3, 99))
    bits = 31 if field.type == FieldDescriptor.TYPE_INT32 else 63
    low = 0 if field.type == FieldDescriptor.TYPE_UINT64 else -(2**bits)
    return max(low, min(2**bits - 1, dice.choice(_EXTREMES)))


def mutated(data: bytes, dice: random.Random) -> bytes:
    """As it is, or with something broken."""
    kind = dice.randrange(6)
    if kind < 3 or not data:
        return dice.randbytes(dice.randrange(80)) if kind == 0 else data
    at = dice.randrange(len(data))
    if kind == 3:
        return data[:at] + bytes([data[at] ^ 1 << dice.randrange(8)]) + data[at + 1 :]
    return data[:at] if kind == 4 else data[:at] + data[dice.randrange(at + 1) :]


async def call(channel: Any, method: Any, requests: list[bytes], wait_s: float) -> None:
    """Send raw bytes to one call, and read what comes for a moment."""
    path = f"/{method.containing_service.full_name}/{method.name}"

    async def stream() -> AsyncIterator[bytes]:
        for request in requests:
            yield request

    try:
        async with asyncio.timeout(wait_s):
            if method.client_streaming:
                async for _ in channel.stream_stream(path)(stream()):
                    pass
            elif method.server_streaming:
                async for _ in channel.unary_stream(path)(requests[0]):
                    pass
            else:
                await channel.unary_unary(path)(requests[0])
    except (grpc.RpcError, TimeoutError):
        pass


@pytest.mark.fault
async def test_no_request_ends_the_broker(node: NodeProcess) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    methods = [
        method
        for proto in PROTOS
        for service in proto.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    ]
    async with lakemq.Client(node.native, timeout_s=10) as client:
        await client.create_topic("keep", partitions=1)
        async with await client.producer() as producer:
            await producer.send("keep", b"x")
        for _ in range(ROUNDS):
            channel = grpc.aio.insecure_channel(node.native)
            calls = []
            for method in methods:
                requests = [
                    mutated(
                        wild(GetMessageClass(method.input_type), dice).SerializeToString(), dice
                    )
                    for _ in range(dice.randrange(1, 5))
                ]
                calls.append(call(channel, method, requests, 0.15))
            await asyncio.gather(*calls)
            await channel.close()
        async with await client.producer() as producer:
            await producer.send("keep", b"y")
        assert [each.value async for each in client.consume("keep")] == [b"x", b"y"]
    said = node.log_file.read_text()
    assert "Traceback" not in said, said[-3000:]
