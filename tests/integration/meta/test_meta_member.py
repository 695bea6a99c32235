"""A member end to end: in-process client, gRPC client, restarts, refusals."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from lakemq.meta_service.api.errors import (
    AlreadyExists,
    Compacted,
    InvalidArgument,
    NoLeader,
    NotFound,
    StartupFailed,
)
from lakemq.meta_service.api.remote.client import RemoteClient
from lakemq.meta_service.api.remote.failures import error_of_failure
from lakemq.meta_service.api.settings import MetaSettings
from lakemq.meta_service.api.types import (
    Compare,
    Delete,
    InSyncChange,
    MetaClient,
    NodeRegistration,
    PartitionsChange,
    Put,
    TopicChange,
)
from lakemq.meta_service.catalog import apply as apply_module
from lakemq.meta_service.proto import meta_pb2 as pb
from lakemq.meta_service.proto import meta_pb2_grpc as rpc
from lakemq.meta_service.raft import engine
from lakemq.meta_service.raft.elections import Elections
from lakemq.meta_service.server.member import MetaMember
from tests.support.node.ports import free_ports


def member_in(folder: Path, port: int = 0) -> MetaMember:
    return MetaMember(MetaSettings(port=port), node_id="n1", host="127.0.0.1", data_dir=folder)


@pytest.fixture
async def member(tmp_path: Path) -> AsyncIterator[MetaMember]:
    member = member_in(tmp_path / "meta")
    await member.start()
    yield member
    await member.stop()


@pytest.fixture(params=["local", "remote"])
async def client(member: MetaMember, request: pytest.FixtureRequest) -> AsyncIterator[MetaClient]:
    if request.param == "local":
        yield member.client()
        return
    remote = RemoteClient([member.addresses()["meta"]])
    yield remote
    await remote.close()


async def test_keys_have_revisions(client: MetaClient) -> None:
    first = await client.put(b"a", b"1")
    assert await client.put(b"a", b"2") == first + 1
    row = await client.get(b"a")
    assert row is not None
    assert (row.value, row.create_revision, row.mod_revision, row.version) == (
        b"2",
        first,
        first + 1,
        2,
    )
    assert await client.delete(b"a") == first + 2
    assert await client.get(b"a") is None
    assert await client.delete(b"a") == first + 2


async def test_scans_are_in_order_and_limited(client: MetaClient) -> None:
    for key in (b"b/2", b"a", b"b/1", b"c", b"b\xff"):
        await client.put(key, key)
    revision, rows = await client.scan(b"b")
    assert [row.key for row in rows] == [b"b/1", b"b/2", b"b\xff"]
    assert revision >= 5
    assert [row.key for row in (await client.scan(b"", limit=2))[1]] == [b"a", b"b/1"]
    assert [row.key for row in (await client.scan(b"b", stale=True))[1]] == [
        row.key for row in rows
    ]


async def test_a_scan_larger_than_one_answer_is_whole(client: MetaClient) -> None:
    value = bytes(400_000)
    for number in range(20):
        await client.put(b"big/%02d" % number, value)
    _, rows = await client.scan(b"big/")
    assert [row.key for row in rows] == [b"big/%02d" % number for number in range(20)]
    assert all(row.value == value for row in rows)


async def test_transactions_compare_and_set(client: MetaClient) -> None:
    assert await client.txn([Compare(b"lock", 0)], [Put(b"lock", b"me")]) == (True, 1)
    assert await client.txn([Compare(b"lock", 0)], [Put(b"lock", b"you")]) == (False, 1)
    held, revision = await client.txn([Compare(b"lock", 1)], [Delete(b"lock"), Put(b"x", b"1")])
    assert (held, revision) == (True, 2)
    assert await client.get(b"lock") is None


async def test_a_watch_has_no_gap_and_no_repeat(client: MetaClient) -> None:
    for number in range(5):
        await client.put(b"w/%d" % number, b"%d" % number)
    await client.put(b"other", b"")
    seen: list[tuple[int, bytes, bytes | None]] = []

    async def follow() -> None:
        async for event in client.watch(b"w/", 2):
            seen.append((event.revision, event.key, event.value))
            if event.value is None:
                return

    task = asyncio.create_task(follow())
    await client.put(b"w/5", b"5")
    await client.delete(b"w/0")
    await asyncio.wait_for(task, 60)
    assert seen == [
        (2, b"w/1", b"1"),
        (3, b"w/2", b"2"),
        (4, b"w/3", b"3"),
        (5, b"w/4", b"4"),
        (7, b"w/5", b"5"),
        (8, b"w/0", None),
    ]


async def test_a_watch_behind_the_history_is_told(
    client: MetaClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply_module, "HISTORY_REVISIONS_MAX", 3)
    for number in range(10):
        await client.put(b"k", b"%d" % number)
    with pytest.raises(Compacted) as caught:
        await anext(aiter(client.watch(b"k", 3)))
    assert caught.value.compact_revision == 7


async def test_topics_live_and_die(client: MetaClient) -> None:
    await client.register_node(NodeRegistration("n1", {"native": "h:1"}))
    created = await client.create_topic("t", 2, {"retention_ms": 5, "cleanup": "delete", "x": None})
    assert [p.leader for p in created.partitions] == ["n1", "n1"]
    with pytest.raises(AlreadyExists, match="'t'"):
        await client.create_topic("t", 2, {})
    altered = await client.alter_topic("t", partitions=3, config={"cleanup": "compact"})
    assert (len(altered.partitions), altered.config) == (3, {"cleanup": "compact"})
    assert altered.topic_id == created.topic_id
    revision, topics = await client.topics()
    assert (revision, list(topics)) == (altered.revision, [altered])
    with pytest.raises(InvalidArgument, match="can only grow"):
        await client.alter_topic("t", partitions=1)
    # Each change tells the topic as it is by now.
    assert await some_changes(client.watch_partitions(1), 2) == [
        TopicChange(created.revision, "t", altered),
        TopicChange(altered.revision, "t", altered),
    ]
    await client.delete_topic("t")
    with pytest.raises(NotFound, match="'t'"):
        await client.delete_topic("t")
    gone = TopicChange(altered.revision + 1, "t", None)
    assert await some_changes(client.watch_partitions(1), 1) == [gone], "what is over is left out"


async def some_changes(changes: AsyncIterator[Any], count: int) -> list[Any]:
    """The first ones."""
    async with asyncio.timeout(30):
        found = [await anext(changes) for _ in range(count)]
    await changes.aclose()  # type: ignore[attr-defined]
    return found


async def test_a_change_of_partitions_tells_these_alone(
    member: MetaMember, client: MetaClient
) -> None:
    node = await client.register_node(NodeRegistration("n1", {}))
    created = await client.create_topic("t", 40, {})
    wish = InSyncChange(created.topic_id, 35, 0, 0, {"n1": node.broker_epoch})
    answer = await member.control().change_in_sync("n1", node.broker_epoch, [wish])
    assert [each.code for each in answer] == ["DONE"]
    _, (now,) = await client.topics()
    assert now.partitions[35].partition_epoch == 1 and now.revision > created.revision
    whole, part = await some_changes(client.watch_partitions(created.revision), 2)
    assert whole == TopicChange(created.revision, "t", now)
    assert part == PartitionsChange(now.revision, "t", now.topic_id, now.partitions[32:])


async def test_nodes_register_with_a_rising_epoch(client: MetaClient) -> None:
    node = NodeRegistration("n1", {"native": "127.0.0.1:9"}, rack="r", version="1")
    first = await client.register_node(node)
    second = await client.register_node(node)
    assert second.broker_epoch > first.broker_epoch > 0
    assert list(await client.nodes()) == [second]


async def test_ids_are_handed_out_once(client: MetaClient) -> None:
    blocks = await asyncio.gather(*(client.allocate_ids("producer", 10) for _ in range(20)))
    assert sorted(number for block in blocks for number in block) == list(range(200))


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.put(b"\x00topic/x", b""),
        lambda c: c.put(b"", b""),
        lambda c: c.put(b"k" * 5000, b""),
        lambda c: c.put(b"k", bytes(600_000)),
        lambda c: c.get(b"\x00topic/x"),
        lambda c: c.create_topic("bad/name", 1, {}),
        lambda c: c.create_topic("t", 0, {}),
        lambda c: c.create_topic("t", 10_001, {}),
        lambda c: c.register_node(NodeRegistration("", {})),
        lambda c: c.allocate_ids("k", 0),
    ],
)
async def test_wrong_arguments_are_refused_by_name(
    client: MetaClient, call: Callable[[MetaClient], Awaitable[object]]
) -> None:
    with pytest.raises(InvalidArgument, match=r"^[a-z_.]+: "):
        await call(client)
    assert await client.put(b"still", b"alive") > 0


async def test_status_tells_who_leads(client: MetaClient, member: MetaMember) -> None:
    status = await client.status()
    assert (status.leader_id, status.member_id) == ("n1", "n1")
    assert status.cluster_id == member.cluster_id
    assert len(member.cluster_id) == 32


# ------------------------------------------------------------ starting and stopping


async def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    one = member_in(tmp_path / "meta")
    await one.start()
    client = one.client()
    await client.put(b"a", b"1")
    topic = await client.create_topic("t", 1, {})
    ids = await client.allocate_ids("p", 5)
    await one.stop()
    two = member_in(tmp_path / "meta")
    await two.start()
    client = two.client()
    row = await client.get(b"a")
    assert row is not None and row.value == b"1"
    assert list((await client.topics())[1]) == [topic]
    assert (await client.allocate_ids("p", 1)).start == ids.stop
    assert two.cluster_id == one.cluster_id
    assert [event.key async for event in _first(client.watch(b"", 1), 1)] == [b"a"]
    await two.stop()


async def _first(events: AsyncIterator, count: int) -> AsyncIterator:  # type: ignore[type-arg]
    async for event in events:
        yield event
        count -= 1
        if not count:
            return


async def test_a_single_member_waits_for_no_election(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Elections, "_election_timeout_s", lambda _: 600.0)
    for _ in range(2):  # on an empty disk, and on its own
        member = member_in(tmp_path)
        async with asyncio.timeout(60):
            await member.start()
        await member.stop()


async def test_a_taken_port_is_told_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            StartupFailed, match=rf"^cannot listen on 127.0.0.1:{port}: Address already in use$"
        ):
            await member_in(tmp_path / "meta", port).start()
    again = member_in(tmp_path / "meta")  # the folder was left free
    await again.start()
    await again.stop()


async def test_a_folder_in_use_is_told_in_one_line(member: MetaMember, tmp_path: Path) -> None:
    with pytest.raises(StartupFailed, match=r"meta.* in use by another process$"):
        await member_in(tmp_path / "meta").start()
    assert await member.client().put(b"a", b"1") > 0


async def test_a_folder_that_cannot_be_made_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupFailed, match=r"file.* cannot be made: Not a directory$"):
        await member_in(tmp_path / "file" / "meta").start()


async def test_damage_is_told_in_one_line(tmp_path: Path) -> None:
    member = member_in(tmp_path / "meta")
    await member.start()
    for _ in range(3):
        await member.client().put(b"a", b"1")
    await member.stop()
    log = tmp_path / "meta" / "raft.log"
    data = bytearray(log.read_bytes())
    data[80] ^= 1
    log.write_bytes(data)
    with pytest.raises(StartupFailed, match=r"is damaged.*restore this member from a backup"):
        await member_in(tmp_path / "meta").start()


async def test_plain_text_is_for_loopback_only(tmp_path: Path) -> None:
    member = MetaMember(
        MetaSettings(port=0), node_id="n1", host="0.0.0.0", data_dir=tmp_path / "meta"
    )
    with pytest.raises(StartupFailed, match="not loopback"):
        await member.start()


def test_another_pysyncobj_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "VERSION", "0.3.18")
    with pytest.raises(StartupFailed, match=r"pysyncobj 0.3.17 is installed.*exactly 0.3.18"):
        engine.load_engine()


def test_a_changed_pysyncobj_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(engine.SOURCE_SHA256, "syncobj.py", "0" * 64)
    with pytest.raises(StartupFailed, match=r"syncobj.py has SHA-256 e8bdf067"):
        engine.load_engine()


def collected(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    data = reader.get_metrics_data()
    assert data is not None
    return {
        metric.name: list(metric.data.data_points)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


async def test_every_metric_is_documented(tmp_path: Path) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    (port,) = free_ports(1)
    member = MetaMember(
        MetaSettings(port=0, raft_port=port, members={"n1": f"127.0.0.1:{port}"}),
        node_id="n1",
        host="127.0.0.1",
        data_dir=tmp_path / "meta",
        meter=provider.get_meter("meta"),
    )
    await member.start()
    found = collected(reader)
    status = member.status()
    assert found["lakemq.meta.raft.term"][0].value == status.term == 1
    assert found["lakemq.meta.raft.commit_index"][0].value == status.commit_index
    assert found["lakemq.meta.raft.applied_index"][0].value == status.applied_index
    assert found["lakemq.meta.raft.lag"][0].value == 0
    assert found["lakemq.meta.raft.voters"][0].value == 1
    assert found["lakemq.meta.watchers"][0].value == 0
    page = await asyncio.to_thread(Path("docs/metaservice.md").read_text)
    table = page.partition("## Metrics")[2].partition("Worth an alarm")[0]
    documented = set(re.findall(r"`([a-z_.]+)`", table)) - {"lakemq.meta.", "le_ms"}
    assert {name.removeprefix("lakemq.meta.") for name in found} == documented
    await member.stop()
    provider.shutdown()


async def test_metrics_can_be_read(tmp_path: Path) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    member = MetaMember(
        MetaSettings(port=0),
        node_id="n1",
        host="127.0.0.1",
        data_dir=tmp_path / "meta",
        meter=provider.get_meter("meta"),
    )
    await member.start()
    for number in range(5):
        await member.client().put(b"k%d" % number, b"v")
    found = collected(reader)
    assert found["lakemq.meta.raft.leader"][0].value == 1
    assert found["lakemq.meta.revision"][0].value == 5
    assert found["lakemq.meta.cache.keys"][0].value == 5
    # The cluster id, the feature level and old topics (there are none) were three more.
    assert found["lakemq.meta.proposals"][0].value == 8
    assert found["lakemq.meta.snapshot.age"][0].value == -1
    within = {p.attributes["le_ms"]: p.value for p in found["lakemq.meta.proposal.within"]}
    assert within["+Inf"] == 8
    await member.stop()
    provider.shutdown()


# ------------------------------------------------------------ the wire


async def test_a_command_sent_twice_is_applied_once(member: MetaMember) -> None:
    async with grpc.aio.insecure_channel(member.addresses()["meta"]) as channel:
        cluster, kv = rpc.ClusterStub(channel), rpc.KvStub(channel)
        client_id = b"\x07" * 16
        await cluster.OpenSession(pb.OpenSessionRequest(client_id=client_id))
        once = pb.Once(client_id=client_id, sequence=1)
        request = pb.PutRequest(key=b"a", value=b"1", once=once)
        first, second = await asyncio.gather(kv.Put(request), kv.Put(request))
        assert first.revision == second.revision
    row = await member.client().get(b"a")
    assert row is not None and row.version == 1


async def test_a_lost_answer_is_asked_for_again(tmp_path: Path) -> None:
    """A proxy drops the connection after the request went through; the retry finds the answer."""
    member = member_in(tmp_path / "meta")
    await member.start()
    host, port = member.addresses()["meta"].rsplit(":", 1)
    proxy = _CuttingProxy(host, int(port))
    await proxy.start()
    client = RemoteClient([f"127.0.0.1:{proxy.port}"], attempt_s=1.0)
    await client.put(b"warm", b"up")
    revisions = []
    for number in range(10):
        proxy.cut_next_answer = number % 2 == 1
        revisions.append(await client.put(b"counter", b"%d" % number))
    assert proxy.cuts >= 5
    row = await client.get(b"counter")
    assert row is not None
    assert row.version == 10, "a retry was applied twice"
    assert revisions == list(range(revisions[0], revisions[0] + 10))
    await client.close()
    await proxy.stop()
    await member.stop()


async def test_a_write_that_found_no_connection_surely_did_not_happen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rpc.KvStub(channel).Put(pb.PutRequest(key=b"a"), timeout=60)
    error, _ = error_of_failure(caught.value)
    assert isinstance(error, NoLeader)
    assert error.definite
    assert re.fullmatch(f"no member can be reached: .*{port}.*refused.*", str(error))


async def test_a_message_too_large_is_refused(member: MetaMember) -> None:
    async with grpc.aio.insecure_channel(member.addresses()["meta"]) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rpc.KvStub(channel).Put(pb.PutRequest(key=b"a", value=bytes(5_000_000)))
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await member.client().put(b"a", b"1") > 0


def _has_headers(data: bytes) -> bool:
    """Whether an answer begins or ends in these HTTP/2 frames; others are settings and pings."""
    at = 0
    while at + 9 <= len(data):
        if data[at + 3] == 1:
            return True
        at += 9 + int.from_bytes(data[at : at + 3], "big")
    return False


class _CuttingProxy:
    """Passes bytes on, and on demand cuts the connection when the next answer comes."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._tasks: set[asyncio.Task[None]] = set()
        self.cut_next_answer = False
        self.cuts = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(*self._target)

        async def pump(
            source: asyncio.StreamReader, sink: asyncio.StreamWriter, answers: bool
        ) -> None:
            try:
                while data := await source.read(65536):
                    if answers and self.cut_next_answer and _has_headers(data):
                        self.cut_next_answer = False
                        self.cuts += 1
                        break
                    sink.write(data)
                    await sink.drain()
            except OSError:
                pass
            finally:
                writer.close()
                up_writer.close()

        for task in (
            asyncio.create_task(pump(reader, up_writer, False)),
            asyncio.create_task(pump(up_reader, writer, True)),
        ):
            self._tasks.add(task)

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
