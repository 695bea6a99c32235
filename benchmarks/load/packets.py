"""MQTT packets for the generators, built beforehand with seeded lengths and names; pure but for
the connecting."""

from __future__ import annotations

import os
import random
import resource
import select
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from lakemq.plugins.mqtt.wire.encoding import encode
from lakemq.plugins.mqtt.wire.packets import V311, Connect, Filter, Publish, Subscribe

STAMP: Final = struct.Struct("<d")
STAMP_BYTES: Final = STAMP.size
ACK_BYTES: Final = 4
PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 3, 4, 5, 6, 7


@dataclass(frozen=True)
class Load:
    """What publishers send and subscribers want. Lengths and names vary unless told otherwise."""

    publishers: int = 1
    names: int = 10
    """Topic names `bench/N/x` in all, divided among the publishers."""
    payload: tuple[int, int] = (50, 200)
    """Least and greatest length (bytes)."""
    qos: int = 0
    window: int = 1
    """Publishes of a publisher that wait for their acknowledgement, where nothing paces them."""
    rate: int = 0
    """Publishes a second of all publishers together, sent when they are due whatever the broker
    does; 0: as fast as acknowledgements (QoS 0: the socket) let them."""
    count: int = 0
    """Of a flood at QoS 0: publishes for each second that it is asked for."""
    subscribers: int = 0
    subscribe_qos: int = 0
    filter: str = "bench/#"
    retain: bool = False
    seed: int = 1

    def sized(self, **changes: object) -> Load:
        return replace(self, **changes)  # type: ignore[arg-type]  # names of fields

    def names_of(self, publisher: int) -> list[str]:
        """A share for each publisher; with fewer names than publishers they share them."""
        mine = range(publisher, self.names, self.publishers) or [publisher % self.names]
        return [f"bench/{number}/x" for number in mine]

    def packets_of(self, publisher: int, count: int, identifiers: bool) -> list[bytes]:
        """`count` packets of one publisher: its names in turn, lengths at random but the same in
        every run; with `identifiers` numbered from 1."""
        rng = random.Random(self.seed * 1_000_003 + publisher)
        names = self.names_of(publisher)
        return [
            encode(
                Publish(
                    names[place % len(names)], rng.randbytes(rng.randint(*self.payload)), self.qos,
                    retain=self.retain, packet_id=place + 1 if identifiers else 0,
                ),
                V311,
            )
            for place in range(count)
        ]  # fmt: skip


def identifier_at(packet: bytes) -> int:
    """Where the payload of a PUBLISH with QoS 1 or 2 begins, behind its packet identifier."""
    at = 1
    while packet[at] & 0x80:
        at += 1
    return at + 1 + 2 + int.from_bytes(packet[at + 1 : at + 3], "big") + 2 * bool(packet[0] & 6)


def dial(port: int, client_id: str, clean: bool = True, source: str = "") -> socket.socket:
    """A connected MQTT 3.1.1 client."""
    address = (source, 0) if source else None
    sock = socket.create_connection(("127.0.0.1", port), source_address=address, timeout=60)
    sock.settimeout(60)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(encode(Connect(client_id, clean_start=clean), V311))
    accepted(sock)
    return sock


def accepted(sock: socket.socket) -> None:
    """Read the CONNACK. Raises ConnectionError for another answer."""
    if (answer := exactly(sock, 4))[:2] != b"\x20\2" or answer[3]:
        raise ConnectionError(f"CONNECT was answered by {answer.hex()}")


def exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            raise ConnectionError("closed by the broker")
        data += more
    return data


def subscribe(sock: socket.socket, topic_filter: str, qos: int) -> None:
    """Raises ConnectionError where the answer refuses it."""
    send_subscribe(sock, topic_filter, qos)
    if exactly(sock, 5)[4] > 2:
        raise ConnectionError(f"the broker refuses to subscribe to {topic_filter}")


def send_subscribe(sock: socket.socket, topic_filter: str, qos: int) -> None:
    sock.sendall(encode(Subscribe(1, (Filter(topic_filter, qos),)), V311))


def frames(data: bytes, at: int = 0) -> Iterator[tuple[int, int, int]]:
    """(first byte, begin of the variable header, end) of each whole packet."""
    size = len(data)
    while at + 2 <= size:
        length, begin = data[at + 1], at + 2
        if length & 0x80:
            length &= 0x7F
            shift = 7
            while begin < size:
                more = data[begin]
                begin += 1
                length |= (more & 0x7F) << shift
                shift += 7
                if not more & 0x80:
                    break
            else:
                return
        if begin + length > size:
            return
        yield data[at], begin, begin + length
        at = begin + length


class Poller:
    """Sockets by descriptor, and which can be read."""

    def __init__(self, socks: Sequence[socket.socket]) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard), hard))
        self.socks = {sock.fileno(): sock for sock in socks}
        self._poll = select.epoll()
        for number, sock in self.socks.items():
            sock.setblocking(False)
            self._poll.register(number, select.EPOLLIN)
        self._most = max(1, len(self.socks))

    def readable(self, timeout_s: float) -> list[int]:
        return [number for number, _ in self._poll.poll(timeout_s, self._most)]


def send_whole(sock: socket.socket, data: bytes) -> None:
    """To a non-blocking socket, waiting for room."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(sock.fileno(), view) :]
        except BlockingIOError:
            select.select([], [sock], [], 1.0)
