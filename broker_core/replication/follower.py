"""A follower of a partition: what to ask of the leader, and what to do with what comes.

Pure: the log is looked at, never changed. Each call answers effects, to be carried out in their
order and in the same turn of the event loop. One object serves one leader epoch, one leader and one
slot of a stream; when any of them changes, or the stream breaks, another object begins. Rules:
KIP-101 (never cut by the high watermark), 279 and 595 (where two logs part).
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from lakemq.broker_core.api.types import Offset
from lakemq.broker_core.replication.types import (
    Ask,
    Code,
    Diverging,
    KnownRow,
    LeaderSend,
    LogState,
)

RETRY_S: Final = 0.1
"""Pause before the leader is asked again that did not know something yet."""
NOT_READY_RETRY_S: Final = 0.02
"""As long as a flush may take."""
CORRUPT_RETRY_S: Final = 1.0
COUNTED_RETRY_S: Final = 0.5
"""A replica that has to begin again looks so often whether the catalog counts on it still."""


class State(enum.StrEnum):
    """Where a follower is."""

    ASKING = "asking"
    """It does not know yet whether its log is a beginning of the leader's."""
    COPYING = "copying"
    """It is: what comes is appended."""
    CUTTING = "cutting"
    """Its log is being cut, or begun again elsewhere; nothing is asked or taken."""
    FULL = "full"
    """No room: it goes on when there is."""
    WAITING = "waiting"
    """The leader has another epoch: the catalog will say who leads."""
    FAILED = "failed"
    """The disk takes no more writes."""


class AppendFailure(enum.StrEnum):
    """Why `append_replica` failed, by its error."""

    FULL = "StorageFull"
    FENCED = "StorageFenced"
    CORRUPT = "CorruptBatch"
    BUSY = "Unavailable"


class SendAsk(NamedTuple):
    """Tell the leader what `ask()` says at the end of this turn. Not `again`: only if it was not
    told just that last (`FollowerSlots.changed`)."""

    again: bool = False


class AskLater(NamedTuple):
    """After `delay_s` seconds, call `retry`."""

    delay_s: float


class Roll(NamedTuple):
    """`log.roll_at(offset)`."""

    offset: Offset


class Append(NamedTuple):
    """`log.append_replica(batches)`; its failure goes to `append_failed`. What it makes durable is
    told by `flushed`."""

    batches: bytes


class Commit(NamedTuple):
    """`log.commit_to(offset)`."""

    offset: Offset


class DeleteBefore(NamedTuple):
    """`log.delete_records(offset)`, in the background: the leader's log starts there."""

    offset: Offset


class Cut(NamedTuple):
    """`log.truncate(offset)`, then `cut_done`; `cut_refused` where that is not possible. At the
    log's end: an empty last segment goes."""

    offset: Offset


class RestartAt(NamedTuple):
    """`log.restart_at(offset)`, then `cut_done`. `loses`: committed records go with it, as after an
    unclean election; worth a warning."""

    offset: Offset
    loses: bool


class AwaitCatalog(NamedTuple):
    """The answering node is in `leader_epoch`: a newer view of the catalog is on its way."""

    leader_epoch: int


class Stop(NamedTuple):
    """Close the slot: this disk takes no more writes. The replica is out of order."""


Effect = (
    SendAsk
    | AskLater
    | Roll
    | Append
    | Commit
    | DeleteBefore
    | Cut
    | RestartAt
    | AwaitCatalog
    | Stop
)
Effects = list[Effect]


