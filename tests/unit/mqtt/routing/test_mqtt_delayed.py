"""Goal: `$delayed/<seconds>/<topic name>` publishes later, once, and within its bounds."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.broker_core.api.errors import StorageFull, Unavailable
from lakemq.broker_core.api.types import Operation, Principal
from lakemq.plugins.mqtt.routing.bindings import Binding
from lakemq.plugins.mqtt.routing.delayed import (
    Delayed,
    DelayLimits,
    delayed_bytes,
    read_delayed,
    split_delayed,
)
from lakemq.plugins.mqtt.state.stored_values import BadSnapshot
from lakemq.plugins.mqtt.wire.packets import (
    V5,
    V311,
    Acknowledgement,
    PacketType,
    Properties,
    Publish,
    Will,
)
from lakemq.plugins.mqtt.wire.reasons import ProtocolError, Reason
from tests.support.mqtt.bench import Bench
from tests.support.mqtt.crash import CrashBench

KEPT = Properties(session_expiry_s=10_000)


@pytest.mark.parametrize(
    "text", ["$delayed/5", "$delayed/5/", "$delayed//t", "$delayed/x/t", "$delayed/-1/t",
             "$delayed/12345678901/t", "$delayed/٣/t", "$delayed/5/$delayed/5/t", "$delayed/5/a+"],
)  # fmt: skip
def test_what_is_no_delay(text: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        split_delayed(text)
    assert caught.value.reason == Reason.TOPIC_NAME_INVALID


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("topic", ["kept/t", "fleeting/t"])
def test_a_delayed_publish_comes_when_it_is_due(topic: str, qos: int, durable: bool) -> None:
    bindings = (Binding("kept/#", "kept"),)
    bench = CrashBench(bindings=bindings) if durable else Bench(bindings=bindings)
    watcher, sender = bench.connect("w"), bench.connect("s", version=V5)
    watcher.subscribe("#", "$delayed/#", qos=2)
    sender.send(Publish(f"$delayed/5/{topic}", b"x", qos, packet_id=7 * bool(qos)))
    bench.store()
    answers = {0: [], 1: [Acknowledgement(PacketType.PUBACK, 7)],
               2: [Acknowledgement(PacketType.PUBREC, 7)]}  # fmt: skip
    assert sender.received() == answers[qos]
    bench.pass_time(4)
    bench.store()
    assert watcher.received() == []
    bench.pass_time(1)
    bench.store()
    (packet,) = watcher.received()
    assert (packet.topic, packet.payload, packet.qos) == (topic, b"x", qos)
    bench.pass_time(100)
    bench.store()
    assert watcher.received() == []
    delays = bench.hub.delays
    assert (len(delays), delays.size_bytes, delays.published) == (0, 0, 1)


def test_they_come_in_the_order_in_which_they_are_due() -> None:
    bench = Bench(bindings=())
    watcher, sender = bench.connect("w"), bench.connect("s")
    watcher.subscribe("t")
    for seconds in (9, 3, 6, 0, 3):
        sender.send(Publish(f"$delayed/{seconds}/t", b"%d" % seconds))
    got = []
    for _ in range(10):
        bench.pass_time(1)
        got += [payload for _, payload in watcher.publishes()]
    assert got == [b"0", b"3", b"3", b"6", b"9"]


def test_nothing_is_published_before_it_is_known_what_was() -> None:
    bench = Bench(bindings=())
    watcher, sender = bench.connect("w"), bench.connect("s")
    watcher.subscribe("t")
    sender.send(Publish("$delayed/1/t", b"x"))
    bench.hub.delays.ready = False
    bench.pass_time(5)
    assert watcher.publishes() == []
    bench.hub.delays.ready = True
    bench.pass_time(1)
    assert watcher.publishes() == [("t", b"x")]


def test_properties_and_the_retain_flag_come_with_it() -> None:
    bench = CrashBench()
    sender = bench.connect("s", version=V5)
    properties = Properties(message_expiry_s=10, user_properties=(("a", "b"),), content_type="c")
    sender.send(Publish("$delayed/60/t", b"x", 1, True, packet_id=1, properties=properties))
    bench.settle()
    assert bench.hub.retained.get("t") is None
    bench.crash()
    bench.pass_time(60)
    bench.settle()
    device = bench.connect("d", version=V5)
    device.subscribe("t")
    (packet,) = device.received()
    assert packet.retain
    assert packet.properties.user_properties == (("a", "b"),)
    assert packet.properties.content_type == "c"
    assert packet.properties.message_expiry_s == 10  # counted since it was published
    sender = bench.connect("s", version=V5)
    sender.send(Publish("$delayed/5/t", b"", 1, True, packet_id=1))
    bench.settle()
    assert bench.hub.retained.get("t") is not None
    bench.pass_time(5)
    bench.settle()
    assert bench.hub.retained.get("t") is None


def test_a_will_may_be_delayed() -> None:
    bench = CrashBench()
    watcher = bench.connect("w")
    watcher.subscribe("gone")
    bench.connect("d", will=Will("$delayed/30/gone", b"x", 1)).lose()
    bench.connect("e", will=Will("$delayed/never/gone", b"x", 1)).lose()
    bench.settle()
    bench.pass_time(29)
    bench.settle()
    assert watcher.publishes() == []
    bench.pass_time(1)
    bench.settle()
    assert watcher.publishes() == [("gone", b"x")]
    assert bench.hub.counters.publishes_refused == 1


@pytest.mark.parametrize(
    "limits", [DelayLimits(delayed_count_max=2), DelayLimits(delayed_max_bytes=700),
               DelayLimits(delayed_max_s=4)],
)  # fmt: skip
def test_delays_are_bounded(limits: DelayLimits) -> None:
    bench = CrashBench(delay_limits=limits)
    sender, old = bench.connect("s", version=V5), bench.connect("o", version=V311)
    for number, seconds in enumerate((3, 4, 5), 1):
        sender.send(Publish(f"$delayed/{seconds}/t", b"x" * 100, 1, packet_id=number))
    bench.settle()
    answers = {one.packet_id: one.reason for one in sender.received()}
    assert answers == {1: 0, 2: 0, 3: Reason.QUOTA_EXCEEDED}
    assert bench.hub.delays.refused == 1
    assert sender.connection.inflow.appends == 0
    old.send(Publish("$delayed/5/t", b"x" * 100, 1, packet_id=1))
    assert old.closed
    bench.pass_time(10)
    bench.settle()
    sender.send(Publish("$delayed/3/t", b"x" * 100, 1, packet_id=4))
    bench.settle()
    assert sender.one().reason == 0


def test_permission_is_asked_when_it_comes_and_when_it_goes() -> None:
    bench = CrashBench()
    bench.forbidden = {(Operation.WRITE, "locked")}
    sender = bench.connect("s", version=V5)
    sender.send(Publish("$delayed/5/locked", b"", 1, packet_id=1))
    assert sender.one().reason == Reason.NOT_AUTHORIZED
    sender.send(Publish("$delayed/5/$SYS/x", b"", 1, packet_id=1))
    assert sender.one().reason == Reason.NOT_AUTHORIZED
    sender.send(Publish("$delayed/5/later", b"", 1, packet_id=2))
    bench.settle()
    bench.forbidden.add((Operation.WRITE, "later"))
    bench.pass_time(5)
    bench.settle()
    assert "mqtt" not in bench.log
    assert (bench.hub.delays.refused, len(bench.hub.delays)) == (1, 0)


def test_a_publish_that_cannot_be_stored_when_it_is_due_is_tried_again() -> None:
    for bench in (Bench(), CrashBench()):
        sender, watcher = bench.connect("s"), bench.connect("w")
        watcher.subscribe("t")
        sender.send(Publish("$delayed/5/t", b"x", 1, packet_id=1))
        bench.store()
        for _ in range(2):
            bench.pass_time(5)
            (lane,) = bench.hub.outbox.appends.take()
            lane.fail(Unavailable("not now"), bench.now_ms)
        bench.pass_time(5)
        bench.store()
        assert watcher.publishes() == [("t", b"x")]
        assert not bench.hub.delays


def test_a_delayed_publish_that_cannot_be_stored_is_refused() -> None:
    bench = CrashBench()
    sender = bench.connect("s", version=V5)
    sender.send(Publish("$delayed/5/t", b"x", 1, packet_id=1))
    (lane,) = bench.hub.outbox.appends.take()
    lane.fail(StorageFull("disk"), bench.now_ms)
    assert sender.one().reason == Reason.QUOTA_EXCEEDED
    bench.pass_time(10)
    assert not bench.hub.outbox.appends
    assert bench.hub.delays.size_bytes == 0


def test_a_qos_2_publish_is_delayed_once_whatever_is_sent_again() -> None:
    """Its packet identifier is known after a crash, from the record or from the session."""
    for stage in range(6):
        bench = CrashBench()
        sender = bench.connect("s", version=V5, clean=False, properties=KEPT)
        again = Publish("$delayed/5/t", b"x", 2, packet_id=7)
        sender.send(again)
        steps = [bench.write_records, bench.confirm, bench.write_sessions, bench.confirm,
                 lambda bench=bench: bench.pass_time(5), bench.settle]  # fmt: skip
        for step in steps[: stage + 1]:
            if step != bench.confirm or bench.can_confirm:
                step()
        bench.crash()
        sender = bench.connect("s", version=V5, clean=False, properties=KEPT)
        sender.send(again, Acknowledgement(PacketType.PUBREL, 7))
        bench.settle()
        bench.pass_time(5)
        bench.settle()
        stored = [one.payload for one in bench.messages.values()]
        assert stored == [b"x"], stage


def test_a_delayed_qos_2_publish_is_received_once_its_session_knows_it() -> None:
    """Its record may be published, removed and compacted away before the client sends it again."""
    bench = CrashBench()
    sender = bench.connect("s", version=V5, clean=False, properties=KEPT)
    sender.send(Publish("$delayed/5/t", b"x", 2, packet_id=7))
    bench.write_records()
    bench.confirm()
    assert sender.decoded() == []
    bench.write_sessions()
    bench.confirm()
    assert sender.decoded() == [Acknowledgement(PacketType.PUBREC, 7)]


@pytest.mark.parametrize("seed", range(40))
def test_each_comes_once_over_crashes(seed: int) -> None:
    random_ = random.Random(seed)
    bench = CrashBench(bindings=(Binding("kept/#", "kept"),))
    sender, numbers = bench.connect("s", version=V5), itertools.count()
    promised: set[bytes] = set()
    waiting: dict[int, bytes] = {}

    def publish() -> None:
        number = next(numbers)
        packet_id, payload = number + 1, b"%d" % number
        waiting[packet_id] = payload
        delay_s = random_.randrange(8)
        sender.send(Publish(f"$delayed/{delay_s}/kept/t", payload, 1, packet_id=packet_id))

    def crash() -> None:
        nonlocal sender
        bench.crash()
        waiting.clear()
        sender = bench.connect("s", version=V5)

    def hear() -> None:
        promised.update(waiting.pop(one.packet_id) for one in sender.decoded())  # type: ignore[union-attr]

    moves = [
        (5, publish), (5, bench.write_records), (5, bench.write_delays),
        (8, lambda: bench.can_confirm and bench.confirm()), (4, hear),
        (3, lambda: bench.pass_time(1)), (1, bench.checkpoint), (1, crash),
    ]  # fmt: skip
    weights = [weight for weight, _ in moves]
    for _ in range(400):
        random_.choices(moves, weights)[0][1]()
    for _ in range(20):
        bench.pass_time(1)
        bench.settle()
        hear()
    found = Counter(
        one.payload for batch in bench.log["kept"] for one in bench._reader.messages(batch)
    )
    assert not promised - set(found), f"seed {seed}: lost"
    assert set(found.values()) == {1}, f"seed {seed}: twice"
    assert bench.crashes
    assert not bench.hub.delays


def test_what_a_start_finds_published_is_removed_before_it_is_not_looked_for() -> None:
    bench = CrashBench(bindings=(Binding("kept/#", "kept"),))
    bench.connect("s", version=V5).send(Publish("$delayed/1/kept/t", b"x", 1, packet_id=1))
    bench.settle()
    bench.pass_time(2)
    bench.write_records()
    bench.crash()
    bench.checkpoint()  # other state knows the record, and does not need it again
    bench.crash()
    bench.pass_time(2)
    bench.settle()
    assert [one.payload for one in bench.messages.values()] == [b"x"]
    assert not bench.hub.delays


def test_delayed_publishes_survive_their_bytes() -> None:
    properties = Properties(content_type="c", user_properties=(("a", "b"),))
    packet = Publish("t", b"\0\xff", 2, True, properties=properties)
    principal = Principal("ann", roles=("r",))
    one = Delayed("k", 5, packet, "client", principal)
    back = read_delayed("k", delayed_bytes(one))
    assert (back.key, back.due_ms, back.client_id, back.principal) == ("k", 5, "client", principal)
    assert back.packet == packet


@given(st.binary(max_size=100))
def test_no_bytes_crash_the_reader(data: bytes) -> None:
    with pytest.raises(BadSnapshot):
        read_delayed("k", data)
