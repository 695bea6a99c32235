"""Goal: clients that are not let in cost a bounded part of connections, time and memory; whoever is
sent away learns why; and what a web page or a proxy says makes nobody local.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakemq.broker_core.api.types import ANONYMOUS, Credentials, Principal
from lakemq.plugins.mqtt.server import accepting
from lakemq.plugins.mqtt.server.links import SocketLink
from lakemq.plugins.mqtt.wire.encoding import encode
from lakemq.plugins.mqtt.wire.packets import V5, V311, Connect, PacketType, Ping, Properties, Will
from tests.support.mqtt.certificates import Authority
from tests.support.mqtt.memory_broker import MemoryBroker, running_server, until
from tests.support.mqtt.raw_clients import WAIT_S, dial, other, rest_of
from tests.support.platforms.compiled import REASON, is_compiled

pytestmark = pytest.mark.usefixtures("raw_clients")

CONNECT = encode(Connect("raw"), V311)
ACCEPTED = b"\x20\2\0\0"


class HangingBroker(MemoryBroker):
    """Never finds out who a client is."""

    async def authenticate(self, credentials: Credentials) -> Principal:
        await asyncio.Event().wait()
        raise AssertionError


# -- how many


async def test_silent_connections_leave_room_for_others() -> None:
    """Who comes while too many are silent waits until they are dropped, and is served then."""
    settings = {"unauthenticated_max": 3, "connect_timeout_ms": 1000}
    async with running_server(**settings) as (server, _, port):
        limiter = server.listeners[0].limiter
        for _ in range(3):
            await dial(port)
        await until(lambda: limiter.unauthenticated == 3)
        reader, _ = await dial(port, CONNECT)
        await asyncio.sleep(0.1)
        assert len(server.hub.connections) == 3
        assert await asyncio.wait_for(reader.read(4), WAIT_S) == ACCEPTED
        assert limiter.unauthenticated <= 3


async def test_half_of_all_connections_are_for_those_who_are_let_in() -> None:
    async with running_server(connections_max=4, connect_timeout_ms=60_000) as (server, _, port):
        for _ in range(2):
            reader, _ = await dial(port, CONNECT)
            assert await asyncio.wait_for(reader.read(4), WAIT_S) == ACCEPTED
        for _ in range(5):
            await dial(port)
        limiter = server.listeners[0].limiter
        await until(lambda: limiter.unauthenticated == 2)
        await asyncio.sleep(0.1)
        assert limiter.connections == 4


@pytest.mark.parametrize("bound", ["unauthenticated_peer_max", "peer_connections_max"])
async def test_one_address_has_a_share(bound: str) -> None:
    async with running_server(**{bound: 2}) as (server, _, port):
        for _ in range(2):
            await dial(port)
        await until(lambda: len(server.hub.connections) == 2)
        reader, _ = await dial(port, CONNECT)
        assert await rest_of(reader) == b""
        reader, _ = await dial(port, CONNECT, local_addr=("127.0.0.2", 0))
        assert await asyncio.wait_for(reader.read(4), WAIT_S) == ACCEPTED
        assert server.hub.counters.connections_refused == 1


async def test_behind_a_proxy_the_clients_address_counts() -> None:
    settings = other(proxy_from=["127.0.0.1"]) | {"peer_connections_max": 2}
    async with running_server(**settings) as (server, _, _):
        port = server.port("other")
        for number, host in enumerate(("203.0.113.7", "203.0.113.7", "203.0.113.8")):
            header = f"PROXY TCP4 {host} 10.0.0.1 1 2\r\n".encode()
            reader, _ = await dial(port, header + encode(Connect(f"{number}"), V311))
            assert await asyncio.wait_for(reader.read(4), WAIT_S) == ACCEPTED
        header = b"PROXY TCP4 203.0.113.7 10.0.0.1 1 2\r\n"
        reader, _ = await dial(port, header + CONNECT)
        assert await rest_of(reader) == b""


@pytest.mark.skipif(is_compiled(SocketLink), reason=REASON)
async def test_those_who_wait_to_be_let_in_are_not_looked_at_over_and_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An answer about one client looks at that client alone."""
    looked = 0
    overloaded = SocketLink.overloaded.fget
    assert overloaded is not None

    def counting(link: SocketLink) -> bool:
        nonlocal looked
        looked += 1
        return overloaded(link)

    class Slow(MemoryBroker):
        go = asyncio.Event()

        async def authenticate(self, credentials: Credentials) -> Principal:
            await self.go.wait()
            return ANONYMOUS

    monkeypatch.setattr(SocketLink, "overloaded", property(counting))
    count = 200
    async with running_server(Slow(), unauthenticated_peer_max=0) as (server, broker, port):
        dialled = [await dial(port, encode(Connect(f"{n}"), V311)) for n in range(count)]
        await until(lambda: all(one.authenticating for one in server.hub.connections))
        looked = 0
        broker.go.set()  # type: ignore[attr-defined]
        for reader, _ in dialled:
            assert await asyncio.wait_for(reader.read(4), WAIT_S) == ACCEPTED
        assert looked <= 10 * count


