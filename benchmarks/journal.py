"""How fast the journal is, and how fast the same disk is without it.

    python -m benchmarks.journal [--folder FOLDER] [--only NAME ...] [--gigabytes 10]

Every figure is one run on this machine; the line `raw` below one is plain write + fdatasync of the
same bytes in the same portions, with nothing else. Nothing here is a test.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lakemq.broker_core.api.records.batch import HEADER_BYTES, check_body, encode, read_header
from lakemq.broker_core.api.types import Acks, Columns, Offset, TopicConfig, TopicInfo
from lakemq.plugins.journal.log.partition_log import JournalLog
from lakemq.plugins.journal.settings import JournalSettings
from lakemq.plugins.journal.storage import JournalStorage

CONFIG = TopicConfig(retention_ms=None)
VALUE = os.urandom(50).hex().encode()  # 100 bytes
assert len(VALUE) == 100
Result = list[str]


def batch_of(records: int) -> bytes:
    return encode(Columns([VALUE] * records), now_ms=time.time_ns() // 1_000_000)


def percentiles(seconds: list[float]) -> str:
    found = sorted(seconds)
    return "  ".join(
        f"p{percent} {found[min(len(found) - 1, len(found) * percent // 100)] * 1e3:.2f} ms"
        for percent in (50, 90, 99)
    )


async def open_storage(folder: Path, **settings: int) -> JournalStorage:
    storage = JournalStorage(folder, JournalSettings(**settings))  # type: ignore[arg-type]
    await storage.start()
    return storage


async def open_logs(storage: JournalStorage, partitions: int) -> list[JournalLog]:
    topic = TopicInfo("bench", "b" * 32, partitions, CONFIG)
    logs = await asyncio.gather(*(storage.open_partition(topic, n) for n in range(partitions)))
    for log in logs:
        log.lead(max(1, log.last_epoch()), alone=True)
    return list(logs)


def raw_writes(folder: Path, portion: bytes, count: int) -> float:
    """Seconds for `count` times write + fdatasync of one portion, to one growing file."""
    descriptor = os.open(folder / "raw", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    began = time.perf_counter()
    for _ in range(count):
        os.write(descriptor, portion)
        os.fdatasync(descriptor)
    took = time.perf_counter() - began
    os.close(descriptor)
    os.unlink(folder / "raw")
    return took


# ---------------------------------------------------------------- large batches


async def append_all(log: JournalLog, data: bytes, count: int, in_flight: int) -> float:
    """Seconds to append a batch `count` times, so many at a time; checked as the broker does."""
    gate = asyncio.Semaphore(in_flight)
    done = asyncio.Event()
    answered = 0

    def on_answer(future: asyncio.Future[object]) -> None:
        nonlocal answered
        future.result()
        answered += 1
        gate.release()
        if answered == count:
            done.set()

    began = time.perf_counter()
    for _ in range(count):
        await gate.acquire()
        header = read_header(data)
        check_body(header, data[HEADER_BYTES:])
        log.append(data, header, Acks.LEADER).add_done_callback(on_answer)
    await done.wait()
    return time.perf_counter() - began


async def read_all(log: JournalLog, bytes_max: int) -> float:
    began = time.perf_counter()
    offset = Offset(0)
    while offset < log.high_watermark:
        offset = (await log.fetch(offset, bytes_max=bytes_max)).next_offset
    return time.perf_counter() - began


async def large_batches(folder: Path) -> Result:
    data, count = batch_of(1000), 5000
    storage = await open_storage(folder, tail_max_bytes=1024**3, tail_total_max_bytes=1024**3)
    (log,) = await open_logs(storage, 1)
    took = await append_all(log, data, count, 32)
    flushes = storage.counters.flushes
    lines = [
        f"in: {count * 1000 / took / 1e6:.2f} M records/s, {count * len(data) / took / 1e6:.0f} "
        f"MB/s, {flushes} fsyncs (target 1 M records/s)"
    ]
    portion = data * max(1, count // flushes)
    raw = raw_writes(folder, portion, flushes)
    rate = flushes * len(portion) / len(data) * 1000 / raw
    lines.append(f"raw: {rate / 1e6:.2f} M records/s in portions of {len(portion) // 1024} KiB")
    tail = await read_all(log, 1 << 20)
    lines.append(f"out, from memory: {count * 1000 / tail / 1e6:.1f} M records/s")
    await storage.stop()
    storage = await open_storage(folder, tail_max_bytes=0)
    (log,) = await open_logs(storage, 1)
    disk = await read_all(log, 1 << 20)
    lines.append(
        f"out, from files in the page cache, CRCs checked: {count * 1000 / disk / 1e6:.1f} M "
        f"records/s, {count * len(data) / disk / 1e6:.0f} MB/s (target 3 M records/s)"
    )
    await storage.stop()
    return lines


# ---------------------------------------------------------------- single records


async def single_records(folder: Path) -> Result:
    data, callers, each = batch_of(1), 256, 400
    storage = await open_storage(folder)
    (log,) = await open_logs(storage, 1)
    header = read_header(data)
    took: list[float] = []

    async def caller() -> None:
        for _ in range(each):
            began = time.perf_counter()
            await log.append(data, header, Acks.LEADER)
            took.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    whole = time.perf_counter() - began
    flushes = storage.counters.flushes
    await storage.stop()
    total = callers * each
    raw = raw_writes(folder, data * (total // flushes), flushes)
    alone = raw_writes(folder, data, 2000)
    return [
        f"{total / whole:.0f} appends/s, {percentiles(took)}, {total / flushes:.0f} appends an "
        "fsync (target 20,000/s, p99 25 ms)",
        f"raw: {total / raw:.0f} records/s in the same {flushes} writes; one record a write: "
        f"{2000 / alone:.0f}/s",
    ]


# ---------------------------------------------------------------- many partitions


async def many_partitions(folder: Path) -> Result:
    data, partitions, rate, seconds = batch_of(1), 1000, 10_000, 10
    storage = await open_storage(folder)
    logs = await open_logs(storage, partitions)
    header = read_header(data)
    took: list[float] = []

    def send(log: JournalLog) -> None:
        began = time.perf_counter()
        future = log.append(data, header, Acks.LEADER)
        future.add_done_callback(lambda _: took.append(time.perf_counter() - began))

    async def run(per_second: int, duration: float) -> float:
        took.clear()
        sent, began = 0, time.perf_counter()
        while (now := time.perf_counter() - began) < duration:
            for number in range(sent, int(now * per_second)):
                send(logs[number % partitions])
            sent = max(sent, int(now * per_second))
            await asyncio.sleep(0.001)
        while len(took) < sent:  # noqa: ASYNC110 - callbacks count, nothing else tells
            await asyncio.sleep(0.001)
        return sent / (time.perf_counter() - began)

    await run(2000, 1)
    before = storage.counters.flushes
    reached = await run(rate, seconds)
    line = (
        f"{reached:.0f} appends/s over {partitions} partitions, {percentiles(took)}, "
        f"{storage.counters.flushes - before} fsyncs (target 10,000/s, p99 100 ms)"
    )
    await storage.stop()
    return [line, raw_many(folder, data, partitions)]


def raw_many(folder: Path, data: bytes, files: int) -> str:
    """One write + fdatasync to each of many files, over and over, by eight threads."""
    names = [folder / f"raw-{number}" for number in range(files)]
    descriptors = [os.open(name, os.O_CREAT | os.O_WRONLY | os.O_APPEND) for name in names]

    def one(descriptor: int) -> None:
        os.write(descriptor, data)
        os.fdatasync(descriptor)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(one, descriptors))
        began = time.perf_counter()
        for _ in range(10):
            list(threads.map(one, descriptors))
        took = time.perf_counter() - began
    for descriptor, name in zip(descriptors, names, strict=True):
        os.close(descriptor)
        name.unlink()
    return f"raw: {10 * files / took:.0f} writes with fdatasync/s over {files} files, 8 threads"


# ---------------------------------------------------------------- preallocation


async def preallocation(folder: Path) -> Result:
    """Whether segments should be allocated before they are written."""
    lines = []
    for size in (4096, 128 * 1024):
        portion, count = b"x" * size, 500
        grown = [raw_writes(folder, portion, count) for _ in range(3)]
        ahead = [preallocated_writes(folder, portion, count) for _ in range(3)]
        lines.append(
            f"{size} byte writes + fdatasync: growing {min(grown) / count * 1e6:.0f} us, "
            f"preallocated {min(ahead) / count * 1e6:.0f} us (best of 3)"
        )
    return lines


def preallocated_writes(folder: Path, portion: bytes, count: int) -> float:
    descriptor = os.open(folder / "raw", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.posix_fallocate(descriptor, 0, len(portion) * count)
    os.fsync(descriptor)
    began = time.perf_counter()
    for number in range(count):
        os.pwrite(descriptor, portion, number * len(portion))
        os.fdatasync(descriptor)
    took = time.perf_counter() - began
    os.close(descriptor)
    os.unlink(folder / "raw")
    return took


# ---------------------------------------------------------------- start after kill -9


async def fill(folder: Path, gigabytes: float, partitions: int) -> None:
    """In a child: write that much, evenly, say so, and go on appending until killed."""
    data = batch_of(1000)
    storage = await open_storage(folder, tail_total_max_bytes=0)
    logs = await open_logs(storage, partitions)
    rounds = int(gigabytes * 1e9 / len(data) / partitions)
    for _ in range(rounds):
        for first in range(0, partitions, 50):
            await asyncio.gather(
                *(log.append(data, read_header(data), Acks.LEADER) for log in logs[first:][:50])
            )
    sys.stdout.write("full\n")
    sys.stdout.flush()
    while True:
        await asyncio.gather(
            *(log.append(data, read_header(data), Acks.LEADER) for log in logs[:50])
        )


def make_start(gigabytes: float) -> Callable[[Path], Awaitable[Result]]:
    async def start_after_kill(folder: Path) -> Result:
        command = [sys.executable, "-m", "benchmarks.journal", "--fill", str(folder)]
        child = await asyncio.create_subprocess_exec(
            *command, "--gigabytes", str(gigabytes), stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        await child.stdout.readline()
        await asyncio.sleep(0.5)
        child.send_signal(signal.SIGKILL)
        await child.wait()
        lines = []
        for state in ("kill -9, files not in the page cache", "no clean mark", "stopped"):
            if state.startswith("kill"):
                forget_page_cache(folder)
            began = time.perf_counter()
            storage = await open_storage(folder, tail_total_max_bytes=0)
            logs = await open_logs(storage, 1000)
            took = time.perf_counter() - began
            size = sum(log.folder.size_bytes() for log in logs) / 1e9
            lines.append(f"{state}: 1000 partitions, {size:.1f} GB, ready in {took:.2f} s")
            await storage.stop()
            if state.startswith("kill"):
                (folder / "clean-shutdown").unlink()
        return lines

    return start_after_kill


def forget_page_cache(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


# ---------------------------------------------------------------- all of them


async def run(name: str, scenario: Callable[[Path], Awaitable[Result]], parent: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix="journal-bench-", dir=parent))
    try:
        print(f"{name}")
        for line in await scenario(folder):
            print(f"    {line}", flush=True)
    finally:
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="on the disk to measure")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--gigabytes", type=float, default=10.0)
    parser.add_argument("--fill", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.fill is not None:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(fill(arguments.fill, arguments.gigabytes, 1000))
        return
    scenarios: dict[str, Callable[[Path], Awaitable[Result]]] = {
        "large-batches": large_batches,
        "single-records": single_records,
        "many-partitions": many_partitions,
        "preallocation": preallocation,
        "start": make_start(arguments.gigabytes),
    }
    print(f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}")
    for name, scenario in scenarios.items():
        if not arguments.only or name in arguments.only:
            asyncio.run(run(name, scenario, arguments.folder))


if __name__ == "__main__":
    main()
