"""Goal: whatever processes of one export do at the same time, every record lands once, and no file
that the table names is deleted.

The real loop (start, commits, dead letters, clean-up) runs over tables in memory, in every order
with two changes of turn for two processes (by day every other one), and in random orders, with
crashes and commits of unknown outcome, for two and three. A few random orders run over tables of
every real format.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Sequence

import pytest

from lakemq.spark_plugin.errors import ExportFenced
from lakemq.spark_plugin.export.decoding.rows import dead_letter_schema
from lakemq.spark_plugin.export.job import exporter, landing
from lakemq.spark_plugin.export.job.evolving import decoded_schema
from lakemq.spark_plugin.export.job.exporter import Exporter
from lakemq.spark_plugin.export.job.landing import OneTable
from lakemq.spark_plugin.export.job.run import make_exporter
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.export.maintenance import dead_letters
from lakemq.spark_plugin.export.tables.files import Folder
from lakemq.spark_plugin.export.tables.open_table import open_table
from lakemq.spark_plugin.export.tables.target import Target
from lakemq.spark_plugin.source import broker_reader as journal
from tests.support.memory_journal import MemoryJournal
from tests.support.seeds import seeds
from tests.support.spark.killed_export import run_here
from tests.support.spark.lake_tables import FORMATS, named_files, places, read_table, target_in
from tests.support.spark.stepped_exports import (
    Actor,
    Disk,
    Killed,
    MemoryFolder,
    MemoryTable,
    Stage,
    Store,
    Tasks,
    rows_of,
    stored_offsets,
)

pytestmark = pytest.mark.timeout(3600)
SEEDS = seeds(300)
PARTITIONS, RECORDS = 2, 6
EVERYTHING = sorted(itertools.product(range(PARTITIONS), range(RECORDS)))
STEPS_MAX = 12


@pytest.fixture
def topic(monkeypatch) -> MemoryJournal:
    client = MemoryJournal()
    monkeypatch.setitem(journal._clients, "memory", client)
    client.create_topic("t", PARTITIONS)
    for partition in range(PARTITIONS):
        for n in range(RECORDS):  # the real formats have bad ones at both ends of a commit
            bad = n in (0, 2, 3)
            client.append_values("t", partition, b"poison" if bad else b'{"n":%d}' % n)
    monkeypatch.setattr(exporter, "pause", lambda _: None)
    monkeypatch.setattr(exporter, "_TASK_MIN_BYTES", 1)
    monkeypatch.setattr(exporter, "Owner", NoOwner)
    return client


class NoOwner:
    """Processes here find each other by the tables alone."""

    def __init__(self, *_: object) -> None:
        pass

    def check_free(self) -> None:
        pass

    take = leave = check_free


def settings(target: Target) -> ExportSettings:
    return ExportSettings(
        "memory",
        "t",
        target,
        "e",
        format="json",
        value_schema="n bigint",
        commit_rows=6,
        take_over=True,
    )


class World:
    """Tables in memory, and what happens to the processes that write them."""

    def __init__(self, monkeypatch, bad: Sequence[tuple[int, int]]) -> None:
        self.stage, self.disk, self.bad = Stage(), Disk(), frozenset(bad)
        self.settings = settings(Target("parquet", path="/table"))
        self.table = Store("/table", decoded_schema(self.settings))
        self.dlq = Store("/dlq", dead_letter_schema())
        self.finished = 0
        """Processes that exported everything."""
        self._names = itertools.count()
        for module in (exporter, landing, dead_letters):
            monkeypatch.setattr(
                module, "Folder", lambda place, _: MemoryFolder(place, self.disk, self.stage)
            )
        monkeypatch.setattr(dead_letters, "stored_offsets", stored_offsets(self.disk))

    def open(self) -> Exporter:
        table, dlq = (MemoryTable(each, self.stage) for each in (self.table, self.dlq))
        run = Tasks(self.disk, self.stage, self.bad, lambda: f"{next(self._names)}.parquet")
        place = OneTable(self.settings, table, lambda _: None)
        return Exporter(self.settings, place, run, parallelism=4, dlq=dlq)

    def life(self) -> None:
        """A process, which tries again after an error, as under `--trigger`."""
        if run_to_end(self.open):
            self.finished += 1

    def look(self) -> None:
        """At every moment: no row is there twice, and no file that is named is gone."""
        for store in (self.table, self.dlq):
            rows = rows_of(store, self.disk)
            assert len(rows) == len(set(rows)), f"rows twice in {store.location}: {rows}"

    def check(self) -> None:
        """At the end, and after one more run."""
        for store in (self.table, self.dlq):
            store.fault, store.late = (lambda: ""), None
        self.life()
        self.look()
        assert rows_of(self.table, self.disk) == sorted(set(EVERYTHING) - self.bad)
        assert rows_of(self.dlq, self.disk) == sorted(self.bad)


def run_to_end(open_one: Callable[[], Exporter]) -> bool:
    """Whether the process exported everything, rather than being fenced."""
    export = open_one()
    try:
        export.start()
        for _ in range(STEPS_MAX):
            try:
                if export.step() is None:
                    return True
            except OSError:
                continue
    except (ExportFenced, OSError):
        pass
    except Killed:
        export.close = lambda: None  # type: ignore[method-assign]
        raise
    finally:
        export.close()
    return False


def turns(*counts: int) -> Callable[[Sequence[Actor]], Actor]:
    """The first process takes so many steps, then the next, in turn; then who is left."""
    plan = iter([name for turn, n in enumerate(counts) for name in [turn % 2] * n])

    def choose(running: Sequence[Actor]) -> Actor:
        wanted = next(plan, 0)
        return next((each for each in running if each.name == f"p{wanted}"), running[0])

    return choose


def steps_of_one(monkeypatch, bad: Sequence[tuple[int, int]]) -> int:
    """How many steps a process takes that is alone."""
    world = World(monkeypatch, bad)
    world.stage.add("p0", world.life)
    count = 0

    def counted() -> None:
        nonlocal count
        count += 1

    world.stage.play(lambda running: running[0], counted)
    world.check()
    return count


def test_two_processes_in_every_order_with_two_changes_of_turn(topic, monkeypatch) -> None:
    bad = [(0, 0), (0, 3), (1, 2), (1, 3)]
    steps = steps_of_one(monkeypatch, bad)
    every = 1 if len(SEEDS) > 300 else 2
    for first, second in itertools.product(range(0, steps, every), range(1, steps + 8)):
        world = World(monkeypatch, bad)
        for name in ("p0", "p1"):
            world.stage.add(name, world.life)
        try:
            world.stage.play(turns(first, second), world.look)
            assert world.finished, "both processes gave up"
            world.check()
        except BaseException:
            print(f"turns {first}, {second}")
            raise


class Chance:
    """What a seed makes of a run: whose turn it is, what fails, who is killed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.processes = self._random.choice((2, 2, 3))
        self.bad = self._random.sample(EVERYTHING, self._random.randrange(len(EVERYTHING)))
        self._faulty = self._random.random() < 0.6
        self._stay = self._random.choice((0.5, 0.8, 0.95))
        self._last = ""

    def fault(self) -> str:
        if not self._faulty or self._random.random() > 0.1:
            return ""
        return self._random.choice(("error", "landed", "late"))

    def deliver(self, stores: Sequence[Store]) -> None:
        for store in stores:
            if store.late is not None and self._random.random() < 0.2:
                store.deliver()

    def choose(self, running: Sequence[Actor]) -> Actor:
        same = [each for each in running if each.name == self._last]
        if not same or self._random.random() > self._stay:
            same = [self._random.choice(running)]
        actor = same[0]
        if self._faulty and self._random.random() < 0.01:
            actor.killed = True
        self._last = actor.name
        return actor


