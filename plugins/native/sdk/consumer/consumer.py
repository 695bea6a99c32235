"""A member of a consumer group, for asyncio. `blocking.consumer` puts a blocking face on it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Self

from lakemq.broker_core.api.errors import CorruptBatch, InvalidRequest
from lakemq.broker_core.api.records.batch import RecordBatch
from lakemq.broker_core.api.types import TopicPartition
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.sdk.arguments import moment_ms, records_max, wait_given
from lakemq.plugins.native.sdk.arrow import COLUMNS, to_arrow
from lakemq.plugins.native.sdk.consumer.assigned import AssignedPartitions
from lakemq.plugins.native.sdk.consumer.chunks import Chunk, only, with_ends
from lakemq.plugins.native.sdk.consumer.commits import Commits
from lakemq.plugins.native.sdk.consumer.corrupt import CorruptPolicy, OnCorrupt
from lakemq.plugins.native.sdk.consumer.counters import ConsumerCounters
from lakemq.plugins.native.sdk.consumer.fetching import FetchLoop
from lakemq.plugins.native.sdk.consumer.options import Callback as Callback
from lakemq.plugins.native.sdk.consumer.options import ConsumerOptions as ConsumerOptions
from lakemq.plugins.native.sdk.consumer.options import Partitions as Partitions
from lakemq.plugins.native.sdk.consumer.options import commit_interval
from lakemq.plugins.native.sdk.consumer.positions import Positions, Span
from lakemq.plugins.native.sdk.consumer.reader import RecordReader
from lakemq.plugins.native.sdk.consumer.starts import Assigned, Start, Where, checked, starts_of
from lakemq.plugins.native.sdk.group.group_calls import GroupCalls
from lakemq.plugins.native.sdk.group.group_stream import GroupStream
from lakemq.plugins.native.sdk.group.manual_assignment import ManualAssignment
from lakemq.plugins.native.sdk.group.topic_pattern import TopicPattern
from lakemq.plugins.native.sdk.group.topic_watch import watch_for_topics
from lakemq.plugins.native.sdk.net.connection import Connection
from lakemq.plugins.native.sdk.schemas import Schemas
from lakemq.plugins.native.sdk.serializing import Deserializing, RecordDeserializer
from lakemq.plugins.native.sdk.types import ConsumerRecord
from lakemq.plugins.native.wire.filtering import RecordFilter

if TYPE_CHECKING:
    import pyarrow as pa


class Consumer:
    """Made by `Client.subscribe` and `Client.assign`; an async context manager. Iterate it for
    records, or ask for them by `poll` and `get_many`; `commit` when they are handled."""

    _watch: asyncio.Task[None] | None = None
    """Warns of topics that are not there."""
    _closed = False

    def __init__(
        self,
        connection: Connection,
        topics: Sequence[str],
        group: str,
        schemas: Schemas,
        *,
        assigned: Assigned | None = None,
        wanted: RecordFilter | None = None,
        start: Start = "earliest",
        auto_commit: bool = False,
        auto_commit_interval_ms: int = 5000,
        on_corrupt: OnCorrupt = "skip",
        key_deserializer: Deserializing | None = None,
        value_deserializer: Deserializing | None = None,
        instance_id: str = "",
        session_timeout_ms: int = 10_000,
        rebalance_timeout_ms: int = 60_000,
        pattern: str | None = None,
        pattern_interval_ms: int = 5000,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """`assigned`: read these, without a group or as a group without members, in place of
        topics that the members of a group share."""
        if assigned is None and bool(topics) == (pattern is not None):
            raise InvalidRequest("subscribe takes either topics or a pattern")
        self.group = group
        self.counters = ConsumerCounters()
        self._connection = connection
        self._loop: asyncio.AbstractEventLoop | None = None
        calls = GroupCalls(connection.routes)
        changed = asyncio.Event()
        self._stream: GroupStream | ManualAssignment = (
            GroupStream(
                calls, group=group, topics=topics, instance_id=instance_id,
                session_timeout_ms=session_timeout_ms, rebalance_timeout_ms=rebalance_timeout_ms,
                on_change=changed.set,
            )
            if assigned is None
            else ManualAssignment(calls, group, assigned, connection.timeout_s, changed.set)
        )  # fmt: skip
        self._pattern = self._pattern_of(pattern, pattern_interval_ms)
        self._membership = self._stream.membership
        made = RecordDeserializer.given(key_deserializer, value_deserializer, schemas)
        corrupt = CorruptPolicy(on_corrupt, self.counters)
        fetch = FetchLoop(connection.routes, connection.bootstrap, wanted, corrupt)
        self._positions = positions = Positions()
        self._commits = commits = Commits(
            calls, group, self._membership, positions, self.counters, connection.timeout_s
        )
        self._assigned = AssignedPartitions(
            connection, self._stream, fetch, positions, commits,
            start=checked(start) if assigned is None else starts_of(assigned, checked(start)),
            commit_interval_ms=commit_interval(group, auto_commit, auto_commit_interval_ms),
            callbacks={"assigned": on_assigned, "revoked": on_revoked, "lost": on_lost},
            changed=changed, counters=self.counters,
        )  # fmt: skip
        self.reader = RecordReader(self._assigned, self.counters, wanted, corrupt, made, group)
        """Internal: chunks of records, for the blocking face."""

    def _pattern_of(self, pattern: str | None, interval_ms: int) -> TopicPattern | None:
        if pattern is None or not isinstance(self._stream, GroupStream):
            return None
        return TopicPattern(self._connection, pattern, interval_ms, self._stream.subscribe)

    # -- life

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._assigned.begin()
        self._connection.routes.start()
        if self._pattern is not None:
            await self._pattern.start()
        if isinstance(self._stream, ManualAssignment):
            await self._stream.open()
            return self
        self._stream.start()
        if self._stream.topics:
            self._watch = asyncio.create_task(
                watch_for_topics(self._stream.topics, self.group, self._connection.describe_topic)
            )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._positions.give_back()
        await self.close()

    async def close(self) -> None:
        """Commit (with `auto_commit`), give up all partitions, leave the group."""
        if self._closed:
            return
        self._closed = True
        await self._assigned.close()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._pattern is not None:
            await self._pattern.stop()
        # The coordinator hears of the departure last, behind the commit that the next owner starts
        # from.
        await self._stream.leave()

    def stop(self) -> None:
        """Hand out nothing more: loops over records end, `poll` gives None, `get_many` an empty
        list, at once also where they wait. For good; what was handed out can still be committed.

        May be called from any task, thread or signal handler."""
        loop = self._loop
        if loop is None:  # not entered: no loop waits yet
            self.reader.stopped = True
            return
        with suppress(RuntimeError):  # the loop is closed, and everything has ended
            loop.call_soon_threadsafe(self.reader.stop)

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self.reader.stopped

    @property
    def member_id(self) -> str:
        """New for every joining; empty: without a group's members."""
        return self._membership.member_id

    @property
    def assignment(self) -> Partitions:
        """Partitions that this member reads now."""
        return frozenset(self._positions.at)

    # -- records

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        return self.until_idle(math.inf)

    async def until_idle(self, idle_s: float) -> AsyncIterator[ConsumerRecord]:
        """Records until none has come for `idle_s`; can be called again to go on."""
        reader, membership, positions = self.reader, self._membership, self._positions
        while (chunk := await reader.chunk_within(idle_s)) is not None:
            try:
                for record in chunk.rest:
                    # `may_hand_out`, written out: this is done for every record.
                    if (
                        membership.version != chunk.version or monotonic() * 1000 >= chunk.check_ms
                    ) and not await reader.between(chunk):
                        reader.drop(chunk)
                        break
                    positions.in_hand = record
                    yield record
            except GeneratorExit:  # the loop was left: the next one goes on behind this record
                raise
            except BaseException:
                reader.put_back()
                raise

    async def poll(self, timeout_s: float | None = None) -> ConsumerRecord | None:
        """The next record; None when none has come for `timeout_s` (None: for ever). Counts as
        handled when this is called again. Raises as iterating does."""
        return self.reader.take_one() or await self.reader.poll(wait_given("timeout_s", timeout_s))

    async def get_many(
        self, max_records: int = 500, timeout_s: float | None = None
    ) -> list[ConsumerRecord]:
        """One record or more, up to `max_records`: what is there, of all partitions; an empty list
        when nothing has come for `timeout_s` (None: for ever). All of them count as handled when
        this is called again. Raises as iterating does."""
        wait_s = wait_given("timeout_s", timeout_s)
        return await self.reader.get_many(records_max(max_records), wait_s)

    async def arrow(self, columns: Sequence[str] = COLUMNS) -> AsyncIterator[pa.RecordBatch]:
        """The same records as Arrow, a stored batch at a time. A batch counts as one record: all
        of it is handled when your loop comes back, or at the next `commit`."""
        reader, positions = self.reader, self._positions
        while not reader.stopped:
            positions.came_back()
            await self._assigned.settle()
            arrived = await reader.arrived()
            if arrived is None:
                continue
            held = self._membership.held[arrived.place]
            chunk = Chunk(arrived.place, held, arrived.reading, iter(()), -1)
            reader.put_back()
            for batch, end in with_ends(arrived):
                # Each yield may have taken long: a batch of a partition that was lost meanwhile is
                # not handed out.
                if not reader.may_hand_out(chunk) and not await reader.between(chunk):
                    break
                first = positions.at[arrived.place]
                found = self._arrow_of(arrived.place, batch, first, columns)
                # Before the yield: a commit inside the loop's body counts the batch in hand as
                # handled.
                positions.in_hand = (Span(arrived.place, first, end),)
                if found is None:
                    positions.came_back()
                    continue
                self.counters.records += found.num_rows
                if found.num_rows:
                    yield found
                positions.came_back()
            reader.all_handed_out()

    def _arrow_of(
        self, place: TopicPartition, batch: RecordBatch, first: int, columns: Sequence[str]
    ) -> pa.RecordBatch | None:
        """None: it is corrupt, and left out."""
        wanted = self.reader.wanted
        try:
            found = to_arrow(
                batch, topic=place.topic, partition=place.partition, start=first, columns=columns
            )
            return found if wanted is None else only(found, wanted.rows(batch))
        except CorruptBatch as error:
            self.reader.corrupt.note(*place, batch.header.base_offset, error)
            return None

    # -- where to read

    async def seek(self, place: TopicPartition, where: Where) -> None:
        """Go on at an offset of a partition, at its `earliest` or `latest` record, or at a time (a
        datetime: the first record that is not older). What is in hand of it does not count as
        handled any more. Raises InvalidRequest when the partition is not assigned now."""
        await self._assigned.seek({place: where})

    async def seek_to_timestamp(
        self, timestamp_ms: int | datetime, places: Iterable[TopicPartition] | None = None
    ) -> None:
        """`seek` to the first records that are not older, of all assigned partitions or of some;
        to the end where none is. Milliseconds since the epoch, or a datetime with a time zone."""
        moment = moment_ms("timestamp_ms", timestamp_ms)
        chosen = self.assignment if places is None else frozenset(places)
        await self._assigned.seek_to_moment(moment, chosen)

    def pause(self, *places: TopicPartition) -> None:
        """Hand out nothing more of these partitions (all assigned ones, if none is named) until
        `resume`; they stay this member's. A rebalance ends the pause of what is given up."""
        self._assigned.pause(places or self.assignment)

    def resume(self, *places: TopicPartition) -> None:
        """Go on with these partitions, or with all that are paused."""
        self._assigned.resume(places or self.paused)

    @property
    def paused(self) -> Partitions:
        """Assigned partitions of which nothing is handed out."""
        return frozenset(self._assigned.paused)

    async def lag(self) -> dict[TopicPartition, int]:
        """Partition -> records behind what was handed out, up to the high watermark, of all that
        are assigned now. Their leaders are asked."""
        return await self._assigned.lag()

    def positions(self) -> dict[TopicPartition, int]:
        """Partition -> offset of the next record, the record in hand counted as handled."""
        return self._positions.now()

    # -- offsets

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Keep where this member stands: every record handed out so far counts as handled.

        Returns when it is on the broker's disk. `offsets`: other ones (of the next record to
        read). Raises MemberFenced or UnknownMember when a partition is another member's by now.
        """
        await self._commits.commit(offsets)

    def commit_request(self, offsets: Mapping[TopicPartition, int]) -> pb.CommitOffsetsRequest:
        """Internal: a commit of this member; every one supersedes those made before."""
        return self._commits.request(offsets)

    def was_committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Internal: a transaction has committed these."""
        self._commits.done(offsets)

    def gave_up_since(self, moment_ms: float) -> bool:
        """Internal: whether partitions were lost or given up since then (`now_ms` of the group
        stream), or are about to be: what was made of their records is for another member to make.
        """
        changes = self._membership.changes()
        return self._assigned.given_up_ms >= moment_ms or bool(changes.lost)

    def rewind(self) -> None:
        """Go back to where was committed last in every partition, or where this member began:
        everything since is handed out again."""
        self._positions.rewind()
        self._assigned.read_again()
