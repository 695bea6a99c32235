"""Whole clusters from one seed: faults of network, disks and members, and histories checked.

`LAKEMQ_SEEDS` sets how many seeds run (thousands at night); `LAKEMQ_SEED` repeats a failure.
"""

from __future__ import annotations

import pytest

from tests.support.meta.clients import Client, ElectionReader
from tests.support.meta.cluster import Cluster
from tests.support.meta.nemesis import Nemesis, alike, check_histories
from tests.support.seeds import outcomes_of, seeds


def run(seed: int, size: int, *, forgetting: bool = False) -> Cluster:
    cluster = Cluster(seed, size)
    with cluster.running():
        nemesis = Nemesis(cluster)
        if forgetting:
            nemesis.prefer_forgetting()
        clients = [Client(cluster, n, keys=2, deduplicates=n % 2 == 0) for n in range(4)]
        at_elections = ElectionReader(cluster, keys=2)
        for client in clients:
            client.start()
        nemesis.start()
        cluster.run_for(8.0)
        nemesis.stopping = True
        for client in clients:
            client.stopping = True
        cluster.heal()
        cluster.run_until(lambda: all(client.idle for client in clients), 30.0)
        cluster.run_until(lambda: alike(cluster), 30.0)
        check_histories(cluster, clients, at_elections)
    return cluster


@pytest.mark.parametrize("seed", seeds(120))
def test_three_members_keep_every_promise(seed: int) -> None:
    run(seed, 3)


@pytest.mark.parametrize("seed", seeds(120, divisor=4))
def test_five_members_keep_every_promise(seed: int) -> None:
    run(10_000 + seed, 5)


def test_a_seed_repeats_itself() -> None:
    script = "from tests.simulation.test_meta_simulation import run; c = run(5, 3); print(c.now)"
    assert len(outcomes_of(script)) == 1
