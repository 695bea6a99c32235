"""Goal: who answers from a partition's state knows all that was committed in it.

Method: nodes with the real `Residency` over one log, driven by a seed: the catalog names leaders,
nodes hear of that late and of several changes at once, leases end and come back, reading back takes
time, fails, and outlasts the leadership. After every step each node that would answer
is asked. Three rules are taken away, one at a time, and runs break.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from lakemq.broker_core.api.state.residency import Residency, Todo
from tests.support.seeds import seeds

NODES = ("a", "b", "c")
STEPS = 200


@dataclass
class Reading:
    turn: int
    state: list[int]
    done_at: int
    fails: bool


@dataclass
class Node:
    name: str
    residency: Residency = field(default_factory=Residency)
    leader: str = ""
    epoch: int = 0
    """As it knows the catalog."""
    begun: bool = False
    """Whether it has begun to lead, in the newest epoch that it knows."""
    state: list[int] | None = None
    readings: list[Reading] = field(default_factory=list)


class World:
    def __init__(self, seed: int, without: str = "") -> None:
        self.dice = random.Random(seed)
        self.without = without
        self.now = 0
        self.log: list[int] = []
        self.leader, self.epoch = "a", 0
        self.lease = "a"
        """Node that may lead by its lease; the catalog names another only when it is over."""
        self.nodes = {name: Node(name) for name in NODES}
        self.answers = 0

    def step(self) -> None:
        self.now += 1
        dice = self.dice
        node = self.nodes[dice.choice(NODES)]
        kind = dice.choice(["elect", "lease", "hear", "hear", "look", "look", "write", "write"])
        if kind == "elect" and dice.random() < 0.5:
            self.leader, self.epoch = node.name, self.epoch + 1
            self.lease = node.name
        elif kind == "lease":
            self.lease = dice.choice(["", self.leader, self.leader])
        elif kind == "hear":
            if (node.leader, node.epoch) != (self.leader, self.epoch):
                node.leader, node.epoch, node.begun = self.leader, self.epoch, False
                self.look(node)  # as the watch does, in the same turn
            node.begun = True
        elif kind == "look":
            self.look(node)
        elif self.answering(node) and node.state is not None:
            self.log.append(self.now)
            node.state.append(self.now)
        for each in self.nodes.values():
            self.read_on(each)

    def ready(self, node: Node) -> bool:
        current = (node.leader, node.epoch) == (self.leader, self.epoch)
        return node.begun and current and self.lease == node.name == node.leader

    def look(self, node: Node) -> None:
        todo = node.residency.look(
            leads=node.leader == node.name, epoch=node.epoch, ready=self.ready(node)
        )
        if todo is not Todo.NOTHING:
            node.state = None
        if todo is Todo.READ:
            until = self.now + self.dice.choice([1, 1, 2, 5, 20, 40])
            state, fails = list(self.log), self.dice.random() < 0.1
            node.readings.append(Reading(node.residency.turn, state, until, fails))

    def read_on(self, node: Node) -> None:
        for reading in [each for each in node.readings if each.done_at <= self.now]:
            node.readings.remove(reading)
            turn = node.residency.turn if self.without == "turns" else reading.turn
            if reading.fails:
                node.residency.failed(turn)
            elif node.residency.was_read(turn):
                node.state = reading.state

    def answering(self, node: Node) -> bool:
        """As `Residents.check`: the partition's door first, which knows the lease."""
        if self.without != "lease" and not self.ready(node):
            return False
        if self.without == "reading":
            return node.leader == node.name
        return node.residency.serves

    def check(self) -> None:
        for node in self.nodes.values():
            if self.answering(node):
                self.answers += 1
                assert node.state == self.log, f"{node.name} answers from {node.state}"


def run(seed: int, without: str = "") -> int:
    world = World(seed, without)
    for _ in range(STEPS):
        world.step()
        world.check()
    return world.answers


def test_who_answers_knows_all_that_was_committed() -> None:
    assert sum(map(run, seeds(300))) > 300


@pytest.mark.parametrize("rule", ["reading", "lease", "turns"])
def test_every_rule_is_needed(rule: str) -> None:
    """Answers before the partition was read; answers when the lease is over; what a reading of a
    leadership that has ended gave is held."""
    with pytest.raises(AssertionError, match="answers from"):
        for seed in range(300):
            run(seed, rule)


def test_a_node_that_leads_on_in_the_next_epoch_keeps_what_it_holds() -> None:
    held = Residency()
    told = [
        held.look(leads=True, epoch=3, ready=True),
        held.was_read(held.turn),
        held.look(leads=True, epoch=3, ready=False),
        held.serves,
        held.look(leads=True, epoch=4, ready=True),
        held.serves,
        held.look(leads=True, epoch=6, ready=True),
        held.serves,
    ]
    assert told == [Todo.READ, True, Todo.NOTHING, False, Todo.NOTHING, True, Todo.READ, False]


def test_a_reading_that_failed_is_begun_again() -> None:
    held = Residency()
    assert held.look(leads=True, epoch=0, ready=True) is Todo.READ
    held.failed(held.turn)
    assert not held.was_read(held.turn)
    assert held.look(leads=True, epoch=0, ready=True) is Todo.READ
