"""Goal: each publish that went to storage is told its own outcome, in order, whoever sent what."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from lakemq.broker_core.api.errors import LakeMQError, StorageFull
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
        self.size_bytes = 0

    def on_result(
        self, packet_id: int, qos: int, size_bytes: int, outcome: Outcome, now_ms: int
    ) -> None:
        self.told.append((packet_id, qos, type(outcome)))
        self.size_bytes += size_bytes

    def on_appended(
        self, packet_ids: Sequence[int], size_bytes: int, somewhere: Place, now_ms: int
    ) -> None:
        assert packet_ids
        self.told += [(packet_id, 1, Place) for packet_id in packet_ids]
        self.size_bytes += size_bytes


@pytest.mark.parametrize("seed", range(20))
def test_each_is_told_its_own(seed: int) -> None:
    chance = random.Random(seed)
    clients = [Client() for _ in range(3)]
    expected: list[list[tuple[int, int, type]]] = [[] for _ in clients]
    sizes = [0] * len(clients)
    pending = PendingAppend("t", Acks.LEADER)
    outcomes: list[Placed | LakeMQError] = []
    for packet_id in range(1, 60):
        whose = chance.choice([0, 0, 0, 1, 2, None])
        qos, value = chance.choice([0, 1, 1, 1, 2]), b"x" * chance.randrange(5)
        failed = chance.random() < 0.1
        token = (None if whose is None else clients[whose], packet_id, qos)
        pending.add(ANONYMOUS, b"k", value or None, b"", token)
        outcomes.append(StorageFull("full") if failed else Placed(0, Offset(packet_id)))
        if whose is not None:
            expected[whose].append((packet_id, qos, StorageFull if failed else Place))
            sizes[whose] += len(value)
    pending.settle(range(len(outcomes)), outcomes, 0)
    assert [client.told for client in clients] == expected
    assert [client.size_bytes for client in clients] == sizes


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
