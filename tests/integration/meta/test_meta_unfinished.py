"""Goal: requests that are begun and never finished hold little memory of the MetaService, which has
no logins on loopback, and others are served meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest

from lakemq.meta_service.api.remote.failures import error_of_failure
from lakemq.meta_service.proto import meta_pb2 as pb
from lakemq.meta_service.proto.meta_pb2_grpc import KvStub
from tests.support.node.node import PORTS_FREE, NodeProcess
from tests.support.unfinished_calls import UnfinishedCalls, pump_all

HELD_MAX_BYTES = 32 * 1024 * 1024
MESSAGE_BYTES = 4 * 1024 * 1024 - 100


def put(address: str, number: int) -> None:
    with grpc.insecure_channel(address) as channel:
        stub = KvStub(channel)
        stub.Put(pb.PutRequest(key=b"test/%d" % number, value=b"x"), timeout=60)
        got = stub.Get(pb.GetRequest(key=b"test/%d" % number), timeout=60)
        assert [each.value for each in got.kvs] == [b"x"]


@pytest.mark.parametrize("method", ["Kv/Put", "Kv/Watch", "Cluster/Heartbeat"])
def test_unfinished_messages_hold_little_and_others_are_served(tmp_path: Path, method: str) -> None:
    with NodeProcess(tmp_path, PORTS_FREE) as node:
        address = node.addresses["meta"]
        put(address, 0)
        process = psutil.Process(node.pid)
        before = process.memory_info().rss
        attackers = [UnfinishedCalls.connect(address) for _ in range(4)]
        for each in attackers:
            for _ in range(32):
                each.begin(f"/lakemq.meta.v1.{method}", MESSAGE_BYTES)
        held, sent = [0], -1
        while sent < (sent := sum(each.sent_bytes for each in attackers)) and len(held) < 20:
            pump_all(attackers, 0.3, quiet_s=0.3)
            held.append(process.memory_info().rss - before)
        put(address, 1)
        for each in attackers:
            each.close()
        assert max(held) <= HELD_MAX_BYTES, [each >> 20 for each in held]


def test_a_late_request_may_be_sent_again(tmp_path: Path) -> None:
    with NodeProcess(tmp_path, PORTS_FREE) as node:
        come = threading.Event()

        def late() -> Iterator[bytes]:
            come.wait(60)
            yield pb.PutRequest(key=b"test/0", value=b"x").SerializeToString()

        with grpc.insecure_channel(node.addresses["meta"]) as channel:
            call = channel.stream_unary("/lakemq.meta.v1.Kv/Put", request_serializer=bytes)
            with pytest.raises(grpc.RpcError, match="did not come within 1 s") as caught:
                call(late(), timeout=60)
            come.set()
        error, _ = error_of_failure(caught.value)
        assert error.retriable and error.definite  # it was not applied
