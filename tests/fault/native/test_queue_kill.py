"""Goal: kill -9 of the broker and of consumers, whenever: no ack that was answered is forgotten, no
record is lost, dead letters come once, keys keep their order.
"""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import lakemq
from tests.support.node.node import NodeProcess, ports_kept

pytestmark = pytest.mark.fault
ROOT = Path(__file__).parents[3]
RECORDS = 300
KEYS = 4

CONSUMER = """
import asyncio, sys
import lakemq

async def main(bootstrap, topic):
    async with lakemq.Client(bootstrap) as client:
        async for message in client.queue(topic, group="w", prefetch=20):
            number = int(message.value)
            print("got", number, message.attempt, flush=True)
            if number % 50 == 0:
                await message.nack()
            else:
                await message.ack()
                print("acked", number, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """On ports that stay the same when it is started again."""
    node = NodeProcess(tmp_path, ports_kept("native")).start()
    yield node
    node.kill()


async def fill(client: lakemq.Client, topic: str) -> None:
    await client.create_topic(topic, 1)
    async with await client.producer() as producer:
        for number in range(RECORDS):
            record = lakemq.NewRecord(b"%d" % number, key=b"%d" % (number % KEYS))
            await producer.enqueue(topic, record)


async def letters(client: lakemq.Client, topic: str) -> list[int]:
    return [int(each.value or b"") async for each in client.consume(topic)]


async def drained(client: lakemq.Client, timeout_s: float = 40) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        assert time.monotonic() < deadline
        try:
            if [each.backlog for each in await client.admin.queues()] == [0]:
                return
        except lakemq.LakeMQError:
            pass
        await asyncio.sleep(0.1)


async def test_the_broker_is_killed_again_and_again(node: NodeProcess) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    answered: Counter[int] = Counter()
    late: list[int] = []
    settled: set[int] = set()
    too_early: list[int] = []
    options = lakemq.QueueOptions(
        attempts_max=2, dead_letter="dead", backoff_ms=1, order="key", prefetch=20
    )

    async def handle(message: lakemq.QueueRecord) -> None:
        number = int(message.value or b"")
        if answered[number]:
            late.append(number)
        if not settled.issuperset(range(number % KEYS, number, KEYS)):
            too_early.append(number)
        settled.add(number)
        try:
            if number % 50 == 0:
                await message.nack()
                return
            await message.ack()
        except (lakemq.OutcomeUnknown, lakemq.LockLost):
            return
        answered[number] += 1

    async def consume(client: lakemq.Client) -> None:
        async for message in client.queue("t", group="w", **options):
            await handle(message)
            await asyncio.sleep(0.002)

    async with lakemq.Client(node.native, timeout_s=5) as client:
        await fill(client, "t")
        tasks = [asyncio.create_task(consume(client)) for _ in range(2)]
        for _ in range(3):
            await asyncio.sleep(dice.uniform(0.05, 0.4))
            node.kill()
            await asyncio.to_thread(node.start)
        await drained(client)
        for task in tasks:
            assert not task.done(), task.exception()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        dead = await letters(client, "dead")
    assert late == [], "records came again whose ack had been answered"
    assert max(answered.values()) == 1
    assert sorted(dead) == list(range(0, RECORDS, 50)), "dead letters: each once"
    assert too_early == [], "records came while an older one of their key had not been settled"


async def test_consumers_are_killed_at_any_step(node: NodeProcess) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    said: list[str] = []

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", CONSUMER, node.native, "t"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    async with lakemq.Client(node.native, timeout_s=5) as client:
        await fill(client, "t")
        await client.create_topic("dead", 1)
        await client.admin.alter_queue(
            "w", "t", attempts_max=5, dead_letter="dead", backoff_ms=1, lock_ms=30_000
        )
        for _ in range(3):
            process = start()
            assert process.stdout is not None
            for _ in range(dice.randrange(1, 120)):
                said.append(await asyncio.to_thread(process.stdout.readline))
            process.send_signal(signal.SIGKILL)
            said += (await asyncio.to_thread(process.stdout.read)).splitlines()
            process.wait()
            process.stdout.close()
        acked = {int(line.split()[1]) for line in said if line.startswith("acked")}
        found: list[int] = []

        async def rest() -> None:
            async for message in client.queue("t", group="w"):
                number = int(message.value or b"")
                found.append(number)
                if number % 50 == 0:
                    await message.nack()
                else:
                    await message.ack()

        task = asyncio.create_task(rest())
        await drained(client)
        task.cancel()
        dead = await letters(client, "dead")
    assert not acked & set(found), "a record came again whose ack had been answered"
    first = {int(line.split()[1]) for line in said if line.startswith("got")}
    assert first | set(found) == set(range(RECORDS))
    assert sorted(dead) == list(range(0, RECORDS, 50))
