"""Records over HTTP: publish some, read some. The data path proper is the native protocol."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from lakemq.broker_core.api.administration.node import AdministeredNode
from lakemq.broker_core.api.administration.routes import (
    OCTETS,
    AdminRequest,
    AdminRoute,
    Answer,
    AnyRoute,
    Body,
    Need,
    Query,
    TimeMs,
    Whole,
    expect,
)
from lakemq.broker_core.api.errors import CorruptBatch, InvalidRequest, LakeMQError
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.records.headers import decode_headers, encode_headers
from lakemq.broker_core.api.records.stored import readable_batches
from lakemq.broker_core.api.types import Acks, Columns, FetchResult, Offset, Operation, Principal
from lakemq.plugins.admin.resources.brokers import broker_of
from lakemq.plugins.admin.resources.partitions import leader_of, number_of

RECORDS_MAX: Final = 500
"""Of one request."""
WAIT_MAX_MS: Final = 20_000
_FETCH_BYTES: Final = 256 * 1024
Encoding = Literal["text", "base64", "json"]
_ACKS: Final = {"memory": Acks.MEMORY, "leader": Acks.LEADER, "replicated": Acks.REPLICATED}


class Header(Body):
    """A header of a record."""

    name: str = Field(max_length=1024)
    value: str | None = None
    encoding: Literal["text", "base64"] = "text"


class NewRecord(Body):
    """A record to be published."""

    key: str | None = None
    key_encoding: Literal["text", "base64"] = "text"
    value: Any = None
    """A text as `value_encoding` says, or null: a tombstone; with `json` any JSON."""
    value_encoding: Encoding = "text"
    headers: list[Header] = Field(default_factory=list, max_length=100)
    timestamp_ms: int | None = Field(default=None, ge=0, le=2**53)
    """Left out: the broker's clock."""


class Publish(Body):
    """Records to be published."""

    records: list[NewRecord] = Field(min_length=1, max_length=RECORDS_MAX)


class PublishQuery(Query):
    """How records are published."""

    acks: Literal["memory", "leader", "replicated"] = "leader"
    """What is waited for; the topic may ask for more."""
    partition: Annotated[Whole, Field(ge=0, le=10_000)] | None = None
    """Left out: by the key."""
    key: str | None = Field(default=None, max_length=8192)
    """Of a record whose value is the raw body (`application/octet-stream`)."""


class Placed(Answer):
    """What became of a record: where it is, or why it is not."""

    partition: int | None = None
    offset: int | None = None
    code: str = ""
    """Of the error; empty: it is stored."""
    detail: str = ""


class Published(Answer):
    """What became of each record, in order."""

    topic: str
    stored: int
    outcomes: list[Placed]


class FetchQuery(Query):
    """Which records of a partition."""

    offset: Annotated[Whole, Field(ge=0, le=2**62)] | None = None
    """First offset; left out: where the log starts, or by `time_ms`."""
    time_ms: TimeMs | None = None
    """From the first record that is not older (ms since 1970, UTC)."""
    limit: Whole = Field(default=100, ge=1, le=RECORDS_MAX)
    wait_ms: Whole = Field(default=0, ge=0, le=WAIT_MAX_MS)
    """At the high watermark: how long to wait for a record; 2 s at most where another node
    leads."""
    value_max_bytes: Whole = Field(default=65_536, ge=0, le=1024 * 1024)
    """Longer values are cut off (`truncated`)."""


class HeaderAnswer(Answer):
    """A header of a stored record."""

    name: str
    value: str | None
    encoding: Literal["text", "base64"]


class RecordAnswer(Answer):
    """A stored record."""

    offset: int
    timestamp_ms: int
    key: str | None
    key_encoding: Literal["text", "base64"]
    """`text`: it is UTF-8."""
    value: str | None
    """Null: a tombstone."""
    value_encoding: Literal["text", "base64"]
    value_bytes: int
    """Of the whole value."""
    truncated: bool
    headers: list[HeaderAnswer]


class Fetched(Answer):
    """Records of a partition."""

    topic: str
    partition: int
    log_start_offset: int
    high_watermark: int
    next_offset: int
    """Where to go on."""
    records: list[RecordAnswer]


