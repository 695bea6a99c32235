"""Goal: clients read near them and lose nothing by it, and learn when what they have read was taken
back (KIP-392, KIP-320).

Method: real processes in three racks; replicas die, and one that lacks records is made the leader.
"""

from __future__ import annotations

import asyncio
import threading
import time
import urllib.request
from collections.abc import Coroutine, Iterator

import pytest
from typer.testing import CliRunner

import lakemq
from lakemq.broker_core.api.errors import LakeMQError, LogTruncated
from lakemq.cli.commands import app
from lakemq.testing import Cluster
from tests.support.cluster.load import until
from tests.support.cluster.topics import made, nodes, partitions, until_in_sync
from tests.support.node.node import unique

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made_here = Cluster(tmp_path_factory.mktemp("reading"), links=False)
    for name, node in made_here.nodes.items():
        file = node.folder / "lakemq.toml"
        # A path: clients say its first part.
        file.write_text(file.read_text().replace("[node]\n", f'[node]\nrack = "{name}/r1"\n', 1))
    with made_here:
        yield made_here


METRICS_MAX_AGE_S = 1.0


def fetched_bytes_by_now(cluster: Cluster) -> dict[str, float]:
    time.sleep(METRICS_MAX_AGE_S)
    return {name: fetched_bytes(cluster, name) for name in cluster.names}


def fetched_bytes(cluster: Cluster, name: str) -> float:
    url = f"http://{cluster.address(name, 'admin')}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    found = [each for each in lines if each.startswith("lakemq_native_fetch_bytes_total")]
    return sum(float(each.rsplit(" ", 1)[1]) for each in found)


class Reader:
    """Reads in a thread of its own: by a group, a stream of one partition, or a blocking loop."""

    def __init__(self, cluster: Cluster, topic: str, rack: str, kind: str) -> None:
        self.values: list[bytes] = []
        self.error: BaseException | None = None
        self._over = threading.Event()
        self._client: lakemq.SyncClient | None = None
        if kind == "blocking":
            self._client = lakemq.connect(cluster.bootstrap, rack=rack)
            self._thread = threading.Thread(target=self._blocking, args=(self._client, topic))
        else:
            read = self._grouped if kind == "group" else self._streamed
            self._thread = threading.Thread(
                target=lambda: asyncio.run(self._read(read(cluster, topic, rack)))
            )
        self._thread.start()

    def _blocking(self, client: lakemq.SyncClient, topic: str) -> None:
        try:
            for record in client.consume(topic, follow=True):
                self.values.append(record.value or b"")
        except LakeMQError as error:
            self.error = error

    async def _read(self, reading: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(reading)
        over = asyncio.ensure_future(asyncio.to_thread(self._over.wait))
        await asyncio.wait([task, over], return_when=asyncio.FIRST_COMPLETED)
        task.cancel()
        (self.error,) = await asyncio.gather(task, return_exceptions=True)

    async def _grouped(self, cluster: Cluster, topic: str, rack: str) -> None:
        async with (
            lakemq.Client(cluster.bootstrap, rack=rack) as client,
            client.subscribe(topic, group=unique("g")) as consumer,
        ):
            async for record in consumer:
                self.values.append(record.value or b"")

    async def _streamed(self, cluster: Cluster, topic: str, rack: str) -> None:
        async with lakemq.Client(cluster.bootstrap, rack=rack) as client:
            async for batch in client.fetch_batches(topic, 0, 0, follow=True):
                self.values += [each.value or b"" for each in batch.records()]

    def until_read(self, values: list[bytes]) -> None:
        until(lambda: self.values == values or self.error is not None, what="all of it read")
        assert self.values == values, self.error

    def stop(self) -> None:
        self._over.set()
        if self._client is not None:
            self._client.close()
        self._thread.join()


@pytest.mark.parametrize("kind", ["group", "stream", "blocking"])
def test_clients_read_in_their_rack_and_elsewhere_when_it_dies(cluster: Cluster, kind: str) -> None:
    topic = made(cluster, unique("near"), 1)
    until_in_sync(cluster, topic)
    leader = partitions(cluster, topic)[0].leader
    assert leader is not None
    near = next(each for each in cluster.names if each != leader)
    reader = Reader(cluster, topic, near, kind)
    try:
        values = [b"%d " % number + b"x" * 1000 for number in range(300)]
        with cluster.client() as client:
            # The first ones may come before the reader knows its way.
            first: list[bytes] = []
            begun = fetched_bytes(cluster, near)
            while fetched_bytes(cluster, near) == begun:
                first.append(b"first %d" % len(first))
                cluster.send(client, topic, first[-1])
                reader.until_read(first)
            at_first = fetched_bytes_by_now(cluster)
            for value in values:
                cluster.send(client, topic, value)
            values = first + values
            reader.until_read(values)
            by_now = fetched_bytes_by_now(cluster)
            grew = {name: by_now[name] - at_first[name] for name in cluster.names}
            # On a busy machine the near one may fall behind for a moment, and the leader serves.
            assert grew[near] + grew[leader] >= 300_000, grew
            assert grew[leader] < 0.2 * grew[near], grew
            cluster.kill(near)
            for number in range(50):
                values.append(b"after %d" % number)
                cluster.send(client, topic, values[-1])
            reader.until_read(values)
    finally:
        reader.stop()
        if near not in cluster.running:
            cluster.start_node(near)
    cluster.assert_no_loss()


@pytest.mark.parametrize("kind", ["group", "stream", "blocking"])
def test_readers_learn_that_records_were_taken_back(cluster: Cluster, kind: str) -> None:
    topic = made(cluster, unique("unclean"), 1, replication=2, min_in_sync=1)
    (partition,) = partitions(cluster, topic)
    leads = partition.leader
    (behind,) = set(partition.replicas) - {leads}
    assert leads is not None
    (other,) = set(cluster.names) - {leads, behind}
    kept = [b"kept %d" % number for number in range(10)]
    lost = [b"lost %d" % number for number in range(5)]
    new = [b"new %d" % number for number in range(8)]
    reader = Reader(cluster, topic, "", kind)
    try:
        with cluster.client() as client:
            for value in kept:
                client.send(topic, value)
            cluster.kill(behind)
            until_in_sync(cluster, topic, 1)
            for value in lost:
                client.send(topic, value)
        reader.until_read(kept + lost)
        assert cluster.terminate(leads) == 0
        cluster.start_node(behind)
        until(lambda: partitions(cluster, topic)[0].leader is None)
        until(lambda: nodes(cluster)[behind].state == "active")
        place = f"{topic}/0"
        command = ["partition", "elect", place, "--unclean", "-a", cluster.address(other, "meta")]
        said = CliRunner().invoke(app, command, input=f"{place}\n")
        assert said.exit_code == 0, said.output
        with cluster.client() as client:
            # More than were lost: the reader's offset is within the log again.
            for value in new:
                client.send(topic, value)
        if kind == "group":
            reader.until_read(kept + lost + new)
        else:
            until(lambda: reader.error is not None, what=f"an error after {reader.values}")
            assert isinstance(reader.error, LogTruncated), reader.error
            assert reader.error.offset == len(kept)
            assert reader.values == kept + lost
    finally:
        reader.stop()
        cluster.start_node(leads)
