"""Audit: is every record of the journal in the table, once? Edge: reads both, needs no Spark.

Journal and table are compared offset by offset, below the table's next offsets. What retention has
taken from the journal can't be compared; there the table is only searched for duplicates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lakemq.plugins.native.sdk import SyncClient
from lakemq.spark_plugin.errors import TableError
from lakemq.spark_plugin.export.decoding.column_types import META, REST
from lakemq.spark_plugin.export.decoding.rows import PART
from lakemq.spark_plugin.export.job.runs import (
    Run,
    clip,
    describe,
    merge,
    outside,
    runs_of,
    size,
    subtract,
)
from lakemq.spark_plugin.export.tables.delta_table import DeltaLakeTable
from lakemq.spark_plugin.export.tables.files import Folder
from lakemq.spark_plugin.export.tables.table import ExportKey, LakeTable
from lakemq.spark_plugin.source.broker_reader import read_arrow
from lakemq.spark_plugin.source.planning import OffsetRange, TopicView

if TYPE_CHECKING:
    import pyarrow as pa

_OFFSET_FIELDS: Final = {"topic", "partition", "offset"}
Keys = Counter[bytes | None]


@dataclass
class PartitionAudit:
    """One partition's comparison. All lists of runs are normal."""

    partition: int
    next_offset: int
    """Next offset of the export, as stored in the table."""
    log_start: int
    high_watermark: int
    records: int = 0
    """Records in the journal below the next offset."""
    rows: int = 0
    """Rows in the table, dead letters included."""
    dead_letters: int = 0
    missing: list[Run] = field(default_factory=list)
    twice: list[Run] = field(default_factory=list)
    unknown: list[Run] = field(default_factory=list)
    """Rows at offsets that the journal does not have, or that the export has not reached."""
    rest: int = 0
    """Rows with fields in `_rest`, which have no column of their own."""
    skipped: list[Run] = field(default_factory=list)
    """Offsets in corrupt batches: they cannot be read, so they are not missing."""
    keys: list[tuple[bytes | None, int, int]] = field(default_factory=list)
    """(key, records, rows) of keys whose counts differ; only if keys were asked for."""

    @property
    def complete(self) -> bool:
        """Whether no offset is missing, twice or unknown and the counts by key agree; skipped
        offsets do not count against it."""
        return not (self.missing or self.twice or self.unknown or self.keys)

    def sentence(self, topic: str) -> str:
        """`t-0: complete up to offset 99 (100 records)`, or exactly what is wrong."""
        name = f"{topic}-{self.partition}"
        waiting = self.high_watermark - max(self.next_offset, self.log_start)
        notes = [f"{self.records:,} records", f"{self.rows:,} rows"]
        if self.dead_letters:
            notes.append(f"{self.dead_letters:,} of them dead letters")
        if waiting > 0:
            notes.append(f"{waiting:,} offsets not exported yet")
        if self.rest:
            notes.append(f"{self.rest:,} of them with fields in {REST}")
        if self.skipped:
            notes.append(
                f"{size(self.skipped):,} offsets skipped in corrupt batches: "
                f"{describe(self.skipped)}"
            )
        if self.log_start > 0:
            notes.append(f"journal begins at offset {self.log_start:,}")
        counts = ", ".join(notes)
        if self.complete:
            reached = f"complete up to offset {self.next_offset - 1:,}"
            return f"{name}: {reached if self.next_offset else 'nothing exported'} ({counts})"
        problems = [
            f"{size(runs):,} {what}: {describe(runs)}"
            for what, runs in (
                ("missing, offsets", self.missing),
                ("twice, offsets", self.twice),
                ("not in the journal, offsets", self.unknown),
            )
            if runs
        ]
        problems += [
            f"key {key!r} has {records:,} records and {rows:,} rows"
            for key, records, rows in self.keys[:20]
        ]
        return f"{name}: NOT COMPLETE: {'; '.join(problems)} ({counts})"


