"""Goal: the remote broker gets an acknowledgement only for what this node's cluster can read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lakemq.broker_core.api.errors import InvalidRequest, LakeMQError, NotLeader, StorageFull
from lakemq.broker_core.api.types import Columns, Placed
from lakemq.plugins.mqtt.bridge.config import RuleSettings
from lakemq.plugins.mqtt.bridge.incoming.inbox import Answer, Inbox
from lakemq.plugins.mqtt.bridge.incoming.receiver import Receiver
from lakemq.plugins.mqtt.bridge.rules import Rules

ELSEWHERE = NotLeader("partition 0 of mqtt is led by b", leader="b", address="10.0.0.7:7420")


class OutcomeBroker:
    """Answers every publish with one outcome."""

    def __init__(self, outcome: Placed | LakeMQError) -> None:
        self._outcome = outcome

    def publish(self, topic: str, columns: Columns, **_: Any) -> asyncio.Future[Any]:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        done.set_result([self._outcome] * len(columns.values))
        return done


async def received(outcome: Placed | LakeMQError, qos: int) -> tuple[list[Answer], list[str]]:
    """The answers to one publish, and why the link has to begin again."""
    broker: Any = OutcomeBroker(outcome)
    rules = Rules([RuleSettings(direction="in", filter="#").rule()])
    receiver = Receiver(broker, rules, Inbox(10_000), "link", "client")
    answers: list[Answer] = []
    failures: list[str] = []
    receiver.answer, receiver.failed = answers.append, failures.append
    await receiver.publish_came("a/b", b"x", qos, 7, again=False, retain=False)
    await receiver.settled()
    return answers, failures


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("error", [ELSEWHERE, StorageFull("no space")])
async def test_what_is_not_stored_is_not_acknowledged(error: LakeMQError, qos: int) -> None:
    answers, failures = await received(error, qos)
    assert answers == []
    (why,) = failures
    assert str(error) in why


@pytest.mark.parametrize("qos", [1, 2])
async def test_what_is_stored_is(qos: int) -> None:
    assert await received(Placed(0, 5), qos) == ([Answer(qos, 7)], [])


async def test_what_can_never_be_stored_and_what_no_rule_takes_is_answered_and_counted() -> None:
    broker: Any = OutcomeBroker(InvalidRequest("too large"))
    rules = Rules([RuleSettings(direction="in", filter="in/#").rule()])
    receiver = Receiver(broker, rules, Inbox(10_000), "link", "client")
    answers: list[Answer] = []
    receiver.answer = answers.append
    for packet_id, name in ((1, "in/a"), (2, "other/a"), (3, "other/b")):
        await receiver.publish_came(name, b"x", 1, packet_id, again=False, retain=False)
        await receiver.settled()
    assert answers == [Answer(1, 1), Answer(1, 2), Answer(1, 3)]
    assert (receiver.refused, receiver.unasked) == (1, 2)
