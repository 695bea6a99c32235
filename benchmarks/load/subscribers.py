"""Subscribers, each function in a process of its own, with the protocol of `publishers`."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from array import array
from collections.abc import Sequence
from multiprocessing.connection import Connection as Pipe

from benchmarks.harness.statistics import Latencies
from benchmarks.load.packets import (
    PUBLISH,
    PUBREL,
    STAMP,
    Load,
    Poller,
    dial,
    frames,
    send_whole,
    subscribe,
)

QUIET_S = 5.0
STALLED_S = 15.0


def count_bytes(port: int, load: Load, pipe: Pipe) -> None:
    """QoS 0: count what arrives, in bytes, until the parent tells how many were sent to each and
    these have come, or nothing came for some seconds. Sends `bytes` and the time of the `last`."""
    socks = [dial(port, f"count-{place}") for place in range(load.subscribers)]
    for sock in socks:
        subscribe(sock, load.filter, 0)
    poller = Poller(socks)
    pipe.send("ready")
    pipe.recv()
    used, got, last, expected = time.process_time(), 0, time.perf_counter(), None
    buffer = bytearray(1 << 20)
    while expected is None or got < expected:
        if expected is None and pipe.poll():
            expected = pipe.recv() * load.subscribers
            continue
        ready = poller.readable(0.02)
        for number in ready:
            got += poller.socks[number].recv_into(buffer)
        if ready:
            last = time.perf_counter()
        elif expected is not None and time.perf_counter() > last + QUIET_S:
            break
    pipe.send({"bytes": got, "last": last, "cpu_s": time.process_time() - used})


class Receiver:
    """What one connection received: counts, latencies of stamped payloads, and its answers."""

    def __init__(self, stamped: bool) -> None:
        self.rest = b""
        self.count = 0
        self.stamped = stamped
        self.latencies = array("d")

    def take(self, data: bytes, now: float) -> bytes:
        """The acknowledgements to send back."""
        data = self.rest + data
        out, end = [], 0
        for first, begin, stop in frames(data):
            end = stop
            kind = first >> 4
            if kind == PUBLISH:
                qos = first >> 1 & 3
                at = begin + 2 + (data[begin] << 8 | data[begin + 1])
                self.count += 1
                if qos:
                    out.append((b"\x40\x02" if qos == 1 else b"\x50\x02") + data[at : at + 2])
                    at += 2
                if self.stamped:
                    self.latencies.append(now - STAMP.unpack_from(data, at)[0])
            elif kind == PUBREL:
                out.append(b"\x70\x02" + data[begin : begin + 2])
        self.rest = data[end:]
        return b"".join(out)


def receive(port: int, load: Load, pipe: Pipe) -> None:
    """Receive and acknowledge until as many as the parent tells have come to all together, or
    nothing came for some seconds. Sends `count`, `last` and an encoded histogram of latencies."""
    socks = [dial(port, f"receive-{place}") for place in range(load.subscribers)]
    for sock in socks:
        subscribe(sock, load.filter, load.subscribe_qos)
    pipe.send("ready")
    pipe.recv()
    collect(socks, load, pipe)


def collect(socks: Sequence[socket.socket], load: Load, pipe: Pipe) -> None:
    poller = Poller(socks)
    states = {number: Receiver(bool(load.rate)) for number in poller.socks}
    used, last, expected, count = time.process_time(), time.perf_counter(), None, 0
    while expected is None or count < expected:
        if expected is None and pipe.poll():
            expected = pipe.recv()
            continue
        ready = poller.readable(0.02)
        for number in ready:
            data = os.read(number, 1 << 18)
            last = time.perf_counter()
            state = states[number]
            before = state.count
            out = state.take(data, last)
            count += state.count - before
            if out:
                with contextlib.suppress(OSError):
                    send_whole(poller.socks[number], out)
        if expected is not None and time.perf_counter() > last + STALLED_S:
            break
    found = Latencies()
    for state in states.values():
        found.record(state.latencies)
    told = {"count": count, "last": last, "cpu_s": time.process_time() - used}
    pipe.send({**told, "latencies": found.encode()})
