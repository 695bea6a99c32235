"""How large the MetaService may grow: topics at a start, watchers of one stream.

    python -m benchmarks.meta_scale [--topics 100000] [--watchers 10000]

One member in this process, fsync on, in the event loop that a node has.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import tempfile
import time
from pathlib import Path

from lakemq.meta_service.api.settings import MetaSettings
from lakemq.meta_service.api.types import MetaClient
from lakemq.meta_service.server.member import MetaMember
from lakemq.runtime import loop_factory, settle


def member_in(folder: Path) -> MetaMember:
    return MetaMember(MetaSettings(port=0), node_id="n1", host="127.0.0.1", data_dir=folder)


async def create_topics(client: MetaClient, count: int) -> None:
    numbers = iter(range(count))

    async def create() -> None:
        for number in numbers:
            await client.create_topic(f"topic-{number}", 1, {"retention_ms": 60_000})

    begin = time.perf_counter()
    await asyncio.gather(*(create() for _ in range(256)))
    took = time.perf_counter() - begin
    print(f"{count} topics created in {took:.1f} s: {count / took:.0f}/s")


async def topics(count: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        member = member_in(Path(name) / "meta")
        await member.start()
        await create_topics(member.client(), count)
        await member.stop()
        member = member_in(Path(name) / "meta")
        begin = time.perf_counter()
        await member.start()
        started = time.perf_counter() - begin
        begin = time.perf_counter()
        _, found = await member.client().topics()
        listed = time.perf_counter() - begin
        print(f"start with {len(found)} topics in {started:.2f} s; listed in {listed:.2f} s")
        await member.stop()


async def write_times(client: MetaClient, count: int) -> str:
    times = []
    for number in range(count):
        begin = time.perf_counter()
        await client.put(b"watched/%d" % (number % 10), b"v" * 100)
        times.append(time.perf_counter() - begin)
        await asyncio.sleep(0.05)
    times.sort()
    return (
        f"write p50 {times[count // 2] * 1e3:.2f} ms, p99 {times[int(count * 0.99)] * 1e3:.2f} ms"
    )


async def watchers(count: int, writes: int = 100) -> None:
    with tempfile.TemporaryDirectory() as name:
        member = member_in(Path(name) / "meta")
        await member.start()
        client = member.client()
        settle()
        print(f"no watcher:      {await write_times(client, writes)}")
        status = await client.status()
        seen = [0] * count
        last = [0] * count

        async def watch(number: int) -> None:
            async for event in client.watch(b"watched/", status.revision + 1):
                assert event.revision == (last[number] or status.revision) + 1
                last[number] = event.revision
                seen[number] += 1

        tasks = [asyncio.create_task(watch(number)) for number in range(count)]
        await asyncio.sleep(1)
        print(f"{count} watchers: {await write_times(client, writes)}")
        begin = time.perf_counter()
        for _ in range(6000):
            if min(seen) == writes:
                break
            await asyncio.sleep(0.01)
        late = time.perf_counter() - begin
        print(f"every watcher saw {min(seen)} of {writes}, the last {late:.2f} s after the writes")
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks)
        await member.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=100_000)
    parser.add_argument("--watchers", type=int, default=10_000)
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=loop_factory("auto")) as runner:
        runner.run(topics(arguments.topics))
        runner.run(watchers(arguments.watchers))
