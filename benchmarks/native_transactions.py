"""How fast staged batches, transactions and scheduled records are, against a node of its own.

`python -m benchmarks.native_transactions`
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import lakemq
from tests.support.node.node import NodeProcess

ROUNDS = 3
BATCHES = 100
RECORDS_A_BATCH = 10_000
VALUE = b"x" * 100
TRANSACTIONS = 200
SCHEDULED = 500


def staged(client: lakemq.SyncClient) -> None:
    """One writer stages a million records of 100 B, then one commit lets them appear."""
    client.create_topic("staged", partitions=4)
    columns = lakemq.Columns([VALUE] * RECORDS_A_BATCH)
    session = client.staging.open_sink("benchmark")
    for batch_id in range(ROUNDS):
        begin = time.perf_counter()
        with client.staging.writer(session, batch_id, 0, batch_max_bytes=2 << 20) as writer:
            for number in range(BATCHES):
                writer.send_batch("staged", columns, partition=number % 4)
            winner = writer.finish()
        middle = time.perf_counter()
        client.staging.commit(session, batch_id, [winner])
        end = time.perf_counter()
        print(
            f"staged {winner.records / (middle - begin):,.0f} records/s, "
            f"committed {winner.records / (end - middle):,.0f} records/s"
        )


def transactions(client: lakemq.SyncClient) -> None:
    """One record a transaction, one after the other."""
    client.create_topic("transactions", partitions=1)
    with client.transactional_producer("benchmark") as producer:
        begin = time.perf_counter()
        for _ in range(TRANSACTIONS):
            with producer.transaction() as transaction:
                transaction.send("transactions", VALUE)
        took_ms = (time.perf_counter() - begin) * 1000
    print(f"a transaction of one record: {took_ms / TRANSACTIONS:.1f} ms")


async def scheduled(bootstrap: str) -> None:
    """How late records reach a reader that follows their topic."""
    async with lakemq.Client(bootstrap) as client:
        await client.create_topic("later", partitions=4)
        late_ms: list[float] = []

        async def read() -> None:
            async for record in client.consume("later", follow=True):
                late_ms.append(time.time() * 1000 - record.timestamp_ms)
                if len(late_ms) == SCHEDULED:
                    return

        reading = asyncio.create_task(read())
        dice = random.Random(1)
        delays = [timedelta(milliseconds=dice.randint(1500, 6000)) for _ in range(SCHEDULED)]
        for first in range(0, SCHEDULED, 50):
            await asyncio.gather(
                *(
                    client.schedules.send("later", VALUE, delay=delay)
                    for delay in delays[first : first + 50]
                )
            )
        await reading
    late_ms.sort()
    print(
        f"scheduled records are late by p50 {late_ms[SCHEDULED // 2]:.1f} ms, "
        f"p99 {late_ms[SCHEDULED * 99 // 100]:.1f} ms"
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, NodeProcess(Path(folder)) as node:
        with lakemq.connect(node.native) as client:
            staged(client)
            transactions(client)
        asyncio.run(scheduled(node.native))


if __name__ == "__main__":
    main()
