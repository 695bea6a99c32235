"""A whole Raft group driven from one seed: simulated time, network and disks.

Nodes are the real `RaftNode` over the real log and catalog; only clock, rng, wire, disk and store
are simulated. After every event the Raft invariants are checked.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from lakemq.meta_service.catalog.apply import Applied
from lakemq.meta_service.raft import engine
from lakemq.meta_service.raft.log.log_format import Entry
from lakemq.meta_service.raft.log.raft_log import LOG_NAME, NEW_NAME, RaftLog, reconcile
from lakemq.meta_service.raft.membership import Group
from lakemq.meta_service.raft.node import RaftNode
from lakemq.meta_service.raft.state import Message, RaftTiming
from lakemq.meta_service.raft.wire_format import decode_message, encode_message
from lakemq.meta_service.storage.machine import StateMachine
from tests.support.meta.disk import MemoryDisk, MemorySink, MemorySource, MemoryStore, PowerCut
from tests.support.meta.invariants import Invariants

TIMING = RaftTiming(
    heartbeat_s=0.1, window_entries=64, batch_max_bytes=2048, log_max_bytes=8000, chunk_bytes=3000
)
TICK_S = 0.03


class _Wire:
    """Implements `Wire` over the simulated network."""

    def __init__(self, cluster: Cluster, member: str) -> None:
        self._cluster, self._member = cluster, member

    def send(self, peer: str, message: Message) -> None:
        self._cluster.invariants.sent(self._member, peer, message)
        self._cluster.network.send(self._member, peer, encode_message(message))

    def set_peers(self, addresses: Mapping[str, str]) -> None:
        pass

    def close(self) -> None:
        pass


class _Snapshots:
    """Implements `Snapshots`: a snapshot becomes durable some time after `begin`."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._under_way: MemorySource | None = None
        self._done_at = 0.0

    def begin(self) -> bool:
        if self._under_way is not None:
            return False
        store, cluster = self._member.store, self._member.cluster
        state = store.state()
        if self._member.snapshot and self._member.snapshot.log_index >= state.applied_index:
            return False
        self._under_way = MemorySource(state.applied_index, state.applied_term, store.pack())
        self._mark = store.mark()
        self._done_at = cluster.now + cluster.rng.uniform(0.0, 0.3)
        return True

    def finished(self) -> int | None:
        if self._under_way is None or self._member.cluster.now < self._done_at:
            return None
        self._member.snapshot, self._under_way = self._under_way, None
        # A checkpoint flushes what it holds in the store too: the log may be shortened.
        self._member.store.sync_to(self._mark)
        return self._member.snapshot.log_index

    def open_newest(self) -> MemorySource | None:
        return self._member.snapshot

    def receive(self, log_index: int, term: int, size: int) -> MemorySink:
        return MemorySink(log_index, term, size)


class _Poller:
    """Runs what arrived where a real node does: at the end of a tick, before the answers go."""

    def __init__(self) -> None:
        self.action: Callable[[], object] | None = None

    def poll(self, timeout_s: float) -> None:
        action, self.action = self.action, None
        if action is not None:
            action()


