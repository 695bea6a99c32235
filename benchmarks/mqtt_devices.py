"""13 devices publish 121,641 readings of 60 bytes at QoS 1 through paho: who is the bottleneck?

    python -m benchmarks.mqtt_devices [--processes 2] [--inflight 100] [--address 127.0.0.1:1883]

Starts a node of its own unless an address is given. Prints records/s and the CPU that the broker
and the clients took; the broker is not the bottleneck while its CPU is well below the elapsed time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from pathlib import Path

import paho.mqtt.client as paho
import psutil

from tests.support.node.node import NodeProcess

DEVICES = 13
READINGS = 9357
PAYLOAD = b"x" * 60


def device(port: int, number: int, count: int, inflight: int) -> paho.Client:
    """Connect a device and hand all its readings to paho."""
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=f"device-{number}")
    client.max_inflight_messages_set(inflight)
    client.max_queued_messages_set(0)
    client.connect("127.0.0.1", port)
    client.loop_start()
    return client


def publish(port: int, numbers: list[int], count: int, inflight: int) -> None:
    """One process: its devices' readings, and wait until all are acknowledged."""
    clients = [device(port, number, count, inflight) for number in numbers]
    last = []
    for _ in range(count):
        last = [
            client.publish(f"air/{number}", PAYLOAD, 1)
            for client, number in zip(clients, numbers, strict=True)
        ]
    for info in last:
        info.wait_for_publish(300)
    for client in clients:
        client.disconnect()
        client.loop_stop()


def cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def measure(port: int, pid: int | None, processes: int, count: int, inflight: int) -> None:
    shares = [list(range(start, DEVICES, processes)) for start in range(processes)]
    workers = [
        multiprocessing.Process(target=publish, args=(port, share, count, inflight))
        for share in shares
    ]
    before, began = cpu_s(pid) if pid else 0.0, time.perf_counter()
    children = os.times()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        if worker.exitcode:
            raise SystemExit(f"a publisher ended with {worker.exitcode}")
    elapsed = time.perf_counter() - began
    after = os.times()
    spent = after.children_user + after.children_system
    spent -= children.children_user + children.children_system
    total = DEVICES * count
    broker = cpu_s(pid) - before if pid else float("nan")
    print(
        f"{total} publishes, QoS 1, {len(PAYLOAD)} bytes, {processes} client processes: "
        f"{elapsed:.2f} s, {total / elapsed:,.0f}/s; CPU broker {broker:.2f} s "
        f"({1e6 * broker / total:.1f} us each), clients {spent:.2f} s "
        f"({1e6 * spent / total:.1f} us each)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--count", type=int, default=READINGS)
    parser.add_argument("--inflight", type=int, default=100)
    parser.add_argument("--address")
    arguments = parser.parse_args()
    if arguments.address:
        port = int(arguments.address.rpartition(":")[2])
        measure(port, None, arguments.processes, arguments.count, arguments.inflight)
        return
    with tempfile.TemporaryDirectory() as folder, NodeProcess(Path(folder)) as node:
        measure(node.mqtt_port, node.pid, arguments.processes, arguments.count, arguments.inflight)


if __name__ == "__main__":
    main()
