"""Produce beside Kafka and NATS JetStream, in one run: records per CPU-second of client and broker.

    make bench-kafka            (or: python -m benchmarks.kafka [--records 2000000])

Kafka: one KRaft node on this machine from Maven Central's jars, fetched by `mvn`; its own
`ProducerPerformance` and, when it is installed, `confluent-kafka`; acks=all, 100-byte values, one
partition. Kafka as shipped acknowledges what is in the page cache; `flushed` is Kafka that fsyncs
before it acknowledges, as LakeMQ does. NATS as in `benchmarks.native`. What can't be had is told.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # has no types of its own

from benchmarks.native import VALUE, Figure, lakemq_figures, nats_figures, nats_missing

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>lakemq</groupId><artifactId>bench-kafka</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
<version>{version}</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId>
<version>{version}</version></dependency></dependencies></project>
"""
CONFIG = """process.roles=broker,controller
node.id={number}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={logs}
num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""
QUIET = """<?xml version="1.0"?><Configuration status="ERROR"><Appenders/>
<Loggers><Root level="OFF"/></Loggers></Configuration>"""
FLUSHED = "log.flush.interval.messages=1\n"
START_S = 60


class Missing(Exception):
    """Something can't be had; the text says what."""


def classpath(folder: Path, version: str) -> str:
    """Kafka's jars, through Maven. Raises Missing."""
    if shutil.which("mvn") is None or shutil.which("java") is None:
        raise Missing("there is no mvn or no java")
    folder.mkdir(parents=True)
    (folder / "pom.xml").write_text(POM.format(version=version))
    run = subprocess.run(
        ["mvn", "-q", "-B", "dependency:build-classpath", "-Dmdep.outputFile=classpath"],
        cwd=folder, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    if run.returncode:
        raise Missing(f"mvn: {(run.stdout + run.stderr).strip()[:400]}")
    found = (folder / "classpath").read_text().strip()
    match = re.search(r"kafka-tools-([0-9][^/]*)\.jar", found)
    print(f"Kafka {match[1] if match else version}", flush=True)
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def java(jars: str, folder: Path, *words: str) -> list[str]:
    return ["java", "-Xmx1g", f"-Dlog4j2.configurationFile={folder / 'log4j2.xml'}", "-cp", jars,
            *words]  # fmt: skip


@dataclass
class Broker:
    """One KRaft node, broker and controller in one process."""

    number: int
    port: int
    command: list[str]
    server: subprocess.Popen[bytes]

    @property
    def process(self) -> psutil.Process:
        """To read its CPU time from."""
        return psutil.Process(self.server.pid)

    def launch(self) -> None:
        """Start it again after it was killed."""
        self.server = _launched(self.command)

    def wait(self) -> None:
        """Until it listens. Raises Missing."""
        deadline = time.monotonic() + START_S
        while True:
            if self.server.poll() is not None or time.monotonic() > deadline:
                raise Missing("kafka.Kafka did not start")
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.2)


