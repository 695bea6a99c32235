"""The DataFrame engine: a query over the decoded records of one commit, its result as files.

The fused tasks decode a commit's records first and stage them as Parquet in the attempt's folder,
dead letters apart. The query reads the staged files as the view `records`, as often as it likes and
only the columns that it needs. Executors write its result as data files; only what they wrote
comes to the driver, which commits it with the offsets, like any other commit.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lakemq.spark_plugin.errors import ExportError, OptionError
from lakemq.spark_plugin.export.job.spark_tasks import error_of_task
from lakemq.spark_plugin.export.job.write_task import schema_from_text, schema_to_text
from lakemq.spark_plugin.export.tables.file_writer import PartitionedWriter
from lakemq.spark_plugin.export.tables.files import NO_OPTIONS, Folder
from lakemq.spark_plugin.export.tables.partitioning import parse_partition_by
from lakemq.spark_plugin.export.tables.storage import file_system
from lakemq.spark_plugin.export.tables.table import WrittenFile

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

VIEW: Final = "records"
_FILES: Final = (
    "path string, rows bigint, size_bytes bigint, footer binary, partition_values array<string>"
)


class SqlQuery:
    """One query of one export."""

    def __init__(
        self,
        spark: SparkSession,
        query: str,
        records: pa.Schema,
        storage: Mapping[str, str] = NO_OPTIONS,
    ) -> None:
        """`records`: columns of the view. `storage`: options of the tables' object store.
        OptionError if the query can't be understood."""
        from pyspark.sql.pandas.types import from_arrow_schema

        self._spark = spark
        self._query = query
        self._storage = dict(storage)
        self._view_schema = from_arrow_schema(records, prefer_timestamp_ntz=False)
        self.schema = self._result_schema(self._frame([], Folder("")))
        """Columns of the result."""

    def _result_schema(self, frame: DataFrame) -> pa.Schema:
        import pyarrow as pa
        from pyspark.errors import AnalysisException, ParseException
        from pyspark.sql.pandas.types import to_arrow_schema

        try:
            columns = frame.columns  # over Spark Connect only now a query is looked at
        except (AnalysisException, ParseException) as error:
            raise OptionError(f"--sql: {_first_line(error)}") from None
        names = [name.lower() for name in columns]
        for name in columns:
            if names.count(name.lower()) > 1:
                raise OptionError(f"--sql: its result has two columns {name}")
        try:
            found = to_arrow_schema(frame.schema, timezone="UTC")
        except Exception as error:  # pyspark raises what it likes for types without a match
            raise OptionError(f"--sql: {_first_line(error)}") from None
        for field in found:
            if pa.types.is_null(field.type):
                raise OptionError(f"--sql: column {field.name} has no type; cast it to one")
        return pa.schema([_plain(field) for field in found])

    def _frame(self, paths: Sequence[str], folder: Folder) -> DataFrame:
        """The query over the files. OptionError, in Spark's words, if it is wrong."""
        from pyspark.errors import AnalysisException, ParseException

        if not paths:
            view = self._spark.createDataFrame([], self._view_schema)
        elif folder.local:
            files = [f"file://{folder.full_path(path)}" for path in paths]
            view = self._spark.read.schema(self._view_schema).parquet(*files)
        else:  # only pyarrow knows the object store, unless there are jars for it
            view = _read_by_arrow(
                self._spark,
                [folder.uri(path) for path in paths],
                self._view_schema,
                partial(read_staged, storage=self._storage),
            )
        view.createOrReplaceTempView(VIEW)
        try:
            return self._spark.sql(self._query)
        except (AnalysisException, ParseException) as error:
            raise OptionError(f"--sql: {_first_line(error)}") from None

    def run(
        self,
        staged: Sequence[str],
        location: str,
        folder: str,
        table: pa.Schema,
        file_max_bytes: int,
        partition_by: str,
    ) -> list[WrittenFile]:
        """Write the query's result over the staged files into `folder` of `location`, with the
        columns of `table`; what was written."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        write = partial(
            write_result,
            location=location,
            folder=folder,
            schema=schema_to_text(table),
            file_max_bytes=file_max_bytes,
            partition_by=partition_by,
            storage=self._storage,
        )
        frame = self._frame(staged, Folder(location, self._storage))
        try:
            rows = frame.mapInArrow(write, _FILES).collect()
        except (PySparkException, Py4JError) as error:
            found = error_of_task(str(error))
            raise (
                ExportError(f"--sql: {_first_line(error)}")
                if str(found).startswith("the Spark job failed")
                else found
            ) from error
        return [
            WrittenFile(
                row.path, row.rows, row.size_bytes, bytes(row.footer), tuple(row.partition_values)
            )
            for row in rows
        ]


def write_result(
    batches: Iterator[pa.RecordBatch],
    *,
    location: str,
    folder: str,
    schema: str,
    file_max_bytes: int,
    partition_by: str,
    storage: Mapping[str, str] = NO_OPTIONS,
) -> Iterator[pa.RecordBatch]:
    """What an executor does with its part of the result. Yields one row for each file."""
    import pyarrow as pa

    # Spark may run a task twice at the same time: each run has files of its own.
    writer = PartitionedWriter(
        Folder(location, storage),
        folder,
        f"q-{uuid.uuid4().hex}",
        schema_from_text(schema),
        file_max_bytes,
        parse_partition_by(partition_by),
    )
    for batch in batches:
        if batch.num_rows:
            writer.write(pa.Table.from_batches([batch]))
    files = writer.close()
    columns: list[Any] = [
        pa.array([file.path for file in files], pa.string()),
        pa.array([file.rows for file in files], pa.int64()),
        pa.array([file.size_bytes for file in files], pa.int64()),
        pa.array([file.footer for file in files], pa.binary()),
        pa.array([list(file.partition_values) for file in files], pa.list_(pa.string())),
    ]
    names = ["path", "rows", "size_bytes", "footer", "partition_values"]
    yield pa.RecordBatch.from_arrays(columns, names=names)


def _read_by_arrow(spark: SparkSession, uris: Sequence[str], schema: Any, read: Any) -> DataFrame:
    return (
        spark.createDataFrame([(each,) for each in uris], "uri string")
        .repartition(len(uris))
        .mapInArrow(read, schema)
    )


def read_staged(
    batches: Iterator[pa.RecordBatch], storage: Mapping[str, str] = NO_OPTIONS
) -> Iterator[pa.RecordBatch]:
    """URIs of Parquet files -> their rows, in the executors."""
    from pyarrow import parquet

    for batch in batches:
        for uri in batch.column("uri").to_pylist():
            files, path = file_system(uri, storage)
            with files.open_input_file(path) as source:
                yield from parquet.ParquetFile(source).iter_batches(65_536)


def _plain(field: pa.Field) -> pa.Field:
    """A field that may be null, at any depth, with 32-bit lengths."""
    return field.with_type(_plain_type(field.type)).with_nullable(True).remove_metadata()


def _plain_type(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return pa.struct([_plain(each) for each in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", _plain_type(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    if pa.types.is_large_string(kind):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(kind) else kind


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[0][:500] if lines else type(error).__name__
