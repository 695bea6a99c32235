"""Clients of a simulated partition: idempotent producers, and readers."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Protocol

from lakemq.broker_core.api.records.batch import (
    HEADER_BYTES,
    BatchHeader,
    ProducerStamp,
    RecordBatch,
    encode_with_header,
)
from lakemq.broker_core.api.types import Columns
from tests.support.history import OPEN, History, Read, Send
from tests.support.replica_log import DUPLICATES, Refused, Stored
from tests.support.replication.broker import Broker
from tests.support.replication.catalog import Catalog
from tests.support.replication.invariants import Invariants
from tests.support.replication.world import World

BATCH_MAX = 2
_LIVES = 100
"""Producer ids of one producer are so many apart."""


class Served(Protocol):
    """What clients reach."""

    world: World
    catalog: Catalog
    invariants: Invariants
    brokers: dict[str, Broker]
    history: History
    stats: Counter[str]
    ending: bool


class Producer:
    """An idempotent producer: it sends again until it is answered, in order."""

    def __init__(self, number: int, sim: Served) -> None:
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
        name = leader if leader and rng.random() < 0.8 else rng.choice(list(self.sim.brokers))
        broker = self.sim.brokers[name]
        if not broker.up or broker.paused:
            return
        for sequence, header, data in list(self.pending):
            try:
                broker.append(data, header, self._done(sequence, header, data))
            except Refused:
                break

    def _done(self, sequence: int, header: BatchHeader, data: bytes) -> Callable[[int, bool], None]:
        number = self.number

        def done(end: int, committed: bool) -> None:
            if not committed or number != self.number:
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

    def tell_unanswered(self) -> None:
        """What may be stored or not, in this life of the producer."""
        self.sim.history.sends += [
            Send("p", str(self.number), sequence * BATCH_MAX + index, value, start_s, 1e9, OPEN)
            for sequence, (start_s, values) in self._begun.items()
            if sequence not in self._ends
            for index, value in enumerate(values)
        ]

    def begin_anew(self) -> None:
        """As another producer: what this one sent may be lost, so nothing fits behind it."""
        self.tell_unanswered()
        self.number += _LIVES
        self._sequence = 0
        self.pending.clear()
        self._ends, self._begun = {}, {}


class Reader:
    """Reads on and on at the leader, which is to be the newest one: a lease ends before another
    node leads, but for what an operator or a false alarm moves away."""

    def __init__(self, name: str, sim: Served) -> None:
        self.name, self.sim = name, sim
        self.offset = 0

    def turn(self) -> None:
        sim = self.sim
        row = sim.catalog.partition
        broker = sim.brokers.get(row.leader or "")
        if broker is None or not broker.serves(row.leader_epoch):
            return
        end = broker.log.high_watermark
        upto = min(end, self.offset + 20)
        there = broker.log.batches_between(self.offset, upto)
        found = records(sim.invariants.with_what_went(there, self.offset, upto))
        found = [each for each in found if each[0] >= self.offset]
        now_s = sim.world.now_s
        sim.history.reads.append(Read("p", self.name, now_s, now_s, self.offset, tuple(found), end))
        if found:
            self.offset = found[-1][0] + 1


def records(batches: list[Stored]) -> list[tuple[int, str]]:
    """(offset, value) of each."""
    return [
        (stored.header.base_offset + index, (value or b"").decode())
        for stored in batches
        for index, value in enumerate(RecordBatch(stored.data).values())
    ]
