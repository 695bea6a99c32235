"""Goal: a partition that is read from `latest` waits for its leader, which alone knows where that
is; what other leaders have is read meanwhile."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lakemq.broker_core.api.errors import Unavailable
from lakemq.broker_core.api.types import TopicPartition
from lakemq.plugins.native.sdk.client.client import Client
from lakemq.plugins.native.sdk.consumer import assigned as module
from lakemq.plugins.native.sdk.consumer.assigned import AssignedPartitions
from lakemq.plugins.native.sdk.consumer.counters import ConsumerCounters
from lakemq.plugins.native.sdk.consumer.positions import Positions
from lakemq.plugins.native.sdk.consumer.starts import consume_starts
from lakemq.plugins.native.sdk.group.membership import Grant, Membership
from tests.unit.native.sdk.test_describing import Stub, answer_of

FIRST, SILENT = TopicPartition("t", 0), TopicPartition("t", 1)


def reader(client: Client, membership: Membership, positions: Positions) -> AssignedPartitions:
    fetch: Any = SimpleNamespace(failed=None, places={})
    fetch.restart = lambda places: setattr(fetch, "places", places)
    stream: Any = SimpleNamespace(membership=membership, failed=None)
    commits: Any = None
    return AssignedPartitions(
        client.connection, stream, fetch, positions, commits, start="latest",
        commit_interval_ms=None, changed=asyncio.Event(), counters=ConsumerCounters(),
        callbacks={"assigned": None},
    )  # fmt: skip


async def test_latest_waits_for_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Client("127.0.0.1:1") as client:
        first, silent = Stub(answer_of("n1")), Stub(None)
        stubs: dict[str, Any] = {"": first, "n2:9700": silent}
        monkeypatch.setattr(client.routes, "stub", stubs.__getitem__)
        membership, positions = Membership("m", 10_000), Positions()
        partitions = reader(client, membership, positions)
        membership.told("m", 1, 1, 0, {FIRST: Grant(1, -1), SILENT: Grant(1, -1)})
        await partitions.settle()
        assert positions.at == {FIRST: 5}
        # No call of an application waits for it again so soon.
        asked = len(first.waited_s)
        await partitions.settle()
        assert len(first.waited_s) == asked and silent.waited_s == [2.0]

        silent.answer = answer_of("n2")
        monkeypatch.setattr(module, "now_ms", lambda: float("inf"))
        await partitions.settle()
        assert positions.at == {FIRST: 5, SILENT: 3}


async def test_what_was_committed_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Client("127.0.0.1:1") as client:
        stubs: dict[str, Any] = {"": Stub(answer_of("n1")), "n2:9700": Stub(None)}
        monkeypatch.setattr(client.routes, "stub", stubs.__getitem__)
        membership, positions = Membership("m", 10_000), Positions()
        membership.told("m", 1, 1, 0, {SILENT: Grant(1, 2)})
        await reader(client, membership, positions).settle()
        assert positions.at == {SILENT: 2}


async def test_without_a_group_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Client("127.0.0.1:1") as client:
        stubs: dict[str, Any] = {"": Stub(answer_of("n1")), "n2:9700": Stub(None)}
        monkeypatch.setattr(client.routes, "stub", stubs.__getitem__)
        with pytest.raises(Unavailable, match="of t partition 1: no answer from n2, its leader"):
            await consume_starts(client.connection, "t", None, "latest")
        assert await consume_starts(client.connection, "t", None, "earliest") == {0: 0, 1: 0}
