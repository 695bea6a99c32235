"""Goal: publishes that no topic takes reach the subscribers of all nodes, once each, and one member
of a shared group; and nothing waits for a node that is slow or away."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from lakemq.plugins.mqtt.feeds import express
from lakemq.plugins.mqtt.feeds.express import encode, pack, unpack
from lakemq.plugins.mqtt.interest import exchange
from lakemq.plugins.mqtt.interest.frames import Members
from lakemq.plugins.mqtt.interest.sharing import serves
from lakemq.plugins.mqtt.server.engine import MqttEngine
from lakemq.plugins.mqtt.state.stored_values import BadSnapshot
from lakemq.plugins.mqtt.wire.messages import Message
from lakemq.plugins.mqtt.wire.packets import Filter, Properties, Publish, Subscribe
from tests.support.memory_channels import MemoryChannels
from tests.support.mqtt.memory_broker import MemoryBroker
from tests.unit.mqtt.state.test_mqtt_stored_records import Client, started, turns

NODES = ("n1", "n2", "n3")
SETTINGS = {"durable": False, "bindings": [{"filter": "bound/#", "topic": "bound"}]}


@asynccontextmanager
async def cluster() -> AsyncIterator[tuple[MemoryChannels, list[MqttEngine]]]:
    channels = MemoryChannels()
    async with AsyncExitStack() as stack, asyncio.timeout(20):
        engines = [
            await stack.enter_async_context(started(MemoryBroker(channels, node), **SETTINGS))
            for node in NODES
        ]
        yield channels, engines


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "PAUSE_S", 0.0)


async def until(condition: Callable[[], bool]) -> None:
    while True:
        if condition():
            return
        await asyncio.sleep(0.001)


async def subscriber(engine: MqttEngine, name: str, *filters: str) -> Client:
    client = await Client(engine).connect(name)
    client.send(Subscribe(1, tuple(Filter(one, 1) for one in filters)))
    await turns()
    return client


async def known(engines: list[MqttEngine], name: str, count: int) -> None:
    """All nodes know that `count` of them want a name, and nothing else."""
    await until(
        lambda: all(
            not each.interest.others.unknown()
            and len(each.interest.others.who(name))
            == count - bool(each.hub.index.match(name).targets or each.hub.index.match(name).groups)
            for each in engines
        )
    )


async def test_subscribers_of_all_nodes_get_it_once() -> None:
    async with cluster() as (_, engines):
        one, two, three = engines
        first = await subscriber(one, "s1", "a/+")
        second = await subscriber(two, "s2", "a/b", "a/#")
        await known(engines, "a/b", 2)
        publisher = await Client(one).connect("p")
        publisher.send(Publish("a/b", b"0"))
        publisher.send(Publish("a/b", b"1", 1, packet_id=1))
        publisher.send(Publish("z", b"nobody wants it"))
        await turns()
        assert first.payloads == second.payloads == [b"0", b"1"]
        got = [each for each in second.got if isinstance(each, Publish)]
        assert [each.qos for each in got] == [0, 1]
        assert one.hub.counters.express_sent == two.hub.counters.express_received == 2
        assert three.hub.counters.express_received == 0
        assert one.hub.counters.express_dropped == 0


async def test_runs_of_plain_publishes_go_there_too() -> None:
    async with cluster() as (_, engines):
        one, two, _ = engines
        here, there = await subscriber(one, "h", "a"), await subscriber(two, "t", "a")
        await known(engines, "a", 2)
        publisher = await Client(one).connect("p")
        publisher.send(Publish("a", b"first"))  # from now on the name comes as runs
        for number in range(5):
            publisher.send(Publish("a", b"%d" % number))
        await turns()
        assert here.payloads == there.payloads == [b"first", b"0", b"1", b"2", b"3", b"4"]


async def test_properties_and_origin_come_along() -> None:
    async with cluster() as (_, engines):
        _, two, _ = engines
        there = await subscriber(two, "t", "a")
        await known(engines, "a", 1)
        publisher = await Client(engines[0]).connect("p")
        properties = Properties(
            content_type="text", message_expiry_s=60, user_properties=(("k", "v"),)
        )
        publisher.send(Publish("a", b"x", properties=properties))
        await turns()
        (got,) = [each for each in there.got if isinstance(each, Publish)]
        assert got.properties.content_type == "text"
        assert got.properties.user_properties == (("k", "v"),)
        assert got.properties.message_expiry_s == 60


async def test_one_member_of_a_group_gets_each() -> None:
    async with cluster() as (_, engines):
        members = [
            await subscriber(engine, f"m{number}-{node}", "$share/g/a")
            for number, engine in enumerate(engines)
            for node in range(number + 1)
        ]
        await known(engines, "a", 3)
        counts = {node: Members(number + 1, 0) for number, node in enumerate(NODES)}
        await until(
            lambda: all(
                {**counts, **each.interest.others.groups(("g", "a"))} == counts
                and len(each.interest.others.groups(("g", "a"))) == 2
                for each in engines
            )
        )
        publisher = await Client(engines[0]).connect("p")
        for number in range(60):
            publisher.send(Publish("a", b"%d" % number))
        await turns()
        got = Counter(payload for member in members for payload in member.payloads)
        assert got == Counter(b"%d" % number for number in range(60))
        assert {len(member.payloads) for member in members} == {10}, "each gets its share"


async def test_a_node_that_is_away_costs_nothing() -> None:
    async with cluster() as (channels, engines):
        one, two, _ = engines
        there = await subscriber(two, "t", "a")
        await known(engines, "a", 1)
        publisher = await Client(one).connect("p")
        channels.cut("n1", "n2")  # what it wants is still known: it can say so
        publisher.send(Publish("a", b"lost"))
        await turns()
        assert there.payloads == []
        assert one.hub.counters.express_dropped == 1
        channels.mend("n1", "n2")
        await turns()
        publisher.send(Publish("a", b"x"))
        await turns()
        assert there.payloads == [b"x"]


async def test_what_is_too_large_for_a_batch_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(express, "PAYLOAD_MAX_BYTES", 1000)
    async with cluster() as (_, engines):
        there = await subscriber(engines[1], "t", "a")
        await known(engines, "a", 1)
        publisher = await Client(engines[0]).connect("p")
        publisher.send(Publish("a", bytes(1000)))
        await turns()
        publisher.send(Publish("a", bytes(100)))
        await turns()
        assert there.payloads == [bytes(100)]
        assert engines[0].hub.counters.express_dropped == 1


async def test_nonsense_of_another_node_changes_nothing() -> None:
    async with cluster() as (channels, engines):
        there = await subscriber(engines[1], "t", "#")
        await known(engines, "a", 1)
        good = encode(Message("a", b"x", 0, False, 0), 1, 0)
        bad = encode(Message("a/#", b"x", 0, False, 0), 1, 0)
        for payload in (b"", b"\xc1", pack([good, bad])):
            channels.ends["mqtt.express"]["n1"].send("n2", payload)
        await turns()
        assert there.payloads == []


def test_a_batch_is_read_as_it_was_made() -> None:
    message = Message("a/b", b"x" * 300, 1, True, 5000, b"\x01\x01", 10, "d")
    ((found, number),) = unpack(pack([encode(message, 7, 8000)]), 8000)
    assert number == 7
    assert (found.topic, found.payload, found.qos, found.retain) == ("a/b", b"x" * 300, 1, True)
    assert (found.properties, found.origin, found.place) == (b"\x01\x01", "d", None)
    assert found.expires_ms == 15000
    with pytest.raises(BadSnapshot):
        unpack(pack([encode(message, 7, 8000)])[:-1], 0)


@pytest.mark.parametrize(
    ("members", "goes_to"),
    [
        ({"a": Members(1, 0), "b": Members(2, 5)}, "abb"),
        ({"a": Members(0, 1), "b": Members(0, 2)}, "abb"),
        ({"a": Members(0, 9), "b": Members(1, 0)}, "bbb"),
    ],
    ids=["connected", "away", "connected first"],
)
def test_nodes_agree_on_who_serves_a_group(members: dict[str, Members], goes_to: str) -> None:
    for number in range(9):
        chosen = [node for node in members if serves(node, members, number)]
        assert chosen == [goes_to[number % 3]]
