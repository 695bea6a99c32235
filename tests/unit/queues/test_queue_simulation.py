"""Goal: whatever consumers do and whenever the broker dies, no record is lost, none comes again
whose ack was answered, nobody shares a record, keys keep their order, dead letters come once.

Method: a seed drives consumers, a clock, keeping of snapshots and crashes around the pure state; a
model beside it knows what may happen. A failure prints its seed; LAKEMQ_SEED runs one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from lakemq.broker_core.api.queues.types import QueueSettings, Settlement
from lakemq.broker_core.queues.partition_state import QueuePartitionState, fresh
from lakemq.broker_core.queues.snapshot import (
    DeadLetterBatch,
    Snapshot,
    decode_snapshot,
    encode_snapshot,
)
from tests.support.seeds import seeds

TOPIC_ID = "ab" * 16
SEEDS = seeds(60)


@dataclass
class World:
    """A log, a queue on it, what is on disk, and what consumers were told."""

    dice: random.Random
    settings: QueueSettings
    records: int
    now: int = 1000
    durable: Snapshot = field(default_factory=lambda: fresh(TOPIC_ID, 0))
    answered: set[int] = field(default_factory=set)
    """Accepted, and the answer was given."""
    done: set[int] = field(default_factory=set)
    """Finished in this life of the broker, or durably before."""
    unanswered: set[int] = field(default_factory=set)
    held: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Offset -> (consumer, when its lock ends)."""
    attempts: dict[int, int] = field(default_factory=dict)
    letters: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    """(producer id,) -> offsets written under it: a repetition changes nothing."""
    written: list[int] = field(default_factory=list)
    ids: int = 0

    def __post_init__(self) -> None:
        self.keys = [
            None if self.dice.random() < 0.2 else b"%d" % self.dice.randrange(4)
            for _ in range(self.records)
        ]
        self.gaps = {at for at in range(self.records) if self.dice.random() < 0.1}
        self.take_up()

    def take_up(self) -> None:
        self.state = QueuePartitionState(
            self.settings, decode_snapshot(encode_snapshot(self.durable))
        )
        while not self.state.is_restored:
            self.load()
        self.held.clear()
        self.unanswered.clear()
        self.attempts.clear()
        live = set(self.state._entries)
        known = range(self.state.end)
        self.done = {at for at in known if at not in live}
        assert self.answered <= self.done

    def load(self) -> None:
        first = self.state.end
        last = min(self.records, first + self.dice.randrange(1, 12))
        offsets = [at for at in range(first, last) if at not in self.gaps]
        self.state.load(offsets, [self.keys[at] for at in offsets], last)

    def keep(self) -> None:
        """What was accepted so far becomes durable, and is answered."""
        self.durable = self.state.snapshot()
        self.answered |= self.unanswered
        self.unanswered.clear()

    def deliver(self) -> None:
        consumer = self.dice.randrange(1, 4)
        for offset, attempt in self.state.acquire(consumer, self.dice.randrange(1, 6), self.now):
            assert offset not in self.done and offset not in self.gaps
            assert offset not in self.held or self.held[offset][1] <= self.now
            self.held[offset] = (consumer, self.now + self.settings.lock_ms)
            if offset in self.attempts:
                assert attempt == self.attempts[offset] + 1
            self.attempts[offset] = attempt
            if self.settings.attempts_max:
                assert attempt <= self.settings.attempts_max
            self.check_order(offset)

    def check_order(self, offset: int) -> None:
        key = self.keys[offset]
        if self.settings.order != "key" or key is None:
            return
        before = [at for at in range(offset) if self.keys[at] == key and at not in self.gaps]
        waiting = [at for at in before if at not in self.done]
        assert not waiting, f"{offset} of key {key!r} came before {waiting}"

    def settle(self) -> None:
        if not self.held:
            return
        offset = self.dice.choice(sorted(self.held))
        consumer, until = self.held[offset]
        kind = self.dice.choice(list(Settlement) + [Settlement.ACCEPT] * 5)
        took = self.state.settle(consumer, offset, kind, self.now)
        entry = self.state._entries.get(offset)
        if not took:
            assert until <= self.now, "a lock ended too early"
            del self.held[offset]
        elif kind is Settlement.EXTEND:
            self.held[offset] = (consumer, self.now + self.settings.lock_ms)
        else:
            del self.held[offset]
            if kind is Settlement.RELEASE:
                self.attempts[offset] -= 1
            if kind is Settlement.ACCEPT:
                assert entry is None
                self.done.add(offset)
                self.unanswered.add(offset)
            elif entry is None:  # rejected, and there are no dead letters
                self.done.add(offset)

    def write_dead_letters(self, die_at: int) -> bool:
        """One batch of dead letters; whether the broker died in the middle, at step `die_at`."""
        state = self.state
        if state.dead_letter_batch is None:
            exhausted = [at for at, _ in state.exhausted(5)]
            if not exhausted:
                return False
            self.ids += 1
            state.begin_dead_letters(DeadLetterBatch(self.ids, "dead", 0, tuple(exhausted)))
            if die_at == 0:
                return True
        self.keep()
        if die_at == 1:
            return True
        assert state.dead_letter_batch is not None
        self.letters.setdefault(
            (state.dead_letter_batch.producer_id,), list(state.dead_letter_batch.offsets)
        )
        if die_at == 2:
            return True
        self.done |= set(state.dead_letter_batch.offsets)
        state.finish_dead_letters()
        return die_at == 3

    def crash(self) -> None:
        self.take_up()

    def pass_time(self) -> None:
        self.now += self.dice.randrange(1, 40)
        for offset in self.state.expire(self.now):
            consumer, until = self.held.pop(offset)
            assert until <= self.now

    def leave(self) -> None:
        consumer = self.dice.randrange(1, 4)
        self.state.leave(consumer, self.now)
        self.held = {at: each for at, each in self.held.items() if each[0] != consumer}

    def step(self) -> None:
        move = self.dice.random()
        if move < 0.35:
            self.settle()
        elif move < 0.6:
            self.deliver()
        elif move < 0.75:
            self.pass_time()
        elif move < 0.85:
            self.load()
        elif move < 0.93:
            self.keep()
        elif move < 0.96:
            self.leave()
        elif self.write_dead_letters(self.dice.randrange(6)) or move > 0.985:
            self.crash()
        self.check_counts()

    def check_counts(self) -> None:
        state = self.state
        assert state.held == sum(state.held_by(each) for each in range(1, 4))
        restored = decode_snapshot(encode_snapshot(state.snapshot()))
        assert restored == state.snapshot()

    def finish(self) -> None:
        """With consumers that accept everything, all comes to an end."""
        for _ in range(100_000):
            if self.state.end >= self.records and not self.state.unfinished:
                return
            self.load()
            for offset, _ in self.state.acquire(1, 10, self.now):
                self.check_order(offset)
                assert self.state.settle(1, offset, Settlement.ACCEPT, self.now)
                self.done.add(offset)
                self.unanswered.add(offset)
            self.write_dead_letters(9)
            self.now += 50
            self.state.expire(self.now)
        raise AssertionError(f"{self.state.unfinished} records never end")


@pytest.mark.parametrize("order", ["none", "key"])
@pytest.mark.parametrize("dead", [False, True])
def test_seeded_lives(order: str, dead: bool) -> None:
    for seed in SEEDS:
        dice = random.Random(seed)
        settings = QueueSettings(
            lock_ms=100,
            backoff_ms=20,
            order=order,
            attempts_max=3 if dead else 0,
            dead_letter="dead" if dead else "",
        )
        world = World(dice, settings, dice.randrange(1, 60))
        try:
            for _ in range(dice.randrange(50, 400)):
                world.step()
            world.keep()
            world.crash()
            world.finish()
            world.keep()
            every = set(range(world.records)) - world.gaps
            letters = [at for batch in world.letters.values() for at in batch]
            assert len(letters) == len(set(letters)), "a dead letter came twice"
            assert not world.answered & set(letters), "an accepted record is a dead letter too"
            assert every <= world.answered | set(letters) | world.done
            assert world.durable.start == world.state.end == world.records
            assert world.durable.runs == ()
        except AssertionError:
            print(f"seed {seed}, order {order}, dead letters {dead}")
            raise
