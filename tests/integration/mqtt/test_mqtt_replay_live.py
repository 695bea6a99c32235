"""Goal: over sockets, history and what is published while it is handed over come once, in order."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable

import paho.mqtt.client as paho

from lakemq.broker_core.api.ports import PartitionLog
from lakemq.broker_core.api.types import ANONYMOUS, Columns, FetchResult, Offset
from tests.support.mqtt.memory_broker import MemoryBroker, MemoryLog, running_server

COUNT = 5000
WAIT_S = 30
STARTS = (
    ("2023-11-14T22:13:20Z", 10),
    ("1700000000001", 0),
    ("1h", 0),
    ("1699999999999", 10),
)


def numbers_of(port: int, start: str, qos: int, count: int, live: threading.Event) -> list[int]:
    """What a client gets that replays from `start`."""
    found: queue.Queue[int] = queue.Queue()
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    client.on_connect = lambda *_: client.subscribe(f"$replay/{start}/n/#", qos)
    client.on_message = lambda c, u, message: found.put(int(message.payload))
    client.connect("127.0.0.1", port)
    client.loop_start()
    numbers = []
    try:
        for _ in range(count):
            numbers.append(found.get(timeout=WAIT_S))
            live.set()
        return numbers
    finally:
        client.disconnect()
        client.loop_stop()


async def until(true: Callable[[], bool]) -> None:
    for _ in range(1000):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it does not come")


async def append(broker: MemoryBroker, first: int, count: int) -> None:
    numbers = range(first, first + count)
    keys = [b"n/%d" % (number % 7) for number in numbers]
    values = [b"%d" % number for number in numbers]
    await broker.publish("mqtt", Columns(values, keys), principal=ANONYMOUS)


async def test_history_and_what_is_published_meanwhile_come_once() -> None:
    broker = MemoryBroker()
    async with running_server(broker) as (server, _, port):
        await append(broker, 0, COUNT // 2)
        for qos in (0, 1, 2):
            begun = threading.Event()
            base = broker._offsets["mqtt"]
            reading = asyncio.create_task(
                asyncio.to_thread(numbers_of, port, "earliest", qos, base + 2000, begun)
            )
            await asyncio.to_thread(begun.wait, WAIT_S)
            for step in range(200):  # while history is read, handed over, and after
                await append(broker, base + 10 * step, 10)
                await asyncio.sleep(0.002)
            assert await reading == list(range(base + 2000)), qos
        assert server.hub.histories == {}


async def test_a_replay_begins_at_a_time() -> None:
    broker = MemoryBroker()
    async with running_server(broker) as (server, _, port):
        await append(broker, 0, 10)  # the memory broker's records are all of 2023-11-14
        for start, expected in STARTS:
            reading = asyncio.create_task(
                asyncio.to_thread(numbers_of, port, start, 1, expected + 1, threading.Event())
            )
            await until(lambda: server.hub.index.count == 1)  # it is live
            before = broker._offsets["mqtt"]
            await append(broker, before, 1)
            numbers = await reading
            assert numbers == list(range(before - expected, before + 1)), start
            await until(lambda: not server.hub.index.count)
            broker.batches["mqtt"] = broker.batches["mqtt"][:1]
            broker._offsets["mqtt"] = 10
            server.hub.positions["mqtt", 0] = 10


class HollowLog(MemoryLog):
    """A log whose last records were compacted away, and whose first were deleted."""

    first = 4
    last = 6

    @property
    def log_start_offset(self) -> Offset:
        return Offset(self.first)

    async def fetch(self, offset: Offset, *, bytes_max: int, wait_ms: int = 0) -> FetchResult:
        got = await super().fetch(offset, bytes_max=1, wait_ms=wait_ms)
        if self.last <= offset < 10:
            return FetchResult(b"", offset, self.high_watermark, self.log_start_offset)
        return got


class HollowBroker(MemoryBroker):
    def partition(self, topic: str, partition: int, leader_epoch: int = 0) -> PartitionLog:
        return HollowLog(self, topic, self.batches.setdefault(topic, []))


async def test_a_replay_passes_over_what_is_not_there_any_more() -> None:
    broker = HollowBroker()
    async with running_server(broker) as (server, _, port):
        for number in range(10):
            await append(broker, number, 1)
        begun = threading.Event()
        reading = asyncio.create_task(asyncio.to_thread(numbers_of, port, "0", 1, 3, begun))
        await until(lambda: server.hub.index.count == 1)
        await append(broker, 10, 1)
        assert await reading == [4, 5, 10]
