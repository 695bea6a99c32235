"""Goal: processes of a node hear each other over sockets that no other user can use, whatever is
written there; what gRPC's streams do that have the same users is tested beside them.

Method: the server and the calls of one event loop, and plain sockets that say what they should not.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lakemq.broker_core.api.errors import Unavailable
from lakemq.broker_core.cluster.identity import Peer, PeerBook, PeerIdentity
from lakemq.broker_core.cluster.local import calls, messages
from lakemq.broker_core.cluster.local.calls import open_call
from lakemq.broker_core.cluster.local.messages import LAST, LENGTH, Messages
from lakemq.broker_core.cluster.local.sockets import ProcessSockets, folder_of
from lakemq.broker_core.cluster.peer_server import STREAMS_PER_PEER_MAX, PeerServer
from lakemq.broker_core.cluster.peers import Peers
from lakemq.broker_core.cluster.streams import ByteStream

CLUSTER = "c1"
WAIT_S = 20.0
REGISTERED = {"n1": 1, "n1.p2": 1, "n2": 1}


def identity(name: str, cluster: str = CLUSTER, epoch: int = 1) -> PeerIdentity:
    return PeerIdentity(name, cluster, lambda: epoch)


class Served:
    """Process `n1.p2` of the node whose data folder is `whole`; sends back what it is sent."""

    def __init__(self, whole: Path) -> None:
        folder = folder_of(whole, 2)
        folder.mkdir(parents=True, exist_ok=True)
        self.whole = whole
        self.sockets = ProcessSockets("n1.p2", folder, 2)
        own = identity("n1.p2")
        self.server = PeerServer(
            own, PeerBook(own, lambda: REGISTERED), host="127.0.0.1", port=0, tls=None,
            sockets=self.sockets,
        )  # fmt: skip
        self.server.serve_stream("Echo", self._echo)
        self.streams: list[Peer] = []

    async def _echo(self, peer: Peer, stream: ByteStream) -> None:
        self.streams.append(peer)
        while (data := await stream.read()) is not None:
            if data == b"fail":
                raise Unavailable("not now")
            if data == b"defect":
                raise ZeroDivisionError("a defect of ours")
            await stream.write(data)

    async def called(self, caller: PeerIdentity, method: str = "Echo") -> Messages:
        found = await open_call(self.sockets.own, method, caller.metadata())
        assert found is not None
        assert found[1] == dict(identity("n1.p2").metadata())
        return found[0]


@asynccontextmanager
async def served(whole: Path) -> AsyncIterator[Served]:
    found = Served(whole)
    await found.server.start()
    try:
        async with asyncio.timeout(WAIT_S):
            yield found
    finally:
        await found.server.stop()


async def test_messages_of_all_sizes_come_back_whole_and_in_order(tmp_path: Path) -> None:
    async with served(tmp_path) as there:
        stream = await there.called(identity("n1"))
        sizes = [0, 1, 2, 65_531, 65_532, 65_533, 262_144, 5_000_000, 3, 20_000_000, 7]
        sent = [os.urandom(size) for size in sizes]

        async def send() -> None:
            for data in sent:
                await stream.write(data)

        sending = asyncio.ensure_future(send())
        for data in sent:
            assert await stream.read() == data
        await sending
        assert there.streams == [Peer("n1", 1)]
        stream.close()


async def test_who_does_not_read_is_not_sent_all_into_memory(tmp_path: Path) -> None:
    async with served(tmp_path) as there:
        stream = await there.called(identity("n1"))
        block = bytes(1024 * 1024)
        written = 0

        async def send() -> None:
            nonlocal written
            for _ in range(64):
                await stream.write(block)
                written += 1

        sending = asyncio.ensure_future(send())
        before = -1
        while written != before:
            before = written
            await asyncio.sleep(0.2)
        assert 0 < written < 32
        for _ in range(64):
            assert await stream.read() == block
        await sending
        stream.close()


@pytest.mark.parametrize(
    ("caller", "method", "why"),
    [
        (identity("n1", "c2"), "Echo", "belongs to cluster 'c2'"),
        (identity("n1", epoch=0), "Echo", "broker epoch 0; 1 is known"),
        (identity("n9"), "Echo", "does not name 'n9'"),
        (identity("n2"), "Echo", "does not name 'n2'"),
        (identity("n1.p2"), "Echo", "no node 'n1.p2'"),
        (identity("n1"), "Else", "no stream 'Else'"),
    ],
    ids=["cluster", "epoch", "stranger", "another node", "itself", "method"],
)
async def test_who_is_none_of_the_node_is_told_why_it_is_refused(
    tmp_path: Path, caller: PeerIdentity, method: str, why: str
) -> None:
    async with served(tmp_path) as there:
        with pytest.raises(Unavailable, match=why):
            await there.called(caller, method)
        assert not there.streams
        (await there.called(identity("n1"))).close()


def hello(**fields: object) -> bytes:
    data = json.dumps({**dict(identity("n1").metadata()), "method": "Echo", **fields}).encode()
    return LENGTH.pack(len(data)) + data


@pytest.mark.parametrize(
    "said",
    [
        b"\xff" * 100,
        LENGTH.pack(5_000) + bytes(5_000),
        LENGTH.pack(2) + b"[]",
        LENGTH.pack(4) + b"\xff\xfe{}",
        hello(method=7),
        hello(method=None),
        hello() + LENGTH.pack(5_000) + bytes(5_000),
        LENGTH.pack(LAST | 3) + b"end",
        b"",
        hello()[:-1],
    ],
    ids=["noise", "long", "list", "text", "number", "null", "early", "end", "nothing", "half"],
)
async def test_what_is_no_greeting_ends_its_connection_alone(
    tmp_path: Path, said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path) as there:
        good = await there.called(identity("n1"))
        reader, writer = await asyncio.open_unix_connection(str(there.sockets.own))
        writer.write(said)
        writer.write_eof()
        # What is said back is read to its end.
        await reader.read()
        writer.close()
        if said.startswith(hello()):
            # The newer stream of the same process took the place of the older one for a moment.
            good = await there.called(identity("n1"))
        await good.write(b"still here")
        assert await good.read() == b"still here"
        good.close()
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


async def test_who_says_nothing_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_HELLO_S", 0.1)
    async with served(tmp_path) as there:
        reader, writer = await asyncio.open_unix_connection(str(there.sockets.own))
        assert await reader.read() == b""
        writer.close()


async def test_a_process_has_a_few_streams_and_a_node_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "_CALLS_MAX", STREAMS_PER_PEER_MAX + 1)
    async with served(tmp_path) as there:
        names = [f"Echo{number}" for number in range(STREAMS_PER_PEER_MAX + 1)]
        for name in names:
            there.server.serve_stream(name, there._echo)
        streams = [await there.called(identity("n1"), name) for name in names[:-1]]
        with pytest.raises(Unavailable, match="calls open, the most it may have"):
            await there.called(identity("n1"), names[-1])
        idle = [await asyncio.open_unix_connection(str(there.sockets.own)) for _ in range(2)]
        assert b"the most there may be" in await idle[1][0].read()
        for _, writer in idle:
            writer.close()
        for stream in streams:
            stream.close()


async def test_a_newer_stream_ends_the_older(tmp_path: Path) -> None:
    async with served(tmp_path) as there:
        older, newer = [await there.called(identity("n1")) for _ in range(2)]
        with pytest.raises(Unavailable, match="a newer stream"):
            await older.read()
        with pytest.raises(Unavailable, match="a newer stream"):
            await older.write(b"x")
        await newer.write(b"x")
        assert await newer.read() == b"x"
        newer.close()


async def test_why_a_stream_has_ended_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path) as there:
        stream = await there.called(identity("n1"))
        await stream.write(b"fail")
        with pytest.raises(Unavailable, match="not now"):
            await stream.read()
        stream = await there.called(identity("n1"))
        await stream.write(b"defect")
        assert await stream.read() is None
        assert "a call of another process failed" in caplog.text
        stream = await there.called(identity("n1"))
        await there.server.stop()
        assert await stream.read() is None
    assert not there.sockets.own.exists()


async def test_the_socket_is_for_this_user_and_replaces_one_that_was_left(tmp_path: Path) -> None:
    left = folder_of(tmp_path, 2) / "peer.sock"
    left.parent.mkdir(parents=True)
    before = socket.socket(socket.AF_UNIX)
    before.bind(str(left))
    before.close()
    async with served(tmp_path) as there:
        assert stat.S_IMODE(there.sockets.own.stat().st_mode) == 0o600
        (await there.called(identity("n1"))).close()


async def test_a_path_that_is_too_long_for_an_address_will_do(tmp_path: Path) -> None:
    whole = tmp_path / ("x" * 100) / ("y" * 100)
    async with served(whole) as there:
        (await there.called(identity("n1"))).close()


@pytest.mark.parametrize("left", [None, "file", "folder"])
async def test_without_a_socket_processes_use_grpc(tmp_path: Path, left: str | None) -> None:
    """`left`: what keeps the process from listening; None: it is an older build."""
    there = Served(tmp_path)
    if left == "folder":
        there.sockets.own.mkdir()
    elif left is None:
        there.server._local = None
    await there.server.start()
    own = identity("n1")
    address = there.server.addresses()[0]
    peers = Peers(
        own, PeerBook(own, lambda: REGISTERED), lambda node: address, None,
        ProcessSockets("n1", tmp_path, 1),
    )  # fmt: skip
    if left == "file":
        there.sockets.own.unlink()
        there.sockets.own.write_bytes(b"")
    answered: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

    async def talk(stream: ByteStream) -> None:
        await stream.write(b"over gRPC")
        answered.set_result(await stream.read())
        await asyncio.Event().wait()

    try:
        peers.keep("n1.p2", "Echo", talk)
        assert await asyncio.wait_for(answered, WAIT_S) == b"over gRPC"
    finally:
        await peers.close()
        await there.server.stop()


def test_a_process_knows_where_the_others_of_its_node_listen(tmp_path: Path) -> None:
    second = ProcessSockets("n1.p2", tmp_path / "processes" / "2", 2)
    first = ProcessSockets("n1", tmp_path, 1)
    for sockets in (first, second):
        assert sockets.of("n1") == tmp_path / "peer.sock"
        assert sockets.of("n1.p2") == tmp_path / "processes" / "2" / "peer.sock"
        assert sockets.of("n1.p10") == tmp_path / "processes" / "10" / "peer.sock"
        for other in ("n2", "n2.p2", "n1.p", "n1.px", "n1.p123", "n1p2", ""):
            assert sockets.of(other) is None
    assert first.own == tmp_path / "peer.sock"
    assert second.own == second.of("n1.p2")


class Transport(asyncio.Transport):
    """Takes what is written; never full."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def close(self) -> None:
        pass


async def test_any_cut_of_the_bytes_gives_the_same_messages() -> None:
    sent = [b"", b"a", b"bc" * 300, b"", b"d"]
    wire = b"".join(struct.pack("<I", len(each)) + each for each in sent)
    for size in (1, 2, 3, 4, 5, 7, 64, 601, len(wire)):
        found = Messages(1024)
        found.connection_made(Transport())
        for at in range(0, len(wire), size):
            found.data_received(wire[at : at + size])
        assert [await found.read() for _ in sent] == sent
        found.connection_lost(None)
        assert await found.read() is None


async def test_reading_stops_while_much_is_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "_AHEAD_BYTES", 1000)
    transport = Transport()
    found = Messages(1024)
    found.connection_made(transport)
    wire = struct.pack("<I", 400) + bytes(400)
    found.data_received(2 * wire)
    assert transport.reads
    found.data_received(wire)
    assert not transport.reads
    await found.read()
    assert not transport.reads
    await found.read()
    assert transport.reads
