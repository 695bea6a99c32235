"""What a consumer reads: one stream over its partitions, a bounded number of batches ahead."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lakemq.broker_core.api.errors import CorruptBatch, LakeMQError, NotLeader
from lakemq.broker_core.api.records.batch import CONTROL, RecordBatch, split
from lakemq.broker_core.api.types import TopicPartition
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.sdk.consumer.corrupt import CorruptPolicy
from lakemq.plugins.native.sdk.net import calls as wire
from lakemq.plugins.native.sdk.net.cluster_view import ReadRoute
from lakemq.plugins.native.sdk.net.errors import error_of
from lakemq.plugins.native.sdk.net.routes import Routes
from lakemq.plugins.native.sdk.net.sequencing import backoff_s
from lakemq.plugins.native.wire.fetched import FetchedPartition
from lakemq.plugins.native.wire.filtering import RecordFilter

_AHEAD: Final = 4
"""Answers of the broker that wait for the reader; HTTP/2's flow control holds back the rest."""


@dataclass(slots=True)
class Reading:
    """A partition being read."""

    topic_id: str
    position: int
    """Offset that is fetched next."""
    last_epoch: int = -1
    """Leader epoch of the batch before it; -1: not known."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """Batches of one partition, or why it is read no further."""

    place: TopicPartition
    reading: Reading
    """As it was when they were asked for: another one means that they are out of date."""
    batches: tuple[RecordBatch, ...]
    next_offset: int = 0
    """Behind everything that was looked at, wanted or not."""
    error: LakeMQError | None = None


class FetchLoop:
    """Reads all of `places`, in order within each. Every method is called on the event loop."""

    def __init__(
        self,
        routes: Routes,
        bootstrap: str,
        wanted: RecordFilter | None = None,
        corrupt: CorruptPolicy | None = None,
    ) -> None:
        self.places: dict[TopicPartition, Reading] = {}
        # Bounded: a slow application stops `_take`, which stops reading the stream, and HTTP/2's
        # window stops the broker.
        self.arrived: asyncio.Queue[Arrived] = asyncio.Queue(_AHEAD)
        self.failed: LakeMQError | None = None
        self._routes = routes
        self._bootstrap = bootstrap
        self._wanted = wanted
        self._corrupt = corrupt or CorruptPolicy("skip")
        self._pauses = backoff_s()
        self._tasks: set[asyncio.Task[None]] = set()
        self._again: asyncio.TimerHandle | None = None
        self._asked: dict[TopicPartition, ReadRoute] = {}
        """Where each is read now."""
        routes.watch(self._rerouted)

    def restart(self, places: Mapping[TopicPartition, Reading]) -> None:
        """Read these from now on, each from its leader; what arrived stays."""
        self.places = dict(places)
        # Queued answers stay. Each carries its `Reading`: the consumer drops those whose reading
        # was replaced, so no lock is needed between the two.
        self.stop()
        self._routes.start()
        by_address: dict[str, list[TopicPartition]] = {}
        for at in self.places:
            there = self._asked[at] = self._routes.read_route(*at)
            by_address.setdefault(there.address, []).append(at)
        for address, some in by_address.items():
            task = asyncio.create_task(self._run(address, some))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """End all streams; what has arrived stays."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()
        self._asked.clear()

    def _rerouted(self) -> None:
        """Metadata has changed: a former leader may not be able to say that it is one."""
        if any(self._routes.reads_elsewhere(*at, there) for at, there in self._asked.items()):
            self._restart_soon()

    def _restart_soon(self) -> None:
        """A stream broke, or a partition moved: restart all of them shortly."""
        if self._again is None:
            loop = asyncio.get_running_loop()
            # One timer for all streams: when a node dies, the streams that break together cause one
            # restart.
            self._again = loop.call_later(next(self._pauses), lambda: self.restart(self.places))

    async def _run(self, address: str, places: Sequence[TopicPartition]) -> None:
        call = None
        try:
            call = self._routes.stub(address).FetchMany(self._request(places))
            answer: FetchedPartition
            async for answer in call:  # type: ignore[assignment]  # parsed without copies
                await self._take(answer)
        except LakeMQError as failure:
            if not failure.retriable:
                self.failed = failure
                return
            where = address or self._bootstrap
            self._routes.notices.tell(
                "fetch", where,
                text=f"reading from {where} broke off: {failure}; {len(places)} partitions go on "
                "where they were",
            )  # fmt: skip
            for at in places:
                self._avoid(at)
        finally:
            if call is not None:
                call.cancel()
        self._restart_soon()

    def _avoid(self, at: TopicPartition) -> None:
        there = self._asked.get(at)
        if there is not None:
            self._routes.avoid(*at, there)

    def _offset(self, at: TopicPartition) -> pb.PartitionOffset:
        reading, there = self.places[at], self._asked[at]
        asked = pb.PartitionOffset(
            topic=at.topic,
            partition=at.partition,
            offset=reading.position,
            topic_id=reading.topic_id,
            leader_epoch=there.epoch,
            follower=there.follower,
        )
        wire.note_epoch(asked, reading.last_epoch)
        return asked

    def _request(self, places: Sequence[TopicPartition]) -> pb.FetchManyRequest:
        return pb.FetchManyRequest(
            partitions=[self._offset(at) for at in places],
            bytes_max=1024 * 1024,
            follow=True,
            filter=wire.filter_message(self._wanted),
        )

    async def _take(self, answer: FetchedPartition) -> None:
        place = TopicPartition(answer.topic, answer.partition)
        reading = self.places.get(place)
        # Dropped since the request was sent.
        if reading is None:
            return
        if answer.error is not None:
            error = error_of(answer.error)
            address = self._routes.route(*place).address
            # Handed on in order, behind the records before it: the application sees those first.
            if not error.retriable and not self._routes.may_lag(error, place.topic, address):
                await self.arrived.put(Arrived(place, reading, (), error=error))
                return
            if isinstance(error, NotLeader):
                self._routes.learn(*place, error)
            self._avoid(place)
            self._restart_soon()
            return
        self._pauses = backoff_s()
        batches: list[RecordBatch] = []
        next_offset = answer.fetched.next_offset
        corrupt: CorruptBatch | None = None
        try:
            for position, header in split(answer.fetched.batches):
                # If this batch turns out corrupt, reading stops before it, not behind the whole
                # answer.
                next_offset = header.base_offset
                # Control batches mark transactions and hold no records, but their offsets are
                # passed.
                if not header.attributes & CONTROL:
                    opened = self._corrupt.open(answer.fetched.batches, position, *place)
                    if opened is not None:
                        batches.append(opened)
            next_offset = answer.fetched.next_offset
        except CorruptBatch as error:  # what lies before it is handed out first
            corrupt = error
        await self.arrived.put(Arrived(place, reading, tuple(batches), next_offset))
        if corrupt is not None:
            await self.arrived.put(Arrived(place, reading, (), error=corrupt))
        # Last: cancelled while it waits for room, it has advanced nothing, and the restart asks
        # again. The same object as in `places`, so a restart goes on from here.
        reading.position = next_offset
        reading.last_epoch = answer.fetched.last_epoch if corrupt is None else -1