@pytest.mark.parametrize("seed", SEEDS)
def test_processes_in_random_orders(topic, monkeypatch, seed: int) -> None:
    chance = Chance(seed)
    world = World(monkeypatch, chance.bad)
    stores = (world.table, world.dlq)
    for store in stores:
        store.fault = chance.fault
    for number in range(chance.processes):
        world.stage.add(f"p{number}", world.life)

    def look() -> None:
        chance.deliver(stores)
        world.look()

    world.stage.play(chance.choose, look)
    world.check()


def points_in(monkeypatch, table: type, stage: Stage) -> None:
    """Before each step of the real tables' classes that others could notice, stand at a point."""

    def pausing(owner: type, name: str) -> None:
        call = getattr(owner, name)

        def paused(*arguments: object, **named: object) -> object:
            stage.point()
            return call(*arguments, **named)

        monkeypatch.setattr(owner, name, paused)

    for name in ("append", "reload"):
        pausing(table, name)
    for name in ("create", "delete", "delete_file", "names"):
        pausing(Folder, name)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("seed", seeds(40, divisor=10))
def test_processes_over_real_tables(topic, tmp_path, monkeypatch, kind: str, seed: int) -> None:
    chance, stage = Chance(seed), Stage()
    target = target_in(tmp_path, kind)
    wanted = settings(target)
    points_in(monkeypatch, type(open_table(target, decoded_schema(wanted))), stage)
    monkeypatch.setattr("lakemq.spark_plugin.export.tables.files.STRAY_AGE_MIN_S", -1.0)
    monkeypatch.setattr(os, "fsync", lambda _: None)

    def open_one() -> Exporter:
        return make_exporter(wanted, run_here, parallelism=4)

    for number in range(chance.processes):
        stage.add(f"p{number}", lambda: run_to_end(open_one) and None)

    def look() -> None:
        assert all(path.exists() for path in named_files(target)), "a committed file is gone"

    stage.play(chance.choose)
    look()
    run_to_end(open_one)
    look()
    dead = target.dead_letters("")
    assert places(read_table(target)) == [(p, n) for p, n in EVERYTHING if n in (1, 4, 5)]
    assert places(read_table(dead)) == [(p, n) for p, n in EVERYTHING if n in (0, 2, 3)]
