"""A streaming query from a topic into a topic that is killed (SIGKILL) at a named point of a batch.

    python -m tests.support.spark.killed_sink NATIVE SOURCE TOPIC CHECKPOINT POINT BATCH

POINT is one of `POINTS`. The query takes what is there in batches of 60 records, and ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from pyspark import TaskContext

from lakemq.spark_plugin.sink.sink import StreamWriter
from lakemq.spark_plugin.source.source import LakeMQSource

POINTS = ("none", "in_task", "before_commit", "after_commit", "retry", "twin")
_JVM = "LAKEMQ_TEST_JVM"


def kill_driver() -> None:
    """The JVM: Spark's driver and, with a local master, its executors."""
    os.kill(int(os.environ[_JVM]), signal.SIGKILL)
    signal.pause()


class KillingWriter(StreamWriter):
    """The sink with a trap."""

    point = "none"
    batch = -1

    def _here(self, point: str, batch_id: int) -> bool:
        return self.point == point and self.batch == batch_id

    def write(self, iterator):
        context = TaskContext.get()
        batch_id = int(context.getLocalProperty("streaming.sql.batchId"))
        rows = list(iterator)
        first = context.partitionId() == 0 and context.attemptNumber() == 0
        if first and self._here("twin", batch_id):
            self._stage_as_loser(rows, batch_id)
        answer = super().write(iter(rows))
        if first and self._here("in_task", batch_id):
            kill_driver()
        if first and self._here("retry", batch_id):
            raise RuntimeError("this attempt staged everything, and is lost")
        return answer

    def _stage_as_loser(self, rows, batch_id: int) -> None:
        """What a second, speculative run of the task does whose answer comes too late."""
        from lakemq.spark_plugin.source.broker_reader import client_of

        staging = client_of(self.options.bootstrap).staging
        with staging.writer(self._session, batch_id, 0, 1_000_000) as writer:
            for batch in rows:
                writer.send_arrow(self.options.topic, batch)
            writer.finish()

    def commit(self, messages, batchId):
        if self._here("before_commit", batchId):
            kill_driver()
        super().commit(messages, batchId)
        if self._here("after_commit", batchId):
            kill_driver()


class KillingSource(LakeMQSource):
    def streamWriter(self, schema, overwrite):
        options = dict(self.options)
        KillingWriter.point, batch = options.pop("queryname").split(":")
        KillingWriter.batch = int(batch)
        self.options.pop("queryname")
        writer = super().streamWriter(schema, overwrite)
        writer.__class__ = KillingWriter
        writer.point, writer.batch = KillingWriter.point, KillingWriter.batch
        return writer


def main(native: str, source: str, topic: str, checkpoint: str, point: str, batch: str) -> None:
    from lakemq.spark_plugin.session import open_session

    # local[2,4]: a task may fail three times.
    spark = open_session("killed sink", "local[2,4]")
    gateway_pid = spark._jvm.ProcessHandle.current().pid()
    os.environ[_JVM] = str(gateway_pid)
    spark.sparkContext.environment[_JVM] = str(gateway_pid)
    spark.dataSource.register(KillingSource)
    query = (
        spark.readStream.format("lakemq")
        .option("bootstrap", native)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "60")
        .load()
        .select("key", "value")
        .writeStream.format("lakemq")
        .option("bootstrap", native)
        .option("topic", topic)
        .option("queryName", f"{point}:{batch}")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", __name__, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
