"""Goal: what a node sends to a partition of another node is stored once, in order, and acknowledged
only if it is stored, whatever links, leaders and their memories do.

The queue is the real one, and so is the table of producers of the log that it writes to. Links lose
batches and answers, leaders refuse, stop and come back without what was not on the disk.
"""

from __future__ import annotations

import random
from collections import deque
from typing import NamedTuple

import pytest

from lakemq.broker_core.api.errors import (
    InvalidTimestamp,
    LakeMQError,
    NotEnoughReplicas,
    NotLeader,
    OutOfOrderSequence,
    Unavailable,
)
from lakemq.broker_core.api.records.batch import BatchHeader, RecordBatch, encode, read_header
from lakemq.broker_core.api.types import Acks, AppendResult, Columns, Offset
from lakemq.broker_core.cluster import route_queue
from lakemq.broker_core.cluster.route_queue import Entry, RouteBatch, RouteQueue, WaitingBytes
from lakemq.plugins.journal.segment.producers import ProducerTable
from tests.support.seeds import seeds

STEPS = 300
WAIT_S = 30.0


class Stored(NamedTuple):
    values: list[bytes]
    header: BatchHeader


class Leader:
    """A log that appends, and forgets at a crash what was appended in memory only."""

    def __init__(self) -> None:
        self.batches: list[Stored] = []
        self.durable = 0
        self.producers = ProducerTable()
        self.refuses: LakeMQError | None = None

    @property
    def values(self) -> list[bytes]:
        return [value for batch in self.batches for value in batch.values]

    def append(self, batch: RouteBatch) -> AppendResult | LakeMQError:
        header = read_header(batch.data)
        assert header == batch.header
        if self.refuses is not None:
            return self.refuses
        values = [value or b"" for value in RecordBatch(batch.data).values()]
        try:
            before = self.producers.check(header)
        except LakeMQError as error:
            return error
        if before is not None:
            return self._result(before.base_offset, before.last_offset)
        base = len(self.values)
        header = header._replace(base_offset=base)
        self.batches.append(Stored(values, header))
        self.producers.note(header, 0)
        return self._result(base, base + len(values) - 1)

    def _result(self, base: int, last: int) -> AppendResult:
        return AppendResult(Offset(base), Offset(last), Acks.LEADER)

    def crash(self) -> None:
        del self.batches[self.durable :]
        self.producers = ProducerTable()
        for each in self.batches:
            self.producers.note(each.header, 0)


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.leader = Leader()
        self.waiting = WaitingBytes()
        self.queue = RouteQueue(self.waiting)
        self.now_s = 0.0
        self.given = self.ids = 0
        self.outcomes: dict[bytes, int | LakeMQError] = {}
        self.sent: deque[RouteBatch] = deque()
        self.answers: deque[tuple[RouteBatch, AppendResult | LakeMQError, int]] = deque()
        """Batch, outcome, and how many of the leader's batches must be durable first."""

    def step(self) -> None:
        kinds = {
            self.give: 6, self.send: 8, self.arrive: 8, self.answer: 8, self.flush: 4,
            self.lose_link: 1, self.crash: 0.6, self.refuse: 0.6, self.obey: 3, self.wait: 1,
        }  # fmt: skip
        (do,) = self.rng.choices(list(kinds), list(kinds.values()))
        do()

    def give(self) -> None:
        count = self.rng.randint(1, 3)
        values = [b"%d" % (self.given + number) for number in range(count)]
        self.given += count

        def done(outcome: AppendResult | LakeMQError) -> None:
            for at, value in enumerate(values):
                assert value not in self.outcomes, "answered twice"
                failed = isinstance(outcome, LakeMQError)
                self.outcomes[value] = outcome if failed else int(outcome.base_offset) + at
            if not isinstance(outcome, LakeMQError):
                assert outcome.last_offset - outcome.base_offset == count - 1

        acks = self.rng.choice([Acks.LEADER, Acks.LEADER, Acks.REPLICATED])
        columns = Columns(values, None, None, [5] * count if self.rng.random() < 0.2 else None)
        whole = self.rng.random() < 0.1
        entry = Entry(acks, done, deadline_s=self.now_s + WAIT_S, size_bytes=10 * count)
        if whole:
            entry.batch = encode(columns, now_ms=1)
            entry.header = read_header(entry.batch)
        else:
            entry.columns, entry.now_ms = columns, 1
        self.queue.add(entry)

    def send(self) -> None:
        if self.queue.needs_producer_id:
            self.ids += 1
            self.queue.use(self.ids)
        batch = self.queue.next(self.rng.choice([300, 100_000]))
        if batch is not None:
            self.sent.append(batch)

    def arrive(self) -> None:
        if self.sent:
            batch = self.sent.popleft()
            outcome = self.leader.append(batch)
            durable = 0 if isinstance(outcome, LakeMQError) else len(self.leader.batches)
            self.answers.append((batch, outcome, durable))

    def answer(self) -> None:
        if self.answers and self.answers[0][2] <= self.leader.durable:
            batch, outcome, _ = self.answers.popleft()
            self.queue.answered(batch, outcome)

    def flush(self) -> None:
        self.leader.durable = len(self.leader.batches)

    def lose_link(self) -> None:
        # Some of what was sent arrives yet, and no answer does.
        for _ in range(self.rng.randint(0, len(self.sent))):
            self.leader.append(self.sent.popleft())
        self.sent.clear()
        self.answers.clear()
        self.queue.lost()

    def crash(self) -> None:
        self.leader.crash()
        self.lose_link()

    def refuse(self) -> None:
        self.leader.refuses = self.rng.choice(
            [NotLeader("n"), Unavailable("u"), InvalidTimestamp("t"), NotEnoughReplicas("r")]
        )

    def obey(self) -> None:
        self.leader.refuses = None

    def wait(self) -> None:
        self.now_s += self.rng.choice([1, 1, 10, WAIT_S])
        self.queue.expire(self.now_s, "nobody led")

    def settle(self) -> None:
        self.obey()
        for _ in range(10 * len(self.queue) + 100):
            self.send()
            self.arrive()
            self.flush()
            self.answer()

    def check(self) -> None:
        values = self.leader.values
        assert len(values) == len(set(values)), "stored twice"
        numbers = [int(value) for value in values]
        assert numbers == sorted(numbers), "stored out of order"
        for value, outcome in self.outcomes.items():
            if not isinstance(outcome, LakeMQError):
                assert values[outcome] == value, "acknowledged and not stored"
            elif isinstance(outcome, NotEnoughReplicas | NotLeader):
                assert value not in values, "refused and stored"


