"""Three LakeMQ processes beside three Kafka brokers, in one run on one machine.

    make bench-cluster          (or: python -m benchmarks.cluster [--only NAME ...] [--no-kafka])

Both: acks of all in-sync replicas, three replicas of which two must be in sync, 100-byte values,
one partition. LakeMQ acknowledges what is on the disks of all in-sync replicas. Kafka as shipped
acknowledges what is in their page caches; `flushed` is Kafka that fsyncs first. Kafka comes through
Maven (`benchmarks.sides.kafka`); what can't be had is told. CPU is that of all three servers
and the client. The aims are printed beside LakeMQ's figures.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.cluster import kafka_cases, lakemq_cases
from benchmarks.cluster.figures import ratio
from benchmarks.cluster.lakemq_cases import ALONE, REPLICATED
from benchmarks.harness.declare import Missing
from benchmarks.sides.kafka import FLUSHED, VERSION, Broker, brokers, classpath
from lakemq.local_cluster.cluster import LocalCluster

NAMES = ("large", "callers", "latency", "failover", "catch-up")
ROUNDS = 5
UNTHROTTLED = """[cluster]
replication_max_bytes_per_s = 10_000_000_000
"""


async def ours(folder: Path, names: list[str], records: int, seconds: float) -> None:
    with LocalCluster(folder / "calm", links=False, config=UNTHROTTLED) as cluster:
        if "large" in names:
            alone = await lakemq_cases.large_batches(cluster, ALONE, records)
            all_three = await lakemq_cases.large_batches(cluster, REPLICATED, records)
            ratio("large batches, 3 replicas of 1 (aim 0.35)", all_three, alone)
        if "callers" in names:
            alone = await lakemq_cases.callers(cluster, ALONE, records // 10)
            all_three = await lakemq_cases.callers(cluster, REPLICATED, records // 10)
            ratio("256 callers, 3 replicas of 1 (aim 40,000/s)", all_three, alone)
        if "latency" in names:
            print("aims: p50 3 ms, p99 30 ms; lag p99 10 ms, 0 at rest")
            await lakemq_cases.latency(cluster, ALONE, seconds)
            await lakemq_cases.latency(cluster, REPLICATED, seconds)
        if "catch-up" in names:
            print("aim: 100 MB/s")
            await lakemq_cases.catch_up(cluster, records)
    if "failover" in names:
        print("aims: kill -9 1.2 s, SIGTERM 0.3 s, cut off 4.5 s")
        # Nodes that can be cut off reach each other by relays of this process.
        with LocalCluster(folder / "harmed") as cluster:
            for name, harm in (
                ("kill -9", cluster.kill), ("SIGTERM", cluster.terminate),
                ("cut off", cluster.isolate),
            ):  # fmt: skip
                await lakemq_cases.failover(cluster, name, ROUNDS, harm)


def theirs(folder: Path, version: str, names: list[str], records: int, seconds: float) -> None:
    """Raises Missing."""
    jars = classpath(version)
    for name, more in (("as shipped", ""), ("flushed", FLUSHED)):
        home = folder / name.replace(" ", "-")
        count = records if not more else records // 10
        with brokers(jars, home, kafka_cases.CONFIG + more, 3) as found:
            if "large" in names:
                alone = kafka_cases.throughput(jars, home, found, name, 1, count)
                all_three = kafka_cases.throughput(jars, home, found, name, 3, count)
                ratio(f"Kafka {name}, 3 replicas of 1", all_three, alone)
            if "callers" in names:
                kafka_cases.callers(jars, home, found, name, count // 10)
            if "latency" in names:
                kafka_cases.latency(jars, home, found, name, seconds)
            if "failover" in names and not more:
                harms: list[tuple[str, Callable[[Broker], None]]] = [
                    ("kill -9", lambda broker: broker.server.kill()),
                    ("SIGTERM", lambda broker: broker.server.terminate()),
                ]
                for title, harm in harms:
                    kafka_cases.failover(jars, home, found, title, ROUNDS, harm)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--seconds", type=float, default=10, help="of each latency case")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--no-kafka", action="store_true")
    parser.add_argument("--no-lakemq", action="store_true")
    parser.add_argument("--version", default=VERSION, help="of Kafka")
    given = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs")
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        if not given.no_lakemq:
            asyncio.run(ours(folder / "lakemq", given.only, given.records, given.seconds))
        if not given.no_kafka:
            try:
                theirs(folder / "kafka", given.version, given.only, given.records, given.seconds)
            except (Missing, subprocess.TimeoutExpired) as error:
                print(f"Kafka does not take part: {error}")
    print(f"load average {os.getloadavg()[0]:.1f}")


main()
