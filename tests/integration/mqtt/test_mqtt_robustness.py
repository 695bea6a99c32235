"""Goal: clients that misbehave on real sockets cost the broker little and nobody else anything."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct

import pytest

from lakemq.plugins.mqtt.wire.codec import Decoder
from lakemq.plugins.mqtt.wire.encoding import encode
from lakemq.plugins.mqtt.wire.packets import (
    V5,
    V311,
    Connect,
    Disconnect,
    Filter,
    PacketType,
    Ping,
    Publish,
    Subscribe,
)
from lakemq.plugins.mqtt.wire.reasons import Reason
from tests.support.mqtt.memory_broker import running_server
from tests.support.mqtt.raw_clients import WAIT_S, Pair, dial, rest_of

pytestmark = pytest.mark.usefixtures("raw_clients")


async def client(port: int, name: str, version: int = V311, keep_alive_s: int = 0) -> Pair:
    """A client that is let in; its CONNACK is read."""
    reader, writer = await dial(port)
    writer.write(encode(Connect(name, version, keep_alive_s=keep_alive_s), version))
    head = await asyncio.wait_for(reader.readexactly(2), WAIT_S)
    await reader.readexactly(head[1])
    return reader, writer


async def answers(pair: Pair) -> None:
    reader, writer = pair
    writer.write(encode(Ping(PacketType.PINGREQ), V311))
    assert await asyncio.wait_for(reader.readexactly(2), WAIT_S) == b"\xd0\0"


async def test_silent_and_dripping_connections_are_dropped_in_time() -> None:
    """Slowloris: bytes that come slowly do not buy time for CONNECT."""
    async with running_server(connect_timeout_ms=500) as (_, _, port):
        good = await client(port, "good")
        silent, _ = await dial(port)
        dripping, writer = await dial(port)

        async def drip() -> None:
            with contextlib.suppress(ConnectionError):
                for byte in encode(Connect("x" * 200), V311):
                    writer.write(bytes((byte,)))
                    await writer.drain()
                    await asyncio.sleep(0.05)

        task = asyncio.create_task(drip())
        assert await rest_of(silent, 4) == b""
        assert await rest_of(dripping, 4) == b""
        await answers(good)
        task.cancel()


async def test_keep_alive_ends_a_half_open_connection() -> None:
    async with running_server() as (server, _, port):
        reader, _ = await client(port, "d", V5, keep_alive_s=1)
        goodbye = await rest_of(reader, 6)
        (packet,) = Decoder(1000, version=V5).feed(goodbye)
        assert isinstance(packet, Disconnect)
        assert packet.reason == Reason.KEEP_ALIVE_TIMEOUT
        assert not server.hub.connections


async def test_a_client_that_does_not_read_costs_a_bounded_buffer() -> None:
    """QoS 0 beyond the write buffer is dropped and counted; others get everything."""
    async with running_server(write_buffer_max_bytes=65_536) as (server, _, port):
        stuck_reader, stuck = await client(port, "stuck")
        sock: socket.socket = stuck.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.write(encode(Subscribe(1, (Filter("t"),)), V311))
        await stuck_reader.readexactly(5)
        stuck.transport.pause_reading()  # type: ignore[attr-defined]
        reader, writer = await client(port, "reading")
        writer.write(encode(Subscribe(1, (Filter("t"),)), V311))
        await reader.readexactly(5)
        _, sender = await client(port, "sender")
        packet, count = encode(Publish("t", b"x" * 1000), V311), 20_000

        for _ in range(count // 20):
            sender.write(packet * 20)
            got = await asyncio.wait_for(reader.readexactly(20 * len(packet)), WAIT_S)
            assert got == packet * 20
        assert server.hub.delivery.dropped_qos_0 > count // 2
        links = server.engine.links
        sizes = [link.transport.get_write_buffer_size() for link in links.values()]  # type: ignore[attr-defined]
        assert max(sizes) < 1_000_000


async def test_reading_stops_while_storage_is_slow() -> None:
    """Back-pressure instead of memory: a client cannot push more than the bound."""
    async with running_server(appends_inflight_max=100) as (server, broker, port):
        broker.held = asyncio.Event()
        reader, writer = await client(port, "d")
        packet, count = encode(Publish("t", b"x" * 1000, 1, packet_id=1), V311), 20_000
        written = 0
        with contextlib.suppress(asyncio.TimeoutError):
            for _ in range(count):
                writer.write(packet)
                await asyncio.wait_for(writer.drain(), 0.5)
                written += 1
        (connection,) = server.hub.connections
        assert written < count  # the sockets are full
        assert 100 < connection.inflow.appends < 2000
        broker.held.set()
        broker.held = None
        for _ in range(written):
            assert await asyncio.wait_for(reader.readexactly(4), WAIT_S) == b"\x40\2\0\1"


async def test_a_storm_of_connections() -> None:
    """Clients that come, and go at any moment, leave nothing behind."""
    async with running_server() as (server, _, port):
        good = await client(port, "good")

        async def visit(number: int) -> None:
            reader, writer = await dial(port)
            connect = encode(Connect(f"visitor-{number}"), V311)
            if number % 3 == 0:
                writer.write(connect)
                await reader.readexactly(4)
                writer.write(b"\xe0\0")
            elif number % 3 == 1:
                writer.write(connect[: number % len(connect)])
            else:  # reset
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, linger
                )
            writer.close()

        for start in range(0, 900, 100):
            await asyncio.gather(*(visit(number) for number in range(start, start + 100)))
        for _ in range(100):
            if len(server.engine.links) == 1:
                break
            await asyncio.sleep(0.05)
        assert len(server.hub.connections) == len(server.engine.links) == 1
        assert list(server.hub.sessions) == ["good"]
        await answers(good)


async def test_giant_and_endless_packets_are_refused_at_their_header() -> None:
    async with running_server(packet_max_bytes=10_000) as (server, _, port):
        for start in (b"\x30\xff\xff\xff\x7f", b"\x82\xff\xff\x7f", b"\x30\xff\xff\xff\xff\x01"):
            reader, writer = await client(port, "d")
            writer.write(start)
            assert await rest_of(reader, 2) == b""
            writer.close()
        assert server.hub.counters.packets_invalid == 3


async def test_a_client_above_its_rate_waits_and_loses_nothing() -> None:
    async with running_server(publishes_max_per_s=200) as (_, broker, port):
        reader, writer = await client(port, "d")
        began = asyncio.get_running_loop().time()
        for _ in range(4):
            writer.write(encode(Publish("t", b"x", 1, packet_id=1), V311) * 100)
            for _ in range(100):
                await asyncio.wait_for(reader.readexactly(4), WAIT_S)
        took_s = asyncio.get_running_loop().time() - began
        assert len(broker.values("mqtt")) == 400
        assert took_s > 0.3


async def test_new_connections_are_bounded_per_second() -> None:
    listener = {"name": "other", "port": 0, "connects_max_per_s": 2}
    async with running_server(tcp=False, listeners=[listener]) as (server, _, _):
        pairs = [await dial(server.port("other")) for _ in range(6)]
        ends = [await rest_of(reader, 0.2) if number > 1 else b"" for number, (reader, _)
                in enumerate(pairs)]  # fmt: skip
        assert ends == [b""] * 6
        assert len(server.hub.connections) == 2
        assert server.hub.counters.connections_refused == 4


async def test_system_topics_come_by_themselves() -> None:
    async with running_server(system_topics_interval_s=1) as (_, _, port):
        reader, writer = await client(port, "d")
        writer.write(encode(Subscribe(1, (Filter("$SYS/broker/clients/connected"),)), V311))
        await reader.readexactly(5)
        topic = b"$SYS/broker/clients/connected"
        got = await asyncio.wait_for(reader.readexactly(4 + len(topic) + 1), 4)
        assert got[4:] == topic + b"1"


async def test_a_listeners_clients_share_its_rate_and_others_do_not_wait() -> None:
    listener = {"name": "metered", "port": 0, "publishes_max_per_s": 200}
    async with running_server(listeners=[listener]) as (server, broker, port):
        pairs = [await client(server.port("metered"), f"d{number}") for number in range(2)]
        free = await client(port, "free")
        began = asyncio.get_running_loop().time()
        for _ in range(2):
            for _, writer in pairs:
                writer.write(encode(Publish("t", b"x", 1, packet_id=1), V311) * 100)
            for reader, _ in pairs:
                for _ in range(100):
                    await asyncio.wait_for(reader.readexactly(4), WAIT_S)
            await answers(free)
        for pair in pairs:
            await answers(pair)
        took_s = asyncio.get_running_loop().time() - began
        assert len(broker.values("mqtt")) == 400
        assert took_s > 0.5
