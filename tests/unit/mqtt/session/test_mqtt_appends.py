"""Goal: each publish that went to storage is told its own outcome, in order, whoever sent what."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from lakemq.broker_core.api.errors import StorageFull
from lakemq.broker_core.api.types import ANONYMOUS, Acks, Columns, Offset, Placed, Principal
from lakemq.plugins.mqtt.state.appends import (
    FULL_BYTES,
    FULL_COUNT,
    Appends,
    Outcome,
    PendingAppend,
)
from lakemq.plugins.mqtt.wire.messages import Place


class Client:
    """Keeps what it is told: packet identifier, QoS, bytes so far, kind of outcome."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int, type]] = []
        self.places: dict[int, tuple[int, int]] = {}
        """Of QoS 2."""
        self.size_bytes = 0

    def on_result(
        self, packet_id: int, qos: int, size_bytes: int, outcome: Outcome, now_ms: int
    ) -> None:
        self.told.append((packet_id, qos, type(outcome)))
        if qos == 2 and isinstance(outcome, Place):
            self.places[packet_id] = outcome[1:]
        self.size_bytes += size_bytes

    def on_appended(
        self, packet_ids: Sequence[int], size_bytes: int, somewhere: Place, now_ms: int
    ) -> None:
        assert packet_ids
        self.told += [(packet_id, 1, Place) for packet_id in packet_ids]
        self.size_bytes += size_bytes

    def on_received(
        self, packet_ids: Sequence[int], size_bytes: int, first: Place, now_ms: int
    ) -> None:
        assert packet_ids
        for offset, packet_id in enumerate(packet_ids, first.offset):
            self.on_result(packet_id, 2, 0, Place(*first[:2], offset), now_ms)
        self.size_bytes += size_bytes


@pytest.mark.parametrize("seed", range(40))
def test_each_is_told_its_own(seed: int) -> None:
    """Single publishes and runs of three partitions, one of which fails; batches are parted."""
    chance = random.Random(seed)
    clients = [Client() for _ in range(3)]
    expected: list[Counter[tuple[int, int, type]]] = [Counter() for _ in clients]
    sizes = [0] * len(clients)
    pending = PendingAppend("t", Acks.LEADER)
    parts: dict[int, list[int]] = {}
    packet_id = 0
    while packet_id < 90:
        whose, home = chance.choice([0, 0, 0, 1, 2, None]), chance.randrange(3)
        kind: type = StorageFull if home == 2 else Place
        if whose is not None and chance.random() < 0.4:
            packet_ids = list(range(packet_id + 1, packet_id + chance.randrange(2, 9)))
            values = [b"x" * chance.randrange(5) for _ in packet_ids]
            qos, headers = chance.choice([1, 1, 2]), [b""] * len(values)
            pending.add_run(ANONYMOUS, b"k", values, headers, clients[whose], packet_ids, qos)
        else:
            packet_ids, values = [packet_id + 1], [b"x" * chance.randrange(5)]
            qos = chance.choice([0, 1, 1, 1, 2])
            token = (None if whose is None else clients[whose], packet_ids[0], qos)
            pending.add(ANONYMOUS, b"k", values[0] or None, b"", token)
        packet_id = packet_ids[-1]
        count = len(pending.values)
        parts.setdefault(home, []).extend(range(count - len(packet_ids), count))
        if whose is not None:
            expected[whose].update((each, qos, kind) for each in packet_ids)
            sizes[whose] += sum(map(len, values))
    for home, indexes in parts.items():
        cut = chance.randrange(len(indexes))
        for some in (indexes[:cut], indexes[cut:]) if cut else (indexes,):
            stored = Placed(home, Offset(1000 + indexes.index(some[0])))
            pending.settle(some, StorageFull("full") if home == 2 else stored, 0)
    assert [Counter(client.told) for client in clients] == expected
    assert [client.size_bytes for client in clients] == sizes
    for client in clients:
        for home, indexes in parts.items():
            ids = [one for one, _, _ in client.told if one - 1 in indexes]
            assert ids == sorted(ids), f"out of order in partition {home}"
            places = {one: place for one, place in client.places.items() if one - 1 in indexes}
            assert places == {one: (home, 1000 + indexes.index(one - 1)) for one in places}


@pytest.mark.parametrize("seed", range(20))
def test_records_of_a_run_that_went_to_several_partitions(seed: int) -> None:
    """As an interceptor may have given each of them another key: none is acknowledged for one that
    is not stored."""
    chance = random.Random(seed)
    client, pending = Client(), PendingAppend("t", Acks.LEADER)
    parts: dict[int, list[int]] = {0: [], 1: []}
    for first in range(0, 60, 20):
        packet_ids = list(range(first, first + 20))
        pending.add_run(ANONYMOUS, b"k", [b"x"] * 20, [b""] * 20, client, packet_ids)
    for index in range(60):
        parts[chance.randrange(2)].append(index)
    for home, indexes in parts.items():
        client.told.clear()
        pending.settle(indexes, Placed(home, Offset(0)), 0)
        assert client.told == [(index, 1, Place) for index in indexes]
    assert client.size_bytes == 60


def test_records_of_many_clients_are_one_append_that_tells_whose_they_are() -> None:
    appends = Appends()
    first, second = Principal("one"), Principal("two")
    for principal in (first, first, second, first):
        appends.to("t", Acks.LEADER).add(principal, b"k", b"v", b"", (None, 1, 1))
    appends.to("t", Acks.MEMORY).add(second, b"k", b"v", b"", (None, 1, 0))
    assured, memory = appends.take()
    assert assured.principals() == [(first, 2), (second, 1), (first, 1)]
    assert assured.columns() == Columns([b"v"] * 4, [b"k"] * 4, [b""] * 4)
    assert memory.principals() == [(second, 1)]
    assert not appends and appends.take() == []


def test_appends_to_a_busy_topic_gather_until_they_are_full() -> None:
    appends, busy = Appends(), {"busy": FULL_COUNT}
    for topic in ("busy", "idle"):
        appends.to(topic, Acks.LEADER).add(ANONYMOUS, b"k", b"v", b"", (None, 1, 1))
    assert [one.topic for one in appends.take(busy)] == ["idle"]
    assert appends and not appends.ready(busy)
    for _ in range(FULL_COUNT - 1):
        appends.to("busy", Acks.LEADER).add(ANONYMOUS, b"k", b"v", b"", (None, 1, 1))
    assert appends.ready(busy)
    (full,) = appends.take(busy)
    assert len(full.values) == FULL_COUNT
    appends.to("busy", Acks.LEADER).add(ANONYMOUS, b"k", b"v" * FULL_BYTES, b"", (None, 1, 1))
    assert len(appends.take(busy)) == 1
    assert not appends
