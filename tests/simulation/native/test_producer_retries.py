"""Goal: each record is stored once and in order, whatever answers are lost, come late, or come from
a former leader; what may be stored is never said to be refused, nor is its number given again.

Method: the SDK's own `Producer` in virtual time against `tests.support.produce_cluster`, whose
leaders change, refuse and lose streams as a seed decides; `tests.support.history` judges what was
sent and what is stored. `LAKEMQ_SEED=17` runs seed 17 alone. The planted bugs at the end show
that it can fail.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from lakemq.broker_core.api.errors import InvalidRequest, LakeMQError, NotAuthorized
from lakemq.broker_core.api.types import Acks, Compression
from lakemq.plugins.native.sdk.net import sequencing
from lakemq.plugins.native.sdk.producer import sending
from lakemq.plugins.native.sdk.producer.accumulator import ProducerBatch, RecordAccumulator
from lakemq.plugins.native.sdk.producer.producer import Producer
from lakemq.plugins.native.sdk.types import NewRecord
from tests.support.history import OPEN, REFUSED, Anomaly, History, Send
from tests.support.produce_cluster import BAD, TOPIC, Cluster
from tests.support.seeds import seeds
from tests.support.virtual_time import run_virtually

RECORDS = 150


class Run:
    """One seed."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dice = random.Random(seed)
        sequencing._rng.seed(seed)
        self.history = History()
        self.cluster = Cluster(self.dice, self.dice.choice((1, 1, 2)))
        self.anomalies: list[Anomaly] = []
        self.failed: LakeMQError | None = None
        self._patch = monkeypatch

    async def play(self) -> None:
        loop = asyncio.get_running_loop()
        self._patch.setattr(sending, "now_ms", lambda: int(loop.time() * 1000))
        made = Producer(
            self.cluster, 9, acks=Acks.REPLICATED, compression=Compression.NONE,  # type: ignore[arg-type]
            linger_ms=self.dice.choice((0, 0, 3)), batch_max_bytes=self.dice.choice((200, 1 << 20)),
            buffer_max_bytes=1 << 20, delivery_timeout_ms=600_000,
        )  # fmt: skip
        chaos = asyncio.create_task(self._chaos())
        sends = []
        bad, pauses_s = self.dice.choice((0.0, 0.02)), self.dice.choice((100, 1000))
        for number in range(RECORDS):
            partition = self.dice.randrange(len(self.cluster.partitions))
            value = b"%s%d" % (BAD if self.dice.random() < bad else b"v", number)
            sends.append(asyncio.create_task(self._send(made, partition, number, value)))
            if self.dice.random() < 0.3:
                await asyncio.sleep(self.dice.expovariate(pauses_s))
        await chaos
        for each in self.cluster.partitions:
            each.refuses = each.forbids = 0.0
        self.cluster.tell()
        async with asyncio.timeout(120):
            await asyncio.gather(*sends)
        self.failed = made.failed
        await made.close()
        final = {str(n): each.stored() for n, each in enumerate(self.cluster.partitions)}
        self.anomalies = self.history.anomalies(final)

    async def _chaos(self) -> None:
        for _ in range(self.dice.randrange(12)):
            await asyncio.sleep(self.dice.expovariate(5))
            self.cluster.hurt()

    async def _send(self, made: Producer, partition: int, number: int, value: bytes) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            record = NewRecord(value)
            offset = (await (await made.enqueue(TOPIC, record, partition=partition))).offset
        except (InvalidRequest, NotAuthorized):
            offset = REFUSED
        except LakeMQError:
            offset = OPEN
        self.history.sends.append(
            Send(str(partition), "p", number, value.decode(), began, loop.time(), offset)
        )


def played(seed: int, monkeypatch: pytest.MonkeyPatch) -> Run:
    run = Run(seed, monkeypatch)
    run_virtually(run.play())
    return run


@pytest.mark.parametrize("seed", seeds(30))
def test_no_loss_no_duplicate_order_kept(
    seed: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = played(seed, monkeypatch)
    assert not caplog.records, f"seed {seed}"  # the producer is known all the time
    assert run.anomalies == [], f"seed {seed}"
    assert run.failed is None, f"seed {seed}: {run.failed}"


def test_records_are_refused_and_left_open_too(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [played(seed, monkeypatch) for seed in range(40)]
    outcomes = [send.offset for run in runs for send in run.history.sends]
    assert outcomes.count(REFUSED) and 0 < outcomes.count(OPEN) < len(outcomes) // 4


# ------------------------------------------------------------ planted bugs


def caught(monkeypatch: pytest.MonkeyPatch) -> bool:
    for seed in range(60):
        try:
            run = played(seed, monkeypatch)
        except (AssertionError, TimeoutError):
            return True
        if run.anomalies or run.failed:
            return True
    return False


def test_new_numbers_for_what_may_be_stored_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatch = Producer._dispatch

    def renumbered(self: Producer, batch: ProducerBatch) -> None:
        if batch.maybe_appended:
            self._accumulator.sequences.restart(batch.topic)
            self._accumulator.renumber(batch)
        dispatch(self, batch)

    monkeypatch.setattr(Producer, "_dispatch", renumbered)
    assert caught(monkeypatch)


def test_a_number_given_again_while_its_batch_may_be_stored_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = RecordAccumulator.refused

    def trusting(self: RecordAccumulator, batch: ProducerBatch, error: LakeMQError) -> Any:
        batch.maybe_appended = False
        return refused(self, batch, error)

    monkeypatch.setattr(RecordAccumulator, "refused", trusting)
    assert caught(monkeypatch)