def audit(
    client: SyncClient,
    key: ExportKey,
    topic: TopicView,
    table: LakeTable,
    dlq: LakeTable | None = None,
    *,
    tables: Sequence[LakeTable] | None = None,
    by_key: bool = False,
) -> list[PartitionAudit]:
    """Compare the topic with the table (and its dead letters), partition by partition. With
    `tables` the rows are in these, and `table` only stores the export's offsets."""
    tables = [table] if tables is None else tables
    offsets = table.progress(key).offsets
    rows, row_keys = _rows_of_all(tables, key.topic, by_key)
    ahead = _furthest(tables, key)
    there = {partition: merge(runs)[0] for partition, runs in rows.items()}
    dead: dict[int, list[Run]] = {}
    dead_keys: dict[int, Keys] = {}
    if dlq is not None:  # a dead letter that was replayed is a row by now
        dead, dead_keys = table_rows(dlq, key.topic, by_key, there)
    rest = _rest_rows(tables, key.topic)
    found = []
    for partition, held in sorted(topic.partitions.items()):
        result = PartitionAudit(
            partition, offsets.get(partition, 0), held.log_start, held.high_watermark
        )
        result.rest = rest[partition]
        all_rows = [*rows.get(partition, []), *dead.get(partition, [])]
        result.rows, result.dead_letters = size(all_rows), size(dead.get(partition, []))
        covered, result.twice = merge(all_rows)
        end = min(result.next_offset, held.high_watermark)
        wanted = OffsetRange(key.topic, key.topic_id, partition, held.log_start, end)
        journal, journal_keys, result.skipped = _journal_rows(client, wanted, by_key)
        result.records = size(journal)
        # Below the log start the journal can't be compared any more: the table outlives retention.
        comparable = clip(covered, held.log_start, held.high_watermark)
        result.missing = subtract(journal, comparable)
        # A routed export commits one table after the other: some may be ahead of the ledger.
        under_way = Run(result.next_offset, max(result.next_offset, ahead.get(partition, 0)))
        known = merge([*journal, *result.skipped])[0]
        unknown = subtract(subtract(comparable, known), [under_way])
        result.unknown = unknown + clip(covered, held.high_watermark, 1 << 63)
        # Counts of the whole table only compare with a journal that still has everything.
        if by_key and not held.log_start:
            counts = row_keys.get(partition, Counter()) + dead_keys.get(partition, Counter())
            result.keys = _differences(journal_keys, counts)
        found.append(result)
    return found


def _rows_of_all(
    tables: Sequence[LakeTable], topic: str, by_key: bool
) -> tuple[dict[int, list[Run]], dict[int, Keys]]:
    runs: dict[int, list[Run]] = {}
    keys: dict[int, Keys] = {}
    for table in tables:
        its_runs, its_keys = table_rows(table, topic, by_key)
        for partition, found in its_runs.items():
            runs.setdefault(partition, []).extend(found)
        for partition, counts in its_keys.items():
            keys.setdefault(partition, Counter()).update(counts)
    return runs, keys


def _rest_rows(tables: Sequence[LakeTable], topic: str) -> Counter[int]:
    """Partition -> rows with something in `_rest`."""
    found: Counter[int] = Counter()
    for table in tables:
        if REST in table.arrow_schema().names:
            for batch in _scan(table, topic, by_key=False, with_rest=True):
                for each in batch.column("partition").value_counts().to_pylist():
                    found[each["values"]] += each["counts"]
    return found


def _furthest(tables: Sequence[LakeTable], key: ExportKey) -> dict[int, int]:
    furthest: dict[int, int] = {}
    for table in tables:
        for partition, offset in table.progress(key).offsets.items():
            furthest[partition] = max(offset, furthest.get(partition, 0))
    return furthest


def _differences(records: Keys, rows: Keys) -> list[tuple[bytes | None, int, int]]:
    return [
        (key, records[key], rows[key])
        for key in sorted(records.keys() | rows.keys(), key=lambda each: each or b"")
        if records[key] != rows[key]
    ]


def _journal_rows(
    client: SyncClient, wanted: OffsetRange, by_key: bool
) -> tuple[list[Run], Keys, list[Run]]:
    """Offsets (normal), counts by key, and offsets (normal) in batches that are corrupt inside."""
    runs: list[Run] = []
    skipped: list[Run] = []
    keys: Keys = Counter()
    if wanted.start < wanted.end:
        # All columns, as the export reads them: a batch that is corrupt in any of them is skipped.
        columns = ("offset", "timestamp", "key", "value", "headers")
        for batch in read_arrow(client, wanted, columns=columns, on_skipped=skipped.append):
            runs += runs_of(batch.column("offset").to_numpy())
            if by_key:
                _count(keys, batch.column("key"))
    return merge(runs)[0], keys, merge(skipped)[0]


