"""Clients that go on while nodes are harmed, and note what they were told."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

import lakemq
from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.types import TopicPartition
from lakemq.testing import Cluster

IN_FLIGHT_MAX = 64
GAP_S = 0.002


class Load:
    """Idempotent producers and a reader of one topic, on an event loop of their own."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        producers: int = 2,
        bootstrap: str = "",
        rack: str = "",
    ) -> None:
        """`bootstrap`: the only node that the reader and the first producer are told of; empty:
        all, as the others are. `rack`: where the reader reads."""
        self._rack = rack
        self._bootstrap = bootstrap or cluster.bootstrap
        self.acks: Counter[int] = Counter()
        """Of each producer."""
        self.cluster, self.topic = cluster, topic
        self._history = cluster.history
        self.acked: dict[TopicPartition, list[tuple[int, int, int]]] = {}
        """By partition: (producer, number, offset), in the order in which they were sent."""
        self.last_ack_s = 0.0
        self.gap_max_s = 0.0
        """Longest time without an ack since the last `begin_gap`."""
        self.failures: list[BaseException] = []
        self._producers = producers
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def start(self) -> None:
        self.last_ack_s = time.monotonic()
        self._thread.start()

    def begin_gap(self) -> None:
        self.gap_max_s = 0.0

    def until_acked(self, more: int, timeout_s: float = 60.0) -> None:
        """Until so many records more are acknowledged."""
        goal, deadline = self._history.acks + more, time.monotonic() + timeout_s
        while self._history.acks < goal:
            self._wait(deadline)

    def until_each_acked(self, more: int, timeout_s: float = 60.0) -> None:
        """Until so many more of each producer are."""
        goals = [self.acks[number] + more for number in range(self._producers)]
        deadline = time.monotonic() + timeout_s
        while any(self.acks[number] < goal for number, goal in enumerate(goals)):
            self._wait(deadline)

    def _wait(self, deadline: float) -> None:
        assert not self.failures, self.failures
        assert time.monotonic() < deadline, "no acks"
        time.sleep(0.01)

    def stop(self) -> None:
        """Wait for all acks; raise what went wrong; check the order of each producer."""
        self._stopping.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), "producers did not end"
        if self.failures:
            raise self.failures[0]
        for place, told in self.acked.items():
            for producer in range(self._producers):
                mine = [(number, offset) for who, number, offset in told if who == producer]
                assert [number for number, _ in mine] == sorted(number for number, _ in mine)
                offsets = [offset for _, offset in mine]
                assert offsets == sorted(offsets), f"{place} is out of order"

    def _run(self) -> None:
        try:
            asyncio.run(self._all())
        except BaseException as error:
            self.failures.append(error)

    async def _all(self) -> None:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(
                lakemq.Client(self._bootstrap, timeout_s=100, rack=self._rack)
            )
            other = await stack.enter_async_context(
                lakemq.Client(self.cluster.bootstrap, timeout_s=100)
            )
            description = await client.describe_topic(self.topic)
            readers = [
                asyncio.create_task(self._read(client, each.partition))
                for each in description.partitions
            ]
            try:
                await asyncio.gather(
                    self._produce(client, 0),
                    *(self._produce(other, number) for number in range(1, self._producers)),
                )
            finally:
                for reader in readers:
                    reader.cancel()
                results = await asyncio.gather(*readers, return_exceptions=True)
                self.failures += [
                    each for each in results
                    if isinstance(each, Exception)
                ]  # fmt: skip

    async def _produce(self, client: lakemq.Client, producer: int) -> None:
        async with await client.producer(delivery_timeout_ms=100_000) as out:
            pending: set[asyncio.Task[None]] = set()
            for number in itertools.count():
                if self._stopping.is_set():
                    break
                value = b"%d-%d" % (producer, number)
                record = lakemq.NewRecord(value, key=b"%d-%d" % (producer, number % 7))
                future = await out.enqueue(self.topic, record)
                task = asyncio.ensure_future(self._note(future, producer, number, value))
                pending.add(task)
                task.add_done_callback(pending.discard)
                if len(pending) >= IN_FLIGHT_MAX:
                    done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                    for each in done:
                        each.result()
                await asyncio.sleep(GAP_S)
            await out.flush()
            await asyncio.gather(*pending)

    async def _note(
        self,
        future: asyncio.Future[lakemq.RecordMetadata],
        producer: int,
        number: int,
        value: bytes,
    ) -> None:
        placed = await future
        now = time.monotonic()
        self.gap_max_s = max(self.gap_max_s, now - self.last_ack_s)
        self.last_ack_s = now
        self.acks[producer] += 1
        self._history.acked(self.topic, placed.partition, placed.offset, value)
        place = TopicPartition(self.topic, placed.partition)
        self.acked.setdefault(place, []).append((producer, number, placed.offset))

    async def _read(self, client: lakemq.Client, partition: int) -> None:
        """Every record once, in order of offsets, whoever leads."""
        following = 0
        while True:
            # Ends with the connection to the leader: the application begins again where it was.
            with suppress(lakemq.Unavailable):
                async for record in client.consume(
                    self.topic, partition=partition, start=following, follow=True
                ):
                    assert record.offset == following, f"offset {record.offset}, not {following}"
                    following += 1
                    self._history.read(self.topic, partition, record.offset, record.value)
            await asyncio.sleep(0.1)


