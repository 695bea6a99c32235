"""Goal: a node never leads by heartbeats that the controller does not take as a sign of life."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from lakemq import registration
from lakemq.broker_core.refusals import Refusals
from lakemq.broker_core.replication.lease import LEASE_S, SUSPECT_S, Lease
from lakemq.meta_service.api.remote.control_calls import HeartbeatAnswer, HeartbeatReport
from lakemq.meta_service.api.types import NodeRegistration

NODE = NodeRegistration("n", {}, broker_epoch=1, storage_id="disk")


def report() -> HeartbeatReport:
    return HeartbeatReport({})


class Led:
    def __init__(self) -> None:
        self.lease = Lease()
        self.refusals = Refusals(lambda node: "", dict)
        self.full = False

    def is_full(self) -> bool:
        return self.full

    def registered(self) -> None:
        self.lease.end()

    async def activated(self) -> None:
        pass

    async def let_go(self) -> None:
        pass


class Controller:
    """A client whose answers the test gives."""

    def __init__(self) -> None:
        self.report: Callable[[int], HeartbeatReport] = lambda _: HeartbeatReport()
        self.broken: Callable[[], None] = lambda: None
        self.answers: asyncio.Queue[HeartbeatAnswer] = asyncio.Queue()

    async def register_node(self, *_: object) -> NodeRegistration:
        return NODE

    async def heartbeats(
        self,
        _node: str,
        _epoch: int,
        report: Callable[[int], HeartbeatReport],
        *,
        on_broken: Callable[[], None],
        **_: Any,
    ) -> AsyncGenerator[HeartbeatAnswer]:
        self.report, self.broken = report, on_broken
        while True:
            yield await self.answers.get()

    async def leave(self, *_: object) -> None:
        pass

    async def answer(self, number: int, state: str = "active") -> None:
        self.answers.put_nowait(HeartbeatAnswer(state, number))
        for _ in range(5):
            await asyncio.sleep(0)


async def test_a_node_that_hears_no_answers_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(registration.time, "monotonic", lambda: now_s)
    led, controller = Led(), Controller()
    client: Any = controller
    node = registration.Registration(client, NODE, report, lambda _: None, led)
    starting = asyncio.create_task(node.start())
    for _ in range(5):
        await asyncio.sleep(0)
    assert controller.report(1).ready, "nothing was answered yet, as in any start"
    await controller.answer(1)
    await starting
    now_s += registration.DEAF_S - 0.1
    assert controller.report(2).ready
    now_s += 0.2
    assert not controller.report(3).ready
    assert led.lease.held(100.0 + LEASE_S - 0.1)
    # The controller goes by heartbeat 2 at the latest, and so does the lease.
    await controller.answer(3)
    assert led.lease.held(100.0 + LEASE_S - 0.1) and not led.lease.held(100.0 + LEASE_S)
    assert controller.report(4).ready, "answers come again"
    now_s += registration.DEAF_S + 0.1
    assert not controller.report(5).ready
    await controller.answer(5, "fenced")
    now_s += registration.DEAF_S + 0.1
    assert controller.report(6).ready, "a fenced node may become active"
    await node.stop()


async def test_a_broken_stream_leaves_little_of_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(registration.time, "monotonic", lambda: now_s)
    led, controller = Led(), Controller()
    client: Any = controller
    node = registration.Registration(client, NODE, report, lambda _: None, led)
    starting = asyncio.create_task(node.start())
    for _ in range(5):
        await asyncio.sleep(0)
    controller.report(1)
    await controller.answer(1)
    await starting
    controller.report(2)
    controller.broken()
    await controller.answer(2)
    assert led.lease.left_s(now_s) == pytest.approx(SUSPECT_S), "sent before the stream broke"
    assert not controller.report(3).full
    await controller.answer(3)
    assert led.lease.left_s(now_s) == pytest.approx(LEASE_S)
    led.full = True
    assert controller.report(4).full
    await node.stop()
