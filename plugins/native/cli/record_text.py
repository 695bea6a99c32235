"""Records as text: templates and JSON that `consume` prints, and what `produce` reads."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from lakemq.broker_core.api.command_line import clock
from lakemq.broker_core.api.errors import InvalidRequest
from lakemq.broker_core.api.types import Headers
from lakemq.plugins.native.sdk import ConsumerRecord, NewRecord

Printed = Callable[[ConsumerRecord], bytes]

_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_PLACES: Final[Mapping[str, Printed]] = {
    "v": lambda record: record.value or b"",
    "k": lambda record: record.key or b"",
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "d": lambda record: b"%d" % record.timestamp_ms,
    "T": lambda record: clock(record.timestamp_ms).encode(),
    "h": lambda record: b",".join(
        name.encode() + b"=" + (value or b"") for name, value in record.headers
    ),
}
TEMPLATE_HELP: Final = (
    "%v value, %k key, %h headers, %t topic, %p partition, %o offset, %d ms since 1970, %T UTC, "
    "%%; \\n \\t \\r \\0 \\\\"
)
_PART: Final = re.compile(r"%(.?)|\\(.?)|([^%\\]+)", re.DOTALL)
_FIELDS: Final = {"value", "key", "headers", "timestamp_ms"}
_IGNORED: Final = {"topic", "partition", "offset"}
"""What `consume` prints beside them: its output can be produced again."""


def template(text: str) -> Printed:
    """`%k: %v\\n` -> what prints a record so. Nothing is added, also no end of a line.

    Raises InvalidRequest, naming what is no place or escape of a template.
    """
    parts: list[bytes | Printed] = []
    for place, escape, plain in _PART.findall(text):
        if plain:
            parts.append(plain.encode())
        elif place == "%":
            parts.append(b"%")
        elif place in _PLACES:
            parts.append(_PLACES[place])
        elif escape in _ESCAPES:
            parts.append(_ESCAPES[escape])
        else:
            given = f"%{place}" if place else f"\\{escape}" if escape else text[-1:]
            raise InvalidRequest(f"--format: {given!r} has no meaning; it takes {TEMPLATE_HELP}")

    def printed(record: ConsumerRecord) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(record) for part in parts)

    return printed


def as_value(record: ConsumerRecord) -> bytes:
    """The value and the end of a line."""
    return (record.value or b"") + b"\n"


def as_json(record: ConsumerRecord) -> bytes:
    """The whole record, one object in a line. Bytes that are no UTF-8 text are \\xNN."""
    found = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [[name, _text(value)] for name, value in record.headers],
    }
    return json.dumps(found, ensure_ascii=False).encode() + b"\n"


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "backslashreplace")


def headers_of(pairs: Sequence[str]) -> tuple[tuple[str, bytes], ...]:
    """`NAME=VALUE` of options. Raises InvalidRequest."""
    found = []
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not (name and sign):
            raise InvalidRequest(f"--header {pair!r}: it takes NAME=VALUE")
        found.append((name, value.encode()))
    return tuple(found)


def record_of_json(line: bytes, number: int, usual: NewRecord) -> NewRecord:
    """A line like those that `consume --output json` prints; `value` may be any JSON, and what is
    missing is as in `usual`. `number`: of the line, from 1. Raises InvalidRequest."""
    try:
        found = json.loads(line)
        if not isinstance(found, dict):
            raise ValueError("it takes an object")
        if unknown := found.keys() - _FIELDS - _IGNORED:
            raise ValueError(f"{min(unknown)!r} is none of {', '.join(sorted(_FIELDS))}")
        if "value" not in found:
            raise ValueError("'value' is missing (null: the key is deleted)")
        timestamp_ms = found.get("timestamp_ms", usual.timestamp_ms)
        if timestamp_ms is not None and type(timestamp_ms) is not int:
            raise ValueError("timestamp_ms takes a whole number")
        return NewRecord(
            _bytes(found["value"]),
            _bytes(found["key"]) if "key" in found else usual.key,
            _headers(found["headers"]) if "headers" in found else usual.headers,
            timestamp_ms,
        )
    except ValueError as error:
        raise InvalidRequest(f"line {number}: {error}") from None
    except RecursionError:
        raise InvalidRequest(f"line {number}: it is nested too deep") from None


def _headers(given: Any) -> Headers:
    pairs = list(given.items()) if isinstance(given, dict) else given
    if not isinstance(pairs, list):
        raise ValueError("headers takes an object or pairs [name, value]")
    found = []
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise ValueError("headers takes an object or pairs [name, value]")
        found.append((pair[0], _bytes(pair[1]) or b""))
    return tuple(found)


def _bytes(given: Any) -> bytes | None:
    """Text as it is, null as nothing, other JSON as compact JSON."""
    if given is None:
        return None
    if isinstance(given, str):
        return given.encode()
    return json.dumps(given, ensure_ascii=False, separators=(",", ":")).encode()
