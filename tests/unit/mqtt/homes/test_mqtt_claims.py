"""Goal: claims and what homes keep cost no client a session that nobody else wants: neither when
others leave meanwhile, nor when nodes have just begun to share sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from lakemq.broker_core.api.errors import Unavailable
from lakemq.broker_core.api.types import ANONYMOUS
from lakemq.plugins.mqtt.homes import frames
from lakemq.plugins.mqtt.homes.owner import LET_IN_S, SessionOwner
from lakemq.plugins.mqtt.homes.table import Known
from lakemq.plugins.mqtt.routing.subscriptions import SubscriptionIndex
from lakemq.plugins.mqtt.session.connecting import claimed
from lakemq.plugins.mqtt.session.connection import Connection
from lakemq.plugins.mqtt.state.sessions import Positions, Session
from lakemq.plugins.mqtt.wire.packets import (
    V5,
    Connack,
    Connect,
    Filter,
    Properties,
    Suback,
    Subscribe,
)
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


class Keeps(Homes):
    """The home knows the session by epoch 5 alone."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[int] = []

    async def ask(self, node: str, payload: bytes, timeout_s: float) -> bytes:
        kind, data = frames.split(payload)
        assert kind is frames.Kind.SAVE
        rows = frames.read_saves(data)
        self.epochs += [one.epoch for one in rows]
        codes = [frames.Code.DONE if one.epoch == 5 else frames.Code.STALE for one in rows]
        return frames.codes_bytes(codes)


def test_what_its_home_has_not_heard_of_is_kept_once_it_has() -> None:
    bench = Bench(durable=True)
    ledger = bench.hub.ledger
    assert ledger is not None
    device = connecting(bench, "d")
    ledger.begin()
    ledger.done({"d"}, 0, bench.now_ms)
    assert len(device.received()) == 1  # CONNACK
    bench.hub.ended = {}

    async def test() -> None:
        homes = Keeps()
        begin: Callable[..., object] = asyncio.ensure_future
        owner = SessionOwner(bench.hub, homes, begin, lambda: None, lambda: bench.now_ms)
        device.send(Subscribe(1, (Filter("a", 1),)))
        owner.save(ledger.begin())
        await asyncio.sleep(0.5)
        assert (homes.epochs, device.received()) == ([], [])
        owner._know([Known("d", 0, 5)])
        await asyncio.gather(*owner.writing)
        assert homes.epochs == [5]
        (answer,) = device.received()
        assert isinstance(answer, Suback)
        assert not device.closed

    run_virtually(test())


class Grants(Homes):
    """The node has the session already."""

    async def ask(self, node: str, payload: bytes, timeout_s: float) -> bytes:
        granted = frames.Outcome(frames.Code.DONE, 2, kept=True, here=True)
        return frames.outcomes_bytes([granted])


class Way:
    """Implements `Coming`."""

    def __init__(self) -> None:
        self.index = SubscriptionIndex()
        self.unclean = True
        self.done: list[Callable[[int], None]] = []

    def positions_of(self, session: Session) -> Positions:
        return {}

    def then(self, done: Callable[[int], None]) -> None:
        self.done.append(done)


@pytest.mark.parametrize("arrives", [True, False])
def test_who_comes_again_waits_for_its_session_to_arrive_but_not_for_ever(arrives: bool) -> None:
    """Else a QoS 2 publish that the owner before had stored is not known when it comes again. Seed
    6 of the simulation of whole engines was the first to show it."""
    bench = Bench(durable=True)
    bench.hub.ended = {}
    assert bench.hub.ledger is not None
    claimed(connecting(bench, "d").connection, 1, False, bench.now_ms)
    way = bench.hub.sessions["d"].coming = Way()
    bench.hub.ledger.begin()
    bench.hub.ledger.done({"d"}, 0, bench.now_ms)

    async def test() -> None:
        begin: Callable[..., object] = asyncio.ensure_future
        owner = SessionOwner(bench.hub, Grants(), begin, lambda: None, lambda: bench.now_ms)
        device = connecting(bench, "d")
        owner.claim([device.connection])
        await asyncio.sleep(LET_IN_S - 0.1)
        assert device.connection.connect is not None
        assert not bench.hub.ledger.due  # type: ignore[union-attr]
        if arrives:
            way.done[0](bench.now_ms)
        else:
            await asyncio.sleep(0.2)
        bench.hub.ledger.begin()  # type: ignore[union-attr]
        bench.hub.ledger.done({"d"}, 0, bench.now_ms)  # type: ignore[union-attr]
        (answer,) = device.received()
        assert isinstance(answer, Connack)
        assert answer.session_present

    run_virtually(test())
