"""The Spark data source `lakemq`: `spark.read.format("lakemq")` and `spark.readStream`."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from lakemq.spark_plugin.plain_errors import plainly
from lakemq.spark_plugin.sink.options import parse_sink_options
from lakemq.spark_plugin.sink.sink import BatchWriter, StreamWriter, batch_writer
from lakemq.spark_plugin.source.options import ReadOptions, parse_options
from lakemq.spark_plugin.source.reader import BatchReader, FilteringReader, StreamReader
from lakemq.spark_plugin.source.schema import columns_of, spark_schema


class LakeMQSource(DataSource):
    """Options are described in `docs/lakehouse.md`."""

    @classmethod
    def name(cls) -> str:
        """The name of the format: `lakemq`."""
        return "lakemq"

    def _options(self, *, streaming: bool) -> ReadOptions:
        return parse_options(dict(self.options), streaming=streaming)

    @plainly
    def schema(self) -> StructType:
        """The columns that the options ask for. Raises OptionError."""
        # Spark does not say here whether the query streams; the columns are the same.
        relevant = {
            name: value
            for name, value in self.options.items()
            if name.lower() not in ("startingoffsets", "endingoffsets")
        }
        return spark_schema(parse_options(relevant, streaming=False).columns)

    @plainly
    def reader(self, schema: StructType) -> BatchReader:
        """For `spark.read`; takes filters with option `pushdown`."""
        options = self._options(streaming=False)
        kind = FilteringReader if options.pushdown else BatchReader
        return kind(options, columns_of(schema))

    @plainly
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """For `df.write`. OptionError for mode overwrite."""
        options = parse_sink_options(dict(self.options), streaming=False)
        return batch_writer(options, schema, overwrite)

    @plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """For `df.writeStream`; rows are appended, whatever the output mode."""
        return StreamWriter(parse_sink_options(dict(self.options), streaming=True), schema)

    @plainly
    def streamReader(self, schema: StructType) -> StreamReader:
        """For `spark.readStream`."""
        return StreamReader(self._options(streaming=True), columns_of(schema))
