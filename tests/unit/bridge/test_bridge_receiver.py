"""Goal: the remote broker gets an acknowledgement only for what this node's cluster can read, and
what it sends is stored in its order.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lakemq.broker_core.api.errors import (
    InvalidRequest,
    LakeMQError,
    NotEnoughReplicas,
    NotLeader,
    StorageFull,
)
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


class PatientBroker:
    """Publishes wait for the test to say what became of them."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[bytes], asyncio.Future[Any]]] = []

    def publish(self, topic: str, columns: Columns, **_: Any) -> asyncio.Future[Any]:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.calls.append((list(columns.values), done))
        return done

    @property
    def given(self) -> list[list[bytes]]:
        return [values for values, _ in self.calls]

    async def answer(self, outcome: LakeMQError | None = None) -> None:
        """To the newest publish; None: its records are stored behind those before."""
        values, done = self.calls[-1]
        first = sum(len(each) for each in self.given[:-1])
        done.set_result([outcome or Placed(0, first + at) for at in range(len(values))])
        await turns()


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Incoming:
    """A receiver, and what it answers."""

    def __init__(self, bytes_max: int = 10_000_000) -> None:
        self.broker = PatientBroker()
        self.inbox = Inbox(bytes_max)
        rules = Rules([RuleSettings(direction="in", filter="#").rule()])
        given: Any = self.broker
        self.receiver = Receiver(given, rules, self.inbox, "link", "client")
        self.answers: list[int] = []
        self.receiver.answer = lambda answer: self.answers.append(answer.packet_id)

    async def come(self, *numbers: int, again: bool = False, size: int = 0) -> None:
        for number in numbers:
            payload = b"%d" % number + b" " * size
            await self.receiver.publish_came("a", payload, 2, number, again=again, retain=False)
        await turns()


async def test_nothing_is_stored_before_what_was_refused_ahead_of_it() -> None:
    link = Incoming()
    await link.come(1, 2)
    await link.come(3)
    assert link.broker.given == [[b"1", b"2"]], "an append at a time"
    await link.broker.answer(NotEnoughReplicas("2 of 3"))
    await link.come(4)  # in a buffer of the connection that ends
    assert len(link.broker.calls) == 1 and not link.answers and link.inbox.idle

    link.inbox.link_lost()
    link.receiver.take()
    await link.come(1, 2, 3, 4, again=True)
    await link.broker.answer()
    assert link.broker.given[1:] == [[b"1", b"2", b"3", b"4"]]
    assert link.answers == [1, 2, 3, 4]


async def test_what_comes_meanwhile_makes_the_next_append() -> None:
    link = Incoming()
    await link.come(1)
    await link.come(2)
    await link.come(3)
    await link.broker.answer()
    await link.broker.answer()
    assert link.broker.given == [[b"1"], [b"2", b"3"]]
    assert link.answers == [1, 2, 3]
    assert link.inbox.positions == {("mqtt", 0): 3}
    await link.come(4)
    assert len(link.broker.calls) == 3


async def test_an_append_is_one_batch() -> None:
    """Part of a longer one could be refused, and what is behind it be stored."""
    link = Incoming()
    await link.come(*range(1, 9), size=100_000)
    given = 0
    while given < len(link.broker.calls):
        given = len(link.broker.calls)
        await link.broker.answer()
    assert [len(each) for each in link.broker.given] == [2, 2, 2, 2]
    assert link.answers == list(range(1, 9))


async def test_a_connection_that_may_store_nothing_waits_for_no_room() -> None:
    link = Incoming(bytes_max=1)
    waiting = asyncio.create_task(link.come(1))
    await turns()
    assert not waiting.done()
    await link.broker.answer(NotEnoughReplicas("2 of 3"))
    await asyncio.wait_for(waiting, 10)
    await link.come(2)
    assert len(link.broker.calls) == 1
