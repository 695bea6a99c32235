"""A bounded part of a topic as an Arrow stream, for whatever reads Arrow's PyCapsule interface.

pyarrow is optional (`pip install pyarrow`), so it is imported inside the functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from lakemq.broker_core.api.errors import CorruptBatch, InvalidRequest
from lakemq.broker_core.api.records.batch import RecordBatch
from lakemq.plugins.native.sdk.arrow import COLUMNS, arrow_schema, to_arrow
from lakemq.plugins.native.sdk.blocking.fetch_streams import FetchStream
from lakemq.plugins.native.sdk.consumer.corrupt import CorruptPolicy, OnCorrupt
from lakemq.plugins.native.wire.filtering import RecordFilter

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_MIN: Final = 1024
"""Record batches of topics that are written record by record are joined up to that many rows:
engines are slow with thousands of tiny ones."""


def columns_given(columns: Sequence[str]) -> tuple[str, ...]:
    """Names of columns. Raises InvalidRequest, naming one that does not exist or comes twice."""
    names = tuple(columns)
    for at, name in enumerate(names):
        if isinstance(columns, str) or name not in COLUMNS or name in names[:at]:
            shown = columns if isinstance(columns, str) else name
            raise InvalidRequest(f"columns: {shown!r:.60}; each once, of {', '.join(COLUMNS)}")
    if not names:
        raise InvalidRequest(f"columns is empty; there are {', '.join(COLUMNS)}")
    return names


class TopicScan:
    """Made by `SyncClient.scan`: the records of a topic in fixed bounds.

    It has Arrow's PyCapsule interface (`__arrow_c_stream__`), so DuckDB, Polars, pyarrow and others
    take it as it is; each of them reads the same records, from the broker, a batch at a time.
    """

    def __init__(
        self,
        topic: str,
        bounds: Mapping[int, tuple[int, int]],
        fetch: Callable[[int, int, int], FetchStream],
        *,
        columns: tuple[str, ...],
        wanted: RecordFilter | None,
        on_corrupt: OnCorrupt,
    ) -> None:
        """`fetch`: opens a stream of stored batches of a partition, by first offset and end."""
        self.topic = topic
        self.bounds = dict(bounds)
        """Partition -> first offset, and the one behind the last."""
        self._fetch, self._columns, self._wanted = fetch, columns, wanted
        self._on_corrupt = on_corrupt
        CorruptPolicy(on_corrupt)  # a wrong word is told here, not in the midst of a query

    @property
    def schema(self) -> pa.Schema:
        """As `to_arrow`'s, of the columns that were asked for."""
        return arrow_schema(self._columns)

    def reader(self) -> pa.RecordBatchReader:
        """Reads the records once, one partition after the other, by offset. Raises what
        `fetch_batches` raises while it is read."""
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(self.schema, _joined(self._batches()))

    def __arrow_c_schema__(self) -> object:
        """Arrow's PyCapsule interface: the schema."""
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Arrow's PyCapsule interface: another stream of the same records."""
        return self.reader().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"<TopicScan of {self.topic}: {self.bounds}>"

    def _batches(self) -> Iterator[pa.RecordBatch]:
        corrupt = CorruptPolicy(self._on_corrupt)
        for partition, (first, end) in self.bounds.items():
            if first >= end:
                continue
            # Left before its end (a LIMIT), the generator is closed, and the call with it.
            with self._fetch(partition, first, end) as batches:
                for batch in batches:
                    try:
                        yield self._rows(batch, partition, first, end)
                    except CorruptBatch as error:
                        corrupt.note(self.topic, partition, batch.header.base_offset, error)

    def _rows(self, batch: RecordBatch, partition: int, first: int, end: int) -> pa.RecordBatch:
        import pyarrow as pa

        found = to_arrow(
            batch, topic=self.topic, partition=partition, start=first, end=end,
            columns=self._columns,
        )  # fmt: skip
        if self._wanted is None or not found.num_rows:
            return found
        each = zip(batch.offsets(), self._wanted.rows(batch), strict=True)
        return found.filter(pa.array([row for at, row in each if first <= at < end], pa.bool_()))


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows, without tiny batches."""
    import pyarrow as pa

    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= _ROWS_MIN:
            yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)
            waiting, rows = [], 0
    if rows:
        yield pa.concat_batches(waiting)
