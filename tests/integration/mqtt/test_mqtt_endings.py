"""Goal: whoever is refused learns why, whatever it is sending meanwhile; and what a web page or a
proxy says makes nobody local.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from websockets.frames import Frame, Opcode

from lakemq.broker_core.api.hosts import is_loopback
from lakemq.plugins.mqtt.server.links import SocketLink
from lakemq.plugins.mqtt.server.websocket import FRAMES_BEFORE_CONNACK_MAX
from lakemq.plugins.mqtt.wire.codec import Decoder
from lakemq.plugins.mqtt.wire.encoding import encode
from lakemq.plugins.mqtt.wire.packets import (
    V5,
    V311,
    Connack,
    Connect,
    Disconnect,
    PacketType,
    Ping,
    Publish,
)
from lakemq.plugins.mqtt.wire.reasons import Reason
from tests.support.mqtt.certificates import Authority
from tests.support.mqtt.memory_broker import MqttServer, running_server, until
from tests.support.mqtt.raw_clients import WAIT_S, NotingBroker, dial, other, rest_of

pytestmark = pytest.mark.usefixtures("raw_clients")

CONNECT = encode(Connect("raw"), V311)
ACCEPTED = b"\x20\2\0\0"
# -- reasons


@pytest.mark.parametrize("tls", [False, True])
async def test_a_client_that_is_writing_reads_why_its_connection_ends(
    tls: bool, tmp_path: Path
) -> None:
    """It reads only when it has written everything; nothing of the answer is lost to a reset."""
    settings: dict[str, Any] = {"receive_max": 20, "receive_maximum_exceeded": "disconnect"}
    context = None
    if tls:
        certificate, key = Authority(tmp_path).sign("/CN=localhost", "server")
        settings |= other(tls_cert=str(certificate), tls_key=str(key))
        context = ssl._create_unverified_context()
    packets = b"".join(encode(Publish("t", bytes(200), 2, packet_id=n), V5) for n in range(1, 6001))
    async with running_server(**settings) as (server, _, port):
        port = server.port("other") if tls else port
        reader, writer = await dial(port, encode(Connect("d", V5), V5), ssl=context)
        for start in range(0, len(packets), 40_000):
            writer.write(packets[start : start + 40_000])
            await writer.drain()
            await asyncio.sleep(0.002)
        decoder = Decoder(1 << 20, version=V5)
        got = decoder.feed(await rest_of(reader))
        assert isinstance(got[0], Connack)
        assert isinstance(got[-1], Disconnect)
        assert got[-1].reason == Reason.RECEIVE_MAXIMUM_EXCEEDED
        await until(lambda: not server.engine.links)


async def test_a_client_that_never_stops_sending_is_cut_off_in_time() -> None:
    async with running_server() as (server, _, port):
        reader, writer = await dial(port, encode(Connect("d", V5), V5) + b"\xf7\0")

        async def endless() -> None:
            with contextlib.suppress(ConnectionError):
                while True:
                    writer.write(bytes(65_536))
                    await writer.drain()

        task = asyncio.create_task(endless())
        got = Decoder(1 << 20, version=V5).feed(await rest_of(reader))
        assert isinstance(got[-1], Disconnect)
        await until(lambda: not server.engine.links)
        await asyncio.wait_for(task, WAIT_S)


# -- memory of those who read nothing


@pytest.mark.parametrize("transport", ["tcp", "websocket"])
async def test_answers_that_nobody_reads_are_bounded(transport: str) -> None:
    """Whoever sends on and reads nothing is read no further."""
    settings = {"write_buffer_max_bytes": 65_536, **other(transport=transport)}
    ping = encode(Ping(PacketType.PINGREQ), V311) * 30_000
    async with running_server(**settings) as (server, _, _):
        reader, writer = await dial(server.port("other"))
        if transport == "websocket":
            await open_websocket(reader, writer)
            writer.write(binary(CONNECT))
            await reader.readexactly(6)
            ping = binary(ping[:60_000]) + Frame(Opcode.PING, b"x" * 100).serialize(mask=True) * 500
        else:
            writer.write(CONNECT)
            await reader.readexactly(4)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        (link,) = server.engine.links.values()
        assert isinstance(link, SocketLink)
        sock = link.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        for _ in range(400):
            writer.write(ping)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(writer.drain(), 0.01)
            if link in server.engine.paused:
                break
        assert link in server.engine.paused
        held = link.transport.get_write_buffer_size()
        assert held <= 2 * 65_536 + 300_000
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        task = asyncio.create_task(rest_of(reader))
        await until(lambda: link not in server.engine.paused)
        task.cancel()


# -- WebSocket


def request(
    *headers: str, path: str = "/mqtt", host: str | None = "127.0.0.1", key: str = "x" * 22 + "=="
) -> bytes:
    lines = [
        f"GET {path} HTTP/1.1",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Protocol: mqtt",
        f"Sec-WebSocket-Key: {key}",
        *headers,
    ]
    lines += [f"Host: {host}"] if host is not None else []
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape")


def binary(data: bytes) -> bytes:
    return Frame(Opcode.BINARY, data).serialize(mask=True)


async def open_websocket(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(request())
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)
    assert head.startswith(b"HTTP/1.1 101")


PAGE = b"GET /other HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"POST /mqtt HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + bytes(100_000), 400),
        (PAGE * 100, 404),
        (PAGE + bytes(100_000), 404),
        (request().replace(b"Upgrade: websocket", b"Upgrade: other") + bytes(100_000), 426),
        (request("X-Name: \udcff\udcfe"), 400),
        (request("Origin: http://\udcc3\udca9"), 400),
        (request(path="/mqtt\udcff"), 400),
        (request("Origin: http://[") + PAGE, 403),
        (request(path="//[") + PAGE, 404),
        (request("no colon here"), 400),
        (request(key="short"), 400),
        (request("X: " + "y" * 20_000), 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    ],
    ids=lambda one: str(one) if isinstance(one, int) else "request",
)
async def test_what_is_refused_is_answered_and_logs_no_traceback(
    data: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever stands behind it."""
    async with running_server(**other(transport="websocket")) as (server, _, _):
        reader, writer = await dial(server.port("other"), data)
        answer = await rest_of(reader)
        assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer[:100]
        writer.close()
        await until(lambda: not server.engine.links)
    assert not [each for each in caplog.records if each.exc_info or each.levelno >= logging.ERROR]


