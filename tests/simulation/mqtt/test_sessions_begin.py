"""Goal: clients keep the sessions that each node kept for itself, when nodes begin to share them
and the owner stands still just then; and no node keeps a connection whose client is elsewhere.

Method: three whole engines in virtual time, as in `test_mqtt_cluster_crashes`. Clients come to
nodes that are alone yet, and go to others as soon as sessions are shared, while a node is paused.
They do not wait for that (`test_sessions_first_start.py`), as where the last node of an older
build was upgraded. Each rule is taken away once, and sessions are forgotten.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from lakemq.broker_core.api.state import followed
from lakemq.plugins.mqtt.config import BindingSettings, MqttSettings
from lakemq.plugins.mqtt.feeds import history_reader, partition_feed
from lakemq.plugins.mqtt.homes import home, owner, table
from lakemq.plugins.mqtt.homes.owner import SessionOwner
from lakemq.plugins.mqtt.homes.service import SharedSessions
from lakemq.plugins.mqtt.homes.table import HomeTable
from lakemq.plugins.mqtt.server import clock
from tests.support.mqtt.cluster.clients import Subscriber
from tests.support.mqtt.cluster.lives import run_lives
from tests.support.mqtt.cluster.world import NAMES, TOPIC, Clock, World
from tests.support.seeds import seeds

CLIENTS = 5
ALONE_S = 0.6
"""When clients come: nodes begin to share sessions about a second after they have started."""
REST_S = 60.0
SETTINGS = MqttSettings(
    bindings=[BindingSettings(filter="#", topic=TOPIC, partitions=1)],
    system_topics_interval_s=0,
    checkpoint_ms=1000,
    slow_ms=0,
)


async def live(seed: int) -> None:
    rng = random.Random(seed)
    world = World(rng, SETTINGS)
    clients = [Subscriber(world, f"s{number}", "number/#") for number in range(CLIENTS)]
    await asyncio.sleep(ALONE_S)
    await let_in(world, clients)
    while not all(each.engine.shared.active for each in world.nodes.values()):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    await asyncio.sleep(rng.choice((0.0, 0.05, 0.2)))
    node = world.nodes[rng.choice(NAMES)]
    node.life.pause()
    world.later(rng.choice((0.7, 1.2, 1.6)), node.life.resume)
    for client in clients:
        client.connect()
        while client.socket is not None and client.socket.node == node.name:
            client.lose(0.0)
            client.connect()
    await let_in(world, clients)
    await asyncio.sleep(5.0)
    await let_in(world, clients)
    for client in clients:
        owners = [one.name for one in world.nodes.values() if connected(one.engine, client)]
        assert owners == [client.socket.node], f"{client.client_id} is connected to {owners}"  # type: ignore[union-attr]
        assert client.open == {client.socket}, f"{client.client_id} has older connections"
    world._meta.cancel()


def connected(at: Any, client: Subscriber) -> bool:
    session = at.hub.sessions.get(client.client_id)
    return session is not None and session.connection is not None


async def let_in(world: World, clients: list[Subscriber]) -> None:
    async with asyncio.timeout(REST_S):
        while not all(each.rests for each in clients):
            for client in clients:
                if client.socket is None:
                    client.connect()
            await asyncio.sleep(0.1)


@pytest.fixture(autouse=True)
def virtual_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "time_ns", Clock.time_ns)
    monkeypatch.setattr(clock, "monotonic_ns", Clock.monotonic_ns)
    monkeypatch.setattr(home, "time", Clock)
    monkeypatch.setattr(home, "PARTITIONS", 4)
    monkeypatch.setattr(SharedSessions, "_wait_for_others", lambda self: None)
    monkeypatch.setattr(SharedSessions, "reachable", lambda self, node: None)


def run(seed: int) -> None:
    for pauses in (followed, history_reader, home, owner, partition_feed):
        pauses._rng.seed(seed)
    try:
        run_lives(live(seed))
    except BaseException:
        print(f"LAKEMQ_SEED={seed} repeats this")
        raise


@pytest.mark.parametrize("seed", seeds(15))
def test_sessions_of_before_are_kept(seed: int) -> None:
    run(seed)


def _stale(self: HomeTable, client_id: str, epoch: int, node: str, number: int) -> bool:
    entry = self.entries.get(client_id)
    return (entry is None or number != entry.number) and WRITES(
        self, client_id, epoch, node, number
    )


async def _unkept(self: SessionOwner, *_: object) -> None:
    self._after()


WRITES = HomeTable.begin_write


@pytest.mark.parametrize("rule", ["waits", "kept first", "tried again"])
def test_every_rule_is_needed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home waits for an owner of which nothing is kept; an owner has kept what it hands over;
    what was not stored is tried again."""
    if rule == "waits":
        monkeypatch.setattr(table, "UNKEPT_MS", table.LET_GO_MS)
    elif rule == "kept first":
        monkeypatch.setattr(SessionOwner, "_until_kept", _unkept)
    else:
        monkeypatch.setattr(HomeTable, "begin_write", _stale)
    with pytest.raises(AssertionError, match="is forgotten"):
        for seed in range(60):
            run(seed)
