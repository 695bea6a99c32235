"""What grows inside one process: the subscription index, and readers of the native protocol."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import lakemq
from benchmarks.harness.declare import Sample
from benchmarks.harness.processes import rss_mb
from benchmarks.load.native import VALUES, counted
from lakemq.broker_core.api.types import ANONYMOUS
from lakemq.plugins.mqtt.routing.subscriptions import SubscriptionIndex
from lakemq.plugins.mqtt.state.delivery import DeliveryLimits
from lakemq.plugins.mqtt.state.sessions import Session, Subscription
from lakemq.plugins.mqtt.wire.topics import Address
from lakemq.runtime import loop_factory

SHAPES = ("site/{}/+/temperature", "site/{}/line/#", "device/{}/state", "+/{}/alarm")
MATCHES = 20_000
PARTITIONS = 64
RECORDS = 200_000
BLOCK = 10_000
FETCHED = 100_000


@contextlib.contextmanager
def subscription_index() -> Iterator[Callable[[str, int], Sample]]:
    yield lambda _kind, count: matched(count)


def matched(count: int) -> Sample:
    """CPU of a match of a new name, and what a subscription keeps."""
    gc.collect()
    pid = os.getpid()
    index, limits = SubscriptionIndex(), DeliveryLimits()
    sessions = [Session(f"s{n}", ANONYMOUS, limits) for n in range(100)]
    before = rss_mb([pid], peak=False)
    began = time.process_time()
    for number in range(count):
        text = SHAPES[number % 4].format(number // 4)
        index.add(Subscription(sessions[number % 100], Address(text), 1, 0))
    added = time.process_time() - began
    each = (rss_mb([pid], peak=False) - before) * 1e6 / 1024 / count
    names = [f"site/{n * 7 % max(1, count // 4)}/{n}/temperature" for n in range(MATCHES)]
    began = time.process_time()
    for name in names:
        index.match(name)
    took = time.process_time() - began
    return {"cpu_us": 1e6 * took / MATCHES, "each_kib": max(each, 0.0), "rate": count / added}


@contextlib.contextmanager
def client(address: str) -> Iterator[Callable[[str, int], Sample]]:
    """Answers (`consumers`, `groups` or `backlog`, how many): first `fill` and one of them."""
    with asyncio.Runner(loop_factory=loop_factory("auto")) as runner:
        loads = {"consumers": consumers, "groups": groups, "backlog": backlog}
        fills = {
            "fill consumers": lambda _count: (PARTITIONS, RECORDS),
            "fill groups": lambda count: (1, RECORDS // count),
            "fill backlog": lambda count: (1, count),
        }

        async def answer(kind: str, count: int) -> Sample:
            if kind not in fills:
                return await loads[kind](address, count)
            async with lakemq.Client(address) as own:
                await filled(own, "grown", *fills[kind](count))
            return {}

        yield lambda kind, count: runner.run(answer(kind, count))


async def filled(reader: Any, topic: str, partitions: int, records: int) -> None:
    await reader.create_topic(topic, partitions=partitions)
    columns = lakemq.Columns(VALUES * (BLOCK // len(VALUES)))
    async with await reader.producer(batch_max_bytes=4 << 20) as producer:
        blocks = (
            producer.send_batch(topic, columns, partition=number % partitions)
            for number in range(-(-records // BLOCK))
        )
        while some := list(itertools.islice(blocks, 8)):
            await asyncio.gather(*some)


async def read_some(address: str, group: str, seen: list[int], wanted: int) -> None:
    """A consumer of a group that reads until the group has seen so many."""
    async with lakemq.Client(address) as own, own.subscribe("grown", group=group) as consumer:
        async for _ in consumer:
            seen[0] += 1
            if seen[0] >= wanted:
                return


async def consumers(address: str, count: int) -> Sample:
    began, seen = time.perf_counter(), [0]
    tasks = [
        asyncio.create_task(read_some(address, "one", seen, RECORDS * 9 // 10))
        for _ in range(count)
    ]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    sample = counted(seen[0], began)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return sample


async def groups(address: str, count: int) -> Sample:
    each = RECORDS // count
    began, seen = time.perf_counter(), [[0] for _ in range(count)]
    await asyncio.gather(*(read_some(address, f"g{n}", seen[n], each) for n in range(count)))
    return counted(sum(found[0] for found in seen), began)


async def backlog(address: str, _count: int) -> Sample:
    async with lakemq.Client(address) as reader:
        began, seen, first = time.perf_counter(), 0, 0.0
        async with contextlib.aclosing(reader.fetch_batches("grown", 0, 0)) as batches:
            async for batch in batches:
                first = first or time.perf_counter() - began
                seen += lakemq.to_arrow(batch, columns=("offset", "value")).num_rows
                if seen >= FETCHED:
                    break
    return {**counted(seen, began), "first_s": first}
