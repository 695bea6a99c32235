"""Appends to one partition's log, and their flushes. Lives on the event loop; never blocks it.

An append is checked, given its offsets and stamped at once, in the order of calls; flush threads
write; when a flush has ended, its batches are durable, taps see what is readable and futures are
answered. A flush that fails fails everything appended behind it as well, for its offsets depend on
it; what was answered from memory before (acks memory) is lost then.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from lakemq.broker_core.api.errors import (
    CorruptBatch,
    LakeMQError,
    NotEnoughReplicas,
    NotLeader,
    StorageFenced,
    StorageFull,
    Unavailable,
)
from lakemq.broker_core.api.ports import AppendDone
from lakemq.broker_core.api.records.batch import BatchHeader, encode_with_header, stamp
from lakemq.broker_core.api.records.outcomes import settle
from lakemq.broker_core.api.types import Acks, AppendResult, Columns, TopicConfig
from lakemq.plugins.journal.log.context import LogContext
from lakemq.plugins.journal.log.reader import LogReader
from lakemq.plugins.journal.log.recovery import Recovered
from lakemq.plugins.journal.log.waiting import Uncommitted, Unflushed, Waiting, placed
from lakemq.plugins.journal.log.writer import FlushOutcome, LogWriter, Stamped
from lakemq.plugins.journal.segment.producers import Appended
from lakemq.plugins.journal.segment.tail import Tail

_log = logging.getLogger(__name__)


CUTTING: Final = "being cut"
CLOSED: Final = "closed"


class Role(enum.Enum):
    """What a replica does."""

    NONE = enum.auto()
    """Neither: its log was only opened."""
    LEADER = enum.auto()
    FOLLOWER = enum.auto()


class Appends:
    """The part of a `JournalLog` that takes batches and has them flushed."""

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
        self.folder.on_damage = context.counters.found_damage
        self.topic, self.partition = topic, partition
        self.notes = recovered.notes
        self._context = context
        self._reader = LogReader(
            context, self.folder, topic, partition, Tail(tail_max_bytes),
            recovered.high_watermark, lambda: self._log_end_offset,
        )  # fmt: skip
        # Two tables each: these run ahead, with every batch that has offsets; the writer's know
        # durable batches only, and replace these when a flush fails.
        self._producers, self._epochs = recovered.producers, recovered.epochs
        self._writer = LogWriter(
            self.folder, config, recovered.producers.copy(), recovered.epochs.copy(),
            context.checkpoint_interval_bytes, context.producers_max,
            recovered.checkpoint_offset, recovered.records_end,
            lambda: self._reader.high_watermark,
        )  # fmt: skip
        self._log_end_offset = self._reader.durable_end
        self._role = Role.NONE
        self._leader_epoch = 0
        self._alone = False
        self._acks_min = Acks.MEMORY
        self._shortage = ""
        """Why too few replicas are in sync; empty: there are enough."""
        self._pending: list[Waiting] = []
        self._flushing: list[Waiting] = []
        self._uncommitted = Uncommitted()
        self._outcome = FlushOutcome(0, (), None)
        self._housekeeping_wanted = False
        self._unflushed_bytes = 0
        self._when_durable: Callable[[], None] | None = None
        self._unflushed: Unflushed | None = None
        """None: it has had no followers yet."""
        self._fence = recovered.fence
        self._full = ""
        self._unavailable = ""
        """`CUTTING` or `CLOSED`; empty: appends are taken."""
        self._idle: asyncio.Event = asyncio.Event()
        """Set while no flush and no cut is under way."""
        self._idle.set()

    # ------------------------------------------------------------ append

    def append(self, batch: bytes, header: BatchHeader, acks: Acks) -> asyncio.Future[AppendResult]:
        """Take one batch; the future is answered when `acks` is reached. Never raises.

        A log that is alone takes `REPLICATED` as `LEADER`, and the answer says so: it replicates
        nothing.
        """
        future: asyncio.Future[AppendResult] = self._context.loop.create_future()
        done = partial(settle, future)
        if acks < self._acks_min:
            acks = self._acks_min
        try:
            duplicate = self._admit(len(batch), header, acks)
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
        if acks < self._acks_min:
            acks = self._acks_min
        try:
            self._admit(len(data), header, acks)
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
        self._place(stamped)
        if self._unflushed is not None and self._unflushed.wake is not None:
            self._unflushed.wake()
        if acks is not Acks.MEMORY:
            self._wait_for_flush(Waiting(stamped, done, acks))
            return
        # Queued before it is answered: the callback may append, and the order of `_pending` must be
        # that of offsets.
        self._wait_for_flush(Waiting(stamped, None))
        self._tell(done, placed(stamped, Acks.MEMORY))

    def _place(self, stamped: Stamped) -> None:
        header, size = stamped.header, len(stamped.data)
        if header.leader_epoch != self._epochs.last:
            pending = self._log_end_offset > self._reader.durable_end
            self._epochs.note(
                header, self._log_end_offset if pending else self._writer.records_end()
            )
        self._log_end_offset = header.last_offset + 1
        self._unflushed_bytes += size
        self._context.unflushed_bytes += size
        self._context.room_bytes -= size

    def _admit(self, size: int, header: BatchHeader, acks: Acks) -> Appended | None:
        """Whether a batch may be appended: raises if not; what it repeats, if it does."""
        if self._role is not Role.LEADER:
            raise self._not_leader()
        if size != header.total_bytes:
            raise CorruptBatch(f"batch of {size} bytes, its header says {header.total_bytes}")
        context = self._context
        # In place of a call in the usual case.
        if (
            self._fence
            or self._unavailable
            or context.room_bytes < size
            or self._unflushed_bytes + size > context.unflushed_max_bytes
            or context.unflushed_bytes + size > context.unflushed_total_max_bytes
        ):
            self._check_room(size)
        if self._shortage and acks is Acks.REPLICATED:
            raise NotEnoughReplicas(self._shortage)
        return self._producers.check(header) if header.producer_id >= 0 else None

    def _check_room(self, size: int) -> None:
        """Raises StorageFenced, Unavailable, StorageFull when `size` bytes can't be taken now."""
        context = self._context
        if self._fence:
            raise StorageFenced(self._fence)
        if self._unavailable:
            raise Unavailable(f"partition {self.partition} of {self.topic} is {self._unavailable}")
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

    def _not_leader(self) -> NotLeader:
        return NotLeader(
            f"partition {self.partition} of {self.topic} is not led here", epoch=self._leader_epoch
        )

    def _answer_duplicate(
        self,
        original: Appended,
        header: BatchHeader,
        acks: Acks,
        done: AppendDone,
    ) -> None:
        """With the offsets of then, and not before the original is where `acks` wants it."""
        self._context.counters.duplicates += 1
        place = header._replace(
            base_offset=original.base_offset,
            last_offset_delta=original.last_offset - original.base_offset,
        )
        # Without data: it is there already.
        repeated = Waiting(Stamped(place, b""), done, acks)
        durable = original.last_offset < self._reader.durable_end
        if not durable and acks is not Acks.MEMORY:
            # Behind the original in the queue: its flush ends after that of the original, and
            # whatever fails the original fails it.
            self._wait_for_flush(repeated)
        elif acks is Acks.REPLICATED and not self._alone:
            self._answer_replicated(repeated)
        else:
            done(placed(repeated.stamped, Acks.LEADER if durable else Acks.MEMORY))

    def _answer_replicated(self, entry: Waiting) -> None:
        """Answer an append that is durable here, or have it wait for the high watermark."""
        if entry.done is None:
            return
        result = placed(entry.stamped, Acks.REPLICATED)
        if result.last_offset >= self._reader.high_watermark:
            self._uncommitted.add(result, entry.done)
        else:
            self._tell(entry.done, result)

    def _wait_for_flush(self, waiting: Waiting) -> None:
        self._pending.append(waiting)
        self._want_flush()

    def _want_flush(self) -> None:
        # One flush at a time: `end_flush` submits the next one itself.
        if self._idle.is_set():
            self._idle.clear()
            self._context.flusher.submit(self)

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
        """Back on the loop: tell of what became durable, answer, go on with the next."""
        waiting, self._flushing = self._flushing, []
        outcome, self._outcome = self._outcome, FlushOutcome(0, (), None)
        self._context.counters.flushes += 1
        # As they were written, perhaps recompressed; an entry without data is a duplicate.
        fresh = [batch for batch in outcome.batches[: outcome.durable] if batch.data]
        if fresh:
            # Before the answers: a client that has its answer may fetch the record at once.
            if self._alone:
                self._reader.publish(fresh)
            else:
                self._reader.hold(fresh)
        self._forget_unflushed(waiting)
        waiting = self._to_be_answered(waiting)
        alone = self._alone
        for entry in waiting[: outcome.durable]:
            # The usual case first, without a call.
            if entry.done is None:
                continue
            if alone or entry.acks is not Acks.REPLICATED:
                self._tell(entry.done, placed(entry.stamped, Acks.LEADER))
            else:
                self._answer_replicated(entry)
        if outcome.error is not None:
            # A new segment may have begun behind the last record, in a gap of the leader's.
            self._reader.durable_end = self.folder.active_index.next_offset
            self._fail(waiting[outcome.durable :], outcome.error)
        elif outcome.durable:
            # Something could be written: what was short is there again.
            self._full = ""
        self._idle.set()
        if self._pending or self._housekeeping_wanted:
            self._want_flush()
        if self._when_durable is not None and (fresh or outcome.error is not None):
            self._call_when_durable(self._when_durable)

    def _to_be_answered(self, waiting: list[Waiting]) -> list[Waiting]:
        """None of them, where this node stood still, perhaps, and another one leads by now: whether
        the batches remain is for that one to decide."""
        may_answer = self._uncommitted.may_answer
        if may_answer is None or may_answer():
            return waiting
        for entry in waiting:
            if entry.done is not None:
                self._tell(entry.done, self._not_leader())
        return [entry._replace(done=None) for entry in waiting]

    def _call_when_durable(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception:  # It must not keep other logs' flushes from ending.
            _log.exception("%s partition %d: replication failed", self.topic, self.partition)

    def _commit_to(self, offset: int) -> None:
        if self._reader.commit_to(offset):
            for result, done in self._uncommitted.take(self._reader.high_watermark):
                self._tell(done, result)

    def _forget_unflushed(self, waiting: list[Waiting]) -> None:
        size = sum(len(entry.stamped.data) for entry in waiting)
        self._unflushed_bytes -= size
        self._context.unflushed_bytes -= size

    def _fail(self, failed: list[Waiting], error: LakeMQError) -> None:
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
        error = self._taken_back(error)
        # Offsets behind what failed would leave a gap, and sequences behind it would make a retry
        # look like a duplicate of a batch that is lost: both go back to what is durable.
        self._log_end_offset = self._reader.durable_end
        self._producers = self._writer.producers.copy()
        self._epochs = self._writer.epochs.copy()
        for entry in (*failed, *behind):
            if entry.done is not None:
                # One instance each: futures raise it, and each raise extends its traceback.
                self._tell(entry.done, type(error)(str(error)))

    def _taken_back(self, error: LakeMQError) -> LakeMQError:
        """What appends behind the durable end fail with. Where followers may have copied them,
        their offsets must not be given again in this epoch, and their outcome is open."""
        end, unflushed = self._reader.durable_end, self._unflushed
        self._reader.tail.cut(end)
        if unflushed is None or unflushed.sent_end <= end or unflushed.epoch != self._leader_epoch:
            return error
        if self._role is Role.LEADER:
            self._role = Role.NONE
            if self._alone:
                # Nothing asks for another epoch for it: a restart brings one.
                self._fence = self._fence or f"replicas may have what could not be written: {error}"
        return self._not_leader()

    def _tell(self, done: AppendDone, outcome: AppendResult | LakeMQError) -> None:
        """One caller's fault must not keep the others, or the next flush, waiting."""
        try:
            done(outcome)
        except Exception:
            _log.exception(
                "%s partition %d: an append's callback failed", self.topic, self.partition
            )
