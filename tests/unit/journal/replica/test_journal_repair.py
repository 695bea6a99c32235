"""A damaged sealed segment is put together again from its good batches and another replica's."""

from __future__ import annotations

import asyncio
import errno
import random
from contextlib import suppress
from pathlib import Path

import pytest

from lakemq.broker_core.api.errors import CorruptLog, LakeMQError
from lakemq.broker_core.api.records.batch import encode, split
from lakemq.broker_core.api.types import Columns, Offset, TopicConfig
from tests.unit.journal.rig import FOLDER, Rig

RECORDS = 11
STEPS = 60
"""More than the calls of the disk that a repair makes."""


class Peer:
    """Another replica: the batches as they were before any damage."""

    def __init__(self, rig: Rig) -> None:
        self.batches = [
            (header, data[position : position + header.total_bytes])
            for segment in rig.log.folder.manifest.segments
            for data in [rig.disk.read(FOLDER / segment.log_name)]
            for position, header in split(data)
        ]
        self.asked: list[tuple[int, int]] = []
        self.at_once = 100

    async def fetch(self, offset: Offset, end: Offset) -> tuple[bytes, Offset]:
        self.asked.append((offset, end))
        wanted = [
            (header, data) for header, data in self.batches if offset <= header.last_offset < end
        ]
        some = wanted[: self.at_once]
        answered = end if len(some) == len(wanted) else some[-1][0].last_offset + 1
        return b"".join(data for _, data in some), Offset(answered)


def filled(loop: asyncio.AbstractEventLoop, seed: int = 0) -> Rig:
    """Records in batches of one, five to a segment: two sealed segments and a third."""
    rig = Rig(loop, seed=seed, config=TopicConfig(segment_max_bytes=500), tail_max_bytes=0)
    for number in range(RECORDS):
        rig.append_durably(b"value %d" % number)
    assert [s.base_offset for s in rig.log.folder.manifest.segments] == [0, 5, 10]
    return rig


@pytest.fixture
def rig(loop: asyncio.AbstractEventLoop) -> Rig:
    return filled(loop)


def read_all(rig: Rig) -> list[int]:
    offsets: list[int] = []
    while len(offsets) < RECORDS:
        result = rig.fetch(len(offsets))
        offsets += [header.base_offset for _, header in split(result.data)]
    return offsets


def notice(rig: Rig) -> None:
    """As a reader or the scrub does."""
    for offset in range(RECORDS):
        with suppress(CorruptLog):
            rig.fetch(offset)


def repair(rig: Rig, peer: Peer) -> list[bool]:
    async def run() -> list[bool]:
        return [await rig.log.repair(base, peer.fetch) for base in rig.log.damaged()]

    return rig.loop.run_until_complete(run())


