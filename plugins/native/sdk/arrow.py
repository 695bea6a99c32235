"""Record batches <-> Arrow. Reading copies no key or value: Arrow points into the batch's body.

pyarrow is optional (`pip install pyarrow`), so it is imported inside the functions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from lakemq.broker_core.api.errors import CorruptBatch, InvalidRequest
from lakemq.broker_core.api.records.batch import (
    CONTROL,
    SPARSE,
    WIDE_TIMESTAMPS,
    RecordBatch,
    column_places,
)
from lakemq.broker_core.api.records.headers import NULL_LENGTH, decode_headers, encode_headers
from lakemq.broker_core.api.types import Columns

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
"""Names of all Arrow columns, in their order."""


@lru_cache(maxsize=64)
def arrow_schema(columns: tuple[str, ...] = COLUMNS) -> pa.Schema:
    """Schema of `to_arrow`'s answer: topic string, partition int32, offset int64, timestamp
    timestamp[us, UTC], key and value binary, headers list<struct<key: string, value: binary>>.
    """
    import pyarrow as pa

    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    types = {
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.list_(pa.field("element", header)),
    }
    return pa.schema([(name, types[name]) for name in columns])


def to_arrow(
    batch: RecordBatch,
    *,
    topic: str = "",
    partition: int = 0,
    start: int = 0,
    end: int | None = None,
    columns: Sequence[str] = COLUMNS,
) -> pa.RecordBatch:
    """The batch's records with `start` <= offset < `end` as Arrow, only `columns`, in that order.

    Offsets keep their gaps, absent keys and values are null; a record without headers has an empty
    list. Control batches hold no records. Raises CorruptBatch when lengths don't add up.
    """
    import pyarrow as pa

    view = _BatchView(batch)
    first, last = view.rows_between(start, end)
    makers = {
        "topic": lambda: _constant(pa.string(), topic, last - first),
        "partition": lambda: _constant(pa.int32(), partition, last - first),
        "offset": lambda: pa.array(view.offsets[first:last]),
        "timestamp": lambda: view.timestamps(first, last),
        "key": lambda: view.binary("keys").slice(first, last - first),
        "value": lambda: view.binary("values").slice(first, last - first),
        "headers": lambda: view.header_lists(first, last),
    }
    return pa.RecordBatch.from_arrays(
        [makers[name]() for name in columns], schema=arrow_schema(tuple(columns))
    )


class _BatchView:
    """Numpy and Arrow views over one batch's body."""

    def __init__(self, batch: RecordBatch) -> None:
        self._batch = batch
        header = batch.header
        self._count = header.record_count
        self._places = places = column_places(header)
        self._lengths: dict[str, npt.NDArray[np.uint32]] = {}
        for name, place in (
            ("keys", places.key_lengths),
            ("values", places.value_lengths),
            ("headers", places.header_lengths),
        ):
            if place >= 0:
                self._lengths[name] = self._column(place, np.dtype("<u4"))
        self._blobs = self._blob_places()
        if header.attributes & SPARSE:
            # Offsets with gaps, as after compaction. That they ascend is what lets `searchsorted`
            # be used below.
            deltas = self._column(places.offset_deltas, np.dtype("<u4"))
            if deltas[-1] != header.last_offset_delta or (deltas[1:] <= deltas[:-1]).any():
                raise CorruptBatch(f"offset deltas do not ascend to {header.last_offset_delta}")
            self.offsets: npt.NDArray[np.int64] = deltas.astype(np.int64) + header.base_offset
        else:
            self.offsets = np.arange(
                header.base_offset, header.base_offset + self._count, dtype=np.int64
            )

    def _column(self, place: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        return np.frombuffer(self._batch.view, dtype, self._count, place)

    def _blob_places(self) -> dict[str, int]:
        """First byte of the key, value and header bytes; their ends must fill the body."""
        at, found = self._places.blobs, {}
        for name, lengths in self._lengths.items():
            found[name] = at
            nulls = int(np.count_nonzero(lengths == NULL_LENGTH))
            at += int(lengths.sum(dtype=np.int64)) - nulls * NULL_LENGTH
        # Lengths come from the wire or disk: this bounds every slice below before one is made.
        if at != len(self._batch.view):
            raise CorruptBatch(f"columns end at byte {at}, body at byte {len(self._batch.view)}")
        return found

    def rows_between(self, start: int, end: int | None) -> tuple[int, int]:
        """Rows [first, last) whose offsets lie in [start, end)."""
        if self._batch.header.attributes & CONTROL:
            return 0, 0
        if end is None:
            end = self._batch.header.last_offset + 1
        first, last = np.searchsorted(self.offsets, [start, end]).tolist()
        return first, max(first, last)

    def timestamps(self, first: int, last: int) -> pa.Array:
        import pyarrow as pa

        header = self._batch.header
        wide = header.attributes & WIDE_TIMESTAMPS
        deltas = self._column(self._places.timestamp_deltas, np.dtype("<i8" if wide else "<u4"))
        times = (deltas[first:last].astype(np.int64) + header.base_timestamp_ms) * 1000
        return pa.array(times).view(pa.timestamp("us", tz="UTC"))

    def binary(self, name: str) -> pa.Array:
        """The key, value or header column as binary over the body's own bytes."""
        import pyarrow as pa

        if name not in self._lengths:
            return pa.nulls(self._count, pa.binary())
        lengths = self._lengths[name]
        absent = lengths == NULL_LENGTH
        validity = None
        if absent.any():
            # Arrow's validity bitmap: least significant bit first, 1 for present.
            validity = pa.py_buffer(np.packbits(~absent, bitorder="little").tobytes())
            lengths = np.where(absent, np.uint32(0), lengths)
        # Arrow's 32-bit offsets suffice: a body is 256 MiB at most.
        ends = np.zeros(self._count + 1, dtype=np.int32)
        np.cumsum(lengths, out=ends[1:], dtype=np.int32)
        # No copy: the Arrow array keeps the batch's bytes alive.
        body = pa.py_buffer(self._batch.view)
        blob = body.slice(self._blobs[name], int(ends[-1]))
        buffers = [validity, pa.py_buffer(ends), blob]
        return pa.Array.from_buffers(pa.binary(), self._count, buffers)

    def header_lists(self, first: int, last: int) -> pa.Array:
        """Headers, decoded; equal ones (most are) only once."""
        import pyarrow as pa

        kind = arrow_schema().field("headers").type
        if "headers" not in self._lengths:
            ends = pa.py_buffer(bytes(4 * (last - first + 1)))
            return pa.ListArray.from_buffers(
                kind, last - first, [None, ends], children=[pa.array([], kind.value_type)]
            )
        cells = self.binary("headers").slice(first, last - first).dictionary_encode()
        decoded = [
            [{"key": key, "value": value} for key, value in decode_headers(cell)]
            for cell in cells.dictionary.to_pylist()
        ]
        lists = pa.array([*decoded, []], kind)
        return lists.take(cells.indices.fill_null(len(decoded)))


@lru_cache(maxsize=32)
def _constant(kind: pa.DataType, value: str | int, count: int) -> pa.Array:
    """`count` times the same value; kept, since the batches of one stream are often as long."""
    import pyarrow as pa

    return pa.repeat(pa.scalar(value, kind), count)


def arrow_batches(table: object) -> list[pa.RecordBatch]:
    """The record batches of a table. Raises InvalidRequest if it is neither table nor batch."""
    import pyarrow as pa

    if isinstance(table, pa.RecordBatch):
        return [table]
    if isinstance(table, pa.Table):
        return list(table.to_batches())
    raise InvalidRequest(
        f"this is of type {type(table).__name__}; send_arrow takes a pyarrow.Table or RecordBatch"
    )


def table_of_pandas(frame: object) -> pa.Table:
    """A DataFrame as an Arrow table, without its index. Raises InvalidRequest."""
    import pyarrow as pa

    if not _is_frame(frame, "pandas"):
        raise InvalidRequest(f"send_pandas takes a DataFrame, not a {type(frame).__name__}")
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidRequest(f"Arrow can't take this DataFrame: {error}") from None


def table_of_polars(frame: Any) -> pa.Table:
    """A DataFrame of Polars as an Arrow table. Raises InvalidRequest."""
    if not _is_frame(frame, "polars"):
        raise InvalidRequest(f"send_polars takes a DataFrame, not a {type(frame).__name__}")
    return frame.to_arrow()


def _is_frame(frame: object, library: str) -> bool:
    # Who has a DataFrame has imported its library; no other one is loaded for it.
    module = sys.modules.get(library)
    return module is not None and isinstance(frame, module.DataFrame)


def from_arrow(batch: pa.RecordBatch) -> Columns:
    """Arrow -> columns to append. Column `value` must be there; `key`, `headers` and `timestamp`
    may be; others are not looked at. Strings become UTF-8; a null timestamp is refused.

    Raises InvalidRequest, naming the column whose type does not fit.
    """
    names = batch.schema.names
    if "value" not in names:
        raise InvalidRequest(f"no column `value` among {', '.join(names) or 'no columns'}")
    return Columns(
        values=_cells(batch, "value"),
        keys=_cells(batch, "key") if "key" in names else None,
        headers=_encoded_headers(batch) if "headers" in names else None,
        timestamps_ms=_milliseconds(batch) if "timestamp" in names else None,
    )


def columns_of_rows(batch: pa.RecordBatch, value_of: Callable[[dict[str, Any]], bytes]) -> Columns:
    """As `from_arrow`, of a batch without a column `value`: `value_of` makes one of each row, a
    dict of all columns but `key`, `headers` and `timestamp`."""
    names = batch.schema.names
    rows = batch.select([name for name in names if name not in COLUMNS[3:]]).to_pylist()
    return Columns(
        values=[value_of(row) for row in rows],
        keys=_cells(batch, "key") if "key" in names else None,
        headers=_encoded_headers(batch) if "headers" in names else None,
        timestamps_ms=_milliseconds(batch) if "timestamp" in names else None,
    )


def _cells(batch: pa.RecordBatch, name: str) -> list[bytes | None]:
    import pyarrow as pa

    column = batch.column(name)
    try:
        column = column.cast(pa.binary())
    except pa.ArrowException as error:
        raise InvalidRequest(f"column `{name}` is {column.type}, not binary: {error}") from None
    if column.null_count or not len(column):
        return list(column.to_pylist())
    _, ends, blob = column.buffers()
    places = np.frombuffer(ends, np.int32, len(column) + 1, 4 * column.offset).tolist()
    data = blob.to_pybytes() if blob is not None else b""
    return [data[begin:end] for begin, end in pairwise(places)]


def _milliseconds(batch: pa.RecordBatch) -> list[int]:
    import pyarrow as pa

    column = batch.column("timestamp")
    if not pa.types.is_timestamp(column.type):
        raise InvalidRequest(f"column `timestamp` is {column.type}, not timestamp")
    if column.null_count:
        raise InvalidRequest("column `timestamp` holds nulls")
    milliseconds = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False)
    return list(milliseconds.cast(pa.int64()).to_pylist())


def _encoded_headers(batch: pa.RecordBatch) -> list[bytes]:
    column = batch.column("headers")
    encoded = []
    for row, cell in enumerate(column.to_pylist()):
        try:
            pairs = tuple((header["key"], header["value"]) for header in cell or ())
            encoded.append(encode_headers(pairs))
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise InvalidRequest(
                f"column `headers`, row {row}: not a list of (key string, value binary): {error!r}"
            ) from None
    return encoded
