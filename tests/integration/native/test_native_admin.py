"""Goal: what operators do, against a real broker: alter topics, add partitions, delete records,
see the cluster; groups that nobody uses; subscriptions by pattern.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import lakemq
from lakemq.plugins.native.cli.admin import cluster
from lakemq.plugins.native.cli.commands import topic
from tests.support.node.node import PORTS_FREE, NodeProcess


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("admin-native")) as node:
        yield node


async def test_settings_change_alone_and_hold_at_once(node: NodeProcess) -> None:
    async with lakemq.Client(node.native) as client:
        await client.create_topic("alter", 1, {"retention_ms": "5000", "compression": "lz4"})
        found = await client.admin.alter_topic("alter", {"batch_max_bytes": "2048"})
        assert found.config["batch_max_bytes"] == "2048"
        assert (found.config["retention_ms"], found.config["compression"]) == ("5000", "lz4")
        async with await client.producer() as producer:
            with pytest.raises(lakemq.BatchTooLarge):
                await producer.send("alter", b"x" * 3000)
        found = await client.admin.alter_topic("alter", reset=["batch_max_bytes"])
        assert found.config["batch_max_bytes"] == str(16 * 1024 * 1024)
        for wrong in ({"nonsense": "1"}, {"cleanup": "burn"}, {"retention_ms": "soon"}):
            with pytest.raises(lakemq.InvalidRequest, match=next(iter(wrong))):
                await client.admin.alter_topic("alter", wrong)
        with pytest.raises(lakemq.UnknownTopic):
            await client.admin.alter_topic("nowhere", {"retention_ms": "5000"})
        with pytest.raises(lakemq.NotAuthorized):
            await client.admin.alter_topic("_lakemq_offsets", {"cleanup": "delete"})


async def test_two_who_alter_at_once_lose_nothing(node: NodeProcess) -> None:
    async with lakemq.Client(node.native) as client:
        await client.create_topic("both", 1)
        changes = [{"retention_ms": "7000"}, {"segment_max_bytes": "8192"},
                   {"tombstone_retention_ms": "9000"}]  # fmt: skip
        await asyncio.gather(*(client.admin.alter_topic("both", each) for each in changes))
        found = (await client.describe_topic("both")).config
    assert all(found[name] == value for each in changes for name, value in each.items())


async def test_added_partitions_take_records_and_never_go(node: NodeProcess) -> None:
    async with lakemq.Client(node.native) as client:
        await client.create_topic("grow", 1)
        assert len((await client.admin.add_partitions("grow", 3)).partitions) == 3
        async with await client.producer() as producer:
            placed = await producer.send("grow", b"x", partition=2)
        assert (placed.partition, placed.offset) == (2, 0)
        for wrong in (2, 10_001):
            with pytest.raises(lakemq.InvalidRequest, match="partitions"):
                await client.admin.add_partitions("grow", wrong)


async def test_a_group_reads_partitions_that_were_added(node: NodeProcess) -> None:
    async with lakemq.Client(node.native) as client:
        await client.create_topic("wide", 1)
        async with client.subscribe("wide", group="wide") as consumer, asyncio.timeout(60):
            async with await client.producer() as producer:
                await producer.send("wide", b"a", partition=0)
                records = aiter(consumer)
                assert (await anext(records)).value == b"a"
                await client.admin.add_partitions("wide", 2)
                await producer.send("wide", b"b", partition=1)
            assert (await anext(records)).value == b"b"


def test_deleted_records_stay_deleted_when_the_broker_is_killed(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path)
    node.start()
    try:
        with lakemq.connect(node.native) as client:
            client.create_topic("short", 2, {"segment_max_bytes": "4096"})
            for number in range(100):
                client.send("short", b"%03d" % number + b"x" * 200, partition=0)
            client.send("short", b"other", partition=1)
            size = client.describe_topic("short").partitions[0].size_bytes
            assert client.admin.delete_records("short", {0: 60, 1: -1}) == {0: 60, 1: 1}
        node.kill()
        node.start()
        with lakemq.connect(node.native) as client:
            found = client.describe_topic("short").partitions
            assert [each.log_start_offset for each in found] == [60, 1]
            assert found[0].size_bytes < size
            assert [each.offset for each in client.consume("short")] == list(range(60, 100))
            with pytest.raises(lakemq.OffsetOutOfRange):
                list(client.fetch_batches("short", 0, 59))
            with pytest.raises(lakemq.OffsetOutOfRange, match="101"):
                client.admin.delete_records("short", {0: 101})
            assert client.admin.delete_records("short", {0: 10}) == {0: 60}
            assert client.send("short", b"on", partition=1).offset == 1
    finally:
        node.stop()


def test_the_cluster_tells_of_itself(node: NodeProcess) -> None:
    with lakemq.connect(node.native) as client:
        found = client.admin.describe_cluster()
    (only,) = found.nodes
    assert (only.node_id, only.state) == (found.node_id, "active")
    assert only.addresses["native"] == node.native
    assert found.meta_leader == found.node_id and found.revision > 0
    assert {each.name for each in found.plugins if each.enabled} >= {"native", "journal", "mqtt"}


def test_the_command_line(node: NodeProcess) -> None:
    def run(app: object, *words: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, [*words, "--bootstrap", node.native])  # type: ignore[arg-type]  # a Typer
        assert result.exit_code == code, result.output
        return result.output

    run(topic, "create", "cli", "-p", "2")
    assert "retention_ms=9000" in run(topic, "alter", "cli", "-c", "retention_ms=9000")
    assert "has 3 partition(s)" in run(topic, "add-partitions", "cli", "3")
    with lakemq.connect(node.native) as client:
        for number in range(5):
            client.send("cli", b"x", partition=0, timestamp_ms=1000 * number)
    told = run(topic, "delete-records", "cli", "--before", "time:2000", "--partition", "0", "-y")
    assert "cli-0 starts at offset 2" in told
    assert "starts at offset 5" in run(topic, "delete-records", "cli", "--before", "latest", "-y")
    assert "--partition" in run(topic, "delete-records", "cli", "--before", "1", "-y", code=2)
    assert "nothing to change" in run(topic, "alter", "cli", code=2)
    assert node.native in run(cluster, "describe")


async def test_topics_by_pattern_also_those_that_come_later(node: NodeProcess) -> None:
    async with lakemq.Client(node.native) as client:
        with pytest.raises(lakemq.InvalidRequest, match="pattern"):
            client.subscribe(group="p", pattern="(")
        with pytest.raises(lakemq.InvalidRequest, match="either"):
            client.subscribe("a", group="p", pattern="a")
        options = lakemq.ConsumerOptions(pattern=r"house-\d+", pattern_interval_ms=50)
        async with (
            client.subscribe(group="pattern", **options) as consumer,
            await client.producer() as producer,
            asyncio.timeout(60),
        ):
            records = aiter(consumer)
            for name in ("house-x", "house-1", "house-2"):
                await client.create_topic(name, 1)
                await producer.send(name, name.encode())
            seen = {(await anext(records)).value, (await anext(records)).value}
            assert seen == {b"house-1", b"house-2"}
            await client.delete_topic("house-1")
            await producer.send("house-2", b"on")
            assert (await anext(records)).value == b"on"


async def test_a_group_that_nobody_uses_is_forgotten(tmp_path: Path) -> None:
    config = PORTS_FREE + "group_offsets_retention_ms = 1500\n"
    with NodeProcess(tmp_path, config) as node:
        async with lakemq.Client(node.native) as client:
            await client.create_topic("t", 1)
            place = lakemq.TopicPartition("t", 0)
            await client.reset_offsets("dead", {place: 0})
            async with client.subscribe("t", group="live"):
                await client.reset_offsets("other", {place: 0})
                deadline = time.monotonic() + 15
                while (names := [each.name for each in await client.groups()]) != ["live"]:
                    assert time.monotonic() < deadline and "live" in names
                    await asyncio.sleep(0.1)
