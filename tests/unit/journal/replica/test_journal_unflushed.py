"""Goal: followers copy what a leader appends while it is flushed, as bytes that will lie there;
what a failed flush takes back is never another record in the same epoch once it may be copied."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lakemq.broker_core.api.errors import LakeMQError, NotLeader, StorageFenced, StorageFull
from lakemq.broker_core.api.types import Acks, Offset
from lakemq.plugins.journal.log.partition_log import JournalLog
from tests.unit.journal.rig import Rig


@pytest.fixture
def told() -> list[int]:
    """Ends of the log as they were told."""
    return []


@pytest.fixture
def log(rig: Rig, told: list[int]) -> JournalLog:
    """Leads with followers, from offset 1 on in epoch 3."""
    rig.append_durably(b"before")
    log = rig.reopen()
    log.lead(3, alone=False)
    log.when_appended(lambda: told.append(log.log_end_offset))
    return log


def read(rig: Rig, offset: int, bytes_max: int = 1 << 20) -> bytes:
    return rig.loop.run_until_complete(rig.log.read_replica(Offset(offset), bytes_max))


def fails_with(number: int, call: str = "write") -> Callable[[str, Path], int]:
    return lambda each, path: number if each == call and path.suffix == ".log" else 0


def test_what_is_appended_is_read_at_once(rig: Rig, log: JournalLog, told: list[int]) -> None:
    rig.append(b"a")
    rig.append(b"b", acks=Acks.MEMORY)
    assert told == [2, 3]
    assert (log.durable_end, log.sendable_end, log.high_watermark) == (1, 3, 0)
    early = read(rig, 1)
    rig.append(b"c")  # behind a flush that is under way, as far as the log knows
    early += read(rig, 3)
    assert read(rig, 1, 1) + read(rig, 2) == early
    log.commit_to(Offset(9))
    assert rig.fetch(1).data == b"", "followers alone may have it"
    rig.flusher.run()
    assert rig.disk.read(rig.segment_path(0)).endswith(early)
    assert read(rig, 1) == early
    rig.forget_tail()
    assert read(rig, 1) == early


def test_without_followers_nothing_is_read_early(rig: Rig, log: JournalLog) -> None:
    log.when_appended(None)
    rig.append(b"a")
    assert log.sendable_end == 1 and read(rig, 1) == b""


def test_what_was_not_appended_in_this_epoch_comes_first(rig: Rig, log: JournalLog) -> None:
    """A flush that fails may take it back without ending the leadership."""
    rig.append(b"a")
    log.lead(4, alone=False)
    log.when_appended(lambda: None)
    rig.append(b"b")
    assert log.sendable_end == 1
    rig.flusher.run()
    rig.append(b"c")
    assert (log.durable_end, log.sendable_end) == (3, 4)


def test_bytes_that_the_disk_will_hold_otherwise_wait(rig: Rig, log: JournalLog) -> None:
    log.configure(replace(log.config, compression="zstd"))
    rig.append(b"a" * 1000)
    assert log.sendable_end == 1
    rig.flusher.run()
    assert log.sendable_end == 2 and len(read(rig, 1)) < 1000


def test_segments_stay_alike(rig: Rig, log: JournalLog) -> None:
    """Where the next one begins is known when it is written: until then a follower waits."""
    log.configure(replace(log.config, segment_max_bytes=2500))
    ends = []
    for _ in range(4):
        rig.append(b"a" * 1000)
        ends.append(log.sendable_end)
    assert ends == [2, 3, 1, 1]
    rig.flusher.run()
    assert [each.base_offset for each in log.folder.manifest.segments] == [0, 3]
    rig.append(b"a")
    assert log.sendable_end == 6
    rig.flusher.run()
    rig.now += log.config.segment_age_max_ms - 30_000
    rig.append(b"a")
    assert log.sendable_end == 6


def test_a_tail_without_room_has_them_wait(rig: Rig, log: JournalLog) -> None:
    log.tail.bytes_max = 1
    rig.append(b"a")
    rig.append(b"b")
    assert read(rig, 1) == b""
    rig.flusher.run()
    assert read(rig, 1)


def test_after_a_failed_flush_of_what_was_read_it_leads_no_more(rig: Rig, log: JournalLog) -> None:
    committed = rig.append(b"a", acks=Acks.REPLICATED)
    rig.flusher.run()
    waiting = [rig.append(b"b"), rig.append(b"c", acks=Acks.REPLICATED)]
    assert read(rig, 2)
    rig.disk.fault = fails_with(errno.ENOSPC)
    # Who is told of it tries again at once: the same offsets, still in the same epoch.
    again: list[object] = []
    waiting[0].add_done_callback(lambda _: again.append(rig.append(b"other").exception()))
    rig.flusher.run()
    rig.loop.run_until_complete(turn())
    rig.disk.fault = None
    assert all(isinstance(each.exception(), NotLeader) for each in waiting)
    assert isinstance(again[0], NotLeader)
    assert not log.leads and (log.durable_end, log.sendable_end, log.log_end_offset) == (2, 2, 2)
    assert read(rig, 2) == b""
    log.follow(3)
    assert isinstance(committed.exception(), NotLeader)
    log.lead(4, alone=False)
    assert rig.append_durably(b"other").base_offset == 2
    assert read(rig, 2).endswith(rig.disk.read(rig.segment_path(0))[-50:])


async def turn() -> None:
    """Callbacks of futures run."""


@pytest.mark.parametrize(
    ("call", "number", "error"),
    [("write", errno.ENOSPC, StorageFull), ("sync", errno.EIO, StorageFenced)],
)
def test_what_nobody_has_is_taken_back(
    rig: Rig, log: JournalLog, call: str, number: int, error: type[LakeMQError]
) -> None:
    failed = rig.append(b"a")
    rig.disk.fault = fails_with(number, call)
    rig.flusher.run()
    rig.disk.fault = None
    assert isinstance(failed.exception(), error) and log.leads
    if error is StorageFull:
        assert rig.append_durably(b"b").base_offset == 1
        assert read(rig, 1)


def test_alone_in_the_same_epoch_it_stops_until_a_restart(rig: Rig, log: JournalLog) -> None:
    """The catalog gives an epoch only when a leader asks; a replica of before may come back."""
    rig.append(b"a")
    assert read(rig, 1)
    log.when_appended(None)
    log.lead(3, alone=True)
    rig.disk.fault = fails_with(errno.ENOSPC)
    rig.flusher.run()
    rig.disk.fault = None
    log.lead(3, alone=True)
    assert isinstance(rig.append(b"b").exception(), StorageFenced)


def test_alone_again_it_keeps_each_batch_once(rig: Rig, log: JournalLog) -> None:
    rig.append(b"a")
    early = read(rig, 1)
    log.lead(3, alone=True)
    rig.flusher.run()
    assert rig.fetch(1).data == early and log.tail.size_bytes == len(early)
