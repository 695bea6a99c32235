"""Loads at growing sizes: what connections, subscriptions, names, partitions, lengths, consumers,
groups, a backlog, topics and watchers cost."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.harness.declare import Growth, Running, Sample, Side
from benchmarks.harness.processes import cpu_s, measuring_itself
from benchmarks.load import clients, crew, meta, scale
from benchmarks.load.packets import Load
from benchmarks.sides.lakemq import FSYNCED, MQTT, NATIVE, compiled_tree, node
from benchmarks.sides.mqtt_peers import MOSQUITTO, NATS

ORDINARY = Load(publishers=100, names=100, qos=1, rate=1000, subscribers=1, subscribe_qos=1)


def connections(side: Running, size: float, _seconds: float) -> Sample:
    return clients.connects(int(size), side, 1)


def with_partitions(size: float) -> tuple[Side]:
    more = f"[topics]\npartitions = {int(size)}\n"
    return (Side("LakeMQ", FSYNCED, partial(node, protocol="mqtt", more=more)),)


def at_fixed_rate(side: Running, _size: float, seconds: float) -> Sample:
    """Publishes to so many names that all partitions get some."""
    return crew.paced(side, ORDINARY.sized(names=1000), seconds)


def payload(side: Running, size: float, seconds: float) -> Sample:
    load = Load(publishers=20, names=20, qos=1, window=10, payload=(int(size), int(size)))
    return crew.windows(side, load, seconds)


def fan_out(side: Running, size: float, seconds: float) -> Sample:
    """QoS 0 deliveries to so many subscribers of everything."""
    load = Load(names=10, subscribers=int(size), count=max(20, int(100_000 / size)))
    return crew.flood(side, load, seconds)


def native(kind: str, side: Running, size: float, _seconds: float) -> Sample:
    assert side.ask is not None
    side.ask(f"fill {kind}", int(size))
    before = cpu_s(side.pids)
    sample = side.ask(kind, int(size))
    count = sample.pop("count")
    used = cpu_s(side.pids) - before
    return {"rate": count / sample.pop("elapsed_s"), "cpu_us": 1e6 * used / max(1, count), **sample}


@contextlib.contextmanager
def with_client(folder: Path) -> Iterator[Running]:
    with (
        NATIVE.start(folder) as server,
        measuring_itself(scale.client, server.address, tree=compiled_tree()) as speaker,
    ):
        yield Running((*server.pids, *speaker.pids), ask=speaker.ask)


@contextlib.contextmanager
def member(_folder: Path) -> Iterator[Running]:
    with measuring_itself(meta.member_alone) as side:
        yield side


@contextlib.contextmanager
def index(_folder: Path) -> Iterator[Running]:
    with measuring_itself(scale.subscription_index) as side:
        yield side


def asked(kind: str, side: Running, size: float, _seconds: float) -> Sample:
    assert side.ask is not None
    return side.ask(kind, int(size))


CLIENT = Side("LakeMQ", "an acknowledged record is fsynced", with_client)

GROWTHS = (
    Growth(
        "growth-connections",
        "Clients connect and stay, 50 at a time.",
        "connections",
        (100, 1_000, 5_000, 15_000),
        ("rate", "each_kib"),
        "O(1) for each connection",
        (MQTT, MOSQUITTO, NATS),
        connections,
    ),
    Growth(
        "growth-subscriptions",
        "Subscriptions in four shapes with wildcards; a new name is matched. CPU of a match.",
        "subscriptions",
        (1_000, 10_000, 100_000, 1_000_000),
        ("cpu_us", "each_kib"),
        "O(levels of the name) for a match, O(1) memory for each",
        (Side("LakeMQ", "", index),),
        partial(asked, "match"),
    ),
    Growth(
        "growth-partitions",
        "QoS 1, 100 publishers at 1,000/s in all to a topic of so many partitions.",
        "partitions",
        (1, 10, 100, 500),
        ("cpu_us", "p99_ms"),
        "O(partitions that a flush touches): up to one fsync for each publish",
        (MQTT,),
        at_fixed_rate,
        sides_at=with_partitions,
    ),
    Growth(
        "growth-payload",
        "QoS 1, 20 publishers with 10 unacknowledged publishes each.",
        "bytes of payload",
        (16, 256, 4_096, 65_536),
        ("rate", "cpu_us"),
        "O(1) for small ones, O(bytes) beyond some KiB",
        (MQTT, MOSQUITTO, NATS),
        payload,
    ),
    Growth(
        "growth-subscribers",
        "QoS 0, 1 publisher, each subscriber gets everything. CPU of a delivery.",
        "subscribers",
        (1, 10, 100, 1_000),
        ("rate", "cpu_us"),
        "O(1) for each delivery",
        (MQTT, MOSQUITTO, NATS),
        fan_out,
    ),
    Growth(
        "growth-consumers",
        "Consumers of one group divide 64 partitions and read what was stored.",
        "consumers",
        (1, 4, 16, 64),
        ("rate", "cpu_us"),
        "O(1) for each record",
        (CLIENT,),
        partial(native, "consumers"),
    ),
    Growth(
        "growth-groups",
        "Groups that each read everything that was stored. CPU of a record read.",
        "groups",
        (1, 4, 16, 64),
        ("rate", "cpu_us"),
        "O(1) for each record",
        (CLIENT,),
        partial(native, "groups"),
    ),
    Growth(
        "growth-backlog",
        "One reader fetches 100,000 records from the beginning of a backlog.",
        "records of backlog",
        (100_000, 1_000_000, 10_000_000),
        ("rate", "first_s"),
        "O(1): where a reader begins does not matter",
        (CLIENT,),
        partial(native, "backlog"),
    ),
    Growth(
        "growth-topics",
        "Topics made in the MetaService, 256 at a time, then a start with all of them.",
        "topics",
        (1_000, 10_000, 50_000),
        ("rate", "first_s"),
        "O(1) for each topic made, O(topics) for a start",
        (Side("MetaService", "", member),),
        partial(asked, "topics"),
    ),
    Growth(
        "growth-watchers",
        "Writes that so many watchers see.",
        "watchers",
        (10, 100, 1_000, 5_000),
        ("p50_ms", "p99_ms"),
        "O(watchers) for each write",
        (Side("MetaService", "", member),),
        partial(asked, "watchers"),
    ),
)
