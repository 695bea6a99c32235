"""The HTTP server of the admin is opened while its first connections wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from aiohttp import web

from lakemq.plugins.admin.accepting import limits_of
from lakemq.plugins.admin.http.connections import AdminConnections
from lakemq.plugins.admin.proxies import Proxies
from tests.support.mqtt.memory_broker import until

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
BODY_BYTES = 300_000
"""More than sockets are read for at once."""
LARGE = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % BODY_BYTES + bytes(
    BODY_BYTES
)
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def answer(request: web.BaseRequest) -> web.Response:
    return web.Response(text=f"{len(await request.read())} bytes")


@asynccontextmanager
async def listening(
    open_server: Callable[[], Awaitable[web.Server]], timeout_s: float = 600
) -> AsyncIterator[tuple[AdminConnections, Callable[[], Awaitable[Streams]]]]:
    """And a way to connect."""
    connections = AdminConnections(
        open_server, limits_of(100), timeout_s, None, Proxies("admin", ())
    )
    await connections.listen("127.0.0.1", 0)
    host, _, port = connections.addresses()[0].rpartition(":")
    clients: list[asyncio.StreamWriter] = []

    async def connect() -> Streams:
        streams = await asyncio.open_connection(host, int(port))
        clients.append(streams[1])
        return streams

    try:
        yield connections, connect
    finally:
        connections.close()
        for client in clients:
            client.close()
        for connection in list(connections.by_handler.values()):
            connection.abort()
        await asyncio.sleep(0)


async def answered(client: Streams) -> bytes:
    async with asyncio.timeout(30):
        await client[0].readuntil(b"\r\n\r\n")
        return await client[0].readuntil(b" bytes")


async def test_what_came_before_the_server_was_there_is_answered() -> None:
    may_open = asyncio.Event()
    opened = 0

    async def open_server() -> web.Server:
        nonlocal opened
        opened += 1
        await may_open.wait()
        return web.Server(answer)

    # Shorter than it is held: nobody is to be closed for that.
    async with listening(open_server, timeout_s=0.5) as (connections, connect):
        assert opened == 0
        first, second, gone, silent = [await connect() for _ in range(4)]
        silent[1].close()
        first[1].write(REQUEST)
        second[1].write(LARGE)
        gone[1].write(REQUEST)
        gone[1].close()
        await asyncio.sleep(1)
        may_open.set()
        assert [await answered(first), await answered(second)] == [
            b"0 bytes", f"{BODY_BYTES} bytes".encode(),
        ]  # fmt: skip
        later = await connect()
        later[1].write(REQUEST)
        assert await answered(later) == b"0 bytes"
        assert opened == 1
        # Who is gone is not kept. The rest ends with its deadline.
        await until(lambda: not connections.by_handler)


async def test_a_server_that_does_not_open_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    failures = [OSError("no more files")]

    async def open_server() -> web.Server:
        if failures:
            raise failures.pop()
        return web.Server(answer)

    async with listening(open_server) as (_, connect):
        reader, _ = await connect()
        async with asyncio.timeout(30):
            with suppress(ConnectionError):
                assert await reader.read() == b""
        assert "no more files" in caplog.text
        again = await connect()
        again[1].write(REQUEST)
        assert await answered(again) == b"0 bytes"


async def test_closing_ends_those_that_wait() -> None:
    async def open_server() -> web.Server:
        await asyncio.Event().wait()
        raise AssertionError

    async with listening(open_server) as (_, connect):
        reader, _ = await connect()
        async with asyncio.timeout(30):
            silent = asyncio.ensure_future(reader.read())
            await asyncio.wait([silent], timeout=0.5)
    async with asyncio.timeout(30):
        (found,) = await asyncio.gather(silent, return_exceptions=True)
    assert found == b"" or isinstance(found, ConnectionResetError)
