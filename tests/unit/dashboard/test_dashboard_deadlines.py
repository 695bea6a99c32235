"""Goal: a connection of the dashboard ends when it must, to the second, and not before.

Method: uvicorn's own protocol behind ours, a transport in memory, and a clock that jumps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send
from uvicorn import Config
from uvicorn.server import ServerState

from lakemq.broker_core.api.limits.connection_limits import ConnectionLimiter
from lakemq.plugins.admin.accepting import KEEP_ALIVE_S, Admission, limits_of
from lakemq.plugins.admin.dashboard.serving.connections import Deadlines, protocol_of
from lakemq.plugins.admin.proxies import Proxies
from tests.support.virtual_time import run_virtually

TIMEOUT_S = 10.0
PART_S = 20.0
MOST = 8
FOR_EVER_S = 5_000.0
HEAD = b" HTTP/1.1\r\nHost: localhost\r\n"


class Transport(asyncio.Transport):
    """Takes what is written, unless it is told that no one reads."""

    def __init__(self, protocol: asyncio.Protocol, host: str = "192.0.2.1") -> None:
        super().__init__({"peername": (host, 4711), "sockname": ("192.0.2.9", 9705)})
        self.protocol = protocol
        self.written = b""
        self.ended_s: float | None = None
        self.aborted = False
        protocol.connection_made(self)

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.ended_s is not None

    def abort(self) -> None:
        if self.ended_s is None:
            self.ended_s = asyncio.get_running_loop().time()
            self.aborted = True
            self.protocol.connection_lost(None)

    def close(self) -> None:
        if self.ended_s is None:
            self.ended_s = asyncio.get_running_loop().time()
            self.protocol.connection_lost(None)

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Site:
    """An application, and a listener of it."""

    def __init__(self) -> None:
        self.limiter = ConnectionLimiter(limits_of(MOST))
        self.failures: list[BaseException] = []
        config = Config(Deadlines(self.answer), lifespan="off", log_config=None)
        config.timeout_keep_alive = int(KEEP_ALIVE_S)
        config.load()
        make = protocol_of(Admission(self.limiter, TIMEOUT_S, None, Proxies("x", ["10.0.0.1"])))
        self._made: Callable[[], asyncio.Protocol] = lambda: cast(Any, make)(
            config=config, server_state=ServerState(), app_state={},
            _loop=asyncio.get_running_loop(),
        )  # fmt: skip

    def connect(self, host: str = "192.0.2.1") -> Transport:
        return Transport(self._made(), host)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`/session...`: of one. Tells how large the form was, or sends parts."""
        if scope["path"].startswith("/session"):
            scope["state"]["session"] = object()
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            size, more = size + len(message["body"]), message.get("more_body", False)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(100 if scope["path"].endswith("events") else 0):
            await send({"type": "http.response.body", "body": b"event", "more_body": True})
            await asyncio.sleep(15)
        await send({"type": "http.response.body", "body": b"%d" % size})


def play(*sent: tuple[float, bytes], reads: bool = True) -> Transport:
    """A connection that sends these at these times (s)."""
    found: list[Transport] = []

    async def run() -> None:
        site = Site()
        transport = site.connect()
        found.append(transport)
        for at_s, data in sent:
            await asyncio.sleep(at_s - asyncio.get_running_loop().time())
            if transport.ended_s is None:
                transport.protocol.data_received(data)
                if not reads:
                    transport.protocol.pause_writing()
        await asyncio.sleep(FOR_EVER_S)
        assert site.limiter.connections == (transport.ended_s is None)

    run_virtually(run())
    return found[0]


@pytest.mark.parametrize(
    ("sent", "ended_s"),
    [
        ((), TIMEOUT_S),
        (((9.0, b"GET /lo"), (9.5, b"gin"), (9.9, b" ")), TIMEOUT_S),
        (((9.0, b"GET /login" + HEAD + b"X-Slow: "),), TIMEOUT_S),
        (((3.0, b"GET /login" + HEAD + b"\r\n"),), 3.0 + TIMEOUT_S),
        (((3.0, b"GET /login" + HEAD + b"\r\nGET /lo"), (9.0, b"g")), 3.0 + TIMEOUT_S),
        (((3.0, b"POST /login" + HEAD + b"Content-Length: 9\r\n\r\n12"), (9.0, b"3")), 13.0),
        (((3.0, b"POST /session" + HEAD + b"Content-Length: 9\r\n\r\n12"), (9.0, b"3")), 23.0),
        (((3.0, b"GET /session" + HEAD + b"\r\n"),), 3.0 + KEEP_ALIVE_S),
        (((3.0, b"GET /session" + HEAD + b"\r\n"), (60.0, b"GET /")), 3.0 + KEEP_ALIVE_S),
    ],
    ids=["silent", "line", "header", "idle", "second", "form", "session's form", "session's idle",
         "session's second"],
)  # fmt: skip
def test_what_waits_too_long_is_closed(
    sent: tuple[tuple[float, bytes], ...], ended_s: float
) -> None:
    assert play(*sent).ended_s == pytest.approx(ended_s, abs=0.01)


def test_a_form_that_comes_in_time_is_answered() -> None:
    post = b"POST /login" + HEAD + b"Content-Length: 4\r\n\r\n12"
    transport = play((3.0, post), (12.0, b"34"))
    assert transport.written.startswith(b"HTTP/1.1 200") and b"\r\n4\r\n" in transport.written
    assert transport.ended_s == pytest.approx(12.0 + TIMEOUT_S, abs=0.01)


@pytest.mark.parametrize(
    ("path", "after_s"), [(b"/events", TIMEOUT_S), (b"/session/events", PART_S)]
)
def test_an_answer_that_is_not_read_is_cut_off(path: bytes, after_s: float) -> None:
    transport = play((3.0, b"GET " + path + HEAD + b"\r\n"), reads=False)
    assert transport.aborted and transport.ended_s == pytest.approx(3.0 + after_s, abs=0.01)


def test_a_stream_that_is_read_goes_on() -> None:
    transport = play((3.0, b"GET /session/events" + HEAD + b"\r\n"))
    assert transport.written.count(b"event") == 100
    assert transport.ended_s == pytest.approx(3.0 + 100 * 15 + KEEP_ALIVE_S, abs=0.01)


def test_sessions_take_nothing_from_those_who_log_in_and_a_proxy_is_no_address() -> None:
    async def run() -> None:
        site = Site()
        mine = [site.connect() for _ in range(4)]
        assert [each.ended_s for each in mine] == [None, None, 0.0, 0.0], "a quarter of all"
        for each in mine[:2]:
            each.protocol.data_received(b"GET /session/events" + HEAD + b"\r\n")
        await asyncio.sleep(1)  # streams have no end, and count as those of sessions
        more = [site.connect() for _ in range(3)]
        assert [each.ended_s for each in more] == [None, None, 1.0], "half of all are one address'"
        for each in more[:2]:
            each.abort()
        many = [site.connect("10.0.0.1") for _ in range(5)]
        assert [each.ended_s for each in many] == [None] * 4 + [1.0], "half without a login"
        assert site.limiter.connections == 6

    run_virtually(run())