@pytest.mark.parametrize("data", [b"", b"\x16\x03\x01\x02\x00\x01", CONNECT * 100])
async def test_tls_handshakes_count_and_have_to_end(
    data: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One that fails, or lasts too long, leaves nothing behind but its socket's end."""
    certificate, key = Authority(tmp_path).sign("/CN=localhost", "server")
    settings = other(tls_cert=str(certificate), tls_key=str(key)) | {"connect_timeout_ms": 300}
    async with running_server(**settings) as (server, _, _):
        limiter, port = server.listeners[0].limiter, server.port("other")
        readers = [(await dial(port))[0]]
        await until(lambda: limiter.unauthenticated == 1)
        readers += [(await dial(port, data))[0] for _ in range(5)]
        for reader in readers:
            await rest_of(reader)
        await until(lambda: limiter.connections == 0)
        assert not server.listeners[0].waiting
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


async def test_a_client_that_is_known_at_once_takes_no_task() -> None:
    """It is let in, and its connection opened, in the turns that bring its bytes."""
    loop, tasks = asyncio.get_running_loop(), 0

    def counting(loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> asyncio.Task[Any]:
        nonlocal tasks
        tasks += 1
        return asyncio.Task(work, loop=loop, **more)

    async with running_server() as (server, _, port):
        clients = [socket.socket() for _ in range(20)]
        loop.set_task_factory(counting)
        try:
            for client in clients:
                client.setblocking(False)
                await loop.sock_connect(client, ("127.0.0.1", port))
                await loop.sock_sendall(client, CONNECT)
            for client in clients:
                assert await loop.sock_recv(client, 4) == ACCEPTED
            assert tasks == 0
            assert server.listeners[0].limiter.unauthenticated == 0
        finally:
            loop.set_task_factory(None)
            for client in clients:
                client.close()


async def test_a_connection_that_is_not_open_when_the_listener_stops_is_closed() -> None:
    async with running_server() as (server, _, port):
        listener = server.listeners[0]
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.settimeout(WAIT_S)
            acceptor = listener._acceptor
            assert acceptor is not None
            acceptor._accept(acceptor.sockets[0])
            assert listener.limiter.connections == 1 and not server.hub.connections
            acceptor.close()
            assert listener.limiter.connections == 0
            await asyncio.sleep(0.05)
            assert not server.hub.connections
            assert await asyncio.to_thread(client.recv, 1) == b""


# -- descriptors


@pytest.fixture
def few_descriptors() -> Iterator[Any]:
    """Leaves the process no descriptor beyond those it has, until told otherwise."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def limit(on: bool) -> None:
        if not on:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            return
        with socket.socket() as one:
            most = one.fileno()
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))

    yield limit
    limit(False)


async def test_a_lack_of_descriptors_is_survived(
    few_descriptors: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Those who are connected are served, nothing is tried over and over, and whoever waited is
    accepted afterwards."""
    tries = 0
    accept = socket.socket.accept

    def counting(sock: socket.socket) -> Any:
        nonlocal tries
        tries += 1
        return accept(sock)

    monkeypatch.setattr(accepting, "NO_DESCRIPTORS_S", 0.05)
    async with running_server() as (server, _, port):
        good_reader, good = await asyncio.open_connection("127.0.0.1", port)
        good.write(CONNECT)
        assert await good_reader.readexactly(4) == ACCEPTED
        waiting = [socket.create_connection(("127.0.0.1", port)) for _ in range(5)]
        monkeypatch.setattr(socket.socket, "accept", counting)
        few_descriptors(True)
        try:
            for _ in range(20):
                good.write(encode(Ping(PacketType.PINGREQ), V311))
                assert await asyncio.wait_for(good_reader.readexactly(2), WAIT_S) == b"\xd0\0"
                await asyncio.sleep(0.01)
            assert len(server.hub.connections) == 1
            assert 1 <= tries <= 20
        finally:
            few_descriptors(False)
        await until(lambda: len(server.hub.connections) == 6)
        for sock in waiting:
            sock.close()
        good.close()
    said = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert len([each for each in said if "no connections are accepted" in each]) == 1
    assert not [each for each in caplog.records if each.exc_info]


# -- memory


async def test_who_sends_most_before_it_is_let_in_is_dropped_first() -> None:
    settings = {"unauthenticated_memory_max_bytes": 2 * 1024 * 1024, "connect_timeout_ms": 60_000}
    will = Will("t", bytes(60_000))
    half = encode(Connect("half", will=will), V311)[:-1000]
    async with running_server(HangingBroker(), **settings) as (server, _, port):
        limiter = server.listeners[0].limiter
        patient, writer = await dial(port, CONNECT[:-1])
        for number in range(40):
            await dial(port, half[: 50_000 + number * 200])
        await until(lambda: limiter.refused["bytes"] > 20)
        assert limiter.unauthenticated_bytes <= 1024 * 1024
        assert server.hub.counters.connections_refused > 20
        assert not patient.at_eof()
        writer.write(CONNECT[-1:])
        await until(lambda: any(one.authenticating for one in server.hub.connections))


FLOOD = """
import pathlib, socket, ssl, sys, time
port, tls, count = int(sys.argv[1]), sys.argv[2] == "tls", int(sys.argv[3])
data = pathlib.Path(sys.argv[4]).read_bytes()
context, kept, failures = ssl._create_unverified_context(), [], 0
for number in range(count):
    sock = socket.socket()
    kept.append(sock)
    sock.bind((f"127.0.0.{2 + number % 5}", 0))
    sock.settimeout(0.3)
    try:
        sock.connect(("127.0.0.1", port))
        if tls:
            kept[-1] = sock = context.wrap_socket(sock)
        sock.sendall(data.replace(b"******", b"%06d" % number))
    except OSError:
        failures += 1
        if failures == 3:
            break
print("done", flush=True)
time.sleep(60)
"""


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


HEAVY = Properties(user_properties=(("ab", "cd"),) * 1000)
PARSED = encode(Connect("******", V5, properties=HEAVY, will=Will("t", b"", properties=HEAVY)), V5)
LARGE = encode(Connect("******", will=Will("t", bytes(65_000))), V311)


@pytest.mark.parametrize(("data", "tls", "count"), [
    (b"", "", 1100), (b"", "tls", 200), (PARSED, "", 200), (LARGE[:-1000], "", 700),
    (LARGE, "", 700),
], ids=["silent", "silent-tls", "properties", "half", "whole"])  # fmt: skip
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_clients_that_are_not_let_in_hold_no_more_than_32_mib(
    data: bytes, tls: str, count: int, tmp_path: Path
) -> None:
    """With the default settings, whatever they send, from several addresses."""
    settings: dict[str, Any] = {"connect_timeout_ms": 60_000}
    if tls:
        certificate, key = Authority(tmp_path).sign("/CN=localhost", "server")
        settings |= other(tls_cert=str(certificate), tls_key=str(key))
    file = tmp_path / "data"
    file.write_bytes(data)
    async with running_server(HangingBroker(), **settings) as (server, _, port):
        port = server.port("other") if tls else port
        before = resident_bytes()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            FLOOD,
            str(port),
            tls,
            str(count),
            str(file),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            assert await asyncio.wait_for(process.stdout.readline(), WAIT_S) == b"done\n"
            # They are connected by the system; how soon they are accepted, the machine decides.
            await until(lambda: len(server.hub.connections) > 40)
            await asyncio.sleep(0.1)
            grown, waiting = resident_bytes() - before, len(server.hub.connections)
        finally:
            process.kill()
            await process.wait()
    assert waiting > 40
    assert grown <= 32 * 1024 * 1024, (grown, waiting)
