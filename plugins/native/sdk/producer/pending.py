"""What waits for an ack: single records that make up a batch, or columns that are one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice, repeat
from operator import add, getitem
from typing import Any, Final, NamedTuple

from lakemq.broker_core.api.errors import CorruptBatch, LakeMQError
from lakemq.broker_core.api.records.batch import RECORDS_MAX
from lakemq.broker_core.api.records.headers import decode_headers
from lakemq.broker_core.api.types import Acks, Columns, Headers
from lakemq.plugins.native.sdk.net.calls import joined_columns
from lakemq.plugins.native.sdk.types import RecordMetadata

RECORD_OVERHEAD_BYTES: Final = 16
Given = tuple[Any, Any, Any, Any]
"""A `NewRecord`, of whatever is like bytes: annotations are checked where this is compiled."""
_Rest = tuple[Any, Any, Any]
"""Key, headers and time of a record."""
_NOTHING: Final[_Rest] = (None, (), None)


def record_bytes(record: Given) -> int:
    """What a record takes in a batch, at most, compressed or not."""
    value, key, headers, _ = record
    size = RECORD_OVERHEAD_BYTES
    if value is not None:
        size += len(value)
    if key is not None:
        size += len(key)
    if headers:
        size += sum(len(name) + len(cell or b"") + 6 for name, cell in headers)
    return size


def column_bytes(columns: Columns) -> int:
    """About what the records take in a batch."""
    blobs: list[Any] = [columns.values, columns.keys, columns.headers]
    return len(columns.values) * RECORD_OVERHEAD_BYTES + sum(
        len(cell) for blob in blobs if blob is not None for cell in blob if cell is not None
    )


def cut(columns: Columns, bytes_max: int) -> Iterator[Columns]:
    """Columns of about `bytes_max` each, and of as many records as a batch takes, in order."""
    count, size = len(columns.values), column_bytes(columns)
    step = min(max(1, count * bytes_max // max(size, 1)), RECORDS_MAX)
    for first in range(0, count, step):
        yield Columns(*(None if each is None else each[first : first + step] for each in columns))  # type: ignore[arg-type]  # `values` is never None


class Appended(NamedTuple):
    """Where the broker has put a batch."""

    topic: str
    partition: int
    base_offset: int
    timestamps_ms: Sequence[int]
    acks: Acks

    def records(self, indexes: Sequence[int]) -> Iterator[RecordMetadata]:
        """Where those records lie."""
        offsets = map(add, repeat(self.base_offset), indexes)
        times = map(getitem, repeat(self.timestamps_ms), indexes)
        topic, partition, acks = repeat(self.topic), repeat(self.partition), repeat(self.acks)
        fields = zip(topic, partition, offsets, times, acks, strict=False)
        # `RecordMetadata(...)` without a call of Python for each.
        return map(tuple.__new__, repeat(RecordMetadata), fields)


class Pending(ABC):
    """Records of one partition that become one batch, until its outcome is known and as long as
    one asks for it. Futures are the callers' own, and not looked at here."""

    __slots__ = ("_futures", "_indexes", "_outcome", "bytes", "deadline_ms")

    def __init__(self, size: int, deadline_ms: int) -> None:
        self.bytes = size
        self.deadline_ms = deadline_ms
        """Of the first of them."""
        self._outcome: Appended | LakeMQError | None = None
        # Two lists, and not one of pairs, which the garbage collector would have to look through.
        self._indexes: list[int] = []
        self._futures: list[Any] = []

    @property
    @abstractmethod
    def count(self) -> int:
        """Number of records."""

    @property
    @abstractmethod
    def unwatched(self) -> int:
        """Records whose outcome no caller waits for."""

    @abstractmethod
    def columns(self, now_ms: int) -> Columns:
        """As they are sent, at that time."""

    @abstractmethod
    def headers(self, count: int) -> Iterator[Headers]:
        """Of the first records."""

    def watch(self, index: int, future: Any) -> None:
        """`settle` gives `future` back, for that record to be told."""
        self._indexes.append(index)
        self._futures.append(future)

    def settle(self, outcome: Appended | LakeMQError) -> tuple[list[int], list[Any]]:
        """Indexes and futures of all that wait for this."""
        self._outcome = outcome
        waiting = self._indexes, self._futures
        self._indexes, self._futures = [], []
        return waiting

    def outcome(self, index: int) -> RecordMetadata | LakeMQError | None:
        """Of that record; None: it is not known yet."""
        outcome = self._outcome
        return next(outcome.records((index,))) if isinstance(outcome, Appended) else outcome


class PendingRecords(Pending):
    """Single records, in order. The batch is filled as they are taken, not made of them when it is
    sent."""

    __slots__ = ("_rest", "bytes_max", "values")

    def __init__(self, bytes_max: int, deadline_ms: int) -> None:
        super().__init__(0, deadline_ms)
        self.bytes_max = bytes_max
        self.values: list[Any] = []
        """None of them once the outcome is known."""
        self._rest: list[_Rest] | None = None
        """None: there are values alone."""

    @property
    def count(self) -> int:
        return len(self.values)

    @property
    def unwatched(self) -> int:
        return max(0, len(self.values) - len(self._futures))

    def add(self, record: Given, size: int) -> bool:
        """Whether a record of `size` bytes was taken. The first is, whatever its size: it has to
        be rejected some time."""
        value, key, headers, timestamp_ms = record
        values = self.values
        if values and (self.bytes + size > self.bytes_max or len(values) == RECORDS_MAX):
            return False
        self.bytes += size
        if key is not None or headers or timestamp_ms is not None or self._rest is not None:
            if self._rest is None:
                self._rest = [_NOTHING] * len(values)
            self._rest.append((key, headers, timestamp_ms))
        values.append(value)
        return True

    def add_value(self, value: bytes, size: int) -> bool:
        """As `add`, behind another, of a record that is a value alone; False where others are
        not."""
        values = self.values
        total = self.bytes + size
        if total > self.bytes_max or len(values) == RECORDS_MAX or self._rest is not None:
            return False
        self.bytes = total
        values.append(value)
        return True

    def columns(self, now_ms: int) -> Columns:
        values = self.values
        if self._rest is None:
            return Columns(values, timestamps_ms=[now_ms] * len(values))
        keys, headers, times = zip(*self._rest, strict=True)
        return joined_columns(values, keys, headers, times, now_ms)

    def headers(self, count: int) -> Iterator[Headers]:
        return iter([headers for _, headers, _ in islice(self._rest or (), count)])

    def settle(self, outcome: Appended | LakeMQError) -> tuple[list[int], list[Any]]:
        # A caller that keeps one future does not keep the records of a whole batch with it.
        self.values, self._rest = [], None
        return super().settle(outcome)


class PendingBlock(Pending):
    """Columns of records that make up a batch of their own. Its outcome is that of the first."""

    __slots__ = ("_columns",)

    def __init__(self, columns: Columns, deadline_ms: int) -> None:
        super().__init__(column_bytes(columns), deadline_ms)
        self._columns = columns

    @property
    def count(self) -> int:
        return len(self._columns.values)

    @property
    def unwatched(self) -> int:
        return 0

    def columns(self, now_ms: int) -> Columns:
        return self._columns

    def headers(self, count: int) -> Iterator[Headers]:
        # Each once: most records that are handed over together have the same.
        return map(_decoded, dict.fromkeys(islice(self._columns.headers or (), count)))


def _decoded(encoded: Any) -> Headers:
    """None of what the broker will refuse."""
    try:
        return decode_headers(encoded)
    except CorruptBatch:
        return ()
