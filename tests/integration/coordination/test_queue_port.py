"""Goal: another protocol has queues by the port of `broker_core.api`, in a broker without the
native protocol.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from lakemq.broker_core.api.errors import GroupNotEmpty, InvalidRequest, UnknownGroup
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.queues.ports import QueueConsumer
from lakemq.broker_core.api.queues.types import (
    EARLIEST,
    QueueDelivery,
    QueueLimits,
    Settlement,
)
from lakemq.broker_core.api.records.batch import RecordBatch
from lakemq.broker_core.api.types import ANONYMOUS, Columns
from lakemq.testing import running_broker

JOBS = ("g", "jobs")


async def delivered(consumer: QueueConsumer) -> tuple[list[int], list[int]]:
    """(offsets, attempts) of the next delivery."""
    async with asyncio.timeout(10):
        said = await consumer.next()
    assert isinstance(said, QueueDelivery)
    return list(RecordBatch(said.batch).offsets()), list(said.attempts)


async def settled(
    consumer: QueueConsumer, ranges: list[tuple[int, int]], how: Settlement, delay_ms: int = -1
) -> list[tuple[int, int]]:
    lost, written = consumer.settle(0, ranges, how, delay_ms)
    if written is not None:
        await written
    return list(lost)


async def filled(broker: Broker) -> None:
    await broker.create_topic("jobs", partitions=1)
    await broker.publish("jobs", Columns([b"0", b"1", b"2"]), principal=ANONYMOUS)


async def test_records_are_handed_out_settled_and_given_again(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        broker, queues = running.broker, running.broker.queues
        assert "native" not in running.addresses
        await filled(broker)
        given = {"backoff_ms": 1, "attempts_max": 3, "dead_letter": "dead"}
        ann = await queues.open(*JOBS, principal=ANONYMOUS, given=given)
        assert ann.settings.dead_letter == "dead"
        assert ann.topic_id == broker.topic("jobs").topic_id
        assert await delivered(ann) == ([0, 1, 2], [1, 1, 1])
        assert await settled(ann, [(0, 0), (7, 8)], Settlement.ACCEPT) == [(7, 8)]
        assert await settled(ann, [(1, 2)], Settlement.EXTEND) == []

        # What a consumer holds when it goes is another's, and so is what it hands back.
        bob = await queues.open(*JOBS, principal=ANONYMOUS)
        ann.close()
        assert await ann.next() is None
        assert ann.failure is None
        assert await delivered(bob) == ([1, 2], [2, 2])
        assert await settled(bob, [(2, 2)], Settlement.RELEASE) == []
        assert await delivered(bob) == ([2], [2])
        bob.send("an answer of the protocol's own")
        assert await bob.next() == "an answer of the protocol's own"
        assert await settled(bob, [(1, 1)], Settlement.RETRY, 0) == []
        assert await delivered(bob) == ([1], [3])
        assert await settled(bob, [(1, 1)], Settlement.RETRY, 0) == []
        async with asyncio.timeout(10):  # it has failed three times
            while not queues.counters.dead_letters:
                with suppress(TimeoutError):
                    await asyncio.wait_for(bob.next(), 0.05)
        assert await running.values("dead") == [b"1"]

        (found,) = await queues.describe(principal=ANONYMOUS)
        (part,) = found.partitions
        assert (found.group, found.topic, found.consumers) == ("g", "jobs", 1)
        assert (part.high_watermark, part.held, part.backlog) == (3, 1, 1)
        assert list(queues.levels()) == [("g", "jobs", 1, 1, 1)]
        assert list(queues.names()) == [JOBS]
        assert queues.coordinator_of(*JOBS) == broker.node_id
        assert list(queues.coordinators()) == [broker.node_id]
        assert (queues.counters.delivered, queues.counters.settled) == (7, 4)

        for change in (
            queues.reset(*JOBS, {0: EARLIEST}, principal=ANONYMOUS),
            queues.alter(*JOBS, {"order": "key"}, principal=ANONYMOUS),
            queues.delete(*JOBS, principal=ANONYMOUS),
        ):
            with pytest.raises(GroupNotEmpty):
                await change
        bob.close()
    # All of it is stored: another life of the broker goes on.
    async with running_broker(tmp_path) as running:
        queues = running.broker.queues
        cid = await queues.open(*JOBS, principal=ANONYMOUS)
        assert (await delivered(cid))[0] == [2]
        cid.close()
        await queues.reset(*JOBS, {0: EARLIEST}, principal=ANONYMOUS)
        dan = await queues.open(*JOBS, principal=ANONYMOUS, prefetch=1)
        assert await delivered(dan) == ([0], [1])
        dan.close()
        await queues.delete(*JOBS, principal=ANONYMOUS)
        assert list(queues.names()) == []
        with pytest.raises(UnknownGroup):
            await queues.delete(*JOBS, principal=ANONYMOUS)


async def test_settings_of_a_protocol_are_checked(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        queues = running.broker.queues
        await filled(running.broker)
        for given, named in [
            ({"lock_s": 5}, "lock_s"),
            ({"lock_ms": "5"}, "lock_ms"),
            ({"lock_ms": 5}, "lock_ms"),
            ({"order": "random"}, "order"),
            ({"attempts_max": 3}, "dead_letter"),
        ]:
            with pytest.raises(InvalidRequest, match=named):
                await queues.open(*JOBS, principal=ANONYMOUS, given=given)
            with pytest.raises(InvalidRequest, match=named):
                await queues.alter(*JOBS, given, principal=ANONYMOUS)
        assert list(queues.names()) == []
        settings = await queues.alter(*JOBS, {"lock_ms": 5_000}, principal=ANONYMOUS)
        assert settings.lock_ms == 5_000
        with pytest.raises(InvalidRequest, match="lock_ms"):  # another one than the queue has
            await queues.open(*JOBS, principal=ANONYMOUS, given={"lock_ms": 6_000})


async def test_limits_are_obeyed(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        queues = running.broker.queues
        queues.configure(QueueLimits(queues_max=1, consumers_max=1, prefetch_max=5))
        await filled(running.broker)
        with pytest.raises(InvalidRequest, match="prefetch"):
            await queues.open(*JOBS, principal=ANONYMOUS, prefetch=6)
        await queues.open(*JOBS, principal=ANONYMOUS, prefetch=5)
        with pytest.raises(InvalidRequest, match="1 consumers"):
            await queues.open(*JOBS, principal=ANONYMOUS, prefetch=5)
        with pytest.raises(InvalidRequest, match="1 queues"):
            await queues.open("h", "jobs", principal=ANONYMOUS, prefetch=5)
