"""Goal: a client that leaves while its session is claimed costs no other client its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from lakemq.broker_core.api.errors import Unavailable
from lakemq.broker_core.api.types import ANONYMOUS
from lakemq.plugins.mqtt.homes.owner import SessionOwner
from lakemq.plugins.mqtt.session.connection import Connection
from lakemq.plugins.mqtt.state.sessions import Positions
from lakemq.plugins.mqtt.wire.packets import V5, Connack, Connect, Properties
from tests.support.mqtt.bench import Bench, Device
from tests.support.virtual_time import run_virtually


class Homes:
    """All clients are at home on `n2`, which answers nothing."""

    def __init__(self) -> None:
        self.asked = 0
        self.asked_twice = asyncio.Event()

    def home_of(self, client_id: str) -> str:
        return "n2"

    def partition_of(self, client_id: str) -> int:
        return 0

    async def ends(self) -> Positions:
        return {}

    async def ask(self, node: str, payload: bytes, timeout_s: float) -> bytes:
        self.asked += 1
        if self.asked == 2:
            self.asked_twice.set()
        await asyncio.sleep(0.01)
        raise Unavailable("it does not answer")


def connecting(bench: Bench, client_id: str) -> Device:
    device = bench.dial(V5)
    properties = Properties(session_expiry_s=100)
    device.send(Connect(client_id, V5, False, 0, None, None, None, properties))
    device.connection.authenticated(ANONYMOUS, bench.now_ms)
    return device


def test_clients_that_leave_keep_no_other_from_an_answer() -> None:
    """One leaves before its claim has begun, one between two tries, the third waits."""
    bench = Bench(durable=True)
    bench.hub.ended = {}

    async def test() -> None:
        homes = Homes()
        begin: Callable[..., object] = asyncio.ensure_future
        owner = SessionOwner(bench.hub, homes, begin, lambda: None, lambda: bench.now_ms)
        early, later, waits = (connecting(bench, name) for name in ("early", "later", "waits"))
        claims: list[Connection] = [each.connection for each in (early, later, waits)]
        owner.claim(claims)
        early.connection.leave(bench.now_ms, with_will=False)
        await homes.asked_twice.wait()
        await asyncio.sleep(0.011)  # while it waits before it tries again
        later.connection.leave(bench.now_ms, with_will=False)
        await asyncio.sleep(20)
        assert homes.asked > 3
        (answer,) = waits.received()
        assert isinstance(answer, Connack)
        assert answer.code == 0x88
        assert owner._claiming == {}

    run_virtually(test())
