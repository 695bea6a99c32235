"""Goal: a stored batch that is whole outside and corrupt inside stops nobody: no start, no reader.

Method: a real node refuses such batches; a data folder that holds them nevertheless, as an older
version left it, is made by writing into the journal's files while the node is down.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

import lakemq
from broker_core.api.errors import CorruptBatch
from plugins.native import native_pb2 as pb
from plugins.native.native_pb2_grpc import NativeStub
from tests.support.node import NodeProcess
from tests.support.poison import garbage_lengths, no_frame


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path / "node").start()
    try:
        yield node
    finally:
        node.kill()


def produce(node: NodeProcess, topic: str, batch: bytes) -> pb.ProduceResponse:
    """One Produce, past the SDK."""
    request = pb.ProduceRequest(topic=topic, partition=0, acks=pb.ACKS_LEADER, batch=batch)
    with grpc.insecure_channel(node.native) as channel:
        return next(iter(NativeStub(channel).Produce(iter([request]), timeout=30)))


@pytest.mark.parametrize("poison", [garbage_lengths(), no_frame()], ids=["lengths", "zstd"])
def test_garbage_columns_are_refused(node: NodeProcess, poison: bytes) -> None:
    with lakemq.connect(node.native) as client:
        client.create_topic("t")
        answer = produce(node, "t", poison)
        assert answer.error.code == CorruptBatch.code
        client.send("t", b"good")
        assert [each.value for each in client.consume("t")] == [b"good"]
