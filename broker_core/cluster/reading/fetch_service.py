"""`Peer.Fetch` at the node that leads: committed batches for readers on other nodes, whose rights
are checked there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from lakemq.broker_core.api.errors import LakeMQError, OffsetOutOfRange, UnknownTopic
from lakemq.broker_core.api.leadership import check_partition
from lakemq.broker_core.api.partition_ports import BatchFilter
from lakemq.broker_core.api.ports import PartitionLog
from lakemq.broker_core.api.records.batch import split
from lakemq.broker_core.api.state.internal_topics import is_node_own
from lakemq.broker_core.api.types import CommittedBatch, FetchResult, Offset
from lakemq.broker_core.cluster.identity import Peer
from lakemq.broker_core.cluster.reading.fetch_frames import (
    FetchAnswer,
    FetchRequest,
    Wants,
    answer_parts,
    decode_requests,
)
from lakemq.broker_core.cluster.streams import TURN_S, ByteStream, first_of
from lakemq.broker_core.partitions import Partitions

ANSWER_MAX_BYTES: Final = 1024 * 1024
"""Batches of one answer, unless a single one is larger."""
WAIT_MAX_MS: Final = 30_000
_OPEN_MAX: Final = 16 * 1024
"""Requests of one node that are not answered; it is not read from while there are more."""
_READS_MAX: Final = 4
"""Answers of one node that are read, or wait until it has taken them, at a time."""


class FetchService:
    """Lives on the event loop."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._filters: dict[str, BatchFilter] = {}

    def filter_by(self, name: str, wants: BatchFilter) -> Callable[[], None]:
        """Ask `wants` before batches go to readers that named it; returns its removal."""
        self._filters[name] = wants

        def remove() -> None:
            self._filters.pop(name, None)

        return remove

    async def serve(self, peer: Peer, stream: ByteStream) -> None:
        """One stream of another node, until it ends. Raises BadFrame."""
        caller = _Caller(peer, stream, self._partitions, self._filters)
        try:
            await first_of(caller.read(), caller.say_it_lives())
        finally:
            await caller.stop()


class _Caller:
    """One stream."""

    def __init__(
        self,
        peer: Peer,
        stream: ByteStream,
        partitions: Partitions,
        filters: Mapping[str, BatchFilter],
    ) -> None:
        self._peer = peer
        self._filters = filters
        self._stream = stream
        self._partitions = partitions
        self._open: set[asyncio.Task[None]] = set()
        self._room = asyncio.Event()
        self._reads = asyncio.Semaphore(_READS_MAX)
        self._writes = asyncio.Lock()

    async def read(self) -> None:
        while (data := await self._stream.read()) is not None:
            for request in decode_requests(data):
                task = asyncio.create_task(self._answer(request))
                self._open.add(task)
                task.add_done_callback(self._ended)
            while len(self._open) > _OPEN_MAX:
                self._room.clear()
                await self._room.wait()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._open.discard(task)
        self._room.set()
        if not task.cancelled():
            task.exception()  # of a stream that has ended: `read` and `say_it_lives` tell

    async def say_it_lives(self) -> None:
        while True:
            await asyncio.sleep(TURN_S)
            async with self._writes:
                await self._stream.write(b"")

    async def stop(self) -> None:
        tasks = list(self._open)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, request: FetchRequest) -> None:
        wants = self._filters.get(request.wanted.filter) if request.wanted is not None else None
        if wants is None:
            await self._answer_whole(request)
            return
        try:
            result = await self._filtered(request, wants)
        except LakeMQError as error:
            await self._say(FetchAnswer(request.id, error))
        else:
            await self._say(FetchAnswer(request.id, result))

    async def _filtered(self, request: FetchRequest, wants: BatchFilter) -> FetchResult:
        """Read until there is a batch that the node wants, or its time is over: it learns then up
        to where there is none."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + min(request.wait_ms, WAIT_MAX_MS) / 1000
        offset = request.offset
        while True:
            left_ms = max(0, int((until_s - loop.time()) * 1000))
            step = request._replace(offset=offset, wait_ms=left_ms)
            await self._wait(step)
            async with self._reads:
                got = await self._done(step)
            data = self._wanted(request, got.data, wants)
            if data or not left_ms or got.next_offset == offset:
                return replace(got, data=data)
            offset = got.next_offset

    def _wanted(self, request: FetchRequest, data: bytes, wants: BatchFilter) -> bytes:
        topic = self._partitions.find_id(request.topic_id)
        if topic is None or request.wanted is None:
            return data
        kept = []
        for place, header in split(data):
            batch = data[place : place + header.total_bytes]
            found = CommittedBatch(topic.name, request.partition, Offset(header.base_offset), batch)
            if wants(self._peer, request.wanted.number, found):
                kept.append(batch)
        return b"".join(kept)

    async def _answer_whole(self, request: FetchRequest) -> None:
        try:
            if request.wants is Wants.BATCHES:
                await self._wait(request)
        except LakeMQError as error:
            await self._say(FetchAnswer(request.id, error))
            return
        # Not sooner: many may wait, and they hold nothing.
        async with self._reads:
            outcome: FetchResult | LakeMQError
            try:
                outcome = await self._done(request)
            except LakeMQError as error:
                outcome = error
            await self._say(FetchAnswer(request.id, outcome))

    async def _wait(self, request: FetchRequest) -> None:
        log = self._log(request)
        offset, wait_ms = Offset(request.offset), min(request.wait_ms, WAIT_MAX_MS)
        if wait_ms and offset >= log.high_watermark:
            with suppress(OffsetOutOfRange):  # said by the fetch that follows
                await log.fetch(offset, bytes_max=1, wait_ms=wait_ms)

    async def _done(self, request: FetchRequest) -> FetchResult:
        log = self._log(request)
        if request.wants is Wants.BATCHES:
            return await log.fetch(
                Offset(request.offset), bytes_max=min(request.bytes_max, ANSWER_MAX_BYTES)
            )
        offset = log.log_end_offset
        if request.wants is Wants.TIME:
            offset = await log.offset_for_timestamp(request.timestamp_ms)
        return FetchResult(b"", offset, log.high_watermark, log.log_start_offset)

    def _log(self, request: FetchRequest) -> PartitionLog:
        topic = self._partitions.find_id(request.topic_id)
        if topic is None or is_node_own(topic.name):
            raise UnknownTopic(f"no topic has the id {request.topic_id}, as far as is known here")
        check_partition(topic, request.partition)
        return self._partitions.log(topic.name, request.partition)

    async def _say(self, answer: FetchAnswer) -> None:
        async with self._writes:
            await self._stream.write(b"".join(answer_parts(answer)))
