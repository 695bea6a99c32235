"""Delayed batches: kept until their time, then appended to their partition, once. Implements the
`Schedules` port. Edge: clock and broker.

Delivering is a commit like any other: one durable record names what is delivered now, then it is
appended with the producer's identity of that record, then it is marked as delivered. Whoever goes
on after a crash finds out what is there already. The clock is the wall clock, looked at once a
second at least: when it jumps ahead, what became due by that is delivered; when it jumps back, it
waits longer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from broker_core.admission import Admission
from broker_core.api.errors import LakeMQError, NotLeader, UnknownSchedule
from broker_core.api.ports import Broker
from broker_core.api.schedules import (
    ScheduleAnswer,
    ScheduleAsked,
    ScheduleCounters,
    ScheduledBatch,
)
from broker_core.api.transactions import Owner
from broker_core.api.types import AppendResult, Operation, Principal, Resource
from broker_core.settings import ScheduleSettings
from broker_core.transactions import state as states
from broker_core.transactions.coordinator_log import PARTITIONS, CoordinatorLog
from broker_core.transactions.delayed_format import Delayed, Ended
from broker_core.transactions.delayed_log import DelayedLog
from broker_core.transactions.formats import TIMER
from broker_core.transactions.owned import Owned, Participants, Work
from broker_core.transactions.state import OwnerState, Pending
from broker_core.transactions.timer import Timer, TimerLimits, Waiting

_log = logging.getLogger("lakemq.schedules")

_LOOK_S: Final = 1.0
_PAUSE_S: Final = 1.0
_BATCHES_AT_ONCE: Final = 5_000
_BYTES_AT_ONCE: Final = 16 * 1024 * 1024


class Scheduler:
    """All delayed batches of this node; each partition of their topic delivers for itself."""

    def __init__(
        self,
        broker: Broker,
        settings: ScheduleSettings,
        now_ms: Callable[[], int],
        admission: Admission | None = None,
    ) -> None:
        self._admission = admission or Admission(
            lambda *given: broker.schemas.check_batch(*given), now_ms
        )
        self.counters = ScheduleCounters()
        self.now_ms = now_ms
        self._broker = broker
        self._settings = settings
        self._log = CoordinatorLog(broker)
        self._delayed = DelayedLog(broker)
        self._timer = Timer(
            TimerLimits(settings.batches_max, settings.bytes_max, settings.horizon_ms)
        )
        self._owned = [Owned(OwnerState()) for _ in range(PARTITIONS)]
        self._wake = [asyncio.Event() for _ in range(PARTITIONS)]
        self._tasks: list[asyncio.Task[None]] = []

    # -- life

    async def start(self) -> None:
        """Read back what waits; go on with deliveries that were decided."""
        for owner, state in (await self._log.load_states()).items():
            if owner.kind == TIMER and int(owner.name) < PARTITIONS:
                self._owned[int(owner.name)] = Owned(state)
        async for schedule_id, number, found in self._delayed.load():
            self._load(schedule_id, number, found)
        for number, owned in enumerate(self._owned):
            for waiting in self._decided(number, owned):
                waiting.delivering = True  # can't be cancelled any more
        self._count()
        self._tasks = [asyncio.create_task(self._run(number)) for number in range(PARTITIONS)]

    def _load(self, schedule_id: str, number: int, found: Waiting | Ended | None) -> None:
        if isinstance(found, Waiting):
            self._timer.add(found)
            return
        newer = self._timer.find(schedule_id)
        if newer is not None and newer.log_partition != number:
            return  # The id was used again since, for another partition.
        if isinstance(found, Ended):
            self._timer.end(schedule_id, number, found.ended_ms)
        else:
            self._timer.forget(schedule_id)

    async def stop(self) -> None:
        """What is being delivered goes on at the next start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- what callers ask

    async def schedule(self, asked: ScheduleAsked, *, principal: Principal) -> ScheduleAnswer:
        self._broker.authorize(principal, Operation.WRITE, Resource("topic", asked.topic))
        info = self._broker.topic(asked.topic)
        self._broker.partition(asked.topic, asked.partition)
        header = self._admission.header(info, asked.batch)
        await self._admission.check(info, asked.batch, header)
        await self._log.ensure_topics()
        ended_ms = self._timer.ended_ms(asked.schedule_id)
        if ended_ms is not None:
            return ScheduleAnswer(min(asked.deliver_at_ms, ended_ms), True)
        found = self._timer.find(asked.schedule_id)
        if found is None:
            now_ms = self.now_ms()
            size = len(asked.batch)
            self._timer.check(asked.schedule_id, asked.deliver_at_ms, size, now_ms)
            delayed = Delayed(
                asked.deliver_at_ms, asked.keep_timestamps, asked.topic, info.topic_id,
                asked.partition, header.record_count, asked.batch,
            )  # fmt: skip
            waiting, written = self._delayed.append(asked.schedule_id, delayed, now_ms)
            self._timer.add(waiting)
            waiting.written = written
            written.add_done_callback(lambda done: self._written(waiting, done))
        else:
            waiting = found
        if waiting.written is not None:
            await asyncio.shield(waiting.written)
        return ScheduleAnswer(waiting.deliver_at_ms, found is not None)

    def _written(self, waiting: Waiting, done: asyncio.Future[AppendResult]) -> None:
        if done.cancelled() or done.exception() is not None:
            if self._timer.find(waiting.schedule_id) is waiting:
                self._timer.remove(waiting.schedule_id)
            return
        waiting.written = None
        self._timer.became_durable(waiting)
        self.counters.scheduled += 1
        self._count()
        self._wake[waiting.log_partition].set()

    async def cancel(self, schedule_id: str, *, principal: Principal) -> None:
        waiting = self._timer.find(schedule_id)
        if waiting is None or not waiting.durable or waiting.delivering:
            raise UnknownSchedule(
                f"nothing waits under {schedule_id[:100]!r}; it may have been delivered"
            )
        self._broker.authorize(principal, Operation.WRITE, Resource("topic", waiting.topic))
        waiting.delivering = True  # from here on it is not delivered, however long this takes
        await asyncio.shield(self._cancel(waiting))

    def _cancel(self, waiting: Waiting) -> asyncio.Future[Any]:
        async def cancel() -> None:
            number, now_ms = waiting.log_partition, self.now_ms()
            try:
                await self._delayed.append_ended(number, [waiting.schedule_id], now_ms)
            except LakeMQError:
                self._timer.put_back([waiting])
                self._wake[number].set()
                raise
            self._timer.end(waiting.schedule_id, number, now_ms)
            self.counters.cancelled += 1
            self._count()

        return asyncio.ensure_future(cancel())

    def describe(
        self, topic: str, count_max: int, *, principal: Principal
    ) -> Sequence[ScheduledBatch]:
        found: list[ScheduledBatch] = []
        for each in self._may_describe(topic, principal):
            if len(found) == count_max:
                break
            found.append(
                ScheduledBatch(
                    each.schedule_id, each.topic, each.partition, each.deliver_at_ms,
                    each.records, each.size_bytes,
                )
            )  # fmt: skip
        return found

    def _may_describe(self, topic: str, principal: Principal) -> Iterator[Waiting]:
        judged: dict[str, bool] = {}
        for each in self._timer.upcoming():
            if each.delivering or (topic and each.topic != topic):
                continue
            if each.topic not in judged:
                resource = Resource("topic", each.topic)
                try:
                    self._broker.authorize(principal, Operation.DESCRIBE, resource)
                    judged[each.topic] = True
                except LakeMQError:
                    judged[each.topic] = False
            if judged[each.topic]:
                yield each

    def _count(self) -> None:
        self.counters.waiting = len(self._timer)
        self.counters.waiting_bytes = self._timer.size_bytes

    # -- delivering

    async def _run(self, number: int) -> None:
        owned = self._owned[number]
        while True:
            try:
                if owned.state.pending is not None:
                    await self._finish(number, owned, resumed=True)
                await self._wait(number)
                due = self._timer.take_due(number, self.now_ms(), _BATCHES_AT_ONCE, _BYTES_AT_ONCE)
                if due:
                    await self._deliver(number, owned, due)
                await self._forget(number)
            except LakeMQError as error:
                _log.warning("delayed batches of partition %d: %s", number, error)
                await asyncio.sleep(_PAUSE_S)

    async def _wait(self, number: int) -> None:
        """Until something is due, something new has come, or it is time to look at the clock."""
        next_ms = self._timer.next_ms(number)
        wait_s = _LOOK_S
        if next_ms is not None:
            wait_s = min(_LOOK_S, max(0.0, (next_ms - self.now_ms()) / 1000))
        self._wake[number].clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._wake[number].wait()

    async def _deliver(self, number: int, owned: Owned, due: Sequence[Waiting]) -> None:
        ready = [each for each in due if self._is_ready(each)]
        chosen = {each.schedule_id for each in ready}
        later = [each for each in due if each.schedule_id not in chosen]
        try:
            if ready:
                await self._decide(number, owned, ready)
        except LakeMQError as error:
            if error.retriable:  # else the decision may be on disk: the next start knows
                self._timer.put_back(due)
            raise
        if ready:
            self.counters.late_ms = max(0, self.now_ms() - ready[0].deliver_at_ms)
            await self._finish(number, owned, resumed=False)
        if later:
            await asyncio.sleep(_PAUSE_S)
            self._timer.put_back(later)

    def _is_ready(self, waiting: Waiting) -> bool:
        """Whether its partition takes records; what has no partition any more goes with it."""
        try:
            info = self._broker.topic(waiting.topic)
            if info.topic_id != waiting.topic_id:
                return True
            return (
                self._broker.partition(waiting.topic, waiting.partition).status().state == "online"
            )
        except NotLeader:
            return False
        except LakeMQError:
            return True

    async def _decide(self, number: int, owned: Owned, ready: Sequence[Waiting]) -> None:
        fresh = await self._broker.allocate_producer_id() if owned.state.needs_producer_id else None
        floors: dict[tuple[str, int], int] = {}
        for each in ready:
            with suppress(LakeMQError):
                log = self._broker.partition(each.topic, each.partition)
                floors.setdefault((each.topic, each.partition), log.log_end_offset)
        targets = states.targets_of(
            ((each.topic, each.topic_id, each.partition, each.entry)
             for each in ready if (each.topic, each.partition) in floors),
            floors,
        )  # fmt: skip
        batch_id = owned.state.last_batch_id + 1
        state = states.committed(owned.state, batch_id, Pending(targets), fresh, self.now_ms())
        owned.delivering = [each.schedule_id for each in ready]
        await self._log.append_state(Owner(TIMER, str(number)), state, state.updated_ms)
        owned.known = state

    def _decided(self, number: int, owned: Owned) -> list[Waiting]:
        """What the decision that is pending is about, as far as it still waits."""
        targets = owned.state.pending.targets if owned.state.pending else ()
        return self._timer.at(
            number, {entry.offset for target in targets for entry in target.entries}
        )

    async def _finish(self, number: int, owned: Owned, *, resumed: bool) -> None:
        """Append what is decided, mark it as delivered, then forget the decision."""
        owner = Owner(TIMER, str(number))
        ids = [
            *owned.delivering,
            *(each.schedule_id for each in self._decided(number, owned)),
        ]
        work = Work(
            owned, self._broker, self._log, Participants(), self._delivered, self._delayed.read
        )
        await work.run(owner, resumed, self.now_ms)
        while ids:
            try:
                await self._delayed.append_ended(number, sorted(set(ids)), self.now_ms())
                break
            except LakeMQError as error:
                _log.warning("delivered batches are not marked yet: %s", error)
                await asyncio.sleep(_PAUSE_S)
        for each in set(ids):
            self._timer.end(each, number, self.now_ms())
        owned.delivering = []
        owned.finish()
        self._count()
        await self._log.append_state(owner, owned.state, self.now_ms())

    def _delivered(self, _: int) -> None:
        self.counters.delivered += 1

    async def _forget(self, number: int) -> None:
        """Ids that ended long ago need not be remembered."""
        gone = self._timer.forgotten(number, self.now_ms() - self._settings.remembered_ms)
        if gone:
            await self._delayed.append_forgotten(number, gone, self.now_ms())
