"""Goal: nodes that share sessions give an exclusive filter to one session of all.

Method: hubs of two nodes and the real table of a home, without a network. `tests/fault/cluster`
has the same over processes that die.
"""

from __future__ import annotations

import asyncio

import pytest

from lakemq.broker_core.api.errors import Unavailable
from lakemq.broker_core.api.types import ANONYMOUS
from lakemq.plugins.mqtt.homes import frames, moving
from lakemq.plugins.mqtt.homes.exclusive_claims import ExclusiveClaims
from lakemq.plugins.mqtt.homes.frames import Asked, Code, Outcome
from lakemq.plugins.mqtt.homes.moving import OwnedSessions
from lakemq.plugins.mqtt.homes.table import Ask, Granted, HomeTable, Known, Owned, Owner, Refused
from lakemq.plugins.mqtt.routing.sessions.exclusive import MOVING_MS, USER_KIND, name_of
from lakemq.plugins.mqtt.session.connecting import claimed
from lakemq.plugins.mqtt.state.questions import ExclusiveClaim
from lakemq.plugins.mqtt.state.sessions import Positions
from lakemq.plugins.mqtt.wire.packets import (
    V5,
    V311,
    Connack,
    Connect,
    Filter,
    Properties,
    Suback,
    Subscribe,
    Unsubscribe,
)
from lakemq.plugins.mqtt.wire.reasons import Reason
from tests.support.mqtt.bench import Bench, Device
from tests.support.virtual_time import run_virtually

KEPT = Properties(session_expiry_s=100)
NAME = "$exclusive/t"


class Homes:
    """One home, which all nodes reach unless it is down."""

    def __init__(self) -> None:
        self.table = HomeTable()
        self.table.nodes({"a": 1, "b": 1}, 0)
        self.down = False
        self.node = ""
        """Who asks."""

    def home_of(self, client_id: str) -> str:
        return "h"

    def partition_of(self, client_id: str) -> int:
        return 0

    async def ends(self) -> Positions:
        return {}

    async def ask(self, node: str, payload: bytes, timeout_s: float) -> bytes:
        if self.down:
            raise Unavailable("the home is down")
        _, data = frames.split(payload)
        for claim in frames.read_claims(Owner(self.node, 1), data):
            self.table.claim(claim, 0)
        outcomes: list[Outcome] = []
        decisions = self.table.take()
        while decisions:
            for one in decisions:
                if isinstance(one, Ask):
                    self.table.let_go(one.client_id, one.epoch, None)
                elif isinstance(one, Granted):
                    outcomes.append(Outcome(Code.DONE, one.epoch))
                elif isinstance(one, Refused):
                    outcomes.append(Outcome(frames.REFUSALS[one.why]))
            decisions = self.table.take()
        return frames.outcomes_bytes(outcomes)


class Node:
    def __init__(self, homes: Homes, name: str) -> None:
        self.name, self.homes = name, homes
        self.bench = Bench(durable=True)
        self.hub = self.bench.hub
        self.hub.ended = {}
        self.tasks: list[asyncio.Future[None]] = []
        self.claims = ExclusiveClaims(
            self.hub, homes, lambda work: self.tasks.append(asyncio.ensure_future(work)),
            lambda: None, lambda: self.bench.now_ms,
        )  # fmt: skip

    def connect(self, client_id: str, epoch: int = 1) -> Device:
        device = self.bench.dial(V5)
        device.send(Connect(client_id, V5, False, 0, None, None, None, KEPT))
        device.connection.authenticated(ANONYMOUS, self.bench.now_ms)
        claimed(device.connection, epoch, False, self.bench.now_ms)
        self.save()
        device.received()
        return device

    def save(self) -> None:
        """What homes are told of sessions, and names of filters, that have ended."""
        ledger = self.hub.ledger
        assert ledger is not None
        while ledger.due:
            names = ledger.begin().client_ids
            for name in names:
                row = moving.saved(self.hub, name, self.bench.now_ms)
                if row is not None and not row.alive:
                    self.homes.table.ended(name, row.epoch, self.name)
            ledger.done(set(names), 0, self.bench.now_ms)

    async def carry_out(self) -> None:
        """As the engine does with what the core wants done."""
        self.homes.node = self.name
        for question, then in self.hub.outbox.take().questions:
            assert isinstance(question, ExclusiveClaim)
            await self.claims.answer(question, then)
        self.claims.tick()
        await asyncio.gather(*self.tasks)
        self.tasks.clear()
        self.save()

    async def asks(self, device: Device) -> int:
        device.send(Subscribe(1, (Filter(NAME, 1),)))
        await self.carry_out()
        (answer,) = device.received()
        assert isinstance(answer, Suback)
        return answer.codes[0]

    @property
    def holds(self) -> list[str]:
        return [one.session.client_id for one in self.hub.exclusive.held.values()]


