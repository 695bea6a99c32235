"""A union of a table and the journal as a Spark DataFrame: Spark reads the table's Parquet files
itself, and the journal through LakeMQ's source."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING

from lakemq.spark_plugin.access import Access
from lakemq.spark_plugin.errors import TableError
from lakemq.spark_plugin.export.decoding.column_types import META
from lakemq.spark_plugin.export.maintenance.audit import files_by_constants
from lakemq.spark_plugin.export.tables.table import LakeTable
from lakemq.spark_plugin.source.birth_reader import BirthsOf
from lakemq.spark_plugin.source.planning import OffsetRange
from lakemq.spark_plugin.union.rows import Values, rows_of_records

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def frame_of(
    spark: SparkSession,
    table: LakeTable,
    ranges: Sequence[OffsetRange],
    values: Values,
    schema: pa.Schema,
    whole: pa.Schema,
    bootstrap: str,
    options: Mapping[str, str],
    access: Access,
    topic: str,
) -> DataFrame:
    """`schema`: of the result; `whole`: with all columns of the table."""
    from pyspark.sql import functions

    place = "topic" if values.format == "raw" else f"{META}.topic"
    found = [
        each.where(functions.col(place) == topic).select(*schema.names)
        for each in _history(spark, table, whole)
    ]
    if ranges:
        tail = _journal(spark, ranges, values, whole, bootstrap, options, access)
        found.append(tail.select(*schema.names))
    if not found:
        from pyspark.sql.pandas.types import from_arrow_schema

        return spark.createDataFrame([], from_arrow_schema(schema))
    return reduce(lambda one, other: one.unionByName(other), found)


def _history(spark: SparkSession, table: LakeTable, whole: pa.Schema) -> Iterator[DataFrame]:
    """Frames of files that have the same values of columns that are not in them."""
    import pyarrow as pa
    from pyspark.sql import functions
    from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type

    if len(table.live_files()) != len(table.data_files()):
        raise TableError(
            f"rows of table {table.location} were deleted from its files: read it as Arrow, or "
            "rewrite these files"
        )
    scheme = table.location.partition("://")[0] if "://" in table.location else ""
    prefix = f"{scheme.replace('s3', 's3a', 1) if scheme == 's3' else scheme}://" if scheme else ""
    for constants, paths in files_by_constants(table):
        inside = pa.schema([each for each in whole if each.name not in constants])
        frame = spark.read.schema(from_arrow_schema(inside)).parquet(
            *(f"{prefix}{each}" for each in paths)
        )
        for name, value in constants.items():
            if name in whole.names:
                kind = from_arrow_type(whole.field(name).type)
                frame = frame.withColumn(name, functions.lit(value).cast(kind))
        yield frame


def _journal(
    spark: SparkSession,
    ranges: Sequence[OffsetRange],
    values: Values,
    whole: pa.Schema,
    bootstrap: str,
    options: Mapping[str, str],
    access: Access,
) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema

    from lakemq.spark_plugin import register

    register(spark)
    topic = ranges[0].topic
    places = {
        "startingOffsets": {str(each.partition): each.start for each in ranges},
        "endingOffsets": {str(each.partition): each.end for each in ranges},
    }
    assigned = json.dumps({topic: [each.partition for each in ranges]})
    bounds = {name: json.dumps({topic: each}) for name, each in places.items()}
    records = (
        spark.read.format("lakemq")
        .options(**{**options, **bounds, "bootstrap": bootstrap, "assign": assigned})
        .option("includeHeaders", "true")
        .load()
    )
    if values.format == "raw":
        return records
    # mapInArrow's function is pickled, with Arrow's own types in it.
    to_rows = partial(_rows, values, whole, BirthsOf(ranges, access, bootstrap))
    return records.mapInArrow(to_rows, from_arrow_schema(whole))


def _rows(
    values: Values, whole: pa.Schema, births: BirthsOf, records: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    return rows_of_records(values, whole, records, births)
