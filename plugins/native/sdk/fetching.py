"""What a consumer reads: one stream over its partitions, a bounded number of batches ahead."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import grpc

from broker_core.api.errors import LakeMQError
from broker_core.api.record_batch import CONTROL, RecordBatch, split
from broker_core.api.types import TopicPartition
from plugins.native import native_pb2 as pb
from plugins.native.sdk import wire
from plugins.native.sdk.filtering import RecordFilter
from plugins.native.sdk.sequencing import backoff_s

if TYPE_CHECKING:
    from plugins.native.native_pb2_grpc import NativeAsyncStub  # in the stub file only

_AHEAD: Final = 4
"""Answers of the broker that wait for the reader; HTTP/2's flow control holds back the rest."""


@dataclass(slots=True)
class Reading:
    """A partition being read."""

    topic_id: str
    position: int
    """Offset that is fetched next."""


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
        self, stub: NativeAsyncStub, bootstrap: str, wanted: RecordFilter | None = None
    ) -> None:
        self.places: dict[TopicPartition, Reading] = {}
        self.arrived: asyncio.Queue[Arrived] = asyncio.Queue(_AHEAD)
        self.failed: LakeMQError | None = None
        self._stub = stub
        self._bootstrap = bootstrap
        self._wanted = wanted
        self._task: asyncio.Task[None] | None = None

    def restart(self, places: Mapping[TopicPartition, Reading]) -> None:
        """Read these from now on; what arrived stays."""
        self.places = dict(places)
        self.stop()
        if self.places:
            self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        pauses = backoff_s()
        while self.places:
            call = self._stub.FetchMany(self._request())
            try:
                async for answer in call:
                    pauses = backoff_s()
                    await self._take(answer)
            except grpc.RpcError as error:
                failure = wire.error_from(error, self._bootstrap)
                if not failure.retriable:
                    self.failed = failure
                    return
            finally:
                call.cancel()
            await asyncio.sleep(next(pauses))

    def _request(self) -> pb.FetchManyRequest:
        return pb.FetchManyRequest(
            partitions=[
                pb.PartitionOffset(
                    topic=at.topic, partition=at.partition, offset=reading.position,
                    topic_id=reading.topic_id,
                )
                for at, reading in self.places.items()
            ],
            bytes_max=1024 * 1024,
            follow=True,
            filter=wire.filter_message(self._wanted),
        )  # fmt: skip

    async def _take(self, answer: pb.FetchManyResponse) -> None:
        place = TopicPartition(answer.topic, answer.partition)
        reading = self.places.get(place)
        if reading is None:
            return
        if answer.HasField("error"):
            error = wire.error_of(answer.error)
            if not error.retriable:
                await self.arrived.put(Arrived(place, reading, (), error=error))
            return
        data = answer.fetched.batches
        batches = tuple(
            RecordBatch(data, position)
            for position, header in split(data)
            if not header.attributes & CONTROL
        )
        next_offset = answer.fetched.next_offset
        await self.arrived.put(Arrived(place, reading, batches, next_offset))
        reading.position = next_offset
