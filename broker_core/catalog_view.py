"""The topics of the catalog as this node knows them: follows the MetaService, has the partitions
of this node opened and closed accordingly, and tells watchers."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from lakemq.broker_core.api.backoff import Backoff
from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.types import Leadership, TopicConfig, TopicInfo
from lakemq.broker_core.partitions import Partitions
from lakemq.broker_core.topic_names import config_from_catalog
from lakemq.meta_service.api.errors import MetaError
from lakemq.meta_service.api.types import (
    MetaClient,
    PartitionDescription,
    PartitionsChange,
    TopicChange,
    TopicDescription,
)

_RETRY_FIRST_MS: Final = 100
_RETRY_MAX_MS: Final = 5_000
_rng: Final = random.Random()
_log: Final = logging.getLogger(__name__)


class CatalogView:
    """Applies every change of the catalog in order, whichever node made it."""

    def __init__(
        self, meta: MetaClient, partitions: Partitions, default_config: TopicConfig
    ) -> None:
        """`default_config`: for settings that the catalog's version of a topic lacks."""
        self.failed: asyncio.Future[BaseException] | None = None
        """Done when the catalog can't be followed any more: the node must stop."""
        self._meta = meta
        self._partitions = partitions
        self._default_config = default_config
        self._watchers: dict[Callable[[str, TopicInfo | None], None], None] = {}
        self._changing = asyncio.Lock()
        self._follower: asyncio.Task[None] | None = None

    async def load(self) -> tuple[int, Sequence[TopicDescription]]:
        """Delete from disk the topics that the catalog does not know, open the partitions of the
        others; (revision, topics) of the catalog."""
        self.failed = asyncio.get_running_loop().create_future()
        revision, topics = await self._meta.topics()
        # By id: what was deleted while this node was down may have a namesake now.
        await self._partitions.delete_all_but({topic.topic_id for topic in topics})
        for topic in topics:
            await self.apply(topic)
        return revision, topics

    async def refresh(self) -> None:
        """Apply all topics as the catalog has them now."""
        _, topics = await self._meta.topics()
        for topic in topics:
            await self.apply(topic)

    async def assign_all(self, begin: Callable[[], None]) -> None:
        """Read the catalog, and have this node take its part in every topic, also where nothing
        has changed, and delete what it has no part in any more. `begin()` is called before the
        first one, and nothing that is older than what was read is applied after it. Raises
        MetaError."""
        _, topics = await self._meta.topics()
        async with self._changing:
            begin()
            for topic in topics:
                await self._apply(topic, again=True)
            await self._partitions.delete_moved_away()

    def start(self, revision: int) -> None:
        """Follow the catalog from `revision` on."""
        self._follower = asyncio.create_task(self._follow(revision))

    async def stop(self) -> None:
        """Stop following; the partitions stay open."""
        if self._follower is not None:
            self._follower.cancel()
            with suppress(asyncio.CancelledError):
                await self._follower

    async def _follow(self, revision: int) -> None:
        assert self.failed is not None
        try:
            async for change in self._meta.watch_partitions(revision):
                await self._apply_until_possible(change)
        except (LakeMQError, MetaError, OSError) as error:
            if not self.failed.done():
                self.failed.set_result(error)

    async def _apply_until_possible(self, change: TopicChange | PartitionsChange) -> None:
        """Repeated while it fails with what may pass: no file descriptor or no space is left. Until
        then clients get UnknownPartition."""
        backoff = Backoff(_RETRY_FIRST_MS, _RETRY_MAX_MS, _rng.random)
        while True:
            try:
                await self._apply_change(change)
                return
            except LakeMQError as error:
                if not error.retriable:
                    raise
                _log.warning("cannot open topic %s yet, trying again: %s", change.name, error)
            await asyncio.sleep(backoff.next_s())

    async def _apply_change(self, change: TopicChange | PartitionsChange) -> None:
        if isinstance(change, PartitionsChange):
            async with self._changing:
                await self._apply_partitions(change)
        elif change.topic is not None:
            await self.apply(change.topic)
        else:
            await self.remove(change.name, change.revision)

    async def _apply_partitions(self, change: PartitionsChange) -> None:
        before = self._partitions.find(change.name)
        if before is None:
            return  # deleted by this node, and the watch has not come to that yet
        topic, changed = with_partitions(before, change)
        if topic is not before:
            await self._partitions.assign(topic, changed)
        # Who is in sync is between replicas and the catalog: clients are not told of it.
        if any(_place(before.leaders[n]) != _place(topic.leaders[n]) for n in changed):
            self._tell(topic.name, topic)

    async def apply(self, described: TopicDescription) -> TopicInfo:
        """Make this node agree with the catalog about one topic; an older revision than the one
        known here changes nothing. Idempotent."""
        async with self._changing:
            return await self._apply(described)

    async def _apply(self, described: TopicDescription, again: bool = False) -> TopicInfo:
        before = self._partitions.find(described.name)
        # The watch and the answer of a change may bring the same revision, in either order.
        if before is not None and before.revision >= described.revision:
            if again:
                await self._partitions.assign(before)
            return before
        # The topic was deleted and created again: the old records must not show up in the new one.
        if before is not None and before.topic_id != described.topic_id:
            await self._close(before)
        topic = topic_info(described, self._default_config)
        await self._partitions.assign(topic)
        self._tell(topic.name, topic)
        return topic

    async def remove(self, name: str, revision: int | None = None) -> None:
        """The topic was deleted at that revision of the catalog; None: just now."""
        async with self._changing:
            topic = self._partitions.find(name)
            if topic is not None and (revision is None or topic.revision < revision):
                await self._close(topic)

    async def _close(self, topic: TopicInfo) -> None:
        await self._partitions.close(topic)
        self._tell(topic.name, None)
        await self._partitions.delete(topic.topic_id)

    def watch(self, on_change: Callable[[str, TopicInfo | None], None]) -> Callable[[], None]:
        """As `Broker.watch_topics`."""
        self._watchers[on_change] = None
        return lambda: self._watchers.pop(on_change, None)

    def _tell(self, name: str, topic: TopicInfo | None) -> None:
        # A copy: a watcher may remove itself while it is called.
        for watcher in list(self._watchers):
            watcher(name, topic)


