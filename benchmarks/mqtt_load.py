"""Load for MQTT benchmarks over raw sockets: packets are built beforehand, so that the generator
is not what is measured. Each function runs in a process of its own.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from typing import Any

import numpy

from lakemq.plugins.mqtt.wire.codec import Decoder
from lakemq.plugins.mqtt.wire.encoding import encode
from lakemq.plugins.mqtt.wire.packets import V311, Connect, Filter, Publish, Subscribe

SPAWN = get_context("spawn")
CHUNK_BYTES = 1 << 18
PUBACK_BYTES = 4


def dial(port: int, client_id: str) -> socket.socket:
    """A connected MQTT 3.1.1 client."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(encode(Connect(client_id), V311))
    assert _exactly(sock, 4)[3] == 0
    return sock


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            raise ConnectionError("closed by the broker")
        data += more
    return data


def subscribe(sock: socket.socket, topic_filter: str, qos: int = 0) -> None:
    sock.sendall(encode(Subscribe(1, (Filter(topic_filter, qos),)), V311))
    _exactly(sock, 5)


def flood(port: int, number: int, names: list[str], count: int, payload_bytes: int) -> None:
    """Send `count` QoS 0 publishes to `names` in turn, as fast as the broker takes them."""
    sock = dial(port, f"sender-{number}")
    packets = [encode(Publish(name, b"x" * payload_bytes), V311) for name in names]
    rounds = max(1, CHUNK_BYTES // sum(map(len, packets)))
    chunk, each = b"".join(packets) * rounds, rounds * len(packets)
    for _ in range(count // each):
        sock.sendall(chunk)
    rest = count % each
    sock.sendall(b"".join(packets[place % len(packets)] for place in range(rest)))
    sock.shutdown(socket.SHUT_WR)
    while sock.recv(1 << 16):  # until the broker has read everything and closed
        pass


def count_bytes(
    port: int, number: int, subscribers: int, topic_filter: str, expected_bytes: int, pipe: Pipe
) -> None:
    """Subscribe, report readiness, then read until `expected_bytes` came on each connection or
    nothing came for 2 s. Reports (bytes, time of the last byte)."""
    selector = selectors.DefaultSelector()
    for place in range(subscribers):
        sock = dial(port, f"reader-{number}-{place}")
        subscribe(sock, topic_filter)
        sock.setblocking(False)
        selector.register(sock, selectors.EVENT_READ)
    pipe.send("ready")
    got, last, goal = 0, time.time(), expected_bytes * subscribers
    buffer = bytearray(1 << 20)
    patience = 30.0
    while got < goal:
        events = selector.select(timeout=patience)
        if not events:
            break
        patience = 2.0
        for key, _ in events:
            got += key.fileobj.recv_into(buffer)  # type: ignore[union-attr]
        last = time.time()
    pipe.send((got, last))


class Window:
    """One QoS 1 publisher that keeps `window` publishes unacknowledged."""

    def __init__(self, port: int, name: str, topic: str, window: int, payload_bytes: int) -> None:
        self.sock = dial(port, name)
        self.sock.setblocking(False)
        packet = encode(Publish(topic, b"x" * payload_bytes, 1, packet_id=1), V311)
        at = len(packet) - payload_bytes - 2
        self.packets = [
            packet[:at] + number.to_bytes(2, "big") + packet[at + 2 :]
            for number in range(1, window + 1)
        ]
        self.rest = b""

    def start(self) -> None:
        self.sock.setblocking(True)
        self.sock.sendall(b"".join(self.packets))
        self.sock.setblocking(False)

    def turn(self) -> int:
        """Read acknowledgements and send as many publishes again; how many it were."""
        data = self.rest + self.sock.recv(1 << 16)
        whole = len(data) // 4 * 4
        self.rest = data[whole:]
        identifiers = range(2, whole, 4)
        out = b"".join(
            [self.packets[(data[place] << 8 | data[place + 1]) - 1] for place in identifiers]
        )
        self.sock.setblocking(True)
        self.sock.sendall(out)
        self.sock.setblocking(False)
        return whole // 4


def acknowledged(
    port: int,
    number: int,
    publishers: int,
    window: int,
    payload_bytes: int,
    seconds: float,
    topic: str,
    pipe: Pipe,
) -> None:
    """QoS 1 from `publishers` connections for `seconds`, each to a `topic` of its own; reports how
    many were acknowledged."""
    selector = selectors.DefaultSelector()
    windows = [
        Window(port, f"p{number}-{place}", topic.format(place), window, payload_bytes)
        for place in range(publishers)
    ]
    for each in windows:
        selector.register(each.sock, selectors.EVENT_READ, each)
    pipe.send("ready")
    pipe.recv()
    for each in windows:
        each.start()
    count, end = 0, time.time() + seconds
    while time.time() < end:
        for key, _ in selector.select(timeout=0.1):
            count += key.data.turn()
    pipe.send(count)


def one_outstanding(
    port: int, publishers: int, payload_bytes: int, seconds: float, pipe: Pipe
) -> None:
    """QoS 1 from `publishers` connections for `seconds`, each to a topic name of its own, the next
    publish when the PUBACK of the one before is there; reports how many were acknowledged."""
    poll, socks, packets = select.epoll(), {}, {}
    for place in range(publishers):
        sock = dial(port, f"device-{place}")
        number = sock.fileno()
        topic = f"devices/{place:04d}"
        socks[number] = sock
        packets[number] = encode(Publish(topic, b"x" * payload_bytes, 1, packet_id=1), V311)
        poll.register(number, select.EPOLLIN)
    pipe.send("ready")
    pipe.recv()
    for number, sock in socks.items():
        sock.send(packets[number])
    count, end = 0, time.monotonic() + seconds
    read, write = os.read, os.write
    while time.monotonic() < end:
        events = poll.poll(0.1, publishers)
        for number, _ in events:
            if len(read(number, 64)) != PUBACK_BYTES:
                raise ConnectionError("not one PUBACK")
            write(number, packets[number])
        count += len(events)
    pipe.send(count)


def latencies(
    port: int, rate: int, qos: int, payload_bytes: int, seconds: float, pipe: Pipe
) -> None:
    """Publish at a fixed rate on one connection and receive on another; reports sorted seconds
    from publish to delivery."""
    sender, reader = dial(port, "lat-sender"), dial(port, "lat-reader")
    subscribe(reader, "latency", qos)
    found: list[float] = []
    total = int(rate * seconds)

    def read() -> None:
        decoder = Decoder(1 << 20, version=V311)
        while len(found) < total:
            data = reader.recv(1 << 16)
            now = time.perf_counter()
            acks = b""
            for packet in decoder.feed(data):
                assert isinstance(packet, Publish)
                found.append(now - float(packet.payload[:20]))
                if packet.qos:
                    acks += b"\x40\x02" + packet.packet_id.to_bytes(2, "big")
            if acks:
                reader.sendall(acks)

    def drain() -> None:
        while sender.recv(1 << 16):
            pass

    thread = threading.Thread(target=read)
    thread.start()
    threading.Thread(target=drain, daemon=True).start()
    pipe.send("ready")
    begin = time.perf_counter()
    for number in range(total):
        due = begin + number / rate
        while (now := time.perf_counter()) < due:
            time.sleep(max(0.0, min(0.001, due - now)))
        payload = f"{now:020.9f}".encode().ljust(payload_bytes)
        packet_id = number % 65_535 + 1 if qos else 0
        sender.sendall(encode(Publish("latency", payload, qos, packet_id=packet_id), V311))
    thread.join(timeout=30)
    pipe.send(sorted(found))


PACED_NAME_BYTES = 8
TICK_S = 0.001


def paced(
    port: int,
    number: int,
    publishers: int,
    rate: int,
    payload_bytes: int,
    seconds: float,
    pipe: Pipe,
) -> None:
    """QoS 1 from `publishers` connections, together `rate` a second, in ticks of a millisecond; the
    payload begins with the time of sending. Reports how many were sent."""
    socks = [dial(port, f"paced-{number}-{place}") for place in range(publishers)]
    packets = [
        bytearray(encode(Publish(f"paced{place:03d}", b"x" * payload_bytes, 1, packet_id=1), V311))
        for place in range(publishers)
    ]
    at = len(packets[0]) - payload_bytes
    for sock in socks:
        sock.setblocking(False)
    pipe.send("ready")
    pipe.recv()
    sent, begin = 0, time.perf_counter()
    while (now := time.perf_counter()) < begin + seconds:
        due = int((now - begin) * rate)
        for place in range(sent, due):
            sock, packet = socks[place % publishers], packets[place % publishers]
            identifier = place // publishers % 65_535 + 1
            struct.pack_into(">H", packet, at - 2, identifier)
            struct.pack_into("<d", packet, at, time.perf_counter())
            sock.send(packet)
            if identifier % 16 == 0:
                with contextlib.suppress(BlockingIOError):
                    sock.recv(1 << 16)
        sent = due
        time.sleep(max(0.0, now + TICK_S - time.perf_counter()))
    pipe.send(sent)
    time.sleep(1)


def timed(port: int, number: int, payload_bytes: int, pipe: Pipe) -> None:
    """Receive what `paced` sends, at QoS 1, acknowledging each; reports sorted seconds from publish
    to delivery when nothing came for a second."""
    sock = dial(port, f"timed-{number}")
    subscribe(sock, "+", 1)
    size = 2 + 2 + PACED_NAME_BYTES + 2 + payload_bytes
    found: list[Any] = []
    rest = b""
    pipe.send("ready")
    sock.settimeout(10)
    with contextlib.suppress(TimeoutError):
        while data := sock.recv(1 << 18):
            now = time.perf_counter()
            data = rest + data
            count = len(data) // size
            rest = data[count * size :]
            rows = numpy.frombuffer(data, numpy.uint8, count * size).reshape(count, size)
            acks = numpy.empty((count, 4), numpy.uint8)
            acks[:] = (0x40, 2, 0, 0)
            acks[:, 2:] = rows[:, size - payload_bytes - 2 : size - payload_bytes]
            sock.sendall(acks.tobytes())
            times = rows[:, size - payload_bytes : size - payload_bytes + 8].copy().view("<f8")
            found.append(now - times.ravel())
            sock.settimeout(1)
    pipe.send(numpy.sort(numpy.concatenate(found)).tolist() if found else [])


def start(target: Callable[..., None], *arguments: Any) -> tuple[Any, Pipe]:
    """Run `target(*arguments, pipe)` in a process; returns it and our end of the pipe."""
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=target, args=(*arguments, theirs), daemon=True)
    process.start()
    return process, ours


def run_all(target: Callable[..., None], argument_lists: Iterable[tuple[Any, ...]]) -> None:
    processes = [SPAWN.Process(target=target, args=each, daemon=True) for each in argument_lists]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
