"""Goal: what a partition on another node has of a commit is found, also where nothing was appended
since the commit was decided."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lakemq.broker_core.api.errors import NotLeader, Unavailable
from lakemq.broker_core.cluster.proto import peer_pb2 as pb
from lakemq.broker_core.transactions.state import CommitTarget, OwnerState
from lakemq.broker_core.transactions.targets import Targets


class Elsewhere:
    """A partition that `other` leads, which answers with what it was given."""

    node_id = "me"

    def __init__(self, *answers: pb.AppendedResponse) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[int, int]] = []

    def topic(self, name: str) -> Any:
        return SimpleNamespace(topic_id="0a" * 16)

    def partition(self, topic: str, partition: int) -> Any:
        raise NotLeader("elsewhere", leader="other")

    async def call(self, node: str, method: str, request: bytes, timeout_s: float) -> bytes:
        wanted = pb.AppendedRequest.FromString(request)
        self.asked.append((wanted.offset, wanted.end))
        return self.answers.pop(0).SerializeToString()


async def appended(there: Elsewhere, floor: int) -> int:
    broker: Any = there
    target = CommitTarget("t", "0a" * 16, 0, floor, ())
    return await Targets(broker, there.call).appended(OwnerState(producer_id=7), target)


def answer(records: int, next_offset: int, end: int) -> pb.AppendedResponse:
    return pb.AppendedResponse(records=records, next_offset=next_offset, end=end)


async def test_nothing_was_appended_since() -> None:
    assert await appended(Elsewhere(answer(0, 22, 22)), 22) == 0
    assert await appended(Elsewhere(answer(0, 0, 0)), 0) == 0


async def test_it_asks_on_until_the_end_of_the_first_answer() -> None:
    there = Elsewhere(answer(3, 30, 50), answer(9, 50, 50))
    assert await appended(there, 20) == 9
    assert there.asked == [(20, 0), (30, 50)]


async def test_a_leader_that_can_not_commit_is_asked_later() -> None:
    with pytest.raises(Unavailable, match="other has committed t/0 up to 20, its log ends at 50"):
        await appended(Elsewhere(answer(0, 20, 50)), 20)
