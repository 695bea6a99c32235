"""Goal: to describe a topic waits for a leader that says nothing no longer than it must, and what
reads up to the high watermark as long as for any call."""

from __future__ import annotations

from typing import Any

import pytest

from lakemq.broker_core.api.errors import Unavailable
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.sdk.client.client import Client
from lakemq.plugins.native.sdk.consumer.starts import scan_bounds


class Stub:
    """Of one node; `answer` None: it says nothing."""

    def __init__(self, answer: pb.DescribeResponse | None) -> None:
        self.answer = answer
        self.waited_s: list[float] = []

    async def Describe(self, _: object, **options: float) -> pb.DescribeResponse:
        self.waited_s.append(options["timeout"])
        if self.answer is None:
            raise Unavailable("no answer")
        return self.answer


def answer_of(node: str) -> pb.DescribeResponse:
    partitions = [
        pb.Partition(
            partition=number, leader=leader, leader_address=f"{leader}:9700", high_watermark=marks
        )
        for number, leader, marks in ((0, "n1", 5), (1, "n2", 3))
    ]
    return pb.DescribeResponse(node_id=node, topics=[pb.Topic(name="t", partitions=partitions)])


@pytest.mark.parametrize("timeout_s", [30.0, 2.0])
async def test_a_silent_leader_is_waited_for_a_little(
    monkeypatch: pytest.MonkeyPatch, timeout_s: float
) -> None:
    async with Client("127.0.0.1:1", timeout_s=timeout_s) as client:
        silent = Stub(None)
        stubs: dict[str, Any] = {"": Stub(answer_of("n1")), "n2:9700": silent}
        monkeypatch.setattr(client.routes, "stub", stubs.__getitem__)
        for described in (await client.describe_topic("t"), (await client.topics())[0]):
            first, second = described.partitions
            assert (first.state, first.high_watermark) == ("", 5)
            assert (second.state, second.leader) == ("offline", "n2")
            assert second.detail == "no answer from n2, its leader"
        assert silent.waited_s == [min(5.0, timeout_s)] * 2
        # A scan would lack the records of that partition, and say nothing.
        with pytest.raises(Unavailable, match="t-1 ends: no answer from n2, its leader"):
            await scan_bounds(client.connection, "t", "earliest", "latest", None)
        _, bounds = await scan_bounds(client.connection, "t", "earliest", "latest", [0])
        assert bounds == {0: (0, 5)}
        # Offsets to read up to are asked for as long as it takes.
        await client.connection.describe_topic("t")
        assert silent.waited_s[-1] == timeout_s
