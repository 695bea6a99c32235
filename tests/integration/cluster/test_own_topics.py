"""Goal: a client finds a topic that it has created, whichever node it asks next.

Method: nodes on gRPC servers of this process, the second of which hears late of what the first one
has created.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

import lakemq
from lakemq.broker_core.api.errors import UnknownTopic
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.proto.native_pb2_grpc import (
    NativeServicer,
    add_NativeServicer_to_server,
)
from lakemq.plugins.native.sdk.net import cluster_view
from lakemq.plugins.native.sdk.net.tls import open_async_channel
from lakemq.plugins.native.server.convert import status_of, trailers_of


class Node(NativeServicer):
    """Knows the topics that are in `topics`."""

    def __init__(self) -> None:
        self.topics: dict[str, float] = {}
        """Name -> how often it is still not known."""
        self.described = 0

    async def CreateTopic(self, request: Any, context: Any) -> pb.CreateTopicResponse:
        self.topics[request.name] = 0
        return pb.CreateTopicResponse(topic=pb.Topic(name=request.name))

    async def DeleteTopic(self, request: Any, context: Any) -> pb.DeleteTopicResponse:
        self.topics[request.name] = float("inf")
        return pb.DeleteTopicResponse()

    async def Describe(self, request: Any, context: Any) -> pb.DescribeResponse:
        self.described += 1
        (name,) = request.topics
        self.topics[name] = self.topics.get(name, float("inf")) - 1
        if self.topics[name] >= 0:
            error = UnknownTopic(f"topic {name!r} does not exist")
            await context.abort(status_of(error), str(error), trailers_of(error))
        return pb.DescribeResponse(topics=[pb.Topic(name=name)])


@pytest.fixture
async def nodes() -> AsyncIterator[list[tuple[Node, str]]]:
    found, servers = [], []
    for _ in range(2):
        node, server = Node(), grpc.aio.server()
        add_NativeServicer_to_server(node, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        found.append((node, f"127.0.0.1:{port}"))
        servers.append(server)
    yield found
    for server in servers:
        await server.stop(None)


async def test_a_node_that_lags_is_asked_again(nodes: list[tuple[Node, str]]) -> None:
    (_, first), (late, second) = nodes
    async with lakemq.Client(first, timeout_s=20) as client:
        await client.create_topic("mine")
        channel = open_async_channel(second, None)
        client.routes.guide.switch(channel)
        late.topics["mine"] = 3
        assert (await client.describe_topic("mine")).name == "mine"
        assert late.described == 4
        with pytest.raises(UnknownTopic):
            await client.describe_topic("other")
        assert late.described == 5, "nobody has created it, so the first answer is right"
        await channel.close()


async def test_what_is_unknown_for_long_is_unknown(
    nodes: list[tuple[Node, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_view, "METADATA_LAG_S", 0.3)
    (node, address), _ = nodes
    async with lakemq.Client(address, timeout_s=20) as client:
        await client.create_topic("gone")
        node.topics["gone"] = float("inf")
        with pytest.raises(UnknownTopic):
            async with asyncio.timeout(10):
                await client.describe_topic("gone")
        assert node.described > 1
        await client.create_topic("deleted")
        before = node.described
        await client.delete_topic("deleted")
        with pytest.raises(UnknownTopic):
            await client.describe_topic("deleted")
        assert node.described == before + 1


async def test_topics_are_created_and_deleted_where_metadata_comes_from(
    nodes: list[tuple[Node, str]],
) -> None:
    (quiet, first), (other, second) = nodes
    async with lakemq.Client(first, timeout_s=20) as client:
        channel = open_async_channel(second, None)
        client.routes.guide.switch(channel)
        await client.create_topic("there")
        await client.delete_topic("there")
        assert not quiet.topics and other.topics == {"there": float("inf")}
        await channel.close()
