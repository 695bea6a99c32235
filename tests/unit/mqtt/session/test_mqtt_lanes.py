"""Goal: what storage raises for the publishes to one topic is told to their publishers alone; those
of the same turn of the loop that go elsewhere are stored.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.types import ANONYMOUS, Acks, Placed
from lakemq.plugins.mqtt.config import MqttSettings
from lakemq.plugins.mqtt.state.appends import Outcome
from lakemq.plugins.mqtt.wire.messages import Place
from tests.support.mqtt.memory_broker import MemoryBroker, MqttEngine


class Client:
    def __init__(self) -> None:
        self.told: list[Outcome] = []

    def on_result(
        self, packet_id: int, qos: int, size_bytes: int, outcome: Outcome, now_ms: int
    ) -> None:
        self.told.append(outcome)

    def on_appended(self, packet_ids: Any, size_bytes: int, somewhere: Place, now_ms: int) -> None:
        self.told += [somewhere] * len(packet_ids)

    def on_received(self, packet_ids: Any, size_bytes: int, first: Place, now_ms: int) -> None:
        self.told += [first] * len(packet_ids)


class Failing(MemoryBroker):
    """`publish` to the topic `bad` raises, or answers with a record too few."""

    def __init__(self, error: BaseException | None) -> None:
        super().__init__()
        self.error = error

    def publish(self, topic: str, columns: Any, **more: Any) -> Any:
        if topic != "bad":
            return super().publish(topic, columns, **more)
        if self.error is not None:
            raise self.error
        future: asyncio.Future[list[Placed | LakeMQError]] = asyncio.Future()
        future.set_result([])
        return future


@pytest.mark.parametrize("error", [RuntimeError("boom"), ValueError("x"), None])
async def test_other_appends_of_the_turn_are_stored(error: BaseException | None) -> None:
    broker = Failing(error)
    bindings = [{"filter": "bad/#", "topic": "bad"}, {"filter": "#", "topic": "good"}]
    settings = MqttSettings.model_validate({"bindings": bindings, "durable": False})
    engine = MqttEngine(settings, broker)
    await engine.open()
    clients = {topic: Client() for topic in ("bad", "good")}
    for topic, client in clients.items():
        pending = engine.hub.outbox.appends.to(topic, Acks.LEADER)
        pending.add(ANONYMOUS, b"k", b"v", b"", (client, 7, 1))
    engine.after()
    for _ in range(10):
        await asyncio.sleep(0)
    assert [type(told) for told in clients["good"].told] == [Place]
    (refused,) = clients["bad"].told
    assert isinstance(refused, LakeMQError)
    assert str(error or "0 outcomes for 1 records") in str(refused)
    await engine.close()
