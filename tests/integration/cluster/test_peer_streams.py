"""Goal: brokers talk to each other as long as both are there, find each other again, and believe
nobody else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from lakemq.broker_core.api.errors import LakeMQError, OutcomeUnknown, StartupError, Unavailable
from lakemq.broker_core.cluster import peer_server, peers, streams
from lakemq.broker_core.cluster.identity import Peer, PeerBook, PeerIdentity, PeerTls
from lakemq.broker_core.cluster.local.calls import open_call
from lakemq.broker_core.cluster.local.sockets import ProcessSockets, folder_of
from lakemq.broker_core.cluster.peer_server import SERVICE, STREAMS_PER_PEER_MAX, PeerServer
from lakemq.broker_core.cluster.peers import Peers
from lakemq.broker_core.cluster.replica_frames import SlotAsk, SlotOpen, SlotSend
from lakemq.broker_core.cluster.streams import (
    CREDIT_BYTES,
    ByteStream,
    FollowerStream,
    LeaderStream,
)
from tests.support.meta.group import Certificates

TOPIC_ID = "0f" * 16
CLUSTER = "c1"


@pytest.fixture(params=["gRPC", "sockets"])
def way(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """How processes of one node reach each other: over gRPC, as other nodes do, or over sockets."""
    by_socket = request.param == "sockets"
    used: list[bool] = []

    async def noted(*arguments: Any) -> Any:
        found = await open_call(*arguments)
        used.append(found is not None)
        return found

    monkeypatch.setattr(Node, "folder", tmp_path if by_socket else None)
    monkeypatch.setattr(peers, "open_call", noted)
    yield
    assert any(used) == by_socket


class Node:
    """One broker's end of the wire."""

    folder: Path | None = None
    """Data folder of node `n1`, whose processes they all are then."""

    def __init__(
        self, name: str, cluster: dict[str, Node], tls: PeerTls | None = None, epoch: int = 1
    ) -> None:
        self.name, self.epoch, self.port = name, epoch, 0
        self.identity = PeerIdentity(name, CLUSTER, lambda: self.epoch)
        book = PeerBook(self.identity, lambda: {each.name: 1 for each in cluster.values()})
        self.tls = tls
        self.sockets = None if self.folder is None else self._sockets(name, self.folder)
        self.peers = Peers(
            self.identity, book, lambda node: f"127.0.0.1:{cluster[node].port}", tls, self.sockets
        )
        self.book = book
        self.followers: list[FollowerStream] = []
        self.serve: Callable[[PeerServer], None] = lambda server: server.serve_followers(self._lead)
        cluster[name] = self

    def _sockets(self, name: str, whole: Path) -> ProcessSockets:
        number = int(name.partition(".p")[2] or "1")
        folder = folder_of(whole, number)
        folder.mkdir(parents=True, exist_ok=True)
        return ProcessSockets(name, folder, number)

    async def _lead(self, stream: FollowerStream) -> None:
        """Answer each ask with its own offset."""
        self.followers.append(stream)
        while ask := await stream.ask():
            for each in ask.asks:
                stream.send(SlotSend(each.slot, each.offset, b"%d" % each.offset))

    async def start(self) -> None:
        self.server = PeerServer(
            self.identity, self.book, host="127.0.0.1", port=self.port, tls=self.tls,
            sockets=self.sockets,
        )  # fmt: skip
        self.serve(self.server)
        await self.server.start()
        self.port = int(self.server.addresses()[0].rpartition(":")[2])

    async def stop(self) -> None:
        await self.peers.close()
        await self.server.stop()


@asynccontextmanager
async def running(*nodes: Node) -> AsyncIterator[None]:
    for node in nodes:
        await node.start()
    try:
        yield
    finally:
        for node in nodes:
            await node.stop()


async def until(condition: Callable[[], bool]) -> None:
    while True:
        if condition():
            return
        await asyncio.sleep(0.01)


