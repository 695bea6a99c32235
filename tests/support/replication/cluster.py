"""A partition on some brokers, its clients, and a controller that runs it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from lakemq.meta_service.catalog.control_commands import ACTIVE, FENCED
from tests.support.history import History
from tests.support.replica_log import SimulatedLog
from tests.support.replication.broker import Broker
from tests.support.replication.catalog import Catalog
from tests.support.replication.clients import Producer, Reader, records
from tests.support.replication.deaths import Deaths
from tests.support.replication.invariants import Invariants
from tests.support.replication.world import World

NAMES = ("a", "b", "c", "d")
REPLICATION = 3
FENCE_S = 1.25
CHECK_S = 0.05
RECKLESS_PART = 0.1
"""Of the seeds: more disks are lost than the partition bears, and an operator elects one that lacks
records."""


class SimulatedCluster:
    """From one seed. `broker`: makes the brokers, so that a test can plant a bug in them."""

    def __init__(
        self,
        seed: int,
        *,
        broker: Callable[[str, SimulatedCluster], Broker] = Broker,
        reckless: bool | None = None,
    ) -> None:
        """`reckless`: see `RECKLESS_PART`; None: as the seed says."""
        self.seed = seed
        self.world = World(seed)
        by_seed = self.world.rng.random() < RECKLESS_PART
        self.reckless = by_seed if reckless is None else reckless
        self.stats: Counter[str] = Counter()
        self.invariants = Invariants()
        self.catalog = Catalog()
        self.catalog.changed = self._catalog_changed
        self.ending = False
        self.controls = True
        """The controller acts; False: a test does."""
        self.brokers: dict[str, Broker] = {}
        self._heard: dict[str, float] = {}
        self.deaths = Deaths(self)
        for name in NAMES:
            self.brokers[name] = broker(name, self)
        self.history = History()
        self.readers = [Reader(name, self) for name in ("r", "s")]
        self.producers = [Producer(number, self) for number in range(2)]

    # ------------------------------------------------------------ running

    def begin(self) -> None:
        """A calm time: all brokers come up and take records."""
        for broker in self.brokers.values():
            broker.start()
        self.every(CHECK_S, self._control)
        self.world.run_for(0.6)
        self.catalog.create(REPLICATION, self.world.rng.choice((1, 2, 2, 2)))
        self.every(0.015, self._spread_catalog)
        for producer in self.producers:
            self.every(0.03, producer.turn)
        for reader in self.readers:
            self.every(0.15, reader.turn)
        self.world.run_for(1.0)

    def every(self, seconds: float, action: Callable[[], None]) -> None:
        """Again and again, about so often."""

        def again() -> None:
            action()
            self.world.at(seconds * self.world.rng.uniform(0.5, 1.5), again)

        self.world.at(seconds * self.world.rng.random(), again)

    def end(self) -> None:
        """All is well from now on: everything must come to rest, alike everywhere."""
        self.ending = True
        self.world.heal()
        for broker in self.brokers.values():
            if broker.paused:
                broker.resume()
            if broker.up and (broker.log.fenced or broker.leaving):
                broker.crash()
            if not broker.up:
                broker.start()
        for _ in range(60):
            self.world.run_for(0.5)
            if self._at_rest():
                break
        else:
            raise AssertionError(f"no rest: {self.describe()}")
        row = self.catalog.partition
        self.invariants.all_alike({name: self.brokers[name].disk for name in row.replicas})
        leaders = [name for name in row.in_sync if self.catalog.nodes[name].state == ACTIVE]
        if leaders and row.leader not in leaders:
            raise AssertionError(f"{row.leader} leads and drains, {leaders} could lead")
        self._check_history(self.brokers[row.replicas[0]].log)

    def _check_history(self, log: SimulatedLog) -> None:
        for producer in self.producers:
            producer.tell_unanswered()
        end = log.log_end_offset
        final = records(self.invariants.with_what_went(log.disk.batches, 0, end))
        found = self.history.anomalies({"p": final})
        assert not found, found[0]

    def _at_rest(self) -> bool:
        row = self.catalog.partition
        replicas = [self.brokers[name] for name in row.replicas]
        ends = {each.log.log_end_offset for each in replicas}
        ends |= {each.log.high_watermark for each in replicas}
        return (
            not any(each.pending for each in self.producers)
            and set(row.in_sync) == set(row.replicas)
            and not row.target
            and len(ends) == 1
        )

    def describe(self) -> str:
        """For a failure."""
        logs = {
            name: (
                b.up,
                b.log.log_start_offset,
                b.log.high_watermark,
                b.log.durable_end,
                b.log.log_end_offset,
                b.log.epochs[-3:],
            )
            for name, b in self.brokers.items()
        }
        pending = [len(each.pending) for each in self.producers]
        return f"{self.catalog.partition}, nodes {self.catalog.nodes}, logs {logs}, {pending}"

    # ------------------------------------------------------------ truth

    def _catalog_changed(self) -> None:
        self.stats["revisions"] += 1
        if self.catalog.history[-1].partition is None:
            return
        self.invariants.catalog_changed(
            self.catalog.history[-2].partition,
            self.catalog.partition,
            {
                name: broker.disk
                for name, broker in self.brokers.items()
                if self.has_registered_disk(name)
            },
        )

    def has_registered_disk(self, name: str) -> bool:
        """Whether memberships of the node are those of the disk that it has."""
        node, disk = self.catalog.nodes[name], self.brokers[name].disk
        same = node.storage_id == disk.storage_id and not disk.damaged
        return same and not self.catalog.has_lost(name)

    # ------------------------------------------------------------ the controller

    def heartbeat(
        self, name: str, broker_epoch: int, stream: object, answer: Callable[[str], None]
    ) -> None:
        node = self.catalog.nodes.get(name)
        is_current = node is not None and node.broker_epoch == broker_epoch
        if node is not None and is_current and self.deaths.heard(name, broker_epoch, stream):
            self._heard[name] = self.world.now_s
            answer(node.state)

    def _control(self) -> None:
        """As the controller: soft state from heartbeats, commands where something is amiss."""
        if not self.controls:
            return
        catalog = self.catalog
        if catalog.history[-1].partition is not None:
            catalog.settle()
            catalog.finish_moves()
            if self.reckless and catalog.partition.leader is None:
                self._elect_unclean()
        processes = self.deaths.processes
        processes.keep((name, node.broker_epoch) for name, node in catalog.nodes.items())
        for name, node in list(catalog.nodes.items()):
            heard = self.world.now_s - self._heard.get(name, 0.0) < FENCE_S
            if heard and processes.is_dead(name, node.broker_epoch, self.world.now_s):
                heard = False
                self.stats["dead at once"] += node.state != FENCED
            if node.state == FENCED and heard:
                if catalog.has_lost(name):
                    catalog.forget_lost(name)
                catalog.set_state(name, ACTIVE)
            elif node.state != FENCED and not heard:
                broker = self.brokers[name]
                if broker.up and broker.lease.held(self.world.now_s):
                    raise AssertionError(f"{name} is fenced, and its lease holds")
                self.stats["fenced"] += 1
                catalog.set_state(name, FENCED)

    def crashed(self, broker: Broker) -> None:
        self.deaths.crashed(broker)

    def _elect_unclean(self) -> None:
        """As operators do where every disk is lost of those that had everything; in a hurry, not
        always the replica that has most."""
        row, rng = self.catalog.partition, self.world.rng
        able = [name for name in row.replicas if self.catalog.nodes[name].state == ACTIVE]
        if row.in_sync or row.eligible or not able or rng.random() < 0.5:
            return
        ends = {name: self.brokers[name].disk.durable_end for name in able}
        most = max(able, key=lambda name: ends[name])
        name = most if rng.random() < 0.8 else rng.choice(able)
        self.stats["unclean elections"] += 1
        self.history.forget(self.invariants.forgive(self.brokers[name].disk))
        for producer in self.producers:
            producer.begin_anew()
        for reader in self.readers:
            reader.offset = min(reader.offset, ends[name])
        self.catalog.elect_unclean(name)

    def lose_disk(self, broker: Broker) -> None:
        """It is empty, and another one."""
        disk = broker.disk
        disk.restart(0)
        disk.damaged = False
        disk.storage_id = f"{int(disk.storage_id, 16) + 1:032x}"

    def _spread_catalog(self) -> None:
        """Watches bring events, at some brokers late."""
        for broker in self.brokers.values():
            if broker.up and self.world.rng.random() < (0.9 if self.ending else 0.5):
                broker.run(broker.watch_next)
