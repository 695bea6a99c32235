"""Goal: one request does a bounded piece of work, and groups that clients name are a bounded number
of metrics."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import Iterator

import grpc
import pytest

import lakemq
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.proto.native_pb2_grpc import NativeStub
from lakemq.plugins.native.server.handlers import REPEATED_MAX, REQUEST_MAX_BYTES
from tests.support.node.node import PORTS_FREE, NodeProcess

LAGS_MAX = 3


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    config = PORTS_FREE.replace(
        "[plugins.native]", f"[plugins.native]\nlag_metrics_max = {LAGS_MAX}"
    )
    with NodeProcess(tmp_path_factory.mktemp("bounds"), config) as node:
        with lakemq.connect(node.native) as client:
            client.create_topic("t")
            for _ in range(20):
                client.send("t", b"x")
        yield node


def metrics(node: NodeProcess) -> str:
    with urllib.request.urlopen(f"http://{node.addresses['admin']}/metrics") as answer:
        return str(answer.read().decode())


async def refused(node: NodeProcess, method: str, request: object) -> str:
    async with grpc.aio.insecure_channel(node.native) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await getattr(NativeStub(channel), method)(request, timeout=30)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, caught.value
    return caught.value.details() or ""


async def test_a_request_with_too_many_names_is_refused(node: NodeProcess) -> None:
    names = ["t"] * (REPEATED_MAX + 1)
    assert "topics: 20001" in await refused(node, "Describe", pb.DescribeRequest(topics=names))
    offsets = [pb.OffsetCommit(topic="t", partition=0, offset=1)] * (REPEATED_MAX + 1)
    request = pb.CommitOffsetsRequest(group="g", offsets=offsets)
    assert "offsets: 20001" in await refused(node, "CommitOffsets", request)


async def test_a_request_without_a_batch_does_not_get_the_room_of_one(node: NodeProcess) -> None:
    request = pb.CreateTopicRequest(name="n" * REQUEST_MAX_BYTES)
    told = await refused(node, "CreateTopic", request)
    assert f"this call takes {REQUEST_MAX_BYTES}" in told


async def test_lags_are_metrics_of_the_largest_alone(node: NodeProcess) -> None:
    async with grpc.aio.insecure_channel(node.native) as channel:
        for number in range(2 * LAGS_MAX):
            offset = pb.OffsetCommit(topic="t", partition=0, offset=number)
            request = pb.CommitOffsetsRequest(group=f"g{number}", offsets=[offset])
            await NativeStub(channel).CommitOffsets(request, timeout=30)
    text = await asyncio.to_thread(metrics, node)
    shown = re.findall(r'^lakemq_native_group_lag\{group="(g\d)"', text, re.MULTILINE)
    assert sorted(shown) == [f"g{number}" for number in range(LAGS_MAX)]
    left_out = re.search(r"^lakemq_native_group_lag_left_out\{.*\} (\S+)$", text, re.MULTILINE)
    assert left_out is not None and float(left_out[1]) == LAGS_MAX
