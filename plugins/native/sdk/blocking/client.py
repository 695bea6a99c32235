"""The SDK's blocking face: admin, fetch and produce without asyncio."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from lakemq.broker_core.api.errors import (
    CorruptBatch,
    InvalidRequest,
    LakeMQError,
    OutOfOrderSequence,
    Unavailable,
    UnknownPartition,
)
from lakemq.broker_core.api.records.batch import RecordBatch
from lakemq.broker_core.api.tiered import TieredSegments
from lakemq.broker_core.api.types import (
    Acks,
    Columns,
    Compression,
    Headers,
    Record,
    TopicPartition,
)
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.proto.native_pb2_grpc import NativeStub
from lakemq.plugins.native.sdk.admin import SyncAdmin
from lakemq.plugins.native.sdk.arguments import (
    Config,
    acks_given,
    check_options,
    compression_given,
    moment_ms,
)
from lakemq.plugins.native.sdk.blocking.parallel import FetchStream, ParallelFetch
from lakemq.plugins.native.sdk.blocking.routes import SyncRoutes
from lakemq.plugins.native.sdk.call_errors import CLOSED, error_of
from lakemq.plugins.native.sdk.client.cluster_view import BEHIND_S, may_be_behind
from lakemq.plugins.native.sdk.consumer.corrupt import CorruptPolicy, OnCorrupt, TellCorrupt
from lakemq.plugins.native.sdk.consumer.filtering import RecordFilter
from lakemq.plugins.native.sdk.net import calls as wire
from lakemq.plugins.native.sdk.net.addresses import Bootstrap
from lakemq.plugins.native.sdk.net.login import Login, Mechanism, login_of, with_login
from lakemq.plugins.native.sdk.net.sequencing import Forgotten, SequenceNumbers, backoff_s
from lakemq.plugins.native.sdk.net.tls import Tls, open_channel
from lakemq.plugins.native.sdk.producer.accumulator import BATCH_MAX_BYTES, cut
from lakemq.plugins.native.sdk.producer.checking import encoded
from lakemq.plugins.native.sdk.producer.partitioning import StickyPartitioner
from lakemq.plugins.native.sdk.schemas import SyncSchemas
from lakemq.plugins.native.sdk.types import (
    GroupDescription,
    NewRecord,
    RecordMetadata,
    TopicOffsets,
)

if TYPE_CHECKING:
    from lakemq.plugins.native.sdk.blocking.consumer import SyncConsumer
    from lakemq.plugins.native.sdk.blocking.queue import SyncQueue
    from lakemq.plugins.native.sdk.blocking.staging import (
        LoopThread,
        SyncStaging,
        SyncTransactionalProducer,
    )
    from lakemq.plugins.native.sdk.consumer.consumer import ConsumerOptions
    from lakemq.plugins.native.sdk.queue.queue import QueueOptions
    from lakemq.plugins.native.sdk.schedules import SyncSchedules


class SyncClient:
    """A connection to a broker. Made by `connect`; safe to share between threads.

    Every method raises a `LakeMQError`; `Unavailable` when no broker answers in `timeout_s`.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        timeout_s: float = 30.0,
        tls: Tls | None = None,
        login: Login | None = None,
    ) -> None:
        self.bootstrap = bootstrap = Bootstrap(bootstrap, secure=tls is not None)
        self.timeout_s = timeout_s
        self.tls = tls
        self.login = login
        self._channel = with_login(open_channel(bootstrap, tls, login), login, bootstrap)
        self._stub: NativeStub = wire.native_stub(self._channel)
        self._routes = SyncRoutes(
            self._channel,
            bootstrap,
            lambda address: with_login(open_channel(address, tls, login), login, address),
        )
        self.admin = SyncAdmin(self._channel, bootstrap, timeout_s)
        """What operators do: topics' settings and partitions, records, the cluster."""
        self.schemas = SyncSchemas(self._channel, bootstrap, timeout_s)
        """The registry of schemas, and values with it."""
        self._partitioner = StickyPartitioner()
        self._partition_counts: dict[str, int] = {}
        self._topic_ids: dict[str, str] = {}
        self._produce_lock = threading.Lock()
        self._staging_lock = threading.Lock()
        self._loop_thread: LoopThread | None = None
        self._sequences: SequenceNumbers | None = None
        self._closed = False

    def close(self) -> None:
        with self._staging_lock:
            self._closed = True
            thread, self._loop_thread = self._loop_thread, None
        if thread is not None:
            thread.close()
        self._routes.close()
        self._channel.close()

    def _thread(self) -> LoopThread:
        """Where staging and transactions run; made when it is first needed."""
        from lakemq.plugins.native.sdk.blocking.staging import LoopThread

        with self._staging_lock:
            if self._closed:
                raise InvalidRequest(CLOSED)
            if self._loop_thread is None:
                self._loop_thread = LoopThread(self)
            return self._loop_thread

    @property
    def staging(self) -> SyncStaging:
        """Staged batches: a sink's driver opens and commits, its tasks write."""
        from lakemq.plugins.native.sdk.blocking.staging import SyncStaging

        return SyncStaging(self._thread())

    @property
    def schedules(self) -> SyncSchedules:
        """Records that appear later."""
        from lakemq.plugins.native.sdk.schedules import SyncSchedules

        return SyncSchedules(self._thread())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- topics

    def topics(self) -> list[TopicOffsets]:
        """All topics, by name."""
        return self._describe([])

    def describe_topic(self, name: str) -> TopicOffsets:
        """Raises UnknownTopic."""
        found = self._describe([name])[0]
        self._topic_ids.setdefault(name, found.topic_id)
        return found

    def _describe(self, names: Sequence[str]) -> list[TopicOffsets]:
        answer = self._stub.Describe(pb.DescribeRequest(topics=names), timeout=self.timeout_s)
        elsewhere = wire.led_elsewhere(answer)
        if elsewhere:
            asked = [self._describe_at(*each) for each in elsewhere.items()]
            wire.merge_described(answer, [each for each in asked if each is not None])
        return [wire.topic_offsets(topic) for topic in answer.topics]

    def _describe_at(self, address: str, names: Sequence[str]) -> pb.DescribeResponse | None:
        """None: no answer."""
        request = pb.DescribeRequest(topics=names)
        try:
            return self._routes.stub(address).Describe(request, timeout=self.timeout_s)
        except LakeMQError:
            return None

    def create_topic(
        self, name: str, partitions: int | None = None, config: Config | None = None
    ) -> TopicOffsets:
        """Raises TopicExists, InvalidTopicName, InvalidRequest (a config value)."""
        request = wire.create_topic_request(name, partitions, config)
        answer = self._stub.CreateTopic(request, timeout=self.timeout_s)
        return wire.topic_offsets(answer.topic)

    def delete_topic(self, name: str) -> None:
        """Raises UnknownTopic."""
        self._stub.DeleteTopic(pb.DeleteTopicRequest(name=name), timeout=self.timeout_s)

    def offsets_for_timestamp(self, topic: str, timestamp_ms: int | datetime) -> dict[int, int]:
        """Partition -> first offset whose record is not older; the high watermark if none is.
        `timestamp_ms`: milliseconds since the epoch, or a datetime with a time zone."""
        moment = moment_ms("timestamp_ms", timestamp_ms)
        request = pb.OffsetsForTimestampRequest(topic=topic, timestamp_ms=moment)
        answer = self._stub.OffsetsForTimestamp(request, timeout=self.timeout_s)
        offsets = dict(answer.offsets)
        others = {each.leader_address for each in self.describe_topic(topic).partitions
                  if each.partition not in offsets and each.leader_address}  # fmt: skip
        for address in others:
            stub = self._routes.stub(address)
            offsets |= stub.OffsetsForTimestamp(request, timeout=self.timeout_s).offsets
        return offsets

    # -- reading

    def fetch_batches(
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
        on_corrupt: OnCorrupt | TellCorrupt = "raise",
    ) -> FetchStream:
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
        return FetchStream(
            lambda opened: self._routes.fetch(request, opened, self.timeout_s),
            lambda data, position: corrupt.open(data, position, topic, partition),
        )

    def tiered_segments(
        self, topic: str, partition: int, start: int, end: int, *, topic_id: str = ""
    ) -> TieredSegments:
        """Sealed segments with any of the offsets [start, end) that an object store holds, for
        `stored_batches`; 1000 at most. Raises as `fetch_batches`."""
        request = pb.TieredSegmentsRequest(
            topic=topic, partition=partition, topic_id=topic_id, start_offset=start, end_offset=end
        )
        return wire.tiered_segments(self._routes.tiered_segments(request, self.timeout_s))

    def consume(
        self,
        topic: str,
        *,
        start: str | int = "earliest",
        partition: int | None = None,
        follow: bool = False,
        stop: Sequence[object] = (),
        wanted: RecordFilter | None = None,
        on_corrupt: OnCorrupt = "skip",
    ) -> Iterator[Record]:
        """Records of a topic: up to the high watermark, or for ever with `follow`.

        `start`: `earliest`, `latest` or an offset. Partitions are read one after the other, with
        `follow` all at once, in order within each. Ends early once `stop` is not empty.
        `wanted`: only such records. `on_corrupt`: see `OnCorrupt`.
        """
        reader = _Reader(topic, wanted, on_corrupt)
        description = self.describe_topic(topic)
        chosen = [each for each in description.partitions if partition in (None, each.partition)]
        if not chosen:
            raise UnknownPartition(f"topic {topic} has no partition {partition}")
        starts = {
            each.partition: first_offset(start, each.log_start_offset, each.high_watermark)
            for each in chosen
        }
        if follow and len(starts) > 1:
            yield from self._follow(starts, stop, reader)
            return
        for number, first in starts.items():
            with self.fetch_batches(
                topic, number, first, follow=follow, wanted=wanted, on_corrupt=on_corrupt
            ) as batches:
                for batch in batches:
                    yield from reader.records(number, batch, first)
                    if stop:
                        return

    def _follow(
        self, starts: Mapping[int, int], stop: Sequence[object], reader: _Reader
    ) -> Iterator[Record]:
        streams = {
            number: self.fetch_batches(
                reader.topic, number, first,
                follow=True, wanted=reader.wanted, on_corrupt=reader.on_corrupt,
            )
            for number, first in starts.items()
        }  # fmt: skip
        with ParallelFetch(streams) as arrived:
            for number, batch in arrived:
                if batch is not None:
                    yield from reader.records(number, batch, starts[number])
                if stop:
                    return

    # -- consumer groups

    def subscribe(
        self, topics: str | Sequence[str] = (), *, group: str, **options: Unpack[ConsumerOptions]
    ) -> SyncConsumer:
        """A member of a consumer group that reads `topics`; use it as a context manager.

        `ConsumerOptions` lists the options; callbacks run in a thread of the consumer's own.
        """
        from lakemq.plugins.native.sdk.blocking.consumer import SyncConsumer
        from lakemq.plugins.native.sdk.consumer.options import ConsumerOptions

        check_options("subscribe", options, ConsumerOptions.__annotations__)
        names = [topics] if isinstance(topics, str) else list(topics)
        return SyncConsumer(self, names, group, options)

    def queue(self, topic: str, *, group: str, **options: Unpack[QueueOptions]) -> SyncQueue:
        """A consumer of the queue that `group` has on `topic`; use it as a context manager.

        `QueueOptions` lists the options.
        """
        from lakemq.plugins.native.sdk.blocking.queue import SyncQueue
        from lakemq.plugins.native.sdk.queue.queue import check_queue_options

        check_queue_options(options)
        return SyncQueue(self, topic, group, options)

    def groups(self) -> list[GroupDescription]:
        """All consumer groups, by name."""
        return self._describe_groups([])

    def describe_group(self, name: str) -> GroupDescription:
        """Raises UnknownGroup."""
        return self._describe_groups([name])[0]

    def _describe_groups(self, names: Sequence[str]) -> list[GroupDescription]:
        request = pb.DescribeGroupsRequest(groups=names)
        answer = self._stub.DescribeGroups(request, timeout=self.timeout_s)
        return [wire.group_description(group) for group in answer.groups]

    def reset_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Let the group go on from these offsets; -1 forgets. Raises GroupNotEmpty."""
        self._stub.CommitOffsets(wire.reset_request(group, offsets), timeout=self.timeout_s)

    def delete_group(self, name: str) -> None:
        """Forget a group and what it committed. Raises UnknownGroup, GroupNotEmpty."""
        self._stub.DeleteGroup(pb.DeleteGroupRequest(group=name), timeout=self.timeout_s)

    # -- writing

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
        acks: Acks | str = Acks.LEADER,
    ) -> RecordMetadata:
        """Produce one record and wait for its ack. For many, `send_batch` is far quicker."""
        record = NewRecord(value, key, headers, timestamp_ms)
        return self.send_batch(topic, [record], partition=partition, acks=acks)[0]

    def send_batch(
        self,
        topic: str,
        records: Columns | Sequence[NewRecord],
        *,
        partition: int | None = None,
        acks: Acks | str = Acks.LEADER,
        compression: Compression | str = Compression.NONE,
    ) -> list[RecordMetadata]:
        """Produce records, one batch of at most 250,000 a partition, exactly once, and wait for
        all acks.

        Answers one entry a batch: the place of its first record. Failures that may pass are tried
        again for `timeout_s` with the same sequence numbers, so a retry never makes a duplicate.
        """
        acks, compression = acks_given(acks), compression_given(compression)
        columns = wire.columns_given(records, time.time_ns() // 1_000_000)
        if partition is not None:
            return [
                self._produce(topic, partition, part, acks, compression)
                for part in cut(columns, BATCH_MAX_BYTES)
            ]
        if topic not in self._partition_counts:
            self._partition_counts[topic] = len(self.describe_topic(topic).partitions)
        homes = self._partitioner.split(columns, self._partition_counts[topic])
        return [
            self._produce(topic, home, part, acks, compression)
            for home, each in homes.items()
            for part in cut(each, BATCH_MAX_BYTES)
        ]

    def transactional_producer(
        self, transactional_id: str, *, timeout_ms: int = 0
    ) -> SyncTransactionalProducer:
        """As `Client.transactional_producer`; a context manager."""
        from lakemq.plugins.native.sdk.blocking.staging import SyncTransactionalProducer

        thread = self._thread()
        work = thread.client.transactional_producer(transactional_id, timeout_ms=timeout_ms)
        return SyncTransactionalProducer(thread, thread.run(work))

    def _produce(
        self, topic: str, partition: int, columns: Columns, acks: Acks, compression: Compression
    ) -> RecordMetadata:
        with self._produce_lock:
            if topic not in self._topic_ids:
                with suppress(Unavailable):  # producing waits longer for a broker
                    self.describe_topic(topic)
            try:
                return self._produce_once(topic, partition, columns, acks, compression)
            except OutOfOrderSequence as error:
                # Either way nothing of it is stored: it may go on as a new producer (KIP-360).
                if not self._created_again(topic) and not isinstance(error, Forgotten):
                    raise
            return self._produce_once(topic, partition, columns, acks, compression)

    def _created_again(self, topic: str) -> bool:
        """Whether the topic is another one than it was, of the same name."""
        known = self._topic_ids.pop(topic, None)
        found = self.describe_topic(topic)
        self._partition_counts[topic] = len(found.partitions)
        return known not in (None, found.topic_id)

    def _produce_once(
        self, topic: str, partition: int, columns: Columns, acks: Acks, compression: Compression
    ) -> RecordMetadata:
        """With the numbers that are next, or as a new producer after a failure."""
        if self._sequences is None:
            self._sequences = SequenceNumbers(self._init_producer())
        count = len(columns.values)
        stamp = self._sequences.next(topic, partition)
        now_ms = time.time_ns() // 1_000_000
        batch = encoded(columns, now_ms=now_ms, producer=stamp, compression=compression)
        request = pb.ProduceRequest(
            topic=topic, partition=partition, acks=pb.Acks.ValueType(acks), batch=batch
        )
        try:
            answer = self._retry(request)
        except LakeMQError:
            # Whether it was taken is not known; its sequence number must not be used again,
            # or the next batch could pass for a duplicate of this one.
            self._sequences = None
            raise
        self._sequences.taken(topic, partition, count)
        first_ms = columns.timestamps_ms[0] if columns.timestamps_ms else now_ms
        return RecordMetadata(topic, partition, answer.base_offset, first_ms, Acks(answer.acks))

    def _retry(self, request: pb.ProduceRequest) -> pb.ProduceResponse:
        """One batch, until it is answered for good or `timeout_s` is over."""
        deadline = time.monotonic() + self.timeout_s
        behind_until = time.monotonic() + BEHIND_S
        unsure = False  # whether a try may have been taken
        for pause_s in backoff_s():
            address, request.leader_epoch = self._routes.route(request.topic, request.partition)
            stub = self._routes.stub(address)
            try:
                answer = next(iter(stub.Produce(iter([request]), timeout=self.timeout_s)))
                if not answer.HasField("error"):
                    return answer
                failure = error_of(answer.error)
                if isinstance(failure, OutOfOrderSequence) and not unsure:
                    failure = Forgotten(str(failure))
            except LakeMQError as error:
                failure = error
                unsure = True
            if not self._routes.learn(request.topic, request.partition, failure) and address:
                self._routes.forget(request.topic)
            behind = may_be_behind(failure, address) and time.monotonic() < behind_until
            if not (failure.retriable or behind) or time.monotonic() + pause_s > deadline:
                raise failure
            time.sleep(pause_s)
        raise AssertionError("backoff never ends")

    def _init_producer(self) -> int:
        answer = self._stub.InitProducer(pb.InitProducerRequest(), timeout=self.timeout_s)
        return answer.producer_id


class _Reader:
    """What `consume` wants of the batches of a topic."""

    def __init__(self, topic: str, wanted: RecordFilter | None, on_corrupt: OnCorrupt) -> None:
        self.topic, self.wanted, self.on_corrupt = topic, wanted, on_corrupt
        self._corrupt = CorruptPolicy(on_corrupt)

    def records(self, partition: int, batch: RecordBatch, first: int) -> Iterator[Record]:
        """Those from offset `first` on."""
        try:
            records = batch.records() if self.wanted is None else self.wanted.records(batch)
        except CorruptBatch as error:
            self._corrupt.note(self.topic, partition, batch.header.base_offset, error)
            return
        yield from (record for record in records if record.offset >= first)


def first_offset(start: str | int, log_start_offset: int, high_watermark: int) -> int:
    """The offset that `start` (`earliest`, `latest` or an offset) stands for."""
    if start == "earliest":
        return log_start_offset
    if start == "latest":
        return high_watermark
    if isinstance(start, int) and start >= 0:
        return start
    raise InvalidRequest(f"start is {start!r}; it takes 'earliest', 'latest' or an offset >= 0")


def connect(
    bootstrap: str | Sequence[str] = "127.0.0.1:9700",
    *,
    timeout_s: float = 30.0,
    tls: Tls | None = None,
    token: str | None = None,
    username: str | None = None,
    password: str | None = None,
    mechanism: Mechanism = "PLAIN",
) -> SyncClient:
    """A blocking client of the broker at `host:port`, or at any of several. Connects at the first
    call; `Client` says what the rest means."""
    login = login_of(token, username, password, mechanism)
    return SyncClient(bootstrap, timeout_s=timeout_s, tls=tls, login=login)
