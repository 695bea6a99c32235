"""Goal: a broker that is killed (SIGKILL) at any moment of staging, committing and applying, and a
client that is: every committed batch appears exactly once and whole, nothing else appears.

Method: brokers on fixed ports are killed at random moments. The seed is printed.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import lakemq
from tests.support.node.node import NodeProcess, ports_kept

BATCHES = int(os.environ.get("LAKEMQ_KILL_BATCHES", "8"))
KILLS = int(os.environ.get("LAKEMQ_KILLS", "2"))
PARTITIONS = 3


def dice_of_this_run() -> random.Random:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed)


async def kill_again_and_again(node: NodeProcess, dice: random.Random) -> None:
    for _ in range(KILLS):
        await asyncio.sleep(0.05 + dice.random() * 0.7)
        await asyncio.to_thread(node.kill)
        await asyncio.to_thread(node.start)


async def staged(
    client: lakemq.Client, session: lakemq.SinkHandle, batch_id: int, task: int, mark: bytes
) -> lakemq.StagedWinner:
    async with client.staging.writer(session, batch_id, task, batch_max_bytes=2000) as writer:
        for number in range(40):
            value = b"%d/%d/%d/" % (batch_id, task, number) + mark
            await writer.send("t", value + b"." * 300, partition=number % PARTITIONS)
        return await writer.finish()


async def land(client: lakemq.Client, batch_id: int, dice: random.Random) -> None:
    """Until the batch is committed, whatever it takes."""
    while True:
        try:
            session = await client.staging.open_sink("s")
            if session.last_batch_id >= batch_id:
                return
            mark = b"%d" % session.epoch
            winners = await asyncio.gather(
                *(staged(client, session, batch_id, task, mark) for task in range(2))
            )
            result = await client.staging.commit(session, batch_id, winners)
            assert result.last_batch_id == batch_id
            if dice.random() < 0.3:
                again = await client.staging.commit(session, batch_id, winners)
                assert again.outcome is lakemq.CommitOutcome.ALREADY_COMMITTED
            return
        except (lakemq.TransactionAborted, lakemq.ProducerFenced, lakemq.BatchCommitted):
            continue


@pytest.mark.fault
async def test_every_batch_lands_once_and_whole(tmp_path: Path) -> None:
    dice = dice_of_this_run()
    node = NodeProcess(tmp_path, ports_kept("native")).start()
    try:
        async with lakemq.Client(node.native, timeout_s=100) as client:
            await client.create_topic("t", partitions=PARTITIONS)
            chaos = asyncio.create_task(kill_again_and_again(node, dice))
            batch_id = 0
            while batch_id < BATCHES or not chaos.done():
                await land(client, batch_id, dice)
                batch_id += 1
            await chaos
            await client.staging.open_sink("s")  # answered when all that is committed is there
            found: dict[int, list[bytes]] = {}
            for partition in range(PARTITIONS):
                found[partition] = [
                    (each.value or b"").rstrip(b".")
                    async for each in client.consume("t", partition=partition)
                ]
    finally:
        node.kill()
    counted = Counter(value.rsplit(b"/", 1)[0] for values in found.values() for value in values)
    assert set(counted.values()) == {1}
    assert len(counted) == batch_id * 2 * 40
    marks = {
        value.split(b"/")[0] + b"/" + value.rsplit(b"/", 1)[1]
        for values in found.values()
        for value in values
    }
    assert len(marks) == batch_id, "a batch holds records of two tries"
    for values in found.values():
        places = [tuple(map(int, value.split(b"/")[:3])) for value in values]
        assert places == sorted(places), "out of order"


LOOP = """
import asyncio, sys
import lakemq

async def main(bootstrap):
    async with (
        lakemq.Client(bootstrap, timeout_s=100) as client,
        await client.transactional_producer("loop") as producer,
        client.subscribe("in", group="loop", session_timeout_ms=1000) as consumer,
    ):
        transaction, count = producer.transaction(consumer), 0
        async for record in consumer:
            await transaction.send("out", record.value, partition=count % 2)
            count += 1
            if count % 7 == 0 or record.value == b"end":
                await transaction.commit()
                transaction = producer.transaction(consumer)

try:
    asyncio.run(main(sys.argv[1]))
except lakemq.LakeMQError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


@pytest.mark.fault
async def test_consume_transform_produce_gives_each_output_once(tmp_path: Path) -> None:
    """Broker and client are killed in turn; whoever comes back goes on behind the last commit."""
    dice = dice_of_this_run()
    node = NodeProcess(tmp_path, ports_kept("native")).start()
    records = 400
    worker = None
    try:
        async with lakemq.Client(node.native, timeout_s=100) as client:
            await client.create_topic("in", partitions=1)
            await client.create_topic("out", partitions=2)
            async with await client.producer() as producer:
                for number in range(records - 1):
                    await producer.enqueue("in", lakemq.NewRecord(b"%d" % number))
                await producer.enqueue("in", lakemq.NewRecord(b"end"))
            kills = 0
            async with asyncio.timeout(280):
                while True:
                    if worker is None or worker.poll() is not None:
                        worker = start_worker(node.native)
                    await asyncio.sleep(0.4 + dice.random() * 0.8)
                    if kills < KILLS:
                        kills += 1
                        if dice.random() < 0.5:
                            await asyncio.to_thread(node.kill)
                            await asyncio.to_thread(node.start)
                        else:
                            worker.send_signal(signal.SIGKILL)
                            worker.wait()
                    elif await ended(client, records):
                        break
            out = [each.value async for each in client.consume("out")]
            group = await client.describe_group("loop")
    finally:
        if worker is not None:
            worker.kill()
            worker.wait()
        node.kill()
    counted = Counter(out)
    assert {value: count for value, count in counted.items() if count > 1} == {}
    assert len(counted) == records
    assert group.lag == 0


def start_worker(bootstrap: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", LOOP, bootstrap],
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parents[3],
    )


async def ended(client: lakemq.Client, records: int) -> bool:
    """A commit does not reach its partitions, nor its group, all in the same moment."""
    out = [each.value async for each in client.consume("out")]
    return len(out) >= records and (await client.describe_group("loop")).lag == 0
