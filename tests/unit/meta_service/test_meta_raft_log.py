"""The Raft log on a disk that loses what was not synced."""

from __future__ import annotations

import random

import google_crc32c
import pytest

from lakemq.meta_service.raft.log.log_format import (
    LOG_HEADER,
    RECORD_HEADER,
    RECORD_MAGIC,
    Entry,
    LogDamaged,
    encode_log_header,
    encode_record,
    encode_vote,
    parse_log,
    parse_vote,
)
from lakemq.meta_service.raft.log.raft_log import LOG_NAME, VOTE_NAME, LogFailed, RaftLog
from tests.support.meta.disk import MemoryDisk, PowerCut


def filled(disk: MemoryDisk, count: int, term: int = 1) -> RaftLog:
    log = RaftLog(disk)
    for number in range(count):
        log.add(b"\x00command %d" % number, log.last_index + 1, term)
    log.sync()
    return log


def test_a_new_log_holds_the_boundary_alone() -> None:
    log = RaftLog(MemoryDisk())
    assert (log.first_index, log.last_index, log.last_term, len(log)) == (1, 1, 0, 1)


def test_synced_entries_survive_a_power_cut() -> None:
    disk = MemoryDisk()
    filled(disk, 10)
    disk.lose_power(random.Random(1))
    log = RaftLog(disk)
    assert log.last_index == 11
    assert log[10] == Entry(b"\x00command 9", 11, 1)


def test_one_sync_makes_many_entries_durable() -> None:
    disk = MemoryDisk()
    log = RaftLog(disk)
    before = disk.syncs
    for number in range(100):
        log.add(b"\x00" + bytes(100), number + 2, 1)
    log.sync()
    assert disk.syncs - before == 1


@pytest.mark.parametrize("seed", range(200))
def test_unsynced_entries_are_cut_and_never_make_the_log_unreadable(seed: int) -> None:
    rng = random.Random(seed)
    disk = MemoryDisk()
    log = filled(disk, 5)
    for _ in range(rng.randint(1, 5)):
        for _ in range(rng.randint(1, 4)):
            log.add(rng.randbytes(rng.randint(1, 60)), log.last_index + 1, 1)
        if rng.random() < 0.5:
            log.sync()
    synced, entries = log.synced_index, list(log[:])
    disk.lose_power(rng)
    after = RaftLog(disk)
    assert after.last_index >= synced, f"seed {seed}"
    assert list(after[:]) == entries[: len(after)], f"seed {seed}"


@pytest.mark.parametrize("seed", range(150))
def test_a_power_cut_at_any_disk_operation_keeps_what_was_promised(seed: int) -> None:
    """Appends, conflicts, compaction and votes, with the power going at one of their steps."""
    rng = random.Random(seed)
    disk = MemoryDisk()
    log = filled(disk, 5)
    disk.cut_at = disk.steps + rng.randint(1, 40)
    promised, vote = list(log[:]), (0, None)
    try:
        while True:
            action = rng.randrange(5)
            if action <= 1:
                log.add(rng.randbytes(20), log.last_index + 1, log.last_term)
                log.sync()
            elif action == 2 and len(log) > 2:
                at = rng.randint(log.first_index + 1, log.last_index)
                promised = [entry for entry in promised if entry.log_index < at]
                log.truncate_from(at)
                log.add(b"\x00other", at, log.last_term + 1)
                log.sync()
            elif action == 3:
                target = rng.randint(log.first_index, log.last_index)
                log.compact_to(target)
            else:
                log.setCurrentTerm(vote[0] + 1, "b")
                vote = (vote[0] + 1, "b")
            promised = list(log[:])
    except PowerCut:
        pass
    disk.lose_power(rng)
    after = RaftLog(disk)
    kept = {entry.log_index: entry for entry in after[:]}
    for entry in promised:
        if entry.log_index > after.first_index:
            assert kept.get(entry.log_index) == entry, f"seed {seed}"
    assert after.first_index <= promised[-1].log_index, f"seed {seed}"
    assert after.getCurrentTerm() >= vote[0], f"seed {seed}"


def test_damage_to_an_acknowledged_entry_refuses_to_open() -> None:
    disk = MemoryDisk()
    log = filled(disk, 3)
    log.add(b"\x00later", 5, 1)
    log.sync()
    disk.damage(LOG_NAME, LOG_HEADER.size + RECORD_HEADER.size * 2 + 3)
    with pytest.raises(LogDamaged, match="log index 2 .* is damaged, though index 5"):
        RaftLog(disk)


