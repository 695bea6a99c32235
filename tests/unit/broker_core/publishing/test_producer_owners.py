"""Goal: nobody writes with a producer id that was given to somebody else, whichever node is asked,
whenever; nobody who had one before loses it at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from lakemq.broker_core.api.errors import NotAuthorized, Unavailable
from lakemq.broker_core.api.types import ANONYMOUS, Principal
from lakemq.broker_core.publishing.producer_ids import IDS_PER_BLOCK, UNOWNED_MS, ProducerIds
from lakemq.broker_core.publishing.producer_owners import ProducerOwners
from lakemq.meta_service.api.types import Compare, KeyValue, Put

ANN, BOB = Principal("ann"), Principal("bob")
NODE = Principal("n1", "node")
OWNERS = ProducerOwners(b"s" * 32, 1000)


@pytest.mark.parametrize("number", [0, 1, 999, (1 << 34) - 1])
def test_an_id_is_its_owners(number: int) -> None:
    given = OWNERS.id_for(number, ANN)
    assert 0 < given < 1 << 63
    OWNERS.check(given, ANN, 2000)
    OWNERS.check(given, Principal("ann", roles=("writer",)), 2000)
    for other in (BOB, ANONYMOUS, Principal("ann", "anonymous"), Principal("an")):
        with pytest.raises(NotAuthorized, match=f"{given} was not given to {other.name}"):
            OWNERS.check(given, other, 2000)
    with pytest.raises(NotAuthorized):
        ProducerOwners(b"t" * 32, 1000).check(given, ANN, 2000)  # another cluster's


def test_ids_differ_and_none_fits_another() -> None:
    ids = [OWNERS.id_for(number, ANN) for number in range(20_000)]
    assert len(set(ids)) == len(ids)
    assert not [each for each in ids if each == OWNERS.id_for(each & (1 << 34) - 1, BOB)]


def test_ids_without_owner_are_the_brokers_once_time_is_over() -> None:
    OWNERS.check(7, NODE, 2000)
    OWNERS.check(7, ANN, 999)
    with pytest.raises(NotAuthorized):
        OWNERS.check(7, ANN, 1000)


def test_numbers_end() -> None:
    with pytest.raises(Unavailable):
        OWNERS.id_for(1 << 34, ANN)


class Catalog:
    """What `ProducerIds` asks of the MetaService; others get their turn in every call."""

    def __init__(self) -> None:
        self.values: dict[bytes, KeyValue] = {}
        self.next = 0

    async def get(self, key: bytes) -> KeyValue | None:
        await asyncio.sleep(0)
        return self.values.get(key)

    async def txn(self, compares: Sequence[Compare], then: Sequence[Put]) -> tuple[bool, int]:
        await asyncio.sleep(0)
        (compare,), (put,) = compares, then
        if compare.key in self.values:
            return False, 1
        self.values[put.key] = KeyValue(put.key, put.value, 1, 1, 1)
        return True, 1

    async def allocate_ids(self, kind: str, count: int) -> range:
        await asyncio.sleep(0)
        first, self.next = self.next, self.next + count
        return range(first, first + count)


def node(catalog: Any, now_ms: int = 0) -> ProducerIds:
    return ProducerIds(catalog, lambda: now_ms)


async def test_nodes_that_start_together_agree_and_so_do_later_ones() -> None:
    catalog = Catalog()
    nodes = [node(catalog) for _ in range(3)]
    await asyncio.gather(*(each.start(fresh=True) for each in nodes))
    later = node(catalog)
    await later.start(fresh=False)
    ids = [await each.allocate(ANN) for each in [*nodes, later] for _ in range(IDS_PER_BLOCK + 1)]
    assert len(set(ids)) == len(ids)
    for each in [*nodes, later]:
        each.check(ids[0], ANN)
        each.check(ids[-1], ANN)
        with pytest.raises(NotAuthorized):
            each.check(ids[0], BOB)
        with pytest.raises(NotAuthorized):
            each.check(5, ANN)


async def test_an_upgraded_cluster_takes_the_ids_that_it_gave_for_a_while() -> None:
    catalog = Catalog()
    await node(catalog).start(fresh=False)
    before, after = node(catalog, UNOWNED_MS - 1), node(catalog, UNOWNED_MS)
    for each in (before, after):
        await each.start(fresh=False)
    before.check(5, ANN)
    with pytest.raises(NotAuthorized):
        after.check(5, ANN)
    assert await after.allocate(None) < IDS_PER_BLOCK