async def test_a_request_that_drips_is_answered_like_any_other() -> None:
    async with running_server(**other(transport="websocket")) as (server, _, _):
        reader, writer = await dial(server.port("other"))
        for byte in request() + binary(CONNECT):
            writer.write(bytes((byte,)))
            await writer.drain()
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)
        assert head.startswith(b"HTTP/1.1 101")
        assert (await asyncio.wait_for(reader.readexactly(6), WAIT_S))[2:] == ACCEPTED


async def test_frames_behind_the_handshake_are_taken() -> None:
    async with running_server(**other(transport="websocket")) as (server, _, _):
        reader, _ = await dial(server.port("other"), request() + binary(CONNECT))
        await reader.readuntil(b"\r\n\r\n")
        assert (await asyncio.wait_for(reader.readexactly(6), WAIT_S))[2:] == ACCEPTED


async def test_frames_without_end_before_connect_end_the_connection() -> None:
    async with running_server(**other(transport="websocket")) as (server, _, _):
        reader, writer = await dial(server.port("other"))
        await open_websocket(reader, writer)
        writer.write(binary(b"") * (FRAMES_BEFORE_CONNACK_MAX + 1))
        await rest_of(reader)
        assert server.hub.counters.connections_refused == 1


async def test_a_websocket_that_the_broker_closes_says_so_and_waits_for_the_answer() -> None:
    async with running_server(**other(transport="websocket")) as (server, _, _):
        reader, writer = await dial(server.port("other"))
        await open_websocket(reader, writer)
        writer.write(binary(encode(Connect("d", V5), V5) + b"\xf7\0"))
        (link,) = server.engine.links.values()
        await until(lambda: isinstance(link, SocketLink) and link.lingering)
        writer.write(Frame(Opcode.CLOSE, b"\x03\xe8").serialize(mask=True))
        got = await rest_of(reader)
        assert got.endswith(b"\x88\x02\x03\xe8")
        assert b"\xe0" in got


