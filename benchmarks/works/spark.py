"""Spark's source and exports, and the whole road from a device to a table."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.harness.declare import Goal, Missing, Running, Sample, Side, Work
from benchmarks.harness.processes import end
from benchmarks.harness.statistics import Latencies
from benchmarks.load import crew
from benchmarks.load.packets import Load
from benchmarks.sides import lakemq, spark
from benchmarks.works.native import load

DEVICES = Load(publishers=20, names=20, qos=1, rate=200, subscribers=1, subscribe_qos=1)
FIRST_MAX_S = 90.0
SETTLED_S = 5.0

LAKEMQ = Side("LakeMQ", "", spark.from_lakemq)
KAFKA = Side("Spark-Kafka", "Kafka as shipped, Spark's own connector", spark.from_kafka)
PARQUET = Side("Parquet files", "`spark.read.parquet`, Snappy: the limit", spark.from_parquet)


@contextlib.contextmanager
def exported(folder: Path) -> Iterator[Running]:
    """A node, and `lakemq export --trigger 1s` of its MQTT topic into a Delta table."""
    if sys.modules.get("pyspark") is None:
        try:
            import pyspark  # noqa: F401  only asked for
        except ImportError:
            raise Missing("there is no Spark (pip install 'lakemq[spark]')") from None
    with lakemq.node(folder, "native") as node:
        yield Running(node.pids, node.port, f"{node.address} {folder / 'table'}")


def road(side: Running, seconds: float) -> Sample:
    """`first_s` from the start of the export to the first committed row; latencies from a publish
    to its row in a commit, of what was published later than 5 s after that."""
    address, table = side.address.split(" ", 1)
    log = Path(table) / "_delta_log"
    crew.paced(side, DEVICES, 1)  # makes the topic
    command = [
        sys.executable,
        "-m",
        "lakemq",
        "export",
        "--bootstrap",
        address,
        "--topic",
        "mqtt",
        "--to",
        "delta",
        "--path",
        table,
        "--trigger",
        "1s",
    ]
    began_s = time.time_ns() / 1e9
    with (Path(table).parent / "export.log").open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + FIRST_MAX_S
        while not (first := rows_of(log)) and time.monotonic() < deadline:
            if process.poll() is not None:
                raise RuntimeError(f"the export ended with {process.returncode}")
            time.sleep(0.05)
        if not first:
            raise RuntimeError(f"the export committed nothing in {FIRST_MAX_S:.0f} s")
        crew.paced(side, DEVICES, SETTLED_S)
        settled_s = time.time_ns() / 1e9
        crew.paced(side, DEVICES, seconds)
        time.sleep(SETTLED_S)
        found = rows_of(log)
    finally:
        end(process)
    took = Latencies()
    late = [commit - sent for commit, times in found for sent in times if sent > settled_s]
    took.record(late)
    return {"first_s": first[0][0] - began_s, "rate": len(late) / seconds, **took.figures()}


def rows_of(log: Path) -> list[tuple[float, list[float]]]:
    """(time of a commit, times of its rows), in seconds."""
    from pyarrow import parquet

    found = []
    for path in sorted(log.glob("*.json")) if log.exists() else ():
        added = [json.loads(each).get("add") for each in path.read_text().splitlines() if each]
        times: list[float] = []
        for each in filter(None, added):
            column = parquet.read_table(log.parent / each["path"], columns=["timestamp"])
            times += [value.timestamp() for value in column["timestamp"].to_pylist()]
        if times:
            found.append((path.stat().st_mtime, times))
    return found


EXPORTS = ("delta", "iceberg", "parquet")
WORKS = (
    Work(
        "spark-read",
        "spark",
        "`spark.read` of 2 million rows with values of 50 to 200 bytes into `noop`, local[2]. "
        "Rows; "
        "CPU of Spark and the broker.",
        (LAKEMQ, KAFKA, PARQUET),
        partial(load, "batch"),
        (Goal("rate", 3_000_000), Goal("rate", 1, "Spark-Kafka")),
        seconds=2,
    ),
    Work(
        "spark-stream",
        "spark",
        "`readStream` of the same rows with `availableNow` in 4 micro-batches.",
        (LAKEMQ, KAFKA),
        partial(load, "stream"),
        seconds=6,
        full=True,
    ),
    Work(
        "spark-small",
        "spark",
        "Micro-batches of 1,000 rows, one after the other. Latency of a micro-batch.",
        (LAKEMQ, KAFKA),
        partial(load, "small"),
        (Goal("p50_ms", 1, "Spark-Kafka"),),
        seconds=8,
        full=True,
    ),
    *(
        Work(
            f"export-{kind}",
            "spark",
            f"`lakemq export` of the same rows into {kind.capitalize()}. Rows.",
            (LAKEMQ,),
            partial(load, kind),
            seconds=2,
            full=True,
        )
        for kind in EXPORTS
    ),
    Work(
        "export-json",
        "spark",
        "`lakemq export --format json` with 6 fields into Delta. Rows.",
        (Side("LakeMQ", "", partial(spark.from_lakemq, json_values=True)),),
        partial(load, "json"),
        seconds=4,
        full=True,
    ),
    Work(
        "device-to-delta",
        "spark",
        "QoS 1 publishes at 200/s, `lakemq export --trigger 1s`: from a publish to its row in a "
        "committed Delta version; first: from the command to the first row.",
        (Side("LakeMQ", "", exported),),
        road,
        (Goal("p99_ms", 1700), Goal("first_s", 8)),
        seconds=10,
        full=True,
        fresh=True,
    ),
)
