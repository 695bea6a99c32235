"""A partition on some brokers, from one seed: clients, a controller, and what harms them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from lakemq.broker_core.api.records.batch import (
    HEADER_BYTES,
    BatchHeader,
    ProducerStamp,
    RecordBatch,
    encode_with_header,
)
from lakemq.broker_core.api.types import Columns
from lakemq.meta_service.catalog.control_commands import ACTIVE, FENCED
from tests.support.history import OPEN, History, Read, Send
from tests.support.replica_log import DUPLICATES, Refused, SimulatedLog
from tests.support.replication.broker import Broker
from tests.support.replication.catalog import Catalog
from tests.support.replication.deaths import Deaths
from tests.support.replication.invariants import Invariants
from tests.support.replication.world import CONTROLLER, World

NAMES = ("a", "b", "c", "d")
REPLICATION = 3
FENCE_S = 1.25
BATCH_MAX = 2
CHECK_S = 0.05


class Producer:
    """An idempotent producer: it sends again until it is answered, in order."""

    def __init__(self, number: int, sim: Simulation) -> None:
        self.number, self.sim = number, sim
        self._sequence = 0
        self.pending: deque[tuple[int, BatchHeader, bytes]] = deque()
        self._ends: dict[int, int] = {}
        self._begun: dict[int, tuple[float, list[str]]] = {}

    def turn(self) -> None:
        rng = self.sim.world.rng
        # A log knows the last batches of a producer again, not all of them.
        behind = self._sequence - self.pending[0][0] if self.pending else 0
        if len(self.pending) < 2 and behind < DUPLICATES - 1 and not self.sim.ending:
            count = rng.choice((1, 1, BATCH_MAX))
            values = [f"{self.number}-{self._sequence}-{index}" for index in range(count)]
            columns = Columns([value.encode() for value in values])
            self._begun[self._sequence] = self.sim.world.now_s, values
            stamp = ProducerStamp(self.number, 0, self._sequence)
            self.pending.append((self._sequence, *encode_with_header(columns, producer=stamp)))
            self._sequence += 1
        leader = self.sim.catalog.partition.leader
        name = leader if leader and rng.random() < 0.8 else rng.choice(NAMES)
        broker = self.sim.brokers[name]
        if not broker.up or broker.paused:
            return
        for sequence, header, data in list(self.pending):
            try:
                broker.append(data, header, self._done(sequence, header, data))
            except Refused:
                break

    def _done(self, sequence: int, header: BatchHeader, data: bytes) -> Callable[[int, bool], None]:
        def done(end: int, committed: bool) -> None:
            if not committed:
                return
            sim = self.sim
            sim.invariants.was_acked(data[HEADER_BYTES:], end - header.record_count)
            sim.stats["acked"] += 1
            if sequence not in self._ends:
                self._answered(sequence, end - header.record_count)
            if self._ends.setdefault(sequence, end) != end:
                raise AssertionError(f"I9: sequence {sequence} was answered with two offsets")
            if sim.world.rng.random() < 0.1:
                return  # the answer is lost: it is sent again, and known
            self.pending = deque(each for each in self.pending if each[0] != sequence)

        return done

    def _answered(self, sequence: int, base: int) -> None:
        start_s, values = self._begun[sequence]
        now_s, name = self.sim.world.now_s, str(self.number)
        for index, value in enumerate(values):
            number = sequence * BATCH_MAX + index
            sent = Send("p", name, number, value, start_s, now_s, base + index)
            self.sim.history.sends.append(sent)

    def unanswered(self) -> list[Send]:
        """What may be stored or not, at the end."""
        return [
            Send("p", str(self.number), sequence * BATCH_MAX + index, value, start_s, 1e9, OPEN)
            for sequence, (start_s, values) in self._begun.items()
            if sequence not in self._ends
            for index, value in enumerate(values)
        ]


class Reader:
    """Reads on and on at the leader, which is to be the newest one: a lease ends before another
    node leads, but for what an operator or a false alarm moves away."""

    def __init__(self, name: str, sim: Simulation) -> None:
        self.name, self.sim = name, sim
        self._offset = 0

    def turn(self) -> None:
        sim = self.sim
        row = sim.catalog.partition
        broker = sim.brokers.get(row.leader or "")
        if broker is None or not broker.serves(row.leader_epoch):
            return
        end = broker.log.high_watermark
        records = []
        for stored in broker.log.batches_between(self._offset, min(end, self._offset + 20)):
            base = stored.header.base_offset
            values = RecordBatch(stored.data).values()
            records += [(base + index, (v or b"").decode()) for index, v in enumerate(values)]
        now_s = sim.world.now_s
        sim.history.reads.append(
            Read("p", self.name, now_s, now_s, self._offset, tuple(records), end)
        )
        if records:
            self._offset = records[-1][0] + 1


class Simulation:
    """One seed. `broker`: makes the brokers, so that a test can plant a bug in them."""

    def __init__(
        self,
        seed: int,
        *,
        broker: Callable[[str, Simulation], Broker] = Broker,
    ) -> None:
        self.seed = seed
        self.world = World(seed)
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

    def run(self, seconds: float = 5.0) -> None:
        """Raises AssertionError, with the seed, when an invariant does not hold."""
        try:
            self._run(seconds)
        except AssertionError as error:
            raise AssertionError(f"LAKEMQ_SEED={self.seed} repeats this: {error}") from error

    def _run(self, seconds: float) -> None:
        self.begin()
        self._every(0.15, self._harm)
        self.world.run_for(seconds)
        self.end()

    def begin(self) -> None:
        """A calm time: all brokers come up and take records."""
        for broker in self.brokers.values():
            broker.start()
        self._every(CHECK_S, self._control)
        self.world.run_for(0.6)
        self.catalog.create(REPLICATION, self.world.rng.choice((1, 2, 2, 2)))
        self._every(0.015, self._spread_catalog)
        for producer in self.producers:
            self._every(0.03, producer.turn)
        for reader in self.readers:
            self._every(0.15, reader.turn)
        self.world.run_for(1.0)

    def _every(self, seconds: float, action: Callable[[], None]) -> None:
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
            if broker.log.fenced and broker.up:
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
        self._check_history(self.brokers[row.replicas[0]].log)

    def _check_history(self, log: SimulatedLog) -> None:
        for producer in self.producers:
            self.history.sends += producer.unanswered()
        final = [
            (stored.header.base_offset + index, (value or b"").decode())
            for stored in log.disk.batches
            for index, value in enumerate(RecordBatch(stored.data).values())
        ]
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
            self.catalog.partition,
            {
                name: broker.disk
                for name, broker in self.brokers.items()
                if self.has_registered_disk(name)
            },
        )

    def has_registered_disk(self, name: str) -> bool:
        """Whether memberships of the node are those of the disk that it has."""
        node = self.catalog.nodes[name]
        return node.storage_id == self.brokers[name].disk.storage_id and not self.catalog.has_lost(
            name
        )

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

    def _spread_catalog(self) -> None:
        """Watches bring events, at some brokers late."""
        for broker in self.brokers.values():
            if broker.up and self.world.rng.random() < (0.9 if self.ending else 0.5):
                broker.run(broker.watch_next)

    # ------------------------------------------------------------ harm

    def _harm(self) -> None:
        if self.ending:
            return
        rng = self.world.rng
        broker = self.brokers[rng.choice(NAMES)]
        harms: list[tuple[float, Callable[[Broker], None]]] = [
            (3.0, self._crash),
            (4.0, self._start),
            (2.0, self._pause),
            (2.0, self._cut),
            (1.5, self._reset),
            (3.0, self._heal),
            (2.0, self._network),
            (3.0, self._fail_flush),
            (0.7, self._fence_disk),
            (1.5, self._fence_falsely),
            (1.0, self._change_min),
            (1.5, self._move),
            (1.0, self._resign),
            (0.7, self._prefer),
        ]
        (harm,) = rng.choices([each for _, each in harms], [weight for weight, _ in harms])
        harm(broker)

    def _crash(self, broker: Broker) -> None:
        if not broker.up:
            return
        self.stats["crashes"] += 1
        broker.crash()
        if self.world.rng.random() < 0.4 and self._may_lose_disk(broker):
            self.stats["lost disks"] += 1
            self.lose_disk(broker)
        if self.world.rng.random() < 0.3:
            self.world.at(self.world.rng.uniform(0.01, 0.3), lambda: self._start(broker))

    def lose_disk(self, broker: Broker) -> None:
        disk = broker.disk
        disk.restart(0)
        disk.storage_id = f"{int(disk.storage_id, 16) + 1:032x}"

    def _may_lose_disk(self, broker: Broker) -> bool:
        """No other one is missing, and another has everything, as the catalog knows: what is
        promised while fewer than `min_in_sync` disks are lost at once."""
        row = self.catalog.partition
        if row.min_in_sync < 2 or self._misses_a_disk():
            return False
        ends = [
            other.disk.durable_end
            for name, other in self.brokers.items()
            if name != broker.name
            and name in (*row.in_sync, *row.eligible)
            and self.has_registered_disk(name)
        ]
        return any(end >= self.invariants.committed_end for end in ends)

    def _misses_a_disk(self) -> bool:
        """One was lost, and the catalog does not know it."""
        return not all(self.has_registered_disk(name) for name in NAMES)

    def _start(self, broker: Broker) -> None:
        if not broker.up:
            broker.start()

    def _pause(self, broker: Broker) -> None:
        if broker.up and not broker.paused:
            self.stats["pauses"] += 1
            broker.pause()
            process = broker.process

            def resume() -> None:
                if broker.process == process and broker.paused:
                    broker.resume()

            self.world.at(self.world.rng.choice((0.1, 0.5, 2.0)), resume)

    def _cut(self, broker: Broker) -> None:
        rng, name = self.world.rng, broker.name
        others = [each for each in (*NAMES, CONTROLLER) if each != name]
        if rng.random() < 0.4:
            others = rng.sample(others, 1)
        one_way = rng.random() < 0.4
        for other in others:
            self.world.cut.add((name, other) if rng.random() < 0.5 else (other, name))
            if not one_way:
                self.world.cut |= {(name, other), (other, name)}
        self.stats["cuts"] += 1

    def _reset(self, broker: Broker) -> None:
        """Of a process that goes on; at times others are told that it is gone, and it can't reach
        the controller."""
        if not broker.up or broker.paused:
            return
        self.stats["resets"] += 1
        self.deaths.reset(broker)
        if self.world.rng.random() < 0.5:
            self.stats["lies"] += 1
            self.deaths.lie(broker, 1.0)
            self.world.cut.add((broker.name, CONTROLLER))

    def _heal(self, broker: Broker) -> None:
        self.world.cut.clear()

    def _network(self, broker: Broker) -> None:
        rng, world = self.world.rng, self.world
        world.loss = rng.choice((0.0, 0.05, 0.2))
        world.repeat = rng.choice((0.0, 0.1, 0.3))
        world.late = rng.choice((0.0, 0.1, 0.5))

    def _fail_flush(self, broker: Broker) -> None:
        if broker.up and not broker.paused:
            self.stats["failed flushes"] += 1
            broker.fail_flush()

    def _fence_disk(self, broker: Broker) -> None:
        if broker.up and not broker.paused and not broker.log.fenced:
            broker.fence()

            def again() -> None:
                if broker.up and broker.log.fenced:
                    broker.crash()
                    broker.start()

            self.world.at(self.world.rng.uniform(0.5, 3.0), again)

    def _fence_falsely(self, broker: Broker) -> None:
        if self.catalog.nodes[broker.name].state == ACTIVE:
            self.stats["false fencing"] += 1
            self.catalog.set_state(broker.name, FENCED)

    def _change_min(self, broker: Broker) -> None:
        min_in_sync = 3 - self.catalog.partition.min_in_sync
        if min_in_sync > 1 or not self._misses_a_disk():
            self.catalog.set_min(min_in_sync)

    def _move(self, broker: Broker) -> None:
        row = self.catalog.partition
        if not row.target:
            self.stats["moves"] += 1
            target = list(row.replicas)
            spare = [name for name in NAMES if name not in target]
            target[self.world.rng.randrange(len(target))] = spare[0]
            self.catalog.start_move(tuple(target))

    def _resign(self, broker: Broker) -> None:
        row = self.catalog.partition
        if row.leader:
            self.catalog.resign(row.leader, row.leader_epoch)

    def _prefer(self, broker: Broker) -> None:
        self.catalog.settle(preferred=True)
