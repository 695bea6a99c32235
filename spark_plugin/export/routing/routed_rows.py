"""Rows written to the files of their routes, in columns.

A route that has no table yet is only reported, and nothing more is written: the driver creates the
table, and the range is read again. The same goes for fields without a column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np

from lakemq.spark_plugin.export.decoding.column_types import Type, parse_schema
from lakemq.spark_plugin.export.decoding.decode import JsonDecoder
from lakemq.spark_plugin.export.decoding.decoder import (
    ERROR_CHARS_MAX,
    BadRow,
    Decoder,
    decode_batch,
)
from lakemq.spark_plugin.export.decoding.evolution import schema_text
from lakemq.spark_plugin.export.decoding.rest import RestCounter
from lakemq.spark_plugin.export.decoding.rows import with_meta_column
from lakemq.spark_plugin.export.routing.rules import (
    RouteTarget,
    Routing,
    parse_route_by,
    route_values,
    routes_of,
)
from lakemq.spark_plugin.export.tables.file_writer import PartitionedWriter
from lakemq.spark_plugin.export.tables.table import WrittenFile

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

_GATHERED_MAX_BYTES: Final = 128 << 20
"""Memory of all routes' rows that wait to be written."""


class Rows(NamedTuple):
    """A batch's records as rows."""

    table: pa.Table
    records: pa.Array
    """Of each row, the index of its record in the batch; ascending (int64)."""
    bad: Sequence[BadRow]


class BadRows(Protocol):
    """Where records go that can't be decoded, or name no table."""

    def write(self, batch: pa.RecordBatch, bad: Sequence[BadRow]) -> int:
        """Bad records of a batch; answers how many of them are kept as rows."""

    def close(self) -> list[WrittenFile]:
        """The files with bad rows that were written, for the commit."""


def rows_of(batch: pa.RecordBatch, decoder: Decoder | None, parts: bool) -> Rows:
    """Decoded rows with `_meta`; without a decoder the records as they are."""
    import pyarrow as pa

    if decoder is None:
        every = pa.array(np.arange(batch.num_rows, dtype=np.int64))
        return Rows(pa.Table.from_batches([batch]), every, [])
    decoded = decode_batch(decoder, batch)
    return Rows(with_meta_column(decoded, batch, parts), decoded.rows, decoded.bad)


class RoutedRows:
    """Writes batches of one partition."""

    def __init__(
        self,
        routing: Routing,
        open_writer: Callable[[RouteTarget], PartitionedWriter],
        read: Callable[[pa.RecordBatch], Rows],
        bad: BadRows,
    ) -> None:
        self._routing = routing
        self._by = parse_route_by(routing.by)
        self._targets = {each.name: each for each in routing.targets}
        self._open_writer = open_writer
        self._writers: dict[str, PartitionedWriter] = {}
        self._read = read
        self._bad = bad
        self.rows = 0
        self.new_routes: set[str] = set()
        self.new_fields: dict[str, str] = {}
        self.rest = RestCounter()

    def __call__(self, batch: pa.RecordBatch) -> None:
        rows = self._read(batch)
        table, records, bad = rows
        values = route_values(self._by, batch, table, records)
        route_indexes, names = routes_of(values, self._routing.table_format)
        targets = [self._target(name) for name in names]
        # Only names are looked for from now on; the range is read again once the tables exist.
        if self.new_routes:
            return
        bad, nowhere = list(bad), np.zeros(len(route_indexes), dtype=bool)
        for index, target in enumerate(targets):
            mine = route_indexes == index
            if target is None:
                nowhere |= mine
            elif mine.any():
                bad += self._write_to(target, batch, rows, mine)
        bad += self._unroutable(values, records, nowhere)
        if bad:
            self.rows += self._bad.write(batch, sorted(bad))
        if sum(each.gathered_bytes for each in self._writers.values()) >= _GATHERED_MAX_BYTES:
            for writer in self._writers.values():
                writer.flush()

    def _target(self, name: str | None) -> RouteTarget | None:
        """The table of a route, or the default one; None: there is neither."""
        if name is not None and name in self._targets:
            return self._targets[name]
        if name is not None and len(self._targets) < self._routing.routes_max:
            # Bounded, for keys may be as many as records.
            if len(self.new_routes) < self._routing.routes_max:
                self.new_routes.add(name)
            return None
        return self._targets.get(self._routing.default)

    def _write_to(
        self, target: RouteTarget, batch: pa.RecordBatch, rows: Rows, mine: npt.NDArray[np.bool_]
    ) -> list[BadRow]:
        """Write the rows of one route; answers which of their records are bad."""
        offsets = batch.column("offset").to_numpy()[rows.records.to_numpy()]
        # After a crash between two commits this table may have the first of these rows already.
        self._write(target, rows.table, mine & (offsets >= target.skip_below))
        return []

    def _write(self, target: RouteTarget, table: pa.Table, mine: npt.NDArray[np.bool_]) -> None:
        import pyarrow as pa

        count = int(np.count_nonzero(mine))
        if not count:
            return
        writer = self._writers.get(target.name)
        if writer is None:
            writer = self._writers[target.name] = self._open_writer(target)
        written = table if count == len(mine) else table.filter(pa.array(mine))
        self.rest.see(written)
        writer.write(written)
        self.rows += count

    def _unroutable(
        self, values: pa.Array, records: pa.Array, nowhere: npt.NDArray[np.bool_]
    ) -> list[BadRow]:
        """One for each record, though it may have several rows."""
        rows = np.flatnonzero(nowhere)
        numbers, first = np.unique(records.to_numpy()[rows], return_index=True)
        return [
            BadRow(number, "no_route", self._reason(values[row].as_py()))
            for number, row in zip(numbers.tolist(), rows[first].tolist(), strict=True)
        ]

    def _reason(self, value: Any) -> str:
        by, most = self._routing.by, self._routing.routes_max
        if value is None:
            return f"{by} is absent, so no table is named"
        shown = repr(value[:100] if isinstance(value, str | bytes) else value)
        return f"{by} is {shown}: not a valid table name, or one above {most}"[:ERROR_CHARS_MAX]

    def close(self) -> list[tuple[str, list[WrittenFile]]]:
        """No files if there are new routes."""
        # Closed in any case, or their file handles would stay open.
        closed = [(route, writer.close()) for route, writer in self._writers.items()]
        return [] if self.new_routes else closed