@pytest.mark.parametrize(
    ("headers", "host", "local"),
    [
        ([], "127.0.0.1:8083", True),
        ([], "localhost:8083", True),
        ([], "[::1]:8083", True),
        ([], "evil.example:8083", False),
        ([], "127.0.0.1.evil.example", False),
        ([], None, False),
        (["Origin: http://localhost:8083"], "localhost:8083", True),
        (["Origin: http://evil.example:8083"], "evil.example:8083", False),
        (["Origin: http://friend.example"], "evil.example:8083", True),
    ],
)
async def test_a_page_of_another_site_is_not_local(
    headers: list[str], host: str | None, local: bool
) -> None:
    """DNS may say that a site's name is this machine (rebinding): its pages name it as origin and
    host. They are no clients of this machine, unless their origin is listed."""
    broker = NotingBroker()
    settings = other(transport="websocket", origins=["http://friend.example"])
    async with running_server(broker, **settings) as (server, _, _):
        reader, writer = await dial(server.port("other"), request(*headers, host=host))
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)
        assert head.startswith(b"HTTP/1.1 101")
        writer.write(binary(CONNECT))
        await reader.readexactly(6)
    assert [is_loopback(each) for each in broker.hosts] == [local]


# -- PROXY protocol


@pytest.mark.parametrize(
    "header",
    [
        b"PROXY UNKNOWN\r\n",
        b"\r\n\r\n\0\r\nQUIT\n\x20\x00\0\0",
        b"\r\n\r\n\0\r\nQUIT\n\x21\x31" + (216).to_bytes(2, "big") + bytes(216),
    ],
)
async def test_who_the_proxy_does_not_name_is_not_local(header: bytes) -> None:
    """The proxy's own address is this machine's."""
    broker = NotingBroker()
    async with running_server(broker, **other(proxy_from=["127.0.0.1"])) as (server, _, _):
        reader, _ = await dial(server.port("other"), header + CONNECT)
        assert await asyncio.wait_for(reader.readexactly(4), WAIT_S) == ACCEPTED
    assert [is_loopback(each) for each in broker.hosts] == [False]


# -- authorities


async def test_authorities_of_clients_are_read_again(tmp_path: Path) -> None:
    """One that is taken away is trusted no more, by connections to come."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        folder.mkdir()
    first, second = Authority(ours), Authority(theirs)
    certificate, key = first.sign("/CN=localhost", "server")
    live = tmp_path / "client-ca.pem"
    shutil.copy(first.certificate, live)
    shown = {authority: authority.sign("/CN=device", "device") for authority in (first, second)}

    async def taken(server: MqttServer, authority: Authority) -> bool:
        context = ssl._create_unverified_context()
        context.load_cert_chain(*shown[authority])
        with contextlib.suppress(OSError):
            reader, _ = await dial(server.port("other"), CONNECT, ssl=context)
            return (await asyncio.wait_for(reader.read(4), WAIT_S)) == ACCEPTED
        return False

    files = {"tls_cert": str(certificate), "tls_key": str(key), "tls_ca": str(live)}
    async with running_server(**other(**files, client_certificate="required")) as (server, _, _):
        assert [await taken(server, each) for each in (first, second)] == [True, False]
        shutil.copy(second.certificate, tmp_path / "next")
        os.replace(tmp_path / "next", live)
        tls = server.listeners[0]._tls
        assert tls is not None
        assert tls.refresh()
        assert [await taken(server, each) for each in (first, second)] == [False, True]
