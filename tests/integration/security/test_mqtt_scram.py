"""Goal: over a socket, SCRAM-SHA-256 lets a client in, and out when the second time it is wrong; a
node that stops sends its clients elsewhere.
"""

from __future__ import annotations

import asyncio
from typing import Any

from lakemq.broker_core.security.authn.attempts import AttemptRules, Attempts
from lakemq.broker_core.security.authn.password_users import ScramMechanism
from lakemq.plugins.mqtt.wire.codec import Decoder
from lakemq.plugins.mqtt.wire.encoding import encode
from lakemq.plugins.mqtt.wire.packets import (
    V5,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Properties,
)
from lakemq.plugins.mqtt.wire.reasons import Reason
from tests.support.mqtt.memory_broker import MemoryBroker, running_server, until
from tests.support.scram_client import METHOD, ScramUsers, first_of, proof


class Wire:
    """A client that speaks packets over a socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._decoder = Decoder(1 << 20, version=V5)
        self._packets: list[Any] = []

    async def ask(self, packet: Packet) -> Any:
        self._writer.write(encode(packet, V5))
        return await self.next()

    async def next(self) -> Any:
        while not self._packets:
            data = await asyncio.wait_for(self._reader.read(65_536), 10)
            assert data, "the connection ended"
            self._packets += self._decoder.feed(data)
            assert self._decoder.error is None
        return self._packets.pop(0)

    async def ended(self) -> bool:
        return await asyncio.wait_for(self._reader.read(1), 10) == b""

    def close(self) -> None:
        self._writer.close()


def auth(data: bytes, reason: int = 0x18) -> Auth:
    return Auth(reason, Properties(authentication_method=METHOD, authentication_data=data))


async def connected(port: int) -> Wire:
    wire = Wire(*await asyncio.open_connection("127.0.0.1", port))
    properties = Properties(authentication_method=METHOD, authentication_data=first_of("ann"))
    challenge = await wire.ask(Connect("d", V5, properties=properties))
    said = challenge.properties.authentication_data
    connack = await wire.ask(auth(proof("ann", "ann", said)))
    assert isinstance(connack, Connack)
    assert connack.code == 0
    return wire


async def test_scram_over_a_socket() -> None:
    broker = MemoryBroker()
    attempts = Attempts(AttemptRules())
    broker.exchanges = [ScramMechanism(METHOD, [ScramUsers()], attempts, lambda: 0)]
    async with running_server(broker) as (server, _, port):
        wire = await connected(port)
        said = (await wire.ask(auth(first_of("ann"), 0x19))).properties.authentication_data
        answer = await wire.ask(auth(proof("ann", "ann", said)))
        assert (type(answer), answer.reason) == (Auth, 0)
        said = (await wire.ask(auth(first_of("ann"), 0x19))).properties.authentication_data
        goodbye = await wire.ask(auth(proof("ann", "guess", said)))
        assert (type(goodbye), goodbye.reason) == (Disconnect, Reason.NOT_AUTHORIZED)
        assert await wire.ended()
        wire.close()
        wire = Wire(*await asyncio.open_connection("127.0.0.1", port))
        refused = await wire.ask(Connect("d", V5, properties=Properties(authentication_method="X")))
        assert refused.code == Reason.BAD_AUTHENTICATION_METHOD
        wire.close()
        assert not server.hub.outbox.exchanges


async def test_nothing_is_kept_of_who_leaves_in_the_middle_of_an_exchange() -> None:
    broker = MemoryBroker()
    mechanism = ScramMechanism(METHOD, [ScramUsers()], Attempts(AttemptRules()), lambda: 0)
    broker.exchanges = [mechanism]
    async with running_server(broker) as (server, _, port):
        wire = await connected(port)
        await wire.ask(auth(first_of("ann"), 0x19))
        exchanges = server.engine._logins._exchanges
        assert len(exchanges) == 1
        wire.close()
        await until(lambda: not exchanges)


async def test_a_stopping_node_sends_its_clients_elsewhere() -> None:
    async with running_server(server_reference="b.example.org:1883") as (_, _, port):
        wire = Wire(*await asyncio.open_connection("127.0.0.1", port))
        await wire.ask(Connect("d", V5))
    goodbye = await wire.next()
    assert goodbye.reason == Reason.USE_ANOTHER_SERVER
    assert goodbye.properties.server_reference == "b.example.org:1883"
    wire.close()
