"""Produce and consume through the Python SDK, beside nats-py and NATS JetStream.

    python -m benchmarks.native [--records 2000000] [--seconds 5] [--no-nats]

100-byte values, one partition, one client process and one broker process, fsync before every ack.
NATS (`apt-get install nats-server`, `pip install nats-py`) takes part when both are there: file
store, every message acknowledged; it acknowledges what is in the page cache, not what is fsynced.
CPU is that of client and broker together.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # has no types of its own
import pyarrow as pa

import lakemq
from tests.support.node.node import NodeProcess

VALUE = b"x" * 100
BLOCK = 50_000
LATENCY_RATE = 10_000


@dataclass(frozen=True)
class Figure:
    """What one case took."""

    name: str
    records: int
    elapsed_s: float
    cpu_s: float

    @property
    def rate(self) -> float:
        return self.records / self.elapsed_s

    @property
    def cpu_rate(self) -> float:
        return self.records / self.cpu_s


async def timed(name: str, broker: psutil.Process, work: Callable[[], Awaitable[int]]) -> Figure:
    """`work` answers with the number of records it dealt with."""

    def cpu() -> float:
        both = (psutil.Process().cpu_times(), broker.cpu_times())
        return float(sum(each.user + each.system for each in both))

    cpu_before, before = cpu(), time.perf_counter()
    records = await work()
    figure = Figure(name, records, time.perf_counter() - before, cpu() - cpu_before)
    print(
        f"{name:38} {figure.rate:12,.0f} records/s {figure.cpu_rate:12,.0f} per CPU-second",
        flush=True,
    )
    return figure


# -- LakeMQ


async def lakemq_figures(folder: Path, records: int, seconds: float) -> list[Figure]:
    with NodeProcess(folder) as node:
        broker = psutil.Process(node.pid)
        async with lakemq.Client(node.native) as client:
            for topic in ("bulk", "single", "latency"):
                await client.create_topic(topic, partitions=1)
            figures = await produce(client, broker, records)
            figures += await consume(client, broker)
            await latency(client, seconds)
    return figures


async def produce(client: lakemq.Client, broker: psutil.Process, records: int) -> list[Figure]:
    columns = lakemq.Columns([VALUE] * BLOCK)
    table = pa.table({"value": pa.array(columns.values, pa.binary())})
    async with await client.producer(batch_max_bytes=4 << 20) as producer:

        async def blocks(send: Callable[[], Coroutine[Any, Any, object]]) -> int:
            for _ in range(records // BLOCK // 4):
                await asyncio.gather(*(send() for _ in range(4)))
            return records // BLOCK // 4 * 4 * BLOCK

        async def single() -> int:
            for _ in range(records // 4):
                await producer.enqueue("single", lakemq.NewRecord(VALUE))
            await producer.flush()
            return records // 4

        return [
            await timed(
                "produce, send_arrow",
                broker,
                lambda: blocks(lambda: producer.send_arrow("bulk", table)),
            ),
            await timed(
                "produce, send_batch",
                broker,
                lambda: blocks(lambda: producer.send_batch("bulk", columns)),
            ),
            await timed("produce, single records", broker, single),
        ]


async def consume(client: lakemq.Client, broker: psutil.Process) -> list[Figure]:
    async def arrow() -> int:
        seen = 0
        async for batch in client.fetch_batches("bulk", 0, 0):
            seen += lakemq.to_arrow(batch, columns=("offset", "timestamp", "value")).num_rows
        return seen

    async def records() -> int:
        seen = 0
        async for _ in client.consume("single"):
            seen += 1
        return seen

    async def group() -> int:
        end = (await client.describe_topic("single")).partitions[0].high_watermark
        async with client.subscribe("single", group="g") as consumer:
            async for record in consumer:
                if record.offset == end - 1:
                    break
            await consumer.commit()
        return end

    return [
        await timed("consume, Arrow", broker, arrow),
        await timed("consume, Python records", broker, records),
        await timed("consume, Python records, in a group", broker, group),
    ]


async def latency(client: lakemq.Client, seconds: float) -> None:
    """From `enqueue` to the record in a following reader's hands, at a steady rate."""
    total = int(LATENCY_RATE * seconds)
    found: list[float] = []

    async def read() -> None:
        async for record in client.consume("latency", start="latest", follow=True):
            found.append(time.perf_counter() - float(record.value or b""))
            if len(found) == total:
                return

    reader = asyncio.create_task(read())
    await asyncio.sleep(0.3)
    async with await client.producer() as producer:
        begun = time.perf_counter()
        for number in range(total):
            await producer.enqueue("latency", lakemq.NewRecord(b"%r" % time.perf_counter()))
            ahead = begun + number / LATENCY_RATE - time.perf_counter()
            if ahead > 0.001:
                await asyncio.sleep(ahead)
        await reader
    found.sort()
    p50, p99 = (found[int(share * len(found))] * 1000 for share in (0.5, 0.99))
    print(f"produce to consume at {LATENCY_RATE:,}/s: p50 {p50:.1f} ms, p99 {p99:.1f} ms")


