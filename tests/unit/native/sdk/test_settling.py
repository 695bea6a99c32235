"""Goal: an application that settles a record hears that it was too late, or that nobody knows,
whatever happens to the queue's coordinator; of other errors only those that are its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from lakemq.broker_core.api.errors import (
    LakeMQError,
    LockLost,
    NotLeader,
    OutcomeUnknown,
    UnknownTopic,
)
from lakemq.plugins.native.proto import queues_pb2 as pb
from lakemq.plugins.native.sdk.queue.record import QueueRecord, Settling
from lakemq.plugins.native.server.convert import error_message


async def settle(settling: Settling, offsets: Sequence[int]) -> list[asyncio.Task[None]]:
    """Records that are acknowledged, with the request on its way."""
    settling.connected(30.0)
    records = [
        QueueRecord("t", 0, offset, 0, None, b"", (), 1, settling, settling.life, float("inf"))
        for offset in offsets
    ]
    tasks = [asyncio.create_task(each.ack()) for each in records]
    request = await anext(settling.requests())
    assert request.request_id == 1
    return tasks


@pytest.mark.parametrize(
    ("error", "raised"),
    [(NotLeader("the queue is not here any more"), LockLost), (UnknownTopic("t"), UnknownTopic)],
)
async def test_a_refused_settlement(error: LakeMQError, raised: type[LakeMQError]) -> None:
    settling = Settling()
    tasks = await settle(settling, [3, 4])
    settling.answered(pb.RecordsSettled(request_id=1, error=error_message(error)))
    for each in tasks:
        with pytest.raises(raised):
            await each


async def test_no_answer() -> None:
    settling = Settling()
    (task,) = await settle(settling, [3])
    settling.disconnected()
    with pytest.raises(OutcomeUnknown):
        await task
