"""Goal: clients find their way among real brokers of one cluster: records go to, and come from, the
node that leads their partition, whichever node a client connects to.

Three nodes share one MetaService group, so the catalog spreads partitions over them. Each node
serves the partitions that it leads, and names the leader of the others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

import lakemq
from lakemq.broker_core.api.records.batch import encode
from lakemq.broker_core.api.types import Columns
from lakemq.plugins.native.proto import (
    admin_pb2,
    metadata_pb2,
    native_pb2,
    transactions_pb2,
)
from lakemq.plugins.native.proto.admin_pb2_grpc import AdminStub
from lakemq.plugins.native.proto.metadata_pb2_grpc import MetadataStub
from lakemq.plugins.native.proto.native_pb2_grpc import NativeStub
from lakemq.plugins.native.proto.transactions_pb2_grpc import TransactionsStub
from tests.support.node.node import NodeProcess
from tests.support.node.ports import free_ports

NAMES = ("a", "b", "c")
CONFIG = """
[node]
id = "{name}"
[meta]
port = {meta_port}
raft_port = {raft_port}
members = {{ {members} }}
[admin]
enabled = false
[plugins.mqtt]
enabled = false
[plugins.native]
port = {native_port}
"""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, NodeProcess]]:
    folder = tmp_path_factory.mktemp("cluster")
    ports = free_ports(9)
    members = ", ".join(
        f'{name} = "127.0.0.1:{port}"' for name, port in zip(NAMES, ports, strict=False)
    )
    found = {
        name: NodeProcess(
            folder / name,
            CONFIG.format(
                name=name,
                members=members,
                raft_port=ports[at],
                meta_port=ports[3 + at],
                native_port=ports[6 + at],
            ),
        )
        for at, name in enumerate(NAMES)
    }
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda node: node.start(60), found.values()))
    yield found
    for node in found.values():
        node.kill()


async def spread(client: lakemq.Client, topic: str) -> list[lakemq.PartitionOffsets]:
    """A topic with partitions at all nodes."""
    async with asyncio.timeout(60):
        while True:
            await client.create_topic(topic, 6)
            while True:
                found = list((await client.describe_topic(topic)).partitions)
                if all(each.state == "online" for each in found):
                    break
                await asyncio.sleep(0.1)
            if {each.leader for each in found} == set(NAMES):
                return found
            # A node whose heartbeats came late, on a busy machine, was fenced when partitions were
            # placed, and got none.
            await client.delete_topic(topic)
            await asyncio.sleep(0.5)


async def test_records_go_to_leaders_and_come_back(nodes: dict[str, NodeProcess]) -> None:
    async with lakemq.Client(nodes["a"].native, timeout_s=20) as client:
        await spread(client, "spread")
        async with await client.producer() as producer:
            for number in range(60):
                await producer.send("spread", b"%d" % number, partition=number % 6)
        described = (await client.describe_topic("spread")).partitions
        assert [each.high_watermark for each in described] == [10] * 6
        found = [int(each.value or b"") async for each in client.consume("spread")]
        assert sorted(found) == list(range(60))
        times = await client.offsets_for_timestamp("spread", 0)
        assert times == dict.fromkeys(range(6), 0)
    for name in NAMES:
        with lakemq.connect(nodes[name].native) as sync:
            assert sync.send("spread", b"more", partition=3).offset >= 10
            values = [each.value for each in sync.consume("spread", partition=3)]
            assert values.count(b"more") == NAMES.index(name) + 1
            assert sync.offsets_for_timestamp("spread", 0) == dict.fromkeys(range(6), 0)


async def test_records_are_deleted_at_the_leaders(nodes: dict[str, NodeProcess]) -> None:
    async with lakemq.Client(nodes["c"].native, timeout_s=20) as client:
        await spread(client, "shortened")
        async with await client.producer() as producer:
            for number in range(18):
                await producer.send("shortened", b"%d" % number, partition=number % 6)
        before = {number: number % 3 for number in range(6)}
        with pytest.raises(lakemq.UnknownPartition):
            await client.admin.delete_records("shortened", {**before, 6: 1})
        described = (await client.describe_topic("shortened")).partitions
        assert [each.log_start_offset for each in described] == [0] * 6
        assert await client.admin.delete_records("shortened", before) == before
        with pytest.raises(lakemq.OffsetOutOfRange):
            await client.admin.delete_records("shortened", {0: 4})
        assert await client.admin.delete_records("shortened", {5: -1, 0: 1}) == {5: 3, 0: 1}
    with lakemq.connect(nodes["a"].native) as sync:
        assert sync.admin.delete_records("shortened", {1: 2, 2: 2}) == {1: 2, 2: 2}
        described = sync.describe_topic("shortened").partitions
        assert [each.log_start_offset for each in described] == [1, 2, 2, 0, 1, 3]


async def test_dead_letters_go_to_another_nodes_topic(nodes: dict[str, NodeProcess]) -> None:
    async with lakemq.Client(nodes["a"].native, timeout_s=20) as client:
        led: dict[str, str] = {}
        for number in range(20):  # placement spreads them
            await client.create_topic(f"exhausted-{number}", 1)
            described = await client.describe_topic(f"exhausted-{number}")
            led.setdefault(described.partitions[0].leader, described.name)
            if len(led) > 1:
                break
        (leader, topic), (_, dead) = list(led.items())[:2]
    # A queue is served by the node that leads its partitions.
    async with lakemq.Client(nodes[leader].native, timeout_s=20) as client:
        async with await client.producer() as producer:
            await producer.send(topic, b"poison")
        async with client.queue(topic, group="w", dead_letter=dead) as queue:
            async for message in queue:
                await message.reject()
                break
            deadline = time.monotonic() + 20
            while not (found := [each.value async for each in client.consume(dead)]):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.1)
        assert found == [b"poison"]


async def test_a_group_reads_partitions_of_all_nodes(nodes: dict[str, NodeProcess]) -> None:
    async with lakemq.Client(nodes["b"].native, timeout_s=20) as client:
        await spread(client, "grouped")
        async with await client.producer() as producer:
            for number in range(30):
                await producer.send("grouped", b"%d" % number, partition=number % 6)
        found: list[int] = []
        async with client.subscribe("grouped", group="g") as consumer, asyncio.timeout(60):
            async for record in consumer:
                found.append(int(record.value or b""))
                if len(found) == 30:
                    break
        assert sorted(found) == list(range(30))


async def test_the_wrong_node_names_the_leader(nodes: dict[str, NodeProcess]) -> None:
    async with lakemq.Client(nodes["a"].native, timeout_s=20) as client:
        partitions = await spread(client, "named")
    elsewhere = next(each for each in partitions if each.leader == "b")
    ours = next(each for each in partitions if each.leader == "a")
    async with grpc.aio.insecure_channel(nodes["a"].native) as channel:
        stub = NativeStub(channel)
        request = native_pb2.FetchRequest(topic="named", partition=elsewhere.partition)
        with pytest.raises(grpc.RpcError) as refused:
            async for _ in stub.Fetch(request):
                pass
        told = dict(refused.value.trailing_metadata())
        assert told["lakemq-error"] == "NOT_LEADER" and told["lakemq-leader"] == "b"
        assert told["lakemq-leader-address"] == nodes["b"].native
        for epoch in (ours.leader_epoch + 7, max(1, ours.leader_epoch - 1)):
            if epoch == ours.leader_epoch:
                continue
            many = native_pb2.FetchManyRequest(
                partitions=[
                    native_pb2.PartitionOffset(
                        topic="named", partition=ours.partition, leader_epoch=epoch
                    )
                ]
            )
            (answer,) = [each async for each in stub.FetchMany(many)]
            assert answer.error.code == "STALE_EPOCH" and answer.error.leader == "a"
            assert answer.error.leader_epoch == ours.leader_epoch


async def test_nothing_is_done_with_a_partition_of_another_node(
    nodes: dict[str, NodeProcess],
) -> None:
    """Every request that appends, reads or deletes, at a node that does not lead."""
    async with lakemq.Client(nodes["a"].native, timeout_s=20) as client:
        partitions = await spread(client, "refused")
        theirs = next(each.partition for each in partitions if each.leader == "b")
        ours = [each.partition for each in partitions if each.leader == "a"]
        opened = {name: await opened_sink(nodes[name], "s") for name in NAMES}
    home = next(name for name in NAMES if opened[name] is not None)
    batch = encode(Columns([b"x"]), now_ms=time.time_ns() // 1_000_000)
    async with grpc.aio.insecure_channel(nodes["a"].native) as channel:
        stub = NativeStub(channel)
        produce = native_pb2.ProduceRequest(topic="refused", partition=theirs, batch=batch, acks=1)
        (answer,) = [each async for each in stub.Produce(iter([produce]))]
        assert (answer.error.code, answer.error.leader) == ("NOT_LEADER", "b")
        assert answer.error.leader_address == nodes["b"].native
        offsets = native_pb2.OffsetsForTimestampRequest(topic="refused", timestamp_ms=0)
        assert sorted((await stub.OffsetsForTimestamp(offsets)).offsets) == sorted(ours)
        deletion = admin_pb2.DeleteRecordsRequest(topic="refused", before={theirs: -1})
        deleted = await AdminStub(channel).DeleteRecords(deletion)
        assert deleted.errors[theirs].code == "NOT_LEADER" and not deleted.log_start_offsets
        with pytest.raises(grpc.RpcError) as error:
            await stub.TieredSegments(
                native_pb2.TieredSegmentsRequest(topic="refused", partition=theirs)
            )
        assert dict(error.value.trailing_metadata())["lakemq-error"] == "NOT_LEADER"
    # What is staged goes to its partition when it is committed, wherever that is led by then.
    elsewhere = next(each for each in partitions if each.leader != home)
    async with grpc.aio.insecure_channel(nodes[home].native) as channel:
        stage = transactions_pb2.StageRequest(
            owner=transactions_pb2.Owner(kind=1, name="s"),
            epoch=opened[home],
            batch_id=0,
            topic="refused",
            partition=elsewhere.partition,
            batch=batch,
        )
        (staged,) = [each async for each in TransactionsStub(channel).Stage(iter([stage]))]
        assert not staged.error.code


async def opened_sink(node: NodeProcess, name: str) -> int | None:
    """The epoch, at the node that is the home of the sink; None at the others."""
    async with grpc.aio.insecure_channel(node.native) as channel:
        owner = transactions_pb2.Owner(kind=1, name=name)
        try:
            request = transactions_pb2.OpenOwnerRequest(owner=owner)
            return int((await TransactionsStub(channel).OpenOwner(request)).epoch)
        except grpc.aio.AioRpcError as error:
            assert dict(error.trailing_metadata() or ())["lakemq-error"] == "NOT_LEADER"
            return None


async def test_a_group_commits_offsets_of_any_partition_where_it_has_joined(
    nodes: dict[str, NodeProcess],
) -> None:
    async with lakemq.Client(nodes["a"].native, timeout_s=20) as client:
        partitions = await spread(client, "committed")
    theirs = next(each.partition for each in partitions if each.leader == "b")
    async with grpc.aio.insecure_channel(nodes["a"].native) as channel:
        stub = NativeStub(channel)
        commit = native_pb2.CommitOffsetsRequest(
            group="committed",
            offsets=[native_pb2.OffsetCommit(topic="committed", partition=theirs, offset=7)],
        )
        await stub.CommitOffsets(commit)
        described = await stub.DescribeGroups(
            native_pb2.DescribeGroupsRequest(groups=["committed"])
        )
        (offset,) = described.groups[0].offsets
        assert (offset.committed_offset, offset.high_watermark) == (7, -1)


async def test_metadata_is_told_first_whole_then_by_changes(nodes: dict[str, NodeProcess]) -> None:
    async with (
        lakemq.Client(nodes["a"].native, timeout_s=20) as client,
        grpc.aio.insecure_channel(nodes["c"].native) as channel,
        asyncio.timeout(60),
    ):
        await spread(client, "watched")
        call = MetadataStub(channel).WatchMetadata(metadata_pb2.WatchMetadataRequest())
        updates = aiter(call)
        first = await anext(updates)
        assert first.whole and first.node_id == "c"
        assert {each.node_id: each.address for each in first.nodes} == {
            name: node.native for name, node in nodes.items()
        }
        (topic,) = [each for each in first.topics if each.name == "watched"]
        assert {each.leader for each in topic.partitions} == set(NAMES)

        async def next_about(name: str) -> metadata_pb2.MetadataUpdate:
            while True:
                update = await anext(updates)
                if name in [*(each.name for each in update.topics), *update.gone]:
                    assert not update.whole
                    return update

        await client.create_topic("later", 1)
        assert (await next_about("later")).topics[0].revision > topic.revision
        await client.admin.add_partitions("later", 2)
        while len((await next_about("later")).topics[0].partitions) < 2:
            pass
        await client.delete_topic("later")
        while not (await next_about("later")).gone:
            pass
        call.cancel()


async def test_any_node_will_do_also_when_the_first_is_gone(
    nodes: dict[str, NodeProcess],
) -> None:
    async with lakemq.Client(["127.0.0.1:1", nodes["b"].native], timeout_s=20) as client:
        await client.create_topic("any", 3)
        async with await client.producer() as producer:
            for number in range(9):
                await producer.send("any", b"%d" % number, partition=number % 3)
        assert len([each async for each in client.consume("any")]) == 9
    with lakemq.connect(f"127.0.0.1:1,{nodes['c'].native}") as sync:
        assert sync.describe_topic("any").name == "any"
    with pytest.raises(lakemq.InvalidRequest, match="a:b"):
        lakemq.connect(["nonsense", "a:b"])
