"""Goal: a web service may decide who a client is, and its silence never opens the door."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from lakemq.broker_core.api.access import (
    AccessContext,
    Credentials,
    Operation,
    Principal,
    Resource,
)
from lakemq.broker_core.api.errors import ConfigError, NotAuthenticated, Unavailable
from lakemq.broker_core.security.authn.http_callback import HttpAuthenticator
from lakemq.broker_core.security.authz.rules import RuleSet
from lakemq.broker_core.security.http_calls import ANSWER_MAX_BYTES
from lakemq.broker_core.security.settings import HttpSettings

ANN = Credentials("mqtt", "c1", "10.0.0.1", "ann", b"hunter2")


class Service:
    """A web service that answers as it is told and keeps what it was asked."""

    def __init__(self) -> None:
        self.answer: Callable[[], web.StreamResponse] = lambda: web.Response(status=204)
        self.asked: list[dict[str, Any]] = []
        self.headers: list[str | None] = []
        self.delay_s = 0.0
        self.busy = 0
        self.busiest = 0
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        self.asked.append(await request.json() if request.can_read_body else dict(request.query))
        self.headers.append(request.headers.get("Authorization"))
        await asyncio.sleep(self.delay_s)
        self.busy -= 1
        return self.answer()


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    made = Service()
    app = web.Application()
    app.router.add_route("*", "/auth", made.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/auth"
    yield made
    await runner.cleanup()


@asynccontextmanager
async def asking(
    service: Service, now_ms: Callable[[], int] = lambda: 0, **settings: Any
) -> AsyncIterator[HttpAuthenticator]:
    url = settings.pop("url", service.url)
    made = HttpAuthenticator(HttpSettings(kind="http", url=url, **settings), now_ms, {"KEY": "k3y"})
    yield made
    await made.close()


def says(**answer: Any) -> Callable[[], web.StreamResponse]:
    return lambda: web.json_response(answer)


async def test_yes_no_and_ask_somebody_else(service: Service) -> None:
    async with asking(service, cache_ms=0) as judge:
        assert await judge.authenticate(ANN) == Principal("ann")
        service.answer = says(result="allow", user="Ann", roles=["b", "a"], expires_in_ms=5)
        principal = await judge.authenticate(ANN)
        assert principal == Principal("Ann", roles=("a", "b"))
        assert principal is not None and principal.expires_ms == 5
        service.answer = says(result="ignore")
        assert await judge.authenticate(ANN) is None
        for answer in (says(result="deny"), says(result="what?"), _status(401), _status(403)):
            service.answer = answer
            with pytest.raises(NotAuthenticated, match="wrong user or password"):
                await judge.authenticate(ANN)
        asked = len(service.asked)
        assert await judge.authenticate(Credentials("mqtt", "c", "h")) is None
        assert len(service.asked) == asked, "nothing was shown, so nothing is asked"


def _status(number: int) -> Callable[[], web.StreamResponse]:
    return lambda: web.Response(status=number)


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_what_is_asked(service: Service, method: str) -> None:
    body = {"who": "{username}", "word": "{password}{password}", "at": "{client_id}@{peer_host}"}
    headers = {"Authorization": "Bearer ${KEY}"}
    async with asking(service, method=method, body=body, headers=headers) as judge:
        await judge.authenticate(ANN)
    assert service.asked == [{"who": "ann", "word": "hunter2hunter2", "at": "c1@10.0.0.1"}]
    assert service.headers == ["Bearer k3y"]


async def test_what_a_client_says_is_never_a_template(service: Service) -> None:
    async with asking(service, body={"who": "{username}"}) as judge:
        await judge.authenticate(Credentials("mqtt", "c", "h", "{password}", b"hunter2"))
    assert service.asked == [{"who": "{password}"}]


async def test_rules_in_the_answer_are_all_that_holds(service: Service) -> None:
    service.answer = says(
        result="allow",
        rules=[{"operations": ["publish"], "resources": ["topic_name:d/%c/#"], "qos": [1]}],
    )
    rules = RuleSet([], unmatched_allows=True)
    context = AccessContext("mqtt", "c1", qos=1, retain=False)
    async with asking(service, cache_ms=0) as judge:
        principal = await judge.authenticate(ANN)
        assert principal is not None
        for name, verdict in (("d/c1/x", True), ("d/c2/x", False)):
            resource = Resource("topic_name", name)
            assert rules.allows(principal, Operation.WRITE, resource, context) is verdict
        service.answer = says(result="allow", rules=[])
        principal = await judge.authenticate(ANN)
        assert principal is not None
        resource = Resource("topic_name", "d/c1/x")
        assert not rules.allows(principal, Operation.WRITE, resource, context)


NO_ANSWERS: list[Callable[[], web.StreamResponse]] = [
    _status(500),
    _status(302),
    lambda: web.Response(text="<html>"),
    says(),
    says(result=True),
    says(result="allow", admin=True),
    says(result="allow", rules=[{"operations": ["fly"], "resources": ["topic:a"]}]),
    lambda: web.Response(body=b" " * (ANSWER_MAX_BYTES + 1)),
]


@pytest.mark.parametrize("answer", NO_ANSWERS)
async def test_what_is_no_answer(
    service: Service, answer: Callable[[], web.StreamResponse], caplog: pytest.LogCaptureFixture
) -> None:
    service.answer = answer
    async with asking(service) as judge:
        with pytest.raises(Unavailable, match="try again"):
            await judge.authenticate(ANN)
        assert judge.failures == 1
        service.answer = _status(204)
        assert await judge.authenticate(ANN), "a failure is not remembered"
    assert "no answer" in caplog.text and "hunter2" not in caplog.text


async def test_silence(service: Service) -> None:
    service.delay_s = 1.0
    async with asking(service, timeout_ms=30) as judge:
        with pytest.raises(Unavailable):
            await judge.authenticate(ANN)
    async with asking(service, url="http://127.0.0.1:1/", unreachable="next") as judge:
        assert await judge.authenticate(ANN) is None
        assert judge.handles(ANN), "but it makes nobody anonymous"


async def test_answers_are_remembered_for_the_same_credentials(service: Service) -> None:
    now_ms = [0]
    async with asking(service, lambda: now_ms[0], cache_ms=1000) as judge:
        for _ in range(3):
            await judge.authenticate(ANN)
        assert len(service.asked) == 1
        await judge.authenticate(Credentials("mqtt", "c1", "10.0.0.1", "ann", b"other"))
        assert len(service.asked) == 2
        now_ms[0] = 1000
        await judge.authenticate(ANN)
        assert len(service.asked) == 3


async def test_a_storm_asks_so_many_at_a_time(service: Service) -> None:
    service.delay_s = 0.02
    async with asking(service, calls_max=3) as judge:
        shown = [Credentials("mqtt", f"c{n}", "h", "ann", b"x") for n in range(10)]
        await asyncio.gather(*(judge.authenticate(each) for each in shown))
    assert service.busiest == 3 and len(service.asked) == 10


async def test_a_variable_that_is_not_there(service: Service) -> None:
    with pytest.raises(ConfigError, match="no environment variable NOTHING"):
        async with asking(service, headers={"X": "${NOTHING}"}):
            pass
