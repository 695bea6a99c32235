"""Runs the tasks of the fused export in Spark's executors.

As an RDD, whose first job needs the least of Spark: no SQL session, no plan, and of Python
processes only those that run tasks. Spark Connect has no RDDs; there it is `mapInArrow`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from lakemq.plugins.native import sdk
from lakemq.plugins.native.sdk import LakeMQError
from lakemq.spark_plugin import errors
from lakemq.spark_plugin.access import Access
from lakemq.spark_plugin.errors import ExportError, SparkPluginError
from lakemq.spark_plugin.export.job import write_task
from lakemq.spark_plugin.export.job.task_results import TaskResult, from_bytes, to_bytes
from lakemq.spark_plugin.export.job.write_task import WriteTask
from lakemq.spark_plugin.session import context_of, session_of
from lakemq.spark_plugin.worker_process import SentToWorker, freeze_imports

if TYPE_CHECKING:
    import pyarrow as pa

    from lakemq.spark_plugin.session import Spark

_COLUMN: Final = "result"

RunTask = Callable[[WriteTask, Access], Iterator[TaskResult]]
"""What an executor does with one task. Travels there by its name."""


def run_tasks(
    spark: Spark,
    access: Access,
    tasks: Sequence[WriteTask],
    run_task: RunTask = write_task.run,
) -> list[TaskResult]:
    """Run the tasks in the executors; what the winning attempt of each wrote.

    What a task raised for a reason of ours is raised here as it was; Spark wraps it in Java.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    sent = _Sent([task.to_json() for task in tasks], access.to_json(), run_task)
    context, count = context_of(spark), len(tasks)
    try:
        # A partition for each task, so that each is tried again on its own. `collect` returns the
        # rows of the winning attempts only; files of the others become strays.
        if context is not None:
            numbers = context.parallelize(range(count), count)
            found = numbers.mapPartitions(partial(_results, sent=sent)).collect()
        else:
            rows = session_of(spark).range(0, count, 1, count)
            rows = rows.mapInArrow(partial(_result_rows, sent=sent), f"{_COLUMN} binary")
            found = [bytes(row[_COLUMN]) for row in rows.collect()]
    except (PySparkException, Py4JError) as error:
        raise error_of_task(str(error)) from error
    return [from_bytes(each) for each in found]


@dataclass
class _Sent(SentToWorker):
    """All that the executors need. It travels with the function, so that nothing that Spark shows
    has the secrets."""

    tasks: list[str]
    """JSON."""
    access: str = field(repr=False)
    """JSON, with secrets."""
    run_task: RunTask


def _results(numbers: Iterable[int], *, sent: _Sent) -> Iterator[bytes]:
    """In an executor: run the tasks of these numbers; results in their wire form."""
    access = Access.from_json(sent.access)
    for number in numbers:
        for result in sent.run_task(WriteTask.from_json(sent.tasks[number]), access):
            yield to_bytes(result)
    freeze_imports()


def _result_rows(batches: Iterator[pa.RecordBatch], *, sent: _Sent) -> Iterator[pa.RecordBatch]:
    """The same with Arrow: a row for each."""
    import pyarrow as pa

    for batch in batches:
        found = pa.array(_results(batch.column(0).to_pylist(), sent=sent), pa.binary())
        yield pa.RecordBatch.from_arrays([found], names=[_COLUMN])


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
