"""Goal: births of Sparkplug B are retained as certificates, which no client can forge; a server
that is not asked for that does nothing of it."""

from __future__ import annotations

import pytest

from lakemq.broker_core.api.errors import StorageFull
from lakemq.plugins.mqtt.limits import Limits
from lakemq.plugins.mqtt.routing.bindings import Binding
from lakemq.plugins.mqtt.routing.retained import Retained
from lakemq.plugins.mqtt.wire.packets import (
    V5,
    V311,
    Acknowledgement,
    Properties,
    Publish,
    Will,
)
from lakemq.plugins.mqtt.wire.reasons import Reason
from lakemq.plugins.mqtt.wire.sparkplug import certificate_name
from tests.support.mqtt.bench import Bench

NODE = "spBv1.0/plant/NBIRTH/edge7"
DEVICE = "spBv1.0/plant/DBIRTH/edge7/press"
CERTIFICATES = "$sparkplug/certificates/"
AWARE = Limits(sparkplug_aware=True)
MEMORY = (Binding("stored/#", "mqtt"),)
"""Sparkplug's names are bound to no topic."""


def kept(bench: Bench, name: str) -> bytes | None:
    message = bench.hub.retained.get(CERTIFICATES + name)
    return None if message is None else message.payload


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(
    "bindings", [MEMORY, (Binding("#", "mqtt", stores_qos_0=True),)], ids=["memory", "stored"]
)
def test_the_newest_birth_of_each_is_retained(
    version: int, qos: int, bindings: tuple[Binding, ...]
) -> None:
    bench = Bench(bindings=bindings, limits=AWARE)
    edge, host = bench.connect("e", version=version), bench.connect("h", version=version)
    host.subscribe(CERTIFICATES + "#", "spBv1.0/#")
    for number, (name, payload) in enumerate(
        [(NODE, b"1"), (DEVICE, b"2"), (NODE, b"3"), ("spBv1.0/plant/NDATA/edge7", b"4")], 1
    ):
        edge.send(Publish(name, payload, qos, packet_id=number if qos else 0))
    bench.store()
    assert (kept(bench, NODE), kept(bench, DEVICE)) == (b"3", b"2")
    assert bench.hub.retained.count == 2
    # Subscribers get the births themselves, too, as they came.
    assert sorted(host.publishes()) == sorted(
        [
            (CERTIFICATES + NODE, b"1"), (CERTIFICATES + DEVICE, b"2"), (CERTIFICATES + NODE, b"3"),
            (NODE, b"1"), (DEVICE, b"2"), (NODE, b"3"), ("spBv1.0/plant/NDATA/edge7", b"4"),
        ]
    )  # fmt: skip
    late = bench.connect("l", version=version)
    late.subscribe(CERTIFICATES + "spBv1.0/plant/#")
    came = [each for each in late.received() if isinstance(each, Publish)]
    assert {(each.topic, each.payload, each.retain) for each in came} == {
        (CERTIFICATES + NODE, b"3", True), (CERTIFICATES + DEVICE, b"2", True),
    }  # fmt: skip


def test_certificates_are_stored_where_they_are_bound() -> None:
    bench = Bench(bindings=(Binding("$sparkplug/#", "births"),), limits=AWARE)
    bench.connect("e").send(Publish(NODE, b"born"))
    assert kept(bench, NODE) is None and bench.store() == 1
    assert bench.stored[0].topic == "births" and kept(bench, NODE) == b"born"


@pytest.mark.parametrize(
    "name",
    [
        "spBv1.0/plant/NDATA/edge7", "spBv1.0/plant/NBIRTH/edge7/press", "spBv1.0/plant/DBIRTH/e",
        "spBv1.0/plant/DBIRTH/e/d/more", "spBv1.0/plant/NBIRTH/", "spBv1.0//NBIRTH/e", "spBv1.0",
        "spAv1.0/plant/NBIRTH/e", "x/spBv1.0/plant/NBIRTH/e", "spBv1.0/STATE/host",
        "spBv1.0/plant/DBIRTH/e/d/e/f/g/h",
    ],
)  # fmt: skip
def test_what_is_no_birth_is_left_alone(name: str) -> None:
    assert certificate_name(name) is None
    bench = Bench(bindings=MEMORY, limits=AWARE)
    bench.connect("e").send(Publish(name, b"x"))
    assert bench.hub.retained.count == 0