class Follower:
    """Asks for one offset after the other."""

    def __init__(self) -> None:
        self.got: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        self.streams = 0
        self.next = 0

    async def follow(self, stream: LeaderStream) -> None:
        self.streams += 1
        stream.open(SlotOpen(1, TOPIC_ID, 0, 3))
        stream.ask(SlotAsk(1, self.next, -1, 0))
        while message := await stream.receive():
            for each in message.sends:
                self.got.put_nowait((each.base, bytes(each.batches)))
                stream.free(len(each.batches))
                self.next = each.base + 1
                stream.ask(SlotAsk(1, self.next, -1, 0))

    async def wait(self) -> tuple[int, bytes]:
        async with asyncio.timeout(10):
            return await self.got.get()


@pytest.mark.usefixtures("way")
async def test_a_stream_goes_on_after_its_leader_was_restarted() -> None:
    cluster: dict[str, Node] = {}
    leader, node = Node("n1", cluster), Node("n1.p2", cluster)
    async with running(leader, node):
        follower = Follower()
        end = node.peers.follow("n1", follower.follow)
        for offset in range(20):
            assert await follower.wait() == (offset, b"%d" % offset)
        assert leader.followers[0].peer == Peer("n1.p2", 1)
        await leader.server.stop()
        await leader.start()
        while follower.streams < 2:
            await follower.wait()
        await follower.wait()
        end()
        while follower.got.qsize():
            follower.got.get_nowait()
        await asyncio.sleep(0.05)
        assert follower.got.empty()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    "error",
    [
        asyncio.CancelledError(),  # as gRPC raises it in a write of a call that ends meanwhile
        asyncio.InvalidStateError("RPC already finished."),  # and just behind its end
        ValueError("a defect of ours"),
    ],
    ids=lambda each: type(each).__name__,
)
async def test_a_stream_goes_on_whatever_ended_the_last_one(error: BaseException) -> None:
    cluster: dict[str, Node] = {}
    leader, node = Node("n1", cluster), Node("n1.p2", cluster)
    talks = 0
    again = asyncio.Event()

    async def talk(stream: ByteStream) -> None:
        nonlocal talks
        talks += 1
        if talks < 3:
            raise error
        again.set()
        await stream.read()

    async with running(leader, node):
        end = node.peers.keep("n1", "Replicate", talk)
        async with asyncio.timeout(10):
            await again.wait()
        end()
        await asyncio.sleep(0.2)
        assert talks == 3, "its end ends it"


@pytest.mark.usefixtures("way")
async def test_streams_are_opened_again_after_a_new_registration() -> None:
    cluster: dict[str, Node] = {}
    leader, node = Node("n1", cluster), Node("n1.p2", cluster)
    async with running(leader, node), asyncio.timeout(10):
        follower = Follower()
        node.peers.follow("n1", follower.follow)
        await follower.wait()
        node.epoch = 7
        node.peers.renew()
        await until(lambda: follower.streams == 2)
        await until(lambda: len(leader.followers) == 2)
    assert [each.peer.broker_epoch for each in leader.followers] == [1, 7]


