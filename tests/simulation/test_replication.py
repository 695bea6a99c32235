"""Goal: whatever fails in a replicated partition, what was acknowledged stays, and what readers
were given is never another thing later; when all is well again, all replicas are alike.

Method: the real leader, follower, roles, slots, throttle, lease, epoch table and catalog rules over
simulated disks, network and time. Brokers crash with torn tails, lose disks or part of a log, are
paused beyond their lease, cut off, fenced falsely or as dead, drained, stopped in good order;
flushes fail, bits flip on the way; records are deleted and compacted, segments roll; replicas come,
go and move; `min_in_sync` changes; brokers see the catalog late. In some runs more disks are lost
than the partition bears, and an operator elects a replica that lacks records: only what
that one lacks is lost then. One seed gives one run with some kinds of harm; it is named on
failure.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.replication.simulation import Simulation
from tests.support.seeds import outcomes_of, seeds

SEEDS = seeds(300)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_partition_keeps_every_promise(seed: int) -> None:
    Simulation(seed).run()


def test_the_simulation_does_what_it_says() -> None:
    """Else it proves nothing: faults happen, and records are acknowledged all the same."""
    stats: Counter[str] = Counter()
    for seed in range(25):
        simulation = Simulation(seed)
        simulation.run()
        stats += simulation.stats
    for fault in (
        "crashes",
        "lost disks",
        "pauses",
        "cuts",
        "fenced",
        "dead at once",
        "lies",
        "false fencing",
        "failed flushes",
        "moves",
        "leaves",
        "drains",
        "deletions",
        "compactions",
        "damaged logs",
    ):
        assert stats[fault] >= 2, f"{fault}: {stats}"
    assert stats["acked"] > 25 * 50


def test_a_word_of_an_operator_loses_no_more_than_it_may() -> None:
    stats: Counter[str] = Counter()
    for seed in range(15):
        simulation = Simulation(seed, reckless=True)
        simulation.run()
        stats += simulation.stats
    assert stats["unclean elections"] >= 2, stats


def test_a_seed_repeats_itself() -> None:
    script = (
        "from tests.support.replication.simulation import Simulation; s = Simulation(7); s.run();"
        "print(s.world.now_s, sorted(s.stats.items()), s.describe())"
    )
    assert len(outcomes_of(script)) == 1
