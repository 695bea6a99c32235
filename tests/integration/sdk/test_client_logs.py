"""Goal: a client whose broker is killed tells what it rides out, in few lines, and no warning."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

import lakemq
from tests.support.mqtt.memory_broker import until
from tests.support.node.node import NodeProcess, ports_kept


async def test_what_is_ridden_out_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lakemq")
    with NodeProcess(tmp_path / "node", ports_kept("native")) as node:
        async with lakemq.Client(node.native, timeout_s=20) as client:
            await client.create_topic("t")
            async with (
                await client.producer() as producer,
                client.subscribe("t", group="g") as consumer,
                client.queue("t", group="q") as queue,
            ):
                for _ in range(2):
                    caplog.clear()  # on a slow machine coordinators may not be there at once
                    await producer.send("t", b"0")
                    assert await consumer.poll(60) is not None
                    assert await queue.next_batch(1, 60)
                assert caplog.records == []  # nothing to tell of a day without trouble
                await asyncio.to_thread(node.kill)
                acks = [
                    await producer.enqueue("t", lakemq.NewRecord(b"%d" % n)) for n in range(500)
                ]
                await asyncio.sleep(2)  # many tries of each
                await asyncio.to_thread(node.start)
                await asyncio.gather(*acks)
                found: list[lakemq.ConsumerRecord] = []
                async with asyncio.timeout(60):
                    while len(found) < 500:
                        found += await consumer.get_many(500, 5)
                parts = (
                    f"sending to {node.native} broke off: ",
                    f"sending to {node.native} answers again",
                    f"reading from {node.native} broke off: ",
                    "group g: the coordinator is looked for again: ",
                    "queue of group q on t: the coordinator is looked for again: ",
                )
                await until(
                    lambda: all(any(one.startswith(each) for one in caplog.messages)
                                for each in parts),
                    60,
                )  # fmt: skip
    text = caplog.messages
    assert len(text) < 20, text
    assert {each.levelno for each in caplog.records} == {logging.INFO}
    assert {each.name for each in caplog.records} == {"lakemq.sdk"}


async def test_a_producer_that_gives_up_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with NodeProcess(tmp_path / "node") as node:
        async with lakemq.Client(node.native, timeout_s=5) as client:
            await client.create_topic("t")
            producer = await client.producer(delivery_timeout_ms=500)
            await producer.send("t", b"0")
            await asyncio.to_thread(node.kill)
            ack = await producer.enqueue("t", lakemq.NewRecord(b"1"))
            with pytest.raises(lakemq.OutcomeUnknown):
                await ack
    (told,) = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert told.getMessage().startswith("a producer gave up, with 1 records: ")
