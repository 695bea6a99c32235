"""Goal: what a node comes to lead is read back as soon as that is told, again when it failed, and
nothing is done where nothing is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lakemq.broker_core.api.errors import NotLeader, Unavailable
from lakemq.broker_core.api.state.residents import Residents
from lakemq.broker_core.api.state.state_topic import StateTopic
from lakemq.broker_core.api.types import Leadership, TopicConfig, TopicInfo

NAME = "_lakemq_offsets"


class Node:
    """The parts of `Broker` that are asked, and a `Resident`."""

    node_id = "a"

    def __init__(self) -> None:
        self.leader, self.epoch = "b", 1
        self.ready = False
        self.asked = 0
        self.fails = 0
        self.stands_still = False
        self.events: list[str] = []
        self.told: list[Callable[..., None]] = []
        self.topic_told: list[Callable[..., None]] = []

    def topic(self, name: str) -> TopicInfo:
        held = Leadership(self.leader, self.epoch, ("a", "b"))
        return TopicInfo(NAME, "0a" * 16, 1, TopicConfig(), 1, (held,))

    def serves(self, name: str, partition: int) -> bool:
        self.asked += 1
        return self.leader == "a" and self.ready

    def partition(self, name: str, partition: int) -> Any:
        if not self.serves(name, partition):
            raise NotLeader("elsewhere", leader=self.leader)
        return SimpleNamespace(log_end_offset=7)

    def watch_topics(self, told: Callable[..., None]) -> Callable[[], None]:
        self.topic_told.append(told)
        return lambda: self.topic_told.remove(told)

    def watch_serving(self, told: Callable[[], None]) -> Callable[[], None]:
        self.told.append(told)
        return lambda: self.told.remove(told)

    def tell(self) -> None:
        for told in self.told:
            told()

    async def load(self, partition: int, end: int) -> str:
        await asyncio.sleep(3600 if self.stands_still else 0)
        if self.fails:
            self.fails -= 1
            self.events.append("failed")
            raise Unavailable("the disk is slow")
        return f"up to {end}"

    def serve(self, partition: int, epoch: int, state: str) -> None:
        self.events.append(f"serve in {epoch}, {state}")

    def drop(self, partition: int) -> None:
        self.events.append("drop")


@pytest.fixture
async def started() -> AsyncIterator[tuple[Node, Residents[str]]]:
    node = Node()
    broker: Any = node
    residents = Residents(broker, StateTopic(broker, NAME), node)
    await residents.start()
    yield node, residents
    await residents.stop()


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_what_is_told_is_done_in_the_same_turns(started: tuple[Node, Residents[str]]) -> None:
    node, residents = started
    node.leader, node.epoch = "a", 2
    node.topic_told[0](NAME, None)
    await turns()
    assert (node.events, residents.serves(0)) == ([], False)  # it has not begun to lead
    node.ready = True
    for _ in range(100):
        node.tell()
    asked = node.asked
    await turns()
    assert (node.events, residents.serves(0)) == (["serve in 2, up to 7"], True)
    assert node.asked - asked < 5  # one look for all
    node.leader, node.epoch = "b", 3
    node.topic_told[0](NAME, None)
    assert node.events[1:] == ["drop"]


async def test_nothing_is_done_where_nothing_is_told(started: tuple[Node, Residents[str]]) -> None:
    node, _ = started
    node.leader, node.epoch, node.ready = "a", 2, True
    node.tell()
    await turns()
    asked = node.asked
    await asyncio.sleep(0.2)
    assert node.asked == asked


async def test_a_reading_that_failed_is_tried_again(started: tuple[Node, Residents[str]]) -> None:
    node, residents = started
    node.fails = 2
    node.leader, node.ready = "a", True
    node.tell()
    async with asyncio.timeout(5):
        while not residents.serves(0):  # noqa: ASYNC110  no event tells
            await asyncio.sleep(0.01)
    assert node.events == ["failed", "failed", "serve in 1, up to 7"]


@pytest.mark.parametrize("stands_still", [False, True], ids=["retrying", "reading"])
async def test_nothing_goes_on_behind_the_end(stands_still: bool) -> None:
    node = Node()
    broker: Any = node
    residents = Residents(broker, StateTopic(broker, NAME), node)
    await residents.start()
    node.leader, node.ready, node.fails = "a", True, 1_000_000
    node.stands_still = stands_still
    node.tell()
    await asyncio.sleep(0.12)
    await residents.stop()
    events, asked = len(node.events), node.asked
    await asyncio.sleep(0.2)
    assert (len(node.events), node.asked, node.told, node.topic_told) == (events, asked, [], [])
