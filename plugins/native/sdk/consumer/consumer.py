"""A member of a consumer group, for asyncio. `sync_consumer` puts a blocking face on it.

Everything that a rebalance asks for happens between two records: before the next record is handed
out, lost partitions are dropped, revoked ones given up (after a commit, with `auto_commit`), new
ones taken. So an application that commits after each record is never disturbed in the middle.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections.abc import (
    AsyncIterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from lakemq.broker_core.api.errors import (
    CorruptBatch,
    InvalidRequest,
    LakeMQError,
    LogTruncated,
    MemberFenced,
    OffsetOutOfRange,
    UnknownMember,
    UnknownTopic,
)
from lakemq.broker_core.api.records.batch import RecordBatch
from lakemq.broker_core.api.types import TopicPartition
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.sdk.arrow import COLUMNS, to_arrow
from lakemq.plugins.native.sdk.consumer.chunks import Chunk, Span, decoded, only, with_ends
from lakemq.plugins.native.sdk.consumer.corrupt import CorruptPolicy, OnCorrupt
from lakemq.plugins.native.sdk.consumer.counters import ConsumerCounters
from lakemq.plugins.native.sdk.consumer.fetching import Arrived, FetchLoop, Reading
from lakemq.plugins.native.sdk.consumer.filtering import RecordFilter
from lakemq.plugins.native.sdk.consumer.group_calls import GroupCalls
from lakemq.plugins.native.sdk.consumer.group_stream import GroupStream, now_ms
from lakemq.plugins.native.sdk.consumer.membership import Grant
from lakemq.plugins.native.sdk.consumer.options import Callback as Callback
from lakemq.plugins.native.sdk.consumer.options import ConsumerOptions as ConsumerOptions
from lakemq.plugins.native.sdk.consumer.options import Partitions as Partitions
from lakemq.plugins.native.sdk.consumer.topic_pattern import TopicPattern
from lakemq.plugins.native.sdk.consumer.topic_watch import watch_for_topics
from lakemq.plugins.native.sdk.net.connection import Connection
from lakemq.plugins.native.sdk.net.sequencing import backoff_s
from lakemq.plugins.native.sdk.types import ConsumerRecord, TopicOffsets

if TYPE_CHECKING:
    import pyarrow as pa

_log: Final = logging.getLogger("lakemq.sdk")
_WAIT_S: Final = 0.5


class Consumer:
    """Made by `Client.subscribe`. Iterate it for records; `commit` when they are handled."""

    _watch: asyncio.Task[None] | None = None
    """Warns of topics that are not there."""
    _closed = False

    def __init__(
        self,
        connection: Connection,
        topics: Sequence[str],
        group: str,
        *,
        wanted: RecordFilter | None = None,
        start: str = "earliest",
        auto_commit: bool = False,
        auto_commit_interval_ms: int = 5000,
        on_corrupt: OnCorrupt = "skip",
        instance_id: str = "",
        session_timeout_ms: int = 10_000,
        rebalance_timeout_ms: int = 60_000,
        pattern: str | None = None,
        pattern_interval_ms: int = 5000,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        if start not in ("earliest", "latest"):
            raise InvalidRequest(f"start is {start!r}; it takes 'earliest' or 'latest'")
        if bool(topics) == (pattern is not None):
            raise InvalidRequest("subscribe takes either topics or a pattern")
        self.group = group
        self.counters = ConsumerCounters()
        self._connection, self._start = connection, start
        self._calls = GroupCalls(connection.routes)
        self._auto_commit = auto_commit
        self._commit_interval_ms = auto_commit_interval_ms
        self._callbacks = {"assigned": on_assigned, "revoked": on_revoked, "lost": on_lost}
        self._changed = asyncio.Event()
        self._stream = GroupStream(
            self._calls, group=group, topics=topics, instance_id=instance_id,
            session_timeout_ms=session_timeout_ms, rebalance_timeout_ms=rebalance_timeout_ms,
            on_change=self._changed.set,
        )  # fmt: skip
        self._pattern = (
            None
            if pattern is None
            else TopicPattern(connection, pattern, pattern_interval_ms, self._stream.subscribe)
        )
        self._membership = self._stream.membership
        self._wanted = wanted
        self._corrupt = CorruptPolicy(on_corrupt, self.counters)
        self._fetch = FetchLoop(connection.routes, connection.bootstrap, wanted, self._corrupt)
        self._positions: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._taken_at: dict[TopicPartition, int] = {}
        """Where we began to read, or what was committed since."""
        self._rewinds = 0
        self._unfinished = False
        """Whether some of what arrived is under way to the application."""
        self._given_up_ms = -1.0
        """When partitions were lost or given up last."""
        self._in_hand: ConsumerRecord | Span | None = None
        self._last = Span(TopicPartition("", -1), -1, -1)
        """The last record of the chunk in hand, and where to go on behind it."""
        self._commit_lock = asyncio.Lock()
        self._commit_sequence, self._next_commit_ms = 0, 0.0

    # -- life

    async def __aenter__(self) -> Self:
        self._next_commit_ms = now_ms() + self._commit_interval_ms
        self._connection.routes.start()
        if self._pattern is not None:
            await self._pattern.start()
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
        if error is not None and self._in_hand is not None:
            place, first, _ = self._span(self._in_hand)
            self._in_hand = None  # it was not handled, those before it were
            if place in self._positions:
                self._positions[place] = first
        await self.close()

    async def close(self) -> None:
        """Commit (with `auto_commit`), give up all partitions, leave the group."""
        if self._closed:
            return
        self._closed = True
        held = frozenset(self._membership.held)
        if held and self._stream.failed is None:
            if self._auto_commit:
                with suppress(LakeMQError):
                    # Commit before `revoked` is called and the group is left: from then on another
                    # member may have the partitions.
                    await self.commit()
            await self._call("revoked", held)
        self._fetch.stop()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._pattern is not None:
            await self._pattern.stop()
        # The coordinator hears of the departure last, behind the commit that the next owner starts
        # from.
        await self._stream.leave()

    @property
    def member_id(self) -> str:
        """New for every joining."""
        return self._membership.member_id

    @property
    def assignment(self) -> Partitions:
        """Partitions that this member reads now."""
        return frozenset(self._positions)

    # -- records

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        return self.until_idle(math.inf)

    async def until_idle(self, idle_s: float) -> AsyncIterator[ConsumerRecord]:
        """Records until none has come for `idle_s`; can be called again to go on."""
        membership = self._membership
        while (chunk := await self.chunk_within(idle_s)) is not None:
            for record in chunk.records:
                # `may_hand_out`, written out: this is done for every record.
                if (
                    membership.version != chunk.version or monotonic() * 1000 >= chunk.check_ms
                ) and not await self.between(chunk):
                    break
                self._in_hand = record
                yield record
            self.chunk_done()

    async def arrow(self, columns: Sequence[str] = COLUMNS) -> AsyncIterator[pa.RecordBatch]:
        """The same records as Arrow, a stored batch at a time. A batch counts as one record: all
        of it is handled when your loop comes back, or at the next `commit`."""
        while True:
            self._came_back()
            await self._settle()
            arrived = await self._arrived()
            if arrived is None:
                continue
            held = self._membership.held[arrived.place]
            chunk = Chunk(arrived.place, held, [], -1, 0.0, self._rewinds)
            self._unfinished = True
            for batch, end in with_ends(arrived):
                # Each yield may have taken long: a batch of a partition that was lost meanwhile is
                # not handed out.
                if not self.may_hand_out(chunk) and not await self.between(chunk):
                    break
                first = self._positions[arrived.place]
                found = self._arrow_of(arrived.place, batch, first, columns)
                # Before the yield: a commit inside the loop's body counts the batch in hand as
                # handled.
                self._in_hand = Span(arrived.place, first, end)
                if found is None:
                    self._came_back()
                    continue
                self.counters.records += found.num_rows
                if found.num_rows:
                    yield found
                self._came_back()
            self._unfinished = False

    def _arrow_of(
        self, place: TopicPartition, batch: RecordBatch, first: int, columns: Sequence[str]
    ) -> pa.RecordBatch | None:
        """None: it is corrupt, and left out."""
        try:
            found = to_arrow(
                batch, topic=place.topic, partition=place.partition, start=first, columns=columns
            )
            return found if self._wanted is None else only(found, self._wanted.rows(batch))
        except CorruptBatch as error:
            self._corrupt.note(*place, batch.header.base_offset, error)
            return None

    async def next_chunk(self) -> Chunk:
        """Records to hand out, one after the other, each after `may_hand_out` or `between`.

        Raises what makes going on impossible: NotAuthorized, CorruptLog; with
        `on_corrupt="raise"` CorruptBatch. A topic that is not there is waited for, and a warning
        is logged.
        """
        while (chunk := await self.chunk_within(math.inf)) is None:
            pass
        return chunk

    async def chunk_within(self, wait_s: float) -> Chunk | None:
        """As `next_chunk`; None when nothing came for about `wait_s`."""
        until = monotonic() + wait_s
        while True:
            self._came_back()
            await self._settle()
            arrived = await self._arrived(until - monotonic())
            if arrived is not None and (chunk := self._chunk(arrived)):
                self._unfinished = True
                return chunk
            if monotonic() >= until:
                return None

    def chunk_done(self) -> None:
        """All of the last chunk has been handed out, or may not be any more."""
        self._unfinished = False

    async def _arrived(self, wait_s: float = _WAIT_S) -> Arrived | None:
        """The next batches of a partition that is still ours; None: look what has changed."""
        # What was left of its chunk is neither handled nor queued any more, so it is fetched again.
        if self._unfinished:  # A loop over the records was left, this is another one.
            self._unfinished = False
            self._read_again(self._positions)
        arrived = await self._next_arrived(max(0.0, min(wait_s, _WAIT_S)))
        # Identity, not equality: a restart from the same offset makes another `Reading`, and what
        # was asked for before it would come twice.
        if arrived is None or self._fetch.places.get(arrived.place) is not arrived.reading:
            return None
        if arrived.error is not None:
            await self._failed(arrived.place, arrived.error)
            return None
        if arrived.place not in self._membership.held:
            return None
        self.counters.batches += len(arrived.batches)
        self.counters.bytes += sum(each.header.total_bytes for each in arrived.batches)
        return arrived

    def may_hand_out(self, chunk: Chunk) -> bool:
        """Whether nothing has changed since `chunk` was made. Cheap, and safe in any thread."""
        return self._membership.version == chunk.version and now_ms() < chunk.check_ms

    def handed_out(self, record: ConsumerRecord) -> None:
        """The application has `record` in hand."""
        self._in_hand = record

    async def between(self, chunk: Chunk) -> bool:
        """Do what is due between two records; whether the rest of `chunk` may be handed out."""
        while True:
            self._came_back()
            await self._settle()
            held = self._membership.held.get(chunk.place)
            if held is None or held.epoch != chunk.grant.epoch or chunk.rewinds != self._rewinds:
                return False
            # Read after `_settle`, whose awaits may have let the membership change.
            chunk.version, chunk.check_ms = self._membership.version, self._check_ms()
            if self._membership.may_hand_out(chunk.place, now_ms()):
                return True
            await self._wait_for_change()

    def _check_ms(self) -> float:
        lease = self._membership.lease_until_ms
        return min(lease, self._next_commit_ms) if self._auto_commit else lease

    def _came_back(self) -> None:
        """The application is done with what it had."""
        in_hand, self._in_hand = self._in_hand, None
        if in_hand is not None:
            place, _, end = self._span(in_hand)
            if place in self._positions:
                self._positions[place] = end

    def _span(self, in_hand: ConsumerRecord | Span) -> Span:
        if isinstance(in_hand, Span):
            return in_hand
        place, offset = TopicPartition(in_hand.topic, in_hand.partition), in_hand.offset
        # Behind the last record of a chunk the position jumps over what was filtered out, compacted
        # away or corrupt: else those would be fetched again.
        if (place, offset) == self._last[:2]:
            return self._last
        return Span(place, offset, offset + 1)

    async def _next_arrived(self, wait_s: float) -> Arrived | None:
        """None: something has changed meanwhile."""
        if not self._fetch.arrived.empty():
            return self._fetch.arrived.get_nowait()
        # A cancelled `Queue.get` loses nothing: it takes its item only when it returns.
        arrival = asyncio.ensure_future(self._fetch.arrived.get())
        change = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait(
                (arrival, change), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED
            )
            return arrival.result() if arrival.done() else None
        except asyncio.CancelledError:  # what has arrived meanwhile is fetched again
            self._unfinished |= arrival.done()
            raise
        finally:
            arrival.cancel()
            change.cancel()

    async def _wait_for_change(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_WAIT_S):
                await self._changed.wait()

    def _chunk(self, arrived: Arrived) -> Chunk | None:
        place = arrived.place
        first = self._positions[place]
        records: list[ConsumerRecord] = []
        for batch in arrived.batches:
            try:
                records += decoded(place, batch, first, self._wanted)
            except CorruptBatch as error:
                self._corrupt.note(*place, batch.header.base_offset, error)
        end = max(first, arrived.next_offset)
        # Nothing to hand out, yet the offsets were looked at: a commit may pass them, or the lag
        # would never shrink.
        if not records:
            self._positions[place] = end
            return None
        self.counters.records += len(records)
        self._last = Span(place, records[-1].offset, end)
        return Chunk(place, self._membership.held[place], records, -1, 0.0, self._rewinds)

    async def _failed(self, place: TopicPartition, error: LakeMQError) -> None:
        """A partition can't be read on from where we are."""
        if place not in self._positions:
            return
        if isinstance(error, UnknownTopic):  # deleted; the coordinator will say so too
            return
        if not isinstance(error, OffsetOutOfRange):
            raise error
        described = await self._connection.describe_topic(place.topic)
        if isinstance(error, LogTruncated):
            # What came in place of the records that were taken back is new (KIP-320).
            _log.warning("%s/%d: %s", *place, error)
            first = error.offset
        else:
            # Retention has overtaken the position: go on where `start` says, as with Kafka's
            # auto.offset.reset.
            first = self._first(described, place.partition)
        reading = Reading(described.topic_id, first)
        self._positions[place] = reading.position
        self._fetch.restart({**self._fetch.places, place: reading})

    def _first(self, described: TopicOffsets, partition: int) -> int:
        there = described.partitions[partition]
        return there.log_start_offset if self._start == "earliest" else there.high_watermark

    # -- rebalances

    async def _settle(self) -> None:
        """Do what the coordinator has asked for, and commit if it is time."""
        if self._stream.failed is not None:
            raise self._stream.failed
        if self._fetch.failed is not None:
            raise self._fetch.failed
        # Cleared before the changes are read: one that comes in between sets it again, and the next
        # wait returns at once.
        self._changed.clear()
        # Each step awaits, and meanwhile the coordinator may change its mind: read again after
        # every one. Lost ones go first, since nothing may be committed for them.
        while changes := self._membership.changes():
            self.counters.rebalances += 1
            self.counters.partitions_lost += len(changes.lost)
            if changes.lost:
                self._drop(changes.lost)
                self._membership.dropped()
                await self._call("lost", changes.lost)
            elif changes.revoked:
                await self._give_up(changes.revoked)
            else:
                await self._take(changes.assigned)
        if self._auto_commit and now_ms() >= self._next_commit_ms:
            self._next_commit_ms = now_ms() + self._commit_interval_ms
            with suppress(MemberFenced, UnknownMember):  # the next heartbeat tells
                await self.commit()

    async def _give_up(self, revoked: Partitions) -> None:
        if self._auto_commit:
            with suppress(LakeMQError):  # the next owner reads from the last commit
                await self.commit()
        await self._call("revoked", revoked)
        self._drop(revoked)
        self._membership.released(revoked)
        # Others wait for these partitions (KIP-848): the coordinator is told at once that they are
        # free.
        self._stream.heartbeat_now()

    def _drop(self, places: Partitions) -> None:
        self._given_up_ms = now_ms()
        for place in places:
            self._positions.pop(place, None)
            self._committed.pop(place, None)
            self._taken_at.pop(place, None)
        kept = {at: each for at, each in self._fetch.places.items() if at not in places}
        self._fetch.restart(kept)

    async def _take(self, assigned: Mapping[TopicPartition, Grant]) -> None:
        topics = {
            name: await self._connection.describe_topic(name)
            for name in sorted({at.topic for at in assigned})
        }
        readings = dict(self._fetch.places)
        for place, grant in assigned.items():
            described = topics[place.topic]
            first = grant.committed
            if first < 0:
                first = self._first(described, place.partition)
            self._positions[place] = self._taken_at[place] = first
            readings[place] = Reading(described.topic_id, first)
        # `taken` keeps only grants that still hold: `describe_topic` awaited.
        self._membership.taken(assigned)
        for place in assigned.keys() - self._membership.held.keys():
            del self._positions[place], readings[place]  # taken back while we asked
            del self._taken_at[place]
        self._fetch.restart(readings)
        taken = frozenset(assigned.keys() & self._positions.keys())
        if taken:
            await self._call("assigned", taken)

    async def _call(self, name: str, places: Partitions) -> None:
        callback = self._callbacks[name]
        if callback is not None:
            result = callback(places)
            if inspect.isawaitable(result):
                await result

    # -- offsets

    def positions(self) -> dict[TopicPartition, int]:
        """Partition -> offset of the next record, the record in hand counted as handled."""
        positions = dict(self._positions)
        if self._in_hand is not None:
            place, _, end = self._span(self._in_hand)
            if place in positions:
                positions[place] = end
        return positions

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Keep where this member stands: every record handed out so far counts as handled.

        Returns when it is on the broker's disk. `offsets`: other ones (of the next record to
        read). Raises MemberFenced or UnknownMember when a partition is another member's by now.
        """
        # Checked here, since the request carries the epoch and the id of a rejoin, not those that
        # the positions belong to.
        if self._membership.changes().lost:
            raise MemberFenced("the session has ended; others may have the partitions by now")
        # One at a time: the coordinator refuses a commit that a later one has overtaken
        # (MemberFenced).
        async with self._commit_lock:
            wanted = dict(offsets) if offsets is not None else self.positions()
            fresh = {at: each for at, each in wanted.items() if self._committed.get(at) != each}
            if fresh:
                await self._send_commit(fresh)
                self.counters.commits += 1
                self.was_committed(fresh)

    def commit_request(self, offsets: Mapping[TopicPartition, int]) -> pb.CommitOffsetsRequest:
        """A commit of this member; every one supersedes those made before."""
        self._commit_sequence += 1
        return pb.CommitOffsetsRequest(
            group=self.group,
            member_id=self._membership.member_id,
            member_epoch=self._membership.epoch,
            sequence=self._commit_sequence,
            offsets=[
                pb.OffsetCommit(topic=at.topic, partition=at.partition, offset=offset)
                for at, offset in offsets.items()
            ],
        )

    def gave_up_since(self, moment_ms: float) -> bool:
        """Whether partitions were lost or given up since then (`now_ms` of the group stream), or
        are about to be: what was made of their records is for another member to make."""
        changes = self._membership.changes()
        return self._given_up_ms >= moment_ms or bool(changes.lost)

    def rewind(self) -> None:
        """Go back to where was committed last in every partition, or where this member began:
        everything since is handed out again."""
        # Else the next `_came_back` would move the position behind the record in hand.
        self._in_hand = None
        self._positions.update(self._taken_at)
        self._read_again(self._positions)

    def _read_again(self, positions: Mapping[TopicPartition, int]) -> None:
        """Go on from these; what has arrived and was not handed out is fetched again."""
        self._rewinds += 1
        self._membership.version += 1  # so that records on their way are looked at again
        self._fetch.restart(
            {
                place: Reading(reading.topic_id, positions[place])
                for place, reading in self._fetch.places.items()
            }
        )

    def was_committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """A transaction has committed these."""
        for place, offset in offsets.items():
            if place in self._positions:
                self._committed[place] = self._taken_at[place] = offset

    async def _send_commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        member_id = self._membership.member_id
        deadline_ms = now_ms() + self._connection.timeout_s * 1000
        for pause_s in backoff_s():
            # A new sequence number for every try: one whose answer was lost may arrive late, and is
            # then refused as older.
            request = self.commit_request(offsets)
            try:
                await self._calls.commit(request, self._connection.timeout_s)
                return
            except LakeMQError as error:
                failure = error
            if not failure.retriable or now_ms() + pause_s * 1000 > deadline_ms:
                raise failure
            # Between two tries the member rejoined under another id: the commit must not be made in
            # its name.
            if self._membership.member_id != member_id:
                raise UnknownMember(f"the session ended before the commit was taken: {failure}")
            await asyncio.sleep(pause_s)
