"""Remote brokers that bridges are tested against, and a wire to them that can be cut."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import paho.mqtt.client as paho

from tests.support.mqtt.faithful_paho import Paho
from tests.support.node.ports import free_port

MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
WAIT_S = 60


class BrokerProcess:
    """A broker in a process of its own, on one port over all its restarts."""

    def __init__(self, command: list[str], port: int) -> None:
        self.port = port
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port)).close()
                return self
            time.sleep(0.02)
        raise AssertionError(f"{self._command[0]} does not listen")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait(WAIT_S)

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


def mosquitto(folder: Path, extra: str = "") -> BrokerProcess:
    """Mosquitto that keeps its sessions over an orderly restart."""
    assert MOSQUITTO is not None
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "mosquitto.conf"
    config.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence true\n"
        f"persistence_location {folder}/\nmax_queued_messages 0\nlog_type none\n"
        f"user {_user()}\n{extra}"
    )
    return BrokerProcess([MOSQUITTO, "-c", str(config)], port)


def _user() -> str:
    import getpass

    return getpass.getuser()


def amqtt(folder: Path) -> BrokerProcess:
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "amqtt.yaml"
    config.write_text(
        f"listeners:\n  default:\n    type: tcp\n    bind: 127.0.0.1:{port}\n"
        "plugins:\n  amqtt.plugins.authentication.AnonymousAuthPlugin:\n"
        "    allow_anonymous: true\n"
    )
    return BrokerProcess([str(Path(sys.executable).with_name("amqtt")), "-c", str(config)], port)


_PUBLISH, _PUBREL = 3, 6


class Released:
    """QoS 2 publishes that a broker sent again after their PUBREL, as it must not [MQTT-4.3.3-6].
    Mosquitto 2.0.11 does when a second connection ends before it has repeated PUBREL on it
    (`db__message_reconnect_reset_outgoing`): its client has released them, and takes them for new.
    """

    def __init__(self) -> None:
        self.sent_again = 0
        self._sent: dict[bytes, bytes] = {}
        """Packet identifier -> the newest publish that had it, from its topic name on."""
        self._released: set[bytes] = set()
        """Packet identifiers of those that were released."""

    def connection(self) -> Callable[[bytes], None]:
        """Takes what the broker sends on a new one."""
        buffer = bytearray()

        def hear(data: bytes) -> None:
            buffer.extend(data)
            while (end := _packet_end(buffer)) is not None:
                self._packet(bytes(buffer[: end[1]]), end[0])
                del buffer[: end[1]]

        return hear

    def _packet(self, packet: bytes, head: int) -> None:
        """`head`: bytes of its fixed header."""
        first = packet[0]
        if first >> 4 == _PUBREL:
            self._released.add(packet[head : head + 2])
        elif first >> 4 == _PUBLISH and first & 6 == 4:  # of QoS 2
            at = head + 2 + int.from_bytes(packet[head : head + 2])
            packet_id, body = packet[at : at + 2], packet[head:]
            same = self._sent.get(packet_id) == body
            self.sent_again += same and packet_id in self._released
            self._released.discard(packet_id)
            self._sent[packet_id] = body


def _packet_end(data: bytearray) -> tuple[int, int] | None:
    """(bytes of the fixed header, of the packet) of the first packet; None: it is not whole."""
    length = 0
    for at in range(1, min(5, len(data))):
        length |= (data[at] & 127) << 7 * (at - 1)
        if data[at] < 128:
            return (at + 1, at + 1 + length) if at + 1 + length <= len(data) else None
    return None


class Wire:
    """A TCP proxy on a port of its own: `cut` breaks what goes over it, `down` refuses more."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = 0
        self.is_down = False
        self.bytes_until_cut = -1
        """Cut by itself when so many more bytes went over it; -1: never."""
        self.released = Released()
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> int:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _close(self) -> None:
        self._server.close()
        self._abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self.is_down:
                raise OSError("down")
            there, back = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, back}
        for source, sink, hear in (
            (reader, back, lambda _: None), (there, writer, self.released.connection())
        ):  # fmt: skip
            task = self._loop.create_task(self._carry(source, sink, hear, writer, back))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        hear: Callable[[bytes], None],
        *both: asyncio.StreamWriter,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                if self.bytes_until_cut >= 0:
                    data = data[: self.bytes_until_cut]
                    self.bytes_until_cut -= len(data)
                hear(data)
                sink.write(data)
                await sink.drain()
                if self.bytes_until_cut == 0:
                    self.bytes_until_cut = -1
                    self._abort()
        for writer in both:
            writer.transport.abort()
            self._writers.discard(writer)

    def _abort(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()
        self._writers.clear()

    def cut(self) -> None:
        self._loop.call_soon_threadsafe(self._abort)

    def down(self) -> None:
        self.is_down = True
        self.cut()

    def up(self) -> None:
        self.is_down = False


class Listening:
    """A paho client with a session of its own that keeps every payload it got, in order."""

    def __init__(self, port: int, topic_filter: str, qos: int = 2, name: str = "listening") -> None:
        self.got: list[tuple[str, bytes]] = []
        self.retained: list[tuple[str, bytes]] = []
        self._subscribed = threading.Event()
        client = Paho(paho.CallbackAPIVersion.VERSION2, client_id=name, clean_session=False)
        client.on_message = self._on_message
        client.on_connect = lambda *_: client.subscribe(topic_filter, qos)
        client.on_subscribe = lambda *_: self._subscribed.set()
        client.reconnect_delay_set(0.05, 0.2)  # type: ignore[arg-type]  # floats work
        client.connect("127.0.0.1", port, keepalive=30)
        client.loop_start()
        self._client = client
        assert self._subscribed.wait(WAIT_S)

    def _on_message(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        kept = self.retained if message.retain else self.got
        kept.append((message.topic, message.payload))

    def wait_for(self, count: int, *, distinct: bool = False) -> list[tuple[str, bytes]]:
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            if len(set(self.got) if distinct else self.got) >= count:
                break
            time.sleep(0.02)
        return list(self.got)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@contextlib.contextmanager
def listening(
    port: int, topic_filter: str, qos: int = 2, name: str = "listening"
) -> Iterator[Listening]:
    one = Listening(port, topic_filter, qos, name)
    try:
        yield one
    finally:
        one.close()


@contextlib.contextmanager
def publishing(port: int, name: str = "publishing") -> Iterator[paho.Client]:
    """A client to publish with; leaving waits for nothing."""
    client = Paho(paho.CallbackAPIVersion.VERSION2, client_id=name, clean_session=False)
    client.max_queued_messages_set(0)
    client.reconnect_delay_set(0.05, 0.2)  # type: ignore[arg-type]  # floats work
    client.connect("127.0.0.1", port, keepalive=30)
    client.loop_start()
    try:
        yield client
    finally:
        client.disconnect()
        client.loop_stop()


def publish_all(client: paho.Client, names: list[str], payloads: list[bytes], qos: int) -> None:
    """Returns when all are acknowledged."""
    infos = [
        client.publish(name, payload, qos) for name, payload in zip(names, payloads, strict=True)
    ]
    for info in infos:
        info.wait_for_publish(WAIT_S)
        assert info.is_published()
