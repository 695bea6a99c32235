"""The gRPC edge of `queues.proto`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from lakemq.broker_core.api.errors import InvalidRequest, LakeMQError
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.queues.ports import QueueConsumer
from lakemq.broker_core.api.queues.types import QueueDelivery, Settlement
from lakemq.plugins.native.proto import queues_pb2 as pb
from lakemq.plugins.native.proto.queues_pb2_grpc import QueuesServicer
from lakemq.plugins.native.queues.convert import (
    delivery_message,
    given_settings,
    queue_message,
    settings_message,
)
from lakemq.plugins.native.server.authentication import Context, principal_of
from lakemq.plugins.native.server.convert import error_message, other_addresses

_UNANSWERED_MAX: Final = 1000
"""Settlements of one stream that wait for the disk; above it the broker stops reading the
stream."""
_OFFSETS_MAX: Final = 100_000
"""In all ranges of one settlement."""


class QueueService(QueuesServicer):
    """Implements `queues.proto`, which documents each call."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._open: set[QueueConsumer] = set()

    def end(self) -> None:
        """End the streams of all consumers: the node stops."""
        for consumer in self._open:
            consumer.end()

    async def ConsumeQueue(
        self, request_iterator: AsyncIterator[pb.QueueRequest], context: Context
    ) -> AsyncIterator[pb.QueueResponse]:
        """Deliver records of a queue to one consumer, and answer its settlements once they are on
        disk. Raises InvalidRequest (the first message must open a queue), and what
        `QueueCoordinators.open` raises."""
        principal = await principal_of(self._broker, context)
        first = await anext(request_iterator, None)
        if first is None or not first.HasField("open"):
            raise InvalidRequest("the first request opens a queue")
        asked = first.open
        consumer = await self._broker.queues.open(
            asked.group, asked.topic, principal=principal, prefetch=asked.prefetch,
            given=given_settings(asked.settings),
        )  # fmt: skip
        opened = pb.QueueOpened(
            settings=settings_message(consumer.settings), topic_id=consumer.topic_id
        )
        consumer.send(pb.QueueResponse(opened=opened))
        self._open.add(consumer)
        reader = asyncio.create_task(_read(request_iterator, consumer))
        try:
            while (said := await consumer.next()) is not None:
                yield response_of(said)
            if consumer.failure is not None:
                raise consumer.failure
        finally:
            self._open.discard(consumer)
            reader.cancel()
            consumer.close()

    async def DescribeQueues(
        self, request: pb.DescribeQueuesRequest, context: Context
    ) -> pb.DescribeQueuesResponse:
        """Settings and state of the queues that the caller may describe."""
        broker = self._broker
        principal = await principal_of(broker, context)
        found = await broker.queues.describe(request.group, request.topic, principal=principal)
        others = broker.queues.coordinators()
        return pb.DescribeQueuesResponse(
            queues=map(queue_message, found),
            others=other_addresses(broker.node_id, broker.nodes(), others),
        )

    async def AlterQueue(
        self, request: pb.AlterQueueRequest, context: Context
    ) -> pb.AlterQueueResponse:
        """Change the settings of a queue, or create it. Raises what `QueueCoordinators.alter`
        raises."""
        principal = await principal_of(self._broker, context)
        settings = await self._broker.queues.alter(
            request.group, request.topic, given_settings(request.settings), principal=principal
        )
        return pb.AlterQueueResponse(settings=settings_message(settings))

    async def ResetQueue(
        self, request: pb.ResetQueueRequest, context: Context
    ) -> pb.ResetQueueResponse:
        """Let a queue without consumers continue from other offsets. Raises what
        `QueueCoordinators.reset` raises."""
        principal = await principal_of(self._broker, context)
        await self._broker.queues.reset(
            request.group, request.topic, dict(request.offsets), principal=principal
        )
        return pb.ResetQueueResponse()

    async def DeleteQueue(
        self, request: pb.DeleteQueueRequest, context: Context
    ) -> pb.DeleteQueueResponse:
        """Delete a queue without consumers. Raises what `QueueCoordinators.delete` raises."""
        principal = await principal_of(self._broker, context)
        await self._broker.queues.delete(request.group, request.topic, principal=principal)
        return pb.DeleteQueueResponse()


def response_of(said: object) -> pb.QueueResponse:
    """What `QueueConsumer.next` gives, as protobuf."""
    if isinstance(said, QueueDelivery):
        return delivery_message(said)
    assert isinstance(said, pb.QueueResponse)
    return said


async def _read(requests: AsyncIterator[pb.QueueRequest], consumer: QueueConsumer) -> None:
    """Settlements of one stream, until it ends."""
    room = asyncio.Semaphore(_UNANSWERED_MAX)
    failure: LakeMQError | None = None
    try:
        async for request in requests:
            await room.acquire()
            _settle(request, consumer, room)
    except LakeMQError as error:
        failure = error
    finally:
        consumer.end(failure)


def _settle(request: pb.QueueRequest, consumer: QueueConsumer, room: asyncio.Semaphore) -> None:
    settle = request.settle
    try:
        _check(request)
        lost, persisted = consumer.settle(
            settle.partition,
            [(each.first, each.last) for each in settle.ranges],
            Settlement(settle.settlement),
            settle.delay_ms if settle.HasField("delay_ms") else -1,
        )
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
