"""MQTT publishes beside Mosquitto and NATS: floods, devices that wait, and fixed rates."""

from __future__ import annotations

from functools import partial

from benchmarks.harness.declare import Goal, Running, Sample, Work
from benchmarks.load import clients, crew
from benchmarks.load.packets import Load
from benchmarks.sides.lakemq import FOUR_PARTITIONS, MQTT, PURE, TWO_PROCESSES
from benchmarks.sides.mqtt_peers import AMQTT, MOSQUITTO, NATS, NATS_FSYNCED

PEERS = (MQTT, PURE, MOSQUITTO, NATS)


def flood(load: Load) -> partial[Sample]:
    return partial(crew_of, crew.flood, load)


def windows(load: Load) -> partial[Sample]:
    return partial(crew_of, crew.windows, load)


def paced(load: Load) -> partial[Sample]:
    return partial(crew_of, crew.paced, load)


def crew_of(run, load: Load, side: Running, seconds: float) -> Sample:  # type: ignore[no-untyped-def]
    sample: Sample = run(side, load, seconds)
    return sample


QOS_0 = Load(names=10, subscribers=1, count=500_000)
DEVICES = Load(publishers=1000, names=1000, qos=1, window=1)
CROWD = Load(publishers=100, names=100, qos=1, window=20)
ORDINARY = Load(publishers=100, names=100, qos=1, rate=2000, subscribers=1, subscribe_qos=1)
MANY = Load(publishers=1000, names=1000, rate=20_000, subscribers=1)

WORKS = (
    Work(
        "qos0",
        "mqtt",
        "QoS 0 as fast as the broker takes it: 1 publisher, 10 names, 50 to 200 bytes, 1 "
        "subscriber. Deliveries.",
        PEERS,
        flood(QOS_0),
        (Goal("rate", 1, "NATS"),),
        seconds=2,
    ),
    Work(
        "qos0-names",
        "mqtt",
        "QoS 0 as fast as it goes: 1,000 publishers, 10,000 names, 50 to 200 bytes, 5 wildcard "
        "subscribers. Deliveries.",
        PEERS,
        flood(Load(publishers=1000, names=10_000, subscribers=5, filter="bench/+/x", count=40_000)),
        (Goal("rate", 3, "Mosquitto"),),
        seconds=2,
    ),
    Work(
        "qos0-fan-out",
        "mqtt",
        "QoS 0 as fast as it goes: 1 publisher, 10 names, 1,000 subscribers of all. Deliveries.",
        PEERS,
        flood(QOS_0.sized(subscribers=1000, count=500)),
        seconds=2,
        full=True,
    ),
    Work(
        "qos0-20000",
        "mqtt",
        "QoS 0, 1,000 publishers at 20,000/s in all, 50 to 200 bytes, 1 subscriber.",
        PEERS,
        paced(MANY),
        (Goal("cpu_us", 0.8, "Mosquitto"), Goal("p99_ms", 1, "Mosquitto")),
    ),
    Work(
        "qos1-devices",
        "mqtt",
        "QoS 1, 1,000 publishers, each waits for its PUBACK before the next publish; 50 to 200 "
        "bytes, a name each.",
        PEERS,
        windows(DEVICES),
        (Goal("rate", 1, "Mosquitto"), Goal("rate", 1, "NATS")),
    ),
    Work(
        "qos1-2000",
        "mqtt",
        "QoS 1, 100 publishers at 2,000/s in all, each publish alone in its packet, 1 subscriber "
        "at QoS 1.",
        PEERS,
        paced(ORDINARY),
        (Goal("cpu_us", 3, "Mosquitto"), Goal("cpu_us", 0.6, "NATS"), Goal("p99_ms", 1.5, "NATS")),
    ),
    Work(
        "qos1-200",
        "mqtt",
        "QoS 1, 1 publisher at 200/s, 10 names, 1 subscriber at QoS 1.",
        PEERS,
        paced(ORDINARY.sized(publishers=1, names=10, rate=200)),
        (Goal("cpu_us", 4, "Mosquitto"),),
        seconds=4,
    ),
    Work(
        "qos1-windows",
        "mqtt",
        "QoS 1, 100 publishers with 20 unacknowledged publishes each, 50 to 200 bytes, a name "
        "each.",
        (*PEERS, NATS_FSYNCED),
        windows(CROWD),
        (Goal("rate", 1.2, "Mosquitto"), Goal("rate", 3, "NATS")),
    ),
    Work(
        "qos1-windows-read",
        "mqtt",
        "The same with 1 subscriber at QoS 1.",
        PEERS,
        windows(CROWD.sized(subscribers=1, subscribe_qos=1)),
        (Goal("rate", 1.2, "Mosquitto"),),
    ),
    Work(
        "qos1-amqtt",
        "mqtt",
        "QoS 1, 100 publishers with 20 unacknowledged publishes each, beside another broker in "
        "Python.",
        (MQTT, AMQTT),
        windows(CROWD),
        full=True,
    ),
    Work(
        "qos1-processes",
        "mqtt",
        "QoS 1, 100 publishers with 20 unacknowledged publishes each, to one process and to two.",
        (FOUR_PARTITIONS, TWO_PROCESSES),
        windows(CROWD),
        full=True,
    ),
    Work(
        "qos2",
        "mqtt",
        "QoS 2, 100 publishers with 20 unfinished publishes each, 1 subscriber at QoS 2.",
        PEERS,
        windows(CROWD.sized(qos=2, subscribers=1, subscribe_qos=2)),
        (Goal("rate", 1, "Mosquitto"),),
        seconds=2,
        full=True,
    ),
    Work(
        "shared",
        "mqtt",
        "QoS 1, 100 publishers with 20 unacknowledged publishes each, 4 subscribers that share "
        "one subscription.",
        (MQTT, PURE, MOSQUITTO),
        windows(CROWD.sized(subscribers=4, subscribe_qos=1, filter="$share/g/bench/#")),
        (Goal("rate", 1, "Mosquitto"),),
        seconds=2,
        full=True,
    ),
    Work(
        "offline",
        "mqtt",
        "QoS 1, 10 sessions whose clients are away, 10,000 messages each of 20 publishers' "
        "together; from the "
        "reconnecting to the last. Deliveries.",
        PEERS,
        partial(
            clients.drain, Load(publishers=20, names=20, qos=1, window=100, subscribers=10), 10_000
        ),
        (Goal("rate", 1, "Mosquitto"),),
        seconds=1,
        full=True,
        fresh=True,
    ),
    Work(
        "retained",
        "mqtt",
        "10 subscribers come to 20,000 retained messages of as many names; each gets all. "
        "Deliveries. (NATS takes "
        "minutes to retain so many names.)",
        (MQTT, PURE, MOSQUITTO),
        partial(clients.retained, Load(subscribers=10), 20_000),
        (Goal("rate", 1, "Mosquitto"),),
        seconds=1,
        full=True,
        fresh=True,
    ),
    Work(
        "connects",
        "mqtt",
        "10,000 clients connect, 50 at a time, and stay. CPU and memory of each.",
        PEERS,
        partial(clients.connects, 10_000),
        (Goal("rate", 1, "Mosquitto"),),
        seconds=1,
        full=True,
        fresh=True,
    ),
)