class OwnColumnRows(RoutedRows):
    """Each table evolves by its own records. So records are first read only as far as it takes to
    name their tables, and then decoded by the columns of their table."""

    def __init__(
        self,
        routing: Routing,
        open_writer: Callable[[RouteTarget], PartitionedWriter],
        naming: Decoder | None,
        bad: BadRows,
        open_decoder: Callable[[RouteTarget], Decoder],
    ) -> None:
        """`naming` decodes the column that names tables; None: a key or header does."""
        super().__init__(
            routing, open_writer, lambda batch: rows_of(batch, naming, parts=False), bad
        )
        self._open_decoder = open_decoder
        self._decoders: dict[str, Decoder] = {}

    def _write_to(
        self, target: RouteTarget, batch: pa.RecordBatch, rows: Rows, mine: npt.NDArray[np.bool_]
    ) -> list[BadRow]:
        import pyarrow as pa

        decoder = self._decoders.get(target.name)
        if decoder is None:
            decoder = self._decoders[target.name] = self._open_decoder(target)
        records = rows.records.filter(pa.array(mine))
        its = batch.take(records)
        decoded = decoder.decode(its.column("value"), its.column("key"))
        # The other routes go on, so that one round finds the new columns of all tables.
        if decoder.has_new_fields():
            self.new_fields[target.name] = schema_text(decoder.found.items())
            return []
        offsets = its.column("offset").to_numpy()[decoded.rows.to_numpy()]
        self._write(target, with_meta_column(decoded, its), offsets >= target.skip_below)
        return [each._replace(row=records[each.row].as_py()) for each in decoded.bad]


def naming_decoder(by: str, columns: str) -> Decoder | None:
    """What reads the column that names tables, and nothing else; None: a key or header does.
    `columns`: those that were given. A whole number may be of any length, as its column may grow.
    """
    parsed = parse_route_by(by)
    if parsed.kind != "column":
        return None
    first, *inner = parsed.name.split(".")
    kind = dict(parse_schema(columns))[first]
    return JsonDecoder([(first, _only(kind, inner))])


def _only(kind: Type, inner: Sequence[str]) -> Type:
    if inner:
        return Type("struct", ((inner[0], _only(dict(kind.fields)[inner[0]], inner[1:])),))
    return Type("bigint") if kind.name in ("tinyint", "smallint", "int") else kind