# -- NATS


@asynccontextmanager
async def nats_server(folder: Path) -> AsyncIterator[tuple[int, psutil.Process]]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    server = await asyncio.create_subprocess_exec(
        "nats-server", "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        await asyncio.sleep(1)
        yield port, psutil.Process(server.pid)
    finally:
        server.terminate()
        await server.wait()


async def nats_figures(folder: Path, records: int) -> list[Figure]:
    # Not of the project: whoever wants the comparison installs it.
    import nats  # type: ignore[import-not-found,unused-ignore]

    async with nats_server(folder) as (port, broker):
        client = await nats.connect(f"nats://127.0.0.1:{port}")
        stream = client.jetstream()
        await stream.add_stream(name="bench", subjects=["bench"])

        async def produce() -> int:
            for _ in range(0, records, 1000):
                await asyncio.gather(*(stream.publish("bench", VALUE) for _ in range(1000)))
            return records

        async def consume() -> int:
            subscription = await stream.pull_subscribe("bench", durable="reader")
            seen = 0
            while seen < records:
                messages = await subscription.fetch(1000)
                await asyncio.gather(*(message.ack() for message in messages))
                seen += len(messages)
            return seen

        figures = [
            await timed("nats-py, publish, 1000 at a time", broker, produce),
            await timed("nats-py, pull and ack", broker, consume),
        ]
        await client.close()
    return figures


def nats_missing() -> str | None:
    """Why NATS can't take part; None: it can."""
    if shutil.which("nats-server") is None:
        return "there is no nats-server (apt-get install nats-server)"
    try:
        import nats  # noqa: F401  only asked for
    except ImportError:
        return "there is no nats-py (pip install nats-py)"
    return None


def ratios(ours: list[Figure], theirs: list[Figure]) -> None:
    """Records/s, and records per CPU-second, as multiples of nats-py's."""
    publish, pull = theirs
    for figure in ours:
        beside = publish if figure.name.startswith("produce") else pull
        print(
            f"{figure.name:38} {figure.rate / beside.rate:8.1f} x nats-py"
            f" {figure.cpu_rate / beside.cpu_rate:8.1f} x per CPU-second"
        )


async def run(records: int, seconds: float, with_nats: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ours = await lakemq_figures(Path(folder) / "lakemq", records, seconds)
        reason = nats_missing() if with_nats else "not asked for"
        if reason is not None:
            print(f"NATS does not take part: {reason}")
            return
        ratios(ours, await nats_figures(Path(folder) / "nats", min(records // 40, 100_000)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--seconds", type=float, default=5, help="of the latency run")
    parser.add_argument("--no-nats", action="store_true")
    arguments = parser.parse_args()
    asyncio.run(run(arguments.records, arguments.seconds, not arguments.no_nats))


if __name__ == "__main__":
    main()
