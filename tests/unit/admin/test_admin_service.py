"""Goal: a request is carried out by the node that it is about, by the caller's rights there too;
lists of all nodes are merged; changes are audited once, and repeats do nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from lakemq.broker_core.api.administration.node import PluginState
from lakemq.broker_core.api.administration.routes import (
    AdminListing,
    AdminRequest,
    AdminRoute,
    Answer,
    AnyRoute,
    Body,
    EveryQuery,
    Need,
    OwnChangeQuery,
    OwnPageQuery,
    OwnQuery,
    expect,
)
from lakemq.broker_core.api.errors import (
    GroupNotEmpty,
    NotAuthorized,
    OutcomeUnknown,
    PluginError,
    UnknownEntry,
)
from lakemq.broker_core.api.ports import Listener, PluginContext
from lakemq.broker_core.api.types import (
    AccessContext,
    NodeInfo,
    Operation,
    Principal,
    Resource,
    Rule,
)
from lakemq.plugins.admin import plugin
from lakemq.plugins.admin.api.peers import PeerReply
from lakemq.plugins.admin.api.problems import Problem
from lakemq.plugins.admin.api.repeats import REMEMBERED_MS, Repeats
from lakemq.plugins.admin.api.service import AdminService, Call, Reply
from lakemq.plugins.admin.config import AdminSettings
from lakemq.plugins.admin.listener import AdminListener
from tests.support.node.administered import ListedChanges, StubNode

ANN = Principal("ann", roles=("operator",), rules=(Rule(("any",), ("read",), "topic", "x"),))
FROM = AccessContext("admin", peer_host="10.0.0.7", listener="admin")


class Thing(Answer):
    node: str
    name: str
    size: int


class Wanted(Body):
    size: int
    password: str = ""


@dataclass
class Catalog:
    """Denies one resource."""

    denied: Resource | None = None
    asked: list[tuple[Principal, Operation, Resource, AccessContext]] = field(default_factory=list)

    def authorize(
        self, principal: Principal, operation: Operation, resource: Resource,
        context: AccessContext,
    ) -> None:  # fmt: skip
        self.asked.append((principal, operation, resource, context))
        if resource == self.denied:
            raise NotAuthorized(f"no {operation.value} of {resource}")


class Brokers:
    """What the service asks of a broker."""

    def __init__(self, names: Sequence[str]) -> None:
        self._nodes = [NodeInfo(each, {"peer": "h:1"}, "", "", "active") for each in names]

    def nodes(self) -> Sequence[NodeInfo]:
        return self._nodes


class Cluster:
    """Nodes that each have things of their own."""

    def __init__(self, things: dict[str, dict[str, int]]) -> None:
        self.things = things
        self.nodes: dict[str, StubNode] = {}
        self.services: dict[str, AdminService] = {}
        self.audits = {name: ListedChanges() for name in things}
        for name in things:
            node = StubNode(Catalog(), node_id=name, broker=Brokers([*things]), peers=self.nodes)
            node.audit = self.audits[name]
            self.nodes[name] = node
            self.services[name] = AdminService(node, self.routes(name), node.give_way)

    def routes(self, node: str) -> list[AnyRoute]:
        things = self.things[node]

        async def items(request: AdminRequest) -> Sequence[tuple[str, int]]:
            return list(things.items())

        async def rows(
            found: Sequence[tuple[str, int]], request: AdminRequest
        ) -> Sequence[Thing | None]:
            return [
                None if name == "gone" else Thing(node=node, name=name, size=size)
                for name, size in found
            ]

        async def get(request: AdminRequest) -> Thing:
            name = request.path["name"]
            return Thing(node=node, name=name, size=things[name])

        async def put(request: AdminRequest) -> Thing:
            name, given = request.path["name"], expect(request.given, Wanted)
            if given.size < 0:
                raise GroupNotEmpty("it has members")
            request.notes["before"] = things.get(name)
            if not expect(request.asked, OwnChangeQuery).dry_run:
                things[name] = given.size
            return Thing(node=node, name=name, size=given.size)

        async def delete(request: AdminRequest) -> object:
            if request.path["name"] not in things:
                raise UnknownEntry("there is no such thing")
            del things[request.path["name"]]
            return {}

        return [
            AdminRoute("DELETE", "things/{name}", delete, None, EveryQuery, own=True),
            AdminListing("things", Thing, items, rows, lambda each: each[0],
                         {"name": lambda each: each[0], "size": lambda each: each[1]},
                         query=OwnPageQuery, own=True),
            AdminRoute("GET", "things/{name}", get, Thing, OwnQuery, own=True),
            AdminRoute("PUT", "things/{name}", put, Thing, OwnChangeQuery, Wanted, own=True,
                       need=Need(Operation.ALTER, "group", "name"), status=201),
        ]  # fmt: skip

    async def ask(
        self, at: str, method: str, path: str, body: object = None, key: str = "", **query: str
    ) -> Reply:
        call = Call(
            method, path, list(query.items()), b"" if body is None else json.dumps(body).encode(),
            "application/json", ANN, FROM, key,
        )  # fmt: skip
        return await self.services[at].serve(call)


async def test_lists_of_all_nodes_are_merged() -> None:
    cluster = Cluster({"n1": {"a": 1, "c": 9, "gone": 0}, "n2": {"b": 5, "a": 7}})
    found, cursor = list[tuple[str, str]](), ""
    while True:
        page = json.loads((await cluster.ask("n1", "GET", "things", limit="2", cursor=cursor)).body)
        found += [(each["node"], each["name"]) for each in page["data"]]
        if (cursor := page["meta"]["next"]) is None:
            break
    assert found == [("n1", "a"), ("n2", "a"), ("n2", "b"), ("n1", "c")]
    greatest = json.loads((await cluster.ask("n2", "GET", "things", sort="-size")).body)
    assert [each["size"] for each in greatest["data"]] == [9, 7, 5, 1]
    one = json.loads((await cluster.ask("n1", "GET", "things", node="n2", fields="name")).body)
    assert (one["data"], one["meta"]["total"]) == ([{"name": "a"}, {"name": "b"}], 2)


async def test_a_node_that_does_not_answer_is_named() -> None:
    cluster = Cluster({"n1": {"a": 1}, "n2": {"b": 5}})
    del cluster.nodes["n2"]
    page = json.loads((await cluster.ask("n1", "GET", "things")).body)
    assert [each["name"] for each in page["data"]] == ["a"]
    assert page["meta"]["missing"] == [{"node": "n2", "reason": "n2: not reached"}]
    with pytest.raises(Problem, match="not reached") as caught:
        await cluster.ask("n1", "GET", "things", node="n2")
    assert (caught.value.status, caught.value.answer.retriable) == (503, True)


@pytest.mark.parametrize(
    "answer", [b"", b"[]", b"{}", b"[" * 5_000, b'{"places":[[1]],"more":false,"total":1}']
)
async def test_an_answer_that_can_not_be_read_costs_its_own_rows_alone(answer: bytes) -> None:
    cluster = Cluster({"n1": {"a": 1}, "n2": {"b": 5}})

    async def said(request: bytes) -> bytes:
        return PeerReply(200, answer, {}).encode()

    cluster.nodes["n2"].answer = said
    page = json.loads((await cluster.ask("n1", "GET", "things")).body)
    assert [each["name"] for each in page["data"]] == ["a"]
    (missing,) = page["meta"]["missing"]
    assert missing["node"] == "n2" and "can't be read" in missing["reason"]


async def test_a_request_goes_to_the_node_that_it_names() -> None:
    cluster = Cluster({"n1": {"a": 1}, "n2": {"a": 5}})
    assert json.loads((await cluster.ask("n1", "GET", "things/a")).body)["size"] == 1
    assert json.loads((await cluster.ask("n1", "GET", "things/a", node="n2")).body)["size"] == 5
    reply = await cluster.ask("n1", "PUT", "things/a", {"size": 6}, node="n2")
    assert (reply.status, cluster.things["n2"]["a"]) == (201, 6)
    # the caller as it is, with the rules of its token, and from where
    assert cluster.nodes["n2"].catalog.asked[-1] == (
        ANN, Operation.ALTER, Resource("group", "a"), FROM
    )  # fmt: skip
    assert cluster.nodes["n2"].catalog.asked[-1][0].rules == ANN.rules
    assert len(cluster.audits["n1"].changes) == 1 and cluster.audits["n2"].changes == []


async def test_every_node_carries_a_request_out() -> None:
    cluster = Cluster({"n1": {"a": 1, "b": 1}, "n2": {"a": 1}, "n3": {}})
    done = await cluster.ask("n2", "DELETE", "things/a", node="*")
    assert json.loads(done.body) == {"nodes": ["n1", "n2"]}
    assert [*cluster.things["n1"], *cluster.things["n2"]] == ["b"]
    (audited,) = cluster.audits["n2"].changes
    assert (audited.outcome, audited.after) == ("done", {"nodes": ["n1", "n2"]})
    assert cluster.audits["n1"].changes == []
    with pytest.raises(Problem) as caught:
        await cluster.ask("n1", "DELETE", "things/a", node="*")
    assert (caught.value.status, caught.value.code) == (404, "UNKNOWN_ENTRY")
    del cluster.nodes["n3"]
    with pytest.raises(Problem, match="done by n1, not by n3: n3: not reached") as caught:
        await cluster.ask("n1", "DELETE", "things/b", node="*")
    assert (caught.value.status, caught.value.answer.retriable) == (503, True)
    # No other route takes it for all nodes.
    with pytest.raises(Problem) as caught:
        await cluster.ask("n1", "PUT", "things/a", {"size": 6}, node="*")
    assert caught.value.code == "UNKNOWN_NODE"


@pytest.mark.parametrize("said", [None, b"", b"{}\n{}"], ids=["nothing", "empty", "unreadable"])
async def test_a_change_without_an_answer_may_have_been_made(said: bytes | None) -> None:
    cluster = Cluster({"n1": {"a": 1}, "n2": {"a": 5}})
    node, calls = cluster.nodes["n2"], 0
    answer = node.answer
    assert answer is not None

    async def slow(request: bytes) -> bytes:
        nonlocal calls
        calls += 1
        await answer(request)
        if said is None:
            raise OutcomeUnknown("n2: Deadline Exceeded")
        return said

    node.answer = slow
    for _ in range(2):  # the same key: it is not made again
        with pytest.raises(Problem, match="n2 was asked and has not answered") as caught:
            await cluster.ask("n1", "PUT", "things/a", {"size": 6}, key="k", node="n2")
        found = json.loads(caught.value.body())
        assert (found["status"], found["code"]) == (504, "OUTCOME_UNKNOWN")
        assert found["type"] == "urn:lakemq:problem:outcome-unknown"
        assert found["retriable"] is False
    assert (calls, cluster.things["n2"]["a"]) == (1, 6)
    assert [each.outcome for each in cluster.audits["n1"].changes] == ["OUTCOME_UNKNOWN"]
    # A read does no harm when it is asked again.
    with pytest.raises(Problem) as caught:
        await cluster.ask("n1", "GET", "things/a", node="n2")
    assert (caught.value.status, caught.value.answer.retriable) == (503, True)
    with pytest.raises(Problem, match="done by n1, perhaps not by n2") as caught:
        await cluster.ask("n1", "DELETE", "things/a", node="*")
    assert (caught.value.status, caught.value.answer.retriable) == (504, False)


async def test_a_node_that_does_not_know_tells_so_whatever_its_version() -> None:
    cluster = Cluster({"n1": {"a": 1}, "n2": {"a": 5}})

    async def older(request: bytes) -> bytes:
        body = {"status": 503, "code": "OUTCOME_UNKNOWN", "detail": "x", "retriable": True}
        return PeerReply(503, json.dumps(body).encode(), {}).encode()

    cluster.nodes["n2"].answer = older
    with pytest.raises(Problem) as caught:
        await cluster.ask("n1", "PUT", "things/a", {"size": 6}, node="n2")
    assert (caught.value.status, caught.value.answer.retriable) == (504, False)


async def test_rights_are_checked_on_both_nodes() -> None:
    cluster = Cluster({"n1": {"a": 1}, "n2": {"a": 5}})
    for node in ("n1", "n2"):
        for each in cluster.nodes.values():
            each.catalog = Catalog(Resource("group", "a") if each.node_id == node else None)
        with pytest.raises(Problem) as caught:
            await cluster.ask("n1", "PUT", "things/a", {"size": 6}, node="n2")
        assert (caught.value.status, caught.value.code) == (403, "NOT_AUTHORIZED")
    assert cluster.things["n2"]["a"] == 5
    assert [each.outcome for each in cluster.audits["n1"].changes] == ["NOT_AUTHORIZED"] * 2


async def test_changes_are_audited_without_secrets() -> None:
    cluster = Cluster({"n1": {"a": 1}})
    await cluster.ask("n1", "PUT", "things/a", {"size": 2, "password": "hunter2"})
    with pytest.raises(Problem):
        await cluster.ask("n1", "PUT", "things/a", {"size": -1})
    await cluster.ask("n1", "GET", "things/a")
    await cluster.ask("n1", "PUT", "things/a", {"size": 3}, dry_run="true")
    done, failed = cluster.audits["n1"].changes
    assert (done.principal, done.context.peer_host) == (ANN, "10.0.0.7")
    assert (done.action, done.resource, done.outcome) == ("PUT things/{name}", "a", "done")
    assert (done.request, done.before) == ({"size": 2, "password": "***"}, 1)
    assert (failed.outcome, failed.detail) == ("GROUP_NOT_EMPTY", "it has members")


async def test_a_repeat_does_nothing() -> None:
    cluster = Cluster({"n1": {}})
    first = await cluster.ask("n1", "PUT", "things/a", {"size": 2}, key="k")
    cluster.things["n1"]["a"] = 9
    assert await cluster.ask("n1", "PUT", "things/a", {"size": 2}, key="k") == first
    assert cluster.things["n1"]["a"] == 9
    with pytest.raises(Problem, match="another request") as caught:
        await cluster.ask("n1", "PUT", "things/a", {"size": 3}, key="k")
    assert caught.value.status == 422


async def test_repeats_are_forgotten_and_failures_not_remembered() -> None:
    now_ms, calls = 0, 0
    repeats = Repeats(lambda: now_ms)

    async def fail() -> str:
        nonlocal calls
        calls += 1
        raise Problem(400, "X", "no")

    async def answer() -> str:
        nonlocal calls
        calls += 1
        return "yes"

    for _ in range(2):
        with pytest.raises(Problem):
            await repeats.once(("k",), b"", fail)
    assert calls == 2
    for _ in range(2):
        assert await repeats.once(("k",), b"", answer) == "yes"
    assert calls == 3
    now_ms = REMEMBERED_MS
    await repeats.once(("k",), b"", answer)
    assert calls == 4


@pytest.mark.parametrize(
    ("query", "body", "where"),
    [
        ({"dry_run": "yes"}, {"size": 1}, "query.dry_run"),
        ({"colour": "red"}, {"size": 1}, "query.colour"),
        ({}, {"size": "1"}, "body.size"),
        ({}, {}, "body.size"),
        ({}, [], "body"),
    ],
)
async def test_what_is_wrong_is_named(query: dict[str, str], body: object, where: str) -> None:
    cluster = Cluster({"n1": {}})
    with pytest.raises(Problem) as caught:
        await cluster.ask("n1", "PUT", "things/a", body, **query)
    assert [each.where for each in caught.value.answer.errors] == [where]


def test_a_route_that_is_there_twice_is_refused() -> None:
    cluster = Cluster({"n1": {}})
    with pytest.raises(PluginError, match="twice"):
        AdminService(cluster.nodes["n1"], cluster.routes("n1") * 2, cluster.nodes["n1"].give_way)


@pytest.mark.parametrize(
    "wrong", [{"sorts": {}}, {"gives": dict}, {"query": OwnQuery}], ids=["sorts", "gives", "query"]
)
def test_a_list_that_could_not_be_served_is_refused(wrong: dict[str, Any]) -> None:
    cluster = Cluster({"n1": {}})
    routes = [
        replace(each, **wrong) if isinstance(each, AdminListing) else each
        for each in cluster.routes("n1")
    ]
    with pytest.raises(PluginError, match="route GET things is a list: it must have a field"):
        AdminService(cluster.nodes["n1"], routes, cluster.nodes["n1"].give_way)


@pytest.mark.parametrize("distribution", ["lakemq", "lakemq-of-others"])
async def test_routes_of_others_that_clash_end_a_start(distribution: str) -> None:
    """LakeMQ's own, which do not, are made when the API is asked for something."""
    route = AdminRoute("GET", "topics/{name}", Cluster({"n1": {}}).ask)  # type: ignore[arg-type]
    plugins = [
        PluginState("admin", "1", "lakemq", True, (), ""),
        PluginState("off", "1", "other", False, (), ""),
        PluginState("more", "1", distribution, True, (), ""),
    ]
    node = StubNode(Catalog(), routes=[route], plugins=plugins)
    listener = AdminListener(node, AdminSettings(port=0))
    try:
        if distribution == "lakemq":
            await listener.start()
        else:
            with pytest.raises(PluginError, match=r"topics/\{name\} is .* there twice"):
                await listener.start()
    finally:
        await listener.stop()


def test_the_plugin_gives_a_listener(tmp_path: object) -> None:
    context = PluginContext("admin", AdminSettings(port=0), "n1", None, None)  # type: ignore[arg-type]
    listener = plugin.register_admin(context, StubNode(Catalog()))
    assert isinstance(listener, Listener) and listener.name == "admin"