@pytest.mark.usefixtures("way")
async def test_a_stream_opened_while_its_node_registers_says_the_new_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the other node would answer nothing on it that asks whose epoch it is."""
    cluster: dict[str, Node] = {}
    leader, node = Node("n1", cluster), Node("n1.p2", cluster)
    check = node.book.check_callee

    def registers_first(callee: str, metadata: Any) -> None:
        """Accepted, with the epoch of before."""
        if node.epoch == 1:
            node.epoch = 7
            node.peers.renew()
        check(callee, metadata)

    monkeypatch.setattr(node.book, "check_callee", registers_first)
    async with running(leader, node), asyncio.timeout(10):
        follower = Follower()
        node.peers.follow("n1", follower.follow)
        await until(lambda: [each.peer.broker_epoch for each in leader.followers][-1:] == [7])
        assert await follower.wait() == (0, b"0")


async def test_both_sides_prove_their_names_with_certificates(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)

    def tls(name: str) -> PeerTls:
        files = certificates.sign(name, "127.0.0.1")
        return PeerTls(
            *(Path(files[key]).read_bytes() for key in ("tls_cert", "tls_key", "tls_ca"))
        )

    cluster: dict[str, Node] = {}
    leader = Node("n1", cluster, tls("n1"))
    node = Node("n1.p2", cluster, tls("n1.p2"))
    liar = Node("n3", cluster, tls("n1.p2"))  # says that it is n3
    async with running(leader, node, liar):
        follower = Follower()
        node.peers.follow("n1", follower.follow)
        assert await follower.wait() == (0, b"0")
        with pytest.raises(Unavailable, match="does not name 'n3'"):
            await liar.peers.call("n1", "Replicate", b"")
        with pytest.raises(Unavailable):  # gRPC's own check of the server's certificate
            await node.peers.call("n3", "Replicate", b"")


async def never(peer: Peer, request: bytes) -> bytes:
    raise AssertionError(f"{peer} is answered")


async def _refusal(channel: grpc.aio.Channel, metadata: tuple[tuple[str, str], ...]) -> str:
    """What a caller that sends bytes at once is told."""
    for _ in range(20):
        call = channel.stream_stream(SERVICE + "Replicate")(metadata=metadata)
        # where the refusal came first, or even before this is written
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await call.write(b"\xff" * 1000)
        assert await call.code() is not grpc.StatusCode.OK
        said = await call.details()
        # gRPC's own words, where its write failed between the refusal and hearing of it.
        if "Internal error from Core" not in said:
            break
    return said


async def test_a_caller_is_refused_before_anything_of_it_is_read() -> None:
    cluster: dict[str, Node] = {}
    leader, node = Node("n1", cluster), Node("n1.p2", cluster)
    leader.serve = lambda server: (
        server.serve_followers(leader._lead),
        server.serve_call("Read", never),
    )
    async with running(leader, node):
        cases: list[tuple[tuple[tuple[str, str], ...], str]] = [
            ((), "belongs to cluster ''"),
            (PeerIdentity("n1.p2", "c2", lambda: 1).metadata(), "belongs to cluster 'c2'"),
            (PeerIdentity("n9", CLUSTER, lambda: 1).metadata(), "no node 'n9'"),
            (PeerIdentity("n1.p2", CLUSTER, lambda: 0).metadata(), "broker epoch 0; 1 is known"),
        ]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{leader.port}") as channel:
            for metadata, reason in cases:
                assert reason in await _refusal(channel, metadata)
                # Of a single request gRPC would take all, were it not read as a stream.
                call = channel.stream_stream(SERVICE + "Read")(metadata=metadata)
                async with asyncio.timeout(10):
                    assert reason in await call.details()
            unknown = channel.stream_stream(SERVICE + "Channel")(metadata=node.identity.metadata())
            assert await unknown.code() is grpc.StatusCode.UNIMPLEMENTED
        assert leader.followers == []


async def test_calls_that_are_refused_do_not_fill_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "lakemq.broker_core.cluster.peer_server")
    cluster: dict[str, Node] = {}
    leader = Node("n1", cluster)
    async with (
        running(leader),
        grpc.aio.insecure_channel(f"127.0.0.1:{leader.port}") as channel,
    ):
        stranger = PeerIdentity("n9", CLUSTER, lambda: 1).metadata()
        began = asyncio.get_running_loop().time()
        for _ in range(100):
            call = channel.stream_stream(SERVICE + "Replicate")(metadata=stranger)
            assert await call.code() is grpc.StatusCode.UNAVAILABLE
        took_s = asyncio.get_running_loop().time() - began
        assert 1 <= len(caplog.messages) <= 1 + took_s
        monkeypatch.setattr(peer_server, "_LINE_S", 0)
        call = channel.stream_stream(SERVICE + "Replicate")(metadata=stranger)
        await call.code()
        assert "(and " in caplog.messages[-1] and "more)" in caplog.messages[-1]


async def test_a_node_may_have_a_few_streams_only() -> None:
    cluster: dict[str, Node] = {}
    leader, node = Node("n1", cluster), Node("n1.p2", cluster)
    async with running(leader, node):

        async def wait(peer: Peer, request: bytes) -> bytes:
            await asyncio.Event().wait()
            return b""

        leader.server.serve_call("Read", wait)
        calls = [
            asyncio.ensure_future(node.peers.call("n1", "Read", b"x"))
            for _ in range(STREAMS_PER_PEER_MAX)
        ]
        await until(lambda: leader.server._open["n1.p2"] == STREAMS_PER_PEER_MAX)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{leader.port}") as channel:
            call = channel.stream_stream(SERVICE + "Replicate")(metadata=node.identity.metadata())
            assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for each in calls:
            each.cancel()


async def test_a_newer_stream_takes_the_place_of_one_that_was_given_up() -> None:
    """The node that gave it up may be cut off: its leader hears of it by the next stream only."""
    cluster: dict[str, Node] = {}
    leader, node = Node("n1", cluster), Node("n1.p2", cluster)
    async with (
        running(leader, node),
        grpc.aio.insecure_channel(f"127.0.0.1:{leader.port}") as channel,
    ):
        calls = []
        for _ in range(3):
            call = channel.stream_stream(SERVICE + "Replicate")(metadata=node.identity.metadata())
            await call.initial_metadata()
            calls.append(call)
        for call in calls[:2]:
            assert await call.code() is grpc.StatusCode.UNAVAILABLE
            assert "a newer stream" in await call.details()
        await until(lambda: leader.server._open == {"n1.p2": 1})
        assert not calls[2].done()


async def test_bad_bytes_end_the_stream() -> None:
    cluster: dict[str, Node] = {}
    leader, node = Node("n1", cluster), Node("n1.p2", cluster)
    async with (
        running(leader, node),
        grpc.aio.insecure_channel(f"127.0.0.1:{leader.port}") as channel,
    ):
        call = channel.stream_stream(SERVICE + "Replicate")(metadata=node.identity.metadata())
        await call.write(b"\xff" * 10)
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "not a ReplicaAsk" in await call.details()


@pytest.mark.usefixtures("way")
async def test_a_leader_sends_no_more_than_the_credit() -> None:
    cluster: dict[str, Node] = {}
    leader, node = Node("n1", cluster), Node("n1.p2", cluster)
    batch = bytes(1024 * 1024)
    sent = 0
    more = asyncio.Event()

    async def lead(stream: FollowerStream) -> None:
        nonlocal sent

        def push() -> None:
            nonlocal sent
            while stream.room_bytes > 0:
                stream.send(SlotSend(1, sent, batch))
                sent += 1
            more.set()

        stream.on_credit = push
        while await stream.ask():
            pass

    leader.serve = lambda server: server.serve_followers(lead)
    received = 0
    free = asyncio.Event()

    async def follow(stream: LeaderStream) -> None:
        nonlocal received
        held = 0
        while message := await stream.receive():
            size = sum(len(each.batches) for each in message.sends)
            received, held = received + size, held + size
            if free.is_set():
                stream.free(held)
                held = 0

    async with running(leader, node):
        node.peers.follow("n1", follow)
        async with asyncio.timeout(10):
            await until(lambda: received >= CREDIT_BYTES)
            assert (sent, received) == (CREDIT_BYTES // len(batch), CREDIT_BYTES)
            free.set()
            await until(lambda: received >= 5 * CREDIT_BYTES)
    assert sent * len(batch) <= received + CREDIT_BYTES


@pytest.mark.usefixtures("way")
async def test_a_leader_that_is_silent_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was stopped keeps its connection and says nothing."""
    monkeypatch.setattr(streams, "SILENCE_S", 0.05)
    cluster: dict[str, Node] = {}
    leader, node = Node("n1", cluster), Node("n1.p2", cluster)
    ended: list[str] = []

    async def silent(peer: Peer, stream: ByteStream) -> None:
        await asyncio.Event().wait()

    leader.serve = lambda server: server.serve_stream("Replicate", silent)

    async def follow(stream: LeaderStream) -> None:
        try:
            await stream.receive()
        except LakeMQError as error:
            ended.append(str(error))
            raise

    async with running(leader, node), asyncio.timeout(10):
        node.peers.follow("n1", follow)
        await until(lambda: len(ended) >= 2)
    assert ended[0] == "n1 said nothing for 0.05 s"