class PartitionFollower:
    """Decisions of one follower of one partition in one leader epoch."""

    def __init__(self, leader: str, epoch: int, log: LogState, row: KnownRow) -> None:
        """`log`: after its `follow(epoch)`."""
        self.leader = leader
        self.epoch = epoch
        self.state = State.ASKING
        self._log = log
        self._row = row
        self._leader_high_watermark = Offset(0)
        self._leader_log_start = Offset(0)
        self._agrees = False
        """Our log is a beginning of the leader's. Once so in an epoch, it stays so to its end."""
        self._continues = False
        """The last segment is one that the leader has too, or nothing can be done about it."""

    def ask(self) -> Ask:
        """What the leader is to know now."""
        log = self._log
        end = log.log_end_offset
        full = self.state is State.FULL
        return Ask(end, log.last_epoch(end), log.durable_end, full, self._row.partition_epoch)

    def begin(self) -> Effects:
        """After the slot was opened."""
        return [SendAsk()]

    def row_changed(self) -> Effects:
        """A newer row of the catalog says the same of this replica."""
        return [] if self.state in (State.CUTTING, State.FAILED, State.WAITING) else [SendAsk()]

    # ------------------------------------------------------------ what the leader said

    def received(self, send: LeaderSend) -> Effects:
        """Effects of what came on the slot; none for what does not fit (any more)."""
        if self.state in (State.CUTTING, State.FAILED, State.WAITING):
            return []
        if send.code is not None:
            return self._refused(send)
        if send.diverging is not None:
            return self._diverges(send.base, send.diverging, send.log_start)
        matches = send.base == self._log.log_end_offset
        # Until the leader has compared our log with its own, its high watermark says nothing about
        # what lies here. It did that for the ask at `base`.
        if not self._agrees and not matches:
            return []
        self._agrees = True
        if self.state is State.ASKING:
            self.state = State.COPYING
        self._leader_high_watermark = max(self._leader_high_watermark, send.high_watermark)
        self._leader_log_start = max(self._leader_log_start, send.log_start)
        effects: Effects = []
        if send.batches and matches and self.state is State.COPYING:
            if self._ends_early(send):
                self.state = State.CUTTING
                return [Cut(send.base)]
            # Nowhere else: it would stand before those to come, and this segment would have no end.
            if 0 < send.roll_at == send.base:
                effects.append(Roll(Offset(send.roll_at)))
            # The next ask leaves while this is written, so that wire and disk overlap.
            effects += [Append(send.batches), SendAsk()]
        return effects + self._follow_numbers()

    def _ends_early(self, send: LeaderSend) -> bool:
        """Whether our last segment is an empty one where the leader's goes on: this node began it
        when it led, and had nothing in it when another was elected. Asked once: where the segment
        before it can't be written to any more, it stays."""
        first, self._continues = not self._continues, True
        is_empty = self._log.log_start_offset < send.base == self._log.segment_start(send.base)
        return first and is_empty and send.roll_at != send.base

    def _follow_numbers(self) -> Effects:
        """High watermark and log start as the leader's, as far as this log goes."""
        log, effects = self._log, Effects()
        committed = min(self._leader_high_watermark, log.durable_end)
        if committed > log.high_watermark:
            effects.append(Commit(committed))
        start = min(self._leader_log_start, max(committed, log.high_watermark))
        if start > log.log_start_offset:
            effects.append(DeleteBefore(start))
        return effects

    def _refused(self, send: LeaderSend) -> Effects:
        match send.code:
            case Code.RESTART:
                # A late answer to another ask, or one that records have overtaken: after logs have
                # agreed, only a start of the leader's that has passed our end is news.
                late = self._agrees and send.base >= send.log_start
                if late or send.base != self._log.log_end_offset:
                    return []
                return self._restart(send.log_start)
            case Code.STALE_EPOCH:
                if send.leader_epoch < self.epoch:
                    return []
                self.state = State.WAITING
                return [AwaitCatalog(send.leader_epoch)]
            case Code.NOT_READY:
                return [AskLater(NOT_READY_RETRY_S)]
            case Code.CORRUPT:
                return [AskLater(CORRUPT_RETRY_S)]
            case _:
                return [AskLater(RETRY_S)]

    def _diverges(self, base: Offset, diverging: Diverging, leader_start: Offset) -> Effects:
        # What says otherwise after they agreed is late.
        log = self._log
        if self._agrees or base != log.log_end_offset:
            return []
        epoch, end = log.epoch_end(diverging.epoch)
        # Both ends count (KIP-279): ours where we lack an epoch that the leader has, the leader's
        # where its part of the epoch is the shorter one.
        cut = min(diverging.end_offset, end if epoch >= 0 else log.log_start_offset)
        if cut >= log.log_end_offset:
            return [AskLater(RETRY_S)]  # it would change nothing: not to be asked in a loop
        self._leader_log_start = max(self._leader_log_start, leader_start)
        if cut < max(log.log_start_offset, log.high_watermark):
            return self._restart(leader_start)
        self.state = State.CUTTING
        return [Cut(cut)]

    def _restart(self, offset: Offset) -> Effects:
        # An empty log must not count as one that has everything. The leader, to which our log says
        # nothing, has the catalog count on it no more.
        if self._row.counts:
            return [AskLater(COUNTED_RETRY_S)]
        self.state = State.CUTTING
        return [RestartAt(offset, offset < self._log.high_watermark)]

    # ------------------------------------------------------------ what the log did

    def flushed(self) -> Effects:
        """The log's durable end has moved (`when_durable`)."""
        if self.state in (State.CUTTING, State.FAILED, State.WAITING):
            return []
        return [*self._follow_numbers(), SendAsk()]

    def append_failed(self, why: AppendFailure) -> Effects:
        """The log ends at its durable end again."""
        if self.state in (State.CUTTING, State.FAILED, State.WAITING):
            return []
        if why is AppendFailure.FENCED:
            self.state = State.FAILED
            return [Stop()]
        if why is AppendFailure.FULL:
            self.state = State.FULL
            return [SendAsk()]
        return [AskLater(CORRUPT_RETRY_S if why is AppendFailure.CORRUPT else RETRY_S)]

    def has_room(self) -> Effects:
        """The disk has room again."""
        if self.state is not State.FULL:
            return []
        self.state = State.COPYING if self._agrees else State.ASKING
        return [SendAsk()]

    def cut_done(self) -> Effects:
        """`Cut` or `RestartAt` was carried out."""
        if self.state is not State.CUTTING:
            return []
        self.state = State.COPYING if self._agrees else State.ASKING
        # What was sent meanwhile was dropped, also where the log ends as before.
        return [SendAsk(again=True)]

    def cut_refused(self) -> Effects:
        """`Cut` is not possible: what lies there was rewritten by compaction, as behind an unclean
        election, or can't be read."""
        if self.state is not State.CUTTING:
            return []
        if self._agrees:
            return self.cut_done()  # only an empty segment was to go
        self.state = State.ASKING
        return self._restart(self._leader_log_start)

    def retry(self) -> Effects:
        """The pause of `AskLater` is over."""
        if self.state in (State.CUTTING, State.FAILED, State.WAITING):
            return []
        return [SendAsk(again=True)]
