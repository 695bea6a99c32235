"""Goal: plugins of different nodes talk in order, know when a link began anew, and are never slowed
down by a node that is slow, away, or older."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from lakemq.broker_core.api.cluster.channels import (
    PAYLOAD_MAX_BYTES,
    QUEUE_MAX_BYTES,
    ChannelEvents,
    Peer,
)
from lakemq.broker_core.api.errors import (
    InvalidRequest,
    NotLeader,
    OutcomeUnknown,
    Unavailable,
)
from lakemq.broker_core.cluster import streams
from lakemq.broker_core.cluster.channels import service
from lakemq.broker_core.cluster.channels.channels import Channels
from lakemq.broker_core.cluster.channels.metrics import register_channel_metrics
from lakemq.broker_core.cluster.identity import PeerBook, PeerIdentity
from lakemq.broker_core.cluster.peer_server import PeerServer
from lakemq.broker_core.cluster.peers import Peers


class Events(ChannelEvents):
    """Notes all that it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, bytes]] = []
        self.told: list[str] = []
        self.answering = asyncio.Event()
        self.answering.set()

    def message(self, peer: Peer, payload: bytes) -> None:
        if payload == b"raise":
            raise RuntimeError("a plugin's fault")
        self.heard.append((peer.node_id, payload))

    async def request(self, peer: Peer, payload: bytes) -> bytes:
        await self.answering.wait()
        if payload == b"lead":
            raise NotLeader("no", leader="n9", epoch=4)
        if payload == b"raise":
            raise RuntimeError("a plugin's fault")
        return peer.node_id.encode() + payload

    def reachable(self, node: str) -> None:
        self.told.append(f"+{node}")

    def unreachable(self, node: str) -> None:
        self.told.append(f"-{node}")

    def begun(self, peer: Peer) -> None:
        self.told.append(f"begun {peer.node_id}@{peer.broker_epoch}")

    def ended(self, peer: Peer) -> None:
        self.told.append(f"ended {peer.node_id}")


class Node:
    """One broker's end of the wire."""

    def __init__(self, name: str, cluster: dict[str, Node], *, old: bool = False) -> None:
        self.name, self.port, self.old = name, 0, old
        identity = PeerIdentity(name, "c1", lambda: 1)
        self.book = PeerBook(identity, lambda: dict.fromkeys(cluster, 1))
        self.identity = identity
        self.peers = Peers(
            identity, self.book, lambda node: f"127.0.0.1:{cluster[node].port}", None
        )
        self.channels = Channels(name, self.peers, lambda: cluster)
        self.events = Events()
        cluster[name] = self

    async def start(self) -> None:
        self.server = PeerServer(
            self.identity, self.book, host="127.0.0.1", port=self.port, tls=None
        )
        if not self.old:
            self.server.serve_stream("Talk", self.channels.serve)
        await self.server.start()
        self.port = int(self.server.addresses()[0].rpartition(":")[2])


@asynccontextmanager
async def cluster_of(*names: str, old: tuple[str, ...] = ()) -> AsyncIterator[list[Node]]:
    cluster: dict[str, Node] = {}
    nodes = [Node(name, cluster, old=name in old) for name in names]
    for node in nodes:
        await node.start()
    try:
        async with asyncio.timeout(20):
            yield nodes
    finally:
        for node in nodes:
            await node.peers.close()
            await node.server.stop()


async def until(condition: Callable[[], bool]) -> None:
    while True:
        if condition():
            return
        await asyncio.sleep(0.01)


def figures_of(channels: Channels) -> dict[str, float]:
    """Figures by name, less `lakemq.`, as they are collected."""
    reader = InMemoryMetricReader()
    register_channel_metrics(MeterProvider([reader]).get_meter("x"), channels)
    data = reader.get_metrics_data()
    assert data is not None
    return {
        metric.name.removeprefix("lakemq."): point.value
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
        for point in metric.data.data_points
    }


async def test_messages_come_in_order_and_answers_to_who_asked() -> None:
    async with cluster_of("n1", "n2", "n3") as (one, two, three):
        ours = one.channels.open("x", one.events)
        theirs = [each.channels.open("x", each.events) for each in (two, three)]
        await until(lambda: set(ours.nodes()) == {"n2", "n3"})
        for number in range(1000):
            assert ours.send("n2", b"%d" % number)
        await until(lambda: len(two.events.heard) == 1000)
        assert two.events.heard == [("n1", b"%d" % number) for number in range(1000)]
        assert three.events.heard == []
        answers = await asyncio.gather(*(ours.request("n3", b"%d" % n, 5) for n in range(500)))
        assert answers == [b"n1%d" % number for number in range(500)]
        await until(lambda: "n1" in theirs[0].nodes())
        assert await theirs[0].request("n1", b"?", 5) == b"n2?"
        assert "+n2" in one.events.told
        assert "begun n1@1" in two.events.told
        talk = one.channels.talks["x"]
        assert (talk.sent, talk.dropped, talk.received) == (1500, 0, 1)
        assert figures_of(one.channels) == {
            "channels.sent": 1500,
            "channels.sent_bytes": sum(len(b"%d" % n) for n in [*range(1000), *range(500)]),
            "channels.received": 1,
            "channels.received_bytes": 1,
            "channels.dropped": 0,
        }


