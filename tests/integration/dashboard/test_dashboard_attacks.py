"""Goal: connections that ask nothing, send half of something or read nothing cost others nothing
and end soon, also before a login; nobody can keep a user from the dashboard by guessing passwords.

Method: a dashboard with few connections and short deadlines. Attackers come from 127.0.0.1, others
from 127.0.0.2: a bound of one address is no bound of theirs.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from lakemq.plugins.admin.dashboard.client import AdminClient
from lakemq.plugins.admin.dashboard.options import Credentials, DashboardOptions
from tests.support.mqtt.certificates import Authority
from tests.support.node.dashboard import Visitor, dashboard_of
from tests.support.node.node import PORTS_FREE, NodeProcess
from tests.support.node.users import USERS_ONLY, add_user

MOST = 64
ADDRESS_MOST = MOST // 4
"""Of one address, without a login."""
TIMEOUT_S = 1.0
SOON_S = 30.0
BOUNDS = ("--connections-max", str(MOST), "--login-timeout-ms", "1000")
OTHER = "127.0.0.2"


@pytest.fixture(scope="module")
def site(node: NodeProcess) -> Iterator[str]:
    with dashboard_of(node.addresses["admin"], *BOUNDS) as url:
        yield url


def connected(url: str, source: str = "127.0.0.1", receive_bytes: int = 0) -> socket.socket:
    made = socket.socket()
    if receive_bytes:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    made.settimeout(30)
    made.bind((source, 0))
    made.connect((urlsplit(url).hostname, urlsplit(url).port))
    return made


def is_closed(sock: socket.socket, within_s: float) -> bool:
    sock.settimeout(max(0.01, within_s))
    try:
        while sock.recv(1 << 20):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


def all_closed(socks: list[socket.socket], within_s: float) -> bool:
    ends_s = time.monotonic() + within_s
    return all([is_closed(each, ends_s - time.monotonic()) for each in socks])


def held_of(socks: list[socket.socket], most: int) -> int:
    """How many are open. Those that are refused have half the time that a silent one has."""
    poll = select.poll()
    for each in socks:
        poll.register(each, select.POLLIN)
    ends_s = time.monotonic() + TIMEOUT_S / 2
    while (held := len(socks) - len(poll.poll(0))) > most and time.monotonic() < ends_s:
        time.sleep(0.01)
    return held


def asked_quickly(url: str, source: str = OTHER) -> Visitor:
    """A visitor who is served at once."""
    visitor = Visitor(url, source)
    began_s = time.monotonic()
    assert visitor.get("/login").status == 200
    assert time.monotonic() - began_s < 8
    return visitor


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /log",
        b"GET /login HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
        b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nusername=",
        b"POST /topics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nname=",
        b"GET /login HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /login HTTP/1.1\r\nHost: localhost\r\n\r\nGET /lo",
    ],
    ids=["silent", "half line", "half header", "half form", "form without a login", "idle",
         "half of a second"],
)  # fmt: skip
def test_hundreds_that_end_nothing_cost_others_nothing(site: str, sent: bytes) -> None:
    flood = []
    try:
        for _ in range(300):
            sock = connected(site)
            flood.append(sock)
            with suppress(ConnectionError):  # one too many of its address
                sock.sendall(sent)
        asked_quickly(site)
        assert all_closed(flood, SOON_S)
        asked_quickly(site, "127.0.0.1")
    finally:
        for each in flood:
            each.close()


def test_five_hundred_idle_ones_take_no_more_than_their_share(site: str) -> None:
    visitor = Visitor(site, OTHER)
    assert visitor.log_in("root").status == 303
    with ExitStack() as open_ones:
        flood = [
            open_ones.enter_context(connected(site, f"127.0.1.{number % 250 + 1}"))
            for number in range(500)
        ]
        assert held_of(flood, MOST // 2) <= MOST // 2
        assert all_closed(flood, SOON_S)
        assert visitor.get("/topics").status == 200


def test_readers_that_do_not_read_are_closed(site: str) -> None:
    asks = b"GET /static/app.css HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000
    with ExitStack() as open_ones:
        flood = []
        for _ in range(ADDRESS_MOST):
            sock = open_ones.enter_context(connected(site, receive_bytes=4096))
            sock.settimeout(0.2)
            with suppress(TimeoutError, ConnectionError):
                sock.sendall(asks)  # for more than 10 MB
            flood.append(sock)
        asked_quickly(site)
        time.sleep(3 * TIMEOUT_S)
        # They were cut off, however slowly what was on its way is read now.
        assert all_closed(flood, SOON_S)


def test_handshakes_that_do_not_end_are_closed(node: NodeProcess, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.sign("/CN=dashboard", "dashboard")
    tls = ("--serve-cert", str(cert), "--serve-key", str(key))
    with dashboard_of(node.addresses["admin"], *BOUNDS, *tls) as url, ExitStack() as open_ones:
        flood = [open_ones.enter_context(connected(url)) for _ in range(300)]
        assert held_of(flood, ADDRESS_MOST) <= ADDRESS_MOST
        secure = open_ones.enter_context(
            authority.client_context().wrap_socket(
                connected(url, OTHER), server_hostname="127.0.0.1"
            )
        )
        secure.sendall(b"GET /login HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert secure.recv(15) == b"HTTP/1.1 200 OK"
        assert all_closed(flood, SOON_S)


def test_one_user_leaves_streams_to_the_others(site: str) -> None:
    root, ann = Visitor(site, OTHER), Visitor(site, OTHER)
    assert root.log_in("root").status == ann.log_in("ann").status == 303

    def stream(visitor: Visitor, opened: ExitStack) -> bytes:
        sock = opened.enter_context(connected(site, OTHER))
        ask = f"GET /events HTTP/1.1\r\nHost: localhost\r\nCookie: {visitor.cookie}\r\n\r\n"
        sock.sendall(ask.encode())
        head = sock.recv(12)
        while head.startswith(b"HTTP/1.1 200") and b": begins" not in head:
            head += sock.recv(4096)
        return head[:12]

    with ExitStack() as opened:
        found = [stream(root, opened) for _ in range(22)]
        assert found == [b"HTTP/1.1 200"] * 20 + [b"HTTP/1.1 503"] * 2
        assert stream(ann, opened) == b"HTTP/1.1 200"
    ends_s = time.monotonic() + SOON_S
    while time.monotonic() < ends_s:  # what was closed makes room
        with ExitStack() as opened:
            if stream(root, opened) == b"HTTP/1.1 200":
                return
        time.sleep(0.2)
    pytest.fail("streams that were closed still count")


def wrong(visitor: Visitor, name: str, host: str = "") -> int:
    said = {"X-Forwarded-For": host} if host else {}
    return visitor.post("/login", {"username": name, "password": "x"}, said).status


def test_who_is_no_proxy_is_not_believed(site: str) -> None:
    visitor = Visitor(site, "127.0.0.3")
    tried = [wrong(visitor, f"u{n}", f"198.51.100.{n}") for n in range(11)]
    assert tried == [401] * 10 + [429]
    assert wrong(Visitor(site, "127.0.0.4"), "u") == 401


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NodeProcess, str]]:
    """A node and its dashboard, both behind a proxy at 127.0.0.9."""
    folder = tmp_path_factory.mktemp("behind")
    add_user(folder, "root")
    add_user(folder, "ann")
    ports = PORTS_FREE.replace("[admin]", '[admin]\nproxies = ["127.0.0.1"]')
    with (
        NodeProcess(folder, ports + USERS_ONLY.format(folder=folder)) as node,
        dashboard_of(node.addresses["admin"], "--proxy", "127.0.0.8/30") as url,
    ):
        yield node, url


def test_guesses_behind_a_proxy_lock_out_nobody_else(behind: tuple[NodeProcess, str]) -> None:
    """Neither at the dashboard nor at the broker, to which all of them come from the dashboard."""
    _, url = behind
    mine, other = "198.51.100.1", "198.51.100.2"
    guard = Visitor(url, "127.0.0.9")
    root = Visitor(url, "127.0.0.9", {"X-Forwarded-For": f"10.0.0.1, {mine}"})
    answer = root.log_in("root")
    assert answer.status == 303 and "Secure" not in answer.headers["set-cookie"]
    tried = [wrong(guard, "root", f"{mine}, {other}") for _ in range(11)]
    assert tried == [401] * 10 + [429]
    assert root.get("/topics").status == 200, "the session goes on"
    assert root.log_in("root").status == 303
    tried = [wrong(guard, "root", f"192.0.2.{n}") for n in range(25)]
    assert tried == [401] * 20 + [429] * 5, "30 of one user, from everywhere"
    assert root.log_in("root").status == 303, "who has logged in from there may again"
    audit = root.get("/audit").text
    root.get("/topics")
    root.after("/topics", {"name": "made"})
    assert mine in root.get("/audit").text and mine not in audit


def test_a_proxy_tells_of_its_tls(behind: tuple[NodeProcess, str]) -> None:
    said = {"X-Forwarded-For": "198.51.100.9", "X-Forwarded-Proto": "https"}
    assert "Secure" in Visitor(behind[1], "127.0.0.9", said).log_in("ann").headers["set-cookie"]
    assert "Secure" not in Visitor(behind[1], OTHER, said).log_in("ann").headers["set-cookie"]


@pytest.mark.parametrize(
    ("signer", "name", "is_told"),
    [("known", "127.0.0.1", True), ("other", "127.0.0.1", False), ("known", "127.0.0.2", False)],
)
def test_passwords_go_to_an_api_that_shows_who_it_is(
    tmp_path: Path, signer: str, name: str, is_told: bool
) -> None:
    """Not where its certificate is of another authority, or for another name."""
    known, other = (Authority(tmp_path, name) for name in ("known", "other"))
    issuer = {"known": known, "other": other}[signer]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*issuer.sign("/CN=api", "api"))
    told: list[bytes] = []

    def serve(listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                sock, _ = listening.accept()
                with suppress(OSError), context.wrap_socket(sock, server_side=True) as secure:
                    told.append(secure.recv(4096))

    with socket.create_server((name, 0)) as listening:
        threading.Thread(target=serve, args=(listening,), daemon=True).start()
        api = f"https://{name}:{listening.getsockname()[1]}"
        with dashboard_of(api, "--tls-ca", str(known.certificate)) as url:
            answer = Visitor(url).log_in("root")
        listening.shutdown(socket.SHUT_RDWR)
    assert answer.status == 502 and "does not answer" in answer.text
    assert any(b"Authorization: Basic" in each for each in told) == is_told


async def test_slow_pages_of_one_user_keep_no_other_waiting() -> None:
    """Of a user at work, and of one who guesses its password."""
    held: list[str] = []
    all_held, go_on = asyncio.Event(), asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        if request.path.endswith("/slow"):
            held.append(request.headers["Authorization"])
            if len(held) == 16:
                all_held.set()
            await go_on.wait()
        return web.json_response({})

    app = web.Application()
    app.router.add_get("/api/v1/{path}", answer)
    async with TestServer(app) as server:
        client = AdminClient(DashboardOptions(str(server.make_url("")).rstrip("/")))
        await client.open()
        ann, guesses, bob = (Credentials(*each) for each in (
            ("ann", "right"), ("ann", "wrong"), ("bob", "x")
        ))  # fmt: skip
        slow = [
            asyncio.create_task(client.get(who, "slow"))
            for who in (ann, guesses)
            for _ in range(40)
        ]
        try:
            async with asyncio.timeout(SOON_S):
                await all_held.wait()
                assert await client.get(bob, "quick") == {}
            assert len(held) == 16
            go_on.set()
            await asyncio.gather(*slow)
        finally:
            for each in slow:
                each.cancel()
            await client.close()
    assert len(held) == 80
