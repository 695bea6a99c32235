"""Goal: what waits for another node takes as much memory as it is allowed, however small the
records are."""

from __future__ import annotations

import tracemalloc
from typing import Any

from lakemq.broker_core.api.errors import LakeMQError, Unavailable
from lakemq.broker_core.api.types import (
    Acks,
    AppendResult,
    Columns,
    Leadership,
    TopicConfig,
    TopicInfo,
)
from lakemq.broker_core.cluster import routing
from lakemq.broker_core.cluster.routing import Router

TOPIC = TopicInfo("t", "0a" * 16, 1, TopicConfig(), 1, (Leadership("b", 1, ("b", "c")),))


class Elsewhere:
    """Partitions that another node leads, which can't be reached; and the way there."""

    def topic(self, name: str) -> TopicInfo:
        return TOPIC

    def keep(self, node: str, method: str, talk: Any) -> Any:
        return lambda: None


async def test_small_records_that_wait_are_counted_as_what_they_take(monkeypatch: Any) -> None:
    allowed = 4 * 1024 * 1024
    monkeypatch.setattr(routing, "ROUTED_MAX_BYTES", allowed)
    there: Any = Elsewhere()

    async def allocate() -> int:
        return 1

    router = Router("a", there, there, allocate, 60.0)
    route = router.target("t", 0)
    outcomes: list[AppendResult | LakeMQError] = []
    tracemalloc.start()
    for _ in range(200_000):
        route.append_records(Columns([b""]), 1, Acks.LEADER, outcomes.append)
        if outcomes:
            break
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert outcomes and isinstance(outcomes[0], Unavailable)
    assert allowed / 4 < taken < 1.25 * allowed
    await router.stop()