async def test_errors_come_back_as_they_were_raised() -> None:
    async with cluster_of("n1", "n2") as (one, two):
        ours = one.channels.open("x", one.events)
        two.channels.open("x", two.events)
        await until(lambda: "n2" in ours.nodes())
        with pytest.raises(NotLeader) as found:
            await ours.request("n2", b"lead", 5)
        assert (found.value.leader, found.value.epoch) == ("n9", 4)
        with pytest.raises(Exception, match="the node's log says why"):
            await ours.request("n2", b"raise", 5)
        ours.send("n2", b"raise")
        assert await ours.request("n2", b"still there", 5) == b"n1still there"
        two.events.answering.clear()
        with pytest.raises(OutcomeUnknown, match="did not answer"):
            await ours.request("n2", b"slow", 0.05)
        with pytest.raises(InvalidRequest, match="is the most"):
            ours.send("n2", bytes(PAYLOAD_MAX_BYTES + 1))
        with pytest.raises(Unavailable, match="is unknown"):
            await ours.request("n3", b"", 5)


async def test_what_a_node_does_not_have_is_not_sent_to_it() -> None:
    async with cluster_of("n1", "n2", "n3", old=("n3",)) as (one, two, three):
        ours = one.channels.open("new", one.events)
        two.channels.open("other", two.events)
        three.channels.open("new", three.events)
        await asyncio.sleep(0.3)
        assert list(ours.nodes()) == []
        assert not ours.send("n2", b"lost")
        assert not ours.send("n3", b"lost")
        with pytest.raises(Unavailable, match="can't be reached"):
            await ours.request("n2", b"", 5)
        assert figures_of(one.channels)["channels.dropped"] == 3
        later = two.channels.open("new", Events())
        await until(lambda: list(ours.nodes()) == ["n2"])
        later.close()
        await until(lambda: list(ours.nodes()) == [])
        assert one.events.told.count("+n2") == one.events.told.count("-n2") == 1


async def test_a_restarted_node_begins_anew_on_both_sides() -> None:
    async with cluster_of("n1", "n2") as (one, two):
        ours = one.channels.open("x", one.events)
        two.channels.open("x", two.events)
        await until(lambda: "n2" in ours.nodes())
        asked = asyncio.ensure_future(ours.request("n2", b"?", 20))
        two.events.answering.clear()
        await asyncio.sleep(0.1)
        await two.server.stop()
        with pytest.raises(OutcomeUnknown, match="has ended"):
            await asked
        await until(lambda: "-n2" in one.events.told)
        assert two.events.told[-1] == "ended n1"
        assert not ours.send("n2", b"lost")
        await two.start()
        await until(lambda: one.events.told[-1] == "+n2")
        assert two.events.told[-2:] == ["ended n1", "begun n1@1"]
        assert ours.send("n2", b"again")
        await until(lambda: two.events.heard == [("n1", b"again")])


async def test_a_slow_node_costs_bounded_memory_and_other_channels_go_on() -> None:
    async with cluster_of("n1", "n2") as (one, two):
        bulk = one.channels.open("bulk", one.events)
        small = one.channels.open("small", Events())
        two.channels.open("bulk", two.events)
        few = Events()
        two.channels.open("small", few)
        await until(lambda: "n2" in small.nodes())
        await until(lambda: "n2" in bulk.nodes())
        # Within one turn of the loop nothing is written.
        taken = sum(bulk.send("n2", bytes(1024 * 1024)) for _ in range(50))
        assert taken == QUEUE_MAX_BYTES // (1024 * 1024 + 200)
        assert small.send("n2", b"not behind it")
        await until(lambda: bool(few.heard))
        await until(lambda: len(two.events.heard) == taken)
        assert one.channels.talks["bulk"].dropped == 50 - taken


async def test_requests_under_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "REQUESTS_MAX", 10)
    async with cluster_of("n1", "n2") as (one, two):
        ours = one.channels.open("x", one.events)
        two.channels.open("x", two.events)
        two.events.answering.clear()
        await until(lambda: "n2" in ours.nodes())
        asked = [asyncio.ensure_future(ours.request("n2", b"?", 10)) for _ in range(12)]
        refused = await asyncio.gather(*asked[10:], return_exceptions=True)
        assert [type(each) for each in refused] == [Unavailable, Unavailable]
        two.events.answering.set()
        assert await asyncio.gather(*asked[:10]) == [b"n1?"] * 10


async def test_a_silent_node_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "SILENCE_S", 0.2)
    monkeypatch.setattr(streams, "TURN_S", 5.0)
    async with cluster_of("n1", "n2") as (one, two):
        one.channels.open("x", one.events)
        two.channels.open("x", two.events)
        await until(lambda: one.events.told.count("-n2") >= 2)
        assert one.events.told.count("+n2") >= 2


async def test_a_node_alone_opens_nothing() -> None:
    async with cluster_of("n1") as (one,):
        channel = one.channels.open("x", one.events)
        assert list(channel.nodes()) == []
        assert not one.peers._kept
        with pytest.raises(InvalidRequest, match="is open already"):
            one.channels.open("x", one.events)
        channel.close()
        one.channels.open("x", Events()).close()
