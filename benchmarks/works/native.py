"""The native protocol and its SDK beside Kafka and NATS JetStream."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.harness.declare import Goal, Running, Sample, Side, Work
from benchmarks.harness.processes import cpu_s, measuring_itself
from benchmarks.load import native
from benchmarks.sides import kafka, lakemq, mqtt_peers


@contextlib.contextmanager
def with_client(  # type: ignore[no-untyped-def]
    folder: Path, server, client, *, compiled: bool = False
) -> Iterator[Running]:
    """A server, and a client in a process of its own: both count."""
    tree = lakemq.compiled_tree() if compiled else None
    with server(folder) as found, measuring_itself(client, found.address, tree=tree) as speaker:
        yield Running((*found.pids, *speaker.pids), found.port, found.address, speaker.ask)


@contextlib.contextmanager
def kafka_node(folder: Path, more: str) -> Iterator[Running]:
    with kafka.alone(folder, more) as broker:
        yield Running((broker.server.pid,), broker.port, kafka.bootstrap([broker]))


def load(kind: str, side: Running, seconds: float) -> Sample:
    """CPU is that of client and server together."""
    assert side.ask is not None
    before = cpu_s(side.pids)
    sample = side.ask(kind, seconds)
    count = sample.pop("count")
    used = cpu_s(side.pids) - before
    return {"rate": count / sample.pop("elapsed_s"), "cpu_us": 1e6 * used / max(1, count), **sample}


LAKEMQ = Side(
    "LakeMQ",
    "an acknowledged record is fsynced",
    partial(with_client, server=lakemq.NATIVE.start, client=native.lakemq, compiled=True),
)
PURE = Side(
    lakemq.PURE.name,
    lakemq.PURE.settings,
    partial(
        with_client,
        server=partial(lakemq.node, protocol="native", compiled=False),
        client=native.lakemq,
    ),
)
AS_SHIPPED = Side(
    "Kafka",
    "acks=all: an acknowledged record is in the page cache; confluent-kafka, linger.ms=5 "
    "(latency: 0)",
    partial(with_client, server=partial(kafka_node, more=""), client=native.kafka),
)
FLUSHED = Side(
    "Kafka, flushed",
    "log.flush.interval.messages=1: an acknowledged record is fsynced",
    partial(with_client, server=partial(kafka_node, more=kafka.FLUSHED), client=native.kafka),
)
NATS = Side(
    "NATS",
    "JetStream: an acknowledged record is in the page cache; nats-py, 1,000 at a time",
    partial(with_client, server=mqtt_peers.NATS_CORE.start, client=native.nats),
)
BROKERS = (LAKEMQ, PURE, AS_SHIPPED, FLUSHED, NATS)


WORKS = (
    Work(
        "native-single",
        "native",
        "Records of 50 to 200 bytes handed to the client one by one, 1 partition.",
        BROKERS,
        partial(load, "single"),
        (Goal("cpu_us", 1, "Kafka, flushed"),),
        seconds=2,
    ),
    Work(
        "native-batch",
        "native",
        "The same in blocks of 50,000, 4 at a time, with `send_batch`.",
        (LAKEMQ,),
        partial(load, "batch"),
        seconds=2,
    ),
    Work(
        "native-arrow",
        "native",
        "The same as Arrow tables, with `send_arrow`.",
        (LAKEMQ,),
        partial(load, "arrow"),
        seconds=2,
        full=True,
    ),
    Work(
        "native-read",
        "native",
        "Records read as Python objects, one by one, 1 partition.",
        (LAKEMQ, AS_SHIPPED, NATS),
        partial(load, "read"),
        seconds=2,
    ),
    Work(
        "native-read-arrow",
        "native",
        "Records read as Arrow tables.",
        (LAKEMQ,),
        partial(load, "read_arrow"),
        seconds=2,
        full=True,
    ),
    Work(
        "native-read-group",
        "native",
        "Records read as Python objects by a consumer group.",
        (LAKEMQ,),
        partial(load, "read_group"),
        seconds=2,
        full=True,
    ),
    Work(
        "native-latency",
        "native",
        "10,000 records a second, each from when it was due to the hands of a reader that follows.",
        (LAKEMQ, AS_SHIPPED, FLUSHED),
        partial(load, "paced"),
        seconds=2,
        full=True,
    ),
    Work(
        "native-transactions",
        "native",
        "Transactions of one record, one after the other.",
        (LAKEMQ, AS_SHIPPED, FLUSHED),
        partial(load, "transactions"),
        seconds=2,
        full=True,
    ),
)
