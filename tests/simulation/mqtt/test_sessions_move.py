"""Goal: clients that connect to another node each time get QoS 2 exactly once, QoS 1 at least once,
in order, whatever happens to nodes and connections meanwhile.

Method: as in `test_mqtt_crashes`, with three hubs over one log, which each of them hears late.
Owners let go of sessions, or go on in the belief that they have them, or are dead. Each rule of the
way of a session is taken away once, and runs break.
"""

from __future__ import annotations

from typing import Any

import pytest

from lakemq.plugins.mqtt.homes import moving
from lakemq.plugins.mqtt.state import delivery
from lakemq.plugins.mqtt.state.delivery import DeliveryLimits
from lakemq.plugins.mqtt.wire.packets import V5, V311, PacketType
from tests.simulation.test_mqtt_crashes import Client, Publisher, Subscriber
from tests.support.mqtt.members import Member, Members
from tests.support.seeds import seeds

STEPS = 2500


class OncePublisher(Publisher):
    """Answers one PUBREC of an identifier: an append that ends may be answered beside the same
    publish sent again, and PUBREL twice would get two PUBCOMP, the later perhaps when the
    identifier is in use again."""

    def take(self, packet: Any) -> None:
        released = self.unfinished.get(packet.packet_id, (None, None))[1] is PacketType.PUBREL
        if packet.type is not PacketType.PUBREC or not released:
            super().take(packet)


class World:
    def __init__(self, seed: int, without: str = "") -> None:
        window = (2, 5, 1000)[seed % 3]
        self.members = Members(seed, without, delivery=DeliveryLimits(inflight_max=window))
        self.random = self.members.random
        versions = [self.random.choice((V311, V5)) for _ in range(2)]
        self.publisher = OncePublisher(self.members, versions[0])  # type: ignore[arg-type]
        self.subscriber = Subscriber(self.members, versions[1])  # type: ignore[arg-type]
        self.clients: list[Client] = [self.publisher, self.subscriber]

    def run(self) -> None:
        self.subscriber.connect()
        while not self.subscriber.subscribed:
            self.subscriber.send_one()
            self.members.settle()
            self.subscriber.read()
        self.publisher.connect()
        publisher, subscriber, members = self.publisher, self.subscriber, self.members
        moves = [
            (6, lambda: publisher.publish(self.random)),
            (8, publisher.send_one),
            (8, subscriber.send_one),
            (8, publisher.read),
            (8, subscriber.read),
            (9, lambda: members.one.write_records()),
            (9, lambda: members.one.hear()),
            (9, lambda: members.one.write_sessions()),
            (12, lambda: members.one.confirm_one()),
            (6, lambda: members.one.load()),
            (1, lambda: members.one.checkpoint()),
            (0.6, lambda: self.crash(members.one)),
            (1.5, lambda: self.lose(self.random.choice(self.clients))),
            (4, self.reconnect),
        ]
        weights = [weight for weight, _ in moves]
        for _ in range(STEPS):
            self.random.choices(moves, weights)[0][1]()
        self.finish()

    def crash(self, node: Member) -> None:
        for client in self.clients:
            if client.device is not None and client.device.bench is node:
                client.disconnect(crashed=True)
        node.crash()

    def lose(self, client: Client) -> None:
        # The node hears of it now, or not before the client is at another one.
        client.disconnect(crashed=self.random.random() < 0.5)

    def reconnect(self) -> None:
        for client in self.clients:
            if client.device is None:
                client.connect()
                return

    def finish(self) -> None:
        """Everything that is under way comes to its end."""
        for _ in range(2000):
            for client in self.clients:
                if client.device is None:
                    client.connect()
                client.send_one()
                client.read()
            self.members.settle()
            if not any(client.sending for client in self.clients) and not self.publisher.unfinished:
                owner = self.members.owners["subscriber"]
                session = owner.hub.sessions.get("subscriber")
                if session is not None and not session.outbound.load and not owner.hub.histories:
                    return
        raise AssertionError("does not come to rest")

    def check(self) -> None:
        published, taken = self.publisher.published, self.subscriber.taken
        assert taken[2] == list(range(published[2])), "QoS 2 exactly once, in order"
        firsts = list(dict.fromkeys(taken[1]))
        assert firsts == sorted(firsts), "QoS 1 in order"
        assert firsts == list(range(published[1])), "QoS 1 at least once"


def run(seed: int, without: str = "") -> World:
    world = World(seed, without)
    world.run()
    world.check()
    return world


@pytest.mark.parametrize("seed", seeds(25))
def test_promises_hold_for_clients_that_change_nodes(seed: int) -> None:
    run(seed)


@pytest.mark.parametrize("seed", seeds(12))
def test_promises_hold_for_queues_longer_than_what_is_kept_of_them(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "QUEUE_KEPT_MAX", 2 + seed % 4)
    run(seed)


@pytest.mark.parametrize("rule", ["positions", "ends", "epochs", "settled"])
def test_every_rule_is_needed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session goes on where its new node is; an owner that is gone may have stored more than this
    node has heard of; an owner before writes what it has; state is handed over while a publish is
    being stored."""
    if rule == "settled":
        monkeypatch.setattr(moving, "is_settled", lambda session: True)
    with pytest.raises(AssertionError):
        for seed in range(100):
            run(seed, rule)


def test_runs_are_worth_something() -> None:
    """Sessions move often, both ways, and much is published."""
    worlds = [run(seed) for seed in range(5)]
    for world in worlds:
        assert world.members.handed > 5
        assert world.members.taken_from_records > 5
        assert sum(world.publisher.published.values()) >= 40
