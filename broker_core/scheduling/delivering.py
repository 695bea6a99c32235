"""Appends what is due of one partition of the topic of schedules, while this node leads it.

A delivery is a commit like any other: one durable record names what is delivered, then it is
appended with the producer id and epoch of that record, then it is marked as delivered. After a
crash, also by another node, the batches that were appended already are found by that producer id.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from lakemq.broker_core.api.backoff import Backoff
from lakemq.broker_core.api.errors import (
    LakeMQError,
    NotLeader,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from lakemq.broker_core.api.leadership import leadership
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.scheduling.schedules import ScheduleCounters
from lakemq.broker_core.scheduling.log import ScheduleLog, owner_of
from lakemq.broker_core.scheduling.queue import PendingSchedule, ScheduleQueue
from lakemq.broker_core.transactions import state as states
from lakemq.broker_core.transactions.owners import CommitRunner, OwnerRuntime
from lakemq.broker_core.transactions.participants import Participants
from lakemq.broker_core.transactions.state import OwnerState, PendingCommit
from lakemq.broker_core.transactions.targets import Targets

_log = logging.getLogger(__name__)

_LOOK_S: Final = 1.0
_PAUSE_S: Final = 1.0
_PAUSE_FIRST_MS: Final = 50
_PAUSE_MAX_MS: Final = 5_000
_rng: Final = random.Random()
_BATCHES_AT_ONCE: Final = 5_000
_BYTES_AT_ONCE: Final = 16 * 1024 * 1024
_Floors = Mapping[tuple[str, int], int | None]
"""(topic, partition) -> where its log ended, None: it is gone with its records. What is missing
can't be asked now."""


@dataclass(slots=True)
class DeliveryContext:
    """What the deliveries of a node share."""

    broker: Broker
    log: ScheduleLog
    queue: ScheduleQueue
    participants: Participants
    targets: Targets
    counters: ScheduleCounters
    now_ms: Callable[[], int]
    remembered_ms: int
    on_change: Callable[[], None]
    """Called when something was delivered."""


