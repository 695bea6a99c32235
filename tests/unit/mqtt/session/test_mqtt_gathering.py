"""Goal: where several clients publish, one append serves more of them, and waits for a moment at
most; a lone publisher never waits.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import pytest

from lakemq.broker_core.api.types import ANONYMOUS, Acks
from lakemq.plugins.mqtt.config import MqttSettings
from lakemq.plugins.mqtt.server.engine import MqttEngine
from lakemq.plugins.mqtt.state.appends import FULL_COUNT, Row
from lakemq.plugins.mqtt.state.gathering import COMMIT_DELAY_S, Gathering
from tests.support.mqtt.memory_broker import MemoryBroker, until
from tests.unit.mqtt.session.test_mqtt_lanes import Client

DELAY_MS = int(1000 * COMMIT_DELAY_S)


class Bench:
    """A gathering with a clock of its own; one append takes 5 ms."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.released = 0
        self.timers: list[tuple[int, int, Callable[[], None]]] = []
        self.clients = [Client() for _ in range(100)]
        self.gathering = Gathering(self.later, self.count_release)

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        due_ms = self.now_ms + int(1000 * delay_s)
        heapq.heappush(self.timers, (due_ms, len(self.timers), call))

    def count_release(self) -> None:
        self.released += 1

    def pass_ms(self, duration_ms: int) -> None:
        self.now_ms += duration_ms
        while self.timers and self.timers[0][0] <= self.now_ms:
            heapq.heappop(self.timers)[2]()

    def append(self, *clients: int) -> None:
        rows: list[Row] = [(self.clients[client], (1,), 1, 0) for client in clients]
        self.gathering.begin("t", rows, self.now_ms)
        self.pass_ms(5)
        self.gathering.end("t", len(rows))

    @property
    def enough(self) -> int:
        """How many records the next append waits for."""
        return self.gathering.enough.get("t", 0)


def test_during_an_append_the_next_one_gathers_until_it_is_full() -> None:
    bench = Bench()
    bench.gathering.begin("t", [(None, (1,), 1, 0)], 0)
    bench.gathering.begin("t", [(None, (1,), 2, 1)], 0)
    assert bench.enough == FULL_COUNT
    bench.gathering.end("t", 1)
    assert bench.enough == FULL_COUNT
    bench.gathering.end("t", 1)
    assert not bench.enough and not bench.timers


def test_a_lone_publisher_is_never_held() -> None:
    bench = Bench()
    for _ in range(20):
        bench.append(0, 0, 0)
        assert not bench.enough and not bench.timers


def test_several_are_held_for_the_delay_and_no_longer() -> None:
    bench = Bench()
    bench.append(0)
    bench.append(1)
    assert bench.enough == 2 and not bench.released
    bench.pass_ms(DELAY_MS)
    assert not bench.enough and bench.released == 1


def test_no_more_are_awaited_than_publish() -> None:
    bench = Bench()
    bench.append(0, 1, 2, 2)
    assert bench.enough == 3
    bench.append(*range(FULL_COUNT - 1))
    bench.append(*range(40, 40 + FULL_COUNT - 1))
    assert bench.enough == FULL_COUNT


def test_a_hold_that_had_enough_ends_none_of_those_behind_it() -> None:
    bench = Bench()
    bench.append(0, 1)
    bench.gathering.begin("t", [(bench.clients[0], (1,), 1, 1)], bench.now_ms)
    bench.gathering.end("t", 1)  # at once; the timer of the first hold is still to come
    bench.timers = bench.timers[:1]
    bench.pass_ms(DELAY_MS)
    assert bench.enough == 2 and not bench.released


def test_after_a_full_append_nothing_is_held() -> None:
    bench = Bench()
    bench.append(0, 1)
    bench.append(*range(FULL_COUNT))
    assert not bench.enough


@pytest.mark.parametrize("silence_ms", [100, 250, 10_000])
def test_who_publishes_no_more_is_not_awaited(silence_ms: int) -> None:
    bench = Bench()
    bench.append(0, 1)
    bench.pass_ms(silence_ms)
    bench.append(0)
    if silence_ms < 200:
        bench.pass_ms(100)
        bench.append(0)
    assert not bench.enough


def test_once_nothing_may_be_held_nothing_is() -> None:
    bench = Bench()
    bench.append(0, 1)
    bench.gathering.hold(False)
    assert not bench.enough
    bench.append(0, 1)
    assert not bench.enough
    bench.pass_ms(DELAY_MS)
    assert not bench.released


async def test_what_is_held_when_the_engine_closes_is_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = MemoryBroker()
    settings = MqttSettings.model_validate({"durable": False})
    # Whatever is held stays held.
    monkeypatch.setattr(MqttEngine, "later", lambda _engine, _delay_s, _call: None)
    engine = MqttEngine(settings, broker)
    await engine.open()
    clients = [Client() for _ in range(3)]

    def publish(client: Client) -> None:
        pending = engine.hub.outbox.appends.to("mqtt", Acks.LEADER)
        pending.add(ANONYMOUS, b"k", b"v", b"", (client, 7, 1))

    publish(clients[0])
    publish(clients[1])
    engine.after()
    await until(lambda: bool(clients[1].told))
    publish(clients[2])
    engine.after()
    assert not engine.turn_due, "nothing is held"
    await engine.close()
    assert clients[2].told
