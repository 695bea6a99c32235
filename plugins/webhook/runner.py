"""Runs one webhook where its consumer group is coordinated: reads all partitions of its topic from
what the group has committed, and commits what was taken.

Its progress is the group `webhook-<name>`, in the journal like every group's: operators see its lag
and may reset it, and the node that takes the group over goes on from there.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final

from lakemq.broker_core.api.backoff import Backoff
from lakemq.broker_core.api.errors import (
    LakeMQError,
    NotLeader,
    OffsetOutOfRange,
    Unavailable,
    UnknownTopic,
)
from lakemq.broker_core.api.groups.types import GroupCommit, OffsetToCommit
from lakemq.broker_core.api.ports import Broker, PartitionReader
from lakemq.broker_core.api.records.stored import readable_batches
from lakemq.broker_core.api.types import Offset, Principal, TopicInfo, TopicPartition
from lakemq.plugins.webhook.config import HookSettings
from lakemq.plugins.webhook.payload import Post, posts_of, rows_of
from lakemq.plugins.webhook.sending import Counters, Sender

_log = logging.getLogger(__name__)
US: Final = Principal("webhook", "node")
FETCH_BYTES: Final = 256 * 1024
WAIT_MS: Final = 5_000
LOOK_S: Final = 1.0
"""How often a node looks whether the webhook is its own."""
RECOMMIT_S: Final = 3600.0
"""Offsets of a silent topic are committed again after so long: those of unused groups expire."""
LOST_S: Final = 30.0
"""A new leader may know for a moment of fewer records than were read before."""
_RETRY_MIN_MS: Final = 100
_RETRY_MAX_MS: Final = 5_000
_rng: Final = random.Random()


class HookRunner:
    """One webhook on one node. `run` until it is cancelled."""

    def __init__(self, broker: Broker, settings: HookSettings) -> None:
        """Raises ConfigError, as `Sender`."""
        self.settings, self.counters = settings, Counters()
        self.group = f"webhook-{settings.name}"
        self._broker = broker
        self._sender = Sender(settings, self.counters)
        self._topic_id = ""
        self._at: dict[int, int] = {}
        """Partition -> everything below is taken."""
        self._committed: dict[int, int] = {}
        """What the group has, as far as we know."""
        self._recommit_s = 0.0
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Run the webhook whenever it is this node's."""
        fault = ""
        try:
            while True:
                try:
                    await self._look()
                    fault = ""
                except NotLeader:
                    await self._leave()  # another node coordinates the group
                except LakeMQError as error:
                    fault = self._told(error, fault)
                pause_s = self.settings.commit_ms / 1000 if self._tasks else LOOK_S
                await asyncio.sleep(pause_s)
        finally:
            await self._cancel(self._tasks)
            with suppress(LakeMQError):  # it is sent again
                await self._commit()
            await self._sender.close()

    async def _look(self) -> None:
        """Commit what was taken, obey a reset, read partitions that are new. Raises NotLeader where
        another node runs the webhook."""
        group = await self._broker.groups.committed(self.group, principal=US)
        topic = self._broker.topic(self.settings.topic)
        was = self._topic_id
        if topic.topic_id != was:  # new, or created again: other records
            await self._leave()
            self._topic_id = topic.topic_id
        found = {at.partition: each.offset for at, each in group.items() if at.topic == topic.name}
        for partition, offset in found.items():
            if self._committed.get(partition, offset) != offset:
                _log.info("webhook %s: goes on at offset %d of %s-%d, as its group was reset",
                          self.settings.name, offset, topic.name, partition)  # fmt: skip
                await self._end(partition)
        await self._commit()
        await self._begin(topic, found, is_new=not (found or was))

    async def _begin(self, topic: TopicInfo, found: Mapping[int, int], *, is_new: bool) -> None:
        """Read the partitions that are not read yet. `found`: what is committed of them."""
        at_end = is_new and self.settings.start == "latest"
        begun = {}
        for partition in range(topic.partitions):
            if partition not in self._tasks:
                reader = begun[partition] = self._broker.reader(topic.name, partition)
                if partition in found:
                    self._at[partition] = self._committed[partition] = found[partition]
                elif partition not in self._at:
                    self._at[partition] = (await reader.bounds())[at_end]
        # Where it begins is stored before anything is sent: it is never decided again.
        await self._commit()
        for partition, reader in begun.items():
            self._tasks[partition] = asyncio.create_task(
                self._deliver(topic.name, partition, reader)
            )

    async def _end(self, partition: int) -> None:
        if partition in self._tasks:
            await self._cancel({partition: self._tasks.pop(partition)})
        self._at.pop(partition, None)
        self._committed.pop(partition, None)

    async def _leave(self) -> None:
        await self._cancel(self._tasks)
        for kept in (self._tasks, self._at, self._committed):
            kept.clear()

    async def _cancel(self, tasks: Mapping[int, asyncio.Task[None]]) -> None:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)

    async def _commit(self) -> None:
        now_s = asyncio.get_running_loop().time()
        due = now_s >= self._recommit_s
        behind = {
            TopicPartition(self.settings.topic, partition): OffsetToCommit(at)
            for partition, at in self._at.items()
            if due or self._committed.get(partition) != at
        }
        if behind:
            commit = GroupCommit(self.group, behind)
            await self._broker.groups.commit(commit, principal=US)
            self._committed |= {place.partition: each.offset for place, each in behind.items()}
            self._recommit_s = now_s + RECOMMIT_S if due else self._recommit_s

    def _told(self, error: LakeMQError, told: str) -> str:
        """Logs what is other than was told last. A topic that is not there is waited for."""
        if isinstance(error, UnknownTopic) or str(error) == told:
            return told
        _log.warning("webhook %s: %s; it is tried again", self.settings.name, error)
        return str(error)

    # -- one partition

    async def _deliver(self, topic: str, partition: int, reader: PartitionReader) -> None:
        """Send what comes, in order, until it is cancelled."""
        backoff = Backoff(_RETRY_MIN_MS, _RETRY_MAX_MS, _rng.random)
        beyond_s, fault = 0.0, ""
        while True:
            at = self._at[partition]
            try:
                got = await reader.fetch(Offset(at), bytes_max=FETCH_BYTES, wait_ms=WAIT_MS)
            except OffsetOutOfRange:
                beyond_s = beyond_s or asyncio.get_running_loop().time()
                with suppress(LakeMQError):
                    await self._find_again(topic, partition, reader, beyond_s)
                await asyncio.sleep(backoff.next_s())
                continue
            except LakeMQError as error:
                fault = self._told(error, fault)
                await asyncio.sleep(backoff.next_s())
                continue
            beyond_s, fault = 0.0, ""
            backoff.reset()
            if got.next_offset > at:
                posts = self._posts(topic, partition, got.data, at)
                # A batch may be large, and compressed: not on the event loop.
                while (post := await asyncio.to_thread(next, posts, None)) is not None:
                    await self._sender.send(post)
                    self._at[partition] = post.next_offset
                self._at[partition] = got.next_offset

    def _posts(self, topic: str, partition: int, data: bytes, start: int) -> Iterator[Post]:
        batches = readable_batches(data, topic, partition, start=start)
        settings = self.settings
        return posts_of(
            topic, partition, settings.name, rows_of(batches, start, settings.wanted),
            settings.records_max, settings.bytes_max,
        )  # fmt: skip

    async def _find_again(
        self, topic: str, partition: int, reader: PartitionReader, since_s: float
    ) -> None:
        """Go on where the log starts, if retention was quicker; at its end, if what lay before our
        place is lost for good. Raises Unavailable while that is open."""
        start, end = await reader.bounds()
        at, name = self._at[partition], self.settings.name
        if at < start:
            self.counters.lost += start - at
            _log.error("webhook %s: %d records of %s-%d were deleted before they were sent",
                       name, start - at, topic, partition)  # fmt: skip
            self._at[partition] = start
        elif at > end:
            if asyncio.get_running_loop().time() - since_s < LOST_S:
                raise Unavailable(f"{topic}-{partition} ends before {at}")
            _log.error("webhook %s: %s-%d ends at offset %d, before %d: records were lost",
                       name, topic, partition, end, at)  # fmt: skip
            self._at[partition] = end
