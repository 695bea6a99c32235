"""Goal: of the nodes that hold delayed publishes one publishes them, and none is published again or
lost when another one does from then on.

Method: hubs without nodes, and an engine over a broker in memory. `tests/fault/cluster` kills
nodes.
"""

from __future__ import annotations

import asyncio

import pytest

from lakemq.broker_core.api.cluster.channels import Peer
from lakemq.broker_core.api.errors import Unavailable
from lakemq.broker_core.api.state.internal_topics import DELAYED
from lakemq.broker_core.api.types import Principal
from lakemq.plugins.mqtt.config import MqttSettings
from lakemq.plugins.mqtt.routing.bindings import Binding
from lakemq.plugins.mqtt.routing.delayed import AGAIN_MS, Delayed, delayed_bytes
from lakemq.plugins.mqtt.routing.delaying import (
    POSITIONS_KEY,
    heard,
    note_received,
    positions_to_keep,
    release_due,
    scan_from,
)
from lakemq.plugins.mqtt.server.engine import MqttEngine
from lakemq.plugins.mqtt.state.records import client_header, qos_2_header
from lakemq.plugins.mqtt.state.snapshots import positions_bytes
from lakemq.plugins.mqtt.wire.messages import Place
from lakemq.plugins.mqtt.wire.packets import V5, Properties, Publish
from tests.support.mqtt.bench import Bench
from tests.support.mqtt.crash import CrashBench
from tests.support.mqtt.memory_broker import MemoryBroker

ANN = Principal("ann")
KEY = ("kept", 0)


def bench() -> Bench:
    found = Bench(bindings=(Binding("kept/#", "kept"),), durable=True)
    found.hub.positions[KEY] = 5
    return found


def value(node: Bench, key: str, topic: str = "kept/t", qos: int = 1) -> bytes:
    return delayed_bytes(Delayed(key, node.now_ms, Publish(topic, b"x", qos), "s", ANN))


def hear(node: Bench, *keys: str, topic: str = "kept/t") -> None:
    for key in keys:
        heard(node.hub, 0, key.encode(), value(node, key, topic), b"")


def waiting(node: Bench) -> set[str]:
    return {one.key for one in node.hub.delays}


def test_who_does_not_lead_holds_what_waits_and_publishes_nothing() -> None:
    node = bench()
    node.hub.delays.yield_lead()
    hear(node, "a", "b")
    node.hub.delays.ready = True
    node.hub.delays.may_publish = lambda: False
    assert not release_due(node.hub, node.now_ms)
    assert not node.hub.outbox.appends
    heard(node.hub, 2, b"a", None, b"")
    assert (waiting(node), node.hub.delays.removed) == ({"b"}, {})
    node.hub.delays.end("b")  # the record of its publish is seen: the leader removes it
    assert (waiting(node), node.hub.delays.removed) == ({"b"}, {})


def test_what_was_published_and_not_removed_is_the_next_leaders() -> None:
    node = bench()
    delays = node.hub.delays
    hear(node, "sent", "ended", "removing", "removed")
    for key in ("removing", "removed"):
        delays.end(key)
        if key == "removing":
            delays.begin_removal()
    delays.end("ended")
    delays.take(node.now_ms, 1)
    heard(node.hub, 9, b"removed", None, b"")  # its removal is on disk already
    delays.yield_lead()
    assert waiting(node) == {"sent", "removing", "ended"}
    delays.lead({"ended", "removing"}, {})
    assert (waiting(node), set(delays.removed)) == ({"sent"}, {"ended", "removing"})


def test_an_answer_that_comes_when_another_node_leads_ends_nothing() -> None:
    node = bench()
    delays = node.hub.delays
    hear(node, "a")
    release_due(node.hub, node.now_ms)
    (lane,) = node.hub.outbox.appends.take()
    assert set(delays.under_way) == {"a"}
    delays.yield_lead()
    ((receiver, *_),) = lane.rows
    assert receiver is not None
    receiver.on_result(0, 1, 1, Place("kept", 0, 5), node.now_ms)
    assert (waiting(node), delays.removed, delays.under_way) == ({"a"}, {}, {})
    assert delays.is_scheduled("a")


