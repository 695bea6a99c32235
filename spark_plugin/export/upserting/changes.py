"""The records of one commit -> what they change in a table that has one row for each key.

Records apply in the order of their partitions and offsets: the last value of a key is its row, and
a tombstone (a record without a value) deletes the rows whose last record had the tombstone's key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lakemq.spark_plugin.export.decoding.column_types import META
from lakemq.spark_plugin.export.decoding.decoder import BadRow, Decoded
from lakemq.spark_plugin.export.decoding.rows import meta_column
from lakemq.spark_plugin.export.upserting.key import Key

if TYPE_CHECKING:
    import pyarrow as pa

DELETED: Final = "_lakemq_deleted"
"""Column of staged rows: true for a tombstone, which has `_meta` and nulls."""


@dataclass(frozen=True)
class Changes:
    """What one commit does. Keys are encoded as by `encode`."""

    rows: pa.Table
    """New rows, one for each key."""
    written: pa.Array
    """Keys that had a value, each once: their rows in the table are replaced."""
    deleted: pa.Array
    """Record keys of tombstones, each once: rows that such records wrote are deleted."""


def staged_schema(schema: pa.Schema) -> pa.Schema:
    """Columns of staged rows, for a table with the columns of `schema`."""
    import pyarrow as pa

    return schema.append(pa.field(DELETED, pa.bool_()))


def without_keyless(decoded: Decoded, batch: pa.RecordBatch, key: Key) -> Decoded:
    """Decoded rows of a batch without those that lack a key, which are bad."""
    import pyarrow as pa
    from pyarrow import compute

    absent = [(name, decoded.columns.column(name).is_null()) for name in key]
    if not key:
        absent = [("", batch.column("key").take(decoded.rows).is_null())]
    bad = dict[int, str]()
    for name, nulls in absent:
        what = f"column {name} of --key is null" if name else "the record has no key"
        for row in compute.indices_nonzero(nulls).to_pylist():
            bad.setdefault(row, what)
    if not bad:
        return decoded
    keep = pa.array([row not in bad for row in range(len(decoded.rows))])
    numbers = decoded.rows.to_pylist()
    found = [BadRow(numbers[row], "no_key", what) for row, what in sorted(bad.items())]
    return Decoded(decoded.rows.filter(keep), decoded.columns.filter(keep), [*decoded.bad, *found])


def tombstone_rows(batch: pa.RecordBatch) -> tuple[pa.Table, list[BadRow]]:
    """Staged rows of tombstones; those without a key, which name nothing, are bad."""
    import pyarrow as pa
    from pyarrow import compute

    keyless = batch.column("key").is_null()
    bad = [
        BadRow(row, "no_key", "the record has neither key nor value")
        for row in compute.indices_nonzero(keyless).to_pylist()
    ]
    good = batch.filter(compute.invert(keyless))
    marks = pa.repeat(pa.scalar(True), good.num_rows)
    return pa.table({META: meta_column(good), DELETED: marks}), bad


def reduce(staged: pa.Table, key: Key) -> Changes:
    """What the staged rows of a commit, in any order, do together."""
    import pyarrow as pa
    from pyarrow import compute

    meta = staged.column(META).combine_chunks()
    places = pa.table({"partition": meta.field("partition"), "offset": meta.field("offset")})
    order = compute.sort_indices(places, [("partition", "ascending"), ("offset", "ascending")])
    staged = staged.take(order)
    is_deleted = compute.fill_null(staged.column(DELETED), False)
    numbers = pa.array(range(staged.num_rows), pa.int64())
    rows = staged.filter(compute.invert(is_deleted)).drop_columns([DELETED])
    rows_at = numbers.filter(compute.invert(is_deleted).combine_chunks())
    tombstones = staged.filter(is_deleted)
    tombs_at = numbers.filter(is_deleted.combine_chunks())
    written, last = _last_of_each(encode(rows, key), rows_at)
    deleted, deleted_at = _last_of_each(encode(tombstones, ()), tombs_at)
    keep = compute.is_in(rows_at, last)
    rows, rows_at = rows.filter(keep), rows_at.filter(keep)
    # A tombstone deletes what was written before it, not what comes later.
    found = compute.index_in(encode(rows, ()), deleted)
    killed = compute.greater(deleted_at.take(found), rows_at)
    return Changes(rows.filter(compute.invert(compute.fill_null(killed, False))), written, deleted)


def _last_of_each(keys: pa.Array, places: pa.Array) -> tuple[pa.Array, pa.Array]:
    """(each key once, its greatest place)."""
    import pyarrow as pa

    found = pa.table({"key": keys, "place": places}).group_by("key").aggregate([("place", "max")])
    return found.column("key").combine_chunks(), found.column("place_max").combine_chunks()


def encode(rows: pa.Table, key: Key) -> pa.Array:
    """The key of each row as bytes; null if a part of it is null."""
    import pyarrow as pa
    from pyarrow import compute

    if not key:
        return compute.struct_field(rows.column(META), "key").combine_chunks()
    parts: list[pa.Array] = []
    for name in key:
        column = rows.column(name).combine_chunks()
        if not pa.types.is_binary(column.type):
            column = column.cast(pa.string()).cast(pa.binary())
        if len(key) == 1:
            return column
        # With its length before it, no two keys of several columns look the same.
        size = compute.binary_length(column).cast(pa.string()).cast(pa.binary())
        parts += [compute.binary_join_element_wise(size, column, b":")]
    return compute.binary_join_element_wise(*parts, b"")


def stays(rows: pa.Table, key: Key, changes: Changes) -> pa.Array:
    """Of rows of the table (key columns and `_meta`), which the changes leave as they are."""
    from pyarrow import compute

    replaced = compute.is_in(encode(rows, key), changes.written)
    deleted = compute.is_in(encode(rows, ()), changes.deleted)
    return compute.invert(compute.or_(replaced, deleted))


def columns_read(key: Key) -> Sequence[str]:
    """Columns that `stays` needs."""
    return (*key, META)
