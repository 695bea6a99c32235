"""How fast the MetaService is: three members, mutual TLS, fsync on, beside etcd and pysyncobj.

    python -m benchmarks.meta_speed [--members 3] [--writes 10000] [--rounds 3]

Each member is a process of its own. "in process" calls the leader's own client, as a broker on the
same node does; "over gRPC" calls it from another process. All are measured in turn, round by round,
so that whatever else the machine does hits all; the table has medians of the rounds. Failover is
the time from the last acknowledged write before the leader is killed to the first one behind it.
Members and clients run in the event loop and with the garbage collector's settings of a node. CPU
per write is that of all members and of the client's process, by /proc/<pid>/stat.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.meta_peers import VALUE, Call, EtcdGroup, StockGroup, has_etcd
from lakemq.meta_service.api.errors import MetaError
from lakemq.meta_service.api.settings import MetaSettings
from lakemq.meta_service.api.types import MetaClient
from lakemq.meta_service.server.member import MetaMember
from lakemq.runtime import loop_factory, settle
from tests.support.meta.group import Group

FIGURES: dict[str, list[float]] = {}
"""What -> its value in every round."""


def note(what: str, value: float, show: bool = True) -> None:
    FIGURES.setdefault(what, []).append(value)
    if show:
        print(f"{what}: {value:.4g}", flush=True)


def note_times(what: str, times_s: list[float]) -> None:
    ordered = sorted(times_s)
    note(f"{what}, p50 (ms)", ordered[len(ordered) // 2] * 1e3)
    note(f"{what}, p99 (ms)", ordered[int(len(ordered) * 0.99)] * 1e3)


async def timed(call: Call, count: int, pause_s: float = 0.002) -> list[float]:
    times = []
    for number in range(count):
        begin = time.perf_counter()
        await call(number)
        times.append(time.perf_counter() - begin)
        await asyncio.sleep(pause_s)
    return times


async def throughput(put: Call, writes: int, outstanding: int) -> float:
    numbers = iter(range(writes))

    async def writer() -> None:
        for number in numbers:
            await put(number)

    begin = time.perf_counter()
    await asyncio.gather(*(writer() for _ in range(outstanding)))
    return writes / (time.perf_counter() - begin)


def cpu_s(pids: Iterable[int]) -> float:
    """CPU time that processes took so far, in user and kernel mode, all threads (s)."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


async def measure(put: Call, get: Call, label: str, writes: int, pids: Sequence[int]) -> None:
    """`pids`: the members. What they and this process take is CPU per write."""
    await put(0)
    note_times(f"{label}: one write", await timed(put, 300))
    note_times(f"{label}: one linearizable read", await timed(get, 300))
    everybody = {*pids, os.getpid()}
    for outstanding in (32, 256):
        before_s = cpu_s(everybody)
        rate = await throughput(put, writes, outstanding)
        cpu_us = (cpu_s(everybody) - before_s) / writes * 1e6
        note(f"{label}: {outstanding} outstanding (writes/s)", rate)
        note(f"{label}: {outstanding} outstanding, CPU of all per write (µs)", cpu_us)


def calls_of(client: MetaClient) -> tuple[Call, Call]:
    return (
        lambda number: client.put(b"load/%d" % number, VALUE),
        lambda number: client.get(b"load/%d" % number),
    )


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
    client = member.client()
    settle()
    while line := await asyncio.to_thread(sys.stdin.readline):
        writes, *pids = map(int, line.split())
        await measure(*calls_of(client), "in process", writes, pids)
        cached = await timed(lambda n: client.get(b"load/1", stale=True), 2000, 0)
        note_times("in process: cached read", cached)
        print("end", flush=True)
    await member.stop()


class MeasuringGroup(Group):
    """Members that run this module."""

    def pids(self) -> list[int]:
        return [process.pid for process in self.processes.values()]

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
    note("failover, longest of five (s)", max(longest))
    note("failover, median of five (s)", statistics.median(longest))


def run_inside(group: Group, leader: str, writes: int) -> None:
    process = group.processes[leader]
    assert process.stdin is not None and process.stdout is not None
    pids = " ".join(map(str, group.pids()))
    process.stdin.write(f"{writes} {pids}\n".encode())
    process.stdin.flush()
    while (line := process.stdout.readline()) not in (b"end\n", b""):
        what, _, value = line.decode().rpartition(": ")
        note(what, float(value))


async def one_round(group: Group, etcd: EtcdGroup | None, stock: StockGroup, writes: int) -> None:
    note("load average before the round", os.getloadavg()[0])
    await asyncio.to_thread(run_inside, group, await group.leader(), writes)
    client = group.client()
    await measure(*calls_of(client), "over gRPC", writes // 2, group.pids())
    await client.close()
    if etcd is not None:
        await measure(*await etcd.connect(), "etcd, over gRPC", writes // 2, etcd.pids())
    for outstanding in (32, 256):
        rate = await asyncio.to_thread(stock.rate, outstanding, writes)
        note(f"stock pysyncobj, in process, no fsync: {outstanding} outstanding (writes/s)", rate)


async def main(size: int, writes: int, rounds: int) -> None:
    settle()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        group = MeasuringGroup(folder, size)
        etcd = EtcdGroup(folder) if has_etcd() else None
        stock = StockGroup(folder / "stock")
        try:
            group.start_all()
            if etcd is not None:
                etcd.start()
            print(f"{size} members, mutual TLS, fsync on, {len(VALUE)} B values")
            for _ in range(rounds):
                await one_round(group, etcd, stock, writes)
            if size > 1:
                await failover(group)
        finally:
            group.stop()
            stock.stop()
            if etcd is not None:
                await etcd.stop()
    print("\n| what | median | of |\n|---|---|---|")
    for what, values in FIGURES.items():
        every = ", ".join(f"{value:.4g}" for value in values)
        print(f"| {what} | {statistics.median(values):.4g} | {every} |")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--writes", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", default="")
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=loop_factory("auto")) as runner:
        if arguments.serve:
            runner.run(serve(arguments.serve))
        else:
            runner.run(main(arguments.members, arguments.writes, arguments.rounds))
