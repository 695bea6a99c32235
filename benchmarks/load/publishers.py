"""Publishers, each function in a process of its own: floods, windows, and at a fixed rate.

A function connects, sends "ready", waits for "go", and sends a dictionary at the end: `count` and
`bytes` that it sent (QoS 1 and 2: that were acknowledged), `cpu_s` of itself, `elapsed_s`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import time
from multiprocessing.connection import Connection as Pipe
from typing import Any

from benchmarks.load.packets import (
    ACK_BYTES,
    PUBREC,
    STAMP,
    STAMP_BYTES,
    Load,
    Poller,
    dial,
    identifier_at,
    send_whole,
)

CHUNK_BYTES = 1 << 18
VARIANTS = 8
PR_SET_TIMERSLACK = 29
LATE_S = 0.002


def flood(port: int, load: Load, seconds: float, pipe: Pipe) -> None:
    """QoS 0 as fast as the broker takes it, `load.count` for each of the seconds: the same number
    for each side, since sockets take more than a broker can deliver. With many publishers a slice
    of each in turn."""
    socks = [dial(port, f"flood-{place}") for place in range(load.publishers)]
    each = max(1, round(load.count * seconds / load.publishers))
    chunks = [flood_chunk(load, place, each) for place in range(load.publishers)]
    pipe.send("ready")
    pipe.recv()
    began, used = time.perf_counter(), time.process_time()
    sent = 0
    for _ in range(-(-each // chunks[0][1])):
        for sock, (chunk, _) in zip(socks, chunks, strict=True):
            sock.sendall(chunk)
            sent += len(chunk)
    count = -(-each // chunks[0][1]) * sum(packets for _, packets in chunks)
    told = {"count": count, "bytes": sent, "began": began}
    elapsed = time.perf_counter() - began
    pipe.send({**told, "elapsed_s": elapsed, "cpu_s": time.process_time() - used})
    pipe.recv()  # hold the connections until everything has been delivered
    for sock in socks:
        sock.close()


def flood_chunk(load: Load, place: int, each: int) -> tuple[bytes, int]:
    """Packets of one publisher that are sent at once, the same number for each, and how many."""
    names = max(1, load.names // load.publishers)
    sample = load.packets_of(place, names, False)
    fitting = CHUNK_BYTES // load.publishers // max(1, sum(map(len, sample)))
    wanted = min(each, names * max(1, fitting))
    return b"".join(load.packets_of(place, wanted, False)), wanted


class Outstanding:
    """A publisher that keeps `window` publishes unacknowledged, at QoS 1 or 2."""

    def __init__(self, load: Load, place: int) -> None:
        self.window = load.window
        slots = load.window * -(-VARIANTS // load.window)
        self.packets = load.packets_of(place, slots, True)
        self.slots = slots
        self.rest = b""

    def first(self) -> bytes:
        return b"".join(self.packets[: self.window])

    def turn(self, data: bytes) -> tuple[int, bytes]:
        """How many publishes were completed, and what to send in answer."""
        data = self.rest + data
        whole = len(data) // ACK_BYTES * ACK_BYTES
        self.rest = data[whole:]
        packets, slots, ahead = self.packets, self.slots, self.window - 1
        out, done = [], 0
        for at in range(0, whole, ACK_BYTES):
            identifier = data[at + 2] << 8 | data[at + 3]
            if data[at] >> 4 == PUBREC:
                out.append(b"\x62\x02" + data[at + 2 : at + 4])
            else:  # PUBACK or PUBCOMP
                out.append(packets[(identifier + ahead) % slots])
                done += 1
        return done, b"".join(out)


def windows(port: int, load: Load, seconds: float, pipe: Pipe) -> None:
    """QoS 1 or 2: the next publish when one of the window's is acknowledged."""
    socks = [dial(port, f"window-{load.seed}-{place}") for place in range(load.publishers)]
    poller = Poller(socks)
    states = {sock.fileno(): Outstanding(load, place) for place, sock in enumerate(socks)}
    pipe.send("ready")
    pipe.recv()
    began, used = time.perf_counter(), time.process_time()
    for number, state in states.items():
        send_whole(poller.socks[number], state.first())
    count, end, read, write = 0, began + seconds, os.read, os.write
    while time.perf_counter() < end:
        for number in poller.readable(0.1):
            if not (data := read(number, 1 << 16)):
                raise ConnectionError("closed by the broker")
            done, out = states[number].turn(data)
            count += done
            if write(number, out) != len(out):
                raise ConnectionError("the broker does not read what was acknowledged")
    elapsed = time.perf_counter() - began
    pipe.send({"count": count, "cpu_s": time.process_time() - used, "elapsed_s": elapsed})
    time.sleep(0.2)  # what is under way


def exact_sleep() -> None:
    """Let sleeps of this process end when they are due, not 50 us later."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)


class Paced:
    """A publisher whose packets carry the time at which they were due."""

    def __init__(self, load: Load, place: int) -> None:
        self.packets = [
            bytearray(each) for each in load.packets_of(place, VARIANTS, bool(load.qos))
        ]
        self.at = [identifier_at(each) for each in self.packets]
        self.qos = load.qos
        self.sent = 0

    def packet(self, due: float) -> bytearray:
        variant = self.sent % VARIANTS
        packet, at = self.packets[variant], self.at[variant]
        STAMP.pack_into(packet, at, due)
        if self.qos:
            struct.pack_into(">H", packet, at - 2, self.sent % 65_535 + 1)
        self.sent += 1
        return packet


def paced(port: int, load: Load, seconds: float, pipe: Pipe) -> None:
    """`load.rate` a second in all, open-loop: a publish is stamped with the time at which it was
    due, so that what waits for a slow broker counts as its latency. `late` tells how many the
    generator itself sent more than 2 ms late."""
    exact_sleep()
    socks = [dial(port, f"paced-{load.seed}-{place}") for place in range(load.publishers)]
    poller = Poller(socks)
    states = [Paced(load, place) for place in range(load.publishers)]
    assert min(load.payload) >= STAMP_BYTES
    pipe.send("ready")
    pipe.recv()
    total, count, late, publishers = int(load.rate * seconds), 0, 0, load.publishers
    used, begin = time.process_time(), time.perf_counter()
    acks_at = begin
    while count < total:
        now = time.perf_counter()
        due = begin + count / load.rate
        if now < due:
            if now >= acks_at:  # acknowledgements are only thrown away, now and then
                for number in poller.readable(0):
                    os.read(number, 1 << 16)
                acks_at = now + 0.02
            time.sleep(max(0.0, due - time.perf_counter()))
            continue
        late += now - due > LATE_S
        place = count % publishers
        send_whole(socks[place], states[place].packet(due))
        count += 1
    elapsed = time.perf_counter() - begin
    told: dict[str, Any] = {"count": count, "late": late, "elapsed_s": elapsed}
    pipe.send({**told, "cpu_s": time.process_time() - used})
    pipe.recv()  # hold the connections until everything has been delivered
