"""Goal: a client of whom somebody must be asked first waits alone, in order, and loses nothing."""

from __future__ import annotations

import random

import pytest

from lakemq.broker_core.api.types import Operation
from lakemq.broker_core.security.authz.answers import Answers
from lakemq.plugins.mqtt.wire.packets import (
    NO_PROPERTIES,
    V5,
    Acknowledgement,
    Disconnect,
    Filter,
    PacketType,
    Ping,
    Properties,
    Publish,
    Suback,
    Subscribe,
    Will,
)
from lakemq.plugins.mqtt.wire.reasons import Reason
from tests.support.mqtt.bench import Bench, Device

READ, WRITE = Operation.READ, Operation.WRITE


def kinds(device: Device) -> list[str]:
    return [type(each).__name__ for each in device.received()]


@pytest.mark.parametrize("allowed", [True, False])
def test_a_publish_waits_and_what_comes_behind_it_stays_behind(allowed: bool) -> None:
    bench = Bench()
    device, other = bench.connect("c", version=V5), bench.connect("d", version=V5)
    other.subscribe("#", qos=1)
    bench.undecided.add((WRITE, "a"))
    if not allowed:
        bench.forbidden.add((WRITE, "a"))
    device.send(
        Publish("a", b"1", 1, packet_id=1),
        Publish("b", b"2", 1, packet_id=2),
        Ping(PacketType.PINGREQ),
    )
    device.send(Publish("b", b"3", 1, packet_id=3))
    assert bench.store() == 0 and not device.decoded() and device.connection.overloaded
    other.send(Publish("b", b"x", 1, packet_id=1))
    assert bench.store() == 1 and "Acknowledgement" in kinds(other), "nobody else waits"
    assert bench.hub.counters.publishes_received == 1
    assert bench.answer_questions() == ["a"]
    assert not device.connection.overloaded
    assert bench.store() == 2 + allowed
    assert bench.hub.counters.publishes_received == 4
    assert bench.hub.counters.publishes_refused == (not allowed)
    answers = [each for each in device.received() if isinstance(each, Acknowledgement)]
    reasons = {each.packet_id: each.reason for each in answers}
    assert reasons == {1: 0 if allowed else Reason.NOT_AUTHORIZED, 2: 0, 3: 0}
    values = [value for lane in bench.stored for value in lane.values]
    assert values == [b"x", *([b"1"] if allowed else []), b"2", b"3"]
    device.send(Publish("a", b"4", 1, packet_id=4))
    assert bench.answer_questions() == [], "a connection remembers"


def test_an_alias_of_a_publish_that_waited_holds() -> None:
    bench = Bench()
    device = bench.connect("c", version=V5)
    bench.undecided.add((WRITE, "a"))
    alias = Properties(topic_alias=1)
    device.send(
        Publish("a", b"1", properties=alias), Publish("", b"2", 1, packet_id=1, properties=alias)
    )
    bench.answer_questions()
    bench.store()
    assert not device.closed and bench.hub.counters.publishes_received == 2


def test_a_subscribe_with_many_filters_goes_on_where_it_was() -> None:
    bench = Bench()
    device = bench.connect("c", version=V5)
    names = [f"f/{number}" for number in range(20)]
    bench.undecided |= {(READ, name) for name in names[::2]}
    bench.forbidden |= {(READ, name) for name in names[:4]}
    device.send(Subscribe(7, tuple(Filter(name, 1) for name in names)))
    asked: list[str] = []
    while found := bench.answer_questions():
        assert len(found) == 1, "one question of a client at a time"
        asked += found
    assert asked == names[::2]
    (suback,) = device.received()
    assert isinstance(suback, Suback)
    assert suback.codes == (*[Reason.NOT_AUTHORIZED] * 4, *[1] * 16)
    assert device.connection.session is not None
    assert list(device.connection.session.subscriptions) == names[4:]


def test_a_client_that_left_meanwhile_is_not_heard_again() -> None:
    bench = Bench()
    device = bench.connect("c")
    bench.undecided.add((WRITE, "a"))
    device.send(Publish("a", b"1", 1, packet_id=1))
    device.lose()
    bench.answer_questions()
    assert bench.store() == 0 and bench.hub.counters.publishes_received == 0


def test_bytes_that_are_no_packet_are_told_of_behind_what_waits() -> None:
    bench = Bench()
    device = bench.connect("c", version=V5)
    bench.undecided.add((WRITE, "a"))
    device.send(Publish("a", b"1", 1, packet_id=1)).send_bytes(b"\x00\x00")
    assert not device.closed
    bench.answer_questions()
    assert bench.store() == 1
    assert device.closed and any(isinstance(each, Disconnect) for each in device.received())


@pytest.mark.parametrize("allowed", [True, False])
def test_a_will_is_asked_about_when_its_client_is_gone(allowed: bool) -> None:
    bench = Bench()
    bench.undecided.add((WRITE, "will"))
    if not allowed:
        bench.forbidden.add((WRITE, "will"))
    bench.connect("c", will=Will("will", b"bye", 1, False, NO_PROPERTIES)).lose()
    assert bench.store() == 0
    assert bench.answer_questions() == ["will"]
    assert bench.store() == allowed == bench.hub.counters.wills_published


def test_a_session_that_comes_back_keeps_what_is_asked_about_until_the_answer() -> None:
    bench = Bench()
    kept = Properties(session_expiry_s=100)
    first = bench.connect("c", version=V5, clean=False, properties=kept)
    first.subscribe("a", "b", "d")
    (session,) = bench.hub.sessions.values()
    first.lose()
    bench.undecided |= {(READ, "a"), (READ, "b")}
    bench.forbidden |= {(READ, "b"), (READ, "d")}
    device = bench.connect("c", version=V5, clean=False, properties=kept)
    assert set(session.subscriptions) == {"a", "b"}
    asked = bench.answer_questions() + bench.answer_questions()
    assert sorted(asked) == ["a", "b"] and not bench.hub.outbox.questions
    assert set(session.subscriptions) == {"a"}
    assert device.closed, "a client learns of a right that it lost"


def test_answers_are_bounded_and_a_flood_forgets_its_own() -> None:
    answers: Answers[bool] = Answers(10, 100)
    answers.put("quiet", ("x",), True, 50)
    for number in range(1000):
        answers.put("loud", (str(number),), False, 50)
    assert len(answers) == 11
    assert answers.get("quiet", ("x",), 49) == (True,) and answers.get("quiet", ("x",), 50) is None
    assert answers.get("loud", ("989",), 0) is None and answers.get("loud", ("990",), 0) == (False,)


def test_who_was_answered_longest_ago_is_forgotten_first() -> None:
    answers: Answers[bool] = Answers(5, 3)
    for client, name in (("a", "1"), ("b", "1"), ("a", "2"), ("c", "1")):
        answers.put(client, (name,), True, 1)
    assert answers.get("b", ("1",), 0) is None
    assert all(answers.get(*one, 0) for one in (("a", ("1",)), ("a", ("2",)), ("c", ("1",))))


def test_answers_of_all_clients_are_bounded() -> None:
    chance = random.Random(3)
    answers: Answers[int] = Answers(5, 20)
    for number in range(2000):
        client = str(chance.randrange(30))
        answers.put(client, (str(chance.randrange(8)),), number, 1)
        held = sum(map(len, answers._clients.values()))
        assert len(answers) == held <= 20
