"""Goal: all nodes end with the same retained messages, the newest ones, whoever of them dies or is
late, and so does a node that starts then.

Method: nodes with the real `Agreement` over partitions of bound topics, and the topic of retained
messages; who leads changes, appends are late, fail, or fail after all; nodes die and start again.
Each rule taken away breaks some seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from lakemq.plugins.mqtt.retaining import agreement
from lakemq.plugins.mqtt.retaining.agreement import Agreement, Entry
from lakemq.plugins.mqtt.routing.retained import Retained
from lakemq.plugins.mqtt.wire.messages import Message, Place
from tests.support.seeds import seeds

NODES = ("a", "b", "c")
PARTITIONS = 2
NAMES = [[f"{partition}/{number}" for number in range(3)] for partition in range(PARTITIONS)]
FREE = ("free/0", "free/1")
"""Names that no topic is bound to."""


class Node:
    def __init__(self, world: World, name: str, seen: list[int]) -> None:
        self.world, self.name = world, name
        self.kept = Retained(1000, 10**6)
        self.kept.tracking = True
        self.agreement = Agreement(self.kept)
        self.heard = list(seen)
        """By partition, up to where its records were heard."""
        self.read = 0
        self.under_way: tuple[list[Entry], list[int]] | None = None
        for entry in world.compacted():
            self.agreement.read(entry, world.now_ms, self.leads)
        self.read = len(world.log)

    def leads(self, place: Place) -> bool:
        return self.world.leaders[place.partition] == self.name

    def hear(self, partition: int) -> None:
        records, at = self.world.records[partition], self.heard[partition]
        if at < len(records):
            name, payload, expires_ms = records[at]
            place = Place("t", partition, at)
            message = Message(name, payload, 1, True, 0, origin="x", place=place)
            message.expires_ms = expires_ms
            self.kept.put(message, let_in=True)
            self.heard[partition] += 1

    def read_one(self) -> None:
        if self.read < len(self.world.log):
            self.agreement.read(self.world.log[self.read], self.world.now_ms, self.leads)
            self.read += 1

    def begin(self) -> None:
        if self.under_way is None:
            due = self.agreement.due(self.world.now_ms, self.leads, complete=True)
            self.under_way = (due, list(self.heard))

    def end(self, outcome: str) -> None:
        """`late`: it is in the log, and this node does not hear so."""
        if self.under_way is None:
            return
        (entries, heard), self.under_way = self.under_way, None
        if outcome != "lost":
            self.world.log += entries
        if outcome == "stored":
            self.agreement.written()
            for partition, at in enumerate(heard):
                if self.world.leaders[partition] == self.name:
                    self.world.seen[partition] = at
        else:
            self.agreement.failed()


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_ms = 0
        self.records: list[list[tuple[str, bytes, int | None]]] = [[] for _ in range(PARTITIONS)]
        self.log: list[Entry] = []
        self.leaders = ["a"] * PARTITIONS
        self.seen = [0] * PARTITIONS
        """Positions that leaders have written with what they retained below them."""
        self.nodes = {name: Node(self, name, self.seen) for name in NODES}

    def compacted(self) -> list[Entry]:
        newest: dict[str, tuple[int, Entry]] = {}
        for at, entry in enumerate(self.log):
            newest[entry.topic] = (at, entry)
        return [entry for _, entry in sorted(newest.values()) if entry.message is not None]

    def step(self) -> None:
        rng = self.rng
        node = self.nodes[rng.choice(NODES)]
        partition = rng.randrange(PARTITIONS)
        what = rng.choices(
            ("publish", "free", "hear", "read", "begin", "end", "lead", "die", "wait", "expire"),
            (8, 2, 20, 20, 6, 8, 1, 0.4, 3, 2),
        )[0]
        if what == "publish":
            payload = b"" if rng.random() < 0.2 else b"%d" % len(self.records[partition])
            expires_ms = self.now_ms + rng.randrange(2000) if rng.random() < 0.2 else None
            self.records[partition].append((rng.choice(NAMES[partition]), payload, expires_ms))
        elif what == "expire":
            node.kept.drop_expired(self.now_ms, alone=False)
        elif what == "free":
            self.free(node)
        elif what == "hear":
            node.hear(partition)
        elif what == "read":
            node.read_one()
        elif what == "begin":
            node.begin()
        elif what == "end":
            node.end(rng.choices(("stored", "lost", "late"), (8, 1, 1))[0])
        elif what == "lead":
            self.leaders[partition] = node.name
        elif what == "die":
            node.end(rng.choice(("lost", "late")))
            self.nodes[node.name] = Node(self, node.name, self.seen)
        else:
            self.now_ms += rng.randrange(500)

    def free(self, node: Node) -> None:
        payload = b"%d" % self.rng.randrange(10**6)
        node.kept.put(Message(self.rng.choice(FREE), payload, 0, True, 0, origin="x"))

    def settle(self) -> None:
        """Time goes on and nothing fails any more."""
        for _ in range(6):
            self.now_ms += agreement.WAIT_MS
            for node in self.nodes.values():
                for partition in range(PARTITIONS):
                    while node.heard[partition] < len(self.records[partition]):
                        node.hear(partition)
                node.kept.drop_expired(self.now_ms, alone=False)
                node.end("stored")
                node.begin()
                node.end("stored")
            for node in self.nodes.values():
                while node.read < len(self.log):
                    node.read_one()

    def problems(self) -> list[str]:
        newest: dict[str, bytes] = {}
        for records in self.records:
            newest |= {
                name: payload if expires_ms is None else b""
                for name, payload, expires_ms in records
            }
        found = []
        fresh = Node(self, "a", [len(each) for each in self.records])
        for node in [*self.nodes.values(), fresh]:
            for name, payload in newest.items():
                kept = node.kept.get(name)
                if (kept.payload if kept else b"") != payload:
                    found.append(f"{node.name} has {kept and kept.payload} as {name}: {payload!r}")
            for name in FREE:
                ours, first = node.kept.get(name), fresh.kept.get(name)
                if (ours and ours.payload) != (first and first.payload):
                    found.append(f"{node.name} has another {name}")
        return found


def run(seed: int) -> list[str]:
    world = World(seed)
    for _ in range(world.rng.randrange(50, 600)):
        world.step()
    world.settle()
    return world.problems()


@pytest.mark.parametrize("seed", seeds(300))
def test_all_nodes_end_with_the_newest(seed: int) -> None:
    assert run(seed) == []


def _no_heal(self: Agreement, entry: Entry, now_ms: int, leads: Any) -> None:
    known = self._retained.source_of(entry.topic)
    if known is None or entry.source is None or entry.source.offset >= known.offset:
        ORIGINAL_READ(self, entry, now_ms, leads)


def _log_order_alone(self: Agreement, entry: Entry, now_ms: int, leads: Any) -> None:
    self._take(entry)


def _leader_alone(self: Agreement, name: str, now_ms: int, leads: Any) -> None:
    source = self._retained.source_of(name)
    if source is None or leads(source):
        self._ours[name] = None


ORIGINAL_READ = Agreement.read


@pytest.mark.parametrize(
    ("rule", "broken"),
    [
        ("read", _no_heal),
        ("read", _log_order_alone),
        ("_assign", _leader_alone),
        ("failed", Agreement.written),
    ],
    ids=["no-heal", "log-order-alone", "leader-alone", "forgets-failures"],
)
def test_each_rule_is_needed(
    monkeypatch: pytest.MonkeyPatch, rule: str, broken: Callable[..., Any]
) -> None:
    monkeypatch.setattr(Agreement, rule, broken)
    assert any(run(seed) for seed in range(300))
