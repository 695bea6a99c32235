"""One side of `benchmarks.spark_kafka`: how fast this Python's Spark reads a topic into `noop`.

A program of its own, so that it also runs under another Spark version; it needs pyspark and psutil.
Takes its `Job` as JSON on standard input and prints its figures as JSON in the last line.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import psutil
import pyspark
from pyspark.sql import DataFrame, SparkSession

SMALL_ROWS = 1000
SMALL_BATCHES = 40
SMALL_MAX_S = 90
BATCHES = 4


class Job(NamedTuple):
    format: str
    options: dict[str, str]
    """Of reading all of the topic."""
    records: int
    repeats: int
    broker_pid: int
    parquet: str
    """Folder with the records; written by reading the topic if it is not there, else read beside
    it; with `load` it is written to the topic first."""
    load: dict[str, str]
    """Options of Spark's sink that fills the topic; none: it is full."""
    conf: dict[str, str]


def cpu_s(broker_pid: int) -> tuple[float, float]:
    """CPU seconds so far of Spark (Python, JVM and workers), and of the broker."""
    spark = 0.0
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            spark += times.user + times.system if process.pid != broker_pid else 0.0
    times = psutil.Process(broker_pid).cpu_times()
    return spark, times.user + times.system


def figure(job: Job, run: Callable[[], object]) -> dict[str, float]:
    """Rows/s of the best run, and CPU seconds per million rows (the median run's), after two runs
    to warm up."""
    run()
    run()
    took, sparks, brokers = [], [], []
    for _ in range(job.repeats):
        spark, broker = cpu_s(job.broker_pid)
        started = time.perf_counter()
        run()
        took.append(time.perf_counter() - started)
        spark_then, broker_then = cpu_s(job.broker_pid)
        sparks.append((spark_then - spark) / job.records * 1e6)
        brokers.append((broker_then - broker) / job.records * 1e6)
    return {
        "rows_s": job.records / min(took),
        "spark_cpu_s": statistics.median(sparks),
        "broker_cpu_s": statistics.median(brokers),
    }


def noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def stream(spark: SparkSession, job: Job, rows: int) -> Any:
    reader = spark.readStream.format(job.format).options(**job.options)
    return reader.option("maxOffsetsPerTrigger", rows).load().writeStream.format("noop")


def available_now(spark: SparkSession, job: Job) -> None:
    """The topic as a stream, in a few large micro-batches."""
    with tempfile.TemporaryDirectory() as folder:
        started = stream(spark, job, -(-job.records // BATCHES)).option(
            "checkpointLocation", folder
        )
        query = started.trigger(availableNow=True).start()
        query.awaitTermination()
        rows = sum(each["numInputRows"] for each in query.recentProgress)
        if rows != job.records:
            raise SystemExit(f"the stream read {rows} of {job.records} rows")


def small(spark: SparkSession, job: Job, checkpoint: str) -> Any:
    """A query of the topic in micro-batches of `SMALL_ROWS`."""
    started = stream(spark, job, SMALL_ROWS).option("checkpointLocation", checkpoint)
    return started.start()


def small_ms(start: Callable[[str], Any]) -> float:
    """Median time of small micro-batches, one after the other, of the query that `start` begins
    with a checkpoint folder; the first ones warm up."""
    with tempfile.TemporaryDirectory() as folder:
        query = start(folder)
        give_up_s = time.monotonic() + SMALL_MAX_S
        while len(query.recentProgress) < SMALL_BATCHES and time.monotonic() < give_up_s:
            time.sleep(0.2)
        query.stop()
        done = [each["durationMs"]["triggerExecution"] for each in query.recentProgress]
    return statistics.median(done[len(done) // 4 :])


def session(job: Job) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("spark-reads")
    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "ERROR",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        **job.conf,
    }
    for key, value in conf.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def measure(spark: SparkSession, job: Job) -> dict[str, Any]:
    if job.load:
        spark.read.parquet(job.parquet).write.format(job.format).options(**job.load).save()
    topic = spark.read.format(job.format).options(**job.options)
    counted = topic.load().count()
    if counted != job.records:
        raise SystemExit(f"the topic holds {counted} of {job.records} rows")
    if not job.load:
        topic.load().select("key", "value", "partition").write.parquet(job.parquet)
    return {
        "batch": figure(job, lambda: noop(topic.load())),
        "stream": figure(job, lambda: available_now(spark, job)),
        "parquet": figure(job, lambda: noop(spark.read.parquet(job.parquet))),
        "small_ms": small_ms(lambda folder: small(spark, job, folder)),
        "spark": pyspark.__version__,
    }


def main() -> None:
    job = Job(**json.load(sys.stdin))
    spark = session(job)
    found = measure(spark, job)
    spark.stop()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
