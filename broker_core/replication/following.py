"""A partition that this node follows: carries out what `PartitionFollower` decides."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Protocol

from lakemq.broker_core.api.errors import CorruptLog, LakeMQError
from lakemq.broker_core.api.replica_ports import ReplicaLog
from lakemq.broker_core.api.types import Offset
from lakemq.broker_core.cluster.replica_frames import SlotSend
from lakemq.broker_core.replication.follower import (
    Append,
    AppendFailure,
    AskLater,
    AwaitCatalog,
    Commit,
    Cut,
    DeleteBefore,
    Effects,
    PartitionFollower,
    RestartAt,
    Roll,
    SendAsk,
    State,
    Stop,
)
from lakemq.broker_core.replication.types import Ask, Code, Diverging, KnownRow, LeaderSend, Place

ROOM_PAUSE_S: Final = 2.0
"""A follower without room looks so often whether there is some."""
_CODES: Final = {str(code): code for code in Code}
_FAILURES: Final = {str(failure): failure for failure in AppendFailure}
_log: Final = logging.getLogger(__name__)


class Asking(Protocol):
    """The stream to the leader, as one partition uses it."""

    def ask_soon(self, following: FollowingPartition, again: bool) -> None:
        """Send what `following.ask()` says at the end of this turn; not `again`: unless the leader
        was told just that last."""

    def free(self, size_bytes: int) -> None:
        """So many received bytes are appended or dropped."""

    def close(self, following: FollowingPartition) -> None:
        """Ask nothing more for it."""


class FollowingPartition:
    """One replica under one leader, in one leader epoch. Lives on the event loop."""

    def __init__(
        self,
        place: Place,
        name: str,
        log: ReplicaLog,
        leader: str,
        epoch: int,
        stale: Callable[[], None],
        row: KnownRow,
    ) -> None:
        """`log`: after its `follow(epoch)`. `name`: for messages. `stale()`: the catalog knows
        another leader by now."""
        self.place = place
        self.name = name
        self.log = log
        self.leader = leader
        self.epoch = epoch
        self.stopped = False
        self.leader_high_watermark = Offset(0)
        """The leader's high watermark, as it last said."""
        self._core: PartitionFollower | None = None
        self._stream: Asking | None = None
        self._stale = stale
        self._row = row
        self._timer: asyncio.TimerHandle | None = None
        self._appending = 0
        self._told = ""
        """Why the last append or cut failed, as the log was told."""
        self._changing: asyncio.Task[bool] | None = None
        self._deleting: asyncio.Task[None] | None = None

    # -- the stream

    def begin(self, stream: Asking) -> None:
        """A stream to the leader is there, and this partition has a slot on it."""
        self.end_stream()
        self._stream = stream
        if self._changing is not None:
            return  # at the word of an earlier stream; this one begins when it is done
        self._core = PartitionFollower(self.leader, self.epoch, self.log, self._row)
        self.log.when_durable(self._flushed)
        self._carry_out(self._core.begin())

    def end_stream(self) -> None:
        """The stream is gone: what was under way on it counts no more."""
        self._core = None
        self._stream = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def stop(self) -> None:
        """The node does not follow in this epoch any more; returns when the log is left alone."""
        self.stopped = True
        self.end_stream()
        self.log.when_durable(None)
        # A cut goes on to its end: half a cut is for recovery alone.
        if self._changing is not None:
            await asyncio.wait([self._changing])
        if self._deleting is not None:
            self._deleting.cancel()

    # -- what is said

    def ask(self) -> Ask | None:
        """What the leader is to know now; None: nothing is asked."""
        return None if self._core is None else self._core.ask()

    @property
    def state(self) -> str:
        """For operators."""
        return "connecting" if self._core is None else str(self._core.state)

    def received(self, send: SlotSend) -> None:
        """The leader has said this. The bytes of its batches are freed when they are dealt with."""
        core, stream = self._core, self._stream
        size = len(send.batches)
        if stream is None:
            return
        if core is None:
            stream.free(size)
            return
        self.leader_high_watermark = max(self.leader_high_watermark, Offset(send.high_watermark))
        before = self._appending
        self._carry_out(core.received(_said(send)))
        if size and self._appending == before:
            stream.free(size)

    def row_changed(self) -> None:
        """A newer row of the catalog says the same of this replica: the leader is told, who lets in
        no replica that may have an older one to obey."""
        if self._core is not None:
            self._carry_out(self._core.row_changed())

    def _flushed(self) -> None:
        if self._core is not None:
            self._carry_out(self._core.flushed())

    # -- what is done

    def _carry_out(self, effects: Effects) -> None:  # noqa: C901  one line for each effect
        stream, log = self._stream, self.log
        if stream is None:
            return
        for effect in effects:
            match effect:
                case SendAsk(again):
                    stream.ask_soon(self, again)
                    if self._core is not None and self._core.state is State.FULL:
                        self._later(ROOM_PAUSE_S, self._look_for_room)
                case AskLater(delay_s):
                    self._later(delay_s, self._retry)
                case Roll(offset):
                    log.roll_at(offset)
                case Append(batches):
                    self._append(stream, batches)
                case Commit(offset):
                    log.commit_to(offset)
                case DeleteBefore(offset):
                    self._delete_before(offset)
                case Cut(offset):
                    self._change(self._cut(offset))
                case RestartAt(offset, loses):
                    self._change(self._restart_at(offset, loses))
                case AwaitCatalog():
                    self._stale()
                case Stop():
                    _log.error("%s: this replica is out of order: its disk failed", self.name)
                    stream.close(self)

    def _append(self, stream: Asking, batches: bytes) -> None:
        core = self._core
        self._appending += 1
        appended = self.log.append_replica(batches)

        def done(future: asyncio.Future[Offset]) -> None:
            self._appending -= 1
            stream.free(len(batches))
            error = None if future.cancelled() else future.exception()
            if error is not None and core is self._core and core is not None:
                self._failed(core, error)

        if appended.done() and appended.exception() is not None:
            # In the same turn: what follows in this message no longer fits behind.
            done(appended)
        else:
            appended.add_done_callback(done)

    def _failed(self, core: PartitionFollower, error: BaseException) -> None:
        code = type(error).__name__
        self._tell_once("replicated records are not stored", error)
        self._carry_out(core.append_failed(_FAILURES.get(code, AppendFailure.BUSY)))

    def _later(self, delay_s: float, act: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_s, act)

    def _retry(self) -> None:
        if self._core is not None:
            self._carry_out(self._core.retry())

    def _look_for_room(self) -> None:
        if self._core is None:
            return
        if self.log.status().state == "full":
            self._later(ROOM_PAUSE_S, self._look_for_room)
        else:
            self._carry_out(self._core.has_room())

    # -- the log begins or ends elsewhere

    def _delete_before(self, offset: Offset) -> None:
        if self._deleting is None or self._deleting.done():
            self._deleting = asyncio.get_running_loop().create_task(self._delete(offset))

    async def _delete(self, offset: Offset) -> None:
        try:
            await self.log.delete_records(offset)
        except LakeMQError as error:
            _log.warning("%s: records before offset %d stay: %s", self.name, offset, error)

    def _change(self, change: Coroutine[Any, Any, bool]) -> None:
        self._changing = asyncio.get_running_loop().create_task(change)
        self._changing.add_done_callback(self._changed)

    def _changed(self, change: asyncio.Task[bool]) -> None:
        self._changing = None
        stream, core = self._stream, self._core
        if stream is None or self.stopped:
            return
        if core is None:
            self.begin(stream)  # of a stream that came meanwhile
        else:
            self._carry_out(core.cut_done() if change.result() else core.cut_refused())

    async def _cut(self, offset: Offset) -> bool:
        _log.info(
            "%s: cut at offset %d of %d: the leader's log differs from there on", self.name, offset,
            self.log.log_end_offset,
        )  # fmt: skip
        return await self._until_done(lambda: self.log.truncate(offset))

    async def _restart_at(self, offset: Offset, loses: bool) -> bool:
        _log.log(
            logging.WARNING if loses else logging.INFO,
            "%s: begins again at offset %d, where the leader's log starts%s", self.name, offset,
            "; records that were committed here are not the leader's" if loses else "",
        )  # fmt: skip
        return await self._until_done(lambda: self.log.restart_at(offset))

    async def _until_done(self, change: Callable[[], Awaitable[None]]) -> bool:
        """Whether the log could be changed; False: it has to begin again. What passes, like no
        space, is tried again; after anything else the replica stops."""
        while not self.stopped:
            try:
                await change()
                return True
            except (ValueError, CorruptLog) as error:
                self._tell_once("begins again once nothing counts on it, as it can't be cut", error)
                return False
            except (LakeMQError, OSError) as error:
                if not (isinstance(error, LakeMQError) and error.retriable):
                    _log.error("%s: this replica is out of order: %s", self.name, error)
                    break
                _log.warning("%s: not cut yet: %s", self.name, error)
            await asyncio.sleep(ROOM_PAUSE_S)
        if self._stream is not None:
            self._stream.close(self)
        self.end_stream()
        return False

    def _tell_once(self, what: str, error: BaseException) -> None:
        """Warn, once for each cause: what stays is asked for again and again, of every
        partition."""
        if str(error) != self._told:
            self._told = str(error)
            _log.warning("%s: %s: %s", self.name, what, error)


def _said(send: SlotSend) -> LeaderSend:
    """What came on the wire, as the core takes it. Batches are copied: they outlive the message."""
    diverging = send.diverging and Diverging(
        send.diverging.epoch, Offset(send.diverging.end_offset)
    )
    # A code of a later version is an error like any: the leader is asked again.
    code = _CODES.get(send.code, Code.NOT_LEADER) if send.code else None
    return LeaderSend(
        Offset(send.base), bytes(send.batches), Offset(send.high_watermark),
        Offset(send.log_start), send.roll_at, diverging, code, send.leader_epoch,
    )  # fmt: skip
