"""Goal: publishes at QoS 2 that come together are stored once, whenever the broker is killed.

Method: a client with a session sends 100 of them, and their PUBRELs, in one piece each; the broker
is killed with SIGKILL some milliseconds later, before the client reads, and all is sent again.
"""

from __future__ import annotations

import random
import socket
import time
from collections import Counter
from pathlib import Path

import pytest

import lakemq
from lakemq.plugins.mqtt.wire.codec import Decoder
from lakemq.plugins.mqtt.wire.encoding import encode
from lakemq.plugins.mqtt.wire.packets import (
    V311,
    Acknowledgement,
    Connack,
    Connect,
    Packet,
    PacketType,
    Publish,
)
from tests.support.node.node import NodeProcess, ports_kept

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]
ROUNDS = 3
TOGETHER = 100
WAIT_S = 60


class Client:
    """Forgets a publish at its PUBCOMP, and says PUBREL in place of one that had PUBREC."""

    def __init__(self) -> None:
        self.unsaid: dict[int, bytes] = {}
        self.received: set[int] = set()

    def talk(self, port: int, node: NodeProcess | None, after_s: float) -> None:
        """Until all is finished; or until the node is killed, `after_s` later, its answers lost."""
        decoder = Decoder(1 << 28, version=V311)
        with socket.create_connection(("127.0.0.1", port), WAIT_S) as wire:
            wire.sendall(encode(Connect("d", V311, clean_start=False, keep_alive_s=0), V311))
            self._hear(wire, decoder, Connack)
            # The name must be known on the connection before publishes to it come in runs.
            rest, self.unsaid = self.unsaid, {60_000: b"name"}
            self._finish(wire, decoder)
            self.unsaid = rest
            if node is not None:
                self._say(wire)
                time.sleep(after_s)
                node.kill()
                return
            self._finish(wire, decoder)

    def _finish(self, wire: socket.socket, decoder: Decoder) -> None:
        self._say(wire)
        while self.unsaid:
            if self._hear(wire, decoder, Acknowledgement):
                self._say(wire, publishes=False)

    def _say(self, wire: socket.socket, *, publishes: bool = True) -> None:
        # Without DUP, which would make them no run: a broker goes by identifiers (4.3.3).
        sent: list[Packet] = [
            Publish("n", value, 2, packet_id=each)
            for each, value in self.unsaid.items()
            if publishes and each not in self.received
        ]
        sent += [Acknowledgement(PacketType.PUBREL, each) for each in sorted(self.received)]
        wire.sendall(b"".join(encode(each, V311) for each in sent))

    def _hear(self, wire: socket.socket, decoder: Decoder, kind: type) -> bool:
        """Whether there is a PUBREC among what comes."""
        data, new = wire.recv(1 << 20), False
        assert data, "the node has closed the connection"
        found = decoder.feed(data)
        for each in found:
            assert isinstance(each, kind), each
            if isinstance(each, Acknowledgement) and each.type is PacketType.PUBREC:
                self.received.add(each.packet_id)
                new = True
            elif isinstance(each, Acknowledgement):
                self.received.discard(each.packet_id)
                self.unsaid.pop(each.packet_id, None)
        return new


def test_each_is_stored_once(tmp_path: Path) -> None:
    chance, client, sent = random.Random(7), Client(), list[bytes]()
    with NodeProcess(tmp_path / "node", ports_kept("mqtt")) as node:
        for number in range(ROUNDS):
            client.unsaid = {each: b"%d-%d" % (number, each) for each in range(1, TOGETHER + 1)}
            sent += client.unsaid.values()
            for _ in range(2):
                client.talk(node.mqtt_port, node, chance.uniform(0, 0.05))
                node.start()
            client.talk(node.mqtt_port, None, 0)
        with lakemq.connect(node.native) as log:
            stored = Counter(each.value or b"" for each in log.consume("mqtt"))
    del stored[b"name"]
    assert stored == Counter(sent)
