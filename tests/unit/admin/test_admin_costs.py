"""Goal: what one caller asks costs the others little: the event loop, the calls between nodes, the
audit log and the disk under it."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lakemq.broker_core.administration import audit_log
from lakemq.broker_core.administration.audit_log import RECORD_MAX_BYTES, TopicAuditLog
from lakemq.broker_core.api.administration.audit import Change
from lakemq.broker_core.api.administration.routes import (
    AdminRequest,
    AdminRoute,
    Answer,
    Body,
    ChangeQuery,
    Need,
    OwnQuery,
    Query,
    Whole,
)
from lakemq.broker_core.api.errors import NotAuthorized
from lakemq.broker_core.api.types import NO_CONTEXT, NodeInfo, Operation, Principal
from lakemq.plugins.admin.api.peers import FORWARDED_WAIT_MAX_MS
from lakemq.plugins.admin.api.problems import Problem
from lakemq.plugins.admin.api.service import AdminService, Call
from lakemq.testing.broker import running_broker
from tests.support.node.administered import ListedChanges, StubNode

ANN = Principal("ann")
NODES = ("n1", "n2")


class Found(Answer):
    wait_ms: int = 0


class ReadQuery(Query):
    wait_ms: Whole = 0


class Wanted(Body):
    size: int


class Catalog:
    """Denies changes of groups."""

    def authorize(self, principal: Principal, operation: Operation, resource: Any, _: Any) -> None:
        if resource.kind == "group":
            raise NotAuthorized(f"no {operation.value} of {resource.name}")


class Brokers:
    def nodes(self) -> list[NodeInfo]:
        return [NodeInfo(each, {"peer": "h:1"}, "", "", "active") for each in NODES]


class Two:
    """Two nodes; reading waits on the second one until it is told to go on."""

    def __init__(self) -> None:
        self.peers: dict[str, StubNode] = {}
        self.services: dict[str, AdminService] = {}
        self.go_on = asyncio.Event()
        self.reads = asyncio.Event()
        self.reading = 0
        self.audit = ListedChanges()
        for name in NODES:
            node = StubNode(Catalog(), node_id=name, broker=Brokers(), peers=self.peers)
            node.audit = self.audit
            self.peers[name] = node
            self.services[name] = AdminService(node, self._routes(), node.give_way)

    def _routes(self) -> list[AdminRoute]:
        async def read(request: AdminRequest) -> Found:
            self.reading += 1
            self.reads.set()
            await self.go_on.wait()
            assert isinstance(request.asked, ReadQuery)
            return Found(wait_ms=request.asked.wait_ms)

        async def change(request: AdminRequest) -> Found:
            return Found()

        return [
            AdminRoute("GET", "records", read, Found, ReadQuery,
                       need=Need(Operation.READ, "topic"), owner=lambda _: "n2"),
            AdminRoute("GET", "state", change, Found, OwnQuery, own=True),
            AdminRoute("POST", "things", change, Found, ChangeQuery, Wanted),
            AdminRoute("POST", "plain", change, Found, ChangeQuery),
            AdminRoute("POST", "groups", change, Found, ChangeQuery,
                       need=Need(Operation.ALTER, "group")),
        ]  # fmt: skip

    async def ask(
        self, method: str, path: str, *query: tuple[str, str], body: bytes = b"",
        who: Principal = ANN, key: str = "",
    ) -> Any:  # fmt: skip
        call = Call(method, path, query, body, "application/json", who, NO_CONTEXT, key)
        return json.loads((await self.services["n1"].serve(call)).body)


async def test_who_reads_records_of_another_node_keeps_no_operator_out() -> None:
    two = Two()
    reads = [asyncio.create_task(two.ask("GET", "records")) for _ in range(20)]
    async with asyncio.timeout(5):
        await two.reads.wait()
        assert await two.ask("GET", "state", ("node", "n2")) == {"wait_ms": 0}
    assert two.reading == 2
    many = [asyncio.create_task(two.ask("GET", "records")) for _ in range(45)]
    with pytest.raises(Problem, match="try again") as caught:
        await many[-1]
    assert (caught.value.status, caught.value.answer.retriable) == (503, True)
    two.go_on.set()
    await asyncio.gather(*reads, *many[:44])
    assert await two.ask("GET", "records")


async def test_a_wait_for_records_ends_before_a_call_between_nodes_does() -> None:
    two = Two()
    two.go_on.set()
    for asked, waited in ((500, 500), (20_000, FORWARDED_WAIT_MAX_MS)):
        assert await two.ask("GET", "records", ("wait_ms", str(asked))) == {"wait_ms": waited}
    with pytest.raises(Problem, match="whole number"):
        await two.ask("GET", "records", ("wait_ms", "9 9"))


async def test_a_query_of_thousands_of_parameters_costs_no_time() -> None:
    two = Two()
    query = [(f"{number:x}", "") for number in range(40_000)]
    took_s = []
    # The least of some: a collection of garbage looks at all that other tests have left.
    for _ in range(3):
        began_s = time.thread_time()
        with pytest.raises(Problem, match="over 100 parameters"):
            await two.ask("GET", "state", *query, query[-1])
        took_s.append(time.thread_time() - began_s)
    assert min(took_s) < 0.5
    with pytest.raises(Problem, match=r"query.node: it is there twice"):
        await two.ask("GET", "state", ("node", "n1"), ("node", "n1"))


async def test_faults_are_counted_where_they_are_many() -> None:
    body = json.dumps({f"{number:x}": 0 for number in range(5_000)}).encode()
    with pytest.raises(Problem, match="body: 5001 fields are wrong or unknown") as caught:
        await Two().ask("POST", "things", body=body)
    assert len(caught.value.answer.errors) == 1


@pytest.mark.parametrize("value", ['"\\ud800"', "NaN", "Infinity", "[" * 300 + "]" * 300])
async def test_no_body_that_an_answer_could_not_hold_is_taken(value: str) -> None:
    """Its record would keep the audit log from being listed."""
    two = Two()
    with pytest.raises(Problem, match="the body is not valid JSON"):
        await two.ask("POST", "plain", body=b'{"a": %b}' % value.encode())
    assert [each.request for each in two.audit.changes] == [{}]


async def test_a_repeat_of_another_kind_of_caller_is_none() -> None:
    two = Two()
    for kind in ("user", "certificate"):
        who = Principal("ann", kind)
        await two.ask("POST", "things", body=b'{"size": 1}', who=who, key="k")
    assert len(two.audit.changes) == 2


def change_of(request: dict[str, object]) -> Change:
    return Change(ANN, NO_CONTEXT, "POST nodes/{node}/drain", "n1", request=request)


async def test_a_change_is_in_the_audit_log_whatever_was_asked() -> None:
    deep: dict[str, object] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    nested = json.loads('{"a":' + "[" * 210 + "]" * 210 + "}")
    wrong: list[dict[str, object]] = [
        deep, nested, {"a": "x" * RECORD_MAX_BYTES}, {"a": 10**5_000}, {"a": "\ud800"},
        {"a": float("inf")},
    ]  # fmt: skip
    for asked in wrong:
        text = audit_log._encoded(change_of(asked), 7, "n1")
        entry = json.loads(text)
        assert (entry["action"], entry["outcome"]) == ("POST nodes/{node}/drain", "done")
        assert [*entry["request"]] == ["left_out"]
        assert (await audit_log._entries(deque([(0, text)])))[0].action == entry["action"]


@pytest.mark.parametrize("at", ["1e999", '"x"', "[" * 5_000])
async def test_garbage_in_the_audit_log_hides_no_other_change(at: str) -> None:
    good = audit_log._encoded(change_of({}), 7, "n1")
    bad = good.replace(b'"at_ms":7', f'"at_ms":{at}'.encode())
    found = await audit_log._entries(deque([(0, good), (1, bad), (2, good)]))
    assert [each.offset for each in found] == [2, 0]


async def test_a_page_of_the_audit_log_is_bounded_by_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_broker(tmp_path) as node:
        log = TopicAuditLog(node.broker, None, lambda: 7)
        for number in range(12):
            await log.note(change_of({"number": number, "text": "x" * 1_000}))
        assert len(await log.newest(100)) == 12 and log.lost == 0
        monkeypatch.setattr(audit_log, "NEWEST_MAX_BYTES", 5_000)
        found = await log.newest(100)
    assert [each.request["number"] for each in found] == [11, 10, 9, 8]


async def test_refused_changes_of_one_caller_do_not_fill_the_disk(tmp_path: Path) -> None:
    now_ms = 0
    refused = replace(change_of({}), outcome="NOT_AUTHORIZED")
    async with running_broker(tmp_path) as node:
        log = TopicAuditLog(node.broker, None, lambda: now_ms)
        for _ in range(15):
            await log.note(refused)
        await log.note(replace(refused, principal=Principal("ben")))
        await log.note(change_of({}))
        # It may have been made: nobody may hide it behind refusals.
        await log.note(replace(refused, outcome="OUTCOME_UNKNOWN"))
        now_ms = 100
        for _ in range(2):
            await log.note(refused)
        names = [each.who for each in reversed(await log.newest(100))]
        # Many callers take no memory from each other: the ones that were quiet longest go first.
        for number in range(audit_log._CALLERS_MAX + 5):
            log._may_keep_failure(Principal(f"guest-{number}"))
        assert len(log._failures) == audit_log._CALLERS_MAX
    assert names == ["user:ann"] * 10 + ["user:ben", "user:ann", "user:ann", "user:ann"]
