"""Goal: a web service may decide what MQTT clients do, is asked seldom, and holds up nobody but the
client it is asked about; its silence opens no door.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiomqtt
import pytest
from aiohttp import web

import lakemq
from lakemq.broker_core.api.access import (
    ANONYMOUS,
    AccessContext,
    Operation,
    Principal,
    Resource,
    Rule,
)
from lakemq.broker_core.api.errors import ConfigError, Undecided
from lakemq.broker_core.security.authz.http_rules import HttpAuthorizer
from lakemq.broker_core.security.http_calls import ANSWER_MAX_BYTES
from lakemq.broker_core.security.settings import HttpRulesSettings
from tests.support.node.node import PORTS_FREE, NodeProcess

ANN = Principal("ann")
WAIT_S = 60


class Service:
    """Denies what begins with `secret`, and answers as it is told otherwise."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.answer: Callable[[], web.StreamResponse] = lambda: web.Response(status=204)
        self.begun = asyncio.Event()
        self.held = asyncio.Event()
        """Questions about names that begin with `slow` wait for it."""
        self.busy = self.busiest = 0
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json() if request.can_read_body else dict(request.query)
        self.asked.append(asked)
        self.begun.set()
        self.busy += 1
        self.busiest = max(self.busy, self.busiest)
        topic = str(asked.get("topic"))
        try:
            if topic.startswith("slow"):
                await self.held.wait()
            await asyncio.sleep(0)
        finally:
            self.busy -= 1
        return web.Response(status=403) if topic.startswith("secret") else self.answer()


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    made = Service()
    app = web.Application()
    app.router.add_route("*", "/acl", made.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/acl"
    yield made
    made.held.set()
    await runner.cleanup()


class Judge:
    """An authorizer and its clock."""

    def __init__(self, service: Service, **settings: Any) -> None:
        self.now_ms = 0
        url = settings.pop("url", service.url)
        exempt = settings.pop("exempt", lambda principal: False)
        made = HttpRulesSettings(kind="http", url=url, **settings)
        self.authorizer = HttpAuthorizer(made, lambda: self.now_ms, exempt, {"KEY": "k3y"})

    def known(
        self,
        topic: str,
        client: str = "c1",
        principal: Principal = ANN,
        operation: Operation = Operation.WRITE,
    ) -> bool | None:
        """What is answered at once. Raises Undecided."""
        context = AccessContext("mqtt", client, "10.0.0.1", "mqtt", 1, False)
        resource = Resource("topic_name", topic)
        return self.authorizer.authorize(principal, operation, resource, context)

    async def may(self, topic: str, client: str = "c1") -> bool | None:
        try:
            return self.known(topic, client)
        except Undecided:
            context = AccessContext("mqtt", client, "10.0.0.1", "mqtt", 1, False)
            resource = Resource("topic_name", topic)
            await self.authorizer.decide(ANN, Operation.WRITE, resource, context)
        return self.known(topic, client)


@asynccontextmanager
async def judging(service: Service, **settings: Any) -> AsyncIterator[Judge]:
    judge = Judge(service, **settings)
    yield judge
    await judge.authorizer.close()


def says(**answer: Any) -> Callable[[], web.StreamResponse]:
    return lambda: web.json_response(answer)


async def test_yes_no_and_ask_the_next(service: Service) -> None:
    async with judging(service) as judge:
        assert await judge.may("a") is True
        assert await judge.may("secret/x") is False
        for number, (said, verdict) in enumerate(
            (("allow", True), ("deny", False), ("ignore", None))
        ):
            service.answer = says(result=said)
            assert await judge.may(f"b/{number}") is verdict
        assert judge.authorizer.failures == 0
    assert service.asked[0] == {
        "username": "ann",
        "client_id": "c1",
        "peer_host": "10.0.0.1",
        "action": "publish",
        "topic": "a",
        "qos": "1",
        "retain": "false",
    }


async def test_an_answer_holds_as_long_as_it_says(service: Service) -> None:
    async with judging(service, cache_ms=60_000) as judge:
        assert await judge.may("a") and await judge.may("a")
        assert len(service.asked) == 1
        judge.now_ms = 59_999
        assert judge.known("a") is True
        judge.now_ms = 60_000
        with pytest.raises(Undecided):
            judge.known("a")
        service.answer = says(result="deny", expires_in_ms=5_000)
        assert await judge.may("a") is False
        judge.now_ms += 5_000
        with pytest.raises(Undecided):
            judge.known("a")


async def test_whom_it_is_not_asked_about(service: Service) -> None:
    own = Principal("bob", rules=(Rule(("any",), ("all",), "topic_name", "b/#"),))
    async with judging(service, exempt=lambda principal: principal.name == "root") as judge:
        assert judge.known("a", principal=own) is None
        assert judge.known("a", principal=Principal("root")) is None
        context = AccessContext("native", "c1")
        write = Operation.WRITE
        assert judge.authorizer.authorize(ANN, write, Resource("topic", "t"), context) is None
        with pytest.raises(Undecided):
            judge.known("a", principal=ANONYMOUS)
    assert not service.asked


@pytest.mark.parametrize("unreachable", ["deny", "next"])
async def test_silence_and_nonsense_open_no_door(service: Service, unreachable: str) -> None:
    verdict = False if unreachable == "deny" else None
    answers = [
        lambda: web.Response(status=500),
        says(result="perhaps"),
        says(ok=True),
        lambda: web.Response(body=b"x" * (ANSWER_MAX_BYTES + 1)),
    ]
    async with judging(service, unreachable=unreachable, timeout_ms=200) as judge:
        for number, answer in enumerate(answers):
            service.answer = answer
            assert await judge.may(f"a/{number}") is verdict
        assert await judge.may("slow") is verdict
        assert judge.authorizer.failures == 5
        service.answer = lambda: web.Response(status=204)
        assert judge.known("a/0") is verdict, "it is not asked by each publish"
        judge.now_ms = 1_000
        assert await judge.may("a/0") is True, "and soon again"
    async with judging(service, unreachable=unreachable, url="http://127.0.0.1:1/") as judge:
        assert await judge.may("a") is verdict


async def test_a_flood_of_names_is_bounded_and_delays_nobody_else(service: Service) -> None:
    async with judging(service, cache_per_client_max=10, calls_max=4, timeout_ms=30_000) as judge:
        assert await judge.may("quiet", "other")
        flood = [asyncio.create_task(judge.may(f"n/{n}", "flood")) for n in range(300)]
        slow = asyncio.create_task(judge.may("slow", "another"))
        assert await asyncio.wait_for(judge.may("in between", "third"), WAIT_S)
        assert sum(task.done() for task in flood) < 300, "it did not wait for all of them"
        await asyncio.gather(*flood, return_exceptions=True)
        assert judge.known("quiet", "other") is True, "a flood forgets its own answers alone"
        assert len(judge.authorizer._answers) <= 13
        assert service.busiest <= 4 and not slow.done()
        service.held.set()
        assert await slow


async def test_the_same_question_is_asked_once_at_a_time(service: Service) -> None:
    body = {"topic": "{topic}", "who": "{username}"}
    async with judging(service, body=body) as judge:
        found = await asyncio.gather(*(judge.may("a", f"c{number}") for number in range(50)))
        assert found == [True] * 50 and service.asked == [{"topic": "a", "who": "ann"}]


async def test_who_leaves_while_it_is_asked_ends_nobody_elses_question(service: Service) -> None:
    async with judging(service, body={"topic": "{topic}"}, timeout_ms=60_000) as judge:
        leaves, stays = (asyncio.create_task(judge.may("slow", name)) for name in ("a", "b"))
        await service.begun.wait()
        leaves.cancel()
        service.held.set()
        assert await stays is True and len(service.asked) == 1


async def test_what_is_not_there_is_told_at_the_start(service: Service) -> None:
    with pytest.raises(ConfigError, match="NOWHERE"):
        Judge(service, headers={"Authorization": "Bearer ${NOWHERE}"})


async def test_clients_of_a_real_node(service: Service, tmp_path: Path) -> None:
    config = PORTS_FREE + (
        f'[[security.authorizers]]\nkind = "http"\nurl = "{service.url}"\ntimeout_ms = 60000\n'
    )
    node = NodeProcess(tmp_path / "node", config)
    await asyncio.to_thread(node.start)
    try:
        five = aiomqtt.ProtocolVersion.V5

        def client(name: str) -> aiomqtt.Client:
            return aiomqtt.Client("127.0.0.1", node.mqtt_port, identifier=name, protocol=five)

        async with asyncio.timeout(WAIT_S), client("r") as reader, client("s") as slow:
            codes = await reader.subscribe([("a/#", 1), ("secret/#", 1)])  # type: ignore[arg-type]
            assert [code.value for code in codes] == [1, 0x87]  # type: ignore[union-attr]
            waits = asyncio.create_task(slow.publish("slow/1", b"late", 1))
            async with client("w") as writer:
                for number in range(50):
                    await writer.publish("a/b", b"%d" % number, 1)
                await writer.publish("secret/b", b"no", 1)
            assert not waits.done(), "the others were served while it waited"
            service.held.set()
            await waits
            messages = [int(bytes(each.payload)) async for each in _first(reader, 50)]
            assert messages == list(range(50))
        stored = await asyncio.to_thread(stored_keys, node)
        assert (stored.count(b"a/b"), stored.count(b"slow/1")) == (50, 1)
        assert b"secret/b" not in stored
        about = [asked["topic"] for asked in service.asked]
        assert about.count("a/b") == 1
    finally:
        await asyncio.to_thread(node.kill)


def stored_keys(node: NodeProcess) -> list[bytes | None]:
    with lakemq.connect(node.native) as log:
        return [record.key for record in log.consume("mqtt")]


async def _first(client: aiomqtt.Client, count: int) -> AsyncIterator[Any]:
    async for message in client.messages:
        yield message
        count -= 1
        if not count:
            return
