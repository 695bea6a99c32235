"""Clients of the native protocol, Kafka and NATS JetStream, each in a process of its own that
answers (kind of load, seconds) with `count`, `elapsed_s` and latencies. Values: 50 to 200 bytes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from benchmarks.harness.declare import Missing, Sample
from benchmarks.harness.statistics import Latencies
from benchmarks.load.journal import values
from lakemq.runtime import loop_factory

BLOCK = 50_000
AT_ONCE = 4
FEW = 1_000
RATE = 10_000
VALUES = values(FEW)
Answer = Callable[[str, float], Sample]


def counted(count: int, began: float, latencies: list[float] | None = None) -> Sample:
    elapsed = time.perf_counter() - began
    found = Latencies()
    found.record(latencies or [])
    return {"count": count, "elapsed_s": elapsed, **found.figures()}


# -- LakeMQ


@contextlib.contextmanager
def lakemq(address: str) -> Iterator[Answer]:
    import lakemq

    with asyncio.Runner(loop_factory=loop_factory("auto")) as runner:
        client = runner.run(opened(lakemq, address))
        speaker = LakeMQ(client)
        yield lambda kind, seconds: runner.run(getattr(speaker, kind)(seconds))
        runner.run(client.close())


async def opened(lakemq: Any, address: str) -> Any:
    client = await lakemq.Client(address).__aenter__()
    for topic in ("bulk", "single", "latency", "transactions"):
        await client.create_topic(topic, partitions=1)
    return client


class LakeMQ:
    def __init__(self, client: Any) -> None:
        import lakemq

        self._client = client
        self._sdk = lakemq
        self._names = itertools.count()

    async def single(self, seconds: float) -> Sample:
        async with await self._client.producer(batch_max_bytes=4 << 20) as producer:
            began, count = time.perf_counter(), 0
            while time.perf_counter() < began + seconds:
                for value in VALUES:
                    await producer.enqueue("single", self._sdk.NewRecord(value))
                count += len(VALUES)
            await producer.flush()
            return counted(count, began)

    async def _blocks(self, seconds: float, send: Callable[[], Awaitable[object]]) -> Sample:
        began, count = time.perf_counter(), 0
        while time.perf_counter() < began + seconds:
            await asyncio.gather(*(send() for _ in range(AT_ONCE)))
            count += AT_ONCE * BLOCK
        return counted(count, began)

    async def batch(self, seconds: float) -> Sample:
        columns = self._sdk.Columns(VALUES * (BLOCK // FEW))
        async with await self._client.producer(batch_max_bytes=4 << 20) as producer:
            return await self._blocks(seconds, lambda: producer.send_batch("bulk", columns))

    async def arrow(self, seconds: float) -> Sample:
        import pyarrow

        table = pyarrow.table({"value": pyarrow.array(VALUES * (BLOCK // FEW), pyarrow.binary())})
        async with await self._client.producer(batch_max_bytes=4 << 20) as producer:
            return await self._blocks(seconds, lambda: producer.send_arrow("bulk", table))

    async def _filled(self, topic: str, least: int) -> int:
        """Fills a topic up to so many records; its end."""
        columns = self._sdk.Columns(VALUES * (BLOCK // FEW))
        while (
            end := (await self._client.describe_topic(topic)).partitions[0].high_watermark
        ) < least:
            async with await self._client.producer() as producer:
                await producer.send_batch(topic, columns)
        return int(end)

    async def read(self, seconds: float) -> Sample:
        """Python records, one by one, from the beginning."""
        await self._filled("single", int(seconds * 600_000))
        began, count, end = time.perf_counter(), 0, time.perf_counter() + seconds
        async with contextlib.aclosing(self._client.consume("single")) as records:
            async for _ in records:
                count += 1
                if not count % FEW and time.perf_counter() > end:
                    break
        return counted(count, began)

    async def read_arrow(self, seconds: float) -> Sample:
        await self._filled("bulk", int(seconds * 3_000_000))
        began, count = time.perf_counter(), 0
        columns = ("offset", "timestamp", "value")
        async with contextlib.aclosing(self._client.fetch_batches("bulk", 0, 0)) as batches:
            async for batch in batches:
                count += self._sdk.to_arrow(batch, columns=columns).num_rows
                if time.perf_counter() > began + seconds:
                    break
        return counted(count, began)

    async def read_group(self, seconds: float) -> Sample:
        end = await self._filled("single", int(seconds * 600_000))
        began, count = time.perf_counter(), 0
        async with self._client.subscribe("single", group=f"g{next(self._names)}") as consumer:
            async for _ in consumer:
                count += 1
                if count == end or (not count % FEW and time.perf_counter() > began + seconds):
                    break
            await consumer.commit()
        return counted(count, began)

    async def paced(self, seconds: float) -> Sample:
        """From when a record was due to a following reader's hands."""
        total, found = int(RATE * seconds), list[float]()

        async def read() -> None:
            async for record in self._client.consume("latency", start="latest", follow=True):
                found.append(time.perf_counter() - float(record.value))
                if len(found) == total:
                    return

        reader = asyncio.create_task(read())
        await asyncio.sleep(0.5)
        async with await self._client.producer() as producer:
            began = time.perf_counter()
            for number in range(total):
                due = began + number / RATE
                if (ahead := due - time.perf_counter()) > 0.001:
                    await asyncio.sleep(ahead)
                await producer.enqueue("latency", self._sdk.NewRecord(b"%r" % due))
            await asyncio.wait_for(reader, 30)
        return counted(total, began, found)

    async def transactions(self, seconds: float) -> Sample:
        """One record a transaction, one after the other."""
        async with await self._client.transactional_producer(f"t{next(self._names)}") as producer:
            began, took = time.perf_counter(), list[float]()
            while (now := time.perf_counter()) < began + seconds:
                async with producer.transaction() as transaction:
                    await transaction.send("transactions", VALUES[0])
                took.append(time.perf_counter() - now)
        return counted(len(took), began, took)


