"""One partition's log as the broker sees it. Lives on the event loop; never blocks it.

An append is checked, given its offsets and stamped at once, in the order of calls; flush threads
write; when a flush has ended, its batches become readable, taps see them and futures are answered.
A flush that fails fails everything appended behind it as well, for its offsets depend on it; what
was answered from memory before (acks memory) is lost then.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import NamedTuple

from lakemq.broker_core.api.errors import (
    CorruptBatch,
    LakeMQError,
    OffsetOutOfRange,
    StorageFenced,
    StorageFull,
    Unavailable,
)
from lakemq.broker_core.api.ports import AppendDone
from lakemq.broker_core.api.records.batch import BatchHeader, encode_with_header, stamp
from lakemq.broker_core.api.types import (
    Acks,
    AppendResult,
    Columns,
    Offset,
    PartitionStatus,
    TopicConfig,
)
from lakemq.plugins.journal.log.context import LogContext
from lakemq.plugins.journal.log.folder import describe_damage
from lakemq.plugins.journal.log.reader import LogReader
from lakemq.plugins.journal.log.recovery import Recovered
from lakemq.plugins.journal.log.writer import FlushOutcome, LogWriter, Stamped
from lakemq.plugins.journal.segment.producers import Appended
from lakemq.plugins.journal.segment.tail import Tail

_log = logging.getLogger(__name__)


class _Waiting(NamedTuple):
    """An append that waits for its flush. No data: a duplicate waiting for its original."""

    stamped: Stamped
    done: AppendDone | None
    """None: answered already (acks memory)."""


class JournalLog:
    """Implements the `PartitionLog` port."""

    def __init__(
        self,
        context: LogContext,
        recovered: Recovered,
        topic: str,
        partition: int,
        config: TopicConfig,
        tail_max_bytes: int,
    ) -> None:
        self.folder = recovered.folder
        self.topic, self.partition = topic, partition
        self.notes = recovered.notes
        self._context = context
        self._config = config
        # Two tables: this one runs ahead, with every batch that has offsets; the writer's knows
        # durable batches only, and replaces this one when a flush fails.
        self._producers = recovered.producers
        self._writer = LogWriter(
            self.folder, config, recovered.producers.copy(), context.checkpoint_interval_bytes,
            context.producers_max, recovered.checkpoint_offset,
        )  # fmt: skip
        self._reader = LogReader(
            context, self.folder, self.topic, self.partition, Tail(tail_max_bytes)
        )
        self.fetch = self._reader.fetch
        self.offset_for_timestamp = self._reader.offset_for_timestamp
        self.tap = self._reader.tap
        self.tiered_segments = self._reader.tiered_segments
        end = self._reader.high_watermark
        self._log_end_offset = end
        self._leader_epoch = 0
        self._pending: list[_Waiting] = []
        self._flushing: list[_Waiting] = []
        self._outcome = FlushOutcome(0, (), None)
        self._housekeeping_wanted = False
        self._unflushed_bytes = 0
        self._fence = recovered.fence
        self._full = ""
        self._closing = False
        self._idle: asyncio.Event = asyncio.Event()
        self._idle.set()

    # ------------------------------------------------------------ what it is

    @property
    def log_start_offset(self) -> Offset:
        """First offset that can be read."""
        return Offset(self.folder.manifest.log_start_offset)

    @property
    def high_watermark(self) -> Offset:
        """Offset after the last durable record; readers get nothing at or above it."""
        return Offset(self._reader.high_watermark)

    @property
    def log_end_offset(self) -> Offset:
        """Offset that the next record gets."""
        return Offset(self._log_end_offset)

    @property
    def config(self) -> TopicConfig:
        """The topic config that appends and flushes obey."""
        return self._config

    @property
    def tail(self) -> Tail:
        """The newest batches in memory, which `fetch` answers from."""
        return self._reader.tail

    def configure(self, config: TopicConfig) -> None:
        """Obey a changed topic config from the next append and flush on."""
        self._config = self._writer.config = config

    def status(self) -> PartitionStatus:
        """Offsets, size and state, for operators."""
        state, detail = self._state()
        return PartitionStatus(
            self.partition, state, self.log_start_offset, self._reader.high_watermark,
            self._log_end_offset, self.folder.size_bytes(), len(self.folder.manifest.segments),
            detail,
        )  # fmt: skip

    def _state(self) -> tuple[str, str]:
        if self._closing:
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

    # ------------------------------------------------------------ append

    def append(self, batch: bytes, header: BatchHeader, acks: Acks) -> asyncio.Future[AppendResult]:
        """Take one batch; the future is answered when `acks` is reached. Never raises.

        `REPLICATED` is taken as `LEADER`, and the answer says so: one log alone replicates nothing.
        """
        future: asyncio.Future[AppendResult] = self._context.loop.create_future()
        done = partial(_answer, future)
        try:
            duplicate = self._admit(len(batch), header)
        except LakeMQError as error:
            self._context.counters.refused_appends += 1
            done(error)
            return future
        if duplicate is not None:
            self._answer_duplicate(duplicate, header, acks, done)
            return future
        # Offsets are given before anything is written, so that one flush takes many appends; a
        # flush that fails takes them back (`_fail`).
        stamped = Stamped(*stamp(batch, header, self._log_end_offset, self._leader_epoch))
        if header.producer_id >= 0:
            self._producers.note(stamped.header, self._context.now_ms())
        self._take(stamped, acks, done)
        return future

    def append_records(self, columns: Columns, now_ms: int, acks: Acks, done: AppendDone) -> None:
        """See the port. The batch gets its offsets while it is made: it is neither read nor stamped
        again."""
        header, data = encode_with_header(
            columns, now_ms=now_ms, base_offset=self._log_end_offset,
            leader_epoch=self._leader_epoch,
        )  # fmt: skip
        try:
            self._admit(len(data), header)
        except LakeMQError as error:
            self._context.counters.refused_appends += 1
            self._tell(done, error)
            return
        # Only taps want the columns: kept for no one, they would hold the records in memory twice
        # until the flush has ended.
        if not self._reader.tapped:
            self._take(Stamped(header, data), acks, done)
            return
        if columns.timestamps_ms is None:
            # Taps see the timestamps that the batch was encoded with.
            columns = columns._replace(timestamps_ms=[now_ms] * header.record_count)
        self._take(Stamped(header, data, columns), acks, done)

    def _take(self, stamped: Stamped, acks: Acks, done: AppendDone) -> None:
        """Give an admitted batch its place at the end of the log, and have it flushed."""
        self._log_end_offset = stamped.header.last_offset + 1
        size = len(stamped.data)
        self._unflushed_bytes += size
        self._context.unflushed_bytes += size
        self._context.room_bytes -= size
        if acks is not Acks.MEMORY:
            self._wait_for_flush(_Waiting(stamped, done))
            return
        # Queued before it is answered: the callback may append, and the order of `_pending` must be
        # that of offsets.
        self._wait_for_flush(_Waiting(stamped, None))
        self._tell(done, _result(stamped, Acks.MEMORY))

    def _admit(self, size: int, header: BatchHeader) -> Appended | None:
        """Whether a batch may be appended: raises if not; what it repeats, if it does."""
        context = self._context
        if self._fence:
            raise StorageFenced(self._fence)
        if self._closing:
            raise Unavailable(f"partition {self.partition} of {self.topic} is closed")
        if size != header.total_bytes:
            raise CorruptBatch(f"batch of {size} bytes, its header says {header.total_bytes}")
        if context.room_bytes < size:
            raise StorageFull("free space is below plugins.journal.free_min_bytes")
        # One batch alone is always taken: else one above the limit would never be.
        if (
            self._unflushed_bytes and self._unflushed_bytes + size > context.unflushed_max_bytes
        ) or (
            context.unflushed_bytes
            and context.unflushed_bytes + size > context.unflushed_total_max_bytes
        ):
            raise Unavailable(f"{self._unflushed_bytes} bytes wait for the disk; try again")
        return self._producers.check(header) if header.producer_id >= 0 else None

    def _answer_duplicate(
        self,
        original: Appended,
        header: BatchHeader,
        acks: Acks,
        done: AppendDone,
    ) -> None:
        """With the offsets of then, and not before the original is durable, if that is asked."""
        self._context.counters.duplicates += 1
        durable = original.last_offset < self._reader.high_watermark
        if durable or acks is Acks.MEMORY:
            reached = Acks.LEADER if durable else Acks.MEMORY
            done(
                AppendResult(
                    Offset(original.base_offset), Offset(original.last_offset), reached, True
                )
            )
            return
        # Without data, and behind the original in the queue: its flush ends after that of the
        # original, and whatever fails the original fails it.
        place = header._replace(
            base_offset=original.base_offset,
            last_offset_delta=original.last_offset - original.base_offset,
        )
        self._wait_for_flush(_Waiting(Stamped(place, b""), done))

    def _wait_for_flush(self, waiting: _Waiting) -> None:
        self._pending.append(waiting)
        self._want_flush()

    def _want_flush(self) -> None:
        # One flush at a time: `end_flush` submits the next one itself.
        if self._idle.is_set():
            self._idle.clear()
            self._context.flusher.submit(self)

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

    # ------------------------------------------------------------ flush

    def begin_flush(self) -> None:
        """On the event loop: take over what has been appended so far."""
        self._flushing, self._pending = self._pending, []

    def write_flush(self) -> None:
        """With `sync_flush`, on one flush thread: no other thread touches the writer."""
        now_ms = self._context.now_ms()
        self._outcome = FlushOutcome(0, (), None)
        if self._housekeeping_wanted:
            self._housekeeping_wanted = False
            try:
                self._writer.run_housekeeping(now_ms)
            except LakeMQError as error:
                # Nothing is written then: `end_flush` fails all that waits.
                self._outcome = FlushOutcome(0, (), error)
                return
        self._writer.write([entry.stamped for entry in self._flushing], now_ms)

    def sync_flush(self) -> None:
        """On the thread of `write_flush`: make its writes durable, unless housekeeping failed."""
        if self._outcome.error is None:
            self._outcome = self._writer.sync()

    def end_flush(self) -> None:
        """Back on the loop: publish what became durable, answer, go on with the next."""
        waiting, self._flushing = self._flushing, []
        outcome, self._outcome = self._outcome, FlushOutcome(0, (), None)
        self._context.counters.flushes += 1
        # As they were written, perhaps recompressed; an entry without data is a duplicate.
        fresh = [batch for batch in outcome.batches[: outcome.durable] if batch.data]
        if fresh:
            # Before the answers: a client that has its answer may fetch the record at once.
            self._reader.publish(fresh)
        self._forget_unflushed(waiting)
        for entry in waiting[: outcome.durable]:
            if entry.done is not None:
                self._tell(entry.done, _result(entry.stamped, Acks.LEADER))
        if outcome.error is not None:
            self._fail(waiting[outcome.durable :], outcome.error)
        elif outcome.durable:
            # Something could be written: what was short is there again.
            self._full = ""
        self._idle.set()
        if self._pending or self._housekeeping_wanted:
            self._want_flush()

    def _forget_unflushed(self, waiting: list[_Waiting]) -> None:
        size = sum(len(entry.stamped.data) for entry in waiting)
        self._unflushed_bytes -= size
        self._context.unflushed_bytes -= size

    def _fail(self, failed: list[_Waiting], error: LakeMQError) -> None:
        """Fail what was not written and all that was appended behind it; take offsets back."""
        self._context.counters.failed_flushes += 1
        # No space and no descriptor are conditions that pass. After any other error the disk cannot
        # be trusted with this log until a restart has looked at it.
        if isinstance(error, StorageFull):
            self._full = str(error)
        elif not isinstance(error, Unavailable):
            self._fence = str(error)
        self._forget_unflushed(self._pending)
        behind, self._pending = self._pending, []
        # Offsets behind what failed would leave a gap, and sequences behind it would make a retry
        # look like a duplicate of a batch that is lost: both go back to what is durable.
        self._log_end_offset = self._reader.high_watermark
        self._producers = self._writer.producers.copy()
        for entry in (*failed, *behind):
            if entry.done is not None:
                # One instance each: futures raise it, and each raise extends its traceback.
                self._tell(entry.done, type(error)(str(error)))

    def _tell(self, done: AppendDone, outcome: AppendResult | LakeMQError) -> None:
        """One caller's fault must not keep the others, or the next flush, waiting."""
        try:
            done(outcome)
        except Exception:
            _log.exception(
                "%s partition %d: an append's callback failed", self.topic, self.partition
            )

    # ------------------------------------------------------------ life

    @property
    def is_fenced(self) -> bool:
        """Whether a failed fsync ended appends until a restart."""
        return bool(self._fence)

    def is_open(self) -> bool:
        """Whether it may be written to."""
        return not self._closing and not self._fence

    def fence(self, reason: str) -> None:
        """Take no more appends: the disk can't be trusted with this log."""
        self._fence = self._fence or reason

    def tick(self, now_ms: int, producers_seen_before_ms: int) -> None:
        """What time brings: an old segment is sealed, silent producers are forgotten."""
        if not self.is_open():
            return
        self.tail.trim()
        self._producers.expire(producers_seen_before_ms, self._context.producers_max)
        self._writer.producers_seen_before_ms = producers_seen_before_ms
        if self._writer.is_old(now_ms) or self._writer.wants_checkpoint():
            self._housekeeping_wanted = True
            self._want_flush()

    def checkpoint_offset(self) -> int:
        """Records below it may be compacted: a start needs nothing of them."""
        return self._writer.checkpoint_offset

    async def close(self) -> None:
        """Take no more appends, flush what is there, wake all that wait. Files stay as they are."""
        self._closing = True
        self._reader.close()
        # `end_flush` may set `_idle` and clear it again in one turn of the loop.
        while self._pending or not self._idle.is_set():
            await self._idle.wait()

    def discard_appends(self, error: LakeMQError) -> None:
        """Fail what has not been handed to a flush thread: the topic is being deleted."""
        self._closing = True
        if self._pending:
            self._fail([], error)

    def close_files(self, *, checkpoint: bool) -> None:
        """Blocking; after `close`. `checkpoint`: so that the next start need not scan."""
        # Nothing more is written to the folder of a fenced log.
        if checkpoint and not self._fence:
            self._writer.checkpoint()
        self._writer.close()


def _answer(future: asyncio.Future[AppendResult], outcome: AppendResult | LakeMQError) -> None:
    if future.done():
        return
    if isinstance(outcome, LakeMQError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def _result(stamped: Stamped, acks: Acks) -> AppendResult:
    header = stamped.header
    return AppendResult(
        Offset(header.base_offset), Offset(header.last_offset), acks, not stamped.data
    )
