"""Clients of three libraries that come to one of several nodes at random, each time that they
connect, with sessions that are kept."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import queue
import random
import socket
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiomqtt
import aiomqtt.client
import paho.mqtt.client as paho
import pytest

from tests.support.mqtt.faithful_paho import Paho

HOST = "127.0.0.1"
KEEPALIVE_S = 8
EXPIRY_S = 3600
_quiet = logging.getLogger("tests.quiet")
_quiet.setLevel(logging.CRITICAL)  # aiomqtt warns of each publish that waits while it is away
_SCRIPT = Path(__file__).with_name("roaming.js")


class Roaming:
    """What all of them note. Written by a thread of the client, read by the test's."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.received: list[tuple[str, str]] = []
        """(topic name, payload), in the order in which they came."""
        self.acknowledged = 0
        """Publishes that the broker has answered for good."""
        self.refused: list[str] = []
        """Reasons of those among them that it did not store."""
        self.connections = 0
        """Some of them tries."""
        self.subscribed = threading.Event()

    def subscribe(self, topic_filter: str, qos: int) -> None:
        """Once; `subscribed` is set when the broker has answered."""
        raise NotImplementedError

    def publish(self, topic: str, payload: str, qos: int) -> None:
        """At once or when there is a connection; each is published again until it is answered."""
        raise NotImplementedError

    def cut(self) -> None:
        """Break the connection; the library makes another one."""
        raise NotImplementedError

    def waiting(self) -> str:
        """What it waits for, when a test has waited in vain."""
        raise NotImplementedError

    def close(self) -> None:
        """End the client; nothing comes any more."""
        raise NotImplementedError


class _AnyNode(Paho):
    """paho's client, that connects to any of `ports`.

    What is published between CONNECT and CONNACK paho sends at once, before what waits from the
    connection before; this one keeps the order [MQTT-4.6.0-6].
    """

    ports: Sequence[int] = ()
    owner: Roaming
    _is_answered = False

    def reconnect(self) -> paho.MQTTErrorCode:
        self._is_answered = False
        self._port = random.choice(self.ports)
        return super().reconnect()

    def _handle_connack(self) -> paho.MQTTErrorCode:
        with self._out_message_mutex:
            self._is_answered = True
            return super()._handle_connack()

    def _send_publish(self, *publish: Any, **more: Any) -> paho.MQTTErrorCode:
        if not self._is_answered:
            return paho.MQTTErrorCode.MQTT_ERR_NO_CONN
        return super()._send_publish(*publish, **more)

    def _do_on_publish(self, mid: int, reason: Any, *more: Any) -> paho.MQTTErrorCode:
        self.owner.acknowledged += 1
        # A PUBREL that is sent again, as its PUBCOMP was lost, may meet an identifier that is free.
        if reason.is_failure and reason.getName() != "Packet identifier not found":
            self.owner.refused.append(str(reason))
        return super()._do_on_publish(mid, reason, *more)

    def waiting(self) -> str:
        found = list(self._out_messages.values())
        first = [(each.mid, each.qos, each.state.name, each.payload) for each in found[:5]]
        return f"{len(found)} unanswered, connected: {self.is_connected()}; {first}"

    def cut(self) -> None:
        found = self.socket()
        if found is not None:
            with suppress(OSError):  # broken already
                found.shutdown(socket.SHUT_RDWR)


