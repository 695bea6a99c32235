"""The SDK for blocking programs: a facade over `Client`, whose event loop runs in a thread.

Only reading with `fetch_batches` and `consume` does without that loop: batches go from gRPC to the
caller's thread directly, which takes less CPU where nothing else is to be done meanwhile.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from lakemq.broker_core.api.errors import (
    InvalidRequest,
)
from lakemq.broker_core.api.records.batch import RecordBatch
from lakemq.broker_core.api.types import Acks, Columns, Compression, Headers, Record, TopicPartition
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.sdk.arguments import (
    acks_given,
    check_options,
    compression_given,
)
from lakemq.plugins.native.sdk.arrow import COLUMNS
from lakemq.plugins.native.sdk.blocking.consumer import SyncConsumer, with_callbacks_in_threads
from lakemq.plugins.native.sdk.blocking.fetch_streams import FetchStream, ParallelFetch
from lakemq.plugins.native.sdk.blocking.fetching import SyncRoutes
from lakemq.plugins.native.sdk.blocking.opened import OpenedClient
from lakemq.plugins.native.sdk.blocking.portal import blocking
from lakemq.plugins.native.sdk.blocking.producer import SyncProducer
from lakemq.plugins.native.sdk.blocking.queue import SyncQueue
from lakemq.plugins.native.sdk.blocking.scan import TopicScan, columns_given
from lakemq.plugins.native.sdk.blocking.services import SyncAdmin, SyncSchedules, SyncSchemas
from lakemq.plugins.native.sdk.blocking.staging import SyncStaging, SyncTransactionalProducer
from lakemq.plugins.native.sdk.client.client import Client
from lakemq.plugins.native.sdk.consumer.consumer import Consumer
from lakemq.plugins.native.sdk.consumer.corrupt import CorruptCallback, CorruptPolicy, OnCorrupt
from lakemq.plugins.native.sdk.consumer.options import AssignOptions, ConsumerOptions
from lakemq.plugins.native.sdk.consumer.starts import (
    Where,
    consume_starts,
    given_starts,
    scan_bounds,
)
from lakemq.plugins.native.sdk.consumer.topic_reader import TopicReader
from lakemq.plugins.native.sdk.net import calls as wire
from lakemq.plugins.native.sdk.net.addresses import Bootstrap
from lakemq.plugins.native.sdk.net.errors import CLOSED
from lakemq.plugins.native.sdk.net.login import Login, Mechanism, login_of, with_login
from lakemq.plugins.native.sdk.net.tls import Tls, open_channel
from lakemq.plugins.native.sdk.producer.checking import checked_record
from lakemq.plugins.native.sdk.producer.options import ProducerOptions
from lakemq.plugins.native.sdk.producer.producer import Producer
from lakemq.plugins.native.sdk.queue.queue import Queue, QueueOptions, check_queue_options
from lakemq.plugins.native.sdk.serializing import Deserializing, RecordDeserializer
from lakemq.plugins.native.sdk.telemetry import Telemetry
from lakemq.plugins.native.sdk.types import ConsumerRecord, NewRecord, RecordMetadata
from lakemq.plugins.native.wire.filtering import RecordFilter

_R = TypeVar("_R")


class SyncClient:
    """A connection to a broker. Made by `connect`; safe to share between threads.

    Every method raises a `LakeMQError`; `Unavailable` when no broker answers in `timeout_s`. Close
    it, or use it as a context manager: that also ends its consumers and queues.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        timeout_s: float = 30.0,
        tls: Tls | None = None,
        login: Login | None = None,
        rack: str = "",
        telemetry: Telemetry | None = None,
    ) -> None:
        self.rack = rack
        self.telemetry = telemetry
        self.bootstrap = bootstrap = Bootstrap(bootstrap, secure=tls is not None)
        self.timeout_s = timeout_s
        self.tls = tls
        self.login = login
        self._channel = with_login(open_channel(bootstrap, tls, login), login, bootstrap)
        self._routes = SyncRoutes(
            self._channel,
            lambda address: with_login(open_channel(address, tls, login), login, address),
        )
        self._lock = threading.Lock()
        self._closed = False
        self._opened: OpenedClient | None = None

    def close(self) -> None:
        """End every call, consumer and queue of this client. Calls raise InvalidRequest since."""
        with self._lock:
            self._closed = True
            opened, self._opened = self._opened, None
        if opened is not None:
            # Outside the lock: ending waits for coroutines whose callbacks may use this client.
            opened.end()
        self._routes.close()
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def run(self, work: Callable[[], Coroutine[Any, Any, _R]]) -> _R:
        """Internal: run `work()` on the event loop of this client, and wait for it."""
        return self._open().portal.run(work)

    def _call(self, work: Callable[[Client], Coroutine[Any, Any, _R]]) -> _R:
        opened = self._open()
        return opened.portal.run(lambda: work(opened.client))

    def _open(self) -> OpenedClient:
        """The event loop and the client on it, started when they are first needed."""
        opened = self._opened
        if opened is None:
            with self._lock:
                if self._closed:
                    raise InvalidRequest(CLOSED)
                # Checked again under the lock: two threads may both have found it missing.
                if self._opened is None:
                    made = OpenedClient(
                        self.bootstrap, self.timeout_s, self.tls, self.login, self.rack,
                        self.telemetry,
                    )  # fmt: skip
                    # A client that is dropped without `close` ends its thread. It must not wait: a
                    # finalizer may run on that very thread. At exit the clients in `_open` are
                    # closed instead.
                    weakref.finalize(self, made.end, wait_s=0.0).atexit = False
                    self._opened = made
                opened = self._opened
        return opened

    # -- what a client consists of

    @property
    def admin(self) -> SyncAdmin:
        """What operators do: topics' settings and partitions, records, the cluster."""
        return SyncAdmin(self, self._open().client.admin)

    @property
    def schemas(self) -> SyncSchemas:
        """The registry of schemas, and values with it."""
        return SyncSchemas(self, self._open().client.schemas)

    @property
    def staging(self) -> SyncStaging:
        """Staged batches: a sink's driver opens and commits, its tasks write."""
        return SyncStaging(self, self._open().client.staging)

    @property
    def schedules(self) -> SyncSchedules:
        """Records that appear later."""
        return SyncSchedules(self, self._open().client.schedules)

    # -- topics and consumer groups

    topics = blocking(Client.topics)
    describe_topic = blocking(Client.describe_topic)
    create_topic = blocking(Client.create_topic)
    delete_topic = blocking(Client.delete_topic)
    offsets_for_timestamp = blocking(Client.offsets_for_timestamp)
    tiered_segments = blocking(Client.tiered_segments)
    groups = blocking(Client.groups)
    describe_group = blocking(Client.describe_group)
    reset_offsets = blocking(Client.reset_offsets)
    delete_group = blocking(Client.delete_group)

    def subscribe(
        self, topics: str | Sequence[str] = (), *, group: str, **options: Unpack[ConsumerOptions]
    ) -> SyncConsumer:
        """A member of a consumer group that reads `topics`; use it as a context manager.

        `ConsumerOptions` lists the options; callbacks run in threads of their own, and may call
        this client.
        """
        check_options("subscribe", options, ConsumerOptions.__annotations__)
        options = with_callbacks_in_threads(options)

        async def subscribe(client: Client) -> Consumer:
            return client.subscribe(topics, group=group, **options)

        return SyncConsumer(self, self._call(subscribe))

    def assign(
        self,
        partitions: Iterable[TopicPartition] | Mapping[TopicPartition, Where],
        *,
        group: str = "",
        **options: Unpack[AssignOptions],
    ) -> SyncConsumer:
        """As `Client.assign`; a context manager."""

        async def assign(client: Client) -> Consumer:
            return client.assign(partitions, group=group, **options)

        return SyncConsumer(self, self._call(assign))

    def queue(
        self,
        topic: str,
        *,
        group: str,
        key_deserializer: Deserializing | None = None,
        value_deserializer: Deserializing | None = None,
        **options: Unpack[QueueOptions],
    ) -> SyncQueue:
        """A consumer of the queue that `group` has on `topic`; use it as a context manager.

        `QueueOptions` lists the options.
        """
        check_queue_options(options)

        async def queue(client: Client) -> Queue:
            return client.queue(
                topic,
                group=group,
                key_deserializer=key_deserializer,
                value_deserializer=value_deserializer,
                **options,
            )

        return SyncQueue(self, self._call(queue))

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
        on_corrupt: OnCorrupt | CorruptCallback = "raise",
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
            topic=topic,
            partition=partition,
            offset=start,
            end_offset=end or 0,
            bytes_max=bytes_max,
            follow=follow,
            topic_id=topic_id or "",
            filter=wire.filter_message(wanted),
        )
        return FetchStream(
            lambda opened: self._routes.fetch(request, opened, self.timeout_s),
            lambda data, position: corrupt.open(data, position, topic, partition),
        )

    def consume(
        self,
        topic: str,
        *,
        start: Where = "earliest",
        partition: int | None = None,
        follow: bool = False,
        stop: Sequence[object] = (),
        wanted: RecordFilter | None = None,
        on_corrupt: OnCorrupt = "skip",
        key_deserializer: Deserializing | None = None,
        value_deserializer: Deserializing | None = None,
    ) -> Iterator[Record]:
        """Records of a topic: up to the high watermark, or for ever with `follow`.

        `start`: `earliest`, `latest`, an offset or a datetime. Partitions are read one after the
        other, with `follow` all at once, in order within each. Ends early once `stop` is not empty.
        `wanted`: only such records. `on_corrupt`: see `OnCorrupt`. `key_deserializer` and
        `value_deserializer`: as of `subscribe`; a DeserializationError ends the loop.
        """
        made = self._deserializer(key_deserializer, value_deserializer)
        reader = TopicReader(topic, wanted, on_corrupt, made)
        starts = self._call(
            lambda client: consume_starts(client.connection, topic, partition, start)
        )
        for number, batch in self._batches(reader, starts, follow):
            if batch is not None:
                self._prepare(reader, number, batch)
                yield from reader.records(number, batch, starts[number])
            if stop:
                return

    def consume_from(
        self,
        topic: str,
        starts: Mapping[int, Where],
        *,
        follow: bool = False,
        wanted: RecordFilter | None = None,
        on_corrupt: OnCorrupt = "skip",
        key_deserializer: Deserializing | None = None,
        value_deserializer: Deserializing | None = None,
    ) -> Iterator[ConsumerRecord]:
        """As `consume`, of the partitions in `starts`, each from what is given for it: an offset,
        `earliest`, `latest` or a datetime; the records know their partition."""
        made = self._deserializer(key_deserializer, value_deserializer)
        reader = TopicReader(topic, wanted, on_corrupt, made)
        offsets = {number: at for number, at in starts.items() if isinstance(at, int)}
        if len(offsets) < len(starts):
            offsets = self._call(lambda client: given_starts(client.connection, topic, starts))
        for number, batch in self._batches(reader, offsets, follow):
            if batch is not None:
                self._prepare(reader, number, batch)
                yield from reader.placed(number, batch, offsets[number])

    def _deserializer(
        self, key: Deserializing | None, value: Deserializing | None
    ) -> RecordDeserializer | None:
        if key is None and value is None:
            return None  # without an event loop
        return RecordDeserializer(key, value, self._open().client.schemas)

    def _prepare(self, reader: TopicReader, number: int, batch: RecordBatch) -> None:
        if reader.deserializer is not None and reader.deserializer.asks:
            self._call(lambda _: reader.prepare(number, batch))

    def scan(
        self,
        topic: str,
        start: Where = "earliest",
        end: Where = "latest",
        *,
        partitions: Iterable[int] | None = None,
        columns: Sequence[str] = COLUMNS,
        wanted: RecordFilter | None = None,
        on_corrupt: OnCorrupt = "skip",
    ) -> TopicScan:
        """The records of a topic between two places, as an Arrow stream for DuckDB, Polars, pandas.

        `start` and `end` (the first that is not read): `earliest`, `latest`, an offset or a
        datetime, of each partition. They are looked up now: however often it is read, the result
        holds the same records, none above today's high watermark. `partitions`: only these.
        Raises UnknownTopic, UnknownPartition, OffsetOutOfRange.
        """
        names = columns_given(columns)
        described, bounds = self._call(
            lambda client: scan_bounds(client.connection, topic, start, end, partitions)
        )

        def fetch(partition: int, first: int, last: int) -> FetchStream:
            return self.fetch_batches(
                topic, partition, first, last,
                topic_id=described.topic_id, wanted=wanted, on_corrupt=on_corrupt,
            )  # fmt: skip

        return TopicScan(topic, bounds, fetch, columns=names, wanted=wanted, on_corrupt=on_corrupt)

    async def _follow_metadata(self, client: Client) -> None:
        self._routes.follow(client.routes)

    def _batches(
        self, reader: TopicReader, starts: Mapping[int, int], follow: bool
    ) -> Iterator[tuple[int, RecordBatch | None]]:
        """Partition and batch; None when none came for a moment. One partition after the other,
        with `follow` all at once."""

        def fetch(number: int) -> FetchStream:
            return self.fetch_batches(
                reader.topic,
                number,
                starts[number],
                follow=follow,
                wanted=reader.wanted,
                on_corrupt=reader.on_corrupt,
            )

        if follow:
            self._call(self._follow_metadata)
        if follow and len(starts) > 1:
            with ParallelFetch({number: fetch(number) for number in starts}) as arrived:
                yield from arrived
            return
        for number in starts:
            with fetch(number) as batches:
                for batch in batches:
                    yield number, batch

    # -- writing

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp_ms: int | datetime | None = None,
        partition: int | None = None,
        acks: Acks | str = Acks.LEADER,
    ) -> RecordMetadata:
        """Produce one record and wait for its ack; raises as `send_batch`. Records of several
        threads share batches. For many records of one thread, `send_batch` is far quicker."""
        checked_record(NewRecord(value, key, headers, timestamp_ms))
        return self._produce(
            acks,
            Compression.NONE,
            lambda producer: producer.send(
                topic,
                value,
                key=key,
                headers=headers,
                timestamp_ms=timestamp_ms,
                partition=partition,
            ),
        )

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
        OutcomeUnknown: no answer came in that time; the records may or may not be stored.
        """
        traced = self.telemetry is not None and self.telemetry.tracer_provider is not None
        columns = wire.columns_given(records, time.time_ns() // 1_000_000, traced=traced)
        return self._produce(
            acks,
            compression,
            lambda producer: producer.send_batch(topic, columns, partition=partition),
        )

    def producer(self, **options: Unpack[ProducerOptions]) -> SyncProducer:
        """A producer that gathers records of any threads into batches; a context manager.
        `ProducerOptions` lists the options."""
        check_options("producer", options, ProducerOptions.__annotations__)
        opened = self._open()
        made = opened.portal.run(lambda: opened.client.producer(**options))
        return SyncProducer(opened.portal, made)

    def transactional_producer(
        self, transactional_id: str, *, timeout_ms: int = 0
    ) -> SyncTransactionalProducer:
        """As `Client.transactional_producer`; a context manager."""
        made = self._call(
            lambda client: client.transactional_producer(transactional_id, timeout_ms=timeout_ms)
        )
        return SyncTransactionalProducer(self, made)

    def _produce(
        self,
        acks: Acks | str,
        compression: Compression | str,
        send: Callable[[Producer], Coroutine[Any, Any, _R]],
    ) -> _R:
        kind = acks_given(acks), compression_given(compression)
        opened = self._open()
        return opened.portal.run(lambda: opened.produce(*kind, send))


def connect(
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
) -> SyncClient:
    """A blocking client of the broker at `host:port`, or at any of several. Connects at the first
    call; `Client` says what the rest means."""
    login = login_of(token, username, password, mechanism)
    return SyncClient(
        bootstrap, timeout_s=timeout_s, tls=tls, login=login, rack=rack, telemetry=telemetry
    )
