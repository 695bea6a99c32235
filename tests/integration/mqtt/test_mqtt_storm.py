"""Goal: a storm of connections, as fast as one machine makes them, neither stops a real node nor
makes it grow, and a client that behaves is served all the while.

`LAKEMQ_STORM=10000` makes it ten thousand connections.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import paho.mqtt.client as paho
import psutil
import pytest

from lakemq.plugins.mqtt.wire.encoding import encode
from lakemq.plugins.mqtt.wire.packets import V5, V311, Connect, Publish
from tests.support.node.node import PORTS_FREE, NodeProcess

COUNT = int(os.environ.get("LAKEMQ_STORM", "2000"))
HELD = 200
"""Connections that one kind of storm holds open at a time."""
GROWTH_MAX_BYTES = 48 * 1024 * 1024
CONNECT = encode(Connect("storm"), V311)
RESET = struct.pack("ii", 1, 0)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    config = PORTS_FREE.replace(
        "[plugins.mqtt]", "[plugins.mqtt]\nconnect_timeout_ms = 2000\npacket_max_bytes = 65536"
    )
    with NodeProcess(tmp_path_factory.mktemp("storm"), config) as node:
        yield node


def silent(sock: socket.socket, number: int) -> None:
    """Says nothing: a half-open connection."""


def truncated(sock: socket.socket, number: int) -> None:
    sock.sendall(CONNECT[: number % len(CONNECT)])


def garbage(sock: socket.socket, number: int) -> None:
    sock.sendall(os.urandom(64))


def giant(sock: socket.socket, number: int) -> None:
    """A packet that says it is 256 MB long, behind a CONNECT that is let in."""
    sock.sendall(encode(Connect(f"giant-{number}"), V311) + b"\x30\xff\xff\xff\x7f" + b"x" * 1000)


def invalid_utf_8(sock: socket.socket, number: int) -> None:
    packet = encode(Publish("xx", b"", 1, packet_id=1), V5).replace(b"xx", b"\xff\xfe")
    sock.sendall(encode(Connect(f"utf-{number}", V5), V5) + packet)


def reused_packet_ids(sock: socket.socket, number: int) -> None:
    """The same packet identifier again and again, QoS 2, never released."""
    packet = encode(Publish("reused", b"x", 2, packet_id=1), V311)
    sock.sendall(encode(Connect(f"reuse-{number}"), V311) + packet * 20)


def let_in(sock: socket.socket, number: int) -> None:
    sock.sendall(encode(Connect(f"in-{number}"), V311) + b"\xe0\0")


STORMS: list[Callable[[socket.socket, int], None]] = [
    silent,
    truncated,
    garbage,
    giant,
    invalid_utf_8,
    reused_packet_ids,
    let_in,
]


def rage(port: int, act: Callable[[socket.socket, int], None]) -> float:
    """`COUNT` connections, the oldest reset when `HELD` are open; returns connections a second."""
    held: list[socket.socket] = []
    began = time.perf_counter()
    for number in range(COUNT):
        sock = socket.create_connection(("127.0.0.1", port), timeout=20)
        held.append(sock)
        with contextlib.suppress(OSError):
            act(sock, number)
        if len(held) >= HELD:
            oldest = held.pop(0)
            oldest.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            oldest.close()
    took = time.perf_counter() - began
    for sock in held:
        sock.close()
    return COUNT / took


class Witness:
    """Publishes at QoS 1 all the while, and notes how long each acknowledgement took."""

    def __init__(self, port: int) -> None:
        self.waits_s: list[float] = []
        self.lost = False
        self._stop = threading.Event()
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="witness")
        self._client.on_disconnect = self._gone
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        self._thread = threading.Thread(target=self._publish)
        self._thread.start()

    def _gone(self, *_: object) -> None:
        self.lost = not self._stop.is_set()

    def _publish(self) -> None:
        while not self._stop.wait(0.02):
            began = time.perf_counter()
            self._client.publish("witness", b"x", 1).wait_for_publish(20)
            self.waits_s.append(time.perf_counter() - began)

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        self._client.disconnect()
        self._client.loop_stop()


@pytest.mark.parametrize("act", STORMS, ids=lambda act: act.__name__)
def test_a_storm(
    node: NodeProcess, tmp_path: Path, act: Callable[[socket.socket, int], None]
) -> None:
    process = psutil.Process(node.pid)
    rage_before = process.memory_info().rss
    files_before = process.num_fds()
    witness = Witness(node.mqtt_port)
    rate = rage(node.mqtt_port, act)
    witness.end()
    deadline = time.monotonic() + 20
    while process.num_fds() > files_before + 5 and time.monotonic() < deadline:
        time.sleep(0.05)
    growth = process.memory_info().rss - rage_before
    worst = max(witness.waits_s)
    print(f"{act.__name__}: {rate:,.0f}/s, grew {growth / 2**20:.1f} MiB, witness {worst:.3f} s")
    assert process.num_fds() <= files_before + 5, "connections are left"
    assert growth < GROWTH_MAX_BYTES
    assert not witness.lost
    assert witness.waits_s
    assert worst < 10
    assert "Traceback" not in node.log_file.read_text()
