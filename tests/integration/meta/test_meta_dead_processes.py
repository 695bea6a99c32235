"""A process that is dead is fenced before its heartbeats are missed, if another node says so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lakemq.meta_service.api.remote.client import RemoteClient
from lakemq.meta_service.api.remote.control_calls import HeartbeatReport
from lakemq.meta_service.api.settings import MetaSettings
from lakemq.meta_service.api.types import NodeRegistration
from lakemq.meta_service.control import failure_detector
from lakemq.meta_service.control.dead_processes import REOPEN_S
from lakemq.meta_service.server.member import MetaMember

BEAT_S = 0.2
NEVER_S = 3600.0


class Broker:
    """A node with its own connection."""

    def __init__(self, address: str, name: str) -> None:
        self.client = RemoteClient([address])
        self.name, self.epoch = name, 0
        self.refusing: list[tuple[str, int]] = []
        self.soon, self.broken, self.active = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def start(self) -> None:
        registration = NodeRegistration(self.name, {}, heartbeats=True)
        self.epoch = (await self.client.register_node(registration)).broker_epoch
        self.task = asyncio.create_task(self._beat())
        await asyncio.wait_for(self.active.wait(), 20)

    async def _beat(self) -> None:
        async for answer in self.client.heartbeats(
            self.name,
            self.epoch,
            lambda number: HeartbeatReport(refusing=self.refusing),
            period_s=BEAT_S,
            soon=self.soon,
            on_broken=self.broken.set,
        ):
            if answer.state == "active":
                self.active.set()

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.client.close()


@pytest.fixture(autouse=True)
def missing_heartbeats_fence_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_detector, "HEARTBEAT_TIMEOUT_S", NEVER_S)


@pytest.fixture
async def member(tmp_path: Path) -> AsyncIterator[MetaMember]:
    member = MetaMember(
        MetaSettings(port=0), node_id="m", host="127.0.0.1", data_dir=tmp_path / "meta"
    )
    await member.start()
    yield member
    await member.stop()


async def state_of(broker: Broker, name: str) -> str:
    return {node.node_id: node.state for node in await broker.client.nodes()}[name]


async def test_a_dead_process_is_fenced_at_once(member: MetaMember) -> None:
    dead, witness = (Broker(member.addresses()["meta"], name) for name in ("a", "b"))
    for broker in (dead, witness):
        await broker.start()
    ended_s = time.monotonic()
    await dead.stop()
    witness.refusing = [("a", dead.epoch)]
    witness.soon.set()
    while await state_of(witness, "a") == "active":
        assert time.monotonic() < ended_s + 60
        await asyncio.sleep(0.02)
    assert time.monotonic() - ended_s >= REOPEN_S
    await witness.stop()


async def test_a_living_one_that_seems_to_refuse_is_not(member: MetaMember) -> None:
    alive, witness = (Broker(member.addresses()["meta"], name) for name in ("a", "b"))
    for broker in (alive, witness):
        await broker.start()
    witness.refusing = [("a", alive.epoch)]
    witness.soon.set()
    await asyncio.sleep(REOPEN_S + 3 * BEAT_S)
    assert await state_of(witness, "a") == "active"
    for broker in (alive, witness):
        await broker.stop()


async def test_a_broker_is_told_that_its_stream_has_ended(member: MetaMember) -> None:
    broker = Broker(member.addresses()["meta"], "a")
    await broker.start()
    assert not broker.broken.is_set()
    await member.stop()
    await asyncio.wait_for(broker.broken.wait(), 20)
    await broker.stop()
