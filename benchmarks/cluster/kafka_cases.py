"""The same cases with three KRaft brokers: acks=all, three replicas, min.insync.replicas 2."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # has no types of its own

from benchmarks.cluster.figures import CALLERS, RATE, VALUE, Figure, cpu_of, outages, told
from benchmarks.harness.declare import Missing
from benchmarks.sides.kafka import Broker, bootstrap, java

CONFIG = """default.replication.factor=3
min.insync.replicas=2
offsets.topic.replication.factor=3
"""
OUTAGE_MAX_S = 60.0


def create(jars: str, folder: Path, found: Sequence[Broker], topic: str, replicas: int) -> None:
    """A topic of one partition. Raises Missing."""
    words = java(
        jars, folder, "org.apache.kafka.tools.TopicCommand", "--create", "--topic", topic,
        "--partitions", "1", "--replication-factor", str(replicas),
        "--bootstrap-server", bootstrap(found),
    ) + ([] if replicas > 1 else ["--config", "min.insync.replicas=1"])  # fmt: skip
    run = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    if run.returncode:
        raise Missing(f"TopicCommand: {(run.stdout + run.stderr)[-400:]}")


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


def throughput(
    jars: str, folder: Path, found: Sequence[Broker], name: str, replicas: int, records: int
) -> Figure:
    """Kafka's own producer tool, all it can."""
    topic = f"large-{replicas}"
    create(jars, folder, found, topic, replicas)
    return perf_test(
        jars, folder, f"Kafka {name}, perf-test, {replicas} replica(s)", found, records, topic=topic
    )[0]


def latency(jars: str, folder: Path, found: Sequence[Broker], name: str, seconds: float) -> None:
    """The tool's own percentiles at a steady rate."""
    create(jars, folder, found, "latency", 3)
    title = f"Kafka {name}, ack at {RATE:,}/s"
    _, said = perf_test(jars, folder, title, found, int(RATE * seconds), topic="latency", rate=RATE)
    print(f"{title}: {said}", flush=True)


def _producer(found: Sequence[Broker], **more: Any) -> Any:
    """Raises Missing."""
    try:
        from confluent_kafka import Producer
    except ImportError:
        raise Missing("there is no confluent-kafka (pip install confluent-kafka)") from None
    return Producer({"bootstrap.servers": bootstrap(found), "acks": "all", "linger.ms": 0, **more})


def callers(jars: str, folder: Path, found: Sequence[Broker], name: str, records: int) -> Figure:
    """256 records under way, the next one when one is acknowledged, as of 256 callers."""
    create(jars, folder, found, "callers", 3)
    producer = _producer(found)
    acked = 0

    def noted(error: object, message: object) -> None:
        nonlocal acked
        assert error is None, error
        acked += 1

    processes = [*(each.process for each in found), psutil.Process()]
    before, began = cpu_of(*processes), time.perf_counter()
    sent = 0
    while acked < records:
        while sent < records and sent - acked < CALLERS:
            producer.produce("callers", VALUE, on_delivery=noted)
            sent += 1
        producer.poll(0.001)
    took_s = time.perf_counter() - began
    title = f"Kafka {name}, {CALLERS} callers, 3 replicas"
    return told(Figure(title, records, took_s, cpu_of(*processes) - before))


def failover(
    jars: str,
    folder: Path,
    found: Sequence[Broker],
    name: str,
    rounds: int,
    harm: Callable[[Broker], None],
) -> float:
    """As of LakeMQ: the longest time without an ack from the harm on."""
    from confluent_kafka.admin import AdminClient

    outage_s: list[float] = []
    for number in range(rounds):
        topic = f"{name.replace(' ', '-')}-{number}"
        create(jars, folder, found, topic, 3)
        admin = AdminClient({"bootstrap.servers": bootstrap(found)})
        leader = admin.list_topics(topic, timeout=30).topics[topic].partitions[0].leader
        harmed = next(each for each in found if each.number == leader)
        outage_s.append(_outage(_producer(found), topic, lambda: harm(harmed)))  # noqa: B023 - called at once
        harmed.server.wait(30)
        harmed.launch()
        harmed.wait()
        time.sleep(5)
    return outages(f"Kafka, {name}", outage_s)


def _outage(producer: Any, topic: str, harm: Callable[[], None]) -> float:
    """The longest time without an ack since the harm, once acks come again."""
    acked_s: list[float] = []

    def noted(error: object, message: object) -> None:
        if error is None:
            acked_s.append(time.perf_counter())

    def send_for(seconds: float) -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            producer.produce(topic, VALUE, on_delivery=noted)
            producer.poll(0.005)

    send_for(0.5)
    began = time.perf_counter()
    harm()
    send_for(1.5)
    while sum(at > began + 1.0 for at in acked_s) < 20:
        if time.perf_counter() > began + OUTAGE_MAX_S:
            raise Missing(f"Kafka acknowledged nothing for {OUTAGE_MAX_S:.0f} s")
        send_for(0.1)
    times = [began, *(at for at in acked_s if at > began)]
    return max(after - before for before, after in zip(times, times[1:], strict=False))
