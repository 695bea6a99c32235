"""Goal: who does not authenticate neither holds the HTTP admin's connections nor is told names, and
no web page reads it through a name of its own (DNS rebinding)."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

from lakemq.broker_core.api.errors import NotAuthenticated, NotAuthorized
from lakemq.broker_core.api.ports import Credentials
from lakemq.broker_core.api.types import (
    ANONYMOUS,
    PartitionStatus,
    Principal,
    TopicConfig,
    TopicInfo,
)
from lakemq.plugins.admin.config import AdminSettings
from lakemq.plugins.admin.listener import AdminListener
from tests.support.mqtt.certificates import Authority
from tests.support.node.administered import ListedChanges, StubNode
from tests.support.node.node import PORTS_FREE, NodeProcess

CONNECTIONS_MAX = 16
PEER_MAX = CONNECTIONS_MAX // 4
"""Of one address, not authenticated."""
SETTINGS = f"""port = 0
connections_max = {CONNECTIONS_MAX}
unauthenticated_timeout_ms = %d
hosts = ["broker.example"]"""


def config(unauthenticated_timeout_ms: int) -> str:
    section = SETTINGS % unauthenticated_timeout_ms
    return PORTS_FREE.replace("[admin]\nport = 0", f"[admin]\n{section}")


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node that waits half a second for requests."""
    with NodeProcess(tmp_path_factory.mktemp("hasty"), config(500)) as node:
        yield node


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node that waits ten minutes for requests."""
    with NodeProcess(tmp_path_factory.mktemp("patient"), config(600_000)) as node:
        yield node


def connected(node: NodeProcess, source: str = "127.0.0.1") -> socket.socket:
    host, _, port = node.addresses["admin"].rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30, source_address=(source, 0))


def is_closed(sock: socket.socket, within_s: float) -> bool:
    sock.settimeout(within_s)
    try:
        while sock.recv(65536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /healthz HT",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /api/v1/mqtt/bans HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
        b'Content-Type: application/json\r\n\r\n{"half": ',
    ],
    ids=["silent", "half line", "half header", "idle after a request", "half body"],
)
def test_a_connection_that_asks_nothing_is_closed(hasty: NodeProcess, sent: bytes) -> None:
    with connected(hasty) as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert sock.recv(65536).startswith(b"HTTP/1.1 200")
    with connected(hasty) as sock:
        sock.sendall(sent)
        assert is_closed(sock, 8)


def request(node: NodeProcess, source: str, host: str, path: str) -> tuple[int, str]:
    with connected(node, source) as sock:
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        parts = []
        while part := sock.recv(65536):
            parts.append(part)
    head, _, body = b"".join(parts).decode().partition("\r\n\r\n")
    return int(head.split()[1]), body


def test_one_address_does_not_take_all_connections(patient: NodeProcess) -> None:
    flood = [connected(patient) for _ in range(3 * CONNECTIONS_MAX)]
    try:
        assert request(patient, "127.0.0.2", "localhost", "/healthz")[0] == 200
        held = sum(not is_closed(each, 0.2) for each in flood)
        assert held == PEER_MAX
        for each in flood:
            each.close()
    finally:
        for each in flood:
            each.close()


def test_many_addresses_do_not_take_the_place_of_who_has_authenticated(
    patient: NodeProcess,
) -> None:
    flood = [connected(patient, f"127.0.1.{number}") for number in range(1, 3 * CONNECTIONS_MAX)]
    try:
        held = sum(not is_closed(each, 0.1) for each in flood)
        assert held == CONNECTIONS_MAX // 2
    finally:
        for each in flood:
            each.close()


@pytest.mark.parametrize("path", ["/metrics", "/api/v1/node", "/api/v1/topics", "/api/v1/plugins"])
def test_a_name_that_is_not_ours_reads_nothing(patient: NodeProcess, path: str) -> None:
    port = patient.addresses["admin"].rpartition(":")[2]
    for refused in ("evil.example", f"evil.example:{port}", "localhost.evil.example"):
        status, body = request(patient, "127.0.0.1", refused, path)
        assert status == 403 and "admin.hosts" in body, (refused, status, body)
    for taken in ("localhost", f"127.0.0.1:{port}", f"[::1]:{port}", "10.1.2.3", "Broker.Example"):
        assert request(patient, "127.0.0.1", taken, path)[0] == 200, taken
    assert request(patient, "127.0.0.1", "evil.example", "/healthz")[0] == 200


async def test_a_body_nested_too_deeply_is_a_bad_request(patient: NodeProcess) -> None:
    url = f"http://{patient.addresses['admin']}/api/v1/mqtt/bans"
    headers = {"Content-Type": "application/json"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data="[" * 60_000, headers=headers) as answer,
    ):
        assert answer.status == 400, await answer.text()


class DegradedBroker:
    """A broker with one partition that is not online; it knows `ops` and nobody else."""

    def __init__(self, anonymous: bool) -> None:
        self._anonymous = anonymous

    def topics(self) -> list[TopicInfo]:
        return [TopicInfo("secret", "0" * 32, 1, TopicConfig())]

    def partition_status(self, topic: str, number: int) -> PartitionStatus:
        return PartitionStatus(number, "fenced", 0, 0, 0, 0, 1)

    async def authenticate(self, credentials: Credentials) -> Principal:
        if credentials.username == "ops":
            return Principal("ops", "user")
        if credentials.username is None and self._anonymous:
            return ANONYMOUS
        raise NotAuthenticated("nobody")

    def authorize(self, *_: object) -> None:
        """Everything is allowed."""


def listener_of(broker: DegradedBroker, settings: AdminSettings) -> AdminListener:
    return AdminListener(StubNode(catalog=broker), settings)


async def degraded(broker: DegradedBroker, headers: dict[str, str]) -> dict[str, Any]:
    listener = listener_of(broker, AdminSettings(port=0))
    await listener.start()
    try:
        url = f"http://{listener.addresses()[0]}/readyz"
        async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
            assert answer.status == 503
            return cast(dict[str, Any], json.loads(await answer.text()))
    finally:
        await listener.stop()


class ClosedBroker(DegradedBroker):
    """Lets in and allows nothing."""

    def authorize(self, *_: object) -> None:
        raise NotAuthorized("it is not allowed")


async def test_a_change_that_is_not_allowed_is_in_the_audit_log() -> None:
    node = StubNode(catalog=ClosedBroker(False))
    node.audit = changes = ListedChanges()
    listener = AdminListener(node, AdminSettings(port=0))
    await listener.start()
    try:
        url = f"http://{listener.addresses()[0]}/api/v1/nodes/n9/drain"
        headers = {
            "Authorization": aiohttp.encode_basic_auth("ops", "x"),
            "Content-Type": "application/json",
        }
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(url, data=b'{"never": "read"}') as answer,
        ):
            assert answer.status == 403, await answer.text()
    finally:
        await listener.stop()
    (noted,) = changes.changes
    assert (noted.action, noted.resource) == ("POST nodes/{node}/drain", "n9")
    assert (noted.principal.name, noted.outcome) == ("ops", "NOT_AUTHORIZED")
    assert noted.request == {}


async def test_names_of_degraded_partitions_are_for_those_who_may_ask() -> None:
    named = {"status": "degraded", "partitions": ["secret/0"]}
    basic = {"Authorization": aiohttp.encode_basic_auth("ops", "x")}
    assert await degraded(DegradedBroker(False), {}) == {"status": "degraded"}
    assert await degraded(DegradedBroker(False), basic) == named
    assert await degraded(DegradedBroker(True), {}) == named
    assert await degraded(DegradedBroker(True), {"Host": "evil.example"}) == {"status": "degraded"}


async def test_with_tls_a_handshake_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("/CN=admin", "admin")
    settings = AdminSettings(
        port=0, tls_cert=str(certificate), tls_key=str(key), unauthenticated_timeout_ms=500
    )
    listener = listener_of(DegradedBroker(True), settings)
    await listener.start()
    try:
        host, _, port = listener.addresses()[0].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"\x16\x03")  # half a record header
        assert await asyncio.wait_for(reader.read(), 8) == b""
        writer.close()
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"https://{host}:{port}/healthz", ssl=authority.client_context()) as answer,
        ):
            assert answer.status == 200
    finally:
        await listener.stop()
