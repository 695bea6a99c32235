"""Goal: MQTT clients keep rights no longer than they have them; asking costs once for each name."""

from __future__ import annotations

import pytest

from lakemq.broker_core.api.types import AccessContext, Operation, Principal, Resource
from lakemq.plugins.mqtt.routing import rights
from lakemq.plugins.mqtt.wire.packets import V5, V311, Disconnect, Publish
from lakemq.plugins.mqtt.wire.reasons import Reason
from tests.support.mqtt.bench import START_MS, Bench

TEN_S_LATER = START_MS + 10_000


def principal(expires_ms: int | None = None) -> Principal:
    return Principal("ann", expires_ms=expires_ms)


def test_a_connection_ends_with_its_credentials() -> None:
    bench = Bench()
    device = bench.connect("c", version=V5, principal=principal(TEN_S_LATER))
    lasting = bench.connect("d", version=V5, principal=principal())
    bench.pass_time(9)
    assert not device.closed
    bench.pass_time(2)
    assert isinstance(said := device.one(), Disconnect) and said.reason == Reason.NOT_AUTHORIZED
    assert device.closed and not lasting.closed
    assert bench.hub.rights.ended == 1 and not bench.hub.rights._ends_ms


def test_a_new_token_belongs_to_the_new_connection_alone() -> None:
    """Equal principals are one object in the hub; when they end is each connection's own."""
    bench = Bench()
    bench.connect("c", principal=principal(TEN_S_LATER)).lose()
    device = bench.connect("c", principal=principal(TEN_S_LATER + 60_000))
    assert device.connection.principal.expires_ms is None, "the shared object ends for nobody"
    bench.pass_time(11)
    assert not device.closed


def test_a_session_outlives_the_token_that_began_it() -> None:
    bench = Bench()
    device = bench.connect("c", clean=False, principal=principal(TEN_S_LATER))
    device.subscribe("a")
    bench.pass_time(11)
    again = bench.connect("c", clean=False, principal=principal(TEN_S_LATER + 60_000))
    assert again.connack.session_present  # type: ignore[attr-defined]
    stranger = bench.connect("c", clean=False, principal=Principal("eve"))
    assert not stranger.connack.session_present  # type: ignore[attr-defined]


def test_a_withdrawn_right_ends_the_subscription() -> None:
    bench = Bench()
    device = bench.connect("c", version=V5)
    device.subscribe("a/#", "b")
    bench.forbidden.add((Operation.READ, "a/#"))
    bench.hub.access_changed()
    bench.pass_time(1)
    assert device.closed and bench.hub.rights.withdrawn == 1
    assert not bench.hub.index.match("a/1").targets


def test_what_changed_while_away_is_judged_on_return() -> None:
    bench = Bench()
    device = bench.connect("c", clean=False)
    device.subscribe("a", "b")
    device.lose()
    bench.forbidden.add((Operation.READ, "a"))
    again = bench.connect("c", clean=False)
    assert not again.closed
    assert list(bench.hub.sessions["c"].subscriptions) == ["b"]


def test_many_subscriptions_are_judged_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rights, "JUDGED_PER_TICK", 4)
    bench = Bench()
    devices = [bench.connect(f"c{number}") for number in range(6)]
    for device in devices:
        device.subscribe("a")
    bench.forbidden.add((Operation.READ, "a"))
    bench.hub.access_changed()
    closed = []
    for _ in range(4):
        bench.pass_time(1)
        closed.append(sum(device.closed for device in devices))
    assert closed == [2, 4, 6, 6]


def test_each_way_to_publish_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    device = bench.connect("c", version=V311)
    asked: list[AccessContext] = []

    def authorize(who: Principal, what: Operation, on: Resource, context: AccessContext) -> None:
        asked.append(context)

    monkeypatch.setattr(bench.hub, "_authorize", authorize)
    for _ in range(3):
        device.send(Publish("t", b"x", 1, packet_id=1))
        device.send(Publish("t", b"x", 1, retain=True, packet_id=2))
        bench.store()
    assert [(each.client_id, each.qos, each.retain) for each in asked] == [
        ("c", 1, False),
        ("c", 1, True),
    ]
    bench.hub.access_changed()
    device.send(Publish("t", b"x", 1, packet_id=3))
    assert len(asked) == 3


def test_a_client_over_its_quota_is_not_read_from_but_not_given_up() -> None:
    bench = Bench()
    device = bench.connect("c", keep_alive_s=60)
    charged: list[tuple[str, int]] = []
    waits = iter([0, 700, 500_000])

    def charge(who: Principal, *, bytes_in: int, records_in: int) -> int:
        charged.append((who.name, records_in))
        return next(waits)

    bench.hub.rights.charge = charge
    device.send(Publish("t", b"x" * 100))
    assert not device.connection.overloaded
    device.send(Publish("t", b"x" * 100))
    assert device.connection.overloaded
    assert device.connection.throttle is not None
    assert device.connection.throttle.wait_ms == 700
    device.send(Publish("t", b"x" * 100))
    assert device.connection.throttle.wait_ms == 30_000, "it wants an answer to its PINGREQ"
    assert charged == [("anonymous", 1)] * 3
    bench.pass_time(100)
    assert not device.closed, "the broker kept it waiting, so it may be silent for longer"
    bench.pass_time(30)
    assert device.closed
