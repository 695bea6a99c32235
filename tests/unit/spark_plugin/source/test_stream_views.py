"""Goal: a micro-batch asks the broker once what the topics hold, and one that is run again plans by
what they hold then."""

from __future__ import annotations

import gc

import pytest

from lakemq.broker_core.api.types import Columns
from lakemq.spark_plugin import worker_process
from lakemq.spark_plugin.errors import DataLossError
from lakemq.spark_plugin.source.options import parse_options
from tests.support.memory_journal import MemoryJournal

pytest.importorskip("pyspark")
COLUMNS = ("partition", "offset", "value")


class Counted(MemoryJournal):
    asked = 0

    def topics(self):
        self.asked += 1
        return super().topics()


@pytest.fixture
def journal(monkeypatch):
    from lakemq.spark_plugin.source import broker_reader

    found = Counted()
    monkeypatch.setitem(broker_reader._clients, "memory", found)
    found.create_topic("t", 2)
    for partition in range(2):
        found.append("t", partition, Columns([b"%d" % n for n in range(10)]))
    return found


@pytest.fixture
def a_task(monkeypatch):
    """As if the test ran in one; what tasks do to their worker is undone."""
    from pyspark import TaskContext

    monkeypatch.setattr(worker_process, "_frozen", [])
    monkeypatch.setattr(TaskContext, "get", classmethod(lambda _: object()))
    yield
    gc.unfreeze()


def stream(**options):
    from lakemq.spark_plugin.source.reader import StreamReader

    given = {"bootstrap": "memory", "subscribe": "t", "startingOffsets": "earliest", **options}
    return StreamReader(parse_options(given, streaming=True), COLUMNS)


def offsets(partitions):
    return [tuple(each.offsets[2:]) for each in partitions]


def test_a_trigger_asks_once(journal):
    reader = stream(maxOffsetsPerTrigger="8")
    start = reader.initialOffset()
    journal.asked = 0
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    journal.append("t", 0, Columns([b"late"]))
    assert reader.reportLatestOffset()["t"]["t"]["p"] == {"0": 10, "1": 10}
    assert offsets(reader.partitions(start, end)) == [(0, 0, 4), (1, 0, 4)]
    assert journal.asked == 1
    newer = reader.latestOffset(end, reader.getDefaultReadLimit())
    assert reader.reportLatestOffset()["t"]["t"]["p"] == {"0": 11, "1": 10}
    assert offsets(reader.partitions(end, newer)) == [(0, 4, 8), (1, 4, 7)]
    assert journal.asked == 2


def test_a_batch_that_is_run_again_is_held_against_the_journal_of_now(journal):
    first = stream()
    start = first.initialOffset()
    end = first.latestOffset(start, first.getDefaultReadLimit())
    journal.truncate_front("t", 1, 5)
    with pytest.raises(DataLossError, match="t-1: offsets 0 to 4 are gone"):
        stream().partitions(start, end)
    # Nor is the view of one batch taken for another one.
    older = {"v": 1, "t": {"t": {**end["t"]["t"], "p": {"0": 3, "1": 3}}}}
    with pytest.raises(DataLossError):
        first.partitions(start, older)


def test_a_task_freezes_what_its_worker_has_imported(journal, a_task):
    reader = stream()
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    pieces = reader.partitions(start, end)
    before = gc.get_freeze_count()
    assert sum(each.num_rows for each in reader.read(pieces[0])) == 10
    after = gc.get_freeze_count()
    assert after > before
    list(reader.read(pieces[1]))
    assert gc.get_freeze_count() <= after, "later tasks leave their garbage to be collected"
