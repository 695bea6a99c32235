"""One queue at work: its consumers, its partitions, and the task that brings them together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from lakemq.broker_core.api.errors import LakeMQError, NotLeader, UnknownTopic
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.types import CommittedBatch, TopicInfo
from lakemq.plugins.native.proto import queues_pb2 as pb
from lakemq.plugins.native.queues.consumer import Session
from lakemq.plugins.native.queues.dead_letters import Undertaker
from lakemq.plugins.native.queues.partition_runtime import Part, now_ms
from lakemq.plugins.native.queues.partition_state import QueuePartition, Settlement, fresh, ranges
from lakemq.plugins.native.queues.settings import QueueSettings
from lakemq.plugins.native.queues.snapshot import QueueKey, Snapshot

_log = logging.getLogger("lakemq.native")
_LOOK_S: Final = 1.0
"""How often to look for new partitions, or whether the topic is still there."""
_DELIVERY_RECORDS_MAX: Final = 1000
_CLOSE_S: Final = 2.0

Keep = Callable[[QueueKey, QueueSettings | Snapshot | None], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class QueueLimits:
    window_records_max: int
    """Unfinished records of a partition that are looked at."""
    delivery_max_bytes: int


@dataclass(slots=True)
class QueueCounters:
    """Since the broker started, of all queues."""

    delivered: int = 0
    settled: int = 0
    expired: int = 0


class RunningQueue:
    """Everything is called on the event loop."""

    def __init__(
        self,
        broker: Broker,
        group: str,
        topic: TopicInfo,
        settings: QueueSettings,
        keep: Keep,
        limits: QueueLimits,
        counters: QueueCounters,
    ) -> None:
        self.group, self.topic = group, topic
        self.settings = settings
        self.sessions: dict[int, Session] = {}
        self.parts: dict[int, Part] = {}
        self.undertakers: dict[int, Undertaker] = {}
        self._broker = broker
        self._keep = keep
        self._limits = limits
        self._counters = counters
        self._woken = asyncio.Event()
        self._turn = 0
        self._pump: asyncio.Task[None] | None = None
        self._remove_tap = broker.tap(topic.name, self._readable)

    # -- life

    def add_part(self, snapshot: Snapshot, number: int) -> Part:
        key = QueueKey(self.group, self.topic.name, number)

        async def keep(snapshot: Snapshot) -> None:
            await self._keep(key, snapshot)

        log = self._broker.partition(self.topic.name, number)
        state = QueuePartition(self.settings, snapshot)
        part = Part(
            number,
            state,
            log,
            keep,
            topic=self.topic.name,
            window_max=self._limits.window_records_max,
        )
        self.parts[number] = part
        self.undertakers[number] = Undertaker(
            self._broker, part, self.group, self.topic.name, self.wake
        )
        return part

    def change_settings(self, settings: QueueSettings) -> None:
        self.settings = settings
        for part in self.parts.values():
            part.state.settings = settings
        self.wake()

    async def stop(self, failure: LakeMQError | None = None) -> None:
        """End all sessions, write what is to be written."""
        self._remove_tap()
        for session in list(self.sessions.values()):
            session.end(failure)
            self.leave(session)
        tasks = [self._pump] if self._pump is not None else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(each.stop() for each in self.undertakers.values()))
        await asyncio.gather(*(part.close(_CLOSE_S) for part in self.parts.values()))

    # -- consumers

    def join(self, session: Session) -> None:
        self.sessions[session.number] = session
        if self._pump is None:
            self._pump = asyncio.create_task(self._run())
        self.wake()

    def leave(self, session: Session) -> None:
        """Give back what the session holds."""
        self.sessions.pop(session.number, None)
        for part in self.parts.values():
            if part.state.leave(session.number, now_ms()):
                part.changed()
        self.wake()

    def settle(
        self, session: Session, request: pb.SettleRecords
    ) -> tuple[list[tuple[int, int]], asyncio.Future[None] | None]:
        """(offsets, as ranges, that the session does not hold; what to wait for before that is
        answered). Raises UnknownPartition."""
        self._broker.partition(self.topic.name, request.partition)
        part = self.parts.get(request.partition)
        lost: set[int] = set()
        if part is None:
            return [(each.first, each.last) for each in request.ranges], None
        kind, now = Settlement(request.settlement), now_ms()
        delay_ms = request.delay_ms if request.HasField("delay_ms") else -1
        for each in request.ranges:
            for offset in range(each.first, each.last + 1):
                if not part.state.settle(session.number, offset, kind, now, delay_ms):
                    lost.add(offset)
                else:
                    self._counters.settled += kind is not Settlement.EXTEND
        if kind is Settlement.EXTEND:
            return ranges(lost), None
        self.wake()
        return ranges(lost), part.kept()

    # -- the pump

    def wake(self) -> None:
        self._woken.set()

    def _readable(self, _: Sequence[CommittedBatch]) -> None:
        self._woken.set()

    async def _run(self) -> None:
        try:
            while self.sessions:
                self._woken.clear()
                try:
                    self._look()
                    delivered = await self._deliver()
                except LakeMQError as error:
                    await self._failed(error)
                    continue
                except Exception as error:  # a consumer must not wait for what never comes
                    _log.exception("queue %s/%s", self.group, self.topic.name)
                    await self._failed(LakeMQError(f"the queue failed: {error!r}"))
                    continue
                if not delivered and not self._woken.is_set():
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._pause_s()):
                            await self._woken.wait()
        finally:
            self._pump = None
            for part in self.parts.values():
                part.source.forget()

    async def _failed(self, error: LakeMQError) -> None:
        """Consumers are told when it can't go on; what may pass is tried again."""
        if error.retriable and not isinstance(error, NotLeader):
            await asyncio.sleep(_LOOK_S)
            return
        _log.warning("queue %s/%s: %s", self.group, self.topic.name, error)
        for session in list(self.sessions.values()):
            session.end(error)
            self.leave(session)

    def _look(self) -> None:
        """What time and others have changed: partitions, locks, dead letters."""
        topic = self._broker.topic(self.topic.name)
        if topic.topic_id != self.topic.topic_id:
            raise UnknownTopic(f"topic {topic.name} was created again; open the queue again")
        for number in range(topic.partitions):
            self._broker.partition(topic.name, number)  # raises NotLeader once it is another's
            if number not in self.parts:  # it was added: all of it is new
                self.add_part(fresh(topic.topic_id, 0), number)
        now = now_ms()
        for number, part in self.parts.items():
            expired = part.state.expire(now)
            if expired:
                self._counters.expired += len(expired)
                part.changed()
            self.undertakers[number].look()

    def _pause_s(self) -> float:
        dues = [due for part in self.parts.values() if (due := part.state.next_due_ms())]
        if not dues:
            return _LOOK_S
        return min(_LOOK_S, max(0.001, (min(dues) - now_ms()) / 1000))

    async def _deliver(self) -> bool:
        """One round: each consumer that has room gets what is there, first who has waited longest;
        whether any got."""
        some = False
        for session in sorted(self.sessions.values(), key=lambda each: each.served):
            numbers = sorted(self.parts)
            self._turn += 1
            for step in range(len(numbers)):
                part = self.parts[numbers[(self._turn + step) % len(numbers)]]
                room = session.prefetch - self._held_by(session)
                if room <= 0 or not session.takes_deliveries:
                    break
                some |= await self._deliver_from(part, session, room)
        return some

    def _held_by(self, session: Session) -> int:
        return sum(part.state.held_by(session.number) for part in self.parts.values())

    async def _deliver_from(self, part: Part, session: Session, room: int) -> bool:
        count = min(room, _DELIVERY_RECORDS_MAX)
        await part.fill(count)
        if not session.takes_deliveries or not part.state.has_ready(now_ms()):
            return False
        taken = await part.take(session.number, count, self._limits.delivery_max_bytes)
        if taken is None:
            return True
        batch, delivered = taken
        if not session.is_open or session.number not in self.sessions:
            part.state.leave(session.number, now_ms())
            part.changed()
            return True
        self._counters.delivered += len(delivered)
        session.served = self._turn
        session.say(
            pb.QueueResponse(
                delivery=pb.QueueDelivery(
                    partition=part.number,
                    batch=batch,
                    attempts=[each.attempt for each in delivered],
                    lock_ms=self.settings.lock_ms,
                )
            )
        )
        return True

    # -- for operators

    async def reset(self, offsets: dict[int, int]) -> None:
        """Go on from these offsets; only without sessions. Returns when that is on disk."""
        waits = []
        for number, offset in offsets.items():
            await self.undertakers[number].stop()
            await self.parts[number].close(_CLOSE_S)
            part = self.add_part(fresh(self.topic.topic_id, offset), number)
            waits.append(part.kept())
        await asyncio.gather(*waits)
