"""Goal: LakeMQ's own authorizers keep the contract that plugins are held to."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence

import pytest
from aiohttp import web

from lakemq.broker_core.api.access import AccessContext, Operation, Principal, Resource
from lakemq.broker_core.configuration.config import parse_config
from lakemq.broker_core.security.authz.http_rules import HttpAuthorizer
from lakemq.broker_core.security.authz.rule_book import RuleBook
from lakemq.broker_core.security.settings import HttpRulesSettings, SecuritySettings
from lakemq.testing import AuthorizerContract, Question

ANN = Principal("ann")
HERE = AccessContext("mqtt", "c1", "10.0.0.1", "mqtt", 1, False)
RULES = """
[security]
unmatched = "deny"
admins = ["user:root"]

[[security.rules]]
who = ["user:ann"]
operations = ["publish"]
resources = ["topic_name:air/#", "topic:meters*"]
"""


def write(kind: str, name: str, principal: Principal = ANN) -> Question:
    return Question(principal, Operation.WRITE, Resource(kind, name), HERE)


class TestRules(AuthorizerContract):
    @pytest.fixture
    def authorizer(self) -> RuleBook:
        source = parse_config("lakemq.toml", RULES, {})
        return RuleBook(source.section(("security",), SecuritySettings), lambda: None)

    @pytest.fixture
    def allowed(self) -> Sequence[Question]:
        root = write("cluster", "lakemq", Principal("root"))
        return [write("topic_name", "air/kitchen"), write("topic", "meters-1"), root]

    @pytest.fixture
    def denied(self) -> Sequence[Question]:
        ann = write("topic_name", "air/kitchen")
        return [
            write("topic_name", "water/kitchen"),
            write("topic", "other"),
            ann._replace(operation=Operation.READ),
            ann._replace(principal=Principal("bob")),
        ]


class TestHttpRules(AuthorizerContract):
    @pytest.fixture
    async def authorizer(self) -> AsyncIterator[HttpAuthorizer]:
        async def judge(request: web.Request) -> web.Response:
            topic = str(json.loads(await request.text())["topic"])
            return web.json_response({"result": "allow" if topic.startswith("air/") else "deny"})

        app = web.Application()
        app.router.add_post("/acl", judge)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/acl"
        made = HttpAuthorizer(HttpRulesSettings(kind="http", url=url), lambda: 0)
        yield made
        await made.close()
        await runner.cleanup()

    @pytest.fixture
    def allowed(self) -> Sequence[Question]:
        return [write("topic_name", "air/kitchen", Principal("ann", attributes={"by": "test"}))]

    @pytest.fixture
    def denied(self) -> Sequence[Question]:
        return [write("topic_name", "water/kitchen"), write("topic_name", "#")]

    @pytest.fixture
    def foreign(self) -> Sequence[Question]:
        return [write("topic", "meters"), write("cluster", "lakemq")]
