"""Goal: transactions and sinks go on, whatever happens to their coordinators, each record once and
all of a transaction or nothing.

Method: real processes. Producers connected to different nodes send transactions to all partitions
of a topic while coordinators are killed, stand still and are stopped; a reader follows. What they
were told is judged as Jepsen's workloads do. `LAKEMQ_FAULT_ROUNDS=5`: five times each.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

import lakemq
from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.records.partitioner import partition_of
from lakemq.broker_core.api.transactions.types import SINK, TRANSACTION, Owner
from lakemq.broker_core.groups.offset_table import OFFSETS_TOPIC
from lakemq.broker_core.transactions.formats import STAGED_TOPIC, encode_owner
from lakemq.testing import Cluster
from tests.support.cluster.async_thread import AsyncThread
from tests.support.cluster.load import until
from tests.support.cluster.topics import made, partitions, until_in_sync
from tests.support.cluster.transaction_load import Transactions
from tests.support.node.node import unique

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]
ROUNDS = int(os.environ.get("LAKEMQ_FAULT_ROUNDS", "1"))
long_run = pytest.mark.skipif(ROUNDS < 2, reason="LAKEMQ_FAULT_ROUNDS is below 2")
PARTITIONS = 4
GOES_ON_MAX_S = 40.0
"""On a busy machine; in calm it is about a second, and three where a node stands still."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("transactions")) as running:
        yield running


def coordinator(cluster: Cluster, kind: str, name: str) -> str:
    found = partitions(cluster, STAGED_TOPIC)
    leader = found[partition_of(encode_owner(Owner(kind, name)), len(found))].leader
    assert leader is not None
    return leader


def harm(cluster: Cluster, name: str, kind: str) -> None:
    if kind == "kill":
        cluster.kill(name)
    elif kind == "pause":
        cluster.pause(name)
    else:
        cluster.terminate(name)


@pytest.mark.parametrize(
    "kind", ["kill", pytest.param("pause", marks=long_run), pytest.param("stop", marks=long_run)]
)
def test_transactions_go_on_without_their_coordinator(cluster: Cluster, kind: str) -> None:
    topic = made(cluster, unique("transactions"), PARTITIONS)
    load = Transactions(cluster, topic, PARTITIONS)
    load.until_committed(5)
    until_in_sync(cluster, STAGED_TOPIC)
    for number in range(ROUNDS):
        writer = load.writers[number % len(load.writers)]
        name = coordinator(cluster, TRANSACTION, writer.name)
        harm(cluster, name, kind)
        took_s = load.until_committed(5, GOES_ON_MAX_S)
        print(f"{kind}: 5 more transactions of each id {took_s:.1f} s later")
        if kind == "pause":
            cluster.resume(name)
        else:
            cluster.start_node(name)
        until_in_sync(cluster, STAGED_TOPIC)
        load.until_committed(5)
    load.stop()
    print(f"{load.judge()} records of {load.committed} transactions")


def test_a_sinks_batch_is_committed_by_the_next_coordinator(cluster: Cluster) -> None:
    """What was staged at one node is there at the next, and nothing is staged or committed
    twice."""
    topic, name = made(cluster, unique("sink"), PARTITIONS), unique("sink-id")
    with cluster.client(timeout_s=60) as client:
        session = client.staging.open_sink(name)
        until_in_sync(cluster, STAGED_TOPIC)
        with client.staging.writer(session, 0, 0, batch_max_bytes=2000) as writer:
            for number in range(200):
                if number == 100:
                    dead = coordinator(cluster, SINK, name)
                    cluster.kill(dead)
                writer.send(topic, b"%d" % number + b"." * 100, partition=number % PARTITIONS)
            winner = writer.finish()
        cluster.start_node(dead)
        until_in_sync(cluster, STAGED_TOPIC)
        dead = coordinator(cluster, SINK, name)
        cluster.kill(dead)
        result = client.staging.commit(session, 0, [winner])
        assert result.last_batch_id == 0
        assert client.staging.commit(session, 0, [winner]).outcome is (
            lakemq.CommitOutcome.ALREADY_COMMITTED
        )
        cluster.start_node(dead)
        until_in_sync(cluster, STAGED_TOPIC)
        stored = cluster.stored(topic)
        found = sorted(
            int((each.value or b"").rstrip(b".")) for records in stored.values() for each in records
        )
        assert found == list(range(200))
        rows = {each.name: each for each in client.staging.owners()}
        assert rows[name].last_batch_id == 0


