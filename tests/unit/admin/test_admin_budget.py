"""Goal: with 10,000 topics no request works long without letting others have their turn: what is
counted is the work between two turns, not time."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from lakemq.broker_core.api.types import (
    AccessContext,
    Leadership,
    Operation,
    PartitionStatus,
    Principal,
    Resource,
    TopicInfo,
)
from lakemq.plugins.admin.api.service import AdminService, Call
from lakemq.plugins.admin.http.health import PartitionHealth
from lakemq.plugins.admin.resources.partitions import PartitionRoutes
from lakemq.plugins.admin.resources.topics import TopicRoutes
from tests.support.node.administered import StubNode

TOPICS = 10_000
WORK_MAX = 500
"""Rights asked for, or partitions looked at, between two turns: a few hundred take 1 to 2 ms."""
LED = (Leadership("n1", 1, ("n1",), ("n1",)),)


class Catalog:
    """Counts what is asked of it."""

    def __init__(self) -> None:
        self.asked = 0
        self.bad = ""
        self._topics = [
            TopicInfo(f"topic-{number:05d}", f"{number:032x}", 1, leaders=LED)
            for number in range(TOPICS)
        ]

    def topics(self) -> Sequence[TopicInfo]:
        return list(self._topics)

    def authorize(
        self, principal: Principal, operation: Operation, resource: Resource,
        context: AccessContext,
    ) -> None:  # fmt: skip
        self.asked += 1

    def partition_status(self, topic: str, partition: int) -> PartitionStatus:
        self.asked += 1
        return PartitionStatus(
            partition, "fenced" if topic == self.bad else "online", 0, 0, 0, 0, 1
        )


class Turns:
    """The most work that was done between two turns."""

    def __init__(self, catalog: Catalog) -> None:
        self.most = self.count = self._before = 0
        self._catalog = catalog

    async def give_way(self) -> None:
        self.count += 1
        self.most = max(self.most, self._catalog.asked - self._before)
        self._before = self._catalog.asked


@pytest.mark.parametrize("path", ["topics", "partitions"])
@pytest.mark.parametrize(
    "query", [{}, {"limit": "500", "sort": "-{}"}, {"q": "9999", "fields": "topic"}]
)
async def test_no_list_works_long_without_a_turn(path: str, query: dict[str, str]) -> None:
    catalog = Catalog()
    turns = Turns(catalog)
    node = StubNode(catalog)
    routes = [*TopicRoutes(node).routes(), *PartitionRoutes(node).routes()]
    service = AdminService(node, routes, turns.give_way)
    field = "name" if path == "topics" else "topic"
    asked = [
        (name, field if value == "topic" else value.format(field)) for name, value in query.items()
    ]
    call = Call("GET", path, asked, b"", "", Principal("ann"), AccessContext("admin"))
    page = json.loads((await service.serve(call)).body)
    assert len(page["data"]) == min(page["meta"]["total"], int(query.get("limit", "100")))
    assert 0 < turns.most <= WORK_MAX
    assert turns.count >= TOPICS / WORK_MAX


async def test_readiness_is_found_in_slices_and_told_without_a_walk() -> None:
    catalog, now_ms = Catalog(), 0
    turns = Turns(catalog)
    health = PartitionHealth(catalog, lambda: now_ms, turns.give_way)
    assert await health.current()
    assert catalog.asked == TOPICS and turns.most <= WORK_MAX
    catalog.bad = "topic-00007"
    for _ in range(100):  # probes in the same second look at nothing
        assert await health.current()
    assert catalog.asked == TOPICS
    now_ms = 1_000
    assert await health.current(), "it is told what the last walk found, at once"
    await health.settled()
    assert not await health.current() and health.bad == ["topic-00007/0"]
    await health.stop()