class Network:
    """Delivers, delays, loses, repeats and reorders; links can be cut, one way too."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.cut: set[tuple[str, str]] = set()
        self.loss = 0.0
        self.repeat = 0.0
        self.slow = 0.0
        """Part of the messages that are late by up to half a second."""

    def send(self, source: str, target: str, data: bytes) -> None:
        rng = self._cluster.rng
        if rng.random() < self.loss:
            return
        for _ in range(2 if rng.random() < self.repeat else 1):
            delay = rng.uniform(0.0005, 0.005)
            if rng.random() < self.slow:
                delay += rng.uniform(0.0, 0.5)
            self._cluster.at(delay, lambda: self._arrive(source, target, data))

    def _arrive(self, source: str, target: str, data: bytes) -> None:
        if (source, target) in self.cut:
            return
        member = self._cluster.members[target]
        member.receive(source, data)


class Member:
    """One machine: its disk and store, and the node that runs on it unless it is down."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.disk = MemoryDisk()
        self.store = MemoryStore()
        self.snapshot: MemorySource | None = None
        """The newest durable one."""
        self.node: RaftNode | None = None
        self.paused = False
        self.joins = False
        """It was added later: it learns from the leader who is in the group."""
        self._led = 0
        """Last term in which it was seen to lead."""
        self._poller = _Poller()
        self._inbox: list[Callable[[], object]] = []
        self._incarnation = 0

    def start(self) -> None:
        if self.node is not None:
            return
        try:
            self._start()
        except PowerCut:
            self.crash()
            self.cluster.at(0.2, self.start)

    def _start(self) -> None:
        log = _CheckedLog(self.disk, self.cluster.invariants)
        machine = StateMachine(self.store, self._on_applied, self._on_installed)
        reconcile(log, machine.applied_index, machine.applied_term)
        others = [name for name in self.cluster.members if name != self.name]
        voters = {} if self.joins else dict.fromkeys(self.cluster.first_voters, "")
        group = Group(voters, {})
        self.node = RaftNode(
            self.name,
            group,
            log=log,
            machine=machine,
            wire=_Wire(self.cluster, self.name),
            snapshots=_Snapshots(self),
            timing=self.cluster.timing,
            poller=self._poller,
        )
        for other in others:
            self.node.peer_connected(other)
            self.cluster.at(0.01, lambda other=other: self._show_up_at(other))  # type: ignore[misc] # mypy cannot infer a lambda with a default
        self.cluster.invariants.started(self.name, self.node)
        self._incarnation += 1
        self._tick_later(self._incarnation)

    def _show_up_at(self, other: str) -> None:
        """As its link comes up again there."""
        member = self.cluster.members[other]
        member.call(lambda: member.node and member.node.peer_connected(self.name))

    def _on_installed(self) -> None:
        """What was received is kept as a durable snapshot."""
        state = self.store.state()
        self.snapshot = MemorySource(state.applied_index, state.applied_term, self.store.pack())

    def _on_applied(self, applied: Sequence[Applied]) -> None:
        for one in applied:
            self.cluster.invariants.applied(self.name, one)

    def _tick_later(self, incarnation: int) -> None:
        if incarnation == self._incarnation and self.node is not None:
            if not self.paused:
                self.run(lambda: None)
            delay = TICK_S * self.cluster.rng.uniform(0.8, 1.2)
            self.cluster.at(delay, lambda: self._tick_later(incarnation))

    def receive(self, source: str, data: bytes) -> None:
        if self.node is not None:
            node = self.node
            self.call(lambda: node.on_message(source, decode_message(data)))

    def call(self, action: Callable[[], object]) -> None:
        """Run between two ticks, now or when the pause is over."""
        if self.node is None:
            return
        if self.paused:
            self._inbox.append(action)
        else:
            self.run(action)

    def run(self, action: Callable[[], object]) -> None:
        assert self.node is not None
        node = self.node
        try:
            self._poller.action = action
            node.tick()
            for _ in range(5):
                if not node.is_busy():
                    break
                node.tick()
        except PowerCut:
            self.crash()
            return
        self.cluster.invariants.check(self.name, node)
        if node.is_leader and node.term > self._led:
            self._led = node.term
            for told in self.cluster.when_elected:
                told(self)

    def crash(self) -> None:
        """Power off: what was not synced is lost, whoever waits hears nothing."""
        self.node = None
        self.paused = False
        self._inbox.clear()
        self._incarnation += 1
        self.disk.lose_power(self.cluster.rng)
        self.store.lose_power(self.cluster.rng)
        self.cluster.invariants.stopped(self.name)

    def wipe(self) -> None:
        """Its disk is replaced by an empty one."""
        self.crash()
        self.disk, self.store, self.snapshot = MemoryDisk(), MemoryStore(), None
        self.cluster.invariants.wiped(self.name)

    @property
    def is_new(self) -> bool:
        """It has not caught up with what it may have promised on an earlier disk."""
        return self.disk.exists(NEW_NAME) or not self.disk.exists(LOG_NAME)

    @property
    def has_caught_up(self) -> bool:
        """It holds entries, or did before a snapshot. One that voted at the beginning of the
        cluster is not new, though it may have nothing yet."""
        return not self.is_new and self.node is not None and self.node.log.last_term > 0

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            inbox, self._inbox = self._inbox, []
            for action in inbox:
                self.call(action)


