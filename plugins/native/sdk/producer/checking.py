"""Checks what callers give as records, with errors that name the field that does not fit."""

from __future__ import annotations

import struct
from typing import Any, Final

from lakemq.broker_core.api.errors import BatchTooLarge, InvalidRequest
from lakemq.broker_core.api.records.batch import (
    BODY_MAX_BYTES,
    NOT_IDEMPOTENT,
    ProducerStamp,
    encode,
)
from lakemq.broker_core.api.types import Columns, Compression
from lakemq.plugins.native.sdk.arguments import moment_ms
from lakemq.plugins.native.sdk.types import NewRecord

_PLAIN: Final = frozenset((bytes, type(None)))
_BYTES: Final = (bytes, bytearray, memoryview)
_REFUSED: Final = (TypeError, ValueError, AttributeError, struct.error, OverflowError)
"""What encoding raises for values that are not of the types that the signatures name."""


def checked_record(record: NewRecord) -> NewRecord:
    """The record, its time in milliseconds. Raises InvalidRequest, naming the field that no record
    can hold."""
    if type(record) is not NewRecord:
        _check_shape(record)
    value, key, headers, timestamp_ms = record
    # Exact types first: these checks run for every record, and `bytes` is what nearly all have.
    if type(value) is not bytes:
        _check_bytes("value", value)
    if key is not None and type(key) is not bytes:
        _check_bytes("key", key)
    if headers:
        _check_headers(headers)
    if timestamp_ms is not None and type(timestamp_ms) is not int:
        moment = moment_ms("timestamp_ms", timestamp_ms)
        return NewRecord(value, key, headers, moment)
    return record


def _check_shape(record: object) -> None:
    if not isinstance(record, tuple) or len(record) != len(NewRecord._fields):
        raise InvalidRequest(
            f"a record is {_kind(record)}; it takes NewRecord(value, key, headers, timestamp_ms)"
        )


def _check_bytes(name: str, given: object) -> None:
    if given is not None and not isinstance(given, _BYTES):
        hint = "; a str has .encode()" if isinstance(given, str) else ""
        raise InvalidRequest(f"{name} is {_kind(given)}; it takes bytes or None{hint}")


def _check_headers(headers: Any) -> None:
    if isinstance(headers, dict):
        raise InvalidRequest("headers is a dict; it takes pairs, such as tuple(headers.items())")
    try:
        pairs = [(name, value) for name, value in headers]
    except (TypeError, ValueError):
        raise InvalidRequest(
            f"headers is {headers!r:.60}; it takes pairs of name and value"
        ) from None
    for name, value in pairs:
        if not isinstance(name, str):
            raise InvalidRequest(f"a header's name is {_kind(name)}; it takes a str")
        # The length of a name takes 16 bits in a record batch.
        if len(name.encode()) > 0xFFFF:
            raise InvalidRequest(f"a header's name is {len(name)} characters long")
        _check_bytes(f"header {name!r}", value)


def _kind(given: object) -> str:
    return f"of type {type(given).__name__}"


def encoded(
    columns: Columns,
    *,
    now_ms: int,
    producer: ProducerStamp = NOT_IDEMPOTENT,
    compression: Compression = Compression.NONE,
) -> bytes:
    """`encode` of what a caller gave. InvalidRequest names the column that does not fit."""
    try:
        return encode(columns, now_ms=now_ms, producer=producer, compression=compression)
    except _REFUSED as error:
        # Encoding checks as it goes, so that well-formed records pay nothing; only here is it worth
        # finding out what was wrong.
        blobs = (columns.values, columns.keys or (), columns.headers or ())
        size = sum(len(cell) for blob in blobs for cell in blob if isinstance(cell, _BYTES))
        if size > BODY_MAX_BYTES:
            raise BatchTooLarge(
                f"{size} bytes of records; a batch takes {BODY_MAX_BYTES}"
            ) from None
        raise InvalidRequest(f"these records can't be encoded: {error}") from None


def check_columns(columns: Columns) -> None:
    """Raises InvalidRequest, naming the column that holds something other than bytes and None."""
    named = (("value", columns.values), ("key", columns.keys), ("headers", columns.headers))
    for name, column in named:
        if column is not None and not _PLAIN.issuperset(map(type, column)):
            for given in column:
                _check_bytes(name, given)
