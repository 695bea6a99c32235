"""Goal: a topic gets the replicas that were asked for, or the defaults, or a clear no."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lakemq.broker_core.api.errors import InvalidRequest, Unavailable
from lakemq.broker_core.configuration.settings import TopicSettings
from lakemq.broker_core.topics import topic_admin
from lakemq.broker_core.topics.topic_admin import TopicAdmin
from lakemq.meta_service.api.errors import UnsupportedCommand
from lakemq.meta_service.api.types import NodeRegistration, PartitionDescription, TopicDescription


class Meta:
    """Remembers what it was asked for."""

    def __init__(self, nodes: int) -> None:
        self._nodes = [NodeRegistration(f"n{number}", {}) for number in range(nodes)]
        self.asked: dict[str, Any] = {}
        self.too_low = 0
        """So often the feature level is too low yet."""

    async def nodes(self) -> list[NodeRegistration]:
        return self._nodes

    async def create_topic(self, name: str, partitions: int, config: object, **more: int) -> None:
        if self.too_low:
            self.too_low -= 1
            raise UnsupportedCommand("command 'topic+in' needs feature level 4")
        self.asked = more

    async def topics(self) -> tuple[int, list[TopicDescription]]:
        one = PartitionDescription(0, "n1", 1, 1, ("n1",), ("n1",))
        return 1, [TopicDescription("t", "0" * 32, (one,), {}, 1)]

    async def alter_topic(self, name: str, **changes: Any) -> None:
        self.asked = changes


class Rest:
    """Agrees to everything."""

    async def apply(self, described: object) -> None: ...

    async def check_subject(self, subject: object) -> None: ...


def admin(nodes: int = 3, **settings: int) -> tuple[TopicAdmin, Meta]:
    meta, rest = Meta(nodes), Rest()
    parts: Any = (meta, rest, SimpleNamespace(), rest)
    return TopicAdmin(*parts, TopicSettings(**settings)), meta


@pytest.mark.parametrize(
    ("settings", "asked", "expected"),
    [
        ({}, (None, None), (1, 1)),
        ({}, (3, None), (3, 2)),
        ({}, (2, None), (2, 1)),
        ({}, (3, 3), (3, 3)),
        ({"replication": 3}, (None, None), (3, 2)),
        ({"replication": 3, "min_in_sync": 1}, (None, None), (3, 1)),
        ({"replication": 3, "min_in_sync": 3}, (1, None), (1, 1)),
        ({"replication": 5}, (None, None), (5, 2)),
    ],
)
async def test_what_is_left_out_is_the_default(
    settings: dict[str, int], asked: tuple[int | None, int | None], expected: tuple[int, int]
) -> None:
    topics, meta = admin(**settings)
    await topics.create("t", 1, None, *asked)
    assert (meta.asked["replication"], meta.asked["min_in_sync"]) == expected


async def test_internal_topics_have_one_replica() -> None:
    topics, meta = admin(replication=3)
    await topics.create("__offsets", 1, None)
    assert meta.asked == {"replication": 1, "min_in_sync": 1}
    with pytest.raises(InvalidRequest, match="internal"):
        await topics.alter("__offsets", None, None, 3)


async def test_a_group_that_was_just_founded_is_waited_for(monkeypatch: Any) -> None:
    """Its feature level is known once every member was heard."""
    topics, meta = admin()
    meta.too_low = 2
    await topics.create("t", 1, None, 3)
    assert meta.asked == {"replication": 3, "min_in_sync": 2}
    monkeypatch.setattr(topic_admin, "LEVEL_WAIT_S", 0.0)
    meta.too_low = 9
    with pytest.raises(Unavailable, match="some member of the MetaService is down or older"):
        await topics.create("t", 1, None, 3)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ((4, None), r"replication is 4; the cluster has 3 node\(s\), so it takes 1 to 3"),
        ((0, None), "replication is 0"),
        ((2, 3), r"min_in_sync is 3 with 2 replica\(s\); it takes 1 to 2"),
        ((None, 2), r"min_in_sync is 2 with 1 replica\(s\)"),
        ((3, 0), "min_in_sync is 0; it takes 1 or more"),
    ],
)
async def test_what_cannot_be_is_refused(asked: tuple[int | None, int | None], why: str) -> None:
    topics, meta = admin()
    with pytest.raises(InvalidRequest, match=why):
        await topics.create("t", 1, None, *asked)
    assert meta.asked == {}


async def test_replicas_are_altered_alone() -> None:
    topics, meta = admin()
    await topics.alter("t", None, None, 3, None)
    assert (meta.asked["replication"], meta.asked["min_in_sync"]) == (3, None)
    meta.asked = {}
    await topics.alter("t", None, None)
    assert meta.asked == {}, "nothing to change"
    with pytest.raises(InvalidRequest, match="replication is 4"):
        await topics.alter("t", None, None, 4)
