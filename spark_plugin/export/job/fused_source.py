"""The fused export as a Spark data source: its "rows" are the files that its tasks wrote.

A data source, and not an RDD, so that it also runs over Spark Connect.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from lakemq.plugins.native import sdk
from lakemq.plugins.native.sdk import LakeMQError
from lakemq.spark_plugin import errors
from lakemq.spark_plugin.access import Access
from lakemq.spark_plugin.errors import ExportError, SparkPluginError
from lakemq.spark_plugin.export.job import write_task
from lakemq.spark_plugin.export.job.task_results import TaskResult, from_bytes, to_bytes
from lakemq.spark_plugin.export.job.write_task import WriteTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEMA = "result binary"
"""Wire form of a `TaskResult`."""

_ACCESS = "accessToken"
"""Option that holds secrets; Spark hides the values of options whose name says token."""


class FusedSource(DataSource):
    """Its "rows" are the results of the tasks in option `tasks`."""

    @classmethod
    def name(cls) -> str:
        """The name of the format; it is of use to `run_tasks` alone."""
        return "lakemq_export"

    def schema(self) -> str:
        """One binary column: a `TaskResult` in its wire form."""
        return _SCHEMA

    def reader(self, schema: StructType) -> FusedReader:
        """The reader of the tasks in option `tasks` (JSON)."""
        return FusedReader(self.options["tasks"], self.options.get(_ACCESS, ""))


class FusedReader(DataSourceReader):
    """Runs one task for each partition, in the executors."""

    def __init__(self, tasks: str, access: str) -> None:
        self._tasks = tasks
        self._access = access

    def partitions(self) -> list[InputPartition]:
        """One Spark partition for each task, so each task is tried again on its own."""
        return [InputPartition(task) for task in json.loads(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Run one task in an executor; yields its results in their wire form, one to a row."""
        for result in write_task.run(
            WriteTask.from_json(partition.value), Access.from_json(self._access)
        ):
            yield (to_bytes(result),)


def run_tasks(spark: SparkSession, access: Access, tasks: Sequence[WriteTask]) -> list[TaskResult]:
    """Run the tasks in the executors; what the winning attempt of each wrote.

    What a task raised for a reason of ours is raised here as it was; Spark wraps it in Java.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    spark.dataSource.register(FusedSource)
    text = json.dumps([task.to_json() for task in tasks])
    try:
        # `collect` returns the rows of the winning attempt of each task only; files of the others
        # become strays.
        reader = spark.read.format(FusedSource.name()).option("tasks", text)
        rows = reader.option(_ACCESS, access.to_json()).load().collect()
    except (PySparkException, Py4JError) as error:
        raise error_of_task(str(error)) from error
    return [from_bytes(bytes(row.result)) for row in rows]


_RAISED = re.compile(r"^(?:\w+\.)+(\w+): (.+)$", re.MULTILINE)


def error_of_task(text: str) -> Exception:
    """The error that a task raised, found in what Spark says of it."""
    # The last match is the innermost one: Spark quotes the Python traceback behind its own errors.
    for name, message in reversed(_RAISED.findall(text)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, SparkPluginError):
            return kind(message)
        if name in sdk.__all__ and issubclass(getattr(sdk, name), LakeMQError):
            return ExportError(message)
    return ExportError(f"the Spark job failed: {text.strip()[:2000]}")
