"""How fast Spark reads a topic and lands it in a table; beside it, `spark.read.parquet`.

    python -m benchmarks.spark_lake [--records 4000000] [--repeats 3] [--only source,delta,...]

Starts a node of its own, produces records of 100 bytes (JSON: 6 fields, about 110 bytes) into 2
partitions, and prints the best of the repeats, after one run to warm up. local[2]; the broker runs
on the same cores.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import lakemq
from benchmarks.spark_reads import SMALL_ROWS, cpu_s, small_ms
from lakemq.spark_plugin.export.job.run import open_exporter
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.export.tables.target import Target
from lakemq.spark_plugin.session import open_session
from tests.support.node.node import NodeProcess
from tests.support.spark.lake_tables import target_in

BATCH = 8192
JSON_SCHEMA = "device string, time timestamp_ms, celsius double, ok boolean, note string, n bigint"


def produce(client: lakemq.SyncClient, topic: str, records: int, json: bool) -> None:
    """Fill a new topic with 2 partitions."""
    client.create_topic(topic, partitions=2)
    chance = random.Random(1)
    for first in range(0, records // 2, BATCH):
        numbers = range(first, min(records // 2, first + BATCH))
        if json:
            values = [
                b'{"device":"dev-%05d","time":%d,"celsius":%.2f,"ok":true,"note":"%s","n":%d}'
                % (n % 1000, 1_700_000_000_000 + n, n % 977 / 7, b"x" * 30, n)
                for n in numbers
            ]
        else:
            noise = chance.randbytes(75 * len(numbers)).hex().encode()
            values = [noise[100 * i : 100 * i + 100] for i in range(len(numbers))]
        keys = [b"dev-%05d" % (n % 1000) for n in numbers]
        times = [1_700_000_000_000 + n for n in numbers]
        for partition in range(2):
            client.send_batch(topic, lakemq.Columns(values, keys, None, times), partition=partition)


class Bench:
    """Runs and prints; `broker_pid`: whose CPU counts beside Spark's."""

    def __init__(self, broker_pid: int, repeats: int) -> None:
        self._broker_pid = broker_pid
        self._repeats = repeats

    def best(self, name: str, records: int, run: Callable[[], object]) -> None:
        """Warm up twice, then print the best of the repeats."""
        run()
        run()
        took_s, cpus = [], []
        for _ in range(self._repeats):
            before, started = cpu_s(self._broker_pid), time.perf_counter()
            run()
            took_s.append(time.perf_counter() - started)
            cpus.append(
                [
                    (b - a) / records * 1e6
                    for a, b in zip(before, cpu_s(self._broker_pid), strict=True)
                ]
            )
        spark, broker = (statistics.median(each) for each in zip(*cpus, strict=True))
        print(
            f"{name:<42} {records / min(took_s) / 1e6:6.2f} M rows/s   CPU s per M rows: Spark "
            f"{spark:.2f}, broker {broker:.2f}   ({', '.join(f'{each:.2f}' for each in took_s)} s)",
            flush=True,
        )


def export(spark, native: str, topic: str, target: Target, **settings: str) -> None:
    exporter = open_exporter(spark, ExportSettings(native, topic, target, "bench", **settings))
    exporter.start()
    while exporter.step():
        pass
    exporter.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="source,parquet-read,micro,delta,iceberg,parquet,json")
    arguments = parser.parse_args()
    chosen = arguments.only.split(",")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with NodeProcess(folder / "node") as node, lakemq.connect(node.native) as client:
            produce(client, "raw", arguments.records, json=False)
            if "json" in chosen:
                produce(client, "json", arguments.records // 4, json=True)
            print(
                f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, "
                f"{arguments.records:,} records",
                flush=True,
            )
            bench = Bench(node.pid, arguments.repeats)
            measure(bench, node.native, folder, chosen, arguments.records)
            print(f"load average {os.getloadavg()[0]:.1f}")


def measure(bench: Bench, native: str, folder: Path, chosen: list[str], records: int) -> None:
    spark = open_session("benchmark", "local[2]")
    topic = spark.read.format("lakemq").option("bootstrap", native).option("subscribe", "raw")

    def noop(frame) -> None:
        frame.write.format("noop").mode("overwrite").save()

    if "source" in chosen:
        bench.best("source -> noop", records, lambda: noop(topic.load()))
    if "parquet-read" in chosen:
        for codec in ("snappy", "uncompressed"):
            path = str(folder / codec)
            topic.load().write.option("compression", codec).parquet(path)
            bench.best(
                f"spark.read.parquet ({codec}) -> noop",
                records,
                lambda path=path: noop(spark.read.parquet(path)),
            )
    if "micro" in chosen:
        micro_batches(spark, native)
    for kind in ("delta", "iceberg", "parquet"):
        if kind in chosen:
            bench.best(
                f"export raw -> {kind}",
                records,
                lambda kind=kind: export(spark, native, "raw", fresh(folder / "lake", kind)),
            )
    if "json" in chosen:
        bench.best(
            "export json (6 fields) -> delta",
            records // 4,
            lambda: export(
                spark,
                native,
                "json",
                fresh(folder / "lake", "delta"),
                format="json",
                value_schema=JSON_SCHEMA,
            ),
        )
    spark.stop()


def fresh(folder: Path, kind: str) -> Target:
    shutil.rmtree(folder, ignore_errors=True)
    return target_in(folder, kind)


def micro_batches(spark, native: str) -> None:
    """Time of small micro-batches of a streaming query into noop."""

    def start(checkpoint: str) -> object:
        topic = spark.readStream.format("lakemq").option("bootstrap", native)
        some = topic.option("subscribe", "raw").option("startingOffsets", "earliest")
        frame = some.option("maxOffsetsPerTrigger", SMALL_ROWS).load()
        return frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()

    print(f"micro-batch of {SMALL_ROWS:,} rows{small_ms(start):25.0f} ms (median)", flush=True)


if __name__ == "__main__":
    main()
