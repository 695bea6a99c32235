"""Goal: what the core wants done is in the outbox after each input, and nothing else is."""

from __future__ import annotations

from lakemq.broker_core.api.types import Acks, Operation
from lakemq.plugins.mqtt.routing.outbox import Effects
from lakemq.plugins.mqtt.session.subscribing import RETAINED_PER_TURN
from lakemq.plugins.mqtt.wire.packets import (
    V5,
    Disconnect,
    Filter,
    PacketType,
    Ping,
    Publish,
    Subscribe,
)
from tests.support.mqtt.bench import Bench

NOTHING = Effects([], [], [], [], [], [], [], [], [])


def test_a_publish_is_one_append_and_nothing_is_written_before_it_is_stored() -> None:
    bench = Bench()
    device = bench.connect("device")
    bench.hub.outbox.take()
    device.send(Publish("a", b"1", 1, packet_id=1), Publish("a", b"2", 1, packet_id=2))
    effects = bench.hub.outbox.take()
    (append,) = effects.appends
    assert (append.topic, append.acks, append.values) == ("mqtt", Acks.LEADER, [b"1", b"2"])
    assert effects._replace(appends=[]) == NOTHING
    assert not device.connection.out
    assert not bench.hub.outbox


def test_what_is_stored_is_one_write_for_all_acknowledgements() -> None:
    bench = Bench()
    device = bench.connect("device")
    device.send(*(Publish("a", b"x", 1, packet_id=number) for number in (1, 2, 3)))
    bench.store()
    assert bench.hub.outbox.take() == NOTHING._replace(writes=[device.connection])
    assert device.connection.out == [b"\x40\x02\0\1\x40\x02\0\2\x40\x02\0\3"]


def test_a_delivery_is_a_write_to_the_subscriber_alone() -> None:
    bench = Bench()
    sender, reader = bench.connect("sender"), bench.connect("reader")
    reader.subscribe("a")
    bench.hub.outbox.take()
    sender.send(Publish("a", b"x"))
    assert bench.hub.outbox.take() == NOTHING._replace(writes=[reader.connection])


def test_an_end_is_a_write_of_a_connection_that_is_closing() -> None:
    bench = Bench()
    device = bench.connect("device", version=V5)
    bench.hub.outbox.take()
    device.send(Disconnect())
    assert bench.hub.outbox.take() == NOTHING._replace(writes=[device.connection])
    assert device.connection.closing == "the client disconnected"


def test_a_right_that_is_not_known_is_a_question_and_the_packet_waits() -> None:
    bench = Bench()
    bench.undecided.add((Operation.WRITE, "a"))
    device = bench.connect("device")
    bench.hub.outbox.take()
    device.send(Publish("a", b"x", 1, packet_id=1))
    effects = bench.hub.outbox.take()
    ((question, then),) = effects.questions
    assert question.resource.name == "a"
    assert effects._replace(questions=[]) == NOTHING
    bench.undecided.clear()
    then(bench.now_ms)
    assert [one.values for one in bench.hub.outbox.take().appends] == [[b"x"]]


def test_a_subscription_to_retained_messages_goes_on_in_the_next_turn() -> None:
    bench = Bench()
    device = bench.connect("device")
    for number in range(RETAINED_PER_TURN + 1):
        device.send(Publish(f"kept/{number}", b"x", retain=True))
    bench.hub.outbox.take()
    device.connection.out.clear()
    device.send(Subscribe(1, (Filter("kept/#", 0),)))
    effects = bench.hub.outbox.take()
    assert effects.retained == [device.connection]
    assert effects._replace(retained=[]) == NOTHING._replace(writes=[device.connection])


def test_an_input_without_effects_leaves_nothing() -> None:
    bench = Bench()
    device = bench.connect("device")
    bench.hub.outbox.take()
    device.send_bytes(b"\x30")  # not all of a packet
    assert not bench.hub.outbox
    assert bench.hub.outbox.take() == NOTHING
    device.send_bytes(b"\x03\0\1a")
    device.send(Ping(PacketType.PINGREQ))
    assert bench.hub.outbox.take() == NOTHING._replace(writes=[device.connection])
