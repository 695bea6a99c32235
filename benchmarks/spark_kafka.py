"""Spark reads the same records from LakeMQ and from Kafka, in one run.

    make bench-spark-kafka      (or: python -m benchmarks.spark_kafka [--records 2000000])

Both topics have 2 partitions and hold the same keys and 100-byte values; Kafka's are written by
Spark from Parquet that was read from LakeMQ. Kafka: one KRaft node as in `benchmarks.kafka`; its
Spark connector (spark-sql-kafka-0-10) comes through Maven for the Spark version that is installed
or, where Maven has none for it, for the first of `OTHERS`, which then reads Kafka from
`.venv-spark-kafka`; `spark.read.parquet` of the same rows tells how the two versions compare.
local[2], the brokers on the same cores. Says so and exits with 2 where something can't be had.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

import pyspark

import lakemq
from benchmarks.kafka import Missing, bootstrap, brokers, classpath
from benchmarks.spark_lake import produce
from tests.support.node.node import NodeProcess

OTHERS = ("4.2.0", "4.0.0")
CLIENTS = "3.9.2"
POOL = "2.13.1"
HOME = Path(".venv-spark-kafka")
READS = Path(__file__).with_name("spark_reads.py")
DEPENDENCY = """<dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version>
<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
</dependency>"""
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>lakemq</groupId><artifactId>bench-spark-kafka</artifactId><version>1</version>
<dependencies>{0}</dependencies></project>"""


def connector(folder: Path, version: str) -> list[str]:
    """The connector's jars for a Spark version. Raises Missing.

    Each is named by itself: Spark's own pom brings a mirror that is asked first, and may not be
    reachable where Maven Central is.
    """
    wanted = [
        ("org.apache.spark", "spark-sql-kafka-0-10_2.13", version),
        ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", version),
        ("org.apache.kafka", "kafka-clients", CLIENTS),
        ("org.apache.commons", "commons-pool2", POOL),
    ]
    folder.mkdir(parents=True)
    (folder / "pom.xml").write_text(
        POM.format("".join(DEPENDENCY.format(*each) for each in wanted))
    )
    words = ["mvn", "-q", "-B", "dependency:build-classpath", "-Dmdep.outputFile=classpath"]
    run = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=900, check=False
    )
    if run.returncode:
        raise Missing(f"the connector for Spark {version}: {run.stdout.strip()[:300]}")
    return (folder / "classpath").read_text().strip().split(":")


def connector_and_python(folder: Path, versions: tuple[str, ...]) -> tuple[list[str], Path]:
    """Jars of the first version that Maven has, and a Python with that Spark. Raises Missing."""
    reason = ""
    for version in versions:
        try:
            jars = connector(folder / version, version)
        except Missing as error:
            reason = str(error)
            print(f"Maven has not all of spark-sql-kafka-0-10 for Spark {version}", flush=True)
            continue
        if version == pyspark.__version__:
            return jars, Path(sys.executable)
        return jars, python_with(version)
    raise Missing(reason)


def python_with(version: str) -> Path:
    python = HOME / "bin" / "python"
    if not python.exists():
        venv.create(HOME, with_pip=True)
    run = subprocess.run(
        [python, "-m", "pip", "install", "-q", f"pyspark=={version}", "psutil"],
        capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    if run.returncode:
        raise Missing(f"pip install pyspark=={version}: {run.stderr.strip()[-300:]}")
    return python.absolute()


def reads(python: Path, **job: Any) -> dict[str, Any]:
    """Run `spark_reads` with a job. Raises SystemExit with its last words."""
    run = subprocess.run(
        [python, str(READS)], input=json.dumps(job), capture_output=True, text=True, check=False
    )
    if run.returncode:
        raise SystemExit(f"{job['format']}: {run.stderr.strip()[-2000:]}")
    return dict(json.loads(run.stdout.strip().splitlines()[-1]))


def lakemq_side(folder: Path, records: int, repeats: int) -> dict[str, Any]:
    with NodeProcess(folder / "node") as node:
        with lakemq.connect(node.native) as client:
            produce(client, "raw", records, json=False)
        return reads(
            Path(sys.executable), format="lakemq", records=records, repeats=repeats,
            options={
                "bootstrap": node.native, "subscribe": "raw", "startingOffsets": "earliest"
            },
            broker_pid=node.pid, parquet=str(folder / "rows"), load={}, conf={},
        )  # fmt: skip


def kafka_side(
    folder: Path, server: str, jars: list[str], python: Path, records: int, repeats: int
) -> dict[str, Any]:
    with brokers(server, folder / "kafka", "num.partitions=2\n", 1) as alone:
        address = {"kafka.bootstrap.servers": bootstrap(alone)}
        return reads(
            python, format="kafka", records=records, repeats=repeats,
            options={**address, "subscribe": "raw", "startingOffsets": "earliest"},
            broker_pid=alone[0].process.pid, parquet=str(folder / "rows"),
            load={**address, "topic": "raw"}, conf={"spark.jars": ",".join(jars)},
        )  # fmt: skip


def report(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    print("\nM rows/s, and CPU seconds per million rows of Spark and of the broker:")
    print(f"{'into noop':22}{'LakeMQ, Spark ' + ours['spark']:>30}"
          f"{'Kafka, Spark ' + theirs['spark']:>30}{'ratio':>8}")  # fmt: skip
    for name, what in (
        ("batch", "spark.read"), ("stream", "readStream, 4 triggers"),
        ("parquet", "spark.read.parquet"),
    ):  # fmt: skip
        cells = [
            f"{side[name]['rows_s'] / 1e6:8.2f}{side[name]['spark_cpu_s']:9.2f} +"
            f"{side[name]['broker_cpu_s']:6.2f}"
            for side in (ours, theirs)
        ]
        ratio = ours[name]["rows_s"] / theirs[name]["rows_s"]
        print(f"{what:22}{cells[0]:>30}{cells[1]:>30}{ratio:8.2f}")
    print(f"{'1,000-row micro-batch':22}{ours['small_ms']:27.0f} ms{theirs['small_ms']:27.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--kafka", default="4.3.1", help="version of the Kafka server")
    parser.add_argument("--spark", help="version of Spark that reads Kafka")
    arguments = parser.parse_args()
    versions = (arguments.spark,) if arguments.spark else (pyspark.__version__, *OTHERS)
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            server = classpath(folder / "maven", arguments.kafka)
            jars, python = connector_and_python(folder / "connector", versions)
        except (Missing, subprocess.TimeoutExpired) as error:
            print(f"SKIPPED: Kafka does not take part: {error}")
            sys.exit(2)
        ours = lakemq_side(folder, arguments.records, arguments.repeats)
        theirs = kafka_side(folder, server, jars, python, arguments.records, arguments.repeats)
    report(ours, theirs)
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
