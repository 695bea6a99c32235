"""`lakemq.spark(session)`: topics as DataFrames, without repeating how the broker is reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lakemq.spark_plugin import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Value = str | int | bool


def spark(
    session: SparkSession,
    bootstrap: str = "127.0.0.1:9700",
    options: Mapping[str, str] | None = None,
) -> SparkTopics:
    """Topics of a broker in a Spark session. `options` for all reads and writes: how to reach it
    (`tls.ca`, `token`, ...), as the Spark source has them."""
    register(session)
    return SparkTopics(session, {"bootstrap": bootstrap, **(options or {})})


class SparkTopics:
    """Made by `lakemq.spark`. More options of a call are those of the source or sink."""

    def __init__(self, session: SparkSession, options: Mapping[str, str]) -> None:
        self._session = session
        self._options = dict(options)

    def read(self, topic: str, **options: Value) -> DataFrame:
        """The records of a topic (`a,b`: of several) that are there now."""
        reader = self._session.read.format("lakemq").options(**self._options)
        return reader.options(subscribe=topic, **_texts(options)).load()

    def stream(self, topic: str, **options: Value) -> DataFrame:
        """The records of a topic as they come; from now on unless `startingOffsets="earliest"`."""
        reader = self._session.readStream.format("lakemq").options(**self._options)
        return reader.options(subscribe=topic, **_texts(options)).load()

    def write(self, rows: DataFrame, topic: str, **options: Value) -> None:
        """Append the rows, each once; `createTopic=3` creates a topic that is missing."""
        writer = rows.write.format("lakemq").options(**self._options)
        writer.options(topic=topic, **_texts(options)).mode("append").save()

    def write_stream(
        self, rows: DataFrame, topic: str, checkpoint: str, **options: Value
    ) -> StreamingQuery:
        """Append the rows of a stream, each once; the query goes on where `checkpoint` (a folder)
        says."""
        writer = rows.writeStream.format("lakemq").options(**self._options)
        more = {"checkpointLocation": checkpoint, "topic": topic, **_texts(options)}
        return writer.options(**more).start()


def _texts(options: Mapping[str, Value]) -> dict[str, str]:
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }
