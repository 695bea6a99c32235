"""A partition that this node leads: carries out what `PartitionLeader` decides."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from lakemq.broker_core.api.replica_ports import ReplicaLog
from lakemq.broker_core.api.types import Acks
from lakemq.broker_core.replication.in_sync_changes import InSyncChanges
from lakemq.broker_core.replication.leader import Answer, PartitionLeader
from lakemq.broker_core.replication.types import (
    FollowerAsk,
    InSyncWish,
    LeaderSend,
    Place,
    View,
    WishAnswer,
)

NUMBERS_S: Final = 0.005
"""High watermark and log start are told without records at most so often."""
_log: Final = logging.getLogger(__name__)


class FollowerSlot(Protocol):
    """A follower's end of a partition, on the stream that it reads."""

    @property
    def node(self) -> str:
        """The follower."""

    def serve(self) -> None:
        """Send records for the ask that stands, if there is one, some are durable, and the stream
        has room."""

    def tell(self, send: LeaderSend) -> None:
        """Send this."""


@dataclass(frozen=True)
class LeaderContext:
    """What all leaders of a node share."""

    changes: InSyncChanges
    registered: Callable[[], Mapping[str, int]]
    """Broker epochs of the nodes that may join an in-sync set, by node id."""
    now_s: Callable[[], float]
    """A monotonic clock."""
    cannot_write: Callable[[Place, int], None]
    """(partition, leader epoch): its log takes no more appends, so another node should lead."""
    deposed: Callable[[Place, int], None]
    """(partition, leader epoch): a later epoch is known, so nothing of this one is committed."""
    holds_lease: Callable[[], bool]
    """Whether this node may answer as a leader now."""
    is_full: Callable[[], bool]
    """Whether its disk takes no more records."""


class LeadingPartition:
    """One leadership: of one partition in one leader epoch. Lives on the event loop."""

    def __init__(
        self,
        place: Place,
        name: str,
        log: ReplicaLog,
        core: PartitionLeader,
        context: LeaderContext,
    ) -> None:
        """`log`: after its `lead`. `name`: for messages."""
        self.place = place
        self.name = name
        self.log = log
        self.core = core
        self.stopped = False
        self.acks_min = Acks.REPLICATED
        """What appends wait for at least."""
        self._context = context
        self._slots: dict[FollowerSlot, None] = {}
        self._told_shortage = ""
        self._numbers_due: asyncio.TimerHandle | None = None
        self._durable_end = log.durable_end
        self._serving = False
        """Slots are served at the end of this turn of the loop."""

    def start(self) -> None:
        """Take part from now on."""
        self.log.when_durable(self._flushed)
        self.log.when_appended(self._appended)
        self.log.answer_while(self._context.holds_lease)
        self.advance()

    def stop(self) -> None:
        """The node does not lead in this epoch any more."""
        self.stopped = True
        self.log.when_durable(None)
        self.log.when_appended(None)
        self.log.answer_while(None)
        if self._told_shortage:
            self.log.refuse_replicated("")
        if self._numbers_due is not None:
            self._numbers_due.cancel()
        self._slots.clear()

    def lead(self, acks_min: Acks) -> None:
        """Have the log take appends, which wait for `acks_min` at least."""
        self.acks_min = acks_min
        self.log.lead(self.core.view.epoch, alone=False, acks_min=acks_min)

    def end_waiting(self) -> None:
        """Appends that wait for followers fail with NotLeader, their outcome open; the leadership
        goes on. A node that was cut off would keep their producers from the next leader."""
        self.log.follow(self.core.view.epoch)
        self.lead(self.acks_min)

    # -- followers

    def attach(self, slot: FollowerSlot) -> None:
        """A follower has opened a slot."""
        self._slots[slot] = None
        self.core.slot_opened(slot.node)

    def detach(self, slot: FollowerSlot) -> None:
        """The slot is closed, or its stream is gone."""
        self._slots.pop(slot, None)

    def asked(self, said: FollowerAsk) -> Answer:
        """What the core answers; the high watermark and wishes that come of it are seen to."""
        answer = self.core.asked(said, self._context.now_s())
        self.advance()
        self._propose()
        return answer

    # -- what moves it

    def _appended(self) -> None:
        """Followers copy, and flush, while this node flushes: what a turn of the loop appends goes
        out together."""
        if not self._serving:
            self._serving = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        self._serving = False
        for slot in tuple(self._slots):
            slot.serve()

    def _flushed(self) -> None:
        log = self.log
        if not log.leads or (
            log.durable_end == self._durable_end and log.status().state == "fenced"
        ):
            self._context.cannot_write(self.place, self.core.view.epoch)
            return
        self._durable_end = self.log.durable_end
        self.advance()
        self._serve()

    def view_changed(self, view: View) -> None:
        """The catalog says this of the same leader epoch."""
        self.core.view_changed(view, self._context.now_s())
        self.advance()
        self._propose()

    def tick(self) -> None:
        """What no event brings: followers that lag, a log start that retention has moved, and a
        full disk, which refuses appends before they are flushed."""
        if self._context.is_full() and self.core.can_hand_over():
            self._context.cannot_write(self.place, self.core.view.epoch)
            return
        self._propose()
        self._tell_numbers()

    def _propose(self) -> None:
        """Ask for another in-sync set if the core wants one."""
        wish = self.core.wish(self._context.registered(), self._context.now_s())
        if wish is not None:
            self._context.changes.ask(self.place, wish, self._answered)

    def _answered(self, wish: InSyncWish, answer: WishAnswer) -> None:
        if self.stopped:
            return
        before = self.core.view.in_sync
        self.core.wish_answered(wish, answer, self._context.now_s())
        after = self.core.view.in_sync
        if after != before:
            _log.info("%s: in sync are %s", self.name, ", ".join(sorted(after)) or "no nodes")
        self.advance()
        # At once, not when the view comes: appends that wait would be answered no sooner.
        if self.core.deposed:
            self._context.deposed(self.place, self.core.view.epoch)

    def advance(self) -> None:
        """Commit as far as all in-sync replicas are durable, and tell followers soon."""
        committed = self.core.moved(self._context.now_s())
        log = self.log
        if committed > log.high_watermark:
            log.commit_to(committed)
            self._tell_numbers_soon()
        shortage = self.core.shortage()
        if shortage != self._told_shortage:
            self._told_shortage = shortage
            log.refuse_replicated(shortage)

    def _tell_numbers_soon(self) -> None:
        """Followers to which no records go learn the high watermark too."""
        if self._numbers_due is None and self._slots:
            loop = asyncio.get_running_loop()
            self._numbers_due = loop.call_later(NUMBERS_S, self._tell_numbers)

    def _tell_numbers(self) -> None:
        if self._numbers_due is not None:
            self._numbers_due.cancel()
            self._numbers_due = None
        for slot in tuple(self._slots):
            send = self.core.numbers(slot.node)
            if send is not None:
                slot.tell(send)