def nodes() -> tuple[Node, Node]:
    homes = Homes()
    return Node(homes, "a"), Node(homes, "b")


def test_one_session_of_all_nodes_has_it() -> None:
    async def run() -> None:
        a, b = nodes()
        one, other, two = a.connect("one"), a.connect("other"), b.connect("two")
        assert await a.asks(one) == 1
        assert await a.asks(one) == 1
        assert [await a.asks(other), await b.asks(two)] == [Reason.QUOTA_EXCEEDED] * 2
        one.send(Unsubscribe(2, (NAME,)))
        await a.carry_out()
        assert await b.asks(two) == 1
        one.received()
        assert await a.asks(one) == Reason.QUOTA_EXCEEDED
        b.hub.session_table.end(b.hub.sessions["two"], 0)
        await b.carry_out()
        assert await a.asks(other) == 1

    run_virtually(run())


def test_it_moves_with_its_session() -> None:
    async def run() -> None:
        a, b = nodes()
        one, two = a.connect("one"), b.connect("two")
        assert await a.asks(one) == 1
        session = moving.part(a.hub, Asked("one", 1, False), 0)
        assert moving.hand_over(a.hub, Asked("one", 1, False), session, a.bench.now_ms)
        await a.carry_out()
        assert a.holds == []
        assert await b.asks(two) == Reason.QUOTA_EXCEEDED
        assert await b.asks(b.connect("one", 2)) == 1
        a.bench.now_ms += MOVING_MS
        await a.carry_out()  # what it says of an epoch before frees nothing
        assert await b.asks(two) == Reason.QUOTA_EXCEEDED

    run_virtually(run())


def test_it_is_free_when_its_session_does_not_arrive_anywhere() -> None:
    async def run() -> None:
        a, b = nodes()
        one, two = a.connect("one"), b.connect("two")
        assert await a.asks(one) == 1
        moving.lose(a.hub, a.hub.sessions["one"], a.bench.now_ms)
        await a.carry_out()
        assert await b.asks(two) == Reason.QUOTA_EXCEEDED
        a.bench.now_ms += MOVING_MS
        await a.carry_out()
        assert await b.asks(two) == 1

    run_virtually(run())


def test_what_sessions_come_with_is_claimed_and_lost_if_another_has_it() -> None:
    async def run() -> None:
        a, b = nodes()
        one, two = a.connect("one"), b.connect("two")
        a.hub.ended = b.hub.ended = None  # each is alone
        assert [await a.asks(one), await b.asks(two)] == [1, 1]
        a.hub.ended, b.hub.ended = {}, {}
        await a.carry_out()
        await b.carry_out()
        assert (a.holds, b.holds) == (["one"], [])
        assert NAME not in b.hub.sessions["two"].subscriptions
        assert not b.hub.index.match("t").targets

    run_virtually(run())


def test_who_is_gone_when_the_home_answers_has_nothing() -> None:
    async def run() -> None:
        a, b = nodes()
        one = a.connect("one")
        one.send(Subscribe(1, (Filter(NAME, 1),)))
        one.lose()
        await a.carry_out()
        assert a.holds == []
        assert await b.asks(b.connect("two")) == 1

    run_virtually(run())


def test_a_home_that_can_not_be_reached_gives_it_to_nobody() -> None:
    async def run() -> None:
        a, _ = nodes()
        one = a.connect("one")
        a.homes.down = True
        assert await a.asks(one) == Reason.IMPLEMENTATION_ERROR
        a.homes.down = False
        assert await a.asks(one) == 1

    run_virtually(run())


def test_a_new_home_is_told_who_has_it() -> None:
    async def run() -> None:
        a, _ = nodes()
        assert await a.asks(a.connect("one")) == 1
        owned = OwnedSessions(a.hub, lambda name: 0)
        epoch = a.hub.exclusive.held["t"].epoch
        row = Owned(NAME, epoch, (USER_KIND, "one"), urgent=False)
        assert row in owned.page(0, 0, 1)
        moving.left_behind(a.hub, [Known(NAME, epoch, 0)], 0)  # it knows of another holder
        assert row not in owned.page(0, 0, 1)
        assert a.hub.exclusive.unclaimed() == [ExclusiveClaim("one", "t")]

    run_virtually(run())


@pytest.mark.parametrize("version", [V311, V5])
def test_no_client_has_the_name_of_a_filter(version: int) -> None:
    device = Bench().dial(version)
    device.send(Connect(name_of("t"), version, True))
    (answer,) = device.received()
    assert isinstance(answer, Connack)
    assert answer.code == (Reason.CLIENT_IDENTIFIER_NOT_VALID if version == V5 else 2)
