"""The journal in a process of its own, and plain writes of like portions to the same disk."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.harness.declare import Sample
from benchmarks.harness.statistics import Latencies
from lakemq.broker_core.api.records.batch import HEADER_BYTES, check_body, encode, read_header
from lakemq.broker_core.api.types import Acks, Columns, Offset, TopicConfig, TopicInfo
from lakemq.plugins.journal.log.partition_log import JournalLog
from lakemq.plugins.journal.settings import JournalSettings
from lakemq.plugins.journal.storage import JournalStorage
from lakemq.runtime import loop_factory, settle

CONFIG = TopicConfig(retention_ms=None)
RECORDS = 1000
IN_FLIGHT = 32
CALLERS = 256
RATE = 10_000
TICK_S = 0.001
RAW_PORTION = 512 * 1024
Answer = Callable[[float], Sample]


def values(count: int, seed: int = 1) -> list[bytes]:
    """Record values of 50 to 200 bytes, the same in every run."""
    rng = random.Random(seed)
    return [rng.randbytes(rng.randint(50, 200)) for _ in range(count)]


def batch_of(records: int, seed: int = 1) -> bytes:
    return encode(Columns(list(values(records, seed))), now_ms=time.time_ns() // 1_000_000)


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


@contextlib.contextmanager
def journal(folder: Path, kind: str, partitions: int) -> Iterator[Answer]:
    """Answers a load (`bulk`, `read`, `singles` or `paced`), in the event loop of a node."""
    with asyncio.Runner(loop_factory=loop_factory("auto")) as runner:
        settings = {"tail_max_bytes": 0} if kind == "read" else {}
        storage = runner.run(open_storage(folder / "journal", **settings))
        logs = runner.run(open_logs(storage, partitions))
        settle()
        loads = {"bulk": bulk, "read": read, "singles": singles, "paced": paced}
        yield lambda seconds: with_cpu(lambda: runner.run(loads[kind](logs, seconds)))
        runner.run(storage.stop())


def with_cpu(run: Callable[[], Sample]) -> Sample:
    """`count` and `elapsed_s` of a run in this process as figures."""
    before = time.process_time()
    sample = run()
    count = sample.pop("count")
    rate = count / sample.pop("elapsed_s")
    return {"rate": rate, "cpu_us": 1e6 * (time.process_time() - before) / count, **sample}


async def bulk(logs: Sequence[JournalLog], seconds: float) -> Sample:
    """Batches of a thousand records, 32 in flight, checked as the broker checks them."""
    batches = [batch_of(RECORDS, seed) for seed in range(8)]
    began, count = time.perf_counter(), 0
    waiting: set[asyncio.Future[object]] = set()
    while time.perf_counter() < began + seconds:
        data = batches[count % len(batches)]
        header = read_header(data)
        check_body(header, data[HEADER_BYTES:])
        waiting.add(asyncio.ensure_future(logs[0].append(data, header, Acks.LEADER)))
        count += 1
        if len(waiting) >= IN_FLIGHT:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
    await asyncio.gather(*waiting)
    return {"count": count * RECORDS, "elapsed_s": time.perf_counter() - began}


async def read(logs: Sequence[JournalLog], seconds: float) -> Sample:
    """Records from files in the page cache, CRCs checked, over and over."""
    (log,) = logs
    if not log.high_watermark:
        await bulk(logs, 1.0)
    began, count, offset = time.perf_counter(), 0, Offset(0)
    while time.perf_counter() < began + seconds:
        after = (await log.fetch(offset, bytes_max=1 << 20)).next_offset
        count += after - offset
        offset = after if after < log.high_watermark else Offset(0)
    return {"count": count, "elapsed_s": time.perf_counter() - began}


async def singles(logs: Sequence[JournalLog], seconds: float) -> Sample:
    """256 callers, each appends one record and waits for it."""
    batches = [batch_of(1, seed) for seed in range(64)]
    took: list[float] = []
    end = time.perf_counter() + seconds

    async def caller(number: int) -> None:
        while (began := time.perf_counter()) < end:
            data = batches[(number + len(took)) % len(batches)]
            await logs[0].append(data, read_header(data), Acks.LEADER)
            took.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(caller(number) for number in range(CALLERS)))
    found = Latencies()
    found.record(took)
    elapsed = time.perf_counter() - began
    return {"count": len(took), "elapsed_s": elapsed, **found.figures()}


async def paced(logs: Sequence[JournalLog], seconds: float) -> Sample:
    """10,000 single records a second over all partitions in turn, from when each was due."""
    batches = [batch_of(1, seed) for seed in range(64)]
    headers = [read_header(each) for each in batches]
    took: list[float] = []
    done = asyncio.Event()
    total = int(seconds * RATE)

    def send(number: int, due: float) -> None:
        def answered(future: asyncio.Future[object]) -> None:
            future.result()
            took.append(time.perf_counter() - due)
            if len(took) == total:
                done.set()

        place = number % len(batches)
        future = logs[number % len(logs)].append(batches[place], headers[place], Acks.LEADER)
        future.add_done_callback(answered)

    began, sent = time.perf_counter(), 0
    while sent < total:
        due = min(total, int((time.perf_counter() - began) * RATE))
        for number in range(sent, due):
            send(number, began + number / RATE)
        sent = max(sent, due)
        await asyncio.sleep(TICK_S)
    await done.wait()
    found = Latencies()
    found.record(took)
    elapsed = time.perf_counter() - began
    return {"count": total, "elapsed_s": elapsed, **found.figures()}


# -- the disk by itself


@contextlib.contextmanager
def raw(folder: Path, kind: str, files: int) -> Iterator[Answer]:
    """`bulk`: portions of 512 KiB, `singles`: one record, each written and fdatasynced; `paced`:
    one record to each of many files by eight threads; `read`: 1 MiB of the page cache at a time."""
    answers = {"bulk": raw_bulk, "singles": raw_singles, "read": raw_read, "paced": raw_files}
    names = [folder / f"raw-{number}" for number in range(files)]
    opened = [os.open(name, os.O_CREAT | os.O_RDWR) for name in names]
    yield lambda seconds: with_cpu(lambda: answers[kind](opened, seconds))
    for descriptor in opened:
        os.close(descriptor)


def raw_writes(descriptor: int, portion: bytes, each: int, seconds: float) -> Sample:
    began, took = time.perf_counter(), []
    while (now := time.perf_counter()) < began + seconds:
        os.write(descriptor, portion)
        os.fdatasync(descriptor)
        took.append(time.perf_counter() - now)
    found = Latencies()
    found.record(took)
    elapsed = time.perf_counter() - began
    return {"count": len(took) * each, "elapsed_s": elapsed, **found.figures()}


def raw_bulk(opened: list[int], seconds: float) -> Sample:
    batch = batch_of(RECORDS)
    rounds = max(1, RAW_PORTION // len(batch))
    sample = raw_writes(opened[0], batch * rounds, rounds * RECORDS, seconds)
    return {key: sample[key] for key in ("count", "elapsed_s")}


def raw_singles(opened: list[int], seconds: float) -> Sample:
    return raw_writes(opened[0], batch_of(1), 1, seconds)


def raw_read(opened: list[int], seconds: float) -> Sample:
    data = batch_of(RECORDS)
    while os.lseek(opened[0], 0, os.SEEK_END) < 64 << 20:
        os.write(opened[0], data)
    began, size = time.perf_counter(), 0
    os.lseek(opened[0], 0, os.SEEK_SET)
    while time.perf_counter() < began + seconds:
        part = os.read(opened[0], 1 << 20)
        size += len(part)
        if not part:
            os.lseek(opened[0], 0, os.SEEK_SET)
    elapsed = time.perf_counter() - began
    return {"count": size / len(data) * RECORDS, "elapsed_s": elapsed}


def raw_files(opened: list[int], seconds: float) -> Sample:
    data = batch_of(1)
    took: list[float] = []

    def one(descriptor: int) -> None:
        began = time.perf_counter()
        os.write(descriptor, data)
        os.fdatasync(descriptor)
        took.append(time.perf_counter() - began)

    with ThreadPoolExecutor(8) as threads:
        began = time.perf_counter()
        while time.perf_counter() < began + seconds:
            list(threads.map(one, opened))
        elapsed = time.perf_counter() - began
    found = Latencies()
    found.record(took)
    return {"count": len(took), "elapsed_s": elapsed, **found.figures()}


# -- start after kill -9


def kept(folder: Path, gigabytes: float, pipe: object) -> None:
    """In a process to be killed: fill 1,000 partitions, say so, go on appending."""
    asyncio.run(_fill(folder, gigabytes, pipe))


async def _fill(folder: Path, gigabytes: float, pipe: object) -> None:
    data = batch_of(RECORDS)
    storage = await open_storage(folder, tail_total_max_bytes=0)
    logs = await open_logs(storage, 1000)
    rounds = max(1, int(gigabytes * 1e9 / len(data) / len(logs)))
    for number in range(rounds + 1_000_000):
        if number == rounds:
            pipe.send("ready")  # type: ignore[attr-defined]
        for first in range(0, len(logs), 50):
            some = logs[first : first + 50]
            await asyncio.gather(
                *(log.append(data, read_header(data), Acks.LEADER) for log in some)
            )


def forget_page_cache(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


async def opened_in_s(folder: Path) -> float:
    began = time.perf_counter()
    storage = await open_storage(folder, tail_total_max_bytes=0)
    await open_logs(storage, 1000)
    took = time.perf_counter() - began
    await storage.stop()
    return took