def test_a_damaged_header_refuses_to_open() -> None:
    disk = MemoryDisk()
    filled(disk, 3)
    disk.damage(LOG_NAME, 2)
    with pytest.raises(LogDamaged, match="does not begin with a Raft log header"):
        RaftLog(disk)


@pytest.mark.parametrize("position", [0, 9, 13, 20, 24])
def test_a_damaged_vote_refuses_to_open(position: int) -> None:
    disk = MemoryDisk()
    RaftLog(disk).setCurrentTerm(7, "n2")
    disk.damage(VOTE_NAME, position)
    with pytest.raises(LogDamaged, match="vote file"):
        RaftLog(disk)


def test_a_missing_vote_beside_a_log_refuses_to_open() -> None:
    disk = MemoryDisk()
    filled(disk, 1)
    disk.remove(VOTE_NAME)
    with pytest.raises(LogDamaged, match="missing"):
        RaftLog(disk)


def test_term_and_vote_survive() -> None:
    disk = MemoryDisk()
    RaftLog(disk).setCurrentTerm(41, "n2")
    disk.lose_power(random.Random(3))
    log = RaftLog(disk)
    assert (log.getCurrentTerm(), log.getVotedForNodeId()) == (41, "n2")


def test_a_full_disk_stops_the_log_for_ever() -> None:
    disk = MemoryDisk()
    log = filled(disk, 2)
    log.add(b"\x00x", 4, 1)
    disk.full = True
    with pytest.raises(LogFailed, match="No space left"):
        log.sync()
    disk.full = False
    with pytest.raises(LogFailed, match="failed before"):
        log.sync()


def test_an_entry_that_does_not_follow_is_refused() -> None:
    log = filled(MemoryDisk(), 2, term=3)
    for index, term in ((3, 3), (5, 3), (4, 2)):
        with pytest.raises(LogFailed, match="does not follow"):
            log.add(b"\x00", index, term)


@pytest.mark.parametrize("seed", range(40))
def test_what_a_conflict_dropped_does_not_come_back_behind_what_replaced_it(seed: int) -> None:
    """An old entry of a higher term behind a new one of a lower: a log that never was."""
    disk = MemoryDisk()
    log = filled(disk, 1)
    for index in (3, 4):
        log.add(b"\x00same size", index, 5)
    log.sync()
    log.truncate_from(3)
    log.add(b"\x00SAME SIZE", 3, 3)
    disk.cut_at = disk.steps + 2
    with pytest.raises(PowerCut):
        log.sync()
    disk.lose_power(random.Random(seed))
    assert [entry.term for entry in RaftLog(disk)[:]] in ([0, 1], [0, 1, 3])


def test_the_boundary_is_never_truncated() -> None:
    with pytest.raises(LogFailed, match="boundary"):
        filled(MemoryDisk(), 2).truncate_from(1)


def test_compaction_keeps_the_boundary_and_what_follows() -> None:
    disk = MemoryDisk()
    log = filled(disk, 20)
    log.compact_to(15)
    assert (log.first_index, log.last_index) == (15, 21)
    log.add(b"\x00more", 22, 1)
    log.sync()
    after = RaftLog(disk)
    assert (after.first_index, after.last_index, after.term_at(14)) == (15, 22, None)


def test_a_log_can_start_behind_a_snapshot() -> None:
    disk = MemoryDisk()
    log = filled(disk, 3)
    log.reset(100, 7)
    log.add(b"\x00next", 101, 7)
    log.sync()
    assert [(e.log_index, e.term) for e in RaftLog(disk)[:]] == [(100, 7), (101, 7)]


def test_the_bytes_are_those_that_the_format_page_describes() -> None:
    assert encode_log_header().hex() == "4c4d51524c4f470001000000" + "dd13792d"
    record = encode_record(Entry(b"\x00hi", 7, 2), 6)
    assert record[:4].hex() == "f1524c1a"
    assert record[8:].hex() == (
        "0300000000000000070000000000000002000000000000000600000000000000006869"
    )
    parsed = parse_log(encode_log_header() + record)
    assert parsed.entries == [Entry(b"\x00hi", 7, 2)]
    assert parse_vote(encode_vote(9, None)) == (9, None)


