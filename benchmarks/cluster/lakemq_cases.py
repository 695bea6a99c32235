"""The cases of three LakeMQ processes. Each makes its own topic on a cluster that runs."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable

import psutil  # type: ignore[import-untyped]  # has no types of its own

import lakemq
from benchmarks.cluster.figures import (
    BLOCK,
    CALLERS,
    RATE,
    VALUE,
    Figure,
    outages,
    percentiles,
    timed,
)
from lakemq.local_cluster.cluster import LocalCluster

REPLICATED = (3, 2)
"""Replicas, and how many must be in sync."""
ALONE = (1, 1)
CATCH_UP_MAX_S = 120.0
OUTAGE_MAX_S = 60.0
CALM_S = 1.0
CALM_ACKS = 20
"""So many acks, so long after the harm, mean that it is over."""
_TICK_S = 0.005


def servers(cluster: LocalCluster) -> list[psutil.Process]:
    return [psutil.Process(cluster.nodes[name].pid) for name in cluster.running]


async def topic_of(client: lakemq.Client, name: str, replicas: tuple[int, int]) -> str:
    """A new topic of one partition, once all of its replicas are in sync."""
    count, minimum = replicas
    await client.create_topic(name, partitions=1, replication=count, min_in_sync=minimum)
    deadline = time.monotonic() + CATCH_UP_MAX_S
    while len((await client.describe_topic(name)).partitions[0].in_sync) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{name}: not {count} replicas in sync")
        await asyncio.sleep(0.05)
    return name


def acks_of(replicas: tuple[int, int]) -> str:
    return "replicated" if replicas[0] > 1 else "leader"


async def large_batches(cluster: LocalCluster, replicas: tuple[int, int], records: int) -> Figure:
    """Batches of 50,000 records, four under way."""
    async with lakemq.Client(cluster.bootstrap) as client:
        topic = await topic_of(client, f"large-{replicas[0]}", replicas)
        columns = lakemq.Columns([VALUE] * BLOCK)
        acks = acks_of(replicas)
        async with await client.producer(acks=acks, batch_max_bytes=4 << 20) as producer:

            async def produce() -> int:
                rounds = max(1, records // BLOCK // 4)
                for _ in range(rounds):
                    await asyncio.gather(*(producer.send_batch(topic, columns) for _ in range(4)))
                return rounds * 4 * BLOCK

            await producer.send_batch(topic, columns)  # connections and files are there
            name = f"LakeMQ, large batches, {replicas[0]} replica(s)"
            return await timed(name, servers(cluster), produce)


async def callers(cluster: LocalCluster, replicas: tuple[int, int], records: int) -> Figure:
    """256 tasks, each of which waits for the ack of its record before it sends the next."""
    async with lakemq.Client(cluster.bootstrap) as client:
        topic = await topic_of(client, f"callers-{replicas[0]}", replicas)
        async with await client.producer(acks=acks_of(replicas)) as producer:

            async def call(count: int) -> None:
                for _ in range(count):
                    await producer.send(topic, VALUE)

            async def produce() -> int:
                each = max(1, records // CALLERS)
                await asyncio.gather(*(call(each) for _ in range(CALLERS)))
                return each * CALLERS

            await call(1)
            name = f"LakeMQ, {CALLERS} callers, {replicas[0]} replica(s)"
            return await timed(name, servers(cluster), produce)


async def latency(cluster: LocalCluster, replicas: tuple[int, int], seconds: float) -> None:
    """From the call to the ack at a steady rate, and meanwhile how far followers are behind."""
    async with lakemq.Client(cluster.bootstrap) as client:
        topic = await topic_of(client, f"latency-{replicas[0]}", replicas)
        took_s: list[float] = []
        lags: list[int] = []

        async def watch() -> None:
            while True:
                (described,) = (await client.describe_topic(topic)).partitions
                lags.extend(described.lags.values())
                await asyncio.sleep(0.02)

        async with await client.producer(acks=acks_of(replicas)) as producer:

            async def send() -> None:
                began = time.perf_counter()
                await producer.send(topic, VALUE)
                took_s.append(time.perf_counter() - began)

            await send()
            watching = asyncio.create_task(watch())
            begun = time.perf_counter()
            async with asyncio.TaskGroup() as tasks:
                for number in range(int(RATE * seconds)):
                    tasks.create_task(send())
                    ahead = begun + number / RATE - time.perf_counter()
                    if ahead > 0.001:
                        await asyncio.sleep(ahead)
            watching.cancel()
        percentiles(f"LakeMQ, ack at {RATE:,}/s, {replicas[0]} replica(s)", took_s)
        if lags:
            # So many records come in a second: what is missing is so old.
            percentiles("LakeMQ, lag of followers in calm", [lag / RATE for lag in lags])
            await asyncio.sleep(1)
            (described,) = (await client.describe_topic(topic)).partitions
            print(f"at rest followers are behind by {described.lags} records", flush=True)


async def failover(
    cluster: LocalCluster, name: str, rounds: int, harm: Callable[[str], object]
) -> float:
    """The leader is harmed while a producer sends: the longest time without an ack from then on.

    `harm(node)`: what is done to it; it is made well again after each round.
    """
    found: list[float] = []
    async with lakemq.Client(cluster.bootstrap) as client:
        for number in range(rounds):
            topic = await topic_of(client, f"{name.replace(' ', '-')}-{number}", REPLICATED)
            async with await client.producer(acks="replicated") as producer:
                await producer.send(topic, VALUE)
                (described,) = (await client.describe_topic(topic)).partitions
                acked_s: list[float] = []
                sending = asyncio.create_task(_send_on(producer, topic, acked_s))
                await asyncio.sleep(0.3)  # sends and acks are on their way
                began = time.perf_counter()
                await asyncio.to_thread(harm, described.leader)
                found.append(await outage(acked_s, began, time.perf_counter()))
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
            await asyncio.to_thread(recover, cluster, described.leader)
    return outages(f"LakeMQ, {name}", found)


async def _send_on(producer: lakemq.Producer, topic: str, acked_s: list[float]) -> None:
    """A producer in the middle of its work; notes the time of each ack."""
    while True:
        await producer.send(topic, VALUE)
        acked_s.append(time.perf_counter())
        await asyncio.sleep(_TICK_S)


async def outage(acked_s: list[float], began: float, harmed: float) -> float:
    """The longest time without an ack since `began`, once acks have come for a second again: what
    was under way at the harm may be acknowledged yet."""
    deadline = harmed + OUTAGE_MAX_S
    while sum(at > harmed + CALM_S for at in acked_s) < CALM_ACKS:
        if time.perf_counter() > deadline:
            raise TimeoutError(f"no ack for {OUTAGE_MAX_S:.0f} s")
        await asyncio.sleep(0.05)
    times = [began, *(at for at in acked_s if at > began)]
    return max(after - before for before, after in itertools.pairwise(times))


def recover(cluster: LocalCluster, name: str) -> None:
    """The node runs, and is reached."""
    cluster.heal()
    if name not in cluster.running:
        cluster.start_node(name)
    time.sleep(3)


async def catch_up(cluster: LocalCluster, records: int) -> None:
    """One node loses its disk: from its start until it is in sync again."""
    async with lakemq.Client(cluster.bootstrap) as client:
        topic = await topic_of(client, "catch-up", REPLICATED)
        columns = lakemq.Columns([VALUE] * BLOCK)
        async with await client.producer(acks="replicated", batch_max_bytes=4 << 20) as producer:
            for _ in range(max(1, records // BLOCK)):
                await producer.send_batch(topic, columns)
        (before,) = (await client.describe_topic(topic)).partitions
        follower = next(node for node in before.replicas if node != before.leader)
        await asyncio.to_thread(cluster.lose_disk, follower)
        await asyncio.to_thread(cluster.start_node, follower)
        began, deadline = time.perf_counter(), time.monotonic() + CATCH_UP_MAX_S
        while follower not in (await client.describe_topic(topic)).partitions[0].in_sync:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{follower} did not catch up")
            await asyncio.sleep(0.05)
        took_s = time.perf_counter() - began
        megabytes = before.size_bytes / 1e6
        print(
            f"{'LakeMQ, catch-up of an empty replica':38} {megabytes / took_s:8.0f} MB/s "
            f"({megabytes:,.0f} MB)",
            flush=True,
        )
