"""Goal: a consumer's locks are extended in time from its first one on."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from lakemq.plugins.native.proto import queues_pb2 as pb
from lakemq.plugins.native.sdk.net.routes import Routes
from lakemq.plugins.native.sdk.queue.queue import Queue
from tests.support.virtual_time import run_virtually


def test_the_first_extension_comes_within_a_short_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long a lock is the broker says when it has opened the queue."""
    extended_s: list[float] = []

    async def settle(*_: Any) -> list[Any]:
        extended_s.append(asyncio.get_running_loop().time())
        return []

    async def play() -> None:
        queue = Queue(cast(Routes, None), "jobs", "workers", {})
        monkeypatch.setattr(queue._settling, "settle", settle)
        task = asyncio.create_task(queue._extend())
        await asyncio.sleep(0.05)
        opened = pb.QueueOpened(settings=pb.QueueSettings(lock_ms=150))
        queue._told(pb.QueueResponse(opened=opened))
        await asyncio.sleep(0.16)
        task.cancel()

    run_virtually(play())
    assert extended_s == pytest.approx([0.1, 0.15, 0.2])