def test_any_bytes_behind_the_header_are_read_or_refused() -> None:
    rng = random.Random(5)
    good = encode_log_header() + encode_record(Entry(b"\x00a", 1, 0), 0)
    for _ in range(300):
        data = good + rng.randbytes(rng.randint(0, 80))
        assert parse_log(data).entries == [Entry(b"\x00a", 1, 0)]


# ------------------------------------------------------------ what a file may hold

ONE = encode_log_header() + encode_record(Entry(b"\x00a", 1, 2), 1)


@pytest.mark.parametrize("entry", [Entry(b"\x00b", 3, 2), Entry(b"\x00b", 1, 2), Entry(b"b", 2, 1)])
def test_an_entry_that_does_not_follow_is_cut_off(entry: Entry) -> None:
    """A gap, the same index again, a lower term: left over from before a crash, never durable."""
    parsed = parse_log(ONE + encode_record(entry, 0))
    assert [each.log_index for each in parsed.entries] == [1]
    assert parsed.end == len(ONE)


def test_the_largest_entries_are_read() -> None:
    entry = Entry(b"x" * (1024 * 1024), 2, 2)
    assert parse_log(ONE + encode_record(entry, 1)).entries[1] == entry
    short = bytearray(ONE + encode_record(Entry(b"\x00b", 2, 2), 1))
    short[len(ONE) + 8 : len(ONE) + 12] = (2**24 + 1).to_bytes(4, "little")
    assert parse_log(bytes(short)).end == len(ONE)


@pytest.mark.parametrize("lost", [b"\0", b"\0" * 44])
@pytest.mark.parametrize(("synced", "proves"), [(1, False), (2, True), (3, True)])
def test_a_whole_record_proves_what_it_says_was_durable(
    lost: bytes, synced: int, *, proves: bool
) -> None:
    data = ONE + lost + encode_record(Entry(b"\x00c", 3, 2), synced)
    if proves:
        with pytest.raises(LogDamaged, match="index 2 .* index 3"):
            parse_log(data)
    else:
        assert parse_log(data).end == len(ONE)


def test_what_looks_like_a_record_within_another_proves_nothing() -> None:
    """Else whoever writes a value could keep a member from starting after a power cut."""
    proof = encode_record(Entry(b"\x00z", 3, 2), 2)
    parsed = parse_log(ONE + b"\0" * 44 + encode_record(Entry(b"\x00" + proof, 3, 2), 1))
    assert len(parsed.entries) == 1


def test_a_vote_for_nobody_that_has_a_name_is_damage() -> None:
    data = bytearray(encode_vote(3, "n1"))
    data[-2:] = b"\xc3\x28"
    data[8:12] = google_crc32c.value(bytes(data[12:])).to_bytes(4, "little")
    with pytest.raises(LogDamaged, match="names no candidate"):
        parse_vote(bytes(data))


def test_what_only_begins_like_a_record_is_passed_over() -> None:
    junk = RECORD_MAGIC * 3 + b"\0" * 50 + RECORD_MAGIC
    with pytest.raises(LogDamaged, match="index 2"):
        parse_log(ONE + junk + encode_record(Entry(b"\x00c", 3, 2), 2))
    assert parse_log(ONE + junk).end == len(ONE)


def test_positions_are_where_records_begin() -> None:
    parsed = parse_log(ONE + encode_record(Entry(b"\x00b", 2, 2), 1))
    assert parsed.positions == [LOG_HEADER.size, len(ONE)]


@pytest.mark.parametrize("place", [0, 12])
def test_a_record_of_another_kind_is_none(place: int) -> None:
    """Another magic, which its checksum does not cover; flags, which it does."""
    record = bytearray(encode_record(Entry(b"\x00b", 2, 2), 1))
    record[place] ^= 1
    record[4:8] = google_crc32c.value(bytes(record[8:])).to_bytes(4, "little")
    assert parse_log(ONE + bytes(record)).end == len(ONE)


@pytest.mark.parametrize("size", [0, 7, 23])
def test_a_vote_file_that_is_cut_short_is_damage(size: int) -> None:
    with pytest.raises(LogDamaged, match="too short"):
        parse_vote(encode_vote(3, None)[:size])
