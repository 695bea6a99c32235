"""Goal: a link runs on the node that leads its partition, and on no other; one that takes it over
goes on where the former one stood, in the same session of the remote broker.

Method: two nodes over one journal in memory, and connections to a remote broker that are played.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from lakemq.broker_core.api.errors import NotLeader
from lakemq.broker_core.api.ports import PartitionLog
from lakemq.broker_core.api.types import Columns, Leadership, Principal, TopicInfo
from lakemq.plugins.mqtt.bridge import exchange, runner
from lakemq.plugins.mqtt.bridge.config import LinkSettings
from lakemq.plugins.mqtt.bridge.owner import BridgeOwner, ConfiguredLink
from lakemq.plugins.mqtt.bridge.state_log import STATES
from tests.support.mqtt.memory_broker import MemoryBroker, until

RULES = [
    {"direction": "out", "filter": "#", "qos": 1},
    {"direction": "in", "filter": "#", "qos": 2},
]
CLIENT = Principal("client")


class PlayedLink:
    """In place of `Link`: a connection that stands until it is dropped or closed, and answers
    nothing by itself."""

    made: list[PlayedLink]

    def __init__(self, settings: LinkSettings, client_id: str, password: str, peer: Any) -> None:
        self.client_id, self.peer = client_id, peer
        self.name = settings.name
        self.sent: list[bytes] = []
        self.ended = asyncio.Event()
        self.made.append(self)

    async def open(self, context: object, *, bridge_flag: bool) -> bool:
        return True

    async def start(self) -> None:
        pass

    async def subscribe(self, filters: object) -> None:
        pass

    async def closed(self) -> str:
        await self.ended.wait()
        return "it was ended"

    async def ping(self) -> None:
        pass

    async def send(self, packets: Iterable[bytes]) -> None:
        self.sent += packets

    def answer(self, packet: bytes) -> None:
        pass

    def drop(self, why: str) -> None:
        self.ended.set()

    async def close(self, *, politely: bool) -> None:
        self.ended.set()


class Catalog:
    """What two nodes agree on."""

    leader = "a"
    epoch = 1
    lease = True


class Node(MemoryBroker):
    """One of them. The topic of states is led as the catalog says; all others are read here."""

    def __init__(self, node_id: str, catalog: Catalog, journal: MemoryBroker | None = None) -> None:
        super().__init__(node_id=node_id)
        self.catalog = catalog
        self.serving_watchers: list[Callable[[], None]] = []
        if journal is not None:
            for each in ("_topics", "_offsets", "_waiting", "batches", "published"):
                setattr(self, each, getattr(journal, each))

    def topic(self, name: str) -> TopicInfo:
        held = Leadership(self.catalog.leader, self.catalog.epoch, ("a", "b"))
        return replace(super().topic(name), leaders=(held,) if name == STATES else ())

    def serves(self, topic: str, partition: int) -> bool:
        return self.catalog.leader == self.node_id and self.catalog.lease

    def partition(self, topic: str, partition: int, leader_epoch: int = 0) -> PartitionLog:
        if topic == STATES and not self.serves(topic, partition):
            raise NotLeader("it is led elsewhere")
        return super().partition(topic, partition)

    def watch_serving(self, changed: Callable[[], None]) -> Callable[[], None]:
        self.serving_watchers.append(changed)
        return lambda: self.serving_watchers.remove(changed)

    def tell(self) -> None:
        """The lease has begun or ended, or the catalog has another leader."""
        for changed in list(self.serving_watchers):
            changed()


class Cluster:
    """Nodes a and b, both configured with the links."""

    def __init__(self, *names: str, **settings: object) -> None:
        self.catalog = Catalog()
        a = Node("a", self.catalog)
        self.nodes = {"a": a, "b": Node("b", self.catalog, a)}
        self.settings = settings
        self.owners = {node: self.owner(node, names or ("far",)) for node in self.nodes}

    def owner(self, node: str, names: Iterable[str]) -> BridgeOwner:
        links = [
            ConfiguredLink(
                LinkSettings.model_validate(
                    {"name": name, "url": "mqtt://far", "rules": RULES, "retry_min_ms": 10,
                     "retry_max_ms": 20, "commit_ms": 10, "start": "earliest", **self.settings}
                ),
                "", None,
            )
            for name in names
        ]  # fmt: skip
        return BridgeOwner(self.nodes[node], links, lambda: 0.5)

    def running(self) -> list[tuple[str, str, bool]]:
        return [
            (node, each.state.name, each.connected)
            for node, owner in self.owners.items()
            for each in owner.bridges
        ]

    def lead(self, node: str) -> None:
        self.catalog.leader, self.catalog.epoch = node, self.catalog.epoch + 1
        for each in self.nodes.values():
            each.tell()

    async def publish(self, *values: bytes) -> None:
        columns = Columns(list(values), [b"room"] * len(values))
        await self.nodes["a"].publish("mqtt", columns, principal=CLIENT)

    def state(self) -> dict[str, Any]:
        """As it was written last."""
        loaded: dict[str, Any] = json.loads(self.written() or b"{}")
        return loaded

    def written(self) -> bytes | None:
        """The same as bytes."""
        found = [
            value
            for columns in self.nodes["a"].published.get(STATES, ())
            for key, value in zip(columns.keys or (), columns.values, strict=True)
            if key == b"far"
        ]
        return found[-1] if found else None

    async def keep(self, name: str, value: bytes) -> None:
        """What a former node has written."""
        await self.nodes["a"].ensure_topic(STATES)
        columns = Columns([value], [name.encode()])
        await self.nodes["a"].publish(STATES, columns, principal=Principal("bridge", "node"))

    async def __aenter__(self) -> Cluster:
        for owner in self.owners.values():
            owner.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(owner.stop() for owner in self.owners.values()))


@pytest.fixture(autouse=True)
def links(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[PlayedLink]]:
    PlayedLink.made = []
    monkeypatch.setattr(exchange, "Link", PlayedLink)
    monkeypatch.setattr(exchange, "MAINTAIN_S", 0.01)
    monkeypatch.setattr(runner, "MAINTAIN_S", 0.01)
    monkeypatch.setattr(runner, "_SETTLE_S", 0.01)
    yield PlayedLink.made


def payloads(link: PlayedLink) -> list[bytes]:
    """Last byte of each PUBLISH that was sent."""
    return [packet[-1:] for packet in link.sent if packet[0] >> 4 == 3]


def packet_ids(link: PlayedLink) -> list[int]:
    """Of PUBLISHes to `room`."""
    return [int.from_bytes(each[8:10], "big") for each in link.sent if each[0] >> 4 == 3]


async def test_the_leader_runs_it_and_its_successor_goes_on_where_it_stood(
    links: list[PlayedLink],
) -> None:
    async with Cluster() as cluster:
        await until(lambda: cluster.running() == [("a", "far", True)])
        await cluster.publish(b"1", b"2", b"3")
        await until(lambda: payloads(links[0]) == [b"1", b"2", b"3"])
        first, _, third = packet_ids(links[0])
        links[0].peer.puback_came(first)
        links[0].peer.puback_came(third)
        await until(lambda: cluster.state()["outgoing"][0]["unfinished"] == [[1, 0, 0]])
        cluster.lead("b")
        await until(lambda: cluster.running() == [("b", "far", True)])
        assert links[0].ended.is_set()
        await until(lambda: payloads(links[-1]) == [b"2"])
        await cluster.publish(b"4")
        await until(lambda: payloads(links[-1]) == [b"2", b"4"])
        assert [each.client_id for each in links] == ["lakemq-memory-far"] * 2
        cluster.lead("a")
        await until(lambda: cluster.running() == [("a", "far", True)])
        await until(lambda: payloads(links[-1]) == [b"2", b"4"])
        assert len(links) == 3


async def test_a_node_without_a_lease_ends_its_connection_and_makes_no_other(
    links: list[PlayedLink],
) -> None:
    async with Cluster() as cluster:
        await until(lambda: cluster.running() == [("a", "far", True)])
        cluster.catalog.lease = False
        cluster.nodes["a"].tell()
        assert links[0].ended.is_set(), "in the same turn"
        await asyncio.sleep(0.1)
        assert len(links) == 1
        cluster.catalog.lease = True
        cluster.nodes["a"].tell()
        await until(lambda: len(links) == 2 and cluster.running() == [("a", "far", True)])


async def test_a_lease_that_ended_unheard_is_noticed(links: list[PlayedLink]) -> None:
    """A process that stood still is told nothing."""
    async with Cluster() as cluster:
        await until(lambda: cluster.running() == [("a", "far", True)])
        cluster.catalog.lease = False
        # It was in the socket: the remote broker has sent it to the successor by now.
        await links[0].peer.publish_came("x", b"1", 2, 9, again=False, retain=False)
        assert links[0].ended.is_set()
        await asyncio.sleep(0.1)
        assert len(links) == 1
        assert cluster.nodes["a"].values("mqtt") == []


async def test_a_lease_that_ended_while_nothing_came_is_noticed(links: list[PlayedLink]) -> None:
    async with Cluster() as cluster:
        await until(lambda: cluster.running() == [("a", "far", True)])
        cluster.catalog.lease = False
        await until(links[0].ended.is_set)


async def test_a_link_of_an_older_build_keeps_its_client_id_at_whatever_node(
    links: list[PlayedLink],
) -> None:
    cluster = Cluster()
    old = {"version": 1, "outgoing": [], "incoming": {"unreleased": [7], "positions": []}}
    await cluster.keep("far", json.dumps(old).encode())
    async with cluster:
        await until(lambda: cluster.running() == [("a", "far", True)])
        assert cluster.state()["client_id"] == "lakemq-a-far"
        assert cluster.state()["incoming"]["unreleased"] == [7]
        cluster.lead("b")
        await until(lambda: cluster.running() == [("b", "far", True)])
    assert [each.client_id for each in links] == ["lakemq-a-far"] * 2


async def test_a_client_id_of_the_settings_is_used_and_not_kept(links: list[PlayedLink]) -> None:
    async with Cluster(client_id="ours") as cluster:
        await until(lambda: cluster.running() == [("a", "far", True)])
        assert "client_id" not in cluster.state()
    assert [each.client_id for each in links] == ["ours"]


@pytest.mark.parametrize(
    "value",
    [b"{", b"[]", b'{"version":9}', b'{"version":1}', b'{"version":1,"outgoing":{},"incoming":3}'],
    ids=["torn", "list", "version", "empty", "wrong"],
)
async def test_a_state_that_cannot_be_read_keeps_its_link_alone_from_running(
    links: list[PlayedLink], value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster("far", "near")
    await cluster.keep("far", value)
    async with cluster:
        await until(lambda: ("a", "near", True) in cluster.running())
        assert ("a", "far", False) in cluster.running(), "operators see that it does not run"
    assert {each.name for each in links} == {"near"}
    assert "bridge far does not run: __bridge: state of link 'far'" in caplog.text
    assert cluster.written() == value


async def test_a_link_that_this_node_lacks_is_named(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    cluster.owners["b"] = cluster.owner("b", ["other"])
    async with cluster:
        await until(lambda: cluster.running() == [("a", "far", True)])
        cluster.lead("b")
        await until(lambda: cluster.running() == [("b", "other", True)])
    assert "bridge far: this node would run it, and has no such link" in caplog.text


async def test_qos_2_publishes_that_the_former_node_stored_are_not_stored_again(
    links: list[PlayedLink],
) -> None:
    """Node a has stored one, and died before it wrote so."""
    async with Cluster() as cluster:
        await until(lambda: cluster.running() == [("a", "far", True)])
        before = cluster.state()
        peer = links[0].peer
        await peer.publish_came("x", b"1", 2, 9, again=False, retain=False)
        await until(lambda: cluster.nodes["a"].values("mqtt") == [b"1"])
        assert before["incoming"]["unreleased"] == []
        await cluster.keep("far", json.dumps(before).encode())
        cluster.lead("b")
        await until(lambda: cluster.running() == [("b", "far", True)])
        await links[-1].peer.publish_came("x", b"1", 2, 9, again=True, retain=False)
        (bridge,) = cluster.owners["b"].bridges
        await bridge.state.receiver.settled()
        assert cluster.nodes["a"].values("mqtt") == [b"1"]
        assert bridge.state.inbox.repeated == 1


async def test_clients_cannot_set_the_bridges_headers_at_any_node() -> None:
    async with Cluster() as cluster:
        await until(lambda: cluster.running() == [("a", "far", True)])
        for node in cluster.nodes.values():
            assert "mqtt.bridge" in node.reserved["mqtt"]


async def test_an_orderly_stop_of_a_node_alone_keeps_where_it_stands(
    links: list[PlayedLink],
) -> None:
    async with Cluster(commit_ms=60_000) as cluster:
        await until(lambda: cluster.running() == [("a", "far", True)])
        await cluster.publish(b"1")
        await until(lambda: payloads(links[0]) == [b"1"])
        links[0].peer.puback_came(packet_ids(links[0])[0])
    assert cluster.state()["outgoing"][0]["next"] == 1
    assert cluster.state()["outgoing"][0]["unfinished"] == []


async def test_it_begins_when_the_topic_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    node = cluster.nodes["a"]
    create, tries = node.create_topic, SimpleNamespace(left=2)

    async def refuse(*arguments: Any, **options: Any) -> TopicInfo:
        if tries.left:
            tries.left -= 1
            raise NotLeader("the MetaService has no leader")
        return await create(*arguments, **options)

    monkeypatch.setattr(node, "create_topic", refuse)
    del cluster.owners["b"]
    async with cluster:
        await until(lambda: cluster.running() == [("a", "far", True)])
    assert not tries.left
