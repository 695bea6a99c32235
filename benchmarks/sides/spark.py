"""Spark in a process of its own that reads LakeMQ, Kafka or Parquet files, all of the same rows."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lakemq as sdk
from benchmarks.harness.declare import Missing, Running, Sample
from benchmarks.harness.processes import end
from benchmarks.harness.statistics import Latencies
from benchmarks.load.journal import values
from benchmarks.sides import kafka, lakemq

PROGRAM = Path(__file__).parents[1] / "load" / "spark_reads.py"
ROOT = Path(__file__).parents[2]
OTHERS = ("4.2.0", "4.0.0")
"""Versions of Spark whose connector is taken when Maven has none for the installed one."""
CONNECTOR = ("spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13")
LIBRARIES = (
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
)
ALONE = (
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
)
"""Each jar is named by itself: Spark's own pom brings a mirror that may not be reachable."""
OTHER_SPARK = Path(".venv-spark-kafka")
RECORDS = 2_000_000
BLOCK = 10_000
PARTITIONS = 2


def rows(json_values: bool) -> Iterator[tuple[int, list[bytes], list[bytes]]]:
    """(partition, keys, values) in blocks, the same for each side: values of 50 to 200 bytes."""
    some = values(BLOCK)
    for number in range(RECORDS // BLOCK):
        numbers = range(number * BLOCK, (number + 1) * BLOCK)
        keys = [b"dev-%05d" % (n % 1000) for n in numbers]
        found = [as_json(n) for n in numbers] if json_values else some
        yield number % PARTITIONS, keys, found


def as_json(n: int) -> bytes:
    text = b'{"device":"dev-%05d","time":%d,"celsius":%.2f,"ok":true,"note":"%s","n":%d}'
    return text % (n % 1000, 1_700_000_000_000 + n, n % 977 / 7, b"x" * (n % 60), n)


@contextlib.contextmanager
def reading(python: Path, folder: Path, servers: tuple[int, ...], **job: Any) -> Iterator[Running]:
    """Starts `spark_reads`; its CPU and that of `servers` count."""
    with (folder / "spark.log").open("w") as log:
        process = subprocess.Popen(
            [str(python), str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            text=True, cwd=ROOT,
        )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None

    def line(text: str) -> dict[str, Any]:
        process.stdin.write(text + "\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
        while said := process.stdout.readline():  # type: ignore[union-attr]
            if said.startswith("{"):
                return dict(json.loads(said))
        raise RuntimeError(f"Spark: {(folder / 'spark.log').read_text().strip()[-300:]}")

    def ask(kind: str, _seconds: float) -> Sample:
        found = line(kind)
        took = Latencies()
        took.record([each / 1000 for each in found.pop("batches_ms", [])])
        return {**found, **took.figures()}

    try:
        line(json.dumps({"records": RECORDS, "folder": str(folder), **job}))
        yield Running((*servers, process.pid), ask=ask)
    finally:
        process.stdin.close()
        process.stdout.close()
        end(process)


@contextlib.contextmanager
def from_lakemq(folder: Path, json_values: bool = False) -> Iterator[Running]:
    with lakemq.node(folder, "native") as node:
        with sdk.connect(node.address) as client:
            client.create_topic("rows", partitions=PARTITIONS)
            for partition, keys, found in rows(json_values):
                client.send_batch("rows", sdk.Columns(found, keys), partition=partition)
        options = {"bootstrap": node.address, "subscribe": "rows", "startingOffsets": "earliest"}
        job = {"format": "lakemq", "options": options}
        conf = {"spark.jars": ""}
        with reading(Path(sys.executable), folder, tuple(node.pids), conf=conf, **job) as side:
            yield side


@contextlib.contextmanager
def from_kafka(folder: Path) -> Iterator[Running]:
    jars, python = connector_and_python()
    with kafka.brokers(kafka.classpath(), folder, "num.partitions=2\n", 1) as found:
        fill_kafka(kafka.bootstrap(found))
        options = {
            "kafka.bootstrap.servers": kafka.bootstrap(found),
            "subscribe": "rows",
            "startingOffsets": "earliest",
        }
        conf = {"spark.jars": ",".join(jars.split(":"))}
        job = {"format": "kafka", "options": options, "conf": conf}
        with reading(python, folder, (found[0].server.pid,), **job) as side:
            yield side


def fill_kafka(address: str) -> None:
    try:
        from confluent_kafka import Producer
    except ImportError:
        raise Missing("there is no confluent-kafka (make bench-peers)") from None
    producer = Producer({"bootstrap.servers": address, "queue.buffering.max.messages": 500_000})
    for partition, keys, found in rows(False):
        for key, value in zip(keys, found, strict=True):
            while True:
                try:
                    producer.produce("rows", value, key, partition)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.poll(0)
    if producer.flush(60):
        raise Missing("Kafka did not take all rows")


def connector_and_python() -> tuple[str, Path]:
    """The connector's jars for the first version of Spark that Maven has them for, and a Python
    with that version. Raises Missing."""
    import pyspark

    reason = ""
    for version in (pyspark.__version__, *OTHERS):
        wanted = [("org.apache.spark", name, version, ALONE) for name in CONNECTOR]
        wanted += [(*each, ALONE) for each in LIBRARIES]
        try:
            jars = kafka.fetched(f"spark-kafka-{version}", wanted)
        except Missing as error:
            reason = str(error)
            continue
        return jars, Path(sys.executable) if version == pyspark.__version__ else python_with(
            version
        )
    raise Missing(reason)


def python_with(version: str) -> Path:
    python = OTHER_SPARK / "bin" / "python"
    if not python.exists():
        venv.create(OTHER_SPARK, with_pip=True)
    run = subprocess.run(
        [python, "-m", "pip", "install", "-q", f"pyspark=={version}"],
        capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    if run.returncode:
        raise Missing(f"pip install pyspark=={version}: {run.stderr.strip()[-300:]}")
    return python.absolute()


@contextlib.contextmanager
def from_parquet(folder: Path) -> Iterator[Running]:
    import pyarrow
    from pyarrow import parquet

    (folder / "rows").mkdir()
    schema = pyarrow.schema([("key", pyarrow.binary()), ("value", pyarrow.binary())])
    names = [folder / "rows" / f"{partition}.parquet" for partition in range(PARTITIONS)]
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(parquet.ParquetWriter(name, schema)) for name in names]
        for partition, keys, found in rows(False):
            writers[partition].write_table(pyarrow.table([keys, found], schema=schema))
    options = {"path": str(folder / "rows")}
    job = {"format": "parquet", "options": options}
    with reading(Path(sys.executable), folder, (), **job) as side:
        yield side