@pytest.mark.usefixtures("way")
async def test_an_idle_stream_says_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "TURN_S", 0.01)
    cluster: dict[str, Node] = {}
    leader, node = Node("n1", cluster), Node("n1.p2", cluster)
    turns: list[int] = []

    async def follow(stream: LeaderStream) -> None:
        while message := await stream.receive():
            turns.append(message.turn)

    async with running(leader, node), asyncio.timeout(10):
        node.peers.follow("n1", follow)
        await until(lambda: len(turns) >= 5)
    assert turns[:5] == [1, 2, 3, 4, 5]


async def test_calls_answer_and_report_why_not() -> None:
    cluster: dict[str, Node] = {}
    leader, node = Node("n1", cluster), Node("n1.p2", cluster, epoch=0)

    async def answer(peer: Peer, request: bytes) -> bytes:
        if not request:
            raise Unavailable("not now")
        return peer.node_id.encode() + request

    leader.serve = lambda server: server.serve_call("Read", answer)
    async with running(leader, node):
        with pytest.raises(Unavailable, match="has not registered"):
            await node.peers.call("n1", "Read", b"x")
        node.epoch = 1
        assert await node.peers.call("n1", "Read", b"x") == b"n1.p2x"
        with pytest.raises(Unavailable, match="not now"):
            await node.peers.call("n1", "Read", b"")
    with pytest.raises(Unavailable, match="failed to connect"):
        await node.peers.call("n1", "Read", b"x")