# -- records and offsets together


class Worker(AsyncThread):
    """Reads a topic as a member of a group, writes what it read to another one, and commits both in
    one transaction; in a thread of its own, until it is stopped. After any failure it begins
    again."""

    def __init__(self, name: str, source: str, target: str, bootstrap: str) -> None:
        self.commits = 0
        self.failures: list[str] = []
        self._stopping = threading.Event()
        self._name, self._source, self._target, self._bootstrap = name, source, target, bootstrap
        super().__init__()

    async def work(self) -> None:
        async with lakemq.Client(self._bootstrap, timeout_s=100) as client:
            while not self._stopping.is_set():
                try:
                    await self._transform(client)
                except LakeMQError as error:
                    self.failures.append(repr(error))
                    # Each that joins takes partitions from the other, whose transaction fails then:
                    # in step they would go on so for ever.
                    await asyncio.sleep(random.uniform(0.1, 1.0))

    async def _transform(self, client: lakemq.Client) -> None:
        async with (
            await client.transactional_producer(self._name) as producer,
            client.subscribe(self._source, group=self._source) as consumer,
        ):
            transaction, count = producer.transaction(consumer), 0
            while not self._stopping.is_set():
                record = await consumer.poll(1)
                if record is not None:
                    await transaction.send(self._target, record.value, partition=record.partition)
                    count += 1
                if not count or (record is not None and count < 5):
                    continue
                await transaction.commit()
                self.commits += 1
                transaction, count = producer.transaction(consumer), 0
            await transaction.abort()

    def stop(self) -> None:
        self._stopping.set()
        self.thread.join(60)
        assert self.error is None, self.error


def test_records_and_offsets_are_committed_together(cluster: Cluster) -> None:
    """Two members of a group, whose coordinator is another node than those of their transactional
    ids; each of these is killed in turn."""
    source, target = (
        made(cluster, unique("in"), PARTITIONS),
        made(cluster, unique("out"), PARTITIONS),
    )
    with cluster.client(timeout_s=60) as client:
        client.reset_offsets(source, {lakemq.TopicPartition(source, 0): 0})
        client.staging.open_sink("so that the topic is there")
        until_in_sync(cluster, OFFSETS_TOPIC)
        until_in_sync(cluster, STAGED_TOPIC)
        group = group_coordinator(cluster, source)
        names = [f"{target}-{number}" for number in range(40)]
        elsewhere = [each for each in names if coordinator(cluster, TRANSACTION, each) != group]
        workers = [Worker(name, source, target, cluster.bootstrap) for name in elsewhere[:2]]
        sent = 0

        def send(count: int) -> None:
            nonlocal sent
            for _ in range(count):
                client.send(source, b"%d" % sent, partition=sent % PARTITIONS)
                sent += 1

        def until_done() -> None:
            def done() -> bool:
                for each in workers:
                    assert each.error is None, each.error
                with suppress(LakeMQError):
                    return sum(map(len, cluster.stored(target).values())) >= sent
                return False

            try:
                until(done, 90.0)
            except AssertionError as error:
                seen = [(each.commits, each.failures) for each in workers]
                raise AssertionError(f"of {sent}: {cluster.stored(target)}, {seen}") from error

        send(40)
        until_done()
        for harmed in (
            lambda: group_coordinator(cluster, source),
            lambda: coordinator(cluster, TRANSACTION, elsewhere[0]),
        ):
            send(30)
            name = harmed()
            cluster.kill(name)
            send(30)
            until_done()
            cluster.start_node(name)
            until_in_sync(cluster, OFFSETS_TOPIC)
            until_in_sync(cluster, STAGED_TOPIC)
        for each in workers:
            each.stop()
        found = sorted(
            int(seen.value or b"-1")
            for records in cluster.stored(target).values()
            for seen in records
        )
        assert found == list(range(sent)), [each.failures for each in workers]
        until(lambda: client.describe_group(source).lag == 0)
        print([each.commits for each in workers], [each.failures for each in workers])


def group_coordinator(cluster: Cluster, group: str) -> str:
    found = partitions(cluster, OFFSETS_TOPIC)
    leader = found[partition_of(group.encode(), len(found))].leader
    assert leader is not None
    return leader
