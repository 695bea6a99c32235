"""Goal: what a leader asks of the catalog is asked until it is heard."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from lakemq.broker_core.cluster.identity import PeerIdentity
from lakemq.broker_core.replication import catalog_calls
from lakemq.broker_core.replication.catalog_calls import RESIGN_MAX, CatalogCalls
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


async def test_what_is_given_up_in_one_turn_is_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node whose disk failed gives up all that it leads. What comes meanwhile waits for the next
    call, behind what was not heard."""
    monkeypatch.setattr(catalog_calls, "RESIGN_RETRY_S", 0)
    catalog = Catalog([NoLeader("none")])
    asking = CatalogCalls(PeerIdentity("n1", "cluster", lambda: 7), cast("Any", catalog))
    for number in range(RESIGN_MAX + 5):
        asking.resign(Place("0" * 32, number), 4)
    await asyncio.sleep(0)
    asking.resign(Place("0" * 32, 9), 5)
    for _ in range(20):
        await asyncio.sleep(0)
    first, again, rest = [led for _, _, led in catalog.heard]
    assert first == again == [("0" * 32, number, 4) for number in range(RESIGN_MAX)]
    assert rest == [("0" * 32, RESIGN_MAX + n, 4) for n in range(5)] + [("0" * 32, 9, 5)]
    asking.resign(Place("0" * 32, 1), 6)
    await asyncio.sleep(0)
    assert catalog.heard[-1] == ("n1", 7, [("0" * 32, 1, 6)])
    await asking.stop()


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