def table_rows(
    table: LakeTable, topic: str, by_key: bool, without: Mapping[int, list[Run]] | None = None
) -> tuple[dict[int, list[Run]], dict[int, Keys]]:
    """Partition -> runs (not normal: duplicates are what is looked for), and counts by key, of the
    topic's rows at offsets that are not in `without`."""
    import pyarrow as pa
    from pyarrow import compute

    runs: dict[int, list[Run]] = {}
    keys: dict[int, Keys] = {}
    for batch in _scan(table, topic, by_key):
        partitions = batch.column("partition")
        for partition in compute.unique(partitions).to_pylist():
            mine = batch.filter(compute.equal(partitions, partition))
            offsets = mine.column("offset").to_numpy()
            if without and partition in without:
                mine = mine.filter(pa.array(outside(offsets, without[partition])))
                offsets = mine.column("offset").to_numpy()
            runs.setdefault(partition, []).extend(runs_of(offsets))
            if by_key:
                _count(keys.setdefault(partition, Counter()), mine.column("key"))
    return runs, keys


def _scan(
    table: LakeTable, topic: str, by_key: bool, with_rest: bool = False
) -> Iterator[pa.RecordBatch]:
    """Columns partition, offset and key of all rows of the topic."""
    inside = offset_columns(table)
    for constants, paths in files_by_constants(table):
        if constants.get("topic", topic) == topic:
            yield from _scan_files(table, topic, by_key, inside, constants, paths, with_rest)


def files_by_constants(table: LakeTable) -> list[tuple[Mapping[str, Any], list[str]]]:
    """(columns that have one value in all rows of some files and are not in them, these files)."""
    if isinstance(table, DeltaLakeTable) and table.partition_columns():
        return list(table.files_by_partition())
    paths = table.data_files()
    return [({}, paths)] if paths else []


def _scan_files(
    table: LakeTable,
    topic: str,
    by_key: bool,
    inside: tuple[str, ...],
    constants: Mapping[str, Any],
    paths: list[str],
    with_rest: bool,
) -> Iterator[pa.RecordBatch]:
    from pyarrow import compute, dataset

    def column(name: str) -> Any:
        # Delta keeps values of partition columns in the log: the files lack them.
        is_constant = not inside and name in constants
        return compute.scalar(constants[name]) if is_constant else dataset.field(*inside, name)

    schema = table.arrow_schema()
    names = ("partition", "offset", *(("key",) if by_key else ()))
    files = dataset.dataset(
        paths, schema, format="parquet", filesystem=Folder(table.location, table.storage).filesystem
    )
    wanted = column("topic") == compute.scalar(topic)
    if inside and schema.field(META).type.get_field_index(PART) >= 0:
        # All rows of a record are in one file, so counting the first is enough.
        wanted = wanted & (dataset.field(META, PART) == 0)
    if with_rest:
        wanted = wanted & dataset.field(REST).is_valid()
    columns: Mapping[str, Any] = {name: column(name) for name in names}
    yield from files.to_batches(columns=columns, filter=wanted, use_threads=False)


def offset_columns(table: LakeTable) -> tuple[str, ...]:
    """The struct column that says which record each row came from, `_meta`; empty: columns of the
    table do. TableError if neither does."""
    import pyarrow as pa

    schema = table.arrow_schema()
    if META in schema.names:
        kind = schema.field(META).type
        if pa.types.is_struct(kind) and {each.name for each in kind} >= _OFFSET_FIELDS:
            return (META,)
    names = set(schema.names)
    if isinstance(table, DeltaLakeTable):
        names |= set(table.partition_columns())
    if META not in names and names >= _OFFSET_FIELDS:
        return ()
    raise TableError(
        f"table {table.location} does not say which records its rows came from: a query that "
        f"made it (--sql) has to keep {META}"
    )


def _count(keys: Keys, column: pa.Array) -> None:
    for each in column.value_counts().to_pylist():
        keys[each["values"]] += each["counts"]


def all_complete(found: Sequence[PartitionAudit]) -> bool:
    """Whether no partition has missing, duplicated or unknown records."""
    return all(each.complete for each in found)
