"""Goal: each publish that went to storage is told its own outcome, in order, whoever sent what."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from lakemq.broker_core.api.errors import LakeMQError, StorageFull
from lakemq.broker_core.api.types import ANONYMOUS, Acks, Offset, Placed
from lakemq.plugins.mqtt.session.appends import Lane, Outcome
from lakemq.plugins.mqtt.wire.messages import Place


class Client:
    """Keeps what it is told: packet identifier, QoS, bytes so far, kind of outcome."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int, type]] = []
        self.size_bytes = 0

    def settled(
        self, packet_id: int, qos: int, size_bytes: int, outcome: Outcome, now_ms: int
    ) -> None:
        self.told.append((packet_id, qos, type(outcome)))
        self.size_bytes += size_bytes

    def stored(
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
    lane = Lane("t", ANONYMOUS, Acks.LEADER)
    outcomes: list[Placed | LakeMQError] = []
    for packet_id in range(1, 60):
        whose = chance.choice([0, 0, 0, 1, 2, None])
        qos, value = chance.choice([0, 1, 1, 1, 2]), b"x" * chance.randrange(5)
        failed = chance.random() < 0.1
        lane.values.append(value or None)
        lane.tokens.append((None if whose is None else clients[whose], packet_id, qos))
        outcomes.append(StorageFull("full") if failed else Placed(0, Offset(packet_id)))
        if whose is not None:
            expected[whose].append((packet_id, qos, StorageFull if failed else Place))
            sizes[whose] += len(value)
    lane.settle(outcomes, 0)
    assert [client.told for client in clients] == expected
    assert [client.size_bytes for client in clients] == sizes
