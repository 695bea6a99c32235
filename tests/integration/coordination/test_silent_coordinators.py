"""Goal: a client asks a coordinator that stands still once at the most, and leaves it as soon as
the cluster says that the node is not heard.

Method: nodes that tell what they are told to, on gRPC servers of this process. A call waits for
12 s for its answer, so a client that waited for it would be seen.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

import lakemq
from lakemq.plugins.native.proto import metadata_pb2, native_pb2
from lakemq.plugins.native.proto import transactions_pb2 as pb
from lakemq.plugins.native.proto.metadata_pb2_grpc import (
    MetadataServicer,
    add_MetadataServicer_to_server,
)
from lakemq.plugins.native.proto.native_pb2_grpc import NativeServicer, add_NativeServicer_to_server
from lakemq.plugins.native.proto.transactions_pb2_grpc import (
    TransactionsServicer,
    add_TransactionsServicer_to_server,
)

SOON_S = 6.0
"""Half of what a call waits for."""


class Nodes:
    """Two; which of them coordinates, and what the others know of it."""

    def __init__(self) -> None:
        self.addresses: dict[str, str] = {}
        self.coordinator = "n1"
        self.fenced: set[str] = set()
        self.changed = asyncio.Event()

    def fence(self, name: str, coordinator: str) -> None:
        self.fenced.add(name)
        self.coordinator = coordinator
        self.changed.set()

    def update(self, name: str) -> metadata_pb2.MetadataUpdate:
        return metadata_pb2.MetadataUpdate(
            node_id=name,
            whole=True,
            nodes=[
                metadata_pb2.NodeAddress(
                    node_id=each,
                    address=address,
                    state="fenced" if each in self.fenced else "active",
                )
                for each, address in self.addresses.items()
            ],
        )


class Node(MetadataServicer, NativeServicer, TransactionsServicer):
    """While it stands still its calls get no answer, and its metadata stream is not heard of."""

    def __init__(self, name: str, nodes: Nodes) -> None:
        self.name, self.nodes = name, nodes
        self.still = False
        self.asked: list[str] = []

    async def WatchMetadata(self, request: Any, context: Any) -> AsyncIterator[Any]:
        while True:
            if not self.still:
                yield self.nodes.update(self.name)
            self.nodes.changed.clear()
            await self.nodes.changed.wait()

    async def _coordinates(self, method: str, context: Any) -> None:
        self.asked.append(method)
        if self.still:
            await asyncio.Event().wait()
        if self.nodes.coordinator != self.name:
            leader = self.nodes.coordinator
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"{leader} coordinates",
                (
                    ("lakemq-error", "NOT_LEADER"),
                    ("lakemq-leader", leader),
                    ("lakemq-leader-address", self.nodes.addresses[leader]),
                    ("lakemq-leader-epoch", str(1 + len(self.nodes.fenced))),
                ),
            )

    async def OpenOwner(self, request: Any, context: Any) -> pb.OpenOwnerResponse:
        await self._coordinates("OpenOwner", context)
        return pb.OpenOwnerResponse(epoch=1, last_batch_id=-1)

    async def CommitStaged(self, request: Any, context: Any) -> pb.CommitStagedResponse:
        await self._coordinates("CommitStaged", context)
        return pb.CommitStagedResponse(outcome=1, last_batch_id=request.batch_id, applied=True)

    async def DeleteGroup(self, request: Any, context: Any) -> native_pb2.DeleteGroupResponse:
        await self._coordinates("DeleteGroup", context)
        return native_pb2.DeleteGroupResponse()


@asynccontextmanager
async def nodes() -> AsyncIterator[tuple[Node, Node, lakemq.Client]]:
    """n0, which the client is connected to, and n1."""
    known = Nodes()
    found, servers = [Node("n0", known), Node("n1", known)], []
    for node in found:
        server = grpc.aio.server()
        add_MetadataServicer_to_server(node, server)
        add_NativeServicer_to_server(node, server)
        add_TransactionsServicer_to_server(node, server)
        known.addresses[node.name] = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        servers.append(server)
    try:
        async with lakemq.Client(known.addresses["n0"], timeout_s=30) as client:
            yield found[0], found[1], client
    finally:
        for server in servers:
            await server.stop(None)


async def test_a_commit_goes_on_as_soon_as_its_coordinator_is_fenced() -> None:
    async with nodes() as (first, second, client):
        session = await client.staging.open_sink("s")
        assert session.address == first.nodes.addresses["n1"]
        second.still = True
        began_s = time.monotonic()
        waiting = asyncio.create_task(client.staging.commit(session, 0, []))
        while "CommitStaged" not in second.asked:  # noqa: ASYNC110  the client brings it about
            await asyncio.sleep(0.01)
        first.nodes.fence("n1", coordinator="n0")
        assert (await waiting).last_batch_id == 0
        assert time.monotonic() - began_s < SOON_S
        for number in range(1, 4):
            assert (await client.staging.commit(session, number, [])).applied
        assert second.asked.count("CommitStaged") == 1
        assert time.monotonic() - began_s < SOON_S


async def test_what_an_owners_calls_learned_holds_for_those_after_them() -> None:
    async with nodes() as (first, second, client):
        session = await client.staging.open_sink("s")
        first.nodes.coordinator = "n0"  # moved in good order: nobody is fenced
        for number in range(4):
            assert (await client.staging.commit(session, number, [])).applied
        assert second.asked.count("CommitStaged") == 1


@pytest.mark.parametrize("fenced", [False, True])
async def test_only_a_fenced_node_is_left(fenced: bool) -> None:
    async with nodes() as (first, second, client):
        await client.staging.open_sink("s")  # follows metadata from now on
        second.still = True
        waiting = asyncio.create_task(client.delete_group("g"))
        while "DeleteGroup" not in second.asked:  # noqa: ASYNC110  the client brings it about
            await asyncio.sleep(0.01)
        if fenced:
            first.nodes.fence("n1", coordinator="n0")
        else:
            first.nodes.changed.set()  # tells the same again
        done, _ = await asyncio.wait([waiting], timeout=1)
        assert bool(done) is fenced
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
