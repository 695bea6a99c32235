"""Goal: a stored batch of many records holds nobody else up while it is delivered.

The clock is the test's: each look at it takes 10 ms.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest

from lakemq.broker_core.api.records.batch import encode
from lakemq.broker_core.api.types import Columns, CommittedBatch, Offset
from lakemq.plugins.mqtt.config import MqttSettings
from lakemq.plugins.mqtt.feeds.slices import _WAITING_MAX_BYTES, Slices
from lakemq.plugins.mqtt.server.engine import MqttEngine
from lakemq.plugins.mqtt.wire.messages import Message
from tests.support.mqtt.memory_broker import MemoryBroker

RECORDS = 2000


def slow_clock() -> Iterator[float]:
    return itertools.count(0.0, 0.01)


def work(done: list[str], name: str, steps: int) -> Iterator[None]:
    for _ in range(steps):
        done.append(name)
        yield


async def turns_until(done: list[str], count: int) -> int:
    """Turns of the event loop until `done` has so many entries."""
    turns = 0
    while len(done) < count:
        await asyncio.sleep(0)
        turns += 1
    return turns


async def test_work_is_done_in_order_in_several_turns() -> None:
    done: list[str] = []
    slices = Slices(lambda: None, slow_clock().__next__)
    slices.add(work(done, "a", 12), 1)
    slices.begin()
    assert 0 < len(done) < 12, "the first turn ends early"
    slices.add(work(done, "b", 3), 1)
    slices.begin()
    assert "b" not in done
    assert await turns_until(done, 15) >= 2
    assert done == ["a"] * 12 + ["b"] * 3


async def test_little_work_is_done_at_once() -> None:
    done: list[str] = []
    slices = Slices(lambda: done.append("after"), slow_clock().__next__)
    slices.add(work(done, "a", 2), 1)
    slices.begin()
    assert done == ["a", "a", "after"]


async def test_what_waits_is_bounded_in_memory() -> None:
    done: list[str] = []
    slices = Slices(lambda: None, slow_clock().__next__)
    slices.add(work(done, "a", 50), _WAITING_MAX_BYTES + 1)
    slices.begin()
    assert len(done) == 50


async def test_a_large_batch_is_delivered_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = MemoryBroker()
    engine = MqttEngine(MqttSettings.model_validate({"durable": False}), broker)
    await engine.open()
    engine.arrivals.slices = Slices(engine.after, slow_clock().__next__)
    routed: list[str] = []

    def route(message: Message, now_ms: int) -> None:
        routed.append(message.topic)

    monkeypatch.setattr(engine.hub, "route", route)
    monkeypatch.setattr(engine.arrivals, "heard", lambda topic, name: True)
    keys = [b"t/%d" % number for number in range(RECORDS)]
    data = encode(Columns([b"v"] * RECORDS, keys), now_ms=1)
    last = encode(Columns([b"v"], [b"last"]), now_ms=1, base_offset=RECORDS)
    engine.arrivals.committed("mqtt", [CommittedBatch("mqtt", 0, Offset(0), data)])
    positions = engine.hub.positions
    assert 0 < len(routed) < RECORDS
    assert positions["mqtt", 0] == len(routed), "a snapshot of now goes on behind what was routed"
    engine.arrivals.committed("mqtt", [CommittedBatch("mqtt", 0, Offset(RECORDS), last)])
    assert await turns_until(routed, RECORDS + 1) >= 3
    assert routed == [key.decode() for key in keys] + ["last"]
    assert positions["mqtt", 0] == RECORDS + 1
    await engine.close()


async def test_names_are_asked_once_in_a_turn_and_again_in_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever subscribes between two turns hears the rest of a batch."""
    engine = MqttEngine(MqttSettings.model_validate({"durable": False}), MemoryBroker())
    await engine.open()
    engine.arrivals.slices = Slices(engine.after, slow_clock().__next__)
    routed, asked, subscribed = list[str](), list[str](), {"a"}

    def heard(topic: str, name: str) -> bool:
        asked.append(name)
        return name in subscribed

    monkeypatch.setattr(engine.hub, "route", lambda message, now_ms: routed.append(message.topic))
    monkeypatch.setattr(engine.arrivals, "heard", heard)
    data = encode(Columns([b"v"] * RECORDS, [b"a", b"b"] * (RECORDS // 2)), now_ms=1)
    engine.arrivals.committed("mqtt", [CommittedBatch("mqtt", 0, Offset(0), data)])
    before = len(routed)
    assert 0 < before < RECORDS // 2 and "b" not in routed
    subscribed.add("b")
    for _ in range(RECORDS):
        await asyncio.sleep(0)
    rest = routed[before:]
    assert rest.count("b") >= rest.count("a") == RECORDS // 2 - before
    assert len(asked) < RECORDS // 10
    await engine.close()