class _CheckedLog(RaftLog):
    """A log whose every entry is checked when it is written."""

    def __init__(self, disk: MemoryDisk, invariants: Invariants) -> None:
        self._invariants = invariants
        super().__init__(disk)
        for before, entry in itertools.pairwise(self[:]):
            invariants.entry_written(entry, before.term)

    def add(self, command: bytes, index: int, term: int) -> None:
        self._invariants.entry_written(Entry(bytes(command), index, term), self.last_term)
        super().add(command, index, term)


class Cluster:
    """Members, time and the network between them."""

    def __init__(
        self, seed: int, size: int, timing: RaftTiming = TIMING, *, spare: int = 0
    ) -> None:
        """`spare`: members that run but belong to no group until they are added."""
        self.rng = random.Random(seed)
        self.timing = timing
        self.now = 1000.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self.invariants = Invariants(f"seed {seed}")
        self.network = Network(self)
        self.when_elected: list[Callable[[Member], None]] = []
        """Told of each new leader at the moment of its election."""
        self.members: dict[str, Member] = {}
        for number in range(size + spare):
            self.members[f"m{number}"] = Member(self, f"m{number}")
            self.members[f"m{number}"].joins = number >= size
        self.first_voters = list(self.members)[:size]

    @contextmanager
    def running(self) -> Iterator[Cluster]:
        """With the engine's clock and rng in the simulation's hands."""
        clock, rng = engine.CLOCK.source, engine.RNG.source
        engine.CLOCK.source = lambda: self.now
        engine.RNG.source = self.rng
        try:
            for member in self.members.values():
                member.start()
            yield self
        finally:
            engine.CLOCK.source, engine.RNG.source = clock, rng

    def at(self, delay_s: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._events, (self.now + delay_s, next(self._count), action))

    def run_for(self, seconds: float) -> None:
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = end

    def run_until(self, condition: Callable[[], Any], seconds: float = 30.0) -> Any:
        """Raises AssertionError if the condition does not come true in time."""
        end = self.now + seconds
        while not (value := condition()):
            assert self._events and self.now < end, (
                f"{self.invariants.label}: not reached after {seconds} s"
            )
            self.now, _, action = heapq.heappop(self._events)
            action()
        return value

    # ------------------------------------------------------------ faults

    def isolate(self, name: str) -> None:
        for other in self.members:
            if other != name:
                self.network.cut |= {(name, other), (other, name)}

    def split(self, group: set[str]) -> None:
        """Cut all links between a group and the others."""
        for one, other in itertools.permutations(self.members, 2):
            if (one in group) != (other in group):
                self.network.cut.add((one, other))

    def heal(self) -> None:
        """Everything works again: links, members, disks."""
        self.network.cut.clear()
        self.network.loss = self.network.repeat = self.network.slow = 0.0
        for member in self.members.values():
            member.disk.cut_at = None
            member.resume()
            member.start()

    def leader(self) -> Member | None:
        """The leader of the highest term among the members that run."""
        leaders = [
            (member.node.term, member)
            for member in self.members.values()
            if member.node is not None and member.node.is_leader
        ]
        return max(leaders, key=lambda pair: pair[0])[1] if leaders else None

    def wait_for_leader(self) -> Member:
        leader: Member = self.run_until(self.leader)
        return leader
