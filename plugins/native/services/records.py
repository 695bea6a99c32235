"""The gRPC edge of the native protocol: requests in, calls on the `Broker` port out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

import grpc

from lakemq.broker_core.api.errors import InvalidRequest, LakeMQError
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.tracing import Traces
from lakemq.broker_core.api.types import (
    Acks,
    AppendResult,
    Operation,
    Principal,
    Resource,
    TopicInfo,
)
from lakemq.plugins.native.config import NativeSettings
from lakemq.plugins.native.groups.messages import group_commit, group_message
from lakemq.plugins.native.groups.streams import MemberStreams
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.proto.native_pb2_grpc import NativeServicer
from lakemq.plugins.native.server.authentication import principal_of
from lakemq.plugins.native.server.convert import (
    check_counts,
    error_message,
    native_addresses,
    other_addresses,
    topic_config,
    topic_message,
)
from lakemq.plugins.native.server.quotas import pay_for_reading, pay_for_writing, wait_to_write
from lakemq.plugins.native.services.fetch_many import FetchAnswer, FetchSession, log_to_read
from lakemq.plugins.native.services.produce_window import Window
from lakemq.plugins.native.services.tiered import tiered_segments
from lakemq.plugins.native.services.traced_calls import TracedCalls
from lakemq.plugins.native.wire.fetched import fetch_many_response, fetch_response

_Context = grpc.aio.ServicerContext[object, object]


class NativeService(NativeServicer):
    """Implements `native.proto`; its docstrings are there."""

    def __init__(
        self, broker: Broker, settings: NativeSettings, traces: Traces | None = None
    ) -> None:
        self._broker = broker
        self._calls = None if traces is None else TracedCalls(traces)
        self.settings = settings
        self.members = MemberStreams(broker.groups)
        self.batches_in = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.stopping = False

    # -- topics

    async def Describe(self, request: pb.DescribeRequest, context: _Context) -> pb.DescribeResponse:
        """Topics that are named, or all that the caller may describe, with their partitions. Raises
        UnknownTopic, NotAuthorized (a topic that is named)."""
        broker = self._broker
        principal = await self._principal(context)
        if request.topics:
            for name in request.topics:
                broker.authorize(principal, Operation.DESCRIBE, Resource("topic", name))
            topics = [broker.topic(name) for name in request.topics]
        else:
            topics = sorted(broker.topics(), key=lambda topic: topic.name)
            topics = [each for each in topics if self._may_describe(principal, each)]
        return pb.DescribeResponse(
            cluster_id=broker.cluster_id,
            node_id=broker.node_id,
            topics=[self._described(topic) for topic in topics],
        )

    def _may_describe(self, principal: Principal, topic: TopicInfo) -> bool:
        try:
            self._broker.authorize(principal, Operation.DESCRIBE, Resource("topic", topic.name))
        except LakeMQError:
            return False
        return True

    def _described(self, topic: TopicInfo) -> pb.Topic:
        statuses = [
            self._broker.partition_status(topic.name, number) for number in range(topic.partitions)
        ]
        return topic_message(topic, statuses, native_addresses(self._broker.nodes()))

    async def CreateTopic(
        self, request: pb.CreateTopicRequest, context: _Context
    ) -> pb.CreateTopicResponse:
        """Create a topic. Raises InvalidRequest, NotAuthorized, and what `Broker.create_topic`
        raises."""
        principal = await self._principal(context)
        self._broker.authorize(principal, Operation.CREATE, Resource("topic", request.name))
        check_counts(request)
        config = topic_config(request.config, self._broker.topic_defaults())
        topic = await self._broker.create_topic(
            request.name,
            request.partitions or None,
            config,
            replication=request.replication or None,
            min_in_sync=request.min_in_sync or None,
        )
        return pb.CreateTopicResponse(topic=self._described(topic))

    async def DeleteTopic(
        self, request: pb.DeleteTopicRequest, context: _Context
    ) -> pb.DeleteTopicResponse:
        """Delete a topic and its records. Raises NotAuthorized, UnknownTopic."""
        principal = await self._principal(context)
        self._broker.authorize(principal, Operation.DELETE, Resource("topic", request.name))
        await self._broker.delete_topic(request.name)
        return pb.DeleteTopicResponse()

    async def OffsetsForTimestamp(
        self, request: pb.OffsetsForTimestampRequest, context: _Context
    ) -> pb.OffsetsForTimestampResponse:
        """First offset whose record is not older than a timestamp (ms), of each partition that this
        node leads. Raises NotAuthorized, UnknownTopic, and what the log raises."""
        principal = await self._principal(context)
        self._broker.authorize(principal, Operation.DESCRIBE, Resource("topic", request.topic))
        topic = self._broker.topic(request.topic)
        offsets: dict[int, int] = {}
        for number in range(topic.partitions):
            if self._broker.serves(topic.name, number):
                log = self._broker.partition(topic.name, number)
                offsets[number] = await log.offset_for_timestamp(request.timestamp_ms)
        return pb.OffsetsForTimestampResponse(offsets=offsets)

    async def InitProducer(
        self, request: pb.InitProducerRequest, context: _Context
    ) -> pb.InitProducerResponse:
        """Allocate the id of an idempotent producer (KIP-98)."""
        principal = await self._principal(context)
        producer_id = await self._broker.allocate_producer_id(principal)
        return pb.InitProducerResponse(producer_id=producer_id)

    # -- writing

    async def Produce(
        self, request_iterator: AsyncIterator[pb.ProduceRequest], context: _Context
    ) -> AsyncIterator[pb.ProduceResponse]:
        """Append the batches of a stream; answers, errors of a batch too, come in its order."""
        principal = await self._principal(context)
        if self._calls is not None:
            self._calls.take_context(context)
        window: Window[AppendResult] = Window(self.settings.produce_bytes_in_flight_max)
        reader = asyncio.create_task(self._read_produce(request_iterator, principal, window))
        try:
            while (pending := await window.next()) is not None:
                request_id, size, outcome = pending
                response = await _produced(request_id, outcome)
                # Room only now: bytes in flight are those without an answer.
                window.answered(size)
                yield response
            # What the reader failed with (a request that cannot be read, say) ends the call.
            await reader
        finally:
            reader.cancel()

    async def _read_produce(
        self,
        requests: AsyncIterator[pb.ProduceRequest],
        principal: Principal,
        window: Window[AppendResult],
    ) -> None:
        try:
            async for request in requests:
                # Before the batch is counted or appended; meanwhile the stream is not read, and
                # flow control stops the client.
                await wait_to_write(self._broker, principal)
                pay_for_writing(self._broker, principal, request.batch)
                size = len(request.batch)
                self.batches_in += 1
                self.bytes_in += size
                window.add(request.request_id, size, self._append(request, principal))
                await window.room()
        finally:
            window.end()

    def _append(
        self, request: pb.ProduceRequest, principal: Principal
    ) -> asyncio.Future[AppendResult] | LakeMQError:
        try:
            if int(request.acks) not in set(Acks):
                raise InvalidRequest(f"acks is {request.acks}; it takes 0, 1 or 2")
            return self._broker.append(
                request.topic,
                request.partition,
                request.batch,
                principal=principal,
                acks=Acks(request.acks),
                leader_epoch=request.leader_epoch,
            )
        except LakeMQError as error:
            return error

    # -- reading

    async def Fetch(  # type: ignore[override]  # answers are serialized already
        self, request: pb.FetchRequest, context: _Context
    ) -> AsyncIterator[bytes]:
        """Read one partition, from an offset to an end or, with `follow`, as records come; its
        error ends the call."""
        asked = pb.PartitionOffset(
            topic=request.topic, partition=request.partition, offset=request.offset,
            end_offset=request.end_offset, topic_id=request.topic_id,
            leader_epoch=request.leader_epoch, follower=request.follower,
            last_epoch=request.last_epoch if request.HasField("last_epoch") else None,
        )  # fmt: skip
        async with aclosing(self._read([asked], request, context)) as answers:
            async for answer in answers:
                if answer.error is not None:
                    raise answer.error
                yield fetch_response(*answer[1:6])

    async def FetchMany(  # type: ignore[override]  # answers are serialized already
        self, request: pb.FetchManyRequest, context: _Context
    ) -> AsyncIterator[bytes]:
        """Read several partitions in turn; the error of one is an answer, and the others go on."""
        async with aclosing(self._read(request.partitions, request, context)) as answers:
            async for answer in answers:
                asked = answer.asked
                if answer.error is not None:
                    yield pb.FetchManyResponse(
                        topic=asked.topic,
                        partition=asked.partition,
                        error=error_message(answer.error),
                    ).SerializeToString()
                else:
                    yield fetch_many_response(asked.topic, asked.partition, *answer[1:6])

    async def _read(
        self,
        partitions: Sequence[pb.PartitionOffset],
        request: pb.FetchRequest | pb.FetchManyRequest,
        context: _Context,
    ) -> AsyncGenerator[FetchAnswer, None]:
        """What is read of some partitions, paid for by the caller."""
        principal = await self._principal(context)
        session = FetchSession(self._broker, self.settings, principal, request)
        read = session.read(partitions, lambda: self.stopping)
        if self._calls is not None:
            read = self._calls.fetched(read, context)
        async with aclosing(read) as answers:
            async for answer in answers:
                self.bytes_out += len(answer.batches)
                await pay_for_reading(self._broker, principal, answer.batches)
                yield answer

    async def TieredSegments(
        self, request: pb.TieredSegmentsRequest, context: _Context
    ) -> pb.TieredSegmentsResponse:
        """Segments of a partition that an object store holds. Raises what `log_to_read` raises."""
        principal = await self._principal(context)
        log = log_to_read(self._broker, principal, request)
        return await tiered_segments(log, request)

    # -- consumer groups

    async def JoinGroup(
        self, request_iterator: AsyncIterator[pb.GroupHeartbeat], context: _Context
    ) -> AsyncIterator[pb.GroupAssignment]:
        """Be a member of a consumer group: heartbeats in, assignments out (KIP-848)."""
        principal = await self._principal(context)
        async for said in self.members.join(request_iterator, principal):
            yield said

    async def CommitOffsets(
        self, request: pb.CommitOffsetsRequest, context: _Context
    ) -> pb.CommitOffsetsResponse:
        """Commit offsets of a group; answered when they are on disk. Raises what
        `GroupCoordinators.commit` raises."""
        principal = await self._principal(context)
        await self._broker.groups.commit(group_commit(request), principal=principal)
        return pb.CommitOffsetsResponse()

    async def DescribeGroups(
        self, request: pb.DescribeGroupsRequest, context: _Context
    ) -> pb.DescribeGroupsResponse:
        """Members, assignments and offsets of groups. Raises UnknownGroup, NotAuthorized,
        NotLeader."""
        broker = self._broker
        principal = await self._principal(context)
        found = broker.groups.describe(request.groups, principal=principal)
        others = () if request.groups else broker.groups.coordinators()
        return pb.DescribeGroupsResponse(
            groups=map(group_message, found),
            others=other_addresses(broker.node_id, broker.nodes(), others),
        )

    async def DeleteGroup(
        self, request: pb.DeleteGroupRequest, context: _Context
    ) -> pb.DeleteGroupResponse:
        """Delete a group without members, and its offsets. Raises as `GroupCoordinators.delete`."""
        principal = await self._principal(context)
        await self._broker.groups.delete(request.group, principal=principal)
        return pb.DeleteGroupResponse()

    async def _principal(self, context: _Context) -> Principal:
        return await principal_of(self._broker, context)


async def _produced(
    request_id: int, outcome: asyncio.Future[AppendResult] | LakeMQError
) -> pb.ProduceResponse:
    try:
        if isinstance(outcome, LakeMQError):
            raise outcome
        result = await outcome
    except LakeMQError as error:
        return pb.ProduceResponse(request_id=request_id, error=error_message(error))
    return pb.ProduceResponse(
        request_id=request_id,
        base_offset=result.base_offset,
        last_offset=result.last_offset,
        acks=pb.Acks.ValueType(result.acks),
        duplicate=result.duplicate,
    )
