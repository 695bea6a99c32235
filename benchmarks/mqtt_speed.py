"""MQTT beside Mosquitto and amqtt, in one run: throughput, CPU and latency.

    python -m benchmarks.mqtt_speed [--brokers lakemq,mosquitto,amqtt] [--scenarios ...] [--scale 1]

Every broker is started here, in turn, with the same load. Mosquitto runs without persistence and
with unlimited queues. LakeMQ runs as `lakemq start` does (QoS 1 is fsynced before its PUBACK),
but for a write buffer of 256 MiB per client: so neither drops QoS 0 where readers are slower.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks.mqtt_load import (
    Pipe,
    acknowledged,
    count_bytes,
    flood,
    latencies,
    one_outstanding,
    paced,
    run_all,
    start,
    timed,
)
from lakemq import connect
from lakemq.plugins.mqtt.wire.encoding import encode
from lakemq.plugins.mqtt.wire.packets import V311, Publish
from tests.support.node.node import NodeProcess

PAYLOAD_BYTES = 100
Result = dict[str, float]


# -- brokers


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def wait_for(port: int) -> None:
    for _ in range(200):
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port)).close()
            return
        time.sleep(0.05)
    raise SystemExit(f"nothing listens on port {port}")


@contextlib.contextmanager
def lakemq(folder: Path) -> Iterator[tuple[int, int]]:
    buffers = {"LAKEMQ_PLUGINS__MQTT__WRITE_BUFFER_MAX_BYTES": str(256 * 1024 * 1024)}
    with NodeProcess(folder, environment=buffers) as node:
        yield node.mqtt_port, node.pid


PROCESSES = """
[node]
id = "n1"
processes = {processes}
[meta]
port = {0}
raft_port = 0
[topics]
partitions = {partitions}
[plugins.native]
port = {1}
[plugins.mqtt]
port = {2}
write_buffer_max_bytes = 268435456
"""


@contextlib.contextmanager
def several(folder: Path, processes: int, partitions: int) -> Iterator[tuple[int, int]]:
    """`lakemq start --processes`, once its partitions are spread."""
    text = PROCESSES.format(
        *(free_port() for _ in range(3)), processes=processes, partitions=partitions
    )
    with NodeProcess(folder, text) as node, connect(node.native) as client:
        while len({each.leader for each in client.describe_topic("mqtt").partitions}) < processes:
            time.sleep(0.1)
        time.sleep(2)  # replicas that moved
        yield node.mqtt_port, node.pid


@contextlib.contextmanager
def mosquitto(folder: Path) -> Iterator[tuple[int, int]]:
    port = free_port()
    config = folder / "mosquitto.conf"
    config.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\n"
        "max_queued_messages 0\nmax_inflight_messages 0\nmax_connections -1\nlog_type none\n"
    )
    with running(["mosquitto", "-c", str(config)], port) as pid:
        yield port, pid


@contextlib.contextmanager
def mosquitto_saving(folder: Path) -> Iterator[tuple[int, int]]:
    """Mosquitto that saves its whole state after every change: the most it can do about a crash."""
    port = free_port()
    config = folder / "mosquitto.conf"
    config.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence true\n"
        f"persistence_location {folder}/\nautosave_on_changes true\nautosave_interval 1\n"
        "user root\nmax_queued_messages 0\nmax_inflight_messages 0\nlog_type none\n"
    )
    with running(["mosquitto", "-c", str(config)], port) as pid:
        yield port, pid


@contextlib.contextmanager
def amqtt(folder: Path) -> Iterator[tuple[int, int]]:
    port = free_port()
    config = folder / "amqtt.yaml"
    config.write_text(
        f"listeners:\n  default:\n    type: tcp\n    bind: 127.0.0.1:{port}\n"
        "plugins:\n  amqtt.plugins.authentication.AnonymousAuthPlugin:\n"
        "    allow_anonymous: true\n"
    )
    script = Path(sys.executable).with_name("amqtt")
    with running([str(script), "-c", str(config)], port) as pid:
        yield port, pid


@contextlib.contextmanager
def running(command: list[str], port: int) -> Iterator[int]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(port)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


BROKERS = {
    "lakemq": lakemq,
    "lakemq_4_partitions": partial(several, processes=1, partitions=4),
    "lakemq_2_processes": partial(several, processes=2, partitions=4),
    "mosquitto": mosquitto,
    "mosquitto_saving": mosquitto_saving,
    "amqtt": amqtt,
}


# -- scenarios


def cpu_s(pid: int) -> float:
    process = psutil.Process(pid)
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


def fan(
    port: int,
    pid: int,
    *,
    senders: int,
    names: int,
    subscribers: int,
    count: int,
    topic_filter: str,
) -> Result:
    """`senders` flood, each of `subscribers` gets everything; one process per side."""
    topics = [f"bench/{number}/x" for number in range(names)]
    share = [topics[place::senders] for place in range(senders)]
    sizes = [
        sum(len(encode(Publish(name, b"x" * PAYLOAD_BYTES), V311)) for name in mine)
        for mine in share
    ]
    each = count // senders
    expected = sum(
        size * (each // len(mine)) + _partial(mine, each)
        for size, mine in zip(sizes, share, strict=True)
    )
    reader, pipe = start(count_bytes, port, 0, subscribers, topic_filter, expected)
    assert pipe.recv() == "ready"
    before, began = cpu_s(pid), time.time()
    if senders == 1:
        run_all(flood, [(port, 0, share[0], each, PAYLOAD_BYTES)])
    else:
        run_all(many_floods, [(port, share, each)])
    got, last = pipe.recv()
    reader.join()
    delivered = got / (expected / (each * senders))
    return {
        "messages/s": delivered / (last - began),
        "CPU us": 1e6 * (cpu_s(pid) - before) / max(1, delivered),
        "delivered %": 100 * got / (expected * subscribers),
    }


def _partial(mine: list[str], each: int) -> int:
    rest = each % len(mine)
    return sum(len(encode(Publish(name, b"x" * PAYLOAD_BYTES), V311)) for name in mine[:rest])


def many_floods(port: int, share: list[list[str]], each: int) -> None:
    """All senders in one process, a slice of each in turn."""
    from benchmarks.mqtt_load import dial

    socks = [dial(port, f"sender-{number}") for number in range(len(share))]
    packets = [[encode(Publish(n, b"x" * PAYLOAD_BYTES), V311) for n in mine] for mine in share]
    chunks = [b"".join(mine[place % len(mine)] for place in range(each)) for mine in packets]
    step = 4096
    positions = [0] * len(socks)
    busy = True
    while busy:
        busy = False
        for number, sock in enumerate(socks):
            part = chunks[number][positions[number] : positions[number] + step]
            if part:
                sock.sendall(part)
                positions[number] += len(part)
                busy = True
    for sock in socks:
        sock.close()


def qos_0(port: int, pid: int, scale: float) -> Result:
    """1 saturating publisher -> 1 subscriber."""
    return fan(port, pid, senders=1, names=1, subscribers=1, count=int(2_000_000 * scale),
               topic_filter="bench/#")  # fmt: skip


def fan_out(port: int, pid: int, scale: float) -> Result:
    """1 publisher -> 1,000 subscribers."""
    return fan(port, pid, senders=1, names=1, subscribers=1000, count=int(2_000 * scale),
               topic_filter="bench/#")  # fmt: skip


def many_names(port: int, pid: int, scale: float) -> Result:
    """1,000 publishers, 10,000 topic names -> 5 wildcard subscribers."""
    return fan(port, pid, senders=1000, names=10_000, subscribers=5, count=int(200_000 * scale),
               topic_filter="bench/+/x")  # fmt: skip


def fed_by_mosquitto_pub(port: int, pid: int, scale: float) -> Result:
    """`mosquitto_pub -l` -> 1 subscriber."""
    count = int(300_000 * scale)
    size = len(encode(Publish("bench/0/x", b"x" * PAYLOAD_BYTES), V311))
    reader, pipe = start(count_bytes, port, 0, 1, "bench/#", size * count)
    assert pipe.recv() == "ready"
    before, began = cpu_s(pid), time.time()
    command = ["mosquitto_pub", "-p", str(port), "-t", "bench/0/x", "-l"]
    subprocess.run(command, input=(b"x" * PAYLOAD_BYTES + b"\n") * count, check=True)
    got, last = pipe.recv()
    reader.join()
    delivered = got / size
    return {
        "messages/s": delivered / (last - began),
        "CPU us": 1e6 * (cpu_s(pid) - before) / max(1, delivered),
        "delivered %": 100 * delivered / count,
    }


def run_to_end(process: Any, pipe: Pipe, pid: int) -> tuple[int, float]:
    """What a started generator counted, and the CPU time (s) of the broker meanwhile."""
    assert pipe.recv() == "ready"
    before = cpu_s(pid)
    pipe.send("go")
    count: int = pipe.recv()
    used = cpu_s(pid) - before
    process.join()
    return count, used


def qos_1(port: int, pid: int, scale: float) -> Result:
    """100 publishers, QoS 1, 20 unacknowledged each."""
    seconds = max(2.0, 6 * scale)
    process, pipe = start(acknowledged, port, 0, 100, 20, PAYLOAD_BYTES, seconds, "bench/p{}")
    count, used = run_to_end(process, pipe, pid)
    return {"messages/s": count / seconds, "CPU us": 1e6 * used / max(1, count)}


def latency_qos_0(port: int, pid: int, scale: float) -> Result:
    """Publish to deliver at 2,000/s, QoS 0."""
    return _latency(port, 2000, 0, scale)


def latency_qos_1(port: int, pid: int, scale: float) -> Result:
    """Publish to deliver at 2,000/s, QoS 1."""
    return _latency(port, 2000, 1, scale)


def _latency(port: int, rate: int, qos: int, scale: float) -> Result:
    process, pipe = start(latencies, port, rate, qos, PAYLOAD_BYTES, max(2.0, 5 * scale))
    assert pipe.recv() == "ready"
    found = pipe.recv()
    process.join()
    return {
        "p50 ms": 1000 * found[len(found) // 2],
        "p99 ms": 1000 * found[int(len(found) * 0.99)],
        "p99.9 ms": 1000 * found[int(len(found) * 0.999)],
    }


PEAKS: dict[str, float] = {}
"""Broker -> QoS 1 publishes a second, with a subscriber, at its peak."""


def peak_qos_1(port: int, pid: int, scale: float) -> Result:
    """100 publishers, QoS 1 -> 1 subscriber, QoS 1: as much as it takes."""
    reader, deliveries = start(timed, port, 0, PAYLOAD_BYTES)
    assert deliveries.recv() == "ready"
    seconds = max(2.0, 6 * scale)
    process, pipe = start(acknowledged, port, 0, 100, 20, PAYLOAD_BYTES, seconds, "paced{:03d}")
    count, used = run_to_end(process, pipe, pid)
    delivered = len(deliveries.recv())
    reader.join()
    PEAKS[str(pid)] = count / seconds
    return {
        "messages/s": count / seconds,
        "CPU us": 1e6 * used / max(1, count),
        "delivered %": 100 * delivered / max(1, count),
    }


def half_peak(port: int, pid: int, scale: float) -> Result:
    """Publish to deliver, QoS 1, 100 publishers at half of the smallest peak of `peak_qos_1`."""
    return _paced(port, pid, int(min(PEAKS.values(), default=20_000) / 2), scale)


def devices(port: int, pid: int, scale: float) -> Result:
    """1,000 publishers, QoS 1, one publish outstanding each."""
    seconds = max(2.0, 6 * scale)
    process, pipe = start(one_outstanding, port, 1000, PAYLOAD_BYTES, seconds)
    count, used = run_to_end(process, pipe, pid)
    return {"messages/s": count / seconds, "CPU us": 1e6 * used / max(1, count)}


def ordinary(port: int, pid: int, scale: float) -> Result:
    """100 publishers, QoS 1, 2,000 publishes a second in all -> 1 subscriber, QoS 1."""
    return _paced(port, pid, 2000, scale)


def _paced(port: int, pid: int, rate: int, scale: float) -> Result:
    reader, deliveries = start(timed, port, 0, PAYLOAD_BYTES)
    assert deliveries.recv() == "ready"
    process, pipe = start(paced, port, 0, 100, rate, PAYLOAD_BYTES, max(3.0, 8 * scale))
    assert pipe.recv() == "ready"
    before = cpu_s(pid)
    pipe.send("go")
    sent = pipe.recv()
    found = deliveries.recv()
    used = cpu_s(pid) - before
    process.join()
    reader.join()
    return {
        "rate/s": rate,
        "p50 ms": 1000 * found[len(found) // 2],
        "p99 ms": 1000 * found[int(len(found) * 0.99)],
        "p99.9 ms": 1000 * found[int(len(found) * 0.999)],
        "CPU us": 1e6 * used / max(1, sent),
        "delivered %": 100 * len(found) / sent,
    }


SCENARIOS: dict[str, Callable[[int, int, float], Result]] = {
    each.__name__: each
    for each in (qos_0, fed_by_mosquitto_pub, fan_out, many_names, qos_1, latency_qos_0,
                 latency_qos_1, peak_qos_1, half_peak, devices, ordinary)
}  # fmt: skip
SLOW = {"amqtt": 0.01}
"""Brokers that get a smaller share of the load, so that a run ends."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brokers", default="lakemq,mosquitto")
    parser.add_argument("--scenarios", default=",".join(SCENARIOS))
    parser.add_argument("--scale", type=float, default=1.0)
    arguments = parser.parse_args()
    names = arguments.brokers.split(",")
    for scenario in arguments.scenarios.split(","):
        run = SCENARIOS[scenario]
        print(f"{scenario}: {run.__doc__}", flush=True)
        results: dict[str, Result] = {}
        for name in names:
            with tempfile.TemporaryDirectory() as folder, BROKERS[name](Path(folder)) as found:
                port, pid = found
                results[name] = run(port, pid, arguments.scale * SLOW.get(name, 1.0))
            shown = "  ".join(f"{key} {value:,.2f}" for key, value in results[name].items())
            print(f"  {name:10} {shown}", flush=True)
        first = results[names[0]]
        for name in names[1:]:
            ratios = "  ".join(
                f"{key} x{first[key] / results[name][key]:.2f}"
                for key in first
                if results[name][key]
            )
            print(f"  {names[0]} / {name}: {ratios}", flush=True)


if __name__ == "__main__":
    main()
