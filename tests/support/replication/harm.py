"""What goes wrong in a simulated cluster, and what its operators do."""

from __future__ import annotations

from collections.abc import Callable

from lakemq.meta_service.catalog.control_commands import ACTIVE, DRAINING, FENCED
from tests.support.replication.broker import Broker
from tests.support.replication.cluster import NAMES, SimulatedCluster
from tests.support.replication.world import CONTROLLER

EVERY_S = 0.15
_KIND_PART = 0.7
"""Of the kinds of harm, in one run: a run that has them all never gets far in any of them."""


class Harm:
    """Does harm to one cluster, of kinds that the seed chooses."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.sim, self.rng = cluster, cluster.world.rng
        weights: dict[Callable[[Broker], None], float] = {
            self._crash: 3.0,
            self._start: 4.0,
            self._pause: 2.0,
            self._cut: 2.0,
            self._reset: 1.5,
            self._heal: 3.0,
            self._network: 2.0,
            self._fail_flush: 3.0,
            self._fence_disk: 0.7,
            self._fence_falsely: 1.5,
            self._change_min: 1.0,
            self._move: 1.5,
            self._resign: 1.0,
            self._prefer: 0.7,
            self._leave: 1.5,
            self._drain: 1.0,
            self._delete_records: 1.5,
            self._compact: 2.0,
        }
        always = (self._start, self._heal, *([self._crash] if self.sim.reckless else []))
        self._weights = {
            kind: weight
            for kind, weight in weights.items()
            if kind in always or self.rng.random() < _KIND_PART
        }

    def __call__(self) -> None:
        """Something happens to one of the brokers."""
        if self.sim.ending:
            return
        broker = self.sim.brokers[self.rng.choice(NAMES)]
        (kind,) = self.rng.choices([*self._weights], [*self._weights.values()])
        kind(broker)

    # ------------------------------------------------------------ machines

    def _crash(self, broker: Broker) -> None:
        if not broker.up:
            return
        self.sim.stats["crashes"] += 1
        broker.crash()
        if self.rng.random() < (0.9 if self.sim.reckless else 0.4) and self._may_lose_disk(broker):
            if self.rng.random() < 0.6:
                self.sim.stats["lost disks"] += 1
                self.sim.lose_disk(broker)
            else:
                self.sim.stats["damaged logs"] += 1
                broker.disk.damage(self.rng)
        if self.rng.random() < 0.3:
            self.sim.world.at(self.rng.uniform(0.01, 0.3), lambda: self._start(broker))

    def _may_lose_disk(self, broker: Broker) -> bool:
        """No other one is missing, and another has everything, as the catalog knows: what is
        promised while fewer than `min_in_sync` disks are lost at once. In some runs anything may
        be lost."""
        if self.sim.reckless:
            return True
        row = self.sim.catalog.partition
        if row.min_in_sync < 2 or self._misses_a_disk():
            return False
        ends = [
            other.disk.durable_end
            for name, other in self.sim.brokers.items()
            if name != broker.name
            and name in (*row.in_sync, *row.eligible)
            and self.sim.has_registered_disk(name)
        ]
        return any(end >= self.sim.invariants.committed_end for end in ends)

    def _misses_a_disk(self) -> bool:
        """One was lost, and the catalog does not know it."""
        return not all(self.sim.has_registered_disk(name) for name in NAMES)

    def _start(self, broker: Broker) -> None:
        if not broker.up:
            broker.start()

    def _leave(self, broker: Broker) -> None:
        """SIGTERM, and a start soon after: a rolling restart."""
        if broker.up and not broker.paused and not broker.leaving:
            self.sim.stats["leaves"] += 1
            broker.leave()
            self.sim.world.at(self.rng.uniform(0.5, 2.5), lambda: self._start(broker))

    def _pause(self, broker: Broker) -> None:
        if broker.up and not broker.paused:
            self.sim.stats["pauses"] += 1
            broker.pause()
            process = broker.process

            def resume() -> None:
                if broker.process == process and broker.paused:
                    broker.resume()

            self.sim.world.at(self.rng.choice((0.1, 0.5, 2.0)), resume)

    # ------------------------------------------------------------ the network

    def _cut(self, broker: Broker) -> None:
        rng, name, cut = self.rng, broker.name, self.sim.world.cut
        others = [each for each in (*NAMES, CONTROLLER) if each != name]
        if rng.random() < 0.4:
            others = rng.sample(others, 1)
        one_way = rng.random() < 0.4
        for other in others:
            cut.add((name, other) if rng.random() < 0.5 else (other, name))
            if not one_way:
                cut |= {(name, other), (other, name)}
        self.sim.stats["cuts"] += 1

    def _reset(self, broker: Broker) -> None:
        """Of a process that goes on; at times others are told that it is gone, and it can't reach
        the controller."""
        if not broker.up or broker.paused:
            return
        self.sim.stats["resets"] += 1
        self.sim.deaths.reset(broker)
        if self.rng.random() < 0.5:
            self.sim.stats["lies"] += 1
            self.sim.deaths.lie(broker, 1.0)
            self.sim.world.cut.add((broker.name, CONTROLLER))

    def _heal(self, broker: Broker) -> None:
        self.sim.world.cut.clear()

    def _network(self, broker: Broker) -> None:
        rng, world = self.rng, self.sim.world
        world.loss = rng.choice((0.0, 0.05, 0.2))
        world.repeat = rng.choice((0.0, 0.1, 0.3))
        world.late = rng.choice((0.0, 0.1, 0.5))
        world.flips = rng.choice((0.0, 0.0, 0.1))

    # ------------------------------------------------------------ disks

    def _fail_flush(self, broker: Broker) -> None:
        if broker.up and not broker.paused:
            self.sim.stats["failed flushes"] += 1
            broker.fail_flush()

    def _fence_disk(self, broker: Broker) -> None:
        if broker.up and not broker.paused and not broker.log.fenced:
            broker.fence()

            def again() -> None:
                if broker.up and broker.log.fenced:
                    broker.crash()
                    broker.start()

            self.sim.world.at(self.rng.uniform(0.5, 3.0), again)

    def _delete_records(self, broker: Broker) -> None:
        """Retention, or an operator: at the leader."""
        leader = self.sim.brokers[self.sim.catalog.partition.leader or broker.name]
        if leader.up and not leader.paused and leader.delete_records():
            self.sim.stats["deletions"] += 1

    def _compact(self, broker: Broker) -> None:
        if broker.up and not broker.paused and broker.compact():
            self.sim.stats["compactions"] += 1

    # ------------------------------------------------------------ the catalog

    def _fence_falsely(self, broker: Broker) -> None:
        if self.sim.catalog.nodes[broker.name].state == ACTIVE:
            self.sim.stats["false fencing"] += 1
            self.sim.catalog.set_state(broker.name, FENCED)

    def _drain(self, broker: Broker) -> None:
        """One node at a time; the one that drains goes back to work."""
        catalog = self.sim.catalog
        draining = [name for name, node in catalog.nodes.items() if node.state == DRAINING]
        if draining:
            catalog.set_state(draining[0], ACTIVE)
        elif catalog.nodes[broker.name].state == ACTIVE:
            self.sim.stats["drains"] += 1
            catalog.set_state(broker.name, DRAINING)

    def _change_min(self, broker: Broker) -> None:
        min_in_sync = 3 - self.sim.catalog.partition.min_in_sync
        if min_in_sync > 1 or not self._misses_a_disk():
            self.sim.catalog.set_min(min_in_sync)

    def _move(self, broker: Broker) -> None:
        """To two, three or four replicas, those that there are or others; a move under way may be
        redirected."""
        row = self.sim.catalog.partition
        if row.target and self.rng.random() < 0.7:
            return
        self.sim.stats["moves"] += 1
        if self.rng.random() < 0.3:
            target = self.rng.sample(NAMES, self.rng.choice((2, 3, 3, 4)))
        else:
            target = list(row.replicas)
            spare = [name for name in NAMES if name not in target]
            target[self.rng.randrange(len(target))] = (spare or target)[0]
        if len(set(target)) == len(target):
            self.sim.catalog.start_move(tuple(target))

    def _resign(self, broker: Broker) -> None:
        row = self.sim.catalog.partition
        if row.leader:
            self.sim.catalog.resign(row.leader, row.leader_epoch)

    def _prefer(self, broker: Broker) -> None:
        self.sim.catalog.settle(preferred=True)
