"""Writes and reads of the MetaService and etcd: three members, mutual TLS, fsync before an ack."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.harness.declare import Sample
from benchmarks.load.native import counted
from benchmarks.sides.etcd import VALUE, Call, EtcdGroup
from lakemq.meta_service.api.errors import MetaError
from lakemq.meta_service.api.settings import MetaSettings
from lakemq.meta_service.api.types import MetaClient
from lakemq.meta_service.server.member import MetaMember
from lakemq.runtime import loop_factory, settle
from tests.support.meta.group import Group

Answer = Callable[[str, float], Sample]
PAUSE_S = 0.002
OUTSTANDING = 256
WATCHED_WRITES = 100


async def alone(call: Call, seconds: float) -> Sample:
    """One call after the other with a pause between."""
    began, took = time.perf_counter(), list[float]()
    while (now := time.perf_counter()) < began + seconds:
        await call(len(took))
        took.append(time.perf_counter() - now)
        await asyncio.sleep(PAUSE_S)
    return counted(len(took), began, took)


async def many(call: Call, seconds: float) -> Sample:
    """256 at a time."""
    began, count = time.perf_counter(), 0

    async def caller() -> None:
        nonlocal count
        while time.perf_counter() < began + seconds:
            count += 1
            await call(count)

    await asyncio.gather(*(caller() for _ in range(OUTSTANDING)))
    return counted(count, began)


async def answer(put: Call, get: Call, kind: str, seconds: float) -> Sample:
    await put(0)
    if kind == "read":
        return await alone(get, seconds)
    return await (alone if kind == "write" else many)(put, seconds)


@contextlib.contextmanager
def metaservice(folder: Path) -> Iterator[Answer]:
    with asyncio.Runner(loop_factory=loop_factory("auto")) as runner:
        group = Group(folder)
        try:
            group.start_all()
            client = runner.run(client_of(group))
            settle()
            put, get = calls_of(client)
            yield lambda kind, seconds: runner.run(
                failover(group, client) if kind == "failover" else answer(put, get, kind, seconds)
            )
            runner.run(client.close())
        finally:
            group.stop()


async def client_of(group: Group):  # type: ignore[no-untyped-def]
    await group.leader()
    return group.client(attempt_s=0.5)


def calls_of(client: MetaClient) -> tuple[Call, Call]:
    return (
        lambda number: client.put(b"load/%d" % number, VALUE),
        lambda number: client.get(b"load/%d" % (number % 100)),
    )


@contextlib.contextmanager
def etcd(folder: Path) -> Iterator[Answer]:
    with asyncio.Runner(loop_factory=loop_factory("auto")) as runner:
        group = EtcdGroup(folder)
        group.start()
        try:
            put, get = runner.run(group.connect())
            settle()
            yield lambda kind, seconds: runner.run(answer(put, get, kind, seconds))
        finally:
            runner.run(group.stop())


async def failover(group: Group, client: MetaClient) -> Sample:
    """The longest time without an acknowledged write when the leader is killed (s)."""
    acked = [time.perf_counter()]
    stopping = False

    async def write_on() -> None:
        number = 0
        while not stopping:
            number += 1
            with contextlib.suppress(MetaError):
                await client.put(b"failover/%d" % number, b"")
                acked.append(time.perf_counter())

    task = asyncio.create_task(write_on())
    await asyncio.sleep(1.0)
    leader = await group.leader()
    killed = time.perf_counter()
    group.kill(leader)
    await asyncio.sleep(4.0)
    group.start(leader)
    await asyncio.to_thread(group.wait_ready, leader)
    stopping = True
    await task
    times = [killed, *(at for at in acked if at > killed)]
    longest = max(after - before for before, after in zip(times, times[1:], strict=False))
    return {"count": 1, "elapsed_s": 1.0, "first_s": longest}


# -- one member, growing


def member_in(folder: Path) -> MetaMember:
    return MetaMember(MetaSettings(port=0), node_id="n1", host="127.0.0.1", data_dir=folder)


@contextlib.contextmanager
def member_alone() -> Iterator[Callable[[str, int], Sample]]:
    """Answers (`topics` or `watchers`, how many)."""
    with asyncio.Runner(loop_factory=loop_factory("auto")) as runner:
        loads = {"topics": topics, "watchers": watchers}
        yield lambda kind, count: runner.run(loads[kind](int(count)))


async def topics(count: int) -> Sample:
    """Make that many, stop, and start again: `first_s`."""
    with tempfile.TemporaryDirectory() as name:
        member = member_in(Path(name) / "meta")
        await member.start()
        numbers = iter(range(count))

        async def create() -> None:
            for number in numbers:
                await member.client().create_topic(f"topic-{number}", 1, {"retention_ms": 60_000})

        began = time.perf_counter()
        await asyncio.gather(*(create() for _ in range(OUTSTANDING)))
        rate = count / (time.perf_counter() - began)
        await member.stop()
        member = member_in(Path(name) / "meta")
        began = time.perf_counter()
        await member.start()
        took = time.perf_counter() - began
        await member.stop()
    return {"rate": rate, "first_s": took}


async def watchers(count: int) -> Sample:
    """Writes that so many watchers see."""
    with tempfile.TemporaryDirectory() as name:
        member = member_in(Path(name) / "meta")
        await member.start()
        client = member.client()
        settle()
        status = await client.status()
        seen = [0] * count

        async def watch(number: int) -> None:
            async for _ in client.watch(b"watched/", status.revision + 1):
                seen[number] += 1

        tasks = [asyncio.create_task(watch(number)) for number in range(count)]
        await asyncio.sleep(1)
        began, took = time.perf_counter(), list[float]()
        for number in range(WATCHED_WRITES):
            now = time.perf_counter()
            await client.put(b"watched/%d" % (number % 10), VALUE)
            took.append(time.perf_counter() - now)
            await asyncio.sleep(0.02)
        sample = counted(len(took), began, took)
        deadline = time.monotonic() + 60
        while min(seen) < WATCHED_WRITES and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await member.stop()
    delivered = 100 * sum(seen) / count / WATCHED_WRITES
    return {"p50_ms": sample["p50_ms"], "p99_ms": sample["p99_ms"], "delivered_pct": delivered}
