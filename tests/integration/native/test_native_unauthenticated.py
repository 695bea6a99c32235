"""Goal: who shows no credentials neither fills the native listener's memory, nor takes the logins
or the connections of those who have some; they are served meanwhile."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

import lakemq
from lakemq.broker_core.api.errors import Unavailable
from lakemq.cli.commands import app
from lakemq.plugins.native.sdk.net import login
from lakemq.plugins.native.server.tcp_sockets import connections_of, shut_down
from tests.support.node.node import PORTS_FREE, NodeProcess
from tests.support.unfinished_calls import UnfinishedCalls, pump_all

HELD_MAX_BYTES = 32 * 1024 * 1024
MESSAGE_BYTES = 17 * 1024 * 1024 - 1
SERVICE = "/lakemq.native.v1"
CONFIG = """
[security]
anonymous = "never"
admins = ["user:root"]

[[security.authenticators]]
kind = "password_file"
file = "{folder}/users"
"""
SCRAM: dict[str, Any] = {
    "username": "root",
    "password": "root's password",
    "mechanism": "SCRAM-SHA-256",
    "timeout_s": 20.0,
}


@contextmanager
def secured(folder: Path, native: str = "") -> Iterator[NodeProcess]:
    arguments = ["user", "add", "root", "--file", str(folder / "users"), "--password-stdin"]
    outcome = CliRunner().invoke(app, arguments, input="root's password\n")
    assert outcome.exit_code == 0, outcome.output
    ports = PORTS_FREE.replace("[plugins.native]", f"[plugins.native]\n{native}")
    with NodeProcess(folder, ports + CONFIG.format(folder=folder)) as node:
        yield node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with secured(tmp_path_factory.mktemp("secured")) as node:
        with lakemq.connect(node.native, **SCRAM) as client:  # what a first client costs is paid
            client.create_topic("t")
            client.send("t", b"before")
        yield node


def serves(node: NodeProcess) -> None:
    """By a login of its own."""
    with lakemq.connect(node.native, **SCRAM) as client:
        client.send("t", b"x")
        assert next(iter(client.consume("t"))).value == b"before"


@contextmanager
def pumped(attackers: Sequence[UnfinishedCalls]) -> Iterator[None]:
    """They send in a thread of their own."""
    over = threading.Event()

    def pump() -> None:
        while not over.is_set():
            pump_all(attackers, 0.2, quiet_s=0.2)

    thread = threading.Thread(target=pump)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        for each in attackers:
            each.close()


@pytest.mark.parametrize(
    "method", ["Native/CreateTopic", "Native/Produce", "Native/FetchMany", "Security/Authenticate"]
)
def test_unfinished_messages_hold_little_and_others_are_served(
    node: NodeProcess, method: str
) -> None:
    process = psutil.Process(node.pid)
    before = process.memory_info().rss
    attackers = [UnfinishedCalls.connect(node.native, "127.0.0.2") for _ in range(8)]
    for each in attackers:
        for _ in range(16):
            each.begin(f"{SERVICE}.{method}", MESSAGE_BYTES)
    held, sent = [0], -1
    while sent < (sent := sum(each.sent_bytes for each in attackers)) and len(held) < 100:
        pump_all(attackers, 0.3, quiet_s=0.3)
        held.append(process.memory_info().rss - before)
    with pumped(attackers):
        for _ in range(3):
            serves(node)
            held.append(process.memory_info().rss - before)
    assert max(held) <= HELD_MAX_BYTES, [each >> 20 for each in held]


def test_empty_logins_do_not_take_the_turns_of_others(
    node: NodeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others' logins end before those of the attackers would by themselves (30 s)."""
    monkeypatch.setattr(login, "_EXCHANGE_MAX_S", 15.0)
    attackers = [UnfinishedCalls.connect(node.native, "127.0.0.2") for _ in range(9)]
    for each in attackers:
        for _ in range(250):
            each.begin(f"{SERVICE}.Security/Authenticate", None)
    pump_all(attackers, 1.0)
    with pumped(attackers):
        for _ in range(3):
            serves(node)


def test_silent_connections_are_ended_and_leave_room(tmp_path: Path) -> None:
    native = "connections_max = 32\nunauthenticated_timeout_ms = 1000\n"
    with secured(tmp_path, native) as node:
        host, _, port = node.native.rpartition(":")
        with lakemq.connect(node.native, **SCRAM) as client:
            client.create_topic("t")
            client.send("t", b"before")
            with ExitStack() as stack:
                silent = [
                    stack.enter_context(
                        socket.create_connection(
                            (host, int(port)), 30, source_address=("127.0.0.2", 0)
                        )
                    )
                    for _ in range(100)
                ]
                serves_soon(node)
                for each in silent:
                    while ended(each) > 0:
                        """What HTTP/2 says first."""
            client.send("t", b"the first connection lives")


def serves_soon(node: NodeProcess) -> None:
    """Too many connections are there until they are looked at, some times a second."""
    deadline_s = time.monotonic() + 3
    while True:
        try:
            return serves(node)
        except Unavailable:
            assert time.monotonic() < deadline_s


def ended(sock: socket.socket) -> int:
    try:
        return len(sock.recv(65536))
    except ConnectionError:
        return 0


def test_linux_tells_connections_and_ends_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = listening.getsockname()
        clients = [socket.create_connection(address) for _ in range(3)]
        accepted = [listening.accept()[0] for _ in clients]
        clients[1].sendall(bytes(1000))
        assert accepted[1].recv(1000, socket.MSG_WAITALL)
        found = {(each.host, each.port): each for each in connections_of(address[1])}
        assert found.keys() == {client.getsockname() for client in clients}
        second = found[clients[1].getsockname()]
        assert second.bytes_received == 1000
        assert second.inode in [os.fstat(each.fileno()).st_ino for each in accepted]
        shut_down([second.inode])
        assert clients[1].recv(1) == b"" and accepted[1].recv(1) == b""
        clients[0].sendall(b"x")
        for each in (*clients, *accepted):
            each.close()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="without IPv6")
def test_linux_tells_connections_of_both_families() -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listening:
        port = listening.getsockname()[1]
        clients = [socket.create_connection((host, port)) for host in ("127.0.0.1", "::1")]
        accepted = [listening.accept()[0] for _ in clients]
        found = {(each.host, each.port): each.inode for each in connections_of(port)}
        assert found == {
            client.getsockname()[:2]: os.fstat(each.fileno()).st_ino
            for client, each in zip(clients, accepted, strict=True)
        }
        for each in (*clients, *accepted):
            each.close()