@pytest.mark.parametrize("seed", seeds(150))
def test_records_are_stored_once_and_in_order(seed: int) -> None:
    world = World(seed)
    for _ in range(STEPS):
        world.step()
        world.check()
    world.settle()
    world.check()
    assert len(world.outcomes) == world.given, "not answered"
    assert (len(world.queue), world.waiting.size_bytes) == (0, 0)


def broken_runs() -> int:
    count = 0
    for seed in range(100):
        world = World(seed)
        try:
            for _ in range(STEPS):
                world.step()
                world.check()
            world.settle()
            world.check()
            assert len(world.outcomes) == world.given
        except AssertionError:
            count += 1
    return count


def test_records_wait_for_replicas_in_their_order() -> None:
    world = World(0)
    world.give()
    world.send()
    world.leader.refuses = NotEnoughReplicas("1 of 2 in sync")
    world.arrive()
    world.answer()
    world.give()
    assert not world.outcomes
    world.settle()
    world.check()
    assert [*world.outcomes.values()] == [*range(world.given)]


def test_records_that_waited_for_replicas_in_vain_are_refused() -> None:
    world = World(0)
    world.give()
    world.send()
    world.leader.refuses = NotEnoughReplicas("1 of 2 in sync")
    world.arrive()
    world.answer()
    world.queue.expire(WAIT_S, "late")
    (outcome,) = set(world.outcomes.values())
    assert isinstance(outcome, NotEnoughReplicas) and str(outcome) == "late: 1 of 2 in sync"


def test_six_under_way_would_be_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation finds what the rule is for."""
    monkeypatch.setattr(route_queue, "UNDER_WAY_MAX", 12)
    assert broken_runs()


def test_overtaking_after_a_refusal_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that is refused must not be passed by those behind it in a new epoch."""
    real = RouteQueue.answered

    def hasty(queue: RouteQueue, batch: RouteBatch, outcome: AppendResult | LakeMQError) -> bool:
        found = real(queue, batch, outcome)
        if isinstance(outcome, OutOfOrderSequence):
            queue._drains = False
        return found

    monkeypatch.setattr(RouteQueue, "answered", hasty)
    assert broken_runs()