def test_names_that_would_get_too_long_or_too_deep_are_left_alone() -> None:
    bench = Bench(bindings=MEMORY, limits=Limits(topic_levels_max=6, sparkplug_aware=True))
    edge = bench.connect("e")
    edge.send(Publish(DEVICE, b"x"), Publish("spBv1.0/plant/NBIRTH/" + "e" * 65_500, b"x"))
    assert not edge.closed and bench.hub.retained.count == 0
    edge.send(Publish(NODE, b"x"))
    assert kept(bench, NODE) == b"x"


def test_an_empty_birth_deletes_nothing_and_an_expiry_is_the_births_own() -> None:
    bench = Bench(bindings=MEMORY, limits=AWARE)
    edge = bench.connect("e", version=V5)
    edge.send(Publish(NODE, b"x", properties=Properties(message_expiry_s=1)), Publish(NODE, b""))
    bench.now_ms += 60_000
    bench.hub.retained.drop_expired(bench.now_ms, alone=True)
    assert kept(bench, NODE) == b"x"


def test_a_birth_may_be_retained_itself() -> None:
    bench = Bench(bindings=MEMORY, limits=AWARE)
    bench.connect("e").send(Publish(NODE, b"x", retain=True))
    assert bench.hub.retained.count == 2 and kept(bench, NODE) == b"x"


def test_no_room_loses_the_certificate_and_not_the_birth() -> None:
    bench = Bench(bindings=MEMORY, limits=AWARE, retained=Retained(1, 1000))
    edge, host = bench.connect("e"), bench.connect("h")
    host.subscribe("spBv1.0/#")
    edge.send(Publish(NODE, b"1"), Publish(DEVICE, b"2"))
    assert [payload for _, payload in host.publishes()] == [b"1", b"2"]
    assert kept(bench, DEVICE) is None and bench.hub.retained.refused == 1


@pytest.mark.parametrize(
    "name", [CERTIFICATES + NODE, "$sparkplug/x", f"$delayed/1/{CERTIFICATES}x"]
)
@pytest.mark.parametrize("aware", [True, False])
def test_clients_may_not_publish_there(name: str, aware: bool) -> None:
    bench = Bench(bindings=MEMORY, limits=Limits(sparkplug_aware=aware))
    device = bench.connect("d", version=V5)
    device.send(Publish(name, b"forged", 1, retain=True, packet_id=1))
    answer = device.one()
    assert isinstance(answer, Acknowledgement)
    assert (answer.reason == Reason.NOT_AUTHORIZED) is aware
    assert bench.hub.retained.count == (0 if aware or name.startswith("$delayed") else 1)


def test_neither_may_wills() -> None:
    bench = Bench(bindings=MEMORY, limits=AWARE)
    device = bench.connect("d", will=Will(CERTIFICATES + NODE, b"forged", 0, True))
    device.lose()
    assert bench.hub.retained.count == 0 and bench.hub.counters.publishes_refused == 1


def test_nothing_of_it_happens_unasked() -> None:
    bench = Bench(bindings=MEMORY)
    edge = bench.connect("e")
    edge.send(Publish(NODE, b"1"))
    assert bench.hub.retained.count == 0 and NODE.encode() in edge.connection.express


def test_a_birth_whose_record_is_refused_is_still_known() -> None:
    """What passes through the server is kept; its publisher sends it again all the same."""
    bench = Bench(bindings=(Binding("spBv1.0/#", "mqtt"),), limits=AWARE)
    bench.connect("e").send(Publish(NODE, b"1", 1, packet_id=1))
    bench.store(StorageFull("full"))
    assert kept(bench, NODE) == b"1"
