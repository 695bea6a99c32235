"""Values of records as texts: JSON, values that name their schema, Sparkplug B; else text or hex.

In this process, not in a broker's. What a value or a schema can cost is bounded: the API cuts
values off, a page uses some schemas, and a text that got long is cut off too.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, NamedTuple

from google.protobuf import json_format
from google.protobuf.message import Message

from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.schemas.formats import Format, open_schema
from lakemq.broker_core.api.schemas.sparkplug import place_of, rows_of
from lakemq.broker_core.api.schemas.types import unframed
from lakemq.plugins.admin.dashboard.client import ApiProblem
from lakemq.plugins.admin.dashboard.tables import Row

SCHEMAS_MAX: Final = 8
"""Used by one page."""
TEXT_MAX: Final = 64 * 1024
"""Characters of one decoded value."""
_SECONDS: Final = 5.0
"""After these a page opens no more schemas."""
_KEPT: Final = 32
"""Opened schemas that this process keeps; the text of each has up to 256 KiB."""
_INFLATED_MAX_BYTES: Final = 64 * 1024
_KINDS: Final = {"json-schema": "JSON", "avro": "Avro", "protobuf": "Protobuf"}
_SHARED: Final = (
    "group_id", "message_type", "edge_node_id", "device_id", "seq", "payload_time"
)  # fmt: skip
"""Of Sparkplug's rows: the same in each."""

AskSchema = Callable[[int], Awaitable[Mapping[str, Any]]]
"""Asks the API for a schema by its id. Raises ApiProblem."""


class Opened(NamedTuple):
    """A schema, or why there is none."""

    kind: str
    format: Format | None
    problem: str = ""


class RecordTexts:
    """Makes texts of records."""

    def __init__(self) -> None:
        self._open = lru_cache(maxsize=_KEPT)(open_schema)
        self._turn = asyncio.Semaphore(1)
        """To open a schema: Protobuf's are compiled by a process each."""

    async def shown(self, records: Sequence[Row], ask: AskSchema) -> Sequence[Row]:
        """The records of an answer of the API with texts for `value`, `key` and `headers`; `kind`:
        what the value is; `problem`: why it could not be decoded, or empty."""
        ids = [_schema_id(each) for each in records]
        schemas: dict[int, Opened] = {}
        deadline = time.monotonic() + _SECONDS
        for schema_id in dict.fromkeys(each for each in ids if each):
            if len(schemas) == SCHEMAS_MAX or time.monotonic() > deadline:
                break
            schemas[schema_id] = await self._opened(schema_id, ask)
        rest = Opened("bytes", None, "not decoded: there are too many schemas on this page")
        return await asyncio.to_thread(
            lambda: [
                _shown(record, schemas.get(schema_id, rest) if schema_id else None)
                for record, schema_id in zip(records, ids, strict=True)
            ]
        )

    async def _opened(self, schema_id: int, ask: AskSchema) -> Opened:
        try:
            found = await ask(schema_id)
        except ApiProblem as problem:
            if problem.status == 401:
                raise
            # Bytes that only look like a frame name a schema that does not exist.
            unknown = problem.status == 404
            return Opened("bytes", None, "" if unknown else f"schema {schema_id}: {problem.detail}")
        kind = _KINDS.get(found["schema_type"], "bytes")
        try:
            async with self._turn:
                made = await asyncio.to_thread(self._open, found["schema_type"], found["text"])
        except LakeMQError as error:
            return Opened(kind, None, f"schema {schema_id}: {error}")
        return Opened(kind, made)


def _schema_id(record: Row) -> int:
    """That the value begins with; 0: it has no such frame."""
    value = record["value"]
    # Cheap for what is none: text of MQTT devices hardly begins with a zero byte.
    if not value or not value.startswith("\0" if record["value_encoding"] == "text" else "A"):
        return 0
    try:
        return unframed(_raw(value, record["value_encoding"]))[0]
    except LakeMQError:
        return 0


def _shown(record: Row, schema: Opened | None) -> Row:
    encoding = record["value_encoding"]
    value, problem = _text(record["value"], encoding), ""
    kind = "null" if record["value"] is None else "bytes" if encoding == "base64" else encoding
    place = place_of(record["key"].encode()) if record["key"] else {}
    decoded: tuple[str, Callable[[], object]] | None = None
    if record["value"] is None:
        pass
    elif schema is not None:
        made = schema.format
        problem = schema.problem
        if made is not None:
            decoded = schema.kind, lambda: made.decode(unframed(_raw(record["value"], encoding))[1])
    elif place.get("message_type", "STATE") != "STATE":
        decoded = "Sparkplug B", lambda: _sparkplug(place, _raw(record["value"], encoding))
    elif encoding == "text" and record["value"] and not record["truncated"]:
        kind, value = _as_json(record["value"]) or (kind, value)
    if decoded is not None:
        name, decode = decoded
        try:
            if record["truncated"]:
                raise ValueError("the value is cut off here")
            kind, value = name, _pretty(decode())
        except Exception as error:  # decoders raise whatever they stumble over
            problem = f"not decoded as {name}: {f'{error}'[:300] or type(error).__name__}"
    headers = [
        f"{each['name']}: {_text(each['value'], each['encoding'])}" for each in record["headers"]
    ]
    return {
        **record, "value": value, "kind": kind, "problem": problem, "headers": headers,
        "key": _text(record["key"], record["key_encoding"]),
    }  # fmt: skip


def _as_json(text: str) -> tuple[str, str] | None:
    """(kind, text), over several lines; None: it is no JSON."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(found, dict | list):
        with suppress(ValueError, RecursionError):
            indented = _indented(found)
            # As it came is shorter to read than what is cut off.
            text = indented if len(indented) <= TEXT_MAX else text
    return "JSON", text


def _sparkplug(place: Mapping[str, Any], value: bytes) -> dict[str, object]:
    """What all metrics have in common, and each metric; what is not set is left out."""
    rows = rows_of(dict(place), value, _INFLATED_MAX_BYTES)
    shared = {name: rows[0].get(name) for name in _SHARED}
    metrics = [
        {
            name: each
            for name, each in row.items()
            if name not in _SHARED
            and each is not None
            and (each is not False or name == "boolean_value")
        }
        for row in rows
    ]
    found: dict[str, object] = {name: each for name, each in shared.items() if each is not None}
    return {**found, "metrics": [each for each in metrics if each]}


def _pretty(found: object) -> str:
    """As JSON over several lines; bytes as hex, times and numbers of other types as their text."""
    if isinstance(found, Message):
        found = json_format.MessageToDict(found, preserving_proto_field_name=True)
    text = _indented(found)
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}… (cut off)"


def _indented(found: object) -> str:
    """JSON over several lines, of which the part beyond `TEXT_MAX` is not made: what a device sends
    may be nested so deep that its blanks fill the memory. Raises ValueError, RecursionError."""
    parts, size = [], 0
    for part in json.JSONEncoder(indent=2, ensure_ascii=False, default=_plain).iterencode(found):
        parts.append(part)
        size += len(part)
        if size > TEXT_MAX:
            break
    text = "".join(parts)
    text.encode()  # a half of a surrogate pair can't be sent to a browser
    return text


def _plain(value: object) -> str:
    return value.hex(" ") if isinstance(value, bytes) else str(value)


def _raw(value: str, encoding: str) -> bytes:
    return base64.b64decode(value) if encoding == "base64" else value.encode()


def _text(value: str | None, encoding: str) -> str:
    if value is None:
        return "–"
    return _raw(value, encoding).hex(" ") if encoding == "base64" else value