class Deliveries:
    """Of one partition, from the time at which this node has read it back until another leads."""

    def __init__(self, context: DeliveryContext, number: int, state: OwnerState) -> None:
        self.wake = asyncio.Event()
        """Set when a schedule is to be delivered perhaps sooner than was thought."""
        self.owned = OwnerRuntime(state)
        self._context = context
        self._number = number
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Continue what was decided, then deliver what becomes due. The queue holds all that
        waits, none of it is scheduled."""
        self.owned.delivering = self._decided()
        queue = self._context.queue[self._number]
        for waiting in queue:
            # Not what a decision names: that delivers it, and it can't be cancelled.
            if waiting.key not in self.owned.delivering:
                queue.schedule(waiting)
        self._task = asyncio.create_task(self._run())

    def end(self) -> None:
        """Decide and write nothing more: another node does."""
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        """As `end`, and wait for it. What is being delivered is continued at the next start."""
        self.end()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def _decided(self) -> set[str]:
        """Ids of the decision that is pending, as far as they have not ended."""
        pending = self.owned.state.pending
        targets = pending.targets if pending else ()
        offsets = {entry.offset for target in targets for entry in target.entries}
        queue = self._context.queue[self._number]
        return {each.key for each in queue if each.offset in offsets}

    async def _run(self) -> None:
        context, number = self._context, self._number
        while True:
            try:
                if self.owned.state.pending is not None:
                    await self._finish(resumed=True)
                await self._wait()
                due = context.queue[number].take(context.now_ms(), _BATCHES_AT_ONCE, _BYTES_AT_ONCE)
                if due:
                    await self._deliver(due)
                await self._delete_ended()
            except LakeMQError as error:
                _log.warning("could not deliver schedules of partition %d yet: %s", number, error)
                await asyncio.sleep(_PAUSE_S)

    async def _wait(self) -> None:
        """Until a schedule is due, a new one is on disk, or the clock is to be read again."""
        next_ms = self._context.queue[self._number].next_ms()
        wait_s = _LOOK_S
        if next_ms is not None:
            # Never longer than _LOOK_S: the wall clock may jump, and timers of the loop do not see
            # it.
            wait_s = min(_LOOK_S, max(0.0, (next_ms - self._context.now_ms()) / 1000))
        self.wake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self.wake.wait()

    async def _deliver(self, due: Sequence[PendingSchedule]) -> None:
        ready: list[PendingSchedule] = []
        later: list[PendingSchedule] = []
        for each in due:
            (ready if self._is_ready(each) else later).append(each)
        # Before anything can fail: what is neither delivered nor scheduled waits for a restart.
        self._put_back(later)
        try:
            floors = await self._floors(ready)
            postponed = [each for each in ready if (each.topic, each.partition) not in floors]
            ready = [each for each in ready if (each.topic, each.partition) in floors]
            self._put_back(postponed)
            if ready:
                await self._decide(ready, floors)
        except LakeMQError:  # nothing was decided
            self._put_back(ready)
            raise
        if ready:
            counters = self._context.counters
            counters.late_ms = max(0, self._context.now_ms() - ready[0].due_ms)
            await self._finish(resumed=False)
        if later or postponed:
            await asyncio.sleep(_PAUSE_S)

    def _put_back(self, some: Sequence[PendingSchedule]) -> None:
        for each in some:
            self._context.queue[self._number].schedule(each)

    def _is_ready(self, waiting: PendingSchedule) -> bool:
        """Whether its partition takes records, as far as is known here; true where the topic is
        gone with its records. One that does not would hold up all others of the commit."""
        broker = self._context.broker
        try:
            info = broker.topic(waiting.topic)
            if info.topic_id != waiting.topic_id:
                return True
            if not broker.serves(waiting.topic, waiting.partition):
                return leadership(info, waiting.partition).leader not in (None, broker.node_id)
            return broker.partition(waiting.topic, waiting.partition).status().state == "online"
        except NotLeader:
            return False
        except LakeMQError:
            return True

    async def _floors(self, ready: Sequence[PendingSchedule]) -> _Floors:
        places = sorted({(each.topic, each.partition) for each in ready})
        asked = (self._context.targets.floor(*place) for place in places)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        floors: dict[tuple[str, int], int | None] = {}
        for place, answer in zip(places, answers, strict=True):
            if isinstance(answer, UnknownTopic | UnknownPartition):
                floors[place] = None
            elif isinstance(answer, int):
                floors[place] = answer
            elif not isinstance(answer, NotLeader | Unavailable):
                raise answer
        return floors

    async def _decide(self, ready: Sequence[PendingSchedule], floors: _Floors) -> None:
        context, owned = self._context, self.owned
        needs = owned.state.needs_producer_id
        fresh = await context.broker.allocate_producer_id() if needs else None
        # Records of a topic that is gone are left out of the commit.
        there = {place: floor for place, floor in floors.items() if floor is not None}
        targets = states.targets_of(
            (
                (each.topic, each.topic_id, each.partition, each.entry)
                for each in ready
                if (each.topic, each.partition) in there
            ),
            there,
        )
        batch_id = owned.state.last_batch_id + 1
        state = states.committed(
            owned.state, batch_id, PendingCommit(targets), fresh, context.now_ms()
        )
        # All of them, also those without a target: they end with the others.
        owned.delivering = {each.key for each in ready}
        # Until it is durable, and not put back before: what may be decided must not be cancelled.
        backoff = Backoff(_PAUSE_FIRST_MS, _PAUSE_MAX_MS, _rng.random)
        await context.log.append_decision(self._number, state, backoff)
        owned.known = state

    async def _finish(self, *, resumed: bool) -> None:
        """Append what is decided, mark it as delivered, then clear the decision."""
        context, owned, owner = self._context, self.owned, owner_of(self._number)
        work = CommitRunner(
            owned,
            context.broker,
            context.log,
            context.participants,
            self._delivered,
            context.log.read,
            targets=context.targets,
            persists_progress=False,
        )
        await work.run(owner, resumed)
        ids, now_ms = sorted(owned.delivering), context.now_ms()
        if ids:
            # Until it is durable: an id that is not marked would be delivered again after a
            # restart.
            backoff = Backoff(_PAUSE_FIRST_MS, _PAUSE_MAX_MS, _rng.random)
            await context.log.append_delivered(self._number, ids, now_ms, backoff)
        for each in ids:
            context.queue.end(each, self._number, now_ms)
        owned.delivering = set()
        # The decision is cleared behind the marks: a crash between them delivers nothing again, as
        # the producer id shows what is there.
        owned.finish()
        context.on_change()
        await context.log.append(owner, owned.state)

    def _delivered(self, _: int) -> None:
        self._context.counters.delivered += 1

    async def _delete_ended(self) -> None:
        """Ids that ended long ago need not be remembered."""
        context = self._context
        before_ms = context.now_ms() - context.remembered_ms
        gone = context.queue.expire_ended(self._number, before_ms)
        if gone:
            await context.log.delete(self._number, gone)
