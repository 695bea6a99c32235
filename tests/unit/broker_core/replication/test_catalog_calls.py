"""Goal: what a leader asks of the catalog is asked until it is heard."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from lakemq.broker_core.cluster.identity import PeerIdentity
from lakemq.broker_core.replication import catalog_calls
from lakemq.broker_core.replication.catalog_calls import CatalogCalls
from lakemq.broker_core.replication.types import Place
from lakemq.meta_service.api.errors import CompareFailed, MetaError, NoLeader


class Catalog:
    """Answers each call with the next of `failures`, and then well."""

    def __init__(self, failures: list[MetaError]) -> None:
        self.failures = failures
        self.heard: list[Any] = []

    async def resign(self, *said: Any) -> None:
        self.heard.append(said)
        if self.failures:
            raise self.failures.pop(0)


@pytest.mark.parametrize(
    ("failures", "registers", "calls"),
    [
        ([], False, 1),
        ([NoLeader("none"), NoLeader("none")], False, 3),
        ([CompareFailed("registered again")] * 9, False, 1),
        # A registration has ended the leadership.
        ([NoLeader("none")] * 9, True, 1),
    ],
)
async def test_a_leader_resigns_until_it_is_heard(
    failures: list[MetaError], registers: bool, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_calls, "RESIGN_RETRY_S", 0)
    epoch = 7
    catalog = Catalog(failures)
    asking = CatalogCalls(PeerIdentity("n1", "cluster", lambda: epoch), cast("Any", catalog))
    asking.resign(Place("0" * 32, 1), 4)
    await asyncio.sleep(0)
    epoch += registers
    for _ in range(20):
        await asyncio.sleep(0)
    assert catalog.heard == [("n1", 7, [("0" * 32, 1, 4)])] * calls
    await asking.stop()