async def test_a_call_without_an_answer_may_have_been_carried_out() -> None:
    cluster: dict[str, Node] = {}
    slow, node = Node("n1", cluster), Node("n1.p2", cluster)
    done: list[bytes] = []

    async def answer(peer: Peer, request: bytes) -> bytes:
        done.append(request)
        if request == b"defect":
            raise ValueError("a defect")
        await asyncio.Event().wait()
        return b""

    slow.serve = lambda server: server.serve_call("Read", answer)
    async with running(node):
        async with running(slow):
            with pytest.raises(OutcomeUnknown, match="Deadline Exceeded"):
                await node.peers.call("n1", "Read", b"slow", timeout_s=0.5)
            with pytest.raises(OutcomeUnknown, match="n1: "):
                await node.peers.call("n1", "Read", b"defect")
            ended = asyncio.ensure_future(node.peers.call("n1", "Read", b"ended"))
            await until(lambda: len(done) == 3)
        with pytest.raises(OutcomeUnknown, match="n1: "):
            await ended
    assert done == [b"slow", b"defect", b"ended"]


async def test_a_name_is_not_spoken_for_by_who_took_its_address() -> None:
    cluster: dict[str, Node] = {}
    leader, node, other = Node("n1", cluster), Node("n1.p2", cluster), Node("n3", cluster)
    async with running(node, other):
        leader.port = other.port
        with pytest.raises(LakeMQError, match="at the address of 'n1', node 'n3'"):
            other.server.serve_call("Read", _echo)
            await node.peers.call("n1", "Read", b"x")


async def _echo(peer: Peer, request: bytes) -> bytes:
    return request


async def test_plain_text_is_for_loopback_and_ports_for_one() -> None:
    cluster: dict[str, Node] = {}
    node = Node("n1", cluster)
    async with running(node):
        taken = PeerServer(node.identity, node.book, host="127.0.0.1", port=node.port, tls=None)
        with pytest.raises(StartupError, match=r"cluster\.peer_port: cannot listen"):
            await taken.start()
    everywhere = PeerServer(node.identity, node.book, host="0.0.0.0", port=0, tls=None)
    with pytest.raises(StartupError, match="not loopback"):
        await everywhere.start()
