"""Seeded schedules of a replica on a simulated disk: it copies leaders that change, is cut where
their logs part, starts again elsewhere, leads itself, and crashes at any call to the disk.

Goal: what was counted as durable is there after a crash, in the leader's bytes; what was cut never
comes back; epochs and producers are those of the batches that are there. Method: the model keeps
the batches that the log must have; one random generator decides everything from the seed, which a
failure prints.

The planted bugs at the end show that the model can fail, among them bytes behind a cut that are
read back after a second crash (apache/rocketmq issue 10666).
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.records.batch import ProducerStamp, encode, read_header, stamp
from lakemq.broker_core.api.types import Acks, Columns, CommittedBatch, Offset, TopicConfig
from lakemq.plugins.journal.log import truncation
from lakemq.plugins.journal.log.folder import LogFolder
from lakemq.plugins.journal.log.partition_log import JournalLog
from lakemq.plugins.journal.log.writer import LogWriter
from lakemq.plugins.journal.segment.epochs import EpochTable
from lakemq.plugins.journal.segment.producers import ProducerTable
from tests.support.seeds import chunks, seeds
from tests.unit.journal.rig import Rig

SEEDS = seeds(200)
STEPS = 60


class Violation(AssertionError):
    """The replica broke its word."""


class PowerLoss(BaseException):
    """Raised by the disk in the middle of a call, to end the process there."""


def epochs_of(batches: list[bytes], start: int) -> EpochTable:
    table, end = EpochTable(), -1
    for header in map(read_header, batches):
        if header.leader_epoch != table.last:
            table.note(header, start if end < 0 else end)
        end = header.last_offset + 1
    return table


def producers_of(batches: list[bytes]) -> dict[int, Any]:
    table = ProducerTable()
    for header in map(read_header, batches):
        if header.producer_id >= 0:
            table.note(header, 0)
    return remembered(table)


def remembered(table: ProducerTable) -> dict[int, Any]:
    return {key: (each.epoch, each.batches) for key, each in table._producers.items()}


class Schedule:
    """One run: the replica under test, and what the model knows."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seed: int, **bugs: bool) -> None:
        rng = self.rng = random.Random(seed)
        self.rig = Rig(
            loop,
            seed=seed + 1,
            config=TopicConfig(segment_max_bytes=rng.choice([300, 5000])),
            interval_bytes=rng.choice([1, 200, 1 << 20]),
            checkpoint_interval_bytes=rng.choice([1, 700, 1 << 40]),
            tail_max_bytes=rng.choice([0, 1000]),
        )
        self.rig.disk.lying_truncate = bugs.get("lying_truncate", False)
        self.rig.unflushed_max_bytes = rng.choice([400, 1 << 20])
        self.gaps = rng.random() < 0.3
        """Whether leaders have compacted logs."""
        self.epoch = 1
        self.leader: list[bytes] = []
        """The leader's log."""
        self.rolls: set[int] = set()
        """Where its segments begin."""
        self.start = 0
        self.mine: list[bytes] = []
        """What the replica has appended, in order, since its log started."""
        self.base = 0
        """Where its log started, as `restart_at` said last."""
        self.durable = 0
        """How many of `mine` were durable by its word."""
        self.either: list[tuple[int, list[bytes]]] = []
        """(log start, batches) that a cut under way may leave behind instead of `mine`."""
        self.failed: list[tuple[int, list[bytes]]] = []
        """The same of flushes that failed, until something else is durable in their place."""
        self.committed = 0
        self.tapped: list[int] = []
        self.sequences: dict[int, int] = {}
        self.cuts = self.crashes_in_cuts = 0
        self.follow(self.rig.reopen())

    # ------------------------------------------------------------ helpers

    @property
    def log(self) -> JournalLog:
        return self.rig.log

    def run_async(self, work: Any) -> Any:
        return self.rig.loop.run_until_complete(work)

    def follow(self, log: JournalLog) -> None:
        log.follow(self.epoch)
        self.tapped = []
        tap_from = log.high_watermark

        def tap(batches: list[CommittedBatch]) -> None:
            for each in batches:
                if each.base_offset < max([tap_from, *self.tapped]):
                    raise Violation(f"a tap got offset {each.base_offset} again")
                self.tapped.append(each.base_offset)

        log.tap(tap)  # type: ignore[arg-type]

    @staticmethod
    def end_of(batches: list[bytes], start: int) -> int:
        return read_header(batches[-1]).last_offset + 1 if batches else start

    def note_durable(self) -> None:
        """What the log calls durable counts from now on."""
        end, count = self.log.durable_end, len(self.mine)
        while count and read_header(self.mine[count - 1]).last_offset >= end:
            count -= 1
        if count > self.durable:
            self.failed = []
        self.durable = count
        if self.ends(self.mine[:count]) != end:
            raise Violation(f"durable end {end} is no end of a batch")

    def ends(self, batches: list[bytes]) -> int:
        """Where the log ends if it has these batches: a segment that is empty yet may begin behind
        them, in a gap."""
        end, index = self.end_of(batches, self.base), self.log.folder.active_index
        return end if index.covered_bytes else max(end, index.base_offset)

    # ------------------------------------------------------------ steps

    def run(self) -> None:
        steps = [
            (self.write, 8), (self.copy, 12), (self.flush, 8), (self.half_flush, 2),
            (self.commit, 6), (self.elect, 3), (self.delete, 1), (self.crash, 1.5),
            (self.fault, 0.5), (self.fill, 0.5), (self.lose_power_soon, 3), (self.tick, 1),
            (self.lead, 1),
        ]  # fmt: skip
        calls, weights = [call for call, _ in steps], [weight for _, weight in steps]
        for call in self.rng.choices(calls, weights, k=STEPS):
            self.rig.now += self.rng.randrange(30)
            try:
                call()
                if self.log.is_open():
                    self.note_durable()
                    self.check_numbers()
                else:
                    self.crash()
            except PowerLoss:
                self.crash(power_lost=True)
        self.rig.disk.capacity_bytes = 1 << 40
        self.crash()
        self.agree()
        self.check()

    def write(self) -> None:
        """The leader appends; a compacted one has gaps."""
        offset = self.end_of(self.leader, self.start)
        for _ in range(self.rng.randrange(1, 4)):
            if self.gaps and self.rng.random() < 0.3:
                offset += self.rng.randrange(1, 4)
            if self.rng.random() < 0.25:
                self.rolls.add(offset)
            self.leader.append(self.batch(offset, self.leader))
            offset = read_header(self.leader[-1]).last_offset + 1

    def batch(self, offset: int, before: list[bytes]) -> bytes:
        values = [
            b"%d" % self.rng.getrandbits(30) * self.rng.choice([1, 1, 5, 60])
            for _ in range(self.rng.randrange(1, 4))
        ]
        more: dict[str, Any] = {}
        if self.rng.random() < 0.5:
            producer = self.rng.randrange(3)
            known = producers_of(before).get(producer)
            epoch, sequence = (0, 0) if known is None else (known[0], known[1][-1][1] + 1)
            if self.rng.random() < 0.05:
                epoch, sequence = epoch + 1, 0
            more["producer"] = ProducerStamp(producer, epoch, sequence)
        return encode(
            Columns(values),
            now_ms=self.rig.now,
            base_offset=offset,
            leader_epoch=self.epoch,
            **more,
        )

    def copy(self) -> None:
        """The leader sends what lies behind the log's end."""
        if not self.agree():
            return
        end = self.log.log_end_offset
        left = [each for each in self.leader if read_header(each).base_offset >= end]
        if not left:
            return
        sent = [left[0]]
        for each in left[1 : self.rng.randrange(1, 5)]:
            if read_header(each).base_offset in self.rolls:
                break
            sent.append(each)
        starts = [roll for roll in self.rolls if end <= roll <= read_header(sent[0]).base_offset]
        if starts and max(starts) > self.base:
            self.log.roll_at(Offset(max(starts)))
        future = self.log.append_replica(b"".join(sent))
        if future.done() and future.exception() is not None:
            if not getattr(future.exception(), "retriable", False):
                raise Violation(f"a copy was refused: {future.exception()}")
            return
        future.add_done_callback(lambda done: done.exception())
        self.mine += sent

    def agree(self) -> bool:
        """The follower's part of KIP-279; whether the log is a beginning of the leader's."""
        for _ in range(100):
            log, end = self.log, self.log.log_end_offset
            if end < self.start:
                self.restart(self.start)
                return False
            table = epochs_of(self.leader, self.start)
            last = log.last_epoch()
            leader_end = self.end_of(self.leader, self.start)
            epoch, epoch_end = table.end_of(last, self.start, leader_end)
            if last < 0 or (epoch == last and end <= epoch_end):
                return True
            own = log.epoch_end(epoch)
            cut = min(epoch_end, own.end_offset if own.epoch >= 0 else log.log_start_offset)
            if cut < max(log.high_watermark, log.log_start_offset):
                self.restart(self.start)
                return False
            self.cut(cut)
        raise Violation("a cut log never agrees with the leader's")

    def cut(self, offset: int) -> None:
        """Until it has returned, a crash may leave any of what is cut."""
        self.rig.flusher.run()
        self.note_failures()
        if not self.log.is_open():
            raise PowerLoss
        self.either = [(self.base, self.mine)]
        self.durable = min(self.durable, len(self.kept(offset)))
        try:
            self.run_async(self.log.truncate(Offset(offset)))
        except (LakeMQError, PowerLoss):
            self.crashes_in_cuts += 1
            raise PowerLoss from None  # If the disk failed, a start is the way on.
        self.mine, self.either, self.failed = self.kept(offset), [], []
        self.cuts += 1

    def kept(self, offset: int) -> list[bytes]:
        return [each for each in self.mine if read_header(each).last_offset < offset]

    def restart(self, offset: int) -> None:
        """The leader's log starts behind the replica's, or they have nothing in common."""
        self.rig.flusher.run()
        self.note_failures()
        if not self.log.is_open():
            raise PowerLoss
        self.either = [(self.base, self.mine)]
        before, self.durable = self.durable, 0
        try:
            self.run_async(self.log.restart_at(Offset(offset)))
        except (LakeMQError, PowerLoss):
            if self.log.is_open():
                self.durable = before
            self.either.append((offset, []))
            raise PowerLoss from None  # If the disk failed, a start is the way on.
        self.base, self.mine, self.either, self.failed = offset, [], [], []
        self.committed = offset

    def note_failures(self) -> None:
        """A flush that failed took back what was behind the durable end."""
        end = self.log.log_end_offset
        left = [each for each in self.mine if read_header(each).base_offset < end]
        if len(left) < len(self.mine):
            self.failed.append((self.base, self.mine))
            self.mine = left

    def flush(self) -> None:
        self.rig.flusher.run()
        self.note_failures()

    def half_flush(self) -> None:
        """More is copied while a flush is under way; or the process dies before it is told."""
        if self.rig.flusher.waiting:
            flushable = self.rig.flusher.waiting.pop(0)
            flushable.begin_flush()
            if self.rng.random() < 0.5 and self.log.log_end_offset >= self.start:
                # No cut: that waits for the flush.
                before = self.log.last_epoch()
                if before == epochs_of(self.leader, self.start).epoch_at(self.log.log_end_offset):
                    self.write()
            flushable.write_flush()
            flushable.sync_flush()
            if self.rng.random() < 0.5:
                flushable.end_flush()
                self.note_failures()
            else:
                self.crash()

    def commit(self) -> None:
        """The leader's high watermark, of what this replica has and the leader too."""
        if not self.agree():
            return
        offset = self.rng.randint(self.log.high_watermark, self.log.durable_end)
        ends = [read_header(each).last_offset + 1 for each in self.mine]
        offset = max([end for end in ends if end <= offset], default=0)
        self.log.commit_to(Offset(offset))
        self.committed = max(self.committed, offset)
        self.run_async(asyncio.sleep(0))

    def elect(self) -> None:
        """Another leader, whose log has what is committed and perhaps not the rest."""
        self.epoch += 1
        ends = [self.start, *(read_header(each).last_offset + 1 for each in self.leader)]
        end = self.rng.choice([each for each in ends if each >= self.committed] or [ends[-1]])
        self.leader = [each for each in self.leader if read_header(each).last_offset < end]
        self.rolls = {roll for roll in self.rolls if roll < end}
        self.log.follow(self.epoch)
        if self.rng.random() < 0.8:
            self.write()

    def lead(self) -> None:
        """The replica itself is elected, appends, and is followed by another."""
        if not self.agree():
            return
        self.flush()
        mine = self.epoch + 1
        self.epoch += 2
        self.log.lead(mine, alone=False)
        for _ in range(self.rng.randrange(3)):
            data, end = self.batch(0, self.mine), self.log.log_end_offset
            self.log.append(data, read_header(data), Acks.MEMORY)
            if self.log.log_end_offset > end:
                self.mine.append(stamp(data, read_header(data), end, mine)[1])
        self.flush()
        self.leader = list(self.mine)
        self.start = self.base
        self.rolls = {each.base_offset for each in self.log.folder.manifest.segments}
        self.log.follow(self.epoch)

    def delete(self) -> None:
        """Retention at the leader; a replica that is behind starts again at the new start."""
        ends = [read_header(each).last_offset + 1 for each in self.leader]
        if ends and self.rng.random() < 0.5:
            self.start = self.rng.choice(ends)
            self.leader = [
                each for each in self.leader if read_header(each).base_offset >= self.start
            ]
            self.committed = max(self.committed, self.start)

    def tick(self) -> None:
        if self.rng.random() < 0.3:
            self.rig.now += self.rig.config.segment_age_max_ms
        self.log.tick(self.rig.now, 0)

    def fault(self) -> None:
        disk, kinds = (
            self.rig.disk,
            ["write", "sync", "sync_folder", "rename", "create", "truncate"],
        )
        kind, left = self.rng.choice(kinds), self.rng.randrange(4)

        def fail(call: str, path: Path) -> int:
            nonlocal left
            if call != kind:
                return 0
            left -= 1
            return errno.EIO if left == -1 else 0

        disk.fault = fail

    def fill(self) -> None:
        disk = self.rig.disk
        small = disk.used + self.rng.randrange(3000)
        disk.capacity_bytes = small if disk.capacity_bytes == 1 << 40 else 1 << 40

    def lose_power_within(self, calls: int) -> None:
        """The power goes at one of so many calls to the disk from now."""
        left = self.rng.randrange(calls)

        def lose(call: str, path: Path) -> int:
            nonlocal left
            left -= 1
            if left < 0:
                raise PowerLoss
            return 0

        self.rig.disk.fault = lose

    def lose_power_soon(self) -> None:
        """Perhaps in a cut."""
        self.lose_power_within(14)
        if self.rng.random() < 0.6:
            self.elect()
            self.agree()

    def crash(self, power_lost: bool = False) -> None:
        disk = self.rig.disk
        power_lost |= self.rng.random() < 0.6
        disk.lose_power() if power_lost else disk.kill_process()
        disk.capacity_bytes = 1 << 40
        while True:
            if self.rng.random() < 0.2:
                self.lose_power_within(12)
            try:
                log = self.rig.reopen()
                break
            except PowerLoss:
                disk.lose_power()
        disk.fault = None
        self.check_recovered()
        self.follow(log)
        self.check()

    # ------------------------------------------------------------ what must hold

    def content(self) -> list[bytes]:
        """All batches that the log gives to a follower."""
        found: list[bytes] = []
        offset = int(self.log.log_start_offset)
        while offset < self.log.durable_end:
            size = self.rng.choice([1, 500, 1 << 20])
            data = self.run_async(self.log.read_replica(Offset(offset), size))
            if not data and self.log.durable_end == self.ends(found):
                break
            if not data:
                raise Violation(
                    f"nothing at {offset}, the log is durable to {self.log.durable_end}"
                )
            while data:
                header = read_header(data)
                found.append(data[: header.total_bytes])
                data = data[header.total_bytes :]
                offset = header.last_offset + 1
        return found

    def check_recovered(self) -> None:
        """A prefix of what was appended, with all that was durable, and nothing that was cut."""
        log = self.log
        if not log.is_open():
            raise Violation(f"fenced by a crash: {log.status().detail}")
        found, start = self.content(), log.log_start_offset
        for base, batches in [(self.base, self.mine), *self.either, *self.failed]:
            if start == base and found == batches[: len(found)]:
                break
        else:
            raise Violation(f"{len(found)} batches from {start} are not those that were appended")
        if base == self.base and len(found) < self.durable:
            raise Violation(f"{len(found)} batches are left, {self.durable} were durable")
        self.base, self.mine, self.either, self.failed = base, found, [], []
        self.durable = len(found)
        if log.high_watermark > max(self.committed, base):
            raise Violation(f"high watermark {log.high_watermark}, committed {self.committed}")

    def check_numbers(self) -> None:
        log = self.log
        bounds = [log.log_start_offset, log.high_watermark, log.durable_end, log.log_end_offset]
        if bounds != sorted(bounds) or bounds[3] != self.ends(self.mine):
            raise Violation(f"bounds {bounds}, appended to {self.ends(self.mine)}")
        if log._epochs != epochs_of(self.mine, self.base):
            raise Violation(f"epochs {log._epochs}, batches have {epochs_of(self.mine, self.base)}")
        if remembered(log._producers) != producers_of(self.mine):
            raise Violation("producers are not those of the batches")

    def check(self) -> None:
        self.note_durable()
        self.check_numbers()
        if self.content() != self.mine[: self.durable]:
            raise Violation("the log's batches are not those that were appended")


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def run_schedule(loop: asyncio.AbstractEventLoop, seed: int, **bugs: bool) -> Schedule:
    schedule = Schedule(loop, seed, **bugs)
    try:
        schedule.run()
    except BaseException as error:
        error.add_note(f"journal replica schedule, seed {seed}")
        raise
    return schedule


