"""Goal: a node follows the catalog partition by partition. Neither a whole topic nor some of its
partitions bring back what is older, and only what has changed is looked at."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from lakemq.broker_core.api.errors import Unavailable
from lakemq.broker_core.api.types import TopicConfig, TopicInfo
from lakemq.broker_core.catalog_view import CatalogView, topic_info, with_partitions
from lakemq.meta_service.api.types import (
    PartitionDescription,
    PartitionsChange,
    TopicChange,
    TopicDescription,
)

ID, OTHER_ID = "a" * 32, "b" * 32


def partition(number: int, epoch: int = 0, **changed: Any) -> PartitionDescription:
    """Led by n1 and copied by n2."""
    both = ("n1", "n2")
    return replace(PartitionDescription(number, "n1", 0, epoch, both, both), **changed)


TOPIC = TopicDescription("t", ID, tuple(map(partition, range(64))), {}, 10)


class Partitions:
    """What is known, and which partitions were looked at."""

    def __init__(self) -> None:
        self.known: dict[str, TopicInfo] = {}
        self.assigned: list[Sequence[int] | None] = []
        self.fails = 0

    def find(self, name: str) -> TopicInfo | None:
        return self.known.get(name)

    async def assign(self, topic: TopicInfo, changed: Iterable[int] | None = None) -> None:
        if self.fails:
            self.fails -= 1
            raise Unavailable("no file descriptor is left")
        self.assigned.append(None if changed is None else list(changed))
        self.known[topic.name] = topic

    async def close(self, topic: TopicInfo) -> None:
        del self.known[topic.name]

    async def delete(self, topic_id: str) -> None:
        pass

    async def delete_all_but(self, topic_ids: set[str]) -> None:
        pass


class Meta:
    """A catalog that begins with one topic, and whose changes are put by hand."""

    def __init__(self) -> None:
        self.changes = asyncio.Queue[TopicChange | PartitionsChange]()

    async def topics(self) -> tuple[int, list[TopicDescription]]:
        return 10, [TOPIC]

    async def watch_partitions(
        self, revision: int
    ) -> AsyncIterator[TopicChange | PartitionsChange]:
        while True:
            yield await self.changes.get()
            self.changes.task_done()


class Followed:
    """A view that follows, and what its watchers were told."""

    def __init__(self) -> None:
        self.meta, self.partitions = Meta(), Partitions()
        self.view = CatalogView(
            self.meta,  # type: ignore[arg-type]
            self.partitions,  # type: ignore[arg-type]
            TopicConfig(),
        )
        self.told: list[str] = []

    async def tell(self, *changes: TopicChange | PartitionsChange) -> TopicInfo | None:
        """The topic as it is known when all were applied."""
        for change in changes:
            self.meta.changes.put_nowait(change)
        await asyncio.wait_for(self.meta.changes.join(), 30)
        return self.partitions.find("t")


@pytest.fixture
async def followed() -> AsyncIterator[Followed]:
    followed = Followed()
    revision, _ = await followed.view.load()
    followed.view.watch(lambda name, _: followed.told.append(name))
    followed.view.start(revision + 1)
    yield followed
    await followed.view.stop()


def change(revision: int, *partitions: PartitionDescription) -> PartitionsChange:
    return PartitionsChange(revision, "t", ID, partitions)


async def test_only_partitions_that_are_newer_are_looked_at(followed: Followed) -> None:
    others = [partition(number) for number in range(32, 64)]
    others[3] = partition(35, 1, leader="n2", leader_epoch=1)
    topic = await followed.tell(change(11, *others))
    assert followed.partitions.assigned == [None, [35]]
    assert topic is not None and topic.revision == 11
    assert [n for n, held in enumerate(topic.leaders) if held.leader != "n1"] == [35]
    assert followed.told == ["t"]


async def test_watchers_hear_nothing_of_who_is_in_sync(followed: Followed) -> None:
    topic = await followed.tell(change(11, partition(0, 1, in_sync=("n1",))))
    assert topic is not None and topic.leaders[0].in_sync == ("n1",)
    assert followed.told == []
    await followed.tell(change(12, partition(0, 2, in_sync=("n1",), target=("n1", "n3"))))
    assert followed.told == ["t"], "replicas come and go by moves"


async def test_an_answer_that_came_before_the_watch_stays(followed: Followed) -> None:
    newer = (partition(0, 5, leader="n2", leader_epoch=3), *TOPIC.partitions[1:])
    await followed.view.apply(replace(TOPIC, partitions=newer, revision=14))
    topic = await followed.tell(change(12, partition(0, 4), partition(1, 1, leader="n2")))
    assert topic is not None and topic.revision == 14
    assert (topic.leaders[0].leader, topic.leaders[0].epoch) == ("n2", 3)
    assert topic.leaders[1].leader == "n2", "judged partition by partition"


async def test_a_whole_topic_that_is_older_than_its_partitions_is_left_out(
    followed: Followed,
) -> None:
    await followed.tell(change(13, partition(0, 1, leader="n2")))
    late = replace(TOPIC, revision=12)
    await followed.view.apply(late)
    topic = await followed.tell(TopicChange(12, "t", late))
    assert topic is not None and topic.leaders[0].leader == "n2"


async def test_partitions_of_a_topic_that_is_gone_are_left_out(followed: Followed) -> None:
    again = replace(TOPIC, topic_id=OTHER_ID, revision=20)
    topic = await followed.tell(
        TopicChange(20, "t", again), change(21, partition(0, 9, leader="n2"))
    )
    assert topic is not None and topic.leaders[0].leader == "n1"
    assert await followed.tell(TopicChange(22, "t", None), change(23, partition(0, 9))) is None


async def test_partitions_that_are_not_known_yet_come_with_the_whole(followed: Followed) -> None:
    topic = await followed.tell(change(11, partition(64, 1), partition(63, 1, leader="n2")))
    assert topic is not None and len(topic.leaders) == 64 and topic.leaders[63].leader == "n2"


async def test_what_could_not_be_opened_is_tried_again(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakemq.broker_core.catalog_view._RETRY_FIRST_MS", 1)
    followed.partitions.fails = 2
    topic = await followed.tell(change(11, partition(0, 1, leader="n2")))
    assert topic is not None and topic.leaders[0].leader == "n2"
    assert followed.partitions.assigned == [None, [0]]


def test_nothing_newer_is_the_same_topic() -> None:
    known = topic_info(TOPIC, TopicConfig())
    same, changed = with_partitions(known, change(99, *TOPIC.partitions))
    assert same is known and not changed
