"""One partition's log as the broker and replication see it. Lives on the event loop.

`appends.py` takes batches and flushes them; here is what the log is, which role it has, and how it
is copied, cut and closed. Nothing here blocks the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from lakemq.broker_core.api.errors import (
    LakeMQError,
    OffsetOutOfRange,
    StorageFenced,
    Unavailable,
)
from lakemq.broker_core.api.records.outcomes import settle
from lakemq.broker_core.api.records.tiered import SEGMENTS_MAX, TieredSegments
from lakemq.broker_core.api.replica_ports import EpochEnd, FetchCommitted
from lakemq.broker_core.api.types import (
    Acks,
    AppendResult,
    Offset,
    PartitionStatus,
    TopicConfig,
)
from lakemq.plugins.journal.log.appends import CLOSED, CUTTING, Appends, Role
from lakemq.plugins.journal.log.context import LogContext
from lakemq.plugins.journal.log.folder import describe_damage
from lakemq.plugins.journal.log.recovery import Recovered
from lakemq.plugins.journal.log.repair import repair_segment
from lakemq.plugins.journal.log.replica_batches import checked_batches
from lakemq.plugins.journal.log.truncation import restart_at, truncate
from lakemq.plugins.journal.log.waiting import Unflushed, Waiting
from lakemq.plugins.journal.segment.manifest import SegmentInfo
from lakemq.plugins.journal.segment.tail import Tail

SOON_MS: Final = 60_000
"""A segment that is old so soon may end before what is appended now is written."""


class JournalLog(Appends):
    """Implements the ports `PartitionLog`, `ReplicaLog` and `Repairable`."""

    def __init__(
        self,
        context: LogContext,
        recovered: Recovered,
        topic: str,
        partition: int,
        config: TopicConfig,
        tail_max_bytes: int,
    ) -> None:
        super().__init__(context, recovered, topic, partition, config, tail_max_bytes)
        # Bound once, as each call counts. With more than 30 attributes CPython's objects get slow,
        # so what is called rarely is a method.
        self.fetch = self._reader.fetch
        self.tap = self._reader.tap

    # ------------------------------------------------------------ what it is

    @property
    def log_start_offset(self) -> Offset:
        """First offset that can be read."""
        return Offset(self.folder.manifest.log_start_offset)

    @property
    def high_watermark(self) -> Offset:
        """Offset after the last readable record; readers get nothing at or above it."""
        return Offset(self._reader.high_watermark)

    @property
    def durable_end(self) -> Offset:
        """Offset after the last record that is fsynced here."""
        return Offset(self._reader.durable_end)

    @property
    def log_end_offset(self) -> Offset:
        """Offset that the next record gets."""
        return Offset(self._log_end_offset)

    @property
    def config(self) -> TopicConfig:
        """The topic config that appends and flushes obey."""
        return self._writer.config

    @property
    def tail(self) -> Tail:
        """The newest batches in memory, which `fetch` answers from."""
        return self._reader.tail

    def configure(self, config: TopicConfig) -> None:
        """Obey a changed topic config from the next append and flush on."""
        self._writer.config = config

    def status(self) -> PartitionStatus:
        """Offsets, size and state, for operators."""
        state, detail = self._state()
        return PartitionStatus(
            self.partition, state, self.log_start_offset, self._reader.high_watermark,
            self._log_end_offset, self.folder.size_bytes(), len(self.folder.manifest.segments),
            detail,
        )  # fmt: skip

    def _state(self) -> tuple[str, str]:
        if self._unavailable == CLOSED:
            return "offline", "the log is closed"
        if self._fence:
            return "fenced", self._fence
        if self._full or self._context.space_short:
            return "full", self._full or "free space is below plugins.journal.free_min_bytes"
        return "online", "; ".join([*self._damages(), *self.notes])

    def _damages(self) -> list[str]:
        segments = {s.log_name: s for s in self.folder.manifest.segments}
        return [
            describe_damage(damage, segments[name], self.folder.covered_end(segments[name]))
            for name, damage in list(self.folder.damages.items())
            if name in segments
        ]

    # ------------------------------------------------------------ roles

    def lead(self, epoch: int, *, alone: bool, acks_min: Acks = Acks.MEMORY) -> None:
        """See the port."""
        self._take_role(Role.LEADER, epoch)
        self._writer.leads_epoch = epoch
        self._set_alone(alone)
        self._acks_min = acks_min
        if alone:
            self._shortage = ""
            self._commit_to(self._reader.durable_end)

    def follow(self, epoch: int) -> None:
        """See the port."""
        led = self._role is not Role.FOLLOWER
        self._take_role(Role.FOLLOWER, epoch)
        self._writer.leads_epoch = -1
        self._set_alone(False)
        if led:
            self._fail_waiting()

    def _take_role(self, role: Role, epoch: int) -> None:
        last = max(self._epochs.last, self._leader_epoch)
        if epoch < last:
            raise ValueError(
                f"epoch {epoch} of partition {self.partition} of {self.topic} is over: "
                f"the log has epoch {last}"
            )
        self._role, self._leader_epoch = role, epoch

    def _set_alone(self, alone: bool) -> None:
        if alone != self._alone:
            self._reader.tail.cut(self._reader.durable_end)
        self._alone = alone

    def _fail_waiting(self) -> None:
        """Appends that wait get NotLeader. Their batches stay in the log: whether they remain is
        for the new leader to decide."""
        waiting = self._uncommitted.take_all()
        waiting += [each.done for each in (*self._flushing, *self._pending) if each.done]
        self._flushing = [entry._replace(done=None) for entry in self._flushing]
        self._pending = [entry._replace(done=None) for entry in self._pending]
        for done in waiting:
            self._tell(done, self._not_leader())

    def refuse_replicated(self, reason: str) -> None:
        """See the port."""
        self._shortage = reason

    def commit_to(self, offset: Offset) -> None:
        """See the port."""
        self._commit_to(offset)

    def answer_while(self, holds: Callable[[], bool] | None) -> None:
        """See the port."""
        self._uncommitted.may_answer = holds

    def when_durable(self, callback: Callable[[], None] | None) -> None:
        """See the port."""
        self._when_durable = callback

    def when_appended(self, callback: Callable[[], None] | None) -> None:
        """See the port."""
        before, epoch = self._unflushed, self._leader_epoch
        unflushed = self._unflushed = Unflushed(epoch, self._log_end_offset, callback)
        if before is not None and before.epoch == epoch:
            unflushed.sent_end = before.sent_end

    @property
    def leads(self) -> bool:
        """See the port."""
        return self._role is Role.LEADER

    @property
    def sendable_end(self) -> Offset:
        """See the port."""
        unflushed, folder = self._unflushed, self.folder
        if (
            unflushed is None
            or unflushed.wake is None
            or self._role is not Role.LEADER
            or self._reader.durable_end < unflushed.begin
            # Bytes are to be those that will lie here, in segments that are alike on all replicas.
            or self._writer.compresses
            or folder.active_index.covered_bytes + self._unflushed_bytes
            > self.config.segment_max_bytes
            or self._writer.is_old(self._context.now_ms() + SOON_MS)
        ):
            return self.durable_end
        return self.log_end_offset

    # ------------------------------------------------------------ replica

    def append_replica(self, batches: bytes) -> asyncio.Future[Offset]:
        """See the port."""
        future: asyncio.Future[Offset] = self._context.loop.create_future()
        try:
            if self._role is not Role.FOLLOWER:
                raise Unavailable(f"partition {self.partition} of {self.topic} does not follow")
            self._check_room(len(batches))
            entries = checked_batches(
                batches, log_end=self._log_end_offset, last_epoch=self._epochs.last,
                epoch_max=self._leader_epoch,
                empty=self.log_start_offset == self._log_end_offset,
            )  # fmt: skip
        except LakeMQError as error:
            self._context.counters.refused_appends += 1
            future.set_exception(error)
            return future
        if not entries:
            future.set_result(self.durable_end)
            return future
        now_ms = self._context.now_ms()
        for stamped in entries:
            self._place(stamped)
            if stamped.header.producer_id >= 0:
                self._producers.note(stamped.header, now_ms)
        self._pending += [Waiting(stamped, None) for stamped in entries[:-1]]
        self._wait_for_flush(Waiting(entries[-1], partial(self._copied, future)))
        return future

    def _copied(self, future: asyncio.Future[Offset], outcome: AppendResult | LakeMQError) -> None:
        settle(future, outcome if isinstance(outcome, LakeMQError) else self.durable_end)

    def last_epoch(self, offset: Offset | None = None) -> int:
        """See the port."""
        return self._epochs.last if offset is None else self._epochs.epoch_at(offset)

    def epoch_end(self, epoch: int) -> EpochEnd:
        """See the port."""
        found, end = self._epochs.end_of(epoch, self.log_start_offset, self._log_end_offset)
        return EpochEnd(found, Offset(end))

    def roll_at(self, offset: Offset) -> None:
        """See the port."""
        self._writer.roll_at(offset)

    def segment_start(self, offset: Offset) -> Offset:
        """See the port."""
        return Offset(self.folder.segment_at(offset).base_offset)

    # ------------------------------------------------------------ repair

    def damaged(self) -> Sequence[Offset]:
        """See the port."""
        if not self.folder.damages or not self.is_open():
            return ()
        return [Offset(each.base_offset) for each in self._damaged_segments()]

    def _damaged_segments(self) -> list[SegmentInfo]:
        """Without those of which the object store has a copy too: their bytes must stay those of
        it."""
        return [
            segment
            for segment in self.folder.manifest.segments
            if segment.log_name in self.folder.damages
            and segment.local
            and segment.remote is None
            and 0 <= segment.next_offset <= self._reader.high_watermark
        ]

    async def repair(self, base: Offset, fetch: FetchCommitted) -> bool:
        """See the port."""
        for segment in self._damaged_segments():
            if segment.base_offset == base:
                break
        else:
            return False
        gaps = segment.may_have_gaps or "compact" in self.config.cleanup
        try:
            return await repair_segment(self._context, self.folder, segment, fetch, gaps=gaps)
        except StorageFenced as error:
            self.fence(str(error))
            raise

    def when_damaged(self, repair: Callable[[], Awaitable[bool]] | None) -> None:
        """See the port."""
        self._reader.repair = repair
        self._writer.seals_damaged = repair is not None

    # ------------------------------------------------------------ cut

    async def truncate(self, offset: Offset) -> None:
        """See the port."""
        if self._role is not Role.FOLLOWER:
            raise ValueError(f"partition {self.partition} of {self.topic} does not follow")
        await self._cut(partial(self._truncate, offset))

    async def restart_at(self, offset: Offset) -> None:
        """See the port."""
        if self._role is not Role.FOLLOWER:
            raise ValueError(f"partition {self.partition} of {self.topic} does not follow")
        await self._cut(
            partial(restart_at, self._writer, offset, self._context.now_ms()), restart=True
        )

    def _truncate(self, offset: int) -> None:
        if offset < self._reader.high_watermark:
            raise ValueError(
                f"offset {offset} of partition {self.partition} of {self.topic} is committed: "
                f"the high watermark is {self._reader.high_watermark}"
            )
        active, first = self.folder.active_index, self.folder.manifest.segments[0]
        is_empty = not active.covered_bytes and first.base_offset < active.base_offset == offset
        if offset < self._reader.durable_end or is_empty:
            truncate(self._writer, offset, self._reader.high_watermark)

    async def _cut(self, work: Callable[[], None], *, restart: bool = False) -> None:
        """Run `work` on a thread while no flush runs and nothing is appended."""
        if self._unavailable:
            raise Unavailable(f"partition {self.partition} of {self.topic} is {self._unavailable}")
        self._unavailable = CUTTING
        try:
            # `end_flush` may set it and clear it again in one turn of the loop.
            while not self._idle.is_set():
                await self._idle.wait()
            if not self.is_open():
                raise StorageFenced(self._fence or "the log is closed")
        except BaseException:
            self._cut_ended()
            raise
        self._idle.clear()
        future = self._context.loop.run_in_executor(self._context.readers, work)
        future.add_done_callback(partial(self._after_cut, restart))
        # A caller that is cancelled ends neither the thread's work nor what follows from it.
        await asyncio.shield(future)

    def _after_cut(self, restart: bool, future: asyncio.Future[None]) -> None:
        """Take over where the log ends now, also if the cut failed half way."""
        error = None if future.cancelled() else future.exception()
        if isinstance(error, StorageFenced):
            self.fence(str(error))
        end = self.folder.active_index.next_offset
        if restart and error is None:
            self._reader.restart(end)
        elif end != self._log_end_offset:
            self._reader.cut(end)
        self._log_end_offset = end
        self._producers = self._writer.producers.copy()
        self._epochs = self._writer.epochs.copy()
        self._cut_ended()
        self._idle.set()
        if self._pending or self._housekeeping_wanted:
            self._want_flush()

    def _cut_ended(self) -> None:
        if self._unavailable == CUTTING:
            self._unavailable = ""

    def read_replica(self, offset: Offset, bytes_max: int) -> asyncio.Future[bytes]:
        """See the port."""
        end = self.sendable_end
        if end > self._reader.durable_end and self._unflushed is not None:
            self._unflushed.sent_end = end
            self._keep_unflushed()
        return self._reader.read_replica(offset, bytes_max, end)

    def _keep_unflushed(self) -> None:
        """Have the tail hold all that was appended."""
        tail = self.tail
        kept_end = max(tail.end, self._reader.durable_end)
        if kept_end == self._log_end_offset:
            return
        for entries in (self._flushing, self._pending):
            for entry in entries:
                header, data, _ = entry.stamped
                if data and header.base_offset >= kept_end:
                    tail.add(header, data)
        tail.trim()

    async def offset_for_timestamp(self, timestamp_ms: int) -> Offset:
        """See the port."""
        return await self._reader.offset_for_timestamp(timestamp_ms)

    async def tiered_segments(
        self, start: int, end: int, *, count_max: int = SEGMENTS_MAX
    ) -> TieredSegments:
        """See the port."""
        return await self._reader.tiered_segments(start, end, count_max=count_max)

    async def delete_records(self, before: Offset) -> Offset:
        """See the port."""
        end = self._reader.high_watermark
        if not 0 <= before <= end:
            raise OffsetOutOfRange(
                f"offset {before} is not within 0..{end} of {self.topic} partition {self.partition}"
            )
        if not self.is_open():
            raise Unavailable(f"partition {self.partition} of {self.topic} takes no changes")
        try:
            await self._context.loop.run_in_executor(
                self._context.readers, self.folder.start_at, before, self.checkpoint_offset()
            )
        except StorageFenced as error:
            # Whether the new start is durable is unknown; see `LogFolder.commit`.
            self.fence(str(error))
            raise
        except OSError as error:
            raise Unavailable(f"the log's start could not be moved: {error}") from None
        return self.log_start_offset

    # ------------------------------------------------------------ life

    @property
    def is_fenced(self) -> bool:
        """Whether a failed fsync ended appends until a restart."""
        return bool(self._fence)

    def is_open(self) -> bool:
        """Whether it may be written to."""
        return self._unavailable != CLOSED and not self._fence

    def fence(self, reason: str) -> None:
        """Take no more appends: the disk can't be trusted with this log."""
        self._fence = self._fence or reason

    def tick(self, now_ms: int, producers_seen_before_ms: int) -> None:
        """What time brings: an old segment is sealed, silent producers are forgotten."""
        if not self.is_open():
            return
        self.tail.trim()
        self._epochs.forget_before(self.folder.manifest.log_start_offset)
        self._producers.expire(producers_seen_before_ms, self._context.producers_max)
        self._writer.producers_seen_before_ms = producers_seen_before_ms
        if self._writer.is_old(now_ms) or self._writer.wants_checkpoint():
            self._housekeeping_wanted = True
            self._want_flush()

    def checkpoint_offset(self) -> int:
        """Segments below it may go: a start needs nothing of them."""
        return self._writer.checkpoint_offset

    def retention_end(self) -> int:
        """Segments below it may be deleted or compacted: a start needs nothing of them, and no
        other leader may have them cut."""
        return min(self._writer.checkpoint_offset, self._reader.high_watermark)

    def copy_end(self) -> int:
        """Segments below it may be copied to an object store."""
        return self._reader.high_watermark

    async def close(self) -> None:
        """Take no more appends, flush what is there, wake all that wait. Files stay as they are."""
        self._unavailable = CLOSED
        self._reader.close()
        # `end_flush` may set `_idle` and clear it again in one turn of the loop.
        while self._pending or not self._idle.is_set():
            await self._idle.wait()
        # Whether these remain is for the next leader to decide.
        self._fail_waiting()

    def discard_appends(self, error: LakeMQError) -> None:
        """Fail what has not been handed to a flush thread: the topic is being deleted."""
        self._unavailable = CLOSED
        for done in self._uncommitted.take_all():
            self._tell(done, type(error)(str(error)))
        if self._pending:
            self._fail([], error)

    def close_files(self, *, checkpoint: bool) -> None:
        """Blocking; after `close`. `checkpoint`: so that the next start need not scan."""
        # Nothing more is written to the folder of a fenced log.
        if checkpoint and not self._fence:
            self._writer.checkpoint()
        self._writer.close()
