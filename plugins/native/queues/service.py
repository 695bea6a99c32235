"""The gRPC edge of `queues.proto`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from lakemq.broker_core.api.errors import InvalidRequest, LakeMQError
from lakemq.broker_core.api.ports import Broker
from lakemq.plugins.native.config import NativeSettings
from lakemq.plugins.native.proto import queues_pb2 as pb
from lakemq.plugins.native.proto.queues_pb2_grpc import QueuesServicer
from lakemq.plugins.native.queues.consumer import QueueConsumer
from lakemq.plugins.native.queues.convert import settings_message
from lakemq.plugins.native.queues.host import QueueHost
from lakemq.plugins.native.queues.queue import RunningQueue
from lakemq.plugins.native.server.authentication import Context, principal_of
from lakemq.plugins.native.server.convert import error_message

_UNANSWERED_MAX: Final = 1000
"""Settlements of one stream that wait for the disk; above it the broker stops reading the
stream."""
_OFFSETS_MAX: Final = 100_000
"""In all ranges of one settlement."""


class QueueService(QueuesServicer):
    """Implements `queues.proto`, which documents each call."""

    def __init__(self, broker: Broker, settings: NativeSettings) -> None:
        self.host = QueueHost(broker, settings)
        self._broker = broker

    async def ConsumeQueue(
        self, request_iterator: AsyncIterator[pb.QueueRequest], context: Context
    ) -> AsyncIterator[pb.QueueResponse]:
        """Deliver records of a queue to one consumer, and answer its settlements once they are on
        disk. Raises InvalidRequest (the first message must open a queue), and what `QueueHost.join`
        raises."""
        principal = await principal_of(self._broker, context)
        first = await anext(request_iterator, None)
        if first is None or not first.HasField("open"):
            raise InvalidRequest("the first request opens a queue")
        queue, consumer = await self.host.join(first.open, principal)
        consumer.send(
            pb.QueueResponse(
                opened=pb.QueueOpened(
                    settings=settings_message(queue.settings), topic_id=queue.topic.topic_id
                )
            )
        )
        reader = asyncio.create_task(_read(request_iterator, queue, consumer))
        try:
            while (response := await consumer.next()) is not None:
                yield response
                # gRPC has taken the delivery, so the consumer may get the next one.
                if response.HasField("delivery"):
                    queue.wake()
            if consumer.failure is not None:
                raise consumer.failure
        finally:
            consumer.end()
            reader.cancel()
            queue.leave(consumer)

    async def DescribeQueues(
        self, request: pb.DescribeQueuesRequest, context: Context
    ) -> pb.DescribeQueuesResponse:
        """Settings and state of the queues that the caller may describe."""
        principal = await principal_of(self._broker, context)
        return pb.DescribeQueuesResponse(
            queues=await self.host.describe(request, principal),
            others=self.host.other_coordinators(),
        )

    async def AlterQueue(
        self, request: pb.AlterQueueRequest, context: Context
    ) -> pb.AlterQueueResponse:
        """Change the settings of a queue, or create it. Raises what `QueueHost.alter` raises."""
        principal = await principal_of(self._broker, context)
        settings = await self.host.alter(request, principal)
        return pb.AlterQueueResponse(settings=settings_message(settings))

    async def ResetQueue(
        self, request: pb.ResetQueueRequest, context: Context
    ) -> pb.ResetQueueResponse:
        """Let a queue without consumers continue from other offsets. Raises what `QueueHost.reset`
        raises."""
        await self.host.reset(request, await principal_of(self._broker, context))
        return pb.ResetQueueResponse()

    async def DeleteQueue(
        self, request: pb.DeleteQueueRequest, context: Context
    ) -> pb.DeleteQueueResponse:
        """Delete a queue without consumers. Raises what `QueueHost.delete` raises."""
        await self.host.delete(request, await principal_of(self._broker, context))
        return pb.DeleteQueueResponse()


async def _read(
    requests: AsyncIterator[pb.QueueRequest], queue: RunningQueue, consumer: QueueConsumer
) -> None:
    """Settlements of one stream, until it ends."""
    room = asyncio.Semaphore(_UNANSWERED_MAX)
    failure: LakeMQError | None = None
    try:
        async for request in requests:
            await room.acquire()
            _settle(request, queue, consumer, room)
    except LakeMQError as error:
        failure = error
    finally:
        consumer.end(failure)


def _settle(
    request: pb.QueueRequest, queue: RunningQueue, consumer: QueueConsumer, room: asyncio.Semaphore
) -> None:
    settle = request.settle
    try:
        _check(request)
        lost, persisted = queue.settle(consumer, settle)
    except LakeMQError as error:
        room.release()
        answer = pb.RecordsSettled(request_id=settle.request_id, error=error_message(error))
        consumer.send(pb.QueueResponse(settled=answer))
        return
    answer = pb.RecordsSettled(
        request_id=settle.request_id,
        lost=[pb.OffsetRange(first=first, last=last) for first, last in lost],
    )

    def answered(written: asyncio.Future[None] | None = None) -> None:
        room.release()
        # Another node goes on from what it can read: whether that has it is not known here. The
        # stream ends.
        if written is None or written.exception() is None:
            consumer.send(pb.QueueResponse(settled=answer))

    if persisted is None:
        answered()
    else:
        # Answered from a callback, so that the stream is read on while the disk is waited for.
        persisted.add_done_callback(answered)


def _check(request: pb.QueueRequest) -> None:
    """Raises InvalidRequest, naming the field."""
    settle = request.settle
    if not request.HasField("settle"):
        raise InvalidRequest("only the first request opens a queue; the others settle records")
    if settle.settlement not in pb.Settlement.values():
        raise InvalidRequest(f"settlement is {settle.settlement}; it takes 0 to 4")
    if any(not 0 <= each.first <= each.last for each in settle.ranges):
        raise InvalidRequest("ranges: each takes 0 <= first <= last")
    if sum(each.last - each.first + 1 for each in settle.ranges) > _OFFSETS_MAX:
        raise InvalidRequest(f"ranges: {_OFFSETS_MAX} offsets at most")
    if settle.HasField("delay_ms") and not 0 <= settle.delay_ms <= 24 * 3_600_000:
        raise InvalidRequest(f"delay_ms is {settle.delay_ms}; it takes 0 to 86400000")
