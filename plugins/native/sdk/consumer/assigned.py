"""The partitions that a consumer reads: what comes and goes between two records.

Lost partitions are dropped, revoked ones given up (after a commit, with `auto_commit`), new ones
taken, before the next record is handed out. So an application that commits after each record is
never disturbed in the middle.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Final

from lakemq.broker_core.api.errors import (
    InvalidRequest,
    LakeMQError,
    LogTruncated,
    MemberFenced,
    OffsetOutOfRange,
    Unavailable,
    UnknownMember,
    UnknownTopic,
)
from lakemq.broker_core.api.types import TopicPartition
from lakemq.plugins.native.sdk.consumer.commits import Commits
from lakemq.plugins.native.sdk.consumer.counters import ConsumerCounters
from lakemq.plugins.native.sdk.consumer.fetching import FetchLoop, Reading
from lakemq.plugins.native.sdk.consumer.options import Callback, Partitions
from lakemq.plugins.native.sdk.consumer.positions import Positions
from lakemq.plugins.native.sdk.consumer.starts import (
    Start,
    Where,
    check_mapping,
    first_offsets,
    told_offsets,
    where_of,
)
from lakemq.plugins.native.sdk.group.group_stream import GroupStream, now_ms
from lakemq.plugins.native.sdk.group.manual_assignment import ManualAssignment
from lakemq.plugins.native.sdk.group.membership import Grant
from lakemq.plugins.native.sdk.net.connection import Connection

_log: Final = logging.getLogger("lakemq.sdk")
_LEADERS_S: Final = 2.0
"""How long partitions of leaders that answer wait for the word of the others."""
_AGAIN_MS: Final = 2000.0
"""How long it takes until leaders that said nothing are asked again."""


class AssignedPartitions:
    """Of one consumer. Every method is called on the event loop."""

    def __init__(
        self,
        connection: Connection,
        stream: GroupStream | ManualAssignment,
        fetch: FetchLoop,
        positions: Positions,
        commits: Commits,
        *,
        start: Start,
        commit_interval_ms: int | None,
        callbacks: Mapping[str, Callback | None],
        changed: asyncio.Event,
        counters: ConsumerCounters,
    ) -> None:
        """`commit_interval_ms` None: no automatic commit. `changed` is set when there is something
        for `settle` to do."""
        self.membership = stream.membership
        self.fetch, self.positions, self.changed = fetch, positions, changed
        self.paused: dict[TopicPartition, Reading] = {}
        """Partitions that are held and not fetched, as they were read last."""
        self.given_up_ms = -1.0
        """When partitions were lost or given up last."""
        self.telemetry = connection.routes.telemetry
        self._connection, self._stream, self._commits = connection, stream, commits
        self._start, self._callbacks, self._counters = start, callbacks, counters
        self._commit_interval_ms = commit_interval_ms
        self._next_commit_ms = 0.0
        self._take_again_ms = 0.0

    def begin(self) -> None:
        """The first automatic commit is due an interval from now."""
        self._next_commit_ms = now_ms() + (self._commit_interval_ms or 0)

    def check_ms(self) -> float:
        """When to call `settle` at the latest."""
        lease = self.membership.lease_until_ms
        return lease if self._commit_interval_ms is None else min(lease, self._next_commit_ms)

    async def settle(self) -> None:
        """Do what the coordinator has asked for, and commit if it is time."""
        if self._stream.failed is not None:
            raise self._stream.failed
        if self.fetch.failed is not None:
            raise self.fetch.failed
        # Cleared before the changes are read: one that comes in between sets it again, and the next
        # wait returns at once.
        self.changed.clear()
        # Each step awaits, and meanwhile the coordinator may change its mind: read again after
        # every one. Lost ones go first, since nothing may be committed for them.
        while changes := self.membership.changes():
            self._counters.rebalances += 1
            self._counters.partitions_lost += len(changes.lost)
            if changes.lost:
                self._drop(changes.lost)
                self.membership.dropped()
                await self.call("lost", changes.lost)
            elif changes.revoked:
                await self._give_up(changes.revoked)
            elif not await self._took(changes.assigned):
                break  # tried again when this is called next
        if self._commit_interval_ms is not None and now_ms() >= self._next_commit_ms:
            self._next_commit_ms = now_ms() + self._commit_interval_ms
            with suppress(MemberFenced, UnknownMember):  # the next heartbeat tells
                await self._commits.commit(None)

    async def close(self) -> None:
        """Give up all partitions, after a commit (with `auto_commit`)."""
        held = frozenset(self.membership.held)
        if held and self._stream.failed is None:
            if self._commit_interval_ms is not None:
                with suppress(LakeMQError):
                    # Commit before `revoked` is called and the group is left: from then on another
                    # member may have the partitions.
                    await self._commits.commit(None)
            await self.call("revoked", held)
        self.fetch.stop()

    async def _give_up(self, revoked: Partitions) -> None:
        if self._commit_interval_ms is not None:
            with suppress(LakeMQError):  # the next owner reads from the last commit
                await self._commits.commit(None)
        await self.call("revoked", revoked)
        self._drop(revoked)
        self.membership.released(revoked)
        # Others wait for these partitions (KIP-848): the coordinator is told at once that they are
        # free.
        self._stream.heartbeat_now()

    def _drop(self, places: Partitions) -> None:
        self.given_up_ms = now_ms()
        self.positions.drop(places)
        self._commits.drop(places)
        for place in places:
            self.paused.pop(place, None)
        kept = {at: each for at, each in self.fetch.places.items() if at not in places}
        self.fetch.restart(kept)

    async def _took(self, assigned: Mapping[TopicPartition, Grant]) -> bool:
        """False: of some no broker answers now. What is read already goes on meanwhile."""
        if now_ms() < self._take_again_ms:
            return False
        try:
            return await self._take(assigned)
        except LakeMQError as error:
            if not error.retriable:
                raise
            _log.info("%d assigned partitions can't be read yet: %s", len(assigned), error)
            return False

    async def _take(self, assigned: Mapping[TopicPartition, Grant]) -> bool:
        """Begin with all but those whose leader does not tell where; whether there are none."""
        found: dict[TopicPartition, Reading] = {}
        for topic in sorted({at.topic for at in assigned}):
            described = await self._connection.describe_topic(topic, leaders_s=_LEADERS_S)
            mine = {at.partition: each for at, each in assigned.items() if at.topic == topic}
            fresh = {number: where_of(self._start, TopicPartition(topic, number))
                     for number, each in mine.items() if each.committed < 0}  # fmt: skip
            firsts = await told_offsets(self._connection, described, fresh)
            for number, grant in mine.items():
                if number in firsts or number not in fresh:
                    first = firsts.get(number, grant.committed)
                    found[TopicPartition(topic, number)] = Reading(described.topic_id, first)
        if waiting := assigned.keys() - found.keys():
            self._take_again_ms = now_ms() + _AGAIN_MS
            _log.info("no node tells where %d assigned partitions begin", len(waiting))
        if found:
            await self._begin_with(found, assigned)
        return not waiting

    async def _begin_with(
        self,
        found: Mapping[TopicPartition, Reading],
        assigned: Mapping[TopicPartition, Grant],
    ) -> None:
        for place, reading in found.items():
            self.positions.take(place, reading.position)
        readings = {**self.fetch.places, **found}
        # `taken` keeps only grants that still hold: `describe_topic` awaited.
        self.membership.taken({place: assigned[place] for place in found})
        for place in found.keys() - self.membership.held.keys():
            self.positions.drop([place])  # taken back while we asked
            del readings[place]
        self.fetch.restart(readings)
        taken = frozenset(found.keys() & self.positions.at.keys())
        if taken:
            await self.call("assigned", taken)

    async def call(self, name: str, places: Partitions) -> None:
        """Tell the application: `assigned`, `revoked` or `lost`."""
        callback = self._callbacks[name]
        if callback is not None:
            result = callback(places)
            if inspect.isawaitable(result):
                await result

    # -- where to read on

    async def failed(self, place: TopicPartition, error: LakeMQError) -> None:
        """A partition can't be read on from where we are."""
        if place not in self.positions.at:
            return
        # Deleted: the coordinator will say so too.
        if isinstance(error, UnknownTopic) and isinstance(self._stream, GroupStream):
            return
        if not isinstance(error, OffsetOutOfRange):
            raise error
        try:
            await self._find_again(place, error)
        except LakeMQError as other:
            if not other.retriable:
                raise
            _log.info("%s/%d can't be read on yet: %s", *place, other)
            self.fetch.restart(dict(self.fetch.places))  # fails again, and is found then

    async def _find_again(self, place: TopicPartition, error: OffsetOutOfRange) -> None:
        described = await self._connection.describe_topic(place.topic)
        if isinstance(error, LogTruncated):
            # What came in place of the records that were taken back is new (KIP-320).
            _log.warning("%s/%d: %s", *place, error)
            first = error.offset
        else:
            # Retention has overtaken the position: go on where `start` says, as with Kafka's
            # auto.offset.reset; an offset or a time of its own leads to what is still there.
            start = where_of(self._start, place)
            end: Where = "latest" if start == "latest" else "earliest"
            found = await first_offsets(self._connection, described, {place.partition: end})
            first = found[place.partition]
        self.positions.at[place] = first
        self.fetch.restart({**self.fetch.places, place: Reading(described.topic_id, first)})

    def read_again(self) -> None:
        """Go on from `positions`; what has arrived and was not handed out is fetched again."""
        at = self.positions.at
        self._restart(
            {place: Reading(each.topic_id, at[place]) for place, each in self.fetch.places.items()}
        )

    def _restart(self, readings: Mapping[TopicPartition, Reading]) -> None:
        self.membership.version += 1  # so that records on their way are looked at again
        self.fetch.restart(readings)

    async def seek(self, wanted: Mapping[TopicPartition, Where]) -> None:
        """Go on at these places. Raises InvalidRequest for a partition that is not assigned."""
        wanted = check_mapping(wanted)
        self.check_assigned(wanted)
        firsts: dict[TopicPartition, int] = {}
        for place, where in wanted.items():
            if isinstance(where, int):
                firsts[place] = where
                continue
            described = await self._connection.describe_topic(place.topic)
            found = await first_offsets(self._connection, described, {place.partition: where})
            firsts[place] = found[place.partition]
        self._go_on_at(firsts)

    async def seek_to_moment(self, moment_ms: int, places: Collection[TopicPartition]) -> None:
        """Go on at the first records that are not older."""
        self.check_assigned(places)
        told = {
            topic: await self._connection.offsets_for_timestamp(topic, moment_ms)
            for topic in sorted({at.topic for at in places})
        }
        for topic, number in places:
            if number not in told[topic]:
                raise Unavailable(f"no node tells offsets of {topic} partition {number}")
        self._go_on_at({place: told[place.topic][place.partition] for place in places})

    def _go_on_at(self, firsts: Mapping[TopicPartition, int]) -> None:
        self.check_assigned(firsts)  # they may have been lost while others were asked
        readings = dict(self.fetch.places)
        for place, first in firsts.items():
            self.positions.seek(place, first)
            if place in readings:  # a paused one is fetched from there when it is resumed
                readings[place] = Reading(readings[place].topic_id, first)
        self._restart(readings)

    def check_assigned(self, places: Iterable[TopicPartition]) -> None:
        """Raises InvalidRequest for a partition that this consumer does not read now."""
        for place in places:
            if place not in self.positions.at:
                raise InvalidRequest(
                    f"{place!r:.80} is not assigned to this consumer (now); `assignment` tells "
                    "what is, `on_assigned` when"
                )

    def pause(self, places: Iterable[TopicPartition]) -> None:
        """Fetch these no more, and drop what has arrived of them; they stay this consumer's."""
        chosen = frozenset(places)
        self.check_assigned(chosen)
        stopped = {at: each for at, each in self.fetch.places.items() if at in chosen}
        self.paused |= stopped
        if stopped:
            kept = {at: each for at, each in self.fetch.places.items() if at not in chosen}
            self._restart(kept)

    def resume(self, places: Iterable[TopicPartition]) -> None:
        """Fetch these again, from where the application stands."""
        chosen = frozenset(places)
        self.check_assigned(chosen)
        again = {
            at: Reading(each.topic_id, self.positions.next_of(at))
            for at, each in self.paused.items()
            if at in chosen
        }
        for place in again:
            del self.paused[place]
        if again:
            self.fetch.restart({**self.fetch.places, **again})

    async def lag(self) -> dict[TopicPartition, int]:
        """Partition -> records from where the application stands to the high watermark."""
        positions = self.positions.now()
        found: dict[TopicPartition, int] = {}
        for topic in sorted({at.topic for at in positions}):
            described = await self._connection.describe_topic(topic)
            for each in described.partitions:
                place = TopicPartition(topic, each.partition)
                if place in positions:
                    first = max(positions[place], each.log_start_offset)
                    found[place] = max(0, each.high_watermark - first)
        return found