# -- Kafka


@contextlib.contextmanager
def kafka(address: str) -> Iterator[Answer]:
    try:
        import confluent_kafka
    except ImportError:
        raise Missing("there is no confluent-kafka (pip install confluent-kafka)") from None
    speaker = Kafka(address, confluent_kafka)
    yield lambda kind, seconds: getattr(speaker, kind)(seconds)  # type: ignore[no-any-return]


class Kafka:
    """librdkafka, the fastest client of Kafka for Python."""

    def __init__(self, address: str, library: Any) -> None:
        self._library = library
        self._address = address
        self._names = itertools.count()
        self._written = 0

    def _producer(self, **more: object) -> Any:
        return self._library.Producer({
            "bootstrap.servers": self._address, "acks": "all", "linger.ms": 5,
            "queue.buffering.max.messages": 1_000_000, **more,
        })  # fmt: skip

    def single(self, seconds: float) -> Sample:
        producer, count, began = self._producer(), 0, time.perf_counter()
        while time.perf_counter() < began + seconds:
            for value in VALUES:
                while True:
                    try:
                        producer.produce("single", value)
                        break
                    except BufferError:
                        producer.poll(0.05)
            producer.poll(0)
            count += len(VALUES)
        producer.flush()
        self._written += count
        return counted(count, began)

    def _consumer(self, topic: str, start: str) -> Any:
        consumer = self._library.Consumer({
            "bootstrap.servers": self._address, "group.id": f"g{next(self._names)}",
            "auto.offset.reset": start, "enable.auto.commit": False,
        })  # fmt: skip
        consumer.assign([self._library.TopicPartition(topic, 0, 0 if start == "earliest" else -1)])
        return consumer

    def read(self, seconds: float) -> Sample:
        while self._written < seconds * 400_000:
            self.single(seconds)
        consumer, count, began = self._consumer("single", "earliest"), 0, time.perf_counter()
        while count < self._written and time.perf_counter() < began + seconds:
            for message in consumer.consume(FEW, 1.0):
                count += message.error() is None and message.value() is not None
        found = counted(count, began)
        consumer.close()
        return found

    def paced(self, seconds: float) -> Sample:
        total, found = int(RATE * seconds), list[float]()
        producer = self._producer(**{"linger.ms": 0})
        producer.produce("latency", b"0")  # makes the topic
        producer.flush()
        consumer = self._consumer("latency", "latest")
        consumer.poll(1.0)

        def read() -> None:
            deadline = time.perf_counter() + seconds + 30
            while len(found) < total and time.perf_counter() < deadline:
                for message in consumer.consume(FEW, 0.001):
                    if message.error() is None:
                        found.append(time.perf_counter() - float(message.value()))

        reader = threading.Thread(target=read)
        reader.start()
        time.sleep(0.5)
        began = time.perf_counter()
        for number in range(total):
            due = began + number / RATE
            if (ahead := due - time.perf_counter()) > 0.001:
                producer.poll(0)
                time.sleep(ahead)
            producer.produce("latency", b"%r" % due)
        producer.flush()
        reader.join()
        consumer.close()
        return counted(len(found), began, found)

    def transactions(self, seconds: float) -> Sample:
        producer = self._producer(**{"transactional.id": f"t{next(self._names)}", "linger.ms": 0})
        producer.init_transactions()
        began, took = time.perf_counter(), list[float]()
        while (now := time.perf_counter()) < began + seconds:
            producer.begin_transaction()
            producer.produce("transactions", VALUES[0])
            producer.commit_transaction()
            took.append(time.perf_counter() - now)
        return counted(len(took), began, took)


# -- NATS


@contextlib.contextmanager
def nats(address: str) -> Iterator[Answer]:
    try:
        import nats as library
    except ImportError:
        raise Missing("there is no nats-py (pip install nats-py)") from None
    with asyncio.Runner() as runner:
        client = runner.run(library.connect(f"nats://{address}"))
        stream = client.jetstream()
        runner.run(stream.add_stream(name="bench", subjects=["bench"]))
        speaker = Nats(stream)
        yield lambda kind, seconds: runner.run(getattr(speaker, kind)(seconds))
        runner.run(client.close())


class Nats:
    """Each message is acknowledged by itself; the protocol knows no batches."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._written = 0
        self._names = itertools.count()

    async def single(self, seconds: float) -> Sample:
        began, count = time.perf_counter(), 0
        while time.perf_counter() < began + seconds:
            await asyncio.gather(*(self._stream.publish("bench", value) for value in VALUES))
            count += len(VALUES)
        self._written += count
        return counted(count, began)

    async def read(self, seconds: float) -> Sample:
        while self._written < seconds * 30_000:
            await self.single(seconds)
        subscription = await self._stream.pull_subscribe("bench", durable=f"d{next(self._names)}")
        began, count = time.perf_counter(), 0
        while count < self._written and time.perf_counter() < began + seconds:
            messages = await subscription.fetch(FEW)
            await asyncio.gather(*(message.ack() for message in messages))
            count += len(messages)
        return counted(count, began)
