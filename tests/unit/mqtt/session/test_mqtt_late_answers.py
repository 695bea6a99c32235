"""Answers to publishes that are stored by several, at different times: what comes late, or before
its turn."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from lakemq.broker_core.api.errors import LakeMQError, NotLeader, OutcomeUnknown, StorageFull
from lakemq.broker_core.api.records.batch import encode
from lakemq.broker_core.api.types import CommittedBatch, Offset, Operation, Placed
from lakemq.plugins.mqtt.routing.bindings import Binding
from lakemq.plugins.mqtt.state.appends import PendingAppend
from lakemq.plugins.mqtt.wire.packets import (
    V5,
    V311,
    Acknowledgement,
    PacketType,
    Properties,
    Publish,
)
from tests.support.mqtt.bench import Bench, Device
from tests.support.mqtt.crash import CrashBench
from tests.support.seeds import seeds

LASTING = Properties(session_expiry_s=1000)
PUBREC, PUBREL, PUBCOMP = PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP


class Late(CrashBench):
    """Records are heard first, and answered when told."""

    def __init__(self) -> None:
        super().__init__()
        self.end = 0

    def hear(self) -> PendingAppend:
        (lane,) = self.hub.outbox.appends.take()
        data = encode(lane.columns(), now_ms=self.now_ms, base_offset=self.end)
        self.commit(CommittedBatch(lane.topic, 0, Offset(self.end), data))
        self.end += len(lane.values)
        return lane

    def answer(self, lane: PendingAppend, offset: int) -> None:
        lane.settle([0], Placed(0, Offset(offset)), self.now_ms)
        self.settle()

    def device(self) -> Device:
        return self.connect("d", version=V5, clean=False, properties=LASTING)


def publish(payload: bytes, dup: bool = False) -> Publish:
    return Publish("a", payload, 2, False, dup, 7)


def kinds(device: Device) -> list[Any]:
    return [(one.type, one.reason) for one in device.received() if type(one) is Acknowledgement]


def test_an_answer_behind_pubrel_keeps_no_identifier() -> None:
    bench = Late()
    device = bench.device()
    device.send(publish(b"1"))
    first = bench.hear()
    device.lose()
    device = bench.device()
    device.send(publish(b"1", dup=True))
    assert kinds(device) == [(PUBREC, 0)]
    device.send(Acknowledgement(PUBREL, 7))
    bench.settle()
    assert kinds(device) == [(PUBCOMP, 0)]
    bench.answer(first, 0)
    assert kinds(device) == []
    # The identifier is free: what comes under it is another publish, also while that is stored.
    device.send(publish(b"2"))
    second = bench.hear()
    bench.answer(first, 0)
    bench.answer(second, 1)
    assert kinds(device) == [(PUBREC, 0)]
    assert [one.payload for one in bench.messages.values()] == [b"1", b"2"]


def test_a_late_answer_to_several_finishes_none_that_came_since() -> None:
    bench = Late()
    device = bench.device()
    device.send(Publish("a", b"0", 2, packet_id=6))
    bench.answer(bench.hear(), 0)
    device.send(publish(b"1"), Publish("a", b"2", 2, packet_id=8))
    both = bench.hear()
    device.lose()
    device = bench.device()
    device.send(publish(b"1", dup=True), Acknowledgement(PUBREL, 7))
    bench.settle()
    assert kinds(device) == [(PUBREC, 0), (PUBCOMP, 0)]
    device.send(publish(b"3"))
    both.settle([0, 1], Placed(0, Offset(1)), bench.now_ms)
    assert kinds(device) == [], "one is another publish by now, the other was not asked for again"
    device.send(Publish("a", b"2", 2, dup=True, packet_id=8))
    assert kinds(device) == [(PUBREC, 0)]
    (lane,) = bench.hub.outbox.appends.take()
    assert lane.values == [b"3"]


def test_a_publish_that_comes_twice_on_a_connection_is_answered_once() -> None:
    """Older 3.1.1 clients send again after some seconds. With two answers the late one would be
    taken for the next publish under the identifier, before that is stored. Seed 69 of the
    simulation of whole engines was the first to show it, with other answers to repeated publishes.
    """
    bench = Late()
    device = bench.connect("d", version=V311, clean=False)
    device.send(publish(b"1"))
    first = bench.hear()
    device.send(publish(b"1", dup=True))
    assert kinds(device) == [], "its answer is on its way"
    bench.answer(first, 0)
    assert kinds(device) == [(PUBREC, 0)]
    device.send(publish(b"1", dup=True))
    assert kinds(device) == [(PUBREC, 0)], "that one may be lost"
    device.send(Acknowledgement(PUBREL, 7))
    bench.settle()
    assert kinds(device) == [(PUBCOMP, 0)]


@pytest.mark.parametrize("heard", [False, True], ids=["stored", "heard"])
@pytest.mark.parametrize("repeated", ["before", "behind"])
def test_a_client_that_came_back_is_answered_once(heard: bool, repeated: str) -> None:
    """It sends its PUBLISH again, before or behind what it is answered by."""
    bench = Late()
    device = bench.device()
    device.send(publish(b"1"))
    if heard:
        first = bench.hear()
    else:
        (first,) = bench.hub.outbox.appends.take()
    device.lose()
    device = bench.device()
    if repeated == "before":
        device.send(publish(b"1", dup=True))
        assert kinds(device) == ([(PUBREC, 0)] if heard else [])
    bench.answer(first, 0)
    if repeated == "behind":
        assert kinds(device) == [], "it will send it again"
        device.send(publish(b"1", dup=True))
    assert kinds(device) == ([] if heard and repeated == "before" else [(PUBREC, 0)])
    device.send(Acknowledgement(PUBREL, 7))
    bench.settle()
    assert kinds(device) == [(PUBCOMP, 0)]
    # The identifier is free for another publish, which is answered when it is stored.
    device.send(publish(b"2"))
    assert kinds(device) == []
    (second,) = bench.hub.outbox.appends.take()
    bench.answer(second, 1)
    assert kinds(device) == [(PUBREC, 0)]


@pytest.mark.parametrize("version", [V311, V5])
def test_a_client_that_came_back_hears_that_its_publish_is_not_stored(version: int) -> None:
    bench = Late()
    options: dict[str, Any] = {"version": version, "clean": False}
    if version == V5:
        options["properties"] = LASTING
    device = bench.connect("d", **options)
    device.send(publish(b"1"))
    (first,) = bench.hub.outbox.appends.take()
    device.lose()
    device = bench.connect("d", **options)
    device.send(publish(b"1", dup=True))
    first.fail(StorageFull("no room"), bench.now_ms)
    bench.settle()
    assert device.connection.closing is not None
    device.lose()
    device = bench.connect("d", **options)
    device.send(publish(b"1", dup=True))
    (again,) = bench.hub.outbox.appends.take()
    bench.answer(again, 0)
    assert kinds(device) == [(PUBREC, 0)]


def test_an_answer_behind_the_release_of_another_publish_is_given() -> None:
    """Answers may come in another order than the publishes."""
    bench = Late()
    device = bench.device()
    device.send(publish(b"1"))
    (first,) = bench.hub.outbox.appends.take()
    device.send(Publish("a", b"2", 2, False, False, 8))
    second = bench.hear()
    device.lose()
    device = bench.device()
    device.send(Publish("a", b"2", 2, False, True, 8))
    assert kinds(device) == [(PUBREC, 0)], "its record has come"
    device.send(Acknowledgement(PUBREL, 8))
    bench.settle()
    assert kinds(device) == [(PUBCOMP, 0)]
    device.send(publish(b"1", dup=True))
    bench.answer(second, 0)
    assert kinds(device) == []
    bench.answer(first, 1)
    assert kinds(device) == [(PUBREC, 0)]


def test_a_late_failure_ends_no_other_publish() -> None:
    bench = Late()
    device = bench.device()
    device.send(publish(b"1"))
    first = bench.hear()
    device.lose()
    device = bench.device()
    device.send(publish(b"1", dup=True))
    device.send(Acknowledgement(PUBREL, 7))
    bench.settle()
    device.received()
    device.send(publish(b"2"))
    (second,) = bench.hub.outbox.appends.take()
    first.fail(OutcomeUnknown("no answer"), bench.now_ms)
    device.send(publish(b"2", dup=True))
    assert not bench.hub.outbox.appends.take(), "it is being stored"
    bench.answer(second, 1)
    assert kinds(device) == [(PUBREC, 0)]


def test_a_record_that_came_says_more_than_a_failure() -> None:
    bench = Late()
    device = bench.device()
    device.send(publish(b"1"))
    bench.hear().fail(OutcomeUnknown("no answer"), bench.now_ms)
    assert kinds(device) == [(PUBREC, 0)]
    device.send(publish(b"1", dup=True))
    assert not bench.hub.outbox.appends.take()


@pytest.mark.parametrize("error", [OutcomeUnknown("no answer"), NotLeader("it has moved")])
def test_what_may_be_stored_yet_is_not_refused(error: LakeMQError) -> None:
    bench = Late()
    device = bench.device()
    device.send(publish(b"1"))
    (lane,) = bench.hub.outbox.appends.take()
    lane.fail(error, bench.now_ms)
    assert device.closed
    assert kinds(device) == []


def test_what_is_not_stored_is_refused() -> None:
    bench = Late()
    device = bench.device()
    device.send(publish(b"1"))
    (lane,) = bench.hub.outbox.appends.take()
    lane.fail(StorageFull("full"), bench.now_ms)
    assert not device.closed
    assert kinds(device) == [(PUBREC, 0x97)]


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("seed", seeds(40))
def test_answers_keep_the_order_of_the_publishes(seed: int, version: int) -> None:
    """[MQTT-4.6.0-2], [MQTT-4.6.0-3]: whatever is stored first, in memory only, or refused."""
    chance = random.Random(seed)
    bench = Bench(bindings=(Binding("a", "mqtt"), Binding("b", "other")))
    bench.forbidden.add((Operation.WRITE, "refused"))
    device = bench.connect("d", version=version)
    sent: list[tuple[PacketType, int]] = []
    waiting: list[tuple[PendingAppend, Sequence[int]]] = []
    for _ in range(60):
        if waiting and chance.random() < 0.5:
            lane, indexes = waiting.pop(chance.randrange(len(waiting)))
            lane.settle(indexes, Placed(indexes[0] % 3, Offset(indexes[0])), bench.now_ms)
            continue
        qos, first = chance.choice([1, 2]), len(sent) + 1
        name = chance.choice(["a", "a", "b", "memory", *["refused"] * (version == V5)])
        packet_ids = range(first, first + chance.choice([1, 1, 3]))
        device.send(*(Publish(name, b"x", qos, packet_id=each) for each in packet_ids))
        sent += [(PacketType.PUBACK if qos == 1 else PUBREC, each) for each in packet_ids]
        for lane in bench.hub.outbox.appends.take():
            whole = range(len(lane.values))
            waiting += [(lane, whole)] if chance.random() < 0.5 else [(lane, [i]) for i in whole]
    chance.shuffle(waiting)
    for lane, indexes in waiting:
        lane.settle(indexes, Placed(indexes[0] % 3, Offset(indexes[0])), bench.now_ms)
    answers = [one for one in device.received() if isinstance(one, Acknowledgement)]
    assert [(one.type, one.packet_id) for one in answers] == sent