class Sender:
    """Sends one record after the other, to each partition in turn, whatever is harmed."""

    def __init__(self, client: lakemq.SyncClient, topic: str, partitions: int) -> None:
        self.sent = 0
        self._client, self._topic, self._partitions = client, topic, partitions
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            with suppress(LakeMQError):
                self._client.send(self._topic, b"x", partition=self.sent % self._partitions)
                self.sent += 1
            time.sleep(0.01)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(30)


class MqttLoad:
    """Publishers of QoS 1, one for each node; one that loses its node goes to the next."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.cluster, self.topic = cluster, topic
        self.acked: set[bytes] = set()
        self.sent = 0
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._publish, args=(number,), daemon=True)
            for number in range(len(cluster.names))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a publisher did not end"

    def assert_stored(self) -> int:
        """Of the topic, whose other records come from `Load`: nothing that anybody was told of is
        lost, and only messages are stored twice; how many. QoS 1 may store one again whose ack was
        lost with its node."""
        self.cluster.assert_no_loss(unique=False)
        stored = self.cluster.stored(self.topic).values()
        values = Counter(seen.value for records in stored for seen in records)
        assert [value for value in self.acked if not values[value]] == []
        again = [value for value, count in values.items() if count > 1]
        assert [each for each in again if each is None or not each.startswith(b"mqtt-")] == []
        return len(again)

    def _publish(self, number: int) -> None:
        addresses = itertools.cycle(self.cluster.names[number:] + self.cluster.names[:number])
        under_way: dict[int, bytes] = {}

        def acknowledged(client: object, data: object, packet: int, *_: object) -> None:
            self.acked.add(under_way.pop(packet))

        client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id=f"load-{self.topic}-{number}",
            clean_session=False,
        )  # fmt: skip
        client.on_publish = acknowledged
        client.max_inflight_messages_set(20)
        for count in itertools.count():
            self._keep_connected(client, addresses)
            if self._stopping.is_set() and not under_way:
                break
            if len(under_way) < 20 and not self._stopping.is_set():
                value = b"mqtt-%d-%d" % (number, count)
                sent = client.publish(f"{self.topic}/{number}", value, qos=1)
                under_way[sent.mid] = value
                self.sent += 1
                time.sleep(GAP_S)
            client.loop(0.005)
        client.disconnect()

    def _keep_connected(self, client: mqtt.Client, addresses: itertools.cycle[str]) -> None:
        if client.socket() is None:
            host, _, port = self.cluster.address(next(addresses), "mqtt").rpartition(":")
            with suppress(OSError):
                client.connect(host, int(port), 10)
            time.sleep(0.05)


def until(condition: Callable[[], bool], timeout_s: float = 60.0, what: str = "") -> float:
    """How long it took (s)."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + timeout_s, what or "it did not come"
        time.sleep(0.05)
    return time.monotonic() - began
