"""Goal: the simulation of replication notices when a rule is missing.

Method: each rule of the cluster's design is taken away, and a run must break. Rules whose absence
hardly ever shows have a schedule of their own.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lakemq.broker_core.replication.leader import PartitionLeader
from lakemq.broker_core.replication.types import InSyncWish
from lakemq.meta_service.catalog.control_commands import ACTIVE, FENCED
from tests.support.replication.broker import Broker, Surroundings
from tests.support.replication.invariants import Broken
from tests.support.replication.planted import (
    PLANTS,
    any_registration,
    forget_resigning,
    judged_first,
)
from tests.support.replication.simulation import Simulation
from tests.support.replication.world import CONTROLLER

RUNS_MAX = 120
"""Many times what any of the planted bugs needs."""


@pytest.mark.parametrize("name", PLANTS)
def test_a_missing_rule_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant = PLANTS[name]
    plant.patch(monkeypatch)
    for seed in range(RUNS_MAX):
        try:
            Simulation(seed, broker=plant.broker).run()
        except AssertionError as error:
            if "no rest" not in str(error):
                return
    pytest.fail(f"{RUNS_MAX} runs kept every promise without the rule")


class HoldsWishes(Broker):
    """Its wishes are on their way for as long as the test likes."""

    holds = False

    def __init__(self, name: str, around: Surroundings) -> None:
        super().__init__(name, around)
        self.held: list[Callable[[], None]] = []

    def ask_catalog(self, wish: InSyncWish, leader: PartitionLeader) -> None:
        ask = super().ask_catalog
        if self.holds:
            self.held.append(lambda: ask(wish, leader))
        else:
            ask(wish, leader)


@pytest.mark.parametrize("breaks", [False, True])
def test_a_member_that_lost_its_disk_meanwhile_does_not_join(
    breaks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KIP-903: the leader proposes what it heard of an earlier process, and nothing has changed the
    partition since. Too rare for seeds: the member must come back before the proposal arrives."""
    if breaks:
        any_registration(monkeypatch)
    sim = Simulation(1, broker=HoldsWishes)
    sim.begin()
    leader = sim.brokers[sim.catalog.partition.leader or ""]
    assert isinstance(leader, HoldsWishes)
    member = next(
        broker
        for name, broker in sim.brokers.items()
        if broker is not leader and name in sim.catalog.partition.in_sync
    )
    sim.world.cut |= {(leader.name, member.name), (member.name, leader.name)}
    sim.world.run_for(2.0)
    assert member.name not in sim.catalog.partition.in_sync
    leader.holds = True
    sim.world.heal()
    for _ in range(30):
        sim.world.run_for(0.1)
        if leader.held:
            break
    member.crash()
    sim.lose_disk(member)
    # Nothing of the new process reaches the leader.
    sim.world.cut |= {(leader.name, member.name), (member.name, leader.name)}
    sim.world.run_for(2.0)
    member.start()
    sim.world.run_for(0.6)
    assert sim.catalog.nodes[member.name].state == ACTIVE
    leader.holds = False
    leader.held[0]()
    if breaks:
        with pytest.raises(Broken, match="I7: .* lacks"):
            sim.world.run_for(0.1)
    else:
        sim.world.run_for(0.1)
        assert member.name not in sim.catalog.partition.in_sync
        sim.end()


def gives_up_and_hears_of_the_catalog(seed: int) -> None:
    """A leader's flush fails, and the catalog changes something else before it hears of that."""
    sim = Simulation(seed)
    sim.begin()
    leader = sim.brokers[sim.catalog.partition.leader or ""]
    leader.hold_flushes()
    sim.world.run_for(0.2)
    sim.world.cut.add((leader.name, CONTROLLER))
    leader.fail_flush()
    sim.catalog.set_min(3 - sim.catalog.partition.min_in_sync)
    sim.world.run_for(0.5)
    leader.crash()
    sim.end()


@pytest.mark.parametrize("forgets", [False, True])
def test_a_leader_that_gave_up_does_not_lead_that_epoch_again(
    forgets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shipped what its disk then refused, so it must never give those offsets again."""
    if forgets:
        forget_resigning(monkeypatch)
    broken = 0
    for seed in range(20):
        try:
            gives_up_and_hears_of_the_catalog(seed)
        except Broken:
            broken += 1
    assert (broken > 0) is forgets


@pytest.mark.parametrize("early", [False, True])
def test_the_eligible_set_is_judged_after_the_election(
    early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is elected alone under a lowered minimum commits alone: no other may be eligible.
    Too rare for seeds: the controller looks at the partition again soon."""
    if early:
        judged_first(monkeypatch)
    sim = Simulation(1)
    sim.begin()
    sim.controls = False
    catalog, row = sim.catalog, sim.catalog.partition
    leader, *others = [name for name in row.replicas if name in row.in_sync]
    for name in row.replicas:
        catalog.set_state(name, FENCED)
    catalog.settle()
    catalog.set_min(1)
    assert catalog.partition.leader is None and set(others) <= set(catalog.partition.eligible)
    sim.world.cut |= {(leader, other) for other in others}
    catalog.set_state(leader, ACTIVE)
    catalog.settle()
    assert catalog.partition.leader == leader
    before = sim.invariants.committed_end
    sim.world.run_for(0.7)
    assert sim.invariants.committed_end > before
    if early:
        with pytest.raises(Broken, match="I7: .* lacks"):
            catalog.set_state(others[0], ACTIVE)
    else:
        sim.controls = True
        sim.end()
