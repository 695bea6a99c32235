"""Many writes at once, over sockets: they share calls, and stay commands of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from lakemq.meta_service.api.errors import InvalidArgument, MetaError
from lakemq.meta_service.api.remote.client import RemoteClient
from lakemq.meta_service.api.remote.writes import WRITES_MAX
from lakemq.meta_service.api.settings import MetaSettings
from lakemq.meta_service.api.types import Compare, Put
from lakemq.meta_service.proto import meta_pb2 as pb
from lakemq.meta_service.proto import meta_pb2_grpc as rpc
from lakemq.meta_service.server.member import MetaMember


@pytest.fixture
async def member(tmp_path: Path) -> AsyncIterator[MetaMember]:
    member = MetaMember(
        MetaSettings(port=0), node_id="n1", host="127.0.0.1", data_dir=tmp_path / "meta"
    )
    await member.start()
    yield member
    await member.stop()


@pytest.fixture(params=["in process", "remote"])
async def client(member: MetaMember, request: pytest.FixtureRequest) -> AsyncIterator[RemoteClient]:
    if request.param == "in process":
        yield member.control()
        return
    remote = RemoteClient([member.addresses()["meta"]])
    yield remote
    await remote.close()


async def test_each_of_many_writes_has_its_revision_and_its_error(client: RemoteClient) -> None:
    async def write(number: int) -> int | str:
        try:
            if number % 10 == 3:
                return await client.put(b"", b"no key")
            if number % 10 == 4:
                held, revision = await client.txn(
                    [Compare(b"absent", 1)], [Put(b"never", b"written")]
                )
                return "held" if held else "not held"
            return await client.put(b"many/%d" % number, b"%d" % number)
        except InvalidArgument as error:
            return str(error)

    outcomes = await asyncio.gather(*(write(number) for number in range(300)))
    assert [o for o in outcomes if isinstance(o, str)] == [
        "operation.key: must not be empty",
        "not held",
    ] * 30
    revisions = {number: o for number, o in enumerate(outcomes) if isinstance(o, int)}
    assert len(set(revisions.values())) == 240
    _, rows = await client.scan(b"many/")
    assert {int(row.value): row.mod_revision for row in rows} == revisions
    assert await client.get(b"never") is None
    await asyncio.gather(*(client.delete(b"many/%d" % number) for number in range(300)))
    assert await client.scan(b"many/") == (max(revisions.values()) + 240, [])


async def test_counting_at_once_counts_each_once(client: RemoteClient) -> None:
    async def add() -> None:
        while True:
            row = await client.get(b"count")
            value = int(row.value) + 1 if row else 1
            compare = Compare(b"count", row.mod_revision if row else 0)
            if (await client.txn([compare], [Put(b"count", b"%d" % value)]))[0]:
                return

    await asyncio.gather(*(add() for _ in range(20)))
    row = await client.get(b"count")
    assert row is not None
    assert (int(row.value), row.version) == (20, 20)


@pytest.mark.parametrize(
    ("writes", "problem"),
    [
        ([], "writes: must be 1 to"),
        ([pb.Write(put=pb.PutRequest(key=b"k"))] * (WRITES_MAX + 1), "writes: must be 1 to"),
        ([pb.Write()], "writes: one of them is neither"),
    ],
)
async def test_a_wrong_call_is_refused(
    member: MetaMember, writes: list[pb.Write], problem: str
) -> None:
    async with grpc.aio.insecure_channel(member.addresses()["meta"]) as channel:
        stub = rpc.KvStub(channel)
        with pytest.raises(grpc.aio.AioRpcError, match=problem) as caught:
            await stub.Write(pb.WriteRequest(writes=writes))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    client = RemoteClient([member.addresses()["meta"]])
    assert await client.scan(b"") == (0, [])
    await client.close()


async def test_the_same_write_twice_in_one_call_is_applied_once(member: MetaMember) -> None:
    once = pb.Once(client_id=bytes(16), sequence=1)
    write = pb.Write(put=pb.PutRequest(key=b"k", value=b"v", once=once))
    async with grpc.aio.insecure_channel(member.addresses()["meta"]) as channel:
        await rpc.ClusterStub(channel).OpenSession(pb.OpenSessionRequest(client_id=bytes(16)))
        response = await rpc.KvStub(channel).Write(pb.WriteRequest(writes=[write, write]))
    assert response.written[0].revision == response.written[1].revision > 0
    client = RemoteClient([member.addresses()["meta"]])
    row = await client.get(b"k")
    assert row is not None
    assert row.version == 1
    await client.close()


async def test_a_closed_client_leaves_nobody_waiting(member: MetaMember) -> None:
    client = RemoteClient([member.addresses()["meta"]], timeout_s=2.0)
    await client.put(b"first", b"")
    tasks = [asyncio.create_task(client.put(b"k%d" % n, b"")) for n in range(50)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await client.close()
    done = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
    assert all(isinstance(one, int | asyncio.CancelledError | MetaError) for one in done)
    await client.close()
