"""Goal: a few bytes from a client make the broker hold and send a bounded amount at a time."""

from __future__ import annotations

import pytest

from lakemq.plugins.mqtt.session.connection import OUT_MAX_BYTES
from lakemq.plugins.mqtt.session.progress import ROUTES_MAX
from lakemq.plugins.mqtt.session.subscribing import RETAINED_BYTES_PER_TURN, RETAINED_PER_TURN
from lakemq.plugins.mqtt.state.delivery import DeliveryLimits
from lakemq.plugins.mqtt.wire.encoding import encode
from lakemq.plugins.mqtt.wire.packets import (
    NO_LOCAL,
    V5,
    V311,
    Acknowledgement,
    Filter,
    PacketType,
    Properties,
    Publish,
    Suback,
    Subscribe,
    Unsubscribe,
)
from tests.support.mqtt.bench import Bench, Device


def retaining(count: int, payload: bytes = b"x") -> Bench:
    bench = Bench(bindings=(), delivery=DeliveryLimits(queue_count_max=100_000))
    sender = bench.connect("sender")
    for number in range(count):
        sender.send(Publish(f"r/{number}", payload, retain=True))
    return bench


def waiting_bytes(device: Device) -> int:
    return sum(map(len, device.connection.out))


@pytest.mark.parametrize("qos", [0, 1])
def test_asking_for_a_large_retained_message_over_and_over(qos: int) -> None:
    bench = retaining(1, bytes(100_000))
    device = bench.connect("d")
    device.send_bytes(encode(Subscribe(1, (Filter("r/0", qos),)), V311) * 5000)
    assert waiting_bytes(device) <= OUT_MAX_BYTES + 1_000_000
    got = device.received()
    assert len([each for each in got if isinstance(each, Suback)]) == 5000
    assert any(isinstance(each, Publish) for each in got)
    assert not device.closed


def test_filters_that_all_ask_for_everything() -> None:
    """However many filters a packet has, one turn sends a part, and all of it comes in the end."""
    bench = retaining(3 * RETAINED_PER_TURN)
    device = bench.connect("d", version=V5)
    device.send(Subscribe(1, (Filter("#"), Filter("+/#"), Filter("r/+"), Filter("r/#"))))
    got = [each.topic for each in device.decoded() if isinstance(each, Publish)]
    assert len(got) == RETAINED_PER_TURN
    got += [each.topic for each in device.received() if isinstance(each, Publish)]
    assert bench.hub.delivery.sent == device.connection.traffic.sent[0] == len(got)
    assert len(got) == 4 * 3 * RETAINED_PER_TURN
    assert len(set(got)) == 3 * RETAINED_PER_TURN


def test_a_filter_that_is_asked_for_twice_in_one_packet_is_served_once() -> None:
    bench = retaining(10)
    device = bench.connect("d")
    device.send(Subscribe(1, (Filter("#"),) * 100))
    assert len(device.publishes()) == 10


@pytest.mark.parametrize("payload", [b"newer", b""])
def test_what_changes_before_its_turn_is_not_sent_as_it_was(payload: bytes) -> None:
    """Nor is what is forgotten."""
    bench = retaining(2 * RETAINED_PER_TURN)
    device, sender = bench.connect("d"), bench.connect("s")
    device.send(Subscribe(1, (Filter("#"),)))
    sent = {each.topic for each in device.decoded() if isinstance(each, Publish)}
    changed = min({f"r/{n}" for n in range(2 * RETAINED_PER_TURN)} - sent)
    sender.send(Publish(changed, payload, retain=True))
    got = [(each.topic, each.payload) for each in device.received() if isinstance(each, Publish)]
    assert [found for topic, found in got if topic == changed] == [payload]
    assert len(got) == RETAINED_PER_TURN


@pytest.mark.parametrize("qos", [0, 1])
def test_a_turn_sends_a_bounded_amount_of_retained_messages(qos: int) -> None:
    bench = Bench(bindings=(), delivery=DeliveryLimits(inflight_max=10_000))
    sender, device = bench.connect("s"), bench.connect("d")
    for number in range(2500):
        size = 4000 if number < 500 else 1
        sender.send(Publish(f"r/{number}", bytes(size), qos, retain=True, packet_id=qos))
    device.send(Subscribe(1, (Filter("#", qos),)))
    turns = []
    while got := [len(each.payload) for each in device.decoded() if isinstance(each, Publish)]:
        turns.append(got)
        bench.turn()
    assert sum(map(len, turns)) == 2500
    assert max(map(len, turns)) <= RETAINED_PER_TURN
    assert max(map(sum, turns)) <= RETAINED_BYTES_PER_TURN + 4000


