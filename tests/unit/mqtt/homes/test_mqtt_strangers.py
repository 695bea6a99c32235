"""Goal: of the nodes of a cluster only a client's home says what becomes of its session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from lakemq.broker_core.api.errors import Unavailable
from lakemq.broker_core.api.types import ANONYMOUS
from lakemq.plugins.mqtt.homes import frames
from lakemq.plugins.mqtt.homes.frames import Asked, Kind
from lakemq.plugins.mqtt.homes.owner import SessionOwner
from lakemq.plugins.mqtt.homes.table import Known
from lakemq.plugins.mqtt.session.connecting import claimed
from lakemq.plugins.mqtt.state.sessions import Positions
from lakemq.plugins.mqtt.wire.packets import V5, Connect, Properties
from tests.support.mqtt.bench import Bench
from tests.support.virtual_time import run_virtually

EPOCH = 5


class Homes:
    """`d` is at home on `n2`, from a time on."""

    def __init__(self, since_s: float = 0) -> None:
        self.since_s = since_s

    def home_of(self, client_id: str) -> str:
        return "n2" if asyncio.get_running_loop().time() >= self.since_s else "n3"

    def partition_of(self, client_id: str) -> int:
        return 0

    async def ends(self) -> Positions:
        return {}

    async def ask(self, node: str, payload: bytes, timeout_s: float) -> bytes:
        raise Unavailable("there is no other node")


def node(since_s: float = 0) -> tuple[Bench, SessionOwner]:
    bench = Bench(durable=True)
    bench.hub.ended = {}
    device = bench.dial(V5)
    properties = Properties(session_expiry_s=100)
    device.send(Connect("d", V5, False, 0, None, None, None, properties))
    device.connection.authenticated(ANONYMOUS, bench.now_ms)
    claimed(device.connection, EPOCH, False, bench.now_ms)
    begin: Callable[..., object] = asyncio.ensure_future
    return bench, SessionOwner(bench.hub, Homes(since_s), begin, lambda: None, lambda: bench.now_ms)


LET_GO = frames.asks_bytes([Asked("d", EPOCH, False)])[1:]
LOST = frames.known_bytes([Known("d", EPOCH, 0)], Kind.KNOWN)[1:]


@pytest.mark.parametrize("what", ["let_go", "known"])
def test_a_stranger_takes_no_session(what: str) -> None:
    async def test() -> None:
        bench, owner = node()
        data = LET_GO if what == "let_go" else LOST
        for stranger in ("n3", ""):
            with pytest.raises(Unavailable, match="not known here as the home of 'd'"):
                await getattr(owner, what)(stranger, data)
        session = bench.hub.sessions["d"]
        assert session.connection is not None
        await getattr(owner, what)("n2", data)
        assert "d" not in bench.hub.sessions

    run_virtually(test())


def test_a_home_may_know_of_it_before_others_do() -> None:
    async def test() -> None:
        bench, owner = node(since_s=0.2)
        (state,) = frames.read_states(await owner.let_go("n2", LET_GO), 1)
        assert state
        assert "d" not in bench.hub.sessions

    run_virtually(test())
