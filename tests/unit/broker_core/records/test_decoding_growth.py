"""Goal: what it costs to open and check what clients send grows no faster than its size."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import pytest

from lakemq.broker_core.api.records.batch import (
    HAS_HEADERS,
    RecordBatch,
    encode,
    read_header,
    split,
)
from lakemq.broker_core.api.records.headers import decode_headers, encode_headers
from lakemq.broker_core.api.schemas.formats import AvroFormat, JsonFormat
from lakemq.broker_core.api.schemas.rules import json_problems
from lakemq.broker_core.api.types import Columns, Compression
from lakemq.broker_core.publishing.batch_check import HEADERS_MAX, check_columns
from lakemq.broker_core.queues.snapshot import Run, Snapshot, decode_snapshot, encode_snapshot
from lakemq.broker_core.transactions.formats import decode_state, encode_state
from lakemq.broker_core.transactions.state import (
    CommitTarget,
    OwnerState,
    PendingCommit,
    StagedRef,
)
from lakemq.plugins.native.wire.fetched import fetch_response, parse_fetch_response
from tests.support.growth import Work, grows_linearly
from tests.support.poison import sealed

pytestmark = pytest.mark.slow

PAIR = encode_headers((("name", b"value"),))


def batch(count: int, headers: bytes | None = None, **more: Compression) -> bytes:
    heads = None if headers is None else [headers] * count
    return encode(Columns([b"value"] * count, [b"key"] * count, heads), **more)


def listed(data: bytes) -> None:
    list(split(data))


def mixed(count: int) -> list[object]:
    """Items that have no order among each other."""
    return [each if each % 2 else str(each) for each in range(count)]


def opened(data: bytes) -> Work:
    def work() -> None:
        found = RecordBatch(data)
        found.offsets(), found.keys(), found.values(), found.encoded_headers()
        found.timestamps_ms()

    return work


def checked(data: bytes) -> Work:
    return lambda: check_columns(read_header(data), data)


def json_value(schema: object, value: object) -> Work:
    ready, payload = JsonFormat(json.dumps(schema)), json.dumps(value).encode()
    return lambda: ready.check(payload)


def compared(count: int) -> Work:
    def schema(kind: str) -> object:
        return {"properties": {f"p{n}": {"type": kind, "maximum": n} for n in range(count)}}

    reader, writer = schema("number"), schema("integer")
    return lambda: list(json_problems(reader, writer))


def avro_array(count: int) -> Work:
    ready = AvroFormat('{"type": "array", "items": ["null", "long", "string"]}')
    payload = ready.encode([None, 5, "text"] * count)
    return lambda: ready.check(payload)


def owner_state(count: int) -> Work:
    target = CommitTarget("topic", "ab" * 16, 0, 0, tuple(StagedRef(0, n, 1) for n in range(count)))
    data = encode_state(OwnerState(pending=PendingCommit((target,) * 3)))
    return lambda: decode_state(data)


def queue_snapshot(count: int) -> Work:
    data = encode_snapshot(
        Snapshot("ab" * 16, 0, tuple(Run(n % 3 + 1, None) for n in range(count)))
    )
    return lambda: decode_snapshot(data)


INPUTS: dict[str, tuple[Callable[[int], Work], int]] = {
    "batches back to back": (lambda n: partial(listed, batch(1) * n), 2000),
    "columns": (lambda n: opened(batch(n)), 20_000),
    "columns with headers": (lambda n: opened(batch(n, PAIR)), 20_000),
    "zstd": (lambda n: opened(batch(n, compression=Compression.ZSTD)), 20_000),
    "lz4": (lambda n: opened(batch(n, compression=Compression.LZ4)), 20_000),
    "check of columns": (lambda n: checked(batch(n)), 100_000),
    "check of headers": (lambda n: checked(batch(n, PAIR * 3)), 5_000),
    "check of many headers": (lambda n: checked(batch(40, PAIR * n)), HEADERS_MAX // 16),
    "headers of one record": (lambda n: partial(decode_headers, PAIR * n), 5000),
    "header of many values": (
        lambda n: partial(decode_headers, encode_headers((("n", bytes(n)),))),
        20_000,
    ),
    "JSON list": (lambda n: json_value({"items": {"type": "integer"}}, [1] * n), 1000),
    "JSON object": (
        lambda n: json_value(
            {"patternProperties": {"^p": {"type": "integer"}}, "additionalProperties": False},
            {f"p{each}": each for each in range(n)},
        ),
        1000,
    ),
    "JSON unique items": (
        lambda n: json_value({"uniqueItems": True}, mixed(n)),
        2000,
    ),
    "JSON pattern": (lambda n: json_value({"not": {"pattern": "^(a+)+$"}}, "a" * n + "!"), 200_000),
    "JSON schemas compared": (compared, 200),
    "Avro list": (avro_array, 2000),
    "state of a transaction": (owner_state, 1000),
    "state of a queue": (queue_snapshot, 5000),
    "answer of a fetch": (
        lambda n: partial(parse_fetch_response, fetch_response(bytes(n), 1, 2, 3)),
        4_000_000,
    ),
}


@pytest.mark.parametrize("name", INPUTS)
def test_cost_grows_with_size(name: str) -> None:
    grows_linearly(*INPUTS[name])


def test_poisoned_headers_cost_no_more() -> None:
    """One header that claims the rest of the body, again and again."""

    def poisoned(count: int) -> Work:
        cell = b"\x01\x00a" + (2**31).to_bytes(4, "little")
        body = bytes(4) + (4).to_bytes(4, "little") + (len(cell) * count).to_bytes(4, "little")
        data = sealed(body + b"abcd" + cell * count, attributes=HAS_HEADERS)

        def work() -> None:
            with pytest.raises(Exception, match="header"):
                check_columns(read_header(data), data)

        return work

    grows_linearly(poisoned, 50_000)