def test_retained_messages_that_are_too_large_or_ones_own_are_left_out() -> None:
    bench = Bench(bindings=())
    small = Properties(packet_max_bytes=200)
    device = bench.connect("d", version=V5, properties=small)
    sender = bench.connect("s")
    for number in range(9):
        sender.send(Publish(f"r/{number}", bytes(120 * (number % 3) + 1), retain=True))
    device.send(Publish("r/own", b"mine", retain=True))
    device.send(Subscribe(1, (Filter("#", NO_LOCAL), Filter("r/#"))))
    got = [each.topic for each in device.received() if isinstance(each, Publish)]
    fitting = {f"r/{number}" for number in range(9) if number % 3 < 2}
    assert len(got) == 2 * 6 + 1 and set(got) == {*fitting, "r/own"}
    assert bench.hub.delivery.dropped_too_large == 2 * 3


def test_retained_messages_wait_behind_large_publishes() -> None:
    bench = retaining(5, bytes(200_000))
    device, sender = bench.connect("d", version=V5), bench.connect("s")
    device.subscribe("live")
    for _ in range(13):
        sender.send(Publish("live", bytes(310_000)))
    device.send(Subscribe(2, (Filter("r/#"),)))
    assert waiting_bytes(device) <= OUT_MAX_BYTES + 201_000
    assert len(device.publishes()) == 13 + 5
    assert bench.hub.delivery.dropped_qos_0 == 0


def test_a_client_whose_socket_is_full_gets_no_retained_messages_on_top() -> None:
    bench = retaining(5)
    device = bench.connect("d")
    device.connection.blocked = True
    device.send(Subscribe(1, (Filter("#"),)))
    assert device.publishes() == []
    assert bench.hub.delivery.dropped_qos_0 == 5


def test_unsubscribing_ends_what_is_due() -> None:
    bench = retaining(3 * RETAINED_PER_TURN)
    device = bench.connect("d")
    device.send(Subscribe(1, (Filter("#"),)), Unsubscribe(2, ("#",)))
    assert len(device.publishes()) == RETAINED_PER_TURN
    assert not device.connection.owed


def test_what_is_due_waits_for_a_socket_that_is_full() -> None:
    bench = retaining(3 * RETAINED_PER_TURN)
    device = bench.connect("d")
    device.send(Subscribe(1, (Filter("#"),)))
    device.connection.blocked = True
    assert len(device.publishes()) == RETAINED_PER_TURN
    device.connection.unblocked(bench.now_ms)
    assert len(device.publishes()) == 2 * RETAINED_PER_TURN


def test_large_retained_messages_of_many_filters_all_come() -> None:
    """None is dropped because those before it are not with the socket yet."""
    bench = retaining(20, bytes(900_000))
    device = bench.connect("d")
    for number in range(20):
        device.send(Subscribe(number + 1, (Filter(f"r/{number}"),)))
    assert waiting_bytes(device) <= OUT_MAX_BYTES + 1_000_000
    assert len(device.publishes()) == 20


def test_large_publishes_beyond_a_bound_wait_in_the_queue_of_their_session() -> None:
    bench = Bench(bindings=())
    device, sender = bench.connect("d"), bench.connect("s")
    device.subscribe("t", qos=1)
    for number in range(1, 101):
        sender.send(Publish("t", bytes(200_000), 1, packet_id=number))
    assert waiting_bytes(device) <= OUT_MAX_BYTES + 200_100
    got = 0
    while publishes := [each for each in device.decoded() if isinstance(each, Publish)]:
        got += len(publishes)
        assert waiting_bytes(device) <= OUT_MAX_BYTES + 200_100
        device.send(*(Acknowledgement(PacketType.PUBACK, each.packet_id) for each in publishes))
        assert waiting_bytes(device) <= OUT_MAX_BYTES + 200_100
    assert got == 100


# -- what is remembered of names


def test_long_topic_names_are_not_remembered() -> None:
    bench = Bench(bindings=())
    device = bench.connect("d")
    for number in range(200):
        device.send(Publish(f"{number}" + "x" * 60_000, b"", 0))
    connection = device.connection
    remembered = sum(map(len, connection.routes)) + sum(map(len, connection.express))
    remembered += sum(map(len, connection.stored))
    assert remembered <= ROUTES_MAX * 512
    assert not connection.routes


def test_so_many_topic_names_are_remembered() -> None:
    bench = Bench()
    device = bench.connect("d", version=V5)
    for number in range(ROUTES_MAX + 10):
        device.send(Publish(f"{number}", b"", 1, packet_id=number + 1))
    connection = device.connection
    assert 0 < len(connection.routes) <= ROUTES_MAX >= len(connection.stored) > 0


def test_publishes_that_are_passed_on_as_they_came_do_not_make_a_client_slow() -> None:
    """A socket may give many buffers in one turn; a reader gets all that was read in it."""
    bench = Bench()
    reader, writer = bench.connect("r"), bench.connect("w")
    reader.send(Subscribe(1, (Filter("t", 0),)))
    one = encode(Publish("t", bytes(100)), V311)
    writer.send_bytes(one)
    reader.received()
    count = 2 * OUT_MAX_BYTES // len(one)
    step = count // 16
    for _ in range(16):
        writer.send_bytes(step * one)
    assert not reader.connection.blocked
    assert len(reader.received()) == 16 * step
    assert bench.hub.delivery.dropped_qos_0 == 0
