"""Connecting, and what a broker keeps for clients that are away: queues and retained messages."""

from __future__ import annotations

import os
import socket
import time
from multiprocessing.connection import Connection as Pipe
from typing import Any

from benchmarks.harness.declare import Running, Sample
from benchmarks.harness.processes import cpu_s, rss_mb
from benchmarks.load import subscribers
from benchmarks.load.crew import crew, go, ready, told
from benchmarks.load.packets import (
    V311,
    Connect,
    Load,
    accepted,
    dial,
    encode,
    exactly,
    send_subscribe,
    subscribe,
)
from benchmarks.sides.lakemq import raise_file_limit

AT_ONCE = 50
"""Fewer than any broker lets wait to be accepted: a refused one would try again after a second."""
PER_ADDRESS = 20_000
IP_BIND_ADDRESS_NO_PORT = 24
"""Of ip(7)."""


def open_idle(port: int, count: int, prefix: str, pipe: Pipe) -> None:
    """Connect `count` clients, 50 at a time, and hold them until told to end."""
    raise_file_limit()
    pipe.send("ready")
    pipe.recv()
    began, used, socks = time.perf_counter(), time.process_time(), []
    for first in range(0, count, AT_ONCE):
        # Ports run out on one address, and those of the process before are in TIME_WAIT.
        address = f"127.0.{1 + os.getpid() % 250}.{1 + first // PER_ADDRESS}"
        some = [
            unanswered(port, f"{prefix}{first + place}", address)
            for place in range(min(AT_ONCE, count - first))
        ]
        for sock in some:
            accepted(sock)
        socks += some
    elapsed = time.perf_counter() - began
    pipe.send({"elapsed_s": elapsed, "cpu_s": time.process_time() - used})
    pipe.recv()


def unanswered(port: int, client_id: str, address: str) -> socket.socket:
    sock = socket.socket()
    sock.settimeout(60)
    # The port is chosen when it connects, which takes longer the more of them are in use otherwise.
    sock.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
    sock.bind((address, 0))
    sock.connect(("127.0.0.1", port))
    sock.sendall(encode(Connect(client_id), V311))
    return sock


def connects(count: int, side: Running, _seconds: float) -> Sample:
    """So many clients connect and stay: connects a second, and what each takes."""
    memory = rss_mb(side.pids, peak=False)
    with crew() as members:
        holder = members.start(open_idle, side.port, count, "idle-")
        ready([holder])
        before = cpu_s(side.pids)
        go([holder])
        answer = told(holder)
        used = cpu_s(side.pids) - before
        each_kib = (rss_mb(side.pids, peak=False) - memory) * 1e6 / 1024 / count
        holder.send("end")
    return {
        "rate": count / answer["elapsed_s"],
        "cpu_us": 1e6 * used / count,
        "each_kib": max(0.0, each_kib),
        "generator_pct": 100 * answer["cpu_s"] / answer["elapsed_s"],
    }


def publish_all(port: int, load: Load, each: int, pipe: Pipe) -> None:
    """`each` publishes of every publisher at QoS 1, in windows; done when all are acknowledged."""
    pipe.send("ready")
    pipe.recv()
    for place in range(load.publishers):
        sock = dial(port, f"fill-{place}")
        packets = load.packets_of(place, each, True)
        for first in range(0, each, load.window):
            some = packets[first : first + load.window]
            sock.sendall(b"".join(some))
            exactly(sock, 4 * len(some))
        sock.close()
    pipe.send("done")


def fill(port: int, load: Load, each: int) -> None:
    with crew() as members:
        sender = members.start(publish_all, port, load, each)
        ready([sender])
        go([sender])
        assert told(sender) == "done"


def drain(load: Load, count: int, side: Running, seconds: float) -> Sample:
    """Messages that waited for subscribers with a session come back to them: from CONNECT to the
    last, at QoS 1."""
    count = max(load.publishers, int(count * seconds))
    for place in range(load.subscribers):
        sock = dial(side.port, f"receive-{place}", clean=False)
        subscribe(sock, load.filter, 1)
        sock.sendall(b"\xe0\0")
        sock.close()
    fill(side.port, load, count // load.publishers)
    wanted = count // load.publishers * load.publishers * load.subscribers
    before = cpu_s(side.pids)
    with crew() as members:
        reader = members.start(returning, side.port, load)
        ready([reader])
        began = time.perf_counter()
        go([reader])
        reader.send(wanted)
        got = told(reader)
    for place in range(load.subscribers):  # end the sessions
        dial(side.port, f"receive-{place}").close()
    return burst(side, got, wanted, before, began)


def retained(load: Load, count: int, side: Running, seconds: float) -> Sample:
    """Subscribers come to a broker that retains messages of many names; each gets all."""
    names = max(1, int(count * seconds))
    kept = load.sized(names=names, retain=True, qos=1, publishers=1, window=100)
    fill(side.port, kept, names)
    before = cpu_s(side.pids)
    with crew() as members:
        reader = members.start(storm, side.port, load)
        ready([reader])
        began = time.perf_counter()
        go([reader])
        reader.send(names * load.subscribers)
        got = told(reader)
    return burst(side, got, names * load.subscribers, before, began)


def burst(
    side: Running, got: dict[str, Any], wanted: int, cpu_before: float, began: float
) -> Sample:
    elapsed = max(1e-6, got["last"] - began)
    return {
        "rate": got["count"] / elapsed,
        "cpu_us": 1e6 * (cpu_s(side.pids) - cpu_before) / max(1, got["count"]),
        "delivered_pct": 100 * got["count"] / wanted,
        "generator_pct": 100 * got["cpu_s"] / elapsed,
    }


def returning(port: int, load: Load, pipe: Pipe) -> None:
    """Receive what waited for sessions of before. Says CONNECT when it is told to go: a broker may
    send everything at once, before the next client is connected."""
    socks = [socket.create_connection(("127.0.0.1", port)) for _ in range(load.subscribers)]
    for sock in socks:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    pipe.send("ready")
    pipe.recv()
    for place, sock in enumerate(socks):
        sock.sendall(encode(Connect(f"receive-{place}", clean_start=False), V311))
    subscribers.collect(socks, load, pipe)


def storm(port: int, load: Load, pipe: Pipe) -> None:
    """As `subscribers.receive`, but subscribes when it is told to go."""
    socks = [dial(port, f"storm-{place}") for place in range(load.subscribers)]
    pipe.send("ready")
    pipe.recv()
    for sock in socks:
        send_subscribe(sock, load.filter, 0)
    subscribers.collect(socks, load, pipe)
