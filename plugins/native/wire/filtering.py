"""Which records a reader wants, by key and headers. Pure; the broker and the SDK both use it.

The broker leaves out whole batches without such a record; the SDK leaves out the other records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import compress
from typing import Final, Self

from lakemq.broker_core.api.errors import CorruptBatch, InvalidRequest
from lakemq.broker_core.api.records.batch import CONTROL, RecordBatch, split
from lakemq.broker_core.api.records.headers import decode_headers
from lakemq.broker_core.api.types import Record

_CONDITIONS_MAX: Final = 16
_VALUE_MAX_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Condition:
    """The key (`header` empty), or any header of that name, equals `value` or begins with it."""

    header: str
    value: bytes
    prefix: bool = False

    def of_key(self, key: bytes | None) -> bool:
        """Internal: whether a record's key meets the condition."""
        if key is None:
            return False
        return key.startswith(self.value) if self.prefix else key == self.value

    def of_headers(self, encoded: bytes) -> bool:
        """Internal: whether a record's encoded headers meet the condition."""
        return any(
            name == self.header and self.of_key(value) for name, value in decode_headers(encoded)
        )


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """A record is wanted when all conditions hold."""

    conditions: tuple[Condition, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.conditions) <= _CONDITIONS_MAX:
            raise InvalidRequest(f"a filter takes 1 to {_CONDITIONS_MAX} conditions")
        for each in self.conditions:
            if len(each.value) > _VALUE_MAX_BYTES or len(each.header) > _VALUE_MAX_BYTES:
                raise InvalidRequest(f"a filter's condition takes {_VALUE_MAX_BYTES} bytes")

    @classmethod
    def of(
        cls,
        *,
        key: bytes | None = None,
        key_prefix: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        header_prefixes: Mapping[str, bytes] | None = None,
    ) -> Self:
        """What is given must all hold. Raises InvalidRequest when nothing is given."""
        conditions = [Condition(name, value) for name, value in (headers or {}).items()]
        conditions += [
            Condition(name, value, True) for name, value in (header_prefixes or {}).items()
        ]
        if key is not None:
            conditions.append(Condition("", key))
        if key_prefix is not None:
            conditions.append(Condition("", key_prefix, True))
        return cls(tuple(conditions))

    def rows(self, batch: RecordBatch) -> list[bool]:
        """For each record, whether it is wanted."""
        # One search over all bytes is far cheaper than cutting them up, and mostly enough.
        if any(each.value not in batch.body for each in self.conditions):
            return [False] * len(batch)
        wanted = [True] * len(batch)
        for condition in self.conditions:
            cells = (
                map(condition.of_headers, batch.encoded_headers())
                if condition.header
                else map(condition.of_key, batch.keys())
            )
            wanted = [before and now for before, now in zip(wanted, cells, strict=True)]
        return wanted

    def records(self, batch: RecordBatch) -> list[Record]:
        """The records that are wanted."""
        wanted = self.rows(batch)
        return list(compress(batch.records(), wanted)) if any(wanted) else []

    def batches(self, data: bytes) -> bytes:
        """Internal: the batches of `data` (back to back) that hold a record that is wanted, whole.

        Control batches stay: they are for readers; so do corrupt ones, which readers tell of.
        """
        kept = []
        for position, header in split(data):
            if header.attributes & CONTROL or self._any(data, position):
                kept.append(data[position : position + header.total_bytes])
        return b"".join(kept)

    def _any(self, data: bytes, position: int) -> bool:
        try:
            return any(self.rows(RecordBatch(data, position)))
        except CorruptBatch:
            return True
