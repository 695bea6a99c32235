"""Goal: a client leaves a node that does not answer, and what waits there, for one that does.

Method: nodes that tell what they are told to, on gRPC servers of this process, and short limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from lakemq.broker_core.api.errors import NotLeader
from lakemq.plugins.native.proto import metadata_pb2 as pb
from lakemq.plugins.native.proto.metadata_pb2_grpc import (
    MetadataServicer,
    MetadataStub,
    add_MetadataServicer_to_server,
)
from lakemq.plugins.native.sdk.net.cluster_view import ReadRoute, Route
from lakemq.plugins.native.sdk.net.routes import Led, Routes
from lakemq.plugins.native.sdk.net.tls import open_async_channel

SILENT_S = 0.8
WAIT_S = 20.0


class Node(MetadataServicer):
    """Tells who leads the one partition of topic `t`, and then beats until it goes quiet."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.address = ""
        self.leader = name
        self.known: dict[str, str] = {}
        self.quiet = asyncio.Event()
        self.refuses = False
        self.beats = True
        self.asked = 0

    async def WatchMetadata(self, request: Any, context: Any) -> AsyncIterator[pb.MetadataUpdate]:
        self.asked += 1
        whole = True
        while True:
            if self.refuses:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "out of touch")
            if self.quiet.is_set():
                await asyncio.Event().wait()
            yield pb.MetadataUpdate(
                node_id=self.name,
                whole=whole,
                nodes=[pb.NodeAddress(node_id=n, address=a) for n, a in self.known.items()],
                topics=[
                    pb.TopicLeaders(
                        name="t",
                        partitions=[pb.PartitionLeader(leader=self.leader, leader_epoch=1)],
                    )
                ],
                next_within_ms=100 if self.beats else 0,
            )
            whole = False
            if not self.beats:
                await self.quiet.wait()
            await asyncio.sleep(0.02)


class Cluster:
    def __init__(self, nodes: list[Node], routes: Routes) -> None:
        self.nodes, self.routes = nodes, routes


@asynccontextmanager
async def cluster(count: int = 2, told: int = 1) -> AsyncIterator[Cluster]:
    """`told`: how many nodes the client is told of."""
    nodes = [Node(f"n{number}") for number in range(count)]
    servers = []
    for node in nodes:
        server = grpc.aio.server()
        add_MetadataServicer_to_server(node, server)
        node.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        servers.append(server)
    for node in nodes:
        node.known = {each.name: each.address for each in nodes}
    bootstrap = ",".join(node.address for node in nodes[:told])
    home = open_async_channel(nodes[0].address, None)
    routes = Routes(
        home, lambda address: open_async_channel(address, None), bootstrap,
        silent_s=SILENT_S, first_s=SILENT_S,
    )  # fmt: skip
    try:
        yield Cluster(nodes, routes)
    finally:
        await routes.close()
        await home.close()
        for server in servers:
            await server.stop(None)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110  another task brings it about
            await asyncio.sleep(0.01)


async def until_guided_by(found: Cluster, name: str) -> None:
    await until(lambda: found.routes.view.node_id == name)


async def end_of(stream: Any) -> None:
    """Raises what it ends with."""
    async with asyncio.timeout(WAIT_S):
        while True:
            await anext(stream)


def watched(channel: Any) -> Any:
    return MetadataStub(channel).WatchMetadata(pb.WatchMetadataRequest())


async def test_a_node_that_goes_quiet_is_left_for_one_that_was_heard_of() -> None:
    async with cluster() as found:
        first, second = found.nodes
        found.routes.start()
        await until_guided_by(found, "n0")
        stream = watched(found.routes.guide)
        await anext(stream)
        first.quiet.set()
        with pytest.raises(NotLeader):  # not a cancellation of the reader
            await end_of(stream)
        await until_guided_by(found, "n1")
        assert found.routes.route("t", 0) == Route("", 1), "the new node leads"
        second.leader = "n0"
        await until(lambda: found.routes.route("t", 0).address == first.address)
        again = watched(found.routes.guide)
        assert (await anext(again)).node_id == "n1"
        again.cancel()


async def test_a_node_out_of_touch_is_left_for_another_of_the_bootstrap_list() -> None:
    async with cluster(told=2) as found:
        found.nodes[0].refuses = True
        found.routes.start()
        await until_guided_by(found, "n1")
        found.nodes[1].refuses, found.nodes[0].refuses = True, False
        await until_guided_by(found, "n0")


async def test_the_only_node_is_asked_again() -> None:
    async with cluster(count=1) as found:
        (node,) = found.nodes
        found.routes.start()
        await until_guided_by(found, "n0")
        node.quiet.set()
        await until(lambda: node.asked >= 3)
        node.quiet.clear()
        node.leader, node.known = "far", {"far": "far:1"}
        await until(lambda: found.routes.route("t", 0).address == "far:1")


async def test_an_older_node_may_be_silent_while_nothing_changes() -> None:
    async with cluster() as found:
        found.nodes[0].beats = False
        found.routes.start()
        await until_guided_by(found, "n0")
        await asyncio.sleep(3 * SILENT_S)
        assert (found.nodes[0].asked, found.nodes[1].asked) == (1, 0)


async def test_a_call_to_a_former_leader_ends_when_another_is_named() -> None:
    async with cluster() as found:
        first, second = found.nodes
        found.routes.start()
        await until_guided_by(found, "n0")
        channel = found.routes.channel(second.address)
        call = watched(channel)
        first.leader = "n1"
        await until(lambda: found.routes.route("t", 0).address == second.address)
        led = Led(found.routes, call, ReadRoute(*found.routes.route("t", 0), False), "t", 0)
        await anext(call)
        first.leader = "n0"
        with pytest.raises(NotLeader):
            await end_of(call)
        del led


async def test_a_reader_that_is_cancelled_itself_is_not_told_of_an_error() -> None:
    async with cluster() as found:
        stream = watched(found.routes.guide)
        found.nodes[0].beats = False
        await anext(stream)
        reader = asyncio.create_task(anext(stream))
        await asyncio.sleep(0.05)
        stream.end(NotLeader("left"))
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
