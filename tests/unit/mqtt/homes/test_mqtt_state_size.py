"""Goal: what a client may do to its session leaves a state that nodes can hand to each other."""

from __future__ import annotations

import pytest

from lakemq.plugins.mqtt.homes.moving import STATE_MAX_BYTES
from lakemq.plugins.mqtt.limits import SHARED_INCOMING_MAX, SHARED_SUBSCRIPTIONS_MAX_BYTES
from lakemq.plugins.mqtt.session import publishing
from lakemq.plugins.mqtt.state.delivery import QUEUE_KEPT_MAX, Delivery
from lakemq.plugins.mqtt.state.snapshots import session_bytes
from lakemq.plugins.mqtt.wire.messages import Place
from lakemq.plugins.mqtt.wire.packets import (
    V5,
    V311,
    Acknowledgement,
    Filter,
    PacketType,
    Publish,
    Suback,
    Subscribe,
    Unsubscribe,
)
from lakemq.plugins.mqtt.wire.reasons import Reason
from tests.support.mqtt.bench import Bench, Device

LONG = "x" * 60_000


def ask(device: Device, number: int) -> int:
    device.send(Subscribe(1, (Filter(f"{number:05}/{LONG}", 1),)))
    (answer,) = device.received()
    assert isinstance(answer, Suback)
    return answer.codes[0]


@pytest.mark.parametrize("shared", [True, False])
def test_filters_of_a_session_are_bounded_where_it_may_move(shared: bool) -> None:
    bench = Bench()
    bench.hub.ended = {} if shared else None
    device = connected(bench)
    most = SHARED_SUBSCRIPTIONS_MAX_BYTES // (len(LONG) + 6)
    assert [ask(device, number) for number in range(most)] == [1] * most
    assert ask(device, 0) == 1  # it is replaced
    assert ask(device, most) == (Reason.QUOTA_EXCEEDED if shared else 1)
    device.send(Unsubscribe(2, (f"00000/{LONG}",)))
    device.received()
    assert ask(device, most + 1) == 1


def connected(bench: Bench, version: int = V5) -> Device:
    ended, bench.hub.ended = bench.hub.ended, None
    device = bench.connect("d", version=version)
    bench.hub.ended = ended
    return device


@pytest.mark.parametrize("version", [V311, V5])
def test_unreleased_publishes_of_a_session_are_bounded(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "SHARED_INCOMING_MAX", 2)
    bench = Bench()
    bench.hub.ended = {}
    device = connected(bench, version)
    for packet_id in (1, 2, 3):
        device.send(Publish("t", b"x", 2, packet_id=packet_id))
    if version == V311:
        assert device.closed
        return
    bench.store()
    *_, refused = device.received()
    assert isinstance(refused, Acknowledgement)
    assert (refused.packet_id, refused.reason) == (3, Reason.QUOTA_EXCEEDED)
    device.send(Acknowledgement(PacketType.PUBREL, 1), Publish("t", b"x", 2, packet_id=4))
    bench.store()
    answers = [one for one in device.received() if isinstance(one, Acknowledgement)]
    assert Acknowledgement(PacketType.PUBREC, 4) in answers


def test_what_is_at_all_bounds_can_be_handed_over() -> None:
    bench = Bench()
    device = connected(bench)
    session = device.connection.session
    assert session is not None
    bench.hub.ended = {}
    size = 200
    for number in range(SHARED_SUBSCRIPTIONS_MAX_BYTES // size):
        device.send(Subscribe(1, (Filter(f"{number:05}/" + "x" * (size - 6), 1),)))
    assert session.subscription_bytes > 0.9 * SHARED_SUBSCRIPTIONS_MAX_BYTES
    for number in range(SHARED_INCOMING_MAX):
        session.incoming[number + 1] = Place("telemetry", 100, 10**12 + number)
    queue = [
        Delivery(None, 1, False, (), place=Place("telemetry", 100, 10**12 + number))
        for number in range(QUEUE_KEPT_MAX)
    ]
    session.outbound.restore([], queue)
    positions = {("telemetry", number): 10**12 for number in range(1000)}
    assert len(session_bytes(session, positions)) < STATE_MAX_BYTES
