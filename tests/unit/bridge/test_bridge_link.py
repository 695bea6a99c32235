"""Goal: what the bridge takes from amqtt, whose internals it uses, does what MQTT 3.1.1 says:
another version of amqtt fails here first. All of it is in `plugins/mqtt/bridge/link.py`.

Method: the bytes of a remote broker, into a link without a socket.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lakemq.plugins.mqtt.bridge import link as module
from lakemq.plugins.mqtt.bridge.config import LinkSettings
from lakemq.plugins.mqtt.bridge.link import FlagRefused, Link, LinkError
from lakemq.plugins.mqtt.bridge.outgoing.outbox import Forward, PartitionCursor, Sent
from tests.support.mqtt.memory_broker import until

CONNECT = bytes.fromhex("10 12 0004 4d515454") + b"%c" + bytes.fromhex("00 001e 0006") + b"client"
ACCEPTED, SESSION_PRESENT = b"\x20\x02\x00\x00", b"\x20\x02\x01\x00"


class Written:
    """In place of a `StreamWriter`."""

    def __init__(self) -> None:
        self.data = b""
        self.aborted = False
        self.transport = self

    def write(self, data: bytes) -> None:
        self.data += data

    async def drain(self) -> None:
        pass

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    close = abort

    async def wait_closed(self) -> None:
        pass

    def get_extra_info(self, _: str) -> tuple[str, int]:
        return "127.0.0.1", 1883


class Heard:
    """Implements `Peer`."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []

    async def publish_came(self, *what: Any, again: bool, retain: bool) -> None:
        self.said.append(("publish", *what, again, retain))

    def __getattr__(self, name: str) -> Any:
        return lambda packet_id: self.said.append((name, packet_id))


class Played:
    """A link, and both ends of its wire."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: object) -> None:
        self.reader, self.writer, self.peer = asyncio.StreamReader(), Written(), Heard()

        async def connect(*_: object, **__: object) -> tuple[asyncio.StreamReader, Written]:
            return self.reader, self.writer

        monkeypatch.setattr(module.asyncio, "open_connection", connect)
        rules = [{"direction": "in", "filter": "#"}]
        known = {"name": "far", "url": "mqtt://far", "rules": rules, **settings}
        peer: Any = self.peer
        self.link = Link(LinkSettings.model_validate(known), "client", "", peer)

    async def hear(self, *packets: bytes) -> list[tuple[Any, ...]]:
        """What the peer is told of packets that come before the connection ends."""
        self.reader.feed_data(ACCEPTED + b"".join(packets))
        self.reader.feed_eof()
        await self.link.open(None, bridge_flag=False)
        await self.link.start()
        await self.link.closed()
        await self.link.close(politely=False)
        return self.peer.said


@pytest.mark.parametrize(("answer", "present"), [(ACCEPTED, False), (SESSION_PRESENT, True)])
@pytest.mark.parametrize(("flag", "level"), [(False, 4), (True, 0x84)])
async def test_connect_asks_for_the_session_that_there_is(
    monkeypatch: pytest.MonkeyPatch, answer: bytes, present: bool, flag: bool, level: int
) -> None:
    played = Played(monkeypatch)
    played.reader.feed_data(answer)
    assert await played.link.open(None, bridge_flag=flag) is present
    assert played.writer.data == CONNECT % level
    await played.link.close(politely=False)


async def test_refusals_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for code, error in ((1, FlagRefused), (5, LinkError)):
        played = Played(monkeypatch)
        played.reader.feed_data(bytes((0x20, 2, 0, code)))
        with pytest.raises(error):
            await played.link.open(None, bridge_flag=True)
        await played.link.close(politely=False)


async def test_packets_come_whole_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = await Played(monkeypatch).hear(
        b"\x32\x07\x00\x01a\x00\x09hi",
        b"\x3c\x05\x00\x01b\x00\x0a",
        b"\x31\x04\x00\x01cx",
        b"\x40\x02\x00\x01",
        b"\x50\x02\x00\x02",
        b"\x62\x02\x00\x0a",
        b"\x70\x02\x00\x02",
    )
    assert heard == [
        ("publish", "a", b"hi", 1, 9, False, False),
        ("publish", "b", b"", 2, 10, True, False),
        ("publish", "c", b"x", 0, 0, False, True),
        ("puback_came", 1),
        ("pubrec_came", 2),
        ("pubrel_came", 10),
        ("pubcomp_came", 2),
    ]


async def test_a_packet_that_is_too_large_or_malformed_ends_the_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large = Played(monkeypatch, packet_max_bytes=1024)
    assert await large.hear(b"\x30\x81\x08", b"\x00\x01a" + bytes(1022), b"\x40\x02\x00\x01") == []
    assert await large.link.closed() == "packet of 1025 bytes; 1024 is the most"
    torn = Played(monkeypatch)
    assert await torn.hear(b"\x32\x03\x00\x09a", b"\x40\x02\x00\x01") == []


def test_packets_that_are_sent() -> None:
    one = Sent(PartitionCursor("t", "i", 0, 0), 0, Forward("a", b"hi", 1, True), 9)
    assert module.publish_packet(one) == b"\x33\x07\x00\x01a\x00\x09hi"
    one.resent, one.forward = True, Forward("a", b"", 2, False)
    assert module.publish_packet(one) == b"\x3c\x05\x00\x01a\x00\x09"
    one.resent, one.forward = False, Forward("a", b"x", 0, False)
    assert module.publish_packet(one) == b"\x30\x04\x00\x01ax"
    assert module.puback_packet(258) == b"\x40\x02\x01\x02"
    assert module.pubrec_packet(258) == b"\x50\x02\x01\x02"
    assert module.pubrel_packet(258) == b"\x62\x02\x01\x02"
    assert module.pubcomp_packet(258) == b"\x70\x02\x01\x02"


async def test_subscribing_and_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, keep_alive_s=1, connect_timeout_ms=1000)
    played.reader.feed_data(ACCEPTED)
    await played.link.open(None, bridge_flag=False)
    await played.link.start()
    sent = len(played.writer.data)
    asked = asyncio.create_task(played.link.subscribe([("a/#", 2)]))
    await until(lambda: len(played.writer.data) > sent)
    assert played.writer.data[sent:] == b"\x82\x08\x00\x01\x00\x03a/#\x02"
    played.reader.feed_data(b"\x90\x03\x00\x01\x02")
    await asked
    ping = asyncio.create_task(played.link.ping())
    await until(lambda: played.writer.data.endswith(b"\xc0\x00"))
    played.reader.feed_data(b"\xd0\x00")
    await ping
    assert not played.writer.aborted
    await played.link.ping()  # nobody answers
    assert played.writer.aborted
    await played.link.close(politely=False)