class RecordRoutes:
    """`/api/v1/topics/{topic}/records`, and those of a partition."""

    def __init__(self, node: AdministeredNode, bytes_max: int) -> None:
        """`bytes_max`: of keys and values in one answer."""
        self._node = node
        self._bytes_max = bytes_max

    def routes(self) -> Sequence[AnyRoute]:
        """The routes."""
        return [
            AdminRoute("POST", "topics/{topic}/records", self.publish, Published, PublishQuery,
                       Publish, need=Need(Operation.WRITE, "topic", "topic"), audited=False,
                       takes=("application/json", OCTETS)),
            AdminRoute("GET", "topics/{topic}/partitions/{partition}/records", self.fetch, Fetched,
                       FetchQuery, need=Need(Operation.READ, "topic", "topic"),
                       owner=partial(leader_of, self._node)),
        ]  # fmt: skip

    async def publish(self, request: AdminRequest) -> Published:
        """Publish records of a JSON body, or one whose value is the raw body."""
        asked, broker = expect(request.asked, PublishQuery), broker_of(self._node)
        if request.content_type == OCTETS:
            records = [NewRecord(key=asked.key)]
            values: list[bytes | None] = [request.raw]
        else:
            if asked.key is not None:
                raise InvalidRequest(f"key goes with {OCTETS}; records of JSON have their own")
            records = expect(request.given, Publish).records
            values = [_value(each) for each in records]
        columns = Columns(
            values,
            [_bytes(each.key, each.key_encoding, "key") for each in records],
            [
                encode_headers(
                    tuple(
                        (one.name, _bytes(one.value, one.encoding, "header"))
                        for one in each.headers
                    )
                )
                for each in records
            ],
            _times(records, self._node.now_ms()),
        )
        size = sum(len(value or b"") for value in values)
        await _pay(broker, request.principal, bytes_in=size, records_in=len(values))
        outcomes = await broker.publish(
            request.path["topic"], columns, principal=request.principal, acks=_ACKS[asked.acks],
            partition=asked.partition,
        )  # fmt: skip
        placed = [
            Placed(code=each.code, detail=str(each))
            if isinstance(each, LakeMQError)
            else Placed(partition=each.partition, offset=each.offset)
            for each in outcomes
        ]
        errors = [each for each in outcomes if isinstance(each, LakeMQError)]
        if len(errors) == len(outcomes):
            raise errors[0]
        return Published(
            topic=request.path["topic"], stored=len(outcomes) - len(errors), outcomes=placed
        )

    async def fetch(self, request: AdminRequest) -> Fetched:
        """Read records of a partition, from an offset or a time; at the end, wait for more."""
        asked, broker = expect(request.asked, FetchQuery), broker_of(self._node)
        topic, number = request.path["topic"], number_of(request.path["partition"])
        log = broker.partition(topic, number)
        offset = asked.offset
        if asked.time_ms is not None:
            if offset is not None:
                raise InvalidRequest("offset and time_ms do not go together")
            offset = await log.offset_for_timestamp(asked.time_ms)
        if offset is None:
            offset = log.log_start_offset
        found: list[RecordAnswer] = []
        room, wait_ms, at = self._bytes_max, asked.wait_ms, offset
        while len(found) < asked.limit and room > 0:
            got = await log.fetch(Offset(at), bytes_max=min(_FETCH_BYTES, room), wait_ms=wait_ms)
            wait_ms = 0
            if not got.data:
                break
            # A batch may be large, and compressed: not on the event loop.
            rows, at, used = await asyncio.to_thread(
                partial(_rows, topic, number),
                got,
                at,
                asked.limit - len(found),
                room,
                asked.value_max_bytes,
            )
            await _pay(broker, request.principal, bytes_out=used, records_out=len(rows))
            found += rows
            room -= used
        return Fetched(
            topic=topic,
            partition=number,
            log_start_offset=log.log_start_offset,
            high_watermark=log.high_watermark,
            next_offset=at,
            records=found,
        )


async def _pay(broker: Broker, principal: Principal, **used: int) -> None:
    """Charge the caller's quota, and wait as long as it says."""
    if wait_ms := broker.charge(principal, **used):
        await asyncio.sleep(wait_ms / 1000)


def _rows(
    topic: str, partition: int, got: FetchResult, offset: int, limit: int, room: int, value_max: int
) -> tuple[list[RecordAnswer], int, int]:
    """(records from `offset` on, where to go on, bytes of them): at least one record, if there is
    one, then as many as there is room for."""
    rows: list[RecordAnswer] = []
    used = 0
    for batch in readable_batches(got.data, topic, partition, start=offset):
        columns = zip(
            batch.offsets(), batch.timestamps_ms(), batch.keys(), batch.values(),
            batch.encoded_headers(), strict=True,
        )  # fmt: skip
        for at, time_ms, key, value, heads in columns:
            if at < offset:
                continue
            size = len(key or b"") + min(len(value or b""), value_max) + len(heads)
            if rows and (len(rows) == limit or used + size > room):
                return rows, at, used
            used += size
            rows.append(_row(at, time_ms, key, value, heads, value_max))
    return rows, got.next_offset, used


def _row(
    offset: int, time_ms: int, key: bytes | None, value: bytes | None, heads: bytes, value_max: int
) -> RecordAnswer:
    shown_key, key_encoding = _shown(key)
    shown, encoding = _shown(value if value is None else value[:value_max])
    try:
        headers = decode_headers(heads)
    except CorruptBatch:
        headers = ()
    return RecordAnswer(
        offset=offset,
        timestamp_ms=time_ms,
        key=shown_key,
        key_encoding=key_encoding,
        value=shown,
        value_encoding=encoding,
        value_bytes=len(value or b""),
        truncated=len(value or b"") > value_max,
        headers=[_header(name, each) for name, each in headers],
    )


def _header(name: str, value: bytes | None) -> HeaderAnswer:
    shown, encoding = _shown(value)
    return HeaderAnswer(name=name, value=shown, encoding=encoding)


def _shown(data: bytes | None) -> tuple[str | None, Literal["text", "base64"]]:
    if data is None:
        return None, "text"
    try:
        return data.decode(), "text"
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), "base64"


def _bytes(text: str | None, encoding: str, what: str) -> bytes | None:
    """Raises InvalidRequest."""
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True) if encoding == "base64" else text.encode()
    except ValueError:  # no base64, or half of a surrogate pair
        raise InvalidRequest(f"{what}: it is not {encoding}") from None


def _value(record: NewRecord) -> bytes | None:
    """Raises InvalidRequest."""
    if record.value_encoding == "json":
        try:
            return json.dumps(record.value, separators=(",", ":"), allow_nan=False).encode()
        except ValueError as error:
            raise InvalidRequest(f"value: {error}") from None
    if not isinstance(record.value, str | None):
        raise InvalidRequest("value is a text or null; with value_encoding json it may be any JSON")
    return _bytes(record.value, record.value_encoding, "value")


def _times(records: Sequence[NewRecord], now_ms: int) -> list[int] | None:
    if all(each.timestamp_ms is None for each in records):
        return None
    return [now_ms if each.timestamp_ms is None else each.timestamp_ms for each in records]
