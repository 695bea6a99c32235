"""How much one MQTT node holds: idle connections, connects a second, a million subscriptions.

python -m benchmarks.mqtt_capacity [--connections 20000] [--subscriptions 1000000]
"""

from __future__ import annotations

import argparse
import gc
import resource
import socket
import tempfile
import time
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import psutil

from benchmarks.mqtt_load import start
from lakemq.broker_core.api.types import ANONYMOUS
from lakemq.plugins.mqtt.routing.subscriptions import SubscriptionIndex
from lakemq.plugins.mqtt.state.delivery import DeliveryLimits
from lakemq.plugins.mqtt.state.sessions import Session, Subscription
from lakemq.plugins.mqtt.wire.encoding import encode
from lakemq.plugins.mqtt.wire.packets import V311, Connect
from lakemq.plugins.mqtt.wire.topics import Address
from tests.support.node.node import NodeProcess


def open_idle(port: int, first: int, count: int, pipe: Pipe) -> None:
    """Connect `count` clients, 200 at a time, and hold them until told to end."""
    _raise_file_limit()
    socks: list[socket.socket] = []
    address = f"127.0.0.{2 + first % 200}"  # client ports run out on one address
    for begin in range(0, count, 200):
        some = [
            socket.create_connection(("127.0.0.1", port), source_address=(address, 0))
            for _ in range(min(200, count - begin))
        ]
        for place, sock in enumerate(some):
            sock.sendall(encode(Connect(f"idle-{first + begin + place}"), V311))
        for sock in some:
            if sock.recv(4) != b"\x20\2\0\0":
                raise SystemExit("a client was not let in")
        socks += some
    pipe.send("connected")
    pipe.recv()


def _raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def idle_connections(count: int) -> None:
    _raise_file_limit()  # the node inherits it
    with tempfile.TemporaryDirectory() as folder, NodeProcess(Path(folder)) as node:
        process = psutil.Process(node.pid)
        before, cpu = process.memory_info().rss, process.cpu_times()
        began = time.perf_counter()
        holder, pipe = start(open_idle, node.mqtt_port, 0, count)
        assert pipe.recv() == "connected"
        took = time.perf_counter() - began
        spent = process.cpu_times()
        spent_s = spent.user + spent.system - cpu.user - cpu.system
        each = (process.memory_info().rss - before) / count
        time.sleep(5)
        idle = process.cpu_times()
        idle_s = idle.user + idle.system - spent.user - spent.system
        print(
            f"{count} idle connections: {each / 1024:.1f} KiB resident each; connected in "
            f"{took:.1f} s, {count / took:,.0f}/s, broker CPU {1e6 * spent_s / count:.0f} us each "
            f"({count / spent_s:,.0f}/s on one core); idle CPU {100 * idle_s / 5:.1f} %"
        )
        pipe.send("end")
        holder.join()


def subscriptions(count: int) -> None:
    gc.collect()
    process = psutil.Process()
    index, limits = SubscriptionIndex(), DeliveryLimits()
    sessions = [Session(f"s{n}", ANONYMOUS, limits) for n in range(100)]
    before = process.memory_info().rss
    shapes = ("site/{}/+/temperature", "site/{}/line/#", "device/{}/state", "+/{}/alarm")
    began = time.perf_counter()
    for number in range(count):
        text = shapes[number % 4].format(number // 4)
        index.add(Subscription(sessions[number % 100], Address(text), 1, 0))
    took = time.perf_counter() - began
    each = (process.memory_info().rss - before) / count
    names = [f"site/{n * 7 % (count // 4)}/line/temperature" for n in range(20_000)]
    began = time.perf_counter()
    found = sum(len(index.match(name).targets) for name in names)
    match_us = 1e6 * (time.perf_counter() - began) / len(names)
    print(
        f"{count} subscriptions in 4 shapes: {each:.0f} B each, added in {1e6 * took / count:.1f} "
        f"us each; a match of a new name {match_us:.1f} us ({found / len(names):.1f} subscribers)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=20_000)
    parser.add_argument("--subscriptions", type=int, default=1_000_000)
    arguments = parser.parse_args()
    subscriptions(arguments.subscriptions)
    idle_connections(arguments.connections)


if __name__ == "__main__":
    main()