def _kept() -> paho.Properties:
    properties = paho.Properties(paho.PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = EXPIRY_S
    return properties


class RoamingPaho(Roaming):
    """paho, with its own thread."""

    def __init__(self, name: str, ports: Sequence[int]) -> None:
        super().__init__(name)
        client = self._client = _AnyNode(
            paho.CallbackAPIVersion.VERSION2, client_id=name, protocol=paho.MQTTv5
        )
        client.ports, client.owner = ports, self
        client.on_connect = self._connected
        client.on_subscribe = lambda *_: self.subscribed.set()
        client.on_message = lambda _c, _u, message: self.received.append(
            (message.topic, message.payload.decode())
        )
        client.reconnect_delay_set(0.05, 0.2)  # type: ignore[arg-type]
        client.max_queued_messages_set(0)
        client.connect(HOST, ports[0], KEEPALIVE_S, clean_start=False, properties=_kept())
        client.loop_start()

    def _connected(self, *_: object) -> None:
        self.connections += 1

    def subscribe(self, topic_filter: str, qos: int) -> None:
        self._client.subscribe(topic_filter, qos)

    def publish(self, topic: str, payload: str, qos: int, *, retain: bool = False) -> None:
        self._client.publish(topic, payload, qos, retain)

    def waiting(self) -> str:
        return self._client.waiting()

    def cut(self) -> None:
        self._client.cut()

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


class RoamingAiomqtt(Roaming):
    """aiomqtt, on an event loop in a thread of its own."""

    def __init__(self, name: str, ports: Sequence[int]) -> None:
        super().__init__(name)
        self._ports = ports
        self._loop = asyncio.new_event_loop()
        self._client: aiomqtt.Client
        self._filter = ("", 0)
        self._publishing: set[asyncio.Task[None]] = set()
        self._ended: asyncio.Future[None]
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(10)

    def _run(self, ready: threading.Event) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._live(ready))

    async def _live(self, ready: threading.Event) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(aiomqtt.client.mqtt, "Client", _AnyNode)
            self._client = aiomqtt.Client(
                HOST, self._ports[0], identifier=self.name, keepalive=KEEPALIVE_S,
                protocol=aiomqtt.ProtocolVersion.V5, clean_start=False, properties=_kept(),
                logger=_quiet,
            )  # fmt: skip
        self._paho = self._client._client
        assert isinstance(self._paho, _AnyNode)
        self._paho.ports, self._paho.owner = self._ports, self
        self._paho.max_queued_messages_set(0)
        self._ended = self._loop.create_future()
        ready.set()
        connecting = asyncio.create_task(self._connect_again_and_again())
        await self._ended
        connecting.cancel()
        await asyncio.gather(connecting, *self._publishing, return_exceptions=True)

    async def _connect_again_and_again(self) -> None:
        while True:
            with suppress(aiomqtt.MqttError):
                async with self._client:
                    self.connections += 1
                    await self._subscribe()
                    async for message in self._client.messages:
                        self.received.append((str(message.topic), bytes(message.payload).decode()))  # type: ignore[arg-type]
            await asyncio.sleep(0.05)

    async def _subscribe(self) -> None:
        if self._filter[0] and not self.subscribed.is_set():
            await self._client.subscribe(*self._filter)
            self.subscribed.set()

    def subscribe(self, topic_filter: str, qos: int) -> None:
        self._filter = (topic_filter, qos)
        # Made by the connection that follows.
        self.cut()

    def publish(self, topic: str, payload: str, qos: int) -> None:
        self._loop.call_soon_threadsafe(self._publish, topic, payload, qos)

    def _publish(self, topic: str, payload: str, qos: int) -> None:
        task = self._loop.create_task(self._published(topic, payload, qos))
        self._publishing.add(task)
        task.add_done_callback(self._publishing.discard)

    async def _published(self, topic: str, payload: str, qos: int) -> None:
        # Where there is no connection it raises, and keeps the message for the next one.
        with suppress(aiomqtt.MqttError):
            await self._client.publish(topic, payload, qos, timeout=float("inf"))

    def waiting(self) -> str:
        assert isinstance(self._paho, _AnyNode)
        return self._paho.waiting()

    def cut(self) -> None:
        assert isinstance(self._paho, _AnyNode)
        self._loop.call_soon_threadsafe(self._paho.cut)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set_result, None)
        self._thread.join(20)


class RoamingMqttJs(Roaming):
    """mqtt.js, in a process of Node's."""

    def __init__(self, name: str, ports: Sequence[int], folder: Path) -> None:
        """`folder`: where npm has installed it."""
        super().__init__(name)
        self._waiting: queue.Queue[str] = queue.Queue()
        self._process = subprocess.Popen(
            ["node", str(_SCRIPT), name, ",".join(map(str, ports))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
            env={**os.environ, "NODE_PATH": str(folder / "node_modules")},
        )  # fmt: skip
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            match json.loads(line):
                case ["message", topic, payload]:
                    self.received.append((topic, payload))
                case ["acknowledged"]:
                    self.acknowledged += 1
                case ["connects"]:
                    self.connections += 1
                case ["subscribed"]:
                    self.subscribed.set()
                case ["waiting", text]:
                    self._waiting.put(text)

    def _tell(self, *command: object) -> None:
        assert self._process.stdin is not None
        assert self._process.poll() is None, f"{self.name} has ended; it says why above"
        self._process.stdin.write(json.dumps(command) + "\n")

    def subscribe(self, topic_filter: str, qos: int) -> None:
        self._tell("subscribe", topic_filter, qos)

    def publish(self, topic: str, payload: str, qos: int) -> None:
        self._tell("publish", topic, payload, qos)

    def waiting(self) -> str:
        self._tell("waiting")
        return self._waiting.get(timeout=10)

    def cut(self) -> None:
        self._tell("cut")

    def close(self) -> None:
        with suppress(OSError):  # it has ended
            self._tell("end")
        try:
            self._process.wait(10)
        finally:
            self._process.kill()
            self._process.wait()
            self._thread.join(10)
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