def topic_info(described: TopicDescription, default_config: TopicConfig) -> TopicInfo:
    """A topic of the catalog as a value of the broker's API. `default_config`: for settings that
    the catalog's version lacks."""
    return TopicInfo(
        described.name,
        described.topic_id,
        len(described.partitions),
        config_from_catalog(described.config, default_config),
        described.revision,
        tuple(_leadership(each) for each in described.partitions),
        described.replication,
    )


def with_partitions(topic: TopicInfo, change: PartitionsChange) -> tuple[TopicInfo, Sequence[int]]:
    """(the topic with what is newer in the change, numbers of those partitions). The same topic if
    nothing is: the change may be of another topic of that name, or older than what is known."""
    newer = [
        each
        for each in change.partitions
        if change.topic_id == topic.topic_id
        and each.partition < len(topic.leaders)
        and each.partition_epoch > topic.leaders[each.partition].partition_epoch
    ]
    if not newer:
        return topic, ()
    leaders = list(topic.leaders)
    for each in newer:
        leaders[each.partition] = _leadership(each)
    revision = max(topic.revision, change.revision)
    changed = replace(topic, revision=revision, leaders=tuple(leaders))
    return changed, [each.partition for each in newer]


def _place(held: Leadership) -> tuple[object, ...]:
    return held.leader, held.epoch, held.replicas, held.target


def _leadership(described: PartitionDescription) -> Leadership:
    return Leadership(
        described.leader,
        described.leader_epoch,
        described.replicas,
        described.in_sync,
        described.partition_epoch,
        described.eligible,
        described.min_in_sync,
        described.target,
    )
