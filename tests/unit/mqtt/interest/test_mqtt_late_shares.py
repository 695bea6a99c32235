"""Goal: what comes to a member of a shared group late, since the node or the member that had it is
gone, survives a crash as what comes in its turn does.

A session is kept with the positions of its node, and what came behind them is matched again. What
comes late lies before them.

Method: a hub, and storage that survives its crash; another node tells of its members, and is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lakemq.broker_core.api.cluster.channels import Peer
from lakemq.plugins.mqtt.interest.exchange import InterestExchange
from lakemq.plugins.mqtt.interest.frames import Kind, Members, encode, nothing
from lakemq.plugins.mqtt.server.shared_groups import SharedGroups
from lakemq.plugins.mqtt.state import delivery
from lakemq.plugins.mqtt.wire.packets import (
    V5,
    Acknowledgement,
    Filter,
    PacketType,
    Properties,
    Publish,
    Subscribe,
)
from tests.support.mqtt.bench import Device
from tests.support.mqtt.crash import CrashBench

OTHER = Peer("b", 1)
HOUR_S = 3600


def connect(bench: CrashBench, client_id: str, expiry_s: int = HOUR_S) -> Device:
    properties = Properties(session_expiry_s=expiry_s)
    return bench.connect(client_id, version=V5, clean=False, properties=properties)


def member(bench: CrashBench, client_id: str, expiry_s: int = HOUR_S) -> Device:
    device = connect(bench, client_id, expiry_s)
    device.send(Subscribe(1, (Filter("$share/g/t", 1),)))
    bench.settle()
    device.received()
    return device


def send(bench: CrashBench, *numbers: int) -> None:
    sender = bench.connect("sender")
    for number in numbers:
        sender.send(Publish("t", b"%d" % number, 1, packet_id=1))
        bench.settle()


def got(bench: CrashBench, client_id: str) -> list[int]:
    """What comes to a member that connects again, which acknowledges it."""
    device = connect(bench, client_id)
    found = []
    while packets := (bench.settle(), device.received())[1]:
        for each in packets:
            assert isinstance(each, Publish)
            found.append(int(each.payload))
            device.send(Acknowledgement(PacketType.PUBACK, each.packet_id))
    return found


def keep_old(bench: CrashBench) -> None:
    """All sessions are kept anew, with the positions that the node has by now."""
    assert bench.hub.ledger is not None
    bench.hub.ledger.checkpoint(bench.hub.delivered, 1, 100)
    bench.settle()


@pytest.mark.parametrize("kept_max", [100, 2])
def test_what_fell_to_a_node_that_is_gone(kept_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 0 of the simulation of whole engines was the first to show it, with other answers to
    repeated publishes: two nodes died one second after the other. `kept_max`: of the queue more is
    kept than is in it, or less."""
    monkeypatch.setattr(delivery, "QUEUE_KEPT_MAX", kept_max)
    bench = CrashBench()
    looks: list[Callable[[], None]] = []
    broker: Any = SimpleNamespace(node_id="a", cluster_id="c")
    interest = InterestExchange(bench.hub.index, broker, "round_robin")
    SharedGroups(
        bench.hub, interest, lambda _, look: looks.append(look), bench.settle, lambda: bench.now_ms
    )
    interest.reachable("b")
    interest.begun(OTHER)
    said = nothing(Kind.WHOLE, 1)._replace(groups=[("g", "t", Members(1, 0))])
    interest.message(OTHER, encode(said))
    member(bench, "y").lose()
    send(bench, 0, 1, 2, 3)
    bench.pass_time(1)
    interest.ended(OTHER)
    send(bench, 4, 5, 6, 7)
    keep_old(bench)
    assert bench.hub.sessions["y"].outbound.load == 4
    while looks:
        looks.pop()()
    assert bench.hub.sessions["y"].outbound.load == 8
    bench.crash()
    assert sorted(got(bench, "y")) == [0, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("how", ["in its queue", "in flight", "ends with its connection"])
def test_what_another_member_left(how: str) -> None:
    bench = CrashBench()
    first = member(bench, "x", 0 if how == "ends with its connection" else HOUR_S)
    if how == "in its queue":
        first.lose()
    send(bench, 0, 1, 2)
    member(bench, "y").lose()
    keep_old(bench)
    if how == "ends with its connection":
        first.lose()
    else:
        bench.connect("x", version=V5)  # clean: the session ends
    bench.settle()
    bench.crash()
    assert got(bench, "y") == [0, 1, 2]