@pytest.mark.parametrize(
    "some", chunks(SEEDS, max(20, len(SEEDS) // 10)), ids=lambda some: str(some.start)
)
def test_a_replica_keeps_its_word(loop: asyncio.AbstractEventLoop, some: range) -> None:
    cuts = crashes = 0
    for seed in some:
        schedule = run_schedule(loop, seed)
        cuts, crashes = cuts + schedule.cuts, crashes + schedule.crashes_in_cuts
    assert (cuts > len(some) and cuts + crashes > 1.25 * len(some)) or len(some) < 20


def schedules_until_found(loop: asyncio.AbstractEventLoop, **bugs: bool) -> int:
    for seed in range(300):
        try:
            run_schedule(loop, seed, **bugs)
        except (Violation, LakeMQError, ValueError):
            return seed + 1
    pytest.fail("300 schedules did not find the planted bug")


def test_a_disk_that_cuts_in_memory_alone_is_found(loop: asyncio.AbstractEventLoop) -> None:
    assert schedules_until_found(loop, lying_truncate=True) <= 100


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (truncation, "_cut_file"),
        (truncation, "_replace_checkpoint"),
        (EpochTable, "truncate"),
        (ProducerTable, "note_older"),
        (LogFolder, "mark_gaps"),
        (LogWriter, "restart"),
    ],
)
def test_a_step_that_is_left_out_is_found(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    """Of a cut, or of the copying of a compacted log. Without `_cut_file` the manifest alone says
    where the log ends."""
    monkeypatch.setattr(owner, name, lambda *arguments: None)
    assert schedules_until_found(loop) <= 200
