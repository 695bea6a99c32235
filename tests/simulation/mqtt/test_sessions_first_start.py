"""Goal: on the very first start of a cluster a client is connected to one node at a time, too.

Method: whole engines (`tests/support/mqtt/cluster`) that have never shared sessions. Clients
connect to any node from its first moment on, again and again. Who does not wait is connected twice.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from lakemq.plugins.mqtt.homes import home
from lakemq.plugins.mqtt.homes.service import SOON_S, SharedSessions
from lakemq.plugins.mqtt.server import clock
from tests.simulation.mqtt.test_mqtt_cluster_crashes import SETTINGS
from tests.support.mqtt.cluster.clients import Subscriber
from tests.support.mqtt.cluster.lives import run_lives
from tests.support.mqtt.cluster.world import LEARN_MAX_S, Clock, World
from tests.support.seeds import seeds

BEGIN_S = 6.0


@pytest.fixture(autouse=True)
def virtual_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "time_ns", Clock.time_ns)
    monkeypatch.setattr(clock, "monotonic_ns", Clock.monotonic_ns)
    monkeypatch.setattr(home, "time", Clock)
    monkeypatch.setattr(home, "PARTITIONS", 4)


async def first_start(seed: int) -> int:
    """How often a client was seen connected to two nodes."""
    rng, twice = random.Random(seed), 0
    world = World(rng, SETTINGS)
    clients = [Subscriber(world, f"c{number}", "x") for number in range(5)]
    loop = asyncio.get_running_loop()
    until_s = loop.time() + BEGIN_S
    while loop.time() < until_s:
        await asyncio.sleep(0.05)
        for client in clients:
            if rng.random() < 0.1:
                client.connect()
            nodes = [
                name
                for name, node in world.nodes.items()
                if (session := node.engine.hub.sessions.get(client.client_id)) is not None
                and session.connection is not None
            ]
            twice += len(nodes) > 1
    assert all(node.engine.shared.active for node in world.nodes.values())
    assert sum(client.connections for client in clients) > 10
    world._meta.cancel()
    return twice


def twice(seed: int) -> int:
    found: list[int] = []

    async def run() -> None:
        found.append(await first_start(seed))

    run_lives(run())
    return found[0]


@pytest.mark.parametrize("seed", seeds(6))
def test_a_client_is_connected_once(seed: int) -> None:
    assert not twice(seed)


def test_who_does_not_wait_is_connected_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SharedSessions, "_wait_for_others", lambda self: None)
    assert any(twice(seed) for seed in range(6))


async def _other_build() -> None:
    begun_s = asyncio.get_running_loop().time()
    world = World(random.Random(1), SETTINGS)
    client = Subscriber(world, "c", "x")
    await asyncio.sleep(LEARN_MAX_S)  # by then each has found others
    client.connect()
    await asyncio.sleep(SOON_S + 1.0)
    assert client.rests
    assert SOON_S <= client.way.let_in_s - begun_s < SOON_S + 0.5
    world._meta.cancel()


def test_who_waits_is_let_in_where_nodes_never_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them is of an older build, which does not know how."""
    monkeypatch.setattr(SharedSessions, "_share_if_possible", lambda self: None)
    run_lives(_other_build())
