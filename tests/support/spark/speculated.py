"""An export, or a streaming query into a topic, whose tasks Spark runs twice at the same time.

    python -m tests.support.spark.speculated MASTER MARKS export SETTINGS-JSON
    python -m tests.support.spark.speculated MASTER MARKS sink NATIVE SOURCE TOPIC CHECKPOINT

The first attempt of the task of partition 1 does all that it has to do and then waits, so that
Spark starts a second one beside it. Every attempt leaves files in the folder MARKS:
`<job>-<partition>-<attempt>.began` and `.done`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession

from lakemq.spark_plugin.access import Access
from lakemq.spark_plugin.export.job import run, write_task
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.export.job.spark_tasks import run_tasks
from lakemq.spark_plugin.export.job.task_results import TaskResult
from lakemq.spark_plugin.export.job.write_task import WriteTask
from lakemq.spark_plugin.export.tables.target import Target
from lakemq.spark_plugin.sink.sink import StreamWriter
from lakemq.spark_plugin.source.source import LakeMQSource

WAIT_S = 240
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
}


class Attempt:
    """One run of a task, as it leaves its marks."""

    def __init__(self, marks: str, job: str) -> None:
        context = TaskContext.get()
        assert context is not None
        self._name = f"{job}-{context.partitionId()}"
        self._number = context.attemptNumber()
        self._slow = context.partitionId() == 1 and self._number == 0
        self._marks = Path(marks)
        self._mark("began")

    def _mark(self, what: str, number: int | None = None) -> Path:
        path = self._marks / f"{self._name}-{self._number if number is None else number}.{what}"
        if number is None:
            path.touch()
        return path

    def done(self) -> None:
        """All is written; the slow attempt waits until another one of the task is here, too."""
        self._mark("done")
        deadline = time.monotonic() + WAIT_S
        while self._slow and not self._mark("done", 1).exists() and time.monotonic() < deadline:
            time.sleep(0.05)


def slow_run(task: WriteTask, access: Access) -> Iterator[TaskResult]:
    attempt = Attempt(marks_of(), f"at{task.offsets.start}")
    results = list(write_task.run(task, access))
    attempt.done()
    yield from results


class SlowWriter(StreamWriter):
    def write(self, iterator: Any) -> Any:
        context = TaskContext.get()
        assert context is not None
        batch = context.getLocalProperty("streaming.sql.batchId")
        attempt = Attempt(marks_of(), f"batch{batch}")
        answer = super().write(iterator)
        attempt.done()
        return answer


class SlowSource(LakeMQSource):
    def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:
        writer = super().streamWriter(schema, overwrite)
        writer.__class__ = SlowWriter
        return writer


def marks_of() -> str:
    return os.environ["LAKEMQ_TEST_MARKS"]


def open_spark(master: str, marks: str) -> SparkSession:
    os.environ["LAKEMQ_TEST_MARKS"] = marks
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).appName("speculated")
    for name, value in SPECULATION.items():
        builder = builder.config(name, value)
    root = str(Path(__file__).parents[3])
    builder = builder.config("spark.executorEnv.PYTHONPATH", root)
    return builder.config("spark.executorEnv.LAKEMQ_TEST_MARKS", marks).getOrCreate()


def export(spark: SparkSession, text: str) -> None:
    value = json.loads(text)
    value["target"] = Target(**value["target"])
    run.run_tasks = partial(run_tasks, run_task=slow_run)  # type: ignore[assignment]
    exporter = run.open_exporter(spark, ExportSettings(**value))
    exporter.start()
    while exporter.step():
        pass
    exporter.close()


def sink(spark: SparkSession, native: str, source: str, topic: str, checkpoint: str) -> None:
    spark.dataSource.register(SlowSource)
    stream = spark.readStream.format("lakemq").option("bootstrap", native)
    stream = stream.option("subscribe", source).option("startingOffsets", "earliest")
    values = stream.option("maxOffsetsPerTrigger", "600").load().select("value")
    writer = values.writeStream.format("lakemq").option("bootstrap", native)
    writer = writer.option("topic", topic).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


def main(master: str, marks: str, what: str, *arguments: str) -> None:
    spark = open_spark(master, marks)
    {"export": export, "sink": sink}[what](spark, *arguments)
    spark.stop()


if __name__ == "__main__":
    # Executors import the classes from here, and find none of `__main__`'s.
    from tests.support.spark import speculated

    speculated.main(*sys.argv[1:])