def test_positions_stay_below_what_is_under_way() -> None:
    """This node may not hear of its record: feeds leave out what no client here wants."""
    node = bench()
    hear(node, "a")
    release_due(node.hub, node.now_ms)
    node.hub.positions[KEY] = 9
    ends = {KEY: 1, ("other", 0): 3}
    assert positions_to_keep(node.hub, ends) == {KEY: 5, ("other", 0): 3}
    (lane,) = node.hub.outbox.appends.take()
    lane.fail(Unavailable("not now"), node.now_ms)
    assert positions_to_keep(node.hub, ends)[KEY] == 9
    node.hub.delays.unread = {KEY: 2}
    assert positions_to_keep(node.hub, ends)[KEY] == 2


def test_where_it_is_looked_for_what_was_published() -> None:
    node = bench()
    assert scan_from(node.hub, KEY, 100) == 100  # nothing waits
    hear(node, "a")
    assert scan_from(node.hub, KEY, 100) == 100  # nothing was ever kept of positions
    heard(node.hub, 1, POSITIONS_KEY, positions_bytes({KEY: 7}), b"")
    assert scan_from(node.hub, KEY, 100) == 7
    assert scan_from(node.hub, ("kept", 1), 100) == 0  # the topic got more partitions
    assert scan_from(node.hub, ("bound since", 0), 100) == 100


def test_what_goes_to_a_partition_that_could_not_be_read_waits() -> None:
    node = bench()
    hear(node, "a")
    node.hub.delays.lead((), {KEY: 0})
    release_due(node.hub, node.now_ms)
    assert not node.hub.outbox.appends
    node.hub.delays.unread.clear()
    release_due(node.hub, node.now_ms + AGAIN_MS)
    assert node.hub.outbox.appends


def test_a_session_that_comes_learns_of_its_delayed_qos_2_publish() -> None:
    node = CrashBench(bindings=(Binding("kept/#", "kept"),))
    kept = Properties(session_expiry_s=100)
    device = node.connect("s", version=V5, clean=False, properties=kept)
    session = node.hub.sessions["s"]
    headers = client_header("s") + qos_2_header(session.incarnation, 7)
    heard(node.hub, 4, b"a", value(node, "a", qos=2), headers)
    assert 7 not in session.incoming  # it was not known as coming in here
    note_received(node.hub, "s")
    assert session.incoming[7] == Place(DELAYED, 0, 4)
    device.send(Publish("$delayed/0/kept/t", b"x", 2, packet_id=7))
    assert waiting(node) == {"a"}
    heard(node.hub, 5, b"a", None, b"")
    assert node.hub.delays.receipts == {}


def test_a_record_that_is_stored_after_all_waits_though_its_client_was_told_otherwise() -> None:
    node = bench()
    sender = node.connect("s", version=V5)
    sender.send(Publish("$delayed/1/kept/t", b"x", 1, packet_id=1))
    (lane,) = node.hub.outbox.appends.take()
    heard(node.hub, 3, lane.keys[0], lane.values[0], b"")
    lane.fail(Unavailable("not answered"), node.now_ms)
    assert [one.stored for one in node.hub.delays] == [True]
    assert node.hub.delays.is_scheduled(lane.keys[0].decode())


async def opened(broker: MemoryBroker) -> MqttEngine:
    engine = MqttEngine(MqttSettings(), broker)
    await engine.open()
    async with asyncio.timeout(10):
        while not engine.hub.delays.ready:  # noqa: ASYNC110
            await asyncio.sleep(0)
    return engine


def test_a_node_says_that_it_is_done_once_it_leads_no_more_and_has_nothing_under_way() -> None:
    async def run() -> None:
        engine = await opened(MemoryBroker())
        delays, log, peer = engine.hub.delays, engine.journal.delays, Peer("other", 1)
        with pytest.raises(Unavailable, match="still under way"):
            await log.request(peer, b"")
        one = Delayed("a", 0, Publish("t", b"x", 1), "s", ANN)
        delays.begin(one, {})
        delays.may_publish = lambda: False
        with pytest.raises(Unavailable, match="still under way"):
            await log.request(peer, b"")
        delays.ended(one)
        assert await log.request(peer, b"") == b""
        await engine.close()

    asyncio.run(run())
