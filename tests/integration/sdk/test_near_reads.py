"""Goal: a stream is read from the follower near by whenever metadata comes, and again once a
follower that could not serve may be asked again.

Method: two nodes on gRPC servers of this process, one of which follows in the client's rack; the
follower becomes known at moments that the test chooses.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

import lakemq
from lakemq.broker_core.api.errors import NotLeader
from lakemq.plugins.native.proto import metadata_pb2, native_pb2
from lakemq.plugins.native.proto.metadata_pb2_grpc import (
    MetadataServicer,
    add_MetadataServicer_to_server,
)
from lakemq.plugins.native.proto.native_pb2_grpc import (
    NativeServicer,
    add_NativeServicer_to_server,
)
from lakemq.plugins.native.sdk.blocking.fetching import SyncRoutes
from lakemq.plugins.native.sdk.net import cluster_view
from lakemq.plugins.native.sdk.net.cluster_view import ReadRoute
from lakemq.plugins.native.sdk.net.routes import Routes
from lakemq.plugins.native.sdk.net.tls import open_async_channel, open_channel

WAIT_S = 20.0


class Node(MetadataServicer, NativeServicer):
    """Beats with metadata and answers each Fetch once, with an end offset that tells who it is."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.address = ""
        self.near = ""
        """Address of the follower, once it is in sync."""
        self.led_at: list[str] = []
        """Addresses at which each Fetch is told in turn that node `b` leads."""
        self.fetches = 0
        self.moved_from = ""
        """Address at which metadata says that node `b` leads."""

    async def WatchMetadata(
        self, request: Any, context: Any
    ) -> AsyncIterator[metadata_pb2.MetadataUpdate]:
        whole, told = True, ""
        while True:
            update = metadata_pb2.MetadataUpdate(node_id="a", whole=whole, next_within_ms=100)
            if whole or told != self.near:
                update.nodes.add(node_id="a", address=self.address, state="active", rack="x")
                partition = update.topics.add(name="t").partitions.add(leader="a", leader_epoch=1)
                partition.in_sync.append("a")
                if self.moved_from:
                    update.nodes.add(node_id="b", address=self.moved_from, state="active")
                    partition.leader = "b"
                if self.near:
                    update.nodes.add(node_id="b", address=self.near, state="active", rack="y")
                    partition.in_sync.append("b")
            whole, told = False, self.near
            yield update
            await asyncio.sleep(0.02)

    async def Fetch(self, request: Any, context: Any) -> AsyncIterator[native_pb2.FetchResponse]:
        self.fetches += 1
        if self.led_at:
            told = {"": NotLeader.code, "-leader": "b", "-leader-epoch": "1"}
            told["-leader-address"] = self.led_at.pop(0)
            trailers = tuple((f"lakemq-error{each}", told[each]) for each in [""])
            trailers += tuple((f"lakemq{each}", told[each]) for each in told if each)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "b leads", trailers)
        yield native_pb2.FetchResponse(next_offset=self.offset)
        await asyncio.Event().wait()


class Cluster:
    def __init__(self, leader: Node, follower: Node, routes: Routes) -> None:
        self.leader, self.follower, self.routes = leader, follower, routes
        self.home = open_channel(leader.address, None)
        self.blocking = SyncRoutes(self.home, lambda address: open_channel(address, None))
        self.blocking.follow(routes)
        self.call: Any = None

    def tell_of_follower(self) -> None:
        self.leader.near = self.follower.address

    async def until(self, there: ReadRoute) -> None:
        async with asyncio.timeout(WAIT_S):
            while self.routes.read_route("t", 0) != there:  # noqa: ASYNC110  told by the leader
                await asyncio.sleep(0.01)

    async def until_near(self) -> None:
        await self.until(ReadRoute(self.follower.address, 1, True))


@asynccontextmanager
async def cluster() -> AsyncIterator[Cluster]:
    nodes = [Node(1), Node(2)]
    servers = []
    for node in nodes:
        server = grpc.aio.server()
        add_MetadataServicer_to_server(node, server)
        add_NativeServicer_to_server(node, server)
        node.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        servers.append(server)
    home = open_async_channel(nodes[0].address, None)
    routes = Routes(
        home, lambda address: open_async_channel(address, None), nodes[0].address, rack="y"
    )
    found = Cluster(*nodes, routes)
    try:
        yield found
    finally:
        found.blocking.close()
        found.home.close()
        await routes.close()
        await home.close()
        for server in servers:
            await server.stop(None)


def ends(found: Cluster, opened: Any) -> list[int]:
    """What the answers end with, until the follower has answered."""
    seen = []
    request = native_pb2.FetchRequest(topic="t", partition=0, follow=True)
    for answer in found.blocking.fetch(request, opened, WAIT_S):
        seen.append(answer.next_offset)
        if answer.next_offset == found.follower.offset:
            break
    found.call.cancel()
    return seen


@pytest.mark.parametrize("when", ["before", "between", "behind"])
async def test_metadata_leads_a_blocking_stream_to_the_follower(when: str) -> None:
    """`between`: the way was looked up already, and the call is not noted yet."""
    async with cluster() as found:
        loop = asyncio.get_running_loop()
        await found.until(ReadRoute("", 1, False))
        calls = 0

        def opened(call: object) -> bool:
            nonlocal calls
            calls += 1
            found.call = call
            if calls == 1 and when == "between":
                found.tell_of_follower()
                asyncio.run_coroutine_threadsafe(found.until_near(), loop).result(WAIT_S)
            if calls == 1 and when == "behind":
                threading.Timer(0.2, found.tell_of_follower).start()
            return True

        if when == "before":
            found.tell_of_follower()
            await found.until_near()
        async with asyncio.timeout(WAIT_S):
            seen = await asyncio.to_thread(ends, found, opened)
        assert seen[-1] == found.follower.offset
        assert calls == (1 if when == "before" else 2)


async def test_a_follower_that_was_avoided_is_read_again_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_view, "AVOIDED_S", 0.5)
    async with cluster() as found:
        found.tell_of_follower()
        await found.until_near()
        near = found.routes.read_route("t", 0)
        found.routes.avoid("t", 0, near)
        assert not found.routes.read_route("t", 0).follower

        def opened(call: object) -> bool:
            found.call = call
            return True

        async with asyncio.timeout(WAIT_S):
            seen = await asyncio.to_thread(ends, found, opened)
        assert seen == [found.leader.offset, found.follower.offset]


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
async def test_a_leader_that_came_back_at_another_address_is_found(kind: str) -> None:
    """Brokers hear of it within two seconds; until then they name the old one."""
    async with cluster() as found:
        with socket.create_server(("127.0.0.1", 0)) as sock:
            gone = f"127.0.0.1:{sock.getsockname()[1]}"
        # What metadata says counts for the blocking client, which then waits for it.
        found.leader.moved_from = gone if kind == "asyncio" else ""
        found.leader.led_at = [gone, found.follower.address]
        async with asyncio.timeout(WAIT_S):
            if kind == "blocking":
                request = native_pb2.FetchRequest(topic="t", partition=0)
                answers = found.blocking.fetch(request, lambda call: True, WAIT_S)
                assert (await asyncio.to_thread(next, answers)).next_offset == found.follower.offset
            else:
                async with lakemq.Client(found.leader.address, timeout_s=WAIT_S) as client:
                    batches = client.fetch_batches("t", 0, 0)
                    reading = asyncio.ensure_future(anext(batches))
                    while not found.follower.fetches:  # noqa: ASYNC110  read over there
                        await asyncio.sleep(0.01)
                    reading.cancel()
        assert found.leader.led_at == []
