"""The SDK's asyncio face: admin, consume; `producer()` gives a `Producer`."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from datetime import datetime
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from lakemq.broker_core.api.errors import LakeMQError, NotLeader
from lakemq.broker_core.api.records.batch import RecordBatch, split
from lakemq.broker_core.api.records.tiered import TieredSegments
from lakemq.broker_core.api.transactions.types import TRANSACTION
from lakemq.broker_core.api.types import Acks, Compression, Record, TopicPartition
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.sdk.admin import Admin
from lakemq.plugins.native.sdk.arguments import (
    Config,
    acks_given,
    check_options,
    compression_given,
    moment_ms,
)
from lakemq.plugins.native.sdk.client.merging import MergedBatches
from lakemq.plugins.native.sdk.consumer.consumer import Consumer, ConsumerOptions
from lakemq.plugins.native.sdk.consumer.corrupt import CorruptPolicy, OnCorrupt
from lakemq.plugins.native.sdk.consumer.options import AssignOptions
from lakemq.plugins.native.sdk.consumer.starts import (
    Where,
    assigned_given,
    consume_starts,
    given_starts,
)
from lakemq.plugins.native.sdk.consumer.topic_reader import TopicReader
from lakemq.plugins.native.sdk.group.group_calls import GroupCalls
from lakemq.plugins.native.sdk.net import calls as wire
from lakemq.plugins.native.sdk.net.addresses import Bootstrap
from lakemq.plugins.native.sdk.net.cluster_view import HERE, METADATA_LAG_S, ReadRoute, is_lost
from lakemq.plugins.native.sdk.net.connection import LEADERS_S, Connection
from lakemq.plugins.native.sdk.net.login import Mechanism, login_of
from lakemq.plugins.native.sdk.net.routes import Led, Routes
from lakemq.plugins.native.sdk.net.sequencing import backoff_s
from lakemq.plugins.native.sdk.net.tls import Tls
from lakemq.plugins.native.sdk.producer.producer import Producer
from lakemq.plugins.native.sdk.producer.serializing_producer import SerializingProducer
from lakemq.plugins.native.sdk.queue.queue import Queue, QueueOptions
from lakemq.plugins.native.sdk.schedules import Schedules
from lakemq.plugins.native.sdk.schemas import Schemas
from lakemq.plugins.native.sdk.serializing import (
    Deserializing,
    RecordDeserializer,
    RecordSerializer,
    Serializing,
)
from lakemq.plugins.native.sdk.telemetry import Telemetry, client_telemetry
from lakemq.plugins.native.sdk.transactions.staging import Staging
from lakemq.plugins.native.sdk.transactions.transaction import TransactionalProducer
from lakemq.plugins.native.sdk.types import ConsumerRecord, GroupDescription, TopicOffsets
from lakemq.plugins.native.wire.filtering import RecordFilter

if TYPE_CHECKING:  # exists in the stub file only
    pass


class Client:
    """A connection to a broker. An async context manager; every method raises `LakeMQError`s.

    `bootstrap`: `host:port` of a node, or of several (a list, or commas between): any that answers
    will do. Records go to, and come from, the node that leads their partition.
    `timeout_s` bounds every call but reading; `Unavailable` when no broker answers in that time.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] = "127.0.0.1:9700",
        *,
        timeout_s: float = 30.0,
        tls: Tls | None = None,
        token: str | None = None,
        username: str | None = None,
        password: str | None = None,
        mechanism: Mechanism = "PLAIN",
        rack: str = "",
        telemetry: Telemetry | None = None,
    ) -> None:
        """`token`: a JSON Web Token, or what else the broker takes. `username` and `password` go
        with each call (`PLAIN`), or are proved without being sent (`SCRAM-SHA-256`, `-512`).
        `rack`: where this client is, as in `node.rack` of brokers: consumers, and streams that
        follow, read from replicas there. `telemetry`: where spans and metrics go, in place of the
        program's own providers."""
        where = Bootstrap(bootstrap, secure=tls is not None)
        login = login_of(token, username, password, mechanism)
        self.connection = connection = Connection(where, timeout_s, tls, login, rack)
        """Internal: the gRPC side, for the blocking face."""
        connection.routes.telemetry = client_telemetry(telemetry)
        self.bootstrap = where
        self.timeout_s = timeout_s
        self.staging = Staging(connection)
        """Staged batches: a sink's driver opens and commits, its tasks write."""
        self.schedules = Schedules(connection)
        """Records that appear later."""

        self.admin = Admin(connection.routes, timeout_s)
        """What operators do: topics' settings and partitions, records, the cluster."""

        self.schemas = Schemas(connection.channel, timeout_s)
        """The registry of schemas, and values with it."""

        # Weak: a consumer that the application has dropped is not kept alive until the client is
        # closed.
        self._consumers: weakref.WeakSet[Consumer] = weakref.WeakSet()
        self._queues: weakref.WeakSet[Queue] = weakref.WeakSet()
        self._producers: weakref.WeakSet[Producer] = weakref.WeakSet()
        self._merging: weakref.WeakSet[MergedBatches] = weakref.WeakSet()

    @property
    def routes(self) -> Routes:
        """Internal: who leads which partition, and a channel to each."""
        return self.connection.routes

    async def close(self) -> None:
        """End every call, consumer, queue, producer and loop over `consume` of this client."""
        for consumer in list(self._consumers):
            await consumer.close()
        for queue in list(self._queues):
            await queue.close()
        for producer in list(self._producers):
            await producer.abandon()
        for merged in list(self._merging):
            await merged.close()
        await self.connection.close()

    async def __aenter__(self) -> Self:
        await self.connection.log_in()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # -- topics

    async def topics(self) -> list[TopicOffsets]:
        """All topics, by name, as `describe_topic` describes them."""
        return await self.connection.topics(leaders_s=LEADERS_S)

    async def describe_topic(self, name: str) -> TopicOffsets:
        """One topic: its configuration, and offsets, size and leader of its partitions. Raises
        UnknownTopic.

        A leader is waited for 5 s at most; without its answer a partition is `offline`, and has the
        offsets that the node that was asked knows, which may be old."""
        return await self.connection.describe_topic(name, leaders_s=LEADERS_S)

    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        config: Config | None = None,
        *,
        replication: int | None = None,
        min_in_sync: int | None = None,
    ) -> TopicOffsets:
        """Create a topic; what is left out is the broker's default. Each partition has
        `replication` replicas; records are acknowledged as replicated while `min_in_sync` of them
        are in sync. Raises TopicExists, InvalidTopicName, InvalidRequest (a config value, more
        replicas than nodes)."""
        request = wire.create_topic_request(name, partitions, config, replication, min_in_sync)
        answer = await self.routes.stub("").CreateTopic(request, timeout=self.timeout_s)
        self.routes.view.created(name, monotonic())
        return wire.topic_offsets(answer.topic)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records. Raises UnknownTopic."""
        request = pb.DeleteTopicRequest(name=name)
        await self.routes.stub("").DeleteTopic(request, timeout=self.timeout_s)
        self.routes.view.deleted(name)

    async def offsets_for_timestamp(
        self, topic: str, timestamp_ms: int | datetime
    ) -> dict[int, int]:
        """Partition -> first offset whose record is not older; the high watermark if none is.
        `timestamp_ms`: milliseconds since the epoch, or a datetime with a time zone."""
        moment = moment_ms("timestamp_ms", timestamp_ms)
        return await self.connection.offsets_for_timestamp(topic, moment)

    async def tiered_segments(
        self, topic: str, partition: int, start: int, end: int, *, topic_id: str = ""
    ) -> TieredSegments:
        """Sealed segments with any of the offsets [start, end) that an object store holds, for
        `stored_batches`; 1000 at most. Raises as `fetch_batches`."""
        request = pb.TieredSegmentsRequest(
            topic=topic, partition=partition, topic_id=topic_id, start_offset=start, end_offset=end
        )
        give_up_s = monotonic() + self.timeout_s
        for pause_s in backoff_s():
            address, request.leader_epoch = self.routes.route(topic, partition)
            try:
                stub = self.routes.stub(address)
                answer = await stub.TieredSegments(request, timeout=self.timeout_s)
                return wire.tiered_segments(answer)
            except NotLeader as error:
                if monotonic() > give_up_s:
                    raise
                self.routes.learn(topic, partition, error)
            await asyncio.sleep(pause_s)
        raise AssertionError("backoff never ends")

    # -- consumer groups

    def subscribe(
        self, topics: str | Sequence[str] = (), *, group: str, **options: Unpack[ConsumerOptions]
    ) -> Consumer:
        """A member of a consumer group that reads `topics`; use it as an async context manager.

        `ConsumerOptions` lists the options. Entering joins the group.
        """
        names = [topics] if isinstance(topics, str) else list(topics)
        check_options("subscribe", options, ConsumerOptions.__annotations__)
        made = Consumer(self.connection, names, group, self.schemas, **options)
        self._consumers.add(made)
        return made

    def assign(
        self,
        partitions: Iterable[TopicPartition] | Mapping[TopicPartition, Where],
        *,
        group: str = "",
        **options: Unpack[AssignOptions],
    ) -> Consumer:
        """A consumer of these partitions, also where others read them; use it as an async context
        manager. A mapping says where each begins: an offset, `earliest`, `latest` or a datetime.

        With a `group`, which must have no members, other partitions begin where it has committed,
        and `commit` keeps where this consumer stands. `AssignOptions` lists the options.
        """
        check_options("assign", options, AssignOptions.__annotations__)
        chosen = assigned_given(partitions)
        made = Consumer(self.connection, (), group, self.schemas, assigned=chosen, **options)
        self._consumers.add(made)
        return made

    def queue(
        self,
        topic: str,
        *,
        group: str,
        key_deserializer: Deserializing | None = None,
        value_deserializer: Deserializing | None = None,
        **options: Unpack[QueueOptions],
    ) -> Queue:
        """A consumer of the queue that `group` has on `topic`: records are shared one by one.

        Iterate it; `QueueOptions` lists the options. Closed with the client, or as an async
        context manager.
        """
        of = RecordDeserializer.given(key_deserializer, value_deserializer, self.schemas)
        made = Queue(self.connection.routes, topic, group, options, of)
        self._queues.add(made)
        return made

    async def groups(self) -> list[GroupDescription]:
        """All consumer groups, by name."""
        request = pb.DescribeGroupsRequest()
        answer = await self.connection.routes.stub("").DescribeGroups(
            request, timeout=self.timeout_s
        )
        stubs = [self.connection.routes.stub(address) for address in answer.others]
        answers = await asyncio.gather(
            *(stub.DescribeGroups(request, timeout=self.timeout_s) for stub in stubs)
        )
        # By name, since a group may have changed its coordinator meanwhile.
        found = {group.name: group for each in [answer, *answers] for group in each.groups}
        return [wire.group_description(found[name]) for name in sorted(found)]

    async def describe_group(self, name: str) -> GroupDescription:
        """One consumer group: its state, members and committed offsets. Raises UnknownGroup."""
        request = pb.DescribeGroupsRequest(groups=[name])
        answer = await self._of_group("DescribeGroups", request)
        return wire.group_description(answer.groups[0])

    async def _of_group(self, method: str, request: Any) -> Any:
        """What the coordinator of a group answers."""
        return await GroupCalls(self.connection.routes).call(method, request, self.timeout_s)

    async def reset_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int], *, metadata: str = ""
    ) -> None:
        """Set the committed offsets of a group without members; -1 deletes one. `metadata`: kept
        with each of them, 4096 bytes at most. Raises GroupNotEmpty."""
        request = wire.reset_request(group, offsets, metadata)
        await self._of_group("CommitOffsets", request)

    async def delete_group(self, name: str) -> None:
        """Delete a group without members and its committed offsets. Raises UnknownGroup,
        GroupNotEmpty."""
        await self._of_group("DeleteGroup", pb.DeleteGroupRequest(group=name))

    # -- writing

    async def producer(
        self,
        *,
        acks: Acks | str = Acks.LEADER,
        compression: Compression | str = Compression.NONE,
        linger_ms: int = 0,
        batch_max_bytes: int = 1024 * 1024,
        buffer_max_bytes: int = 64 * 1024 * 1024,
        delivery_timeout_ms: int = 120_000,
        key_serializer: Serializing | None = None,
        value_serializer: Serializing | None = None,
    ) -> Producer:
        """An idempotent producer; use it as an async context manager. `acks` and `compression` are
        taken by name too; acks `all`, Kafka's word, means `replicated`. `ProducerOptions` says what
        the options mean."""
        serializer = None
        if key_serializer is not None or value_serializer is not None:
            serializer = RecordSerializer(key_serializer, value_serializer)
        acks, compression = acks_given(acks), compression_given(compression)
        answer = await self.routes.stub("").InitProducer(
            pb.InitProducerRequest(), timeout=self.timeout_s
        )
        made = (Producer if serializer is None else SerializingProducer)(
            self.connection,
            answer.producer_id,
            acks=acks,
            compression=compression,
            linger_ms=linger_ms,
            batch_max_bytes=batch_max_bytes,
            buffer_max_bytes=buffer_max_bytes,
            delivery_timeout_ms=delivery_timeout_ms,
        )
        if isinstance(made, SerializingProducer) and serializer is not None:
            made.serializer = serializer
        self._producers.add(made)
        return made

    async def transactional_producer(
        self,
        transactional_id: str,
        *,
        timeout_ms: int = 0,
        compression: Compression | str = Compression.NONE,
        batch_max_bytes: int = 1024 * 1024,
    ) -> TransactionalProducer:
        """A producer of transactions; use it as an async context manager. Fences an older one of
        the same id, and aborts its open transaction. `timeout_ms`: a transaction that sends nothing
        for that long is aborted; 0: the broker's default."""
        compression = compression_given(compression)
        session = await self.staging.open(TRANSACTION, transactional_id, timeout_ms=timeout_ms)
        return TransactionalProducer(
            self.staging, session, compression=compression, batch_max_bytes=batch_max_bytes
        )

    # -- reading

    def _read_route(self, topic: str, partition: int, follow: bool, lost: bool) -> ReadRoute:
        """`lost`: the leader that is known could not be reached."""
        if lost:
            return ReadRoute(*HERE, False)
        # A follower may know of a lower high watermark, where a bounded read would end.
        if follow:
            return self.routes.read_route(topic, partition)
        return ReadRoute(*self.routes.route(topic, partition), False)

    async def fetch_batches(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int | None = None,
        *,
        topic_id: str | None = None,
        bytes_max: int = wire.FETCH_MAX_BYTES,
        follow: bool = False,
        wanted: RecordFilter | None = None,
        on_corrupt: OnCorrupt = "raise",
    ) -> AsyncGenerator[RecordBatch, None]:
        """Every stored batch that touches offsets [start, end), in order, CRC checked.

        Without `end`: up to the high watermark, or for ever with `follow`. The first and last batch
        may hold records outside the range. Raises UnknownTopic (also when `topic_id` is another
        than the topic's), UnknownPartition, OffsetOutOfRange, CorruptLog.

        `wanted`: leave out batches without such a record; the others come whole. `on_corrupt`: of
        batches that don't decompress; columns are checked when they are asked for.
        """
        corrupt = CorruptPolicy(on_corrupt)
        request = pb.FetchRequest(
            topic=topic, partition=partition, offset=start, end_offset=end or 0,
            bytes_max=bytes_max, follow=follow, topic_id=topic_id or "",
            filter=wire.filter_message(wanted),
        )  # fmt: skip
        give_up_s = monotonic() + self.timeout_s
        behind_until_s = monotonic() + METADATA_LAG_S
        lost = False
        if follow:
            self.routes.start()
        for pause_s in backoff_s():
            route = self._read_route(topic, partition, follow, lost)
            address, request.leader_epoch, request.follower = route
            call = self.routes.stub(address).Fetch(request)
            led = Led(self.routes, call, route, topic, partition)
            try:
                async for answer in call:
                    give_up_s = monotonic() + self.timeout_s
                    for position, _ in split(answer.batches):
                        batch = corrupt.open(answer.batches, position, topic, partition)
                        if batch is not None:
                            yield batch
                    request.offset = answer.next_offset
                    wire.note_epoch(request, answer.last_epoch)
                if not follow:
                    return
                failure: LakeMQError = NotLeader(f"the broker at {address} stops")
            except LakeMQError as error:
                failure = error
            finally:
                del led
                call.cancel()
            self.routes.avoid(topic, partition, route)
            behind = self.routes.may_lag(failure, topic, address) and monotonic() < behind_until_s
            lost = is_lost(route, failure)
            again = isinstance(failure, NotLeader) or (route.follower and failure.retriable)
            if not (again or behind or lost) or monotonic() > give_up_s:
                raise failure
            if isinstance(failure, NotLeader):
                self.routes.learn(topic, partition, failure)
            await asyncio.sleep(pause_s)

    async def consume(
        self,
        topic: str,
        *,
        start: Where = "earliest",
        partition: int | None = None,
        follow: bool = False,
        wanted: RecordFilter | None = None,
        on_corrupt: OnCorrupt = "skip",
        key_deserializer: Deserializing | None = None,
        value_deserializer: Deserializing | None = None,
    ) -> AsyncGenerator[Record, None]:
        """Records of a topic, in order within each partition; all partitions are read at once.

        `start`: `earliest`, `latest`, an offset or a datetime. Ends at the high watermark unless
        `follow`.
        `wanted`: only such records. `on_corrupt`: see `OnCorrupt`. `key_deserializer` and
        `value_deserializer`: as of `subscribe`; a DeserializationError ends the loop.
        """
        made = RecordDeserializer.given(key_deserializer, value_deserializer, self.schemas)
        reader = TopicReader(topic, wanted, on_corrupt, made)
        starts = await consume_starts(self.connection, topic, partition, start)
        async with self._merged(reader, starts, follow) as batches:
            async for number, batch in batches:
                await reader.prepare(number, batch)
                for record in reader.records(number, batch, starts[number]):
                    yield record

    async def consume_from(
        self,
        topic: str,
        starts: Mapping[int, Where],
        *,
        follow: bool = False,
        wanted: RecordFilter | None = None,
        on_corrupt: OnCorrupt = "skip",
        key_deserializer: Deserializing | None = None,
        value_deserializer: Deserializing | None = None,
    ) -> AsyncGenerator[ConsumerRecord, None]:
        """As `consume`, of the partitions in `starts`, each from what is given for it: an offset,
        `earliest`, `latest` or a datetime; the records know their partition."""
        made = RecordDeserializer.given(key_deserializer, value_deserializer, self.schemas)
        reader = TopicReader(topic, wanted, on_corrupt, made)
        offsets = await given_starts(self.connection, topic, starts)
        async with self._merged(reader, offsets, follow) as batches:
            async for number, batch in batches:
                await reader.prepare(number, batch)
                for record in reader.placed(number, batch, offsets[number]):
                    yield record

    def _merged(
        self, reader: TopicReader, starts: Mapping[int, int], follow: bool
    ) -> MergedBatches:
        """Batches of several partitions as they arrive."""
        made = MergedBatches(
            (
                number,
                self.fetch_batches(
                    reader.topic, number, first, follow=follow, wanted=reader.wanted,
                    on_corrupt=reader.on_corrupt,
                ),
            )
            for number, first in starts.items()
        )  # fmt: skip
        self._merging.add(made)
        return made