def _launched(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def brokers(jars: str, folder: Path, more: str, count: int) -> Iterator[list[Broker]]:
    """So many KRaft nodes of one cluster. Raises Missing when one does not start."""
    folder.mkdir(parents=True)
    (folder / "log4j2.xml").write_text(QUIET)
    ports = [(free_port(), free_port()) for _ in range(count)]
    voters = ",".join(f"{at}@127.0.0.1:{ports[at - 1][1]}" for at in range(1, count + 1))
    cluster = uuid.uuid4().hex[:22]
    found: list[Broker] = []
    try:
        for number, (port, controller) in enumerate(ports, 1):
            config = folder / f"server-{number}.properties"
            text = CONFIG.format(
                number=number, voters=voters, port=port, controller=controller,
                logs=folder / f"logs-{number}",
            )  # fmt: skip
            config.write_text(text + more)
            tool = ("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(config))
            run = subprocess.run(
                java(jars, folder, *tool), capture_output=True, text=True, check=False
            )
            if run.returncode:
                raise Missing(f"kafka.tools.StorageTool: {run.stderr[-400:]}")
            command = java(jars, folder, "kafka.Kafka", str(config))
            found.append(Broker(number, port, command, _launched(command)))
        for broker in found:
            broker.wait()
        yield found
    finally:
        for broker in found:
            broker.server.terminate()
        for broker in found:
            try:
                broker.server.wait(30)
            except subprocess.TimeoutExpired:
                broker.server.kill()
                broker.server.wait()


def cpu_of(*processes: psutil.Process) -> float:
    """User and system time of all of them together (s)."""
    times = [process.cpu_times() for process in processes]
    return float(sum(each.user + each.system for each in times))


def told(figure: Figure) -> Figure:
    print(
        f"{figure.name:38} {figure.rate:12,.0f} records/s {figure.cpu_rate:12,.0f} per CPU-second",
        flush=True,
    )
    return figure


def perf_test(
    jars: str,
    folder: Path,
    name: str,
    found: Sequence[Broker],
    records: int,
    *,
    topic: str = "perf",
    rate: int = -1,
) -> tuple[Figure, str]:
    """Kafka's own tool, and what it said last, with latencies; `rate`: records/s, -1: all it can.
    Its CPU includes the start of its Java machine, as ours that of nothing, so it is run long
    enough for that not to count."""
    words = java(
        jars, folder, "org.apache.kafka.tools.ProducerPerformance", "--topic", topic,
        "--num-records", str(records), "--record-size", str(len(VALUE)), "--throughput", str(rate),
        "--producer-props", f"bootstrap.servers={bootstrap(found)}", "acks=all", "linger.ms=5",
    )  # fmt: skip
    processes = [each.process for each in found]
    before = cpu_of(*processes)
    client = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert client.stdout is not None
    said = client.stdout.read()
    client.stdout.close()
    _, _, usage = os.wait4(client.pid, 0)
    client.returncode = 0
    match = re.findall(r"([0-9.]+) records/sec", said)
    if not match:
        raise Missing(f"ProducerPerformance said: {said[-300:]}")
    seconds = records / float(match[-1])
    cpu = usage.ru_utime + usage.ru_stime + cpu_of(*processes) - before
    return told(Figure(name, records, seconds, cpu)), said.strip().splitlines()[-1]


def bootstrap(found: Sequence[Broker]) -> str:
    """`host:port` of all of them, as Kafka's clients take them."""
    return ",".join(f"127.0.0.1:{each.port}" for each in found)


def confluent(name: str, broker: Broker, records: int) -> Figure:
    """Single `produce` calls of confluent-kafka. Raises Missing."""
    try:
        from confluent_kafka import Producer
    except ImportError:
        raise Missing("there is no confluent-kafka (pip install confluent-kafka)") from None
    producer = Producer({
        "bootstrap.servers": bootstrap([broker]), "acks": "all", "linger.ms": 5,
        "queue.buffering.max.messages": 1_000_000,
    })  # fmt: skip
    processes = (broker.process, psutil.Process())
    before, began = cpu_of(*processes), time.perf_counter()
    for number in range(records):
        while True:
            try:
                producer.produce("confluent", VALUE)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush()
    took = time.perf_counter() - began
    return told(Figure(name, records, took, cpu_of(*processes) - before))


def kafka_figures(folder: Path, version: str, records: int) -> list[Figure]:
    jars = classpath(folder / "maven", version)
    found: list[Figure] = []
    for name, more in (("as shipped", ""), ("flushed", FLUSHED)):
        home = folder / name.replace(" ", "-")
        with brokers(jars, home, more, 1) as alone:
            count = records if not more else records // 4
            found.append(perf_test(jars, home, f"Kafka perf-test, {name}", alone, count)[0])
            try:
                found.append(confluent(f"confluent-kafka, {name}", alone[0], count // 4))
            except Missing as error:
                print(f"confluent-kafka does not take part: {error}")
    return found


async def run(records: int, version: str) -> None:
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs")
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        ours = await lakemq_figures(folder / "lakemq", records, 1)
        try:
            kafkas = await asyncio.to_thread(kafka_figures, folder / "kafka", version, records)
        except (Missing, subprocess.TimeoutExpired) as error:
            print(f"Kafka does not take part: {error}")
            kafkas = []
        reason = nats_missing()
        nats: list[Figure] = []
        if reason is None:
            nats = await nats_figures(folder / "nats", min(records // 40, 50_000))
        else:
            print(f"NATS does not take part: {reason}")
    print("\nrecords per CPU-second of client and broker, as multiples:")
    for figure in ours:
        if figure.name.startswith("produce"):
            beside = [each for each in (*kafkas, *nats[:1])]
            for each in beside:
                print(f"{figure.name:28} {figure.cpu_rate / each.cpu_rate:8.2f} x {each.name}")
    print(f"load average {os.getloadavg()[0]:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--version", default="4.3.1", help="of Kafka")
    arguments = parser.parse_args()
    asyncio.run(run(arguments.records, arguments.version))


if __name__ == "__main__":
    main()
