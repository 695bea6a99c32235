"""How fast the MetaService is: three members, mutual TLS, fsync on.

    python -m benchmarks.meta_speed [--members 3] [--writes 20000]

Each member is a process of its own. "in process" calls the leader's own client, as a broker on the
same node does; "over gRPC" calls it from another process. Failover is the time from the last
acknowledged write before the leader is killed to the first one behind it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from meta_service.api.errors import MetaError
from meta_service.api.settings import MetaSettings
from meta_service.api.types import MetaClient
from meta_service.server.member import MetaMember
from tests.support.meta_group import Group

VALUE = bytes(100)


def percentiles(times_s: list[float]) -> str:
    ordered = sorted(times_s)
    p50, p99 = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
    return f"p50 {p50 * 1e3:6.2f} ms   p99 {p99 * 1e3:6.2f} ms"


async def timed(call: Any, count: int, pause_s: float = 0.002) -> list[float]:
    times = []
    for number in range(count):
        begin = time.perf_counter()
        await call(number)
        times.append(time.perf_counter() - begin)
        await asyncio.sleep(pause_s)
    return times


async def throughput(client: MetaClient, writes: int, outstanding: int) -> float:
    numbers = iter(range(writes))

    async def writer() -> None:
        for number in numbers:
            await client.put(b"load/%d" % number, VALUE)

    begin = time.perf_counter()
    await asyncio.gather(*(writer() for _ in range(outstanding)))
    return writes / (time.perf_counter() - begin)


async def measure(client: MetaClient, label: str, writes: int) -> None:
    await client.put(b"warm", b"up")
    one = await timed(lambda n: client.put(b"one/%d" % n, VALUE), 500)
    print(f"{label:12} one write           {percentiles(one)}")
    read = await timed(lambda n: client.get(b"one/%d" % n), 500)
    print(f"{label:12} linearizable read   {percentiles(read)}")
    for outstanding in (32, 256):
        rate = await throughput(client, writes, outstanding)
        print(f"{label:12} {outstanding:3} outstanding     {rate:8.0f} writes/s")


# ------------------------------------------------------------ a member that measures itself


async def serve(config_path: str) -> None:
    config = json.loads(await asyncio.to_thread(Path(config_path).read_text))
    logging.basicConfig(level=logging.WARNING)
    member = MetaMember(
        MetaSettings(**config["settings"]),
        node_id=config["node_id"],
        host=config["host"],
        data_dir=Path(config["data_dir"]),
    )
    await member.start()
    sys.stdout.write(member.cluster_id + "\n")
    sys.stdout.flush()
    while line := await asyncio.to_thread(sys.stdin.readline):
        outstanding, _, only = line.partition(" ")
        if only:
            rate = await throughput(member.client(), int(only), int(outstanding))
            print(f"{outstanding:>3} outstanding {rate:8.0f} writes/s")
            print("end", flush=True)
            continue
        await measure(member.client(), "in process", int(line))
        stale = await timed(lambda n: member.client().get(b"one/1", stale=True), 2000, 0)
        print(f"{'in process':12} cached read         {percentiles(stale)}")
        print("end", flush=True)
    await member.stop()


class MeasuringGroup(Group):
    """Members that run this module."""

    def command(self, name: str) -> list[str]:
        return [
            sys.executable,
            "-m",
            "benchmarks.meta_speed",
            "--serve",
            str(self.config_path(name)),
        ]


async def failover(group: Group) -> None:
    client = group.client(attempt_s=0.5)
    gaps, last, stopping = [], time.perf_counter(), False

    async def write_on() -> None:
        nonlocal last
        number = 0
        while not stopping:
            number += 1
            try:
                await client.put(b"failover/%d" % number, b"")
            except MetaError:
                continue
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    task = asyncio.create_task(write_on())
    longest = []
    for _ in range(5):
        await asyncio.sleep(1.0)
        leader = await group.leader()
        gaps.clear()
        last = time.perf_counter()
        group.kill(leader)
        await asyncio.sleep(3.0)
        longest.append(max(gaps))
        group.start(leader)
        await asyncio.to_thread(group.wait_ready, leader)
    stopping = True
    await task
    await client.close()
    print(f"failover     {', '.join(f'{gap:.2f}' for gap in longest)} s")


async def main(size: int, writes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        group = MeasuringGroup(Path(folder), size)
        try:
            group.start_all()
            print(f"{size} members, mutual TLS, fsync on, {len(VALUE)} B values")
            leader = await group.leader()
            await asyncio.to_thread(run_inside, group, leader, writes)
            client = group.client()
            await measure(client, "over gRPC", writes // 2)
            await client.close()
            if size > 1:
                await failover(group)
        finally:
            group.stop()


def run_inside(group: Group, leader: str, writes: int) -> None:
    process = group.processes[leader]
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b"%d\n" % writes)
    process.stdin.flush()
    while (line := process.stdout.readline()) not in (b"end\n", b""):
        sys.stdout.write(line.decode())
        sys.stdout.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--writes", type=int, default=20_000)
    parser.add_argument("--serve", default="")
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(serve(arguments.serve))
    else:
        asyncio.run(main(arguments.members, arguments.writes))
