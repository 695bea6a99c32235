"""Goal: a message follows the newest birth of its session before it in the journal, whatever tasks
read it, know of before, or have forgotten."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from lakemq.broker_core.api.schemas.sparkplug import UNBORN, Birth, Payload, birth_of, place_of
from lakemq.spark_plugin.export.decoding import births
from lakemq.spark_plugin.export.decoding.births import (
    BirthCache,
    BirthLog,
    KnownBirths,
    StoredBirth,
)
from tests.support.seeds import seeds


def birth(number: int) -> bytes:
    payload = Payload(seq=number)
    payload.metrics.add(name=f"metric {number}", alias=1, datatype=10)
    return bytes(payload.SerializeToString())


def told(number: int) -> Birth:
    return birth_of(Payload.FromString(birth(number)))


class Journal:
    """One partition: (topic name, value) of each offset. Implements `BirthReader`."""

    def __init__(self, *records: tuple[str, bytes]) -> None:
        self.records = list(records)
        self.first = 0
        self.read: list[tuple[int, int]] = []

    def log_start(self) -> int:
        return self.first

    def births(self, start: int, end: int) -> Iterator[StoredBirth]:
        assert self.first <= start <= end
        self.read.append((start, end))
        for offset in range(start, end):
            name, value = self.records[offset]
            if "BIRTH/" in name:
                yield StoredBirth(offset, name.encode(), value)

    def log(
        self, start: int, known: KnownBirths | None = None, cache: BirthCache | None = None
    ) -> BirthLog:
        return BirthLog(self, start, known, "p", cache or BirthCache())

    def followed(self, offset: int) -> Birth:
        """What it must be: all records from the first one on, one after the other."""
        address = place_of(self.records[offset][0].encode())
        node, found = (address["group_id"], address["edge_node_id"]), UNBORN
        for name, value in self.records[self.first : offset]:
            other = place_of(name.encode())
            if (other["group_id"], other["edge_node_id"]) != node:
                continue
            kind = other["message_type"]
            if kind == "NBIRTH":
                found = UNBORN if "device_id" in address else _told(value)
            if kind == "DBIRTH" and other.get("device_id") == address.get("device_id"):
                found = _told(value)
        return found


def _told(value: bytes) -> Birth:
    return UNBORN if value == b"\xff" else birth_of(Payload.FromString(value))


def of(name: str) -> dict[str, Any]:
    return place_of(f"spBv1.0/{name}".encode())


def read(journal: Journal, log: BirthLog, end: int) -> None:
    """What a task does, and whether it finds what it must."""
    for offset in range(log.start, end):
        name, value = journal.records[offset]
        address = place_of(name.encode())
        if "BIRTH" in name:
            log.note(address, offset, _told(value))
        else:
            assert log.find(address) == journal.followed(offset), offset


@pytest.mark.parametrize("seed", seeds(200))
def test_tasks_find_what_one_reader_would(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(births, "_LOOK_BACK", rng.choice([1, 3, 1000]))
    monkeypatch.setattr(births, "PLACES_MAX", rng.choice([1, 4, 1000]))
    journal = Journal()
    for number in range(rng.randrange(1, 80)):
        node, device = f"g/{{}}/n{rng.randrange(3)}", rng.choice(["", "/d1", "/d2"])
        kind = rng.choice(["BIRTH", "DATA", "DATA", "CMD"])
        name = node.format(("D" if device else "N") + kind) + device
        value = b"" if kind != "BIRTH" else rng.choice([birth(number), birth(number), b"\xff"])
        journal.records.append((f"spBv1.0/{name}", value))
    journal.first = rng.randrange(len(journal.records)) if rng.random() < 0.3 else 0
    known: KnownBirths | None = None
    start, cache = rng.randrange(journal.first, len(journal.records)), BirthCache()
    while start < len(journal.records):
        end = min(start + rng.randrange(1, 12), len(journal.records))
        cuts = sorted({start, end, *(rng.randrange(start, end) for _ in range(rng.randrange(3)))})
        seen = []
        for first, last in zip(cuts, cuts[1:], strict=False):  # the tasks of one commit
            log = journal.log(first, known, cache)
            read(journal, log, last)
            seen.append((log.low, log.offsets))
        known = (known or KnownBirths(end, end, {})).with_seen(end, seen)
        assert len(known.offsets) <= births.PLACES_MAX
        start = end
        if rng.random() < 0.2:  # another process goes on
            known = None
        if rng.random() < 0.3:
            cache = BirthCache(rng.choice([1, 500]))


def test_a_device_is_born_again_behind_its_node() -> None:
    journal = Journal(
        ("spBv1.0/g/NBIRTH/n", birth(0)), ("spBv1.0/g/DBIRTH/n/d", birth(1)),
        ("spBv1.0/g/NBIRTH/n", birth(2)), ("spBv1.0/g/DDATA/n/d", b""),
        ("spBv1.0/g/DBIRTH/n/d", birth(4)), ("spBv1.0/g/DDATA/n/d", b""),
    )  # fmt: skip
    assert journal.log(2).find(of("g/DDATA/n/d")) == told(1)
    assert journal.log(3).find(of("g/DDATA/n/d")) == UNBORN
    assert journal.log(3).find(of("g/NDATA/n")) == told(2)
    assert journal.log(5).find(of("g/DDATA/n/d")) == told(4)
    assert journal.log(5).find(of("g/DDATA/n/other")) == UNBORN
    assert journal.log(5).find(of("other/NDATA/n")) == UNBORN


def test_a_log_is_looked_through_once_and_only_where_it_must_be() -> None:
    journal = Journal(("spBv1.0/g/NBIRTH/n", birth(0)), *[("spBv1.0/g/NDATA/n", b"")] * 9)
    log = journal.log(1)
    log.note(of("g/NBIRTH/n"), 1, told(1))
    assert log.find(of("g/NDATA/n")) == told(1) and journal.read == []
    log = journal.log(9)
    for _ in range(3):
        assert log.find(of("g/NDATA/n")) == told(0)
        assert log.find(of("g/NDATA/unborn")) == UNBORN
    assert journal.read == [(0, 9)]
    # The next task is told: nothing is read but what came since.
    known = KnownBirths(9, 9, {}).with_seen(9, [(log.low, log.offsets)])
    later = journal.log(10, known, log.cache)
    assert later.find(of("g/NDATA/n")) == told(0) and later.find(of("g/NDATA/x")) == UNBORN
    assert journal.read == [(0, 9), (9, 10)]


def test_nothing_is_looked_for_before_the_session() -> None:
    journal = Journal(*[("spBv1.0/g/DBIRTH/n/d", birth(0))] * 50)
    log = journal.log(50)
    log.note(of("g/NBIRTH/n"), 50, told(50))
    assert log.find(of("g/DDATA/n/d")) == UNBORN and journal.read == []


def test_what_retention_has_deleted_is_not_asked_for() -> None:
    journal = Journal(("spBv1.0/g/NBIRTH/n", birth(0)), *[("spBv1.0/g/NDATA/n", b"")] * 5)
    journal.first = 3
    log = journal.log(5, KnownBirths(0, 5, {"g/n": 0}))
    assert log.find(of("g/NDATA/n")) == UNBORN and journal.read == []


def test_what_is_known_of_later_records_is_of_no_use() -> None:
    """A range that is read again, from before what is known."""
    journal = Journal(("spBv1.0/g/NBIRTH/n", birth(0)), ("spBv1.0/g/NBIRTH/n", birth(1)))
    assert journal.log(1, KnownBirths(0, 2, {"g/n": 1})).find(of("g/NDATA/n")) == told(0)


def test_the_cache_is_bounded_by_metrics() -> None:
    cache, one = BirthCache(10), Birth({1: "a", 2: "b"}, {})
    for offset in range(100):
        cache.put("p", offset, one)
        cache.put("p", offset, one)
    kept = [offset for offset in range(100) if cache.get("p", offset) is not None]
    assert kept == [97, 98, 99] and cache.get("q", 99) is None
    cache.put("p", 99, Birth({1: "long" * 200}, {}))  # it is there already
    cache.put("p", 200, Birth({1: "long" * 200}, {}))
    assert [each for each in (97, 98, 99, 200) if cache.get("p", each) is not None] == [200]
    huge = Birth({number: "x" for number in range(100)}, {})
    cache.put("p", 100, huge)
    assert cache.get("p", 100) == huge and cache.get("p", 99) is None


def test_what_one_look_holds_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(births, "_HELD_MAX_BYTES", 2 * len(birth(0)))
    # The older one of `n0` takes no room once the newer one is seen.
    nodes = (0, 0, 1, 2, 3)
    journal = Journal(*[(f"spBv1.0/g/NBIRTH/n{node}", birth(node)) for node in nodes])
    log = journal.log(5)
    for _ in range(2):
        for node in nodes:
            assert log.find(of(f"g/NDATA/n{node}")) == told(node)
    assert journal.read == [(0, 5), (3, 4), (4, 5)]


@pytest.mark.parametrize(
    "name", ["NBIRTH/n/d", "DBIRTH/n", "NBIRTH", "NDATA/n", "BIRTH/n", "NBIRTHS/n"]
)
def test_what_is_no_birth_is_not_noted(name: str) -> None:
    log = Journal().log(0)
    log.note(of(f"g/{name}"), 0, told(0))
    assert log.offsets == {}