@pytest.mark.parametrize("at_once", [1, 100])
@pytest.mark.parametrize(
    ("flips", "asked"),
    [
        ([(2, 0)], [(2, 3)]),
        ([(0, 50)], [(0, 1)]),
        ([(4, 20)], [(4, 5)]),
        ([(1, 0), (3, 90)], [(1, 2), (3, 4)]),
        ([(number, 30) for number in range(5)], [(0, 5)]),
    ],
)
def test_only_what_is_damaged_is_fetched(
    rig: Rig, flips: list[tuple[int, int]], asked: list[tuple[int, int]], at_once: int
) -> None:
    peer = Peer(rig)
    peer.at_once = at_once
    path = rig.segment_path(0)
    before = rig.disk.read(path)
    for number, within in flips:
        rig.disk.flip_bit(path, len(before) // 5 * number + within, 3)
    notice(rig)
    assert rig.log.damaged() == [0]
    assert rig.context.counters.damages_found == 1
    assert repair(rig, peer) == [True]
    if at_once > 1:
        assert peer.asked == asked
    assert rig.disk.read(rig.segment_path(0)) == before
    assert rig.segment_path(0) != path and not rig.disk.exists(path)
    assert not rig.log.damaged() and not rig.log.status().detail
    assert rig.context.counters.repaired_segments == 1
    assert read_all(rig) == list(range(RECORDS))
    rig.kill()
    assert read_all(rig) == list(range(RECORDS))


@pytest.mark.parametrize("how", ["missing", "short", "unreadable"])
def test_a_file_that_the_disk_does_not_give_is_fetched(rig: Rig, how: str) -> None:
    peer = Peer(rig)
    path = rig.segment_path(1)
    before = rig.disk.read(path)
    if how == "missing":
        rig.disk.remove(path)
    else:
        rig.disk.open(path, writable=True).truncate(len(before) // 2)
    notice(rig)
    assert rig.log.damaged() == [5]
    if how == "unreadable":
        rig.disk.fault = lambda call, at: errno.EIO if (call, at) == ("read", path) else 0
    assert repair(rig, peer) == [True]
    assert rig.disk.read(rig.segment_path(1)) == before
    assert read_all(rig) == list(range(RECORDS))


@pytest.mark.parametrize("leads", [True, False])
def test_damage_where_a_leader_still_writes_ends_the_segment(rig: Rig, leads: bool) -> None:
    """A follower's segments end where its leader's do: it waits for that."""
    peer, path = Peer(rig), rig.segment_path(2)
    before = rig.disk.read(path)
    rig.disk.flip_bit(path, 50, 1)
    rig.forget_tail()
    notice(rig)
    rig.log.tick(rig.now, 0)
    rig.flusher.run()
    assert not rig.log.damaged(), "there is no other replica"

    async def none() -> bool:
        return False

    rig.log.when_damaged(none)
    if not leads:
        rig.log.follow(1)
    rig.log.tick(rig.now, 0)
    rig.flusher.run()
    assert rig.log.damaged() == ([10] if leads else [])
    if leads:
        assert repair(rig, peer) == [True]
        assert rig.disk.read(rig.segment_path(2)) == before
        assert read_all(rig) == list(range(RECORDS))


def test_a_reader_waits_for_the_repair(rig: Rig) -> None:
    peer = Peer(rig)
    rig.disk.flip_bit(rig.segment_path(0), 50, 1)

    async def mend() -> bool:
        return any([await rig.log.repair(base, peer.fetch) for base in rig.log.damaged()])

    rig.log.when_damaged(mend)
    assert read_all(rig) == list(range(RECORDS))
    assert rig.context.counters.repaired_segments == 1

    async def fail() -> bool:
        return False

    rig.disk.flip_bit(rig.segment_path(0), 50, 1)
    rig.log.when_damaged(fail)
    with pytest.raises(CorruptLog, match=r"offsets 0\.\.0 are damaged"):
        rig.fetch(0)


def test_what_does_not_fit_is_refused_and_nothing_changes(rig: Rig) -> None:
    peer = Peer(rig)
    path = rig.segment_path(0)
    rig.disk.flip_bit(path, 50, 1)
    notice(rig)
    good, names = peer.batches[0], rig.disk.names(FOLDER)
    damaged, handles = rig.disk.read(path), rig.disk.open_handles
    for answer, why in (
        (b"", "offsets 0..0 are nowhere"),
        (good[1][:-1], "is damaged"),
        (good[1] + good[1], "a batch of offset 0"),
        (good[1] + peer.batches[1][1], "batches up to offset 2 in place of 1"),
    ):

        async def fetch(
            offset: Offset, end: Offset, answer: bytes = answer
        ) -> tuple[bytes, Offset]:
            return answer, end

        with pytest.raises(CorruptLog, match=why):
            rig.loop.run_until_complete(rig.log.repair(Offset(0), fetch))
        assert rig.disk.names(FOLDER) == names and rig.disk.read(path) == damaged
    assert rig.log.damaged() == [0] and rig.context.counters.repaired_segments == 0
    assert rig.disk.open_handles == handles


def test_a_batch_of_another_size_is_no_copy(rig: Rig) -> None:
    peer = Peer(rig)
    other = Rig(rig.loop, seed=1, config=TopicConfig(segment_max_bytes=500), tail_max_bytes=0)
    other.append_durably(b"something longer than that")
    peer.batches[0] = Peer(other).batches[0]
    rig.disk.flip_bit(rig.segment_path(0), 50, 1)
    notice(rig)
    with pytest.raises(CorruptLog, match="put together it has"):
        repair(rig, peer)


def test_what_is_not_committed_or_not_sealed_is_left_alone(loop: asyncio.AbstractEventLoop) -> None:
    rig = Rig(loop, config=TopicConfig(segment_max_bytes=500), tail_max_bytes=0)
    rig.log.lead(1, alone=False)
    for number in range(RECORDS):
        rig.append_durably(b"value %d" % number)
    for number in (0, 2):
        rig.disk.flip_bit(rig.segment_path(number), 50, 1)
    rig.forget_tail()
    for offset in (0, 10):
        with pytest.raises(CorruptLog):
            loop.run_until_complete(_read(rig, offset))
    assert len(rig.log.folder.damages) == 2 and not rig.log.damaged()
    rig.log.commit_to(Offset(4))
    assert not rig.log.damaged()
    rig.log.commit_to(Offset(RECORDS))
    assert rig.log.damaged() == [0]


async def _read(rig: Rig, offset: int) -> bytes:
    return await rig.log.read_replica(Offset(offset), 1000)


@pytest.mark.parametrize("seed", range(60))
def test_a_crash_at_any_step_leaves_the_damaged_segment_or_the_whole_one(
    loop: asyncio.AbstractEventLoop, seed: int
) -> None:
    rig = filled(loop, seed)
    peer = Peer(rig)
    before = rig.disk.read(rig.segment_path(0))
    rig.disk.flip_bit(rig.segment_path(0), 50, 1)
    notice(rig)
    rng = random.Random(seed)
    crash_at = rig.disk.calls + rng.randrange(1, STEPS)

    def fault(call: str, path: Path) -> int:
        if rig.disk.calls >= crash_at:
            raise Crash
        return 0

    rig.disk.fault = fault
    try:
        repair(rig, peer)
        crashed = False
    except Crash:
        crashed = True
    rig.disk.fault = None
    rng.choice((rig.kill, rig.lose_power))()
    assert rig.log.log_end_offset == RECORDS
    notice(rig)
    if rig.log.damaged():
        assert crashed
        assert repair(rig, peer) == [True]
    assert rig.disk.read(rig.segment_path(0)) == before
    assert read_all(rig) == list(range(RECORDS))
    # Nothing but what the manifest names is left.
    logs = [name for name in rig.disk.names(FOLDER) if name.endswith((".log", ".new"))]
    assert logs == [each.log_name for each in rig.log.folder.manifest.segments]


class Crash(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("call", ["create", "write", "sync", "rename", "sync_folder"])
def test_a_disk_that_fails_meanwhile_is_told(rig: Rig, call: str) -> None:
    peer = Peer(rig)
    rig.disk.flip_bit(rig.segment_path(0), 50, 1)
    notice(rig)
    rig.disk.fault = lambda made, path: errno.ENOSPC if made == call else 0
    with pytest.raises(LakeMQError) as told:
        repair(rig, peer)
    rig.disk.fault = None
    # A manifest that may or may not be durable: nothing more can be built on it.
    fenced = call == "sync_folder"
    assert told.type.__name__ == ("StorageFenced" if fenced else "Unavailable")
    assert rig.log.is_fenced is fenced
    if not fenced:
        assert repair(rig, peer) == [True]
        assert read_all(rig) == list(range(RECORDS))


def test_retention_may_take_the_segment_meanwhile(rig: Rig) -> None:
    peer = Peer(rig)
    rig.disk.flip_bit(rig.segment_path(0), 50, 1)
    notice(rig)

    async def run() -> bool:
        async def fetch(offset: Offset, end: Offset) -> tuple[bytes, Offset]:
            rig.log.folder.start_at(6, 10)
            return await peer.fetch(offset, end)

        return await rig.log.repair(Offset(0), fetch)

    assert not rig.loop.run_until_complete(run())
    assert rig.log.log_start_offset == 6 and not rig.log.damaged()
    names = [name for name in rig.disk.names(FOLDER) if ".log" in name]
    assert names == [each.log_name for each in rig.log.folder.manifest.segments]
    assert rig.context.counters.repaired_segments == 0


def test_a_log_that_starts_within_a_batch_is_repaired(loop: asyncio.AbstractEventLoop) -> None:
    leader = Rig(loop)
    leader.append_durably(b"a", b"b", b"c")
    for value in (b"d", b"e"):
        leader.append_durably(value)
    peer = Peer(leader)
    rig = Rig(loop, seed=1, config=TopicConfig(segment_max_bytes=300), tail_max_bytes=0)
    rig.log.follow(1)
    loop.run_until_complete(rig.log.restart_at(Offset(1)))
    for _, data in peer.batches:
        rig.log.append_replica(data)
        rig.flusher.run()
    rig.log.roll_at(Offset(5))
    for number in (5, 6):
        data = encode(Columns([b"more"]), now_ms=1, base_offset=number, leader_epoch=0)
        rig.log.append_replica(data)
        rig.flusher.run()
    rig.log.commit_to(Offset(7))
    path = rig.segment_path(0)
    whole = rig.disk.read(path)
    assert rig.log.folder.manifest.segments[0].base_offset == 1
    for position in (20, len(whole) - 1):
        rig.disk.flip_bit(rig.segment_path(0), position, 1)
        rig.forget_tail()
        for offset in range(1, 5):
            with suppress(CorruptLog):
                rig.fetch(offset)
        assert repair(rig, peer) == [True]
        assert rig.disk.read(rig.segment_path(0)) == whole
    assert [header.last_offset for _, header in split(rig.fetch(1).data)][:1] == [2]
