"""Reads and exports by the Spark of whatever Python runs this: a program of its own, since Spark's
Kafka connector may need another version than the project's.

Takes its `Job` as a JSON line on standard input, then a kind of load a line; answers each with a
JSON line: `count` rows in `elapsed_s`, or times of micro-batches. Needs pyspark alone; exports need
lakemq.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

SMALL_ROWS = 1000
SMALL_BATCHES = 24
SMALL_MAX_S = 60.0
BATCHES = 4
JSON_SCHEMA = "device string, time timestamp_ms, celsius double, ok boolean, note string, n bigint"
Answer = dict[str, Any]


class Job(NamedTuple):
    format: str
    options: dict[str, str]
    """Of reading all."""
    records: int
    conf: dict[str, str] = {}
    folder: str = ""
    """For tables that are exported."""


def noop(spark: SparkSession, job: Job) -> Answer:
    frame = spark.read.format(job.format).options(**job.options).load()
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return {"count": job.records, "elapsed_s": time.perf_counter() - began}


def streamed(spark: SparkSession, job: Job, rows: int) -> Any:
    reader = spark.readStream.format(job.format).options(**job.options)
    frame: DataFrame = reader.option("maxOffsetsPerTrigger", rows).load()
    return frame.writeStream.format("noop")


def available_now(spark: SparkSession, job: Job) -> Answer:
    """All as a stream, in a few large micro-batches."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        writer = streamed(spark, job, -(-job.records // BATCHES))
        query = writer.option("checkpointLocation", folder).trigger(availableNow=True).start()
        query.awaitTermination()
        rows = sum(each["numInputRows"] for each in query.recentProgress)
    if rows != job.records:
        raise SystemExit(f"the stream read {rows} of {job.records} rows")
    return {"count": rows, "elapsed_s": time.perf_counter() - began}


def small(spark: SparkSession, job: Job) -> Answer:
    """Times of small micro-batches, one after the other; the first quarter warms up."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        query = streamed(spark, job, SMALL_ROWS).option("checkpointLocation", folder).start()
        give_up = time.monotonic() + SMALL_MAX_S
        while len(query.recentProgress) < SMALL_BATCHES and time.monotonic() < give_up:
            time.sleep(0.1)
        query.stop()
        took = [each["durationMs"]["triggerExecution"] for each in query.recentProgress]
    elapsed = time.perf_counter() - began
    return {"count": len(took), "elapsed_s": elapsed, "batches_ms": took[len(took) // 4 :]}


def export(spark: SparkSession, job: Job, kind: str) -> Answer:
    """The whole topic into a new table: delta, iceberg, parquet, or `json` into Delta."""
    from lakemq.spark_plugin.export.job.run import open_exporter
    from lakemq.spark_plugin.export.job.settings import ExportSettings
    from tests.support.spark.lake_tables import target_in

    home = Path(job.folder) / kind
    shutil.rmtree(home, ignore_errors=True)
    target = target_in(home, "delta" if kind == "json" else kind)
    more: dict[str, Any] = {}
    if kind == "json":
        more = {"format": "json", "value_schema": JSON_SCHEMA}
    settings = ExportSettings(
        job.options["bootstrap"], job.options["subscribe"], target, "bench", **more
    )
    began = time.perf_counter()
    exporter = open_exporter(spark, settings)
    exporter.start()
    while exporter.step():
        pass
    exporter.close()
    return {"count": job.records, "elapsed_s": time.perf_counter() - began}


LOADS = {"batch": noop, "stream": available_now, "small": small}


def session(job: Job) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("bench")
    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        **job.conf,
    }
    for key, value in conf.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def main() -> None:
    job = Job(**json.loads(sys.stdin.readline()))
    spark = session(job)
    print(json.dumps({"ready": spark.version}), flush=True)
    for line in sys.stdin:
        kind = line.strip()
        load = LOADS.get(kind)
        found = load(spark, job) if load else export(spark, job, kind)
        print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
