"""Goal: the replica suite fails what is wrong: the journal passes it, and with one thing of it
replaced by something plausible it does not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakemq.broker_core.api.errors import CorruptBatch
from lakemq.broker_core.api.types import Offset
from lakemq.plugins.journal.log.partition_log import JournalLog
from lakemq.plugins.journal.log.reader import LogReader
from lakemq.plugins.journal.log.replica_batches import checked_batches
from lakemq.plugins.journal.log.writer import LogWriter
from lakemq.plugins.journal.segment.epochs import EpochTable
from lakemq.plugins.journal.segment.producers import ProducerTable
from lakemq.plugins.journal.settings import JournalSettings
from lakemq.plugins.journal.storage import JournalStorage
from lakemq.testing import ReplicaContract
from tests.contract.test_planted_defects import failures


def commits_what_is_not_durable(reader: LogReader, offset: int) -> bool:
    reader.high_watermark = offset
    return True


def reads_to_the_end(reader: LogReader, fresh: Any) -> None:
    reader.publish(fresh)


def takes_what_has_a_header(*arguments: Any, **bounds: Any) -> Any:
    return checked_batches(*arguments, **(bounds | {"last_epoch": -1, "epoch_max": 1 << 30}))


def takes_half(data: bytes, **bounds: Any) -> Any:
    for size in range(len(data), 0, -1):
        try:
            return checked_batches(data[:size], **bounds)
        except CorruptBatch:
            continue
    return []


async def cuts_in_memory_alone(log: JournalLog, offset: Offset) -> None:
    log._log_end_offset = offset
    log._reader.cut(offset)


def remembers_all(producers: ProducerTable, offset: int) -> set[int]:
    return set()


def lets_them_wait(log: JournalLog) -> None:
    pass


def notes_the_leaders_epoch(epochs: EpochTable, header: Any, end: int) -> None:
    epochs._add(9, end)


def rolls_nowhere(writer: LogWriter, offset: int) -> None:
    pass


def tells_nobody(log: JournalLog, callback: Callable[[], None]) -> None:
    pass


@pytest.mark.parametrize(
    ("place", "defect", "noticed"),
    [
        (None, None, set()),
        ("log.reader.LogReader.commit_to", commits_what_is_not_durable, "readable_is_what"),
        ("log.reader.LogReader.hold", reads_to_the_end, "readable_is_what"),
        ("log.partition_log.checked_batches", takes_what_has_a_header, "bad_batches_are"),
        ("log.partition_log.checked_batches", takes_half, "bad_batches_are_refused"),
        ("log.partition_log.JournalLog.truncate", cuts_in_memory_alone, "what_is_cut_stays"),
        ("segment.producers.ProducerTable.truncate", remembers_all, "producers_of_what_is"),
        ("log.partition_log.JournalLog._fail_waiting", lets_them_wait, "who_waits_is_told"),
        ("log.appends.Appends._to_be_answered", lambda log, waiting: waiting, "acks_end_with"),
        ("segment.epochs.EpochTable.note", notes_the_leaders_epoch, "a_copy_is_equal"),
        ("log.writer.LogWriter.roll_at", rolls_nowhere, "segments_begin_where"),
        ("log.appends.Appends._call_when_durable", tells_nobody, "each_flush_is_told"),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
async def test_replica(
    place: str | None,
    defect: Any,
    noticed: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if place is not None:
        monkeypatch.setattr("lakemq.plugins.journal." + place, defect)
    folders = iter(tmp_path / str(number) for number in range(100))

    def fresh() -> Callable[[], JournalStorage]:
        folder = next(folders)
        return lambda: JournalStorage(folder, JournalSettings(free_min_bytes=0))

    if place is None:
        assert await failures(ReplicaContract, make_storage=fresh) == set()
        return
    (name,) = [each for each in dir(ReplicaContract) if each.startswith("test_" + noticed)]
    with pytest.raises((Exception, pytest.fail.Exception)):
        async with asyncio.timeout(2):
            await getattr(ReplicaContract(), name)(fresh())
