"""Seeded schedules of appends, flushes, crashes, rolls, retention and compaction on a simulated
disk, held against a model.

Goal: whatever was acknowledged is there, once and in order; nothing is there that was not appended;
what a reader has seen is never taken back. Method: one random generator decides everything from the
seed, which a failure prints.

The planted bugs at the end show that the model can fail: a disk whose fsync, or whose folder fsync,
does nothing, and a journal that believes every CRC.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakemq.broker_core.api.errors import LakeMQError, StorageFenced, Unavailable
from lakemq.broker_core.api.records.batch import ProducerStamp, RecordBatch, split
from lakemq.broker_core.api.types import Acks, AppendResult, TopicConfig
from lakemq.plugins.journal.maintenance.compactor import CompactionLimits, Compactor
from lakemq.plugins.journal.maintenance.housekeeping import retain
from lakemq.plugins.journal.segment import walk
from lakemq.plugins.journal.segment.producers import ProducerTable
from lakemq.plugins.journal.tiering.object_store import StoreError
from lakemq.plugins.journal.tiering.uploader import Tier
from tests.support.seeds import chunks, seeds
from tests.unit.journal.rig import Rig

SEEDS = seeds(400)
STEPS = 50
KEYS = [b"k%d" % number for number in range(6)]

Row = tuple[bytes | None, bytes | None]
"""(key, value)"""


class Violation(AssertionError):
    """The log broke its word."""


class PowerLoss(BaseException):
    """Raised by the disk in the middle of a call, to end the process there."""


class Schedule:
    """One run: the log under test, what the model knows, and the steps."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seed: int, **bugs: bool) -> None:
        rng = self.rng = random.Random(seed)
        self.compacts = rng.random() < 0.3
        self.retains = rng.random() < 0.3
        config = TopicConfig(
            segment_max_bytes=rng.choice([300, 1000, 5000]),
            cleanup={(True, True): "compact,delete", (True, False): "compact"}.get(
                (self.compacts, self.retains), "delete"
            ),
            retention_bytes=rng.choice([500, 3000]) if self.retains else None,
            retention_ms=None,
            tombstone_retention_ms=50,
            compression=rng.choice(["producer", "producer", "zstd"]),
        )
        self.rig = Rig(
            loop,
            seed=seed + 1,
            config=config,
            tiers=not self.compacts and rng.random() < 0.3,
            interval_bytes=rng.choice([1, 200, 1 << 20]),
            checkpoint_interval_bytes=rng.choice([1, 700, 1 << 40]),
            tail_max_bytes=rng.choice([0, 1000]),
        )
        self.rig.disk.lying_sync = bugs.get("lying_sync", False)
        self.rig.disk.lying_folder_sync = bugs.get("lying_folder_sync", False)
        self.serial = 0
        self.appended: set[Row] = set()
        """Every record ever appended; values are unique, but for tombstones."""
        self.promised: dict[int, tuple[Row, int]] = {}
        """Offset -> (row, timestamp) of what was acknowledged as durable, or seen by a reader."""
        self.open_appends: list[tuple[asyncio.Future[AppendResult], list[Row], int]] = []
        self.unanswered: set[Row] = set()
        """Records that were not promised to be durable: they may be there."""
        self.high_watermark = 0
        self.log_start = 0
        self.sequence = 0
        self.epoch = 0
        self.in_doubt: tuple[ProducerStamp, list[Row], int] | None = None

    # ------------------------------------------------------------ steps

    def run(self) -> None:
        steps = [
            (self.append, 10), (self.append_idempotent, 3), (self.flush, 8), (self.half_flush, 1),
            (self.read, 3), (self.crash, 1), (self.age, 1), (self.fault, 0.5), (self.fill, 0.5),
            (self.maintain, 2), (self.checkpoint, 0.5), (self.lose_power_within, 2),
        ]  # fmt: skip
        calls, weights = [call for call, _ in steps], [weight for _, weight in steps]
        for call in self.rng.choices(calls, weights, k=STEPS):
            self.rig.now += self.rng.randrange(30)
            try:
                call()
            except PowerLoss:
                self.crash(power_lost=True)
            self.settle()
        self.rig.disk.capacity_bytes = 1 << 40
        self.crash()
        self.flush()
        self.check()

    def rows(self) -> list[Row]:
        rows: list[Row] = []
        for _ in range(self.rng.randrange(1, 4)):
            self.serial += 1
            key = self.rng.choice(KEYS) if self.rng.random() < 0.9 else None
            marker = b"#%d." % self.serial
            tombstone = self.compacts and key is not None and self.rng.random() < 0.15
            filler = b"x" * self.rng.choice([0, 10, 100, 1200])
            rows.append((key, None if tombstone else marker + filler))
        self.appended.update(rows)
        return rows

    def send(self, rows: list[Row], acks: Acks, stamp: ProducerStamp | None) -> None:
        more = {} if stamp is None else {"producer": stamp}
        future = self.rig.append(
            *[value for _, value in rows],
            keys=[key for key, _ in rows],
            acks=acks,
            timestamps_ms=[self.rig.now] * len(rows),
            **more,
        )
        self.open_appends.append((future, rows, self.rig.now))

    def append(self) -> None:
        self.send(self.rows(), self.rng.choice([Acks.LEADER, Acks.LEADER, Acks.MEMORY]), None)

    def append_idempotent(self) -> None:
        """A producer that repeats what it got no answer for, as a client does after a crash."""
        if self.in_doubt is None:
            rows = self.rows()
            stamp = ProducerStamp(9, self.epoch, self.sequence)
            self.in_doubt = (stamp, rows, self.rig.now)
            self.unanswered.update(rows)
        stamp, rows, time = self.in_doubt
        future = self.rig.append(
            *[value for _, value in rows],
            keys=[key for key, _ in rows],
            producer=stamp,
            timestamps_ms=[time] * len(rows),
        )
        self.rig.flusher.run()
        error = future.exception()
        if error is None:
            self.sequence += len(rows)
            self.in_doubt = None
            self.promise(future.result(), rows, time)
        elif not isinstance(error, StorageFenced | Unavailable) and not getattr(
            error, "retriable", False
        ):
            raise Violation(f"idempotent append refused: {error}")

    def flush(self) -> None:
        self.rig.flusher.run()

    def half_flush(self) -> None:
        """Appends arrive while a flush is under way; or the process dies before it is answered."""
        if self.rig.flusher.waiting:
            flushable = self.rig.flusher.waiting.pop(0)
            flushable.begin_flush()
            self.append()
            flushable.write_flush()
            self.append()
            if self.rng.random() < 0.2:
                self.crash()
                return
            flushable.sync_flush()
            if self.rng.random() < 0.5:
                flushable.end_flush()
            else:
                self.crash()

    def lose_power_within(self) -> None:
        """The power goes at some call to the disk from now."""
        left = self.rng.randrange(12)

        def lose(call: str, path: Path) -> int:
            nonlocal left
            left -= 1
            if left < 0:
                raise PowerLoss
            return 0

        self.rig.disk.fault = lose

    def crash(self, power_lost: bool = False) -> None:
        """The process is killed, or the power goes, also during the start that follows."""
        self.settle()
        for future, rows, _ in self.open_appends:
            self.unanswered.update(rows)
            if future.done():
                future.exception()
        self.open_appends = []
        disk = self.rig.disk
        power_lost |= self.rng.random() < 0.6
        disk.lose_power() if power_lost else disk.kill_process()
        while True:
            if disk.free < 1 << 20 and self.rng.random() < 0.5:
                disk.capacity_bytes = 1 << 40
            if self.rng.random() < 0.2:
                self.lose_power_within()
            try:
                if self.rig.open().is_open() or disk.free > 1 << 20:
                    break
                disk.capacity_bytes = 1 << 40  # Fenced because the cut bytes found no room.
                disk.kill_process()
            except PowerLoss:
                disk.lose_power()
        disk.fault = None
        self.check()

    def age(self) -> None:
        """The active segment is sealed for its age."""
        if self.rng.random() < 0.5:
            self.rig.now += self.rig.config.segment_age_max_ms
        self.rig.log.tick(self.rig.now, 0)

    def fault(self) -> None:
        """One call fails with EIO, some calls from now; the next start finds a healthy disk."""
        disk, kinds = self.rig.disk, ["write", "sync", "sync_folder", "rename", "create", "remove"]
        kind, left = self.rng.choice(kinds), self.rng.randrange(4)

        def fail(call: str, path: Path) -> int:
            nonlocal left
            if call != kind:
                return 0
            left -= 1
            return errno.EIO if left == -1 else 0

        disk.fault = fail

    def fill(self) -> None:
        """The disk is full soon, or has room again."""
        disk = self.rig.disk
        small = disk.used + self.rng.randrange(3000)
        disk.capacity_bytes = small if disk.capacity_bytes == 1 << 40 else 1 << 40

    def maintain(self) -> None:
        if not self.rig.log.is_open():
            return
        folder, limits = self.rig.log.folder, CompactionLimits(1000, 0.0, 0)
        try:
            retain(folder, self.rig.config, self.rig.now, self.rig.log.checkpoint_offset())
            if self.compacts:
                compactor = Compactor(folder, self.rig.config, limits, self.rig.now)
                compactor.run(self.rig.log.checkpoint_offset())
            if self.rig.store is not None:
                self.tier(Tier(self.rig.store, folder))
        except StorageFenced as error:
            self.rig.log.fence(str(error))
        except (OSError, StoreError):
            pass

    def tier(self, tier: Tier) -> None:
        for _ in range(self.rng.randrange(3)):
            tier.copy_next(self.rig.log.copy_end())
        if self.rng.random() < 0.5:
            end = self.rig.log.checkpoint_offset()
            tier.drop_local(
                self.rig.now, end, bytes_max=500, age_max_ms=None, retention_by="append"
            )
        tier.sweep()

    def checkpoint(self) -> None:
        if not self.rig.flusher.waiting:
            self.rig.log.close_files(checkpoint=True)

    # ------------------------------------------------------------ what must hold

    def settle(self) -> None:
        """Take the answers that have come."""
        left = []
        for future, rows, time in self.open_appends:
            if not future.done():
                left.append((future, rows, time))
            elif future.exception() is None:
                if future.result().acks is Acks.LEADER:
                    self.promise(future.result(), rows, time)
                else:
                    self.unanswered.update(rows)
            elif isinstance(future.exception(), LakeMQError):
                self.unanswered.update(rows)
            else:
                raise Violation(f"append failed with {future.exception()!r}")
        self.open_appends = left

    def promise(self, result: AppendResult, rows: list[Row], time: int) -> None:
        for offset, row in zip(
            range(result.base_offset, result.last_offset + 1), rows, strict=True
        ):
            known = self.promised.setdefault(offset, (row, time))
            if known[0] != row:
                raise Violation(f"offset {offset} was given twice: {known[0]} and {row}")

    def read(self) -> None:
        """A reader somewhere; what it sees is promised from then on."""
        log = self.rig.log
        if log.high_watermark > log.log_start_offset:
            offset = self.rng.randrange(log.log_start_offset, log.high_watermark)
            self.see(offset, self.rig.fetch(offset, self.rng.choice([1, 500, 1 << 20])).data)

    def see(self, offset: int, data: bytes) -> list[int]:
        found: list[int] = []
        for position, header in split(data):
            batch = RecordBatch(data[position : position + header.total_bytes])
            for record in batch.records():
                row = (record.key, record.value)
                if row not in self.appended:
                    raise Violation(f"offset {record.offset} holds {row}, which nobody appended")
                known = self.promised.setdefault(record.offset, (row, record.timestamp_ms))
                if known[0] != row:
                    raise Violation(f"offset {record.offset} is {row}, was {known[0]}")
                found.append(record.offset)
        if not data or found[-1] < offset or found != sorted(set(found)):
            raise Violation(f"fetch of {offset} gave offsets {found}")
        return found

    def check(self) -> None:
        """Read everything."""
        log = self.rig.log
        start, end = log.log_start_offset, log.high_watermark
        if not log.is_open():
            raise Violation(f"fenced by a crash: {log.status().detail}")
        if start < self.log_start or end < self.high_watermark:
            raise Violation(f"went back to {start}..{end} from {self.high_watermark}")
        self.log_start = start
        present: set[int] = set()
        offset = int(start)
        while offset < end:
            result = self.rig.fetch(offset, self.rng.choice([1, 500, 1 << 20]))
            present.update(self.see(offset, result.data))
            offset = result.next_offset
        expected = {offset for offset in self.promised if offset >= start}
        missing = sorted(expected - present)
        if missing and max(missing) >= end:
            raise Violation(f"offsets {missing} are behind the end {end}")
        if not self.compacts and missing:
            raise Violation(f"offsets {missing} are missing")
        self.check_compacted(missing)
        self.check_once(present)
        self.high_watermark = max(self.high_watermark, int(end))

    def check_compacted(self, missing: list[int]) -> None:
        """What is missing must have been superseded, or be a tombstone that was due."""
        latest: dict[bytes, int] = {}
        for offset, ((key, _), _) in sorted(self.promised.items()):
            if key is not None:
                latest[key] = offset
        for offset in missing:
            (key, value), time = self.promised[offset]
            if key is None:
                raise Violation(f"offset {offset} has no key and is missing")
            due = value is None and time < self.rig.now - 50
            if latest[key] == offset and not due and (key, None) not in self.unanswered:
                raise Violation(f"offset {offset}, the latest of {key!r}, is missing")

    def check_once(self, present: set[int]) -> None:
        rows = [self.promised[offset][0] for offset in present]
        values = [value for _, value in rows if value is not None]
        if len(values) != len(set(values)):
            raise Violation("a record is there twice")


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
        error.add_note(f"journal schedule, seed {seed}")
        raise
    return schedule


@pytest.mark.parametrize(
    "some", chunks(SEEDS, max(40, len(SEEDS) // 10)), ids=lambda some: str(some.start)
)
def test_the_log_keeps_its_word(loop: asyncio.AbstractEventLoop, some: range) -> None:
    promised = sum(len(run_schedule(loop, seed).promised) for seed in some)
    assert promised > 10 * len(some) or len(some) < 40


def schedules_until_found(loop: asyncio.AbstractEventLoop, **bugs: bool) -> int:
    for seed in range(500):
        try:
            run_schedule(loop, seed, **bugs)
        except (Violation, LakeMQError):
            return seed + 1
    pytest.fail("500 schedules did not find the planted bug")


@pytest.mark.parametrize("bug", ["lying_sync", "lying_folder_sync"])
def test_a_lying_disk_is_found(loop: asyncio.AbstractEventLoop, bug: str) -> None:
    assert schedules_until_found(loop, **{bug: True}) <= 100


def test_a_journal_that_believes_every_body_is_found(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk, "check_body", lambda header, body: None)
    assert schedules_until_found(loop) <= 200


def test_a_journal_that_forgets_producers_is_found(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProducerTable, "check", lambda table, header: None)
    assert schedules_until_found(loop) <= 200
