"""The journal keeps the storage contract, on a real folder; and what is its own besides."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from lakemq.broker_core.api.errors import (
    StartupError,
    StorageFenced,
    StorageFull,
    UnknownPartition,
    UnknownTopic,
)
from lakemq.broker_core.api.ports import Storage
from lakemq.broker_core.api.types import Acks, Offset, TopicConfig, TopicInfo
from lakemq.plugins.journal.segment.files import DiskFiles
from lakemq.plugins.journal.settings import JournalSettings
from lakemq.plugins.journal.storage import JournalStorage
from lakemq.testing.storage import (
    TOPIC,
    MakeStorage,
    StorageContract,
    append,
    batch_of,
    open_alone,
    read_all,
)
from tests.unit.journal.rig import until


@pytest.fixture
def make_storage(tmp_path: Path) -> MakeStorage:
    def make() -> Storage:
        return JournalStorage(tmp_path / "journal", JournalSettings(free_min_bytes=0))

    return make


class TestJournal(StorageContract):
    pass


class TestJournalReadingFromDisk(StorageContract):
    """The same with no tail in memory and the smallest segments."""

    @pytest.fixture
    def make_storage(self, tmp_path: Path) -> MakeStorage:
        def make() -> Storage:
            settings = JournalSettings(
                tail_max_bytes=0, index_interval_bytes=1024, free_min_bytes=0
            )
            return JournalStorage(tmp_path / "journal", settings)

        return make


async def test_a_second_process_is_kept_out(make_storage: MakeStorage) -> None:
    first, second = make_storage(), make_storage()
    await first.start()
    with pytest.raises(StartupError, match="in use by another process"):
        await second.start()
    await first.stop()
    await second.start()
    await second.stop()


async def test_a_folder_that_cannot_be_made_is_a_startup_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    storage = JournalStorage(tmp_path / "file" / "journal", JournalSettings())
    with pytest.raises(StartupError, match="journal in "):
        await storage.start()


async def test_the_same_partition_opened_twice_at_once_is_one_log(
    make_storage: MakeStorage,
) -> None:
    storage = make_storage()
    await storage.start()
    first, second = await asyncio.gather(
        storage.open_partition(TOPIC, 0), storage.open_partition(TOPIC, 0)
    )
    assert first is second
    with pytest.raises(UnknownPartition):
        await open_alone(storage, TOPIC, -1)
    await storage.stop()


async def test_segments_of_many_sizes_read_back(make_storage: MakeStorage) -> None:
    storage = make_storage()
    await storage.start()
    topic = TopicInfo("small", "c" * 32, 1, TopicConfig(segment_max_bytes=4096, retention_ms=None))
    log = await open_alone(storage, topic, 0)
    values = [bytes([n % 251]) * (n * 37 % 6000) for n in range(80)]
    await asyncio.gather(*(append(log, batch_of(value)) for value in values))
    await storage.stop()
    storage = make_storage()
    await storage.start()
    log = await open_alone(storage, topic, 0)
    assert log.status().segments > 30
    for bytes_max in (1, 5000, 1 << 20):
        assert [record.value for record in await read_all(log, bytes_max)] == values
    await storage.stop()


async def test_appends_that_wait_when_a_topic_is_deleted_are_told(
    make_storage: MakeStorage,
) -> None:
    storage = make_storage()
    await storage.start()
    log = await open_alone(storage, TOPIC, 0)
    waiting = [append(log, batch_of(b"%d" % n)) for n in range(10)]
    await storage.delete_topic(TOPIC.topic_id)
    for outcome in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(outcome, UnknownTopic)
    await storage.stop()


async def test_changed_config_is_obeyed(make_storage: MakeStorage) -> None:
    storage = make_storage()
    await storage.start()
    log = await open_alone(storage, TOPIC, 0)
    await append(log, batch_of(b"x" * 1000))
    config = TopicConfig(segment_max_bytes=1000)
    await storage.configure_topic(TopicInfo(TOPIC.name, TOPIC.topic_id, 3, config))
    await append(log, batch_of(b"x" * 1000))
    assert log.status().segments == 2
    await storage.stop()


async def test_memory_acks_are_on_disk_after_stop(make_storage: MakeStorage) -> None:
    storage = make_storage()
    await storage.start()
    log = await open_alone(storage, TOPIC, 0)
    answer = await append(log, batch_of(b"a"), Acks.MEMORY)
    assert answer.acks is Acks.MEMORY
    await storage.stop()
    storage = make_storage()
    await storage.start()
    log = await open_alone(storage, TOPIC, 0)
    assert [record.value for record in await read_all(log)] == [b"a"]
    await storage.stop()


def busy_settings(**more: int) -> JournalSettings:
    """Background work every 100 ms."""
    return JournalSettings(maintenance_interval_ms=100, **({"free_min_bytes": 0} | more))  # type: ignore[arg-type]


async def test_background_work_retains_and_compacts(tmp_path: Path) -> None:
    storage = JournalStorage(tmp_path, busy_settings(compaction_lag_max_ms=0))
    await storage.start()
    small = TopicConfig(segment_max_bytes=500, retention_ms=None, retention_bytes=1000)
    shrinking = await open_alone(storage, TopicInfo("s", "1" * 32, 1, small), 0)
    keyed = TopicConfig(segment_max_bytes=500, retention_ms=None, cleanup="compact")
    compacting = await open_alone(storage, TopicInfo("c", "2" * 32, 1, keyed), 0)
    for number in range(40):
        await append(shrinking, batch_of(b"%02d" % number))
        await append(compacting, batch_of(b"%02d" % number, keys=[b"key"]))
    await until(lambda: shrinking.status().size_bytes <= 1000)
    await until(lambda: compacting.status().size_bytes <= 1000)
    assert [record.offset for record in await read_all(shrinking)][-1] == 39
    assert [record.value for record in await read_all(compacting)][-1] == b"39"
    await storage.stop()


async def test_background_work_seals_by_age(tmp_path: Path) -> None:
    storage = JournalStorage(tmp_path, busy_settings())
    await storage.start()
    config = TopicConfig(segment_age_max_ms=1, retention_ms=None)
    log = await open_alone(storage, TopicInfo("t", "3" * 32, 1, config), 0)
    await append(log, batch_of(b"a"))
    await until(lambda: log.status().segments == 2)
    await storage.stop()


async def test_little_free_space_refuses_appends_until_there_is_more(tmp_path: Path) -> None:
    storage = JournalStorage(tmp_path, busy_settings(free_min_bytes=1 << 60))
    await storage.start()
    log = await open_alone(storage, TOPIC, 0)
    await until(lambda: log.status().state == "full")
    with pytest.raises(StorageFull):
        await append(log, batch_of(b"a"))
    await storage.stop()


async def test_a_partition_that_cannot_be_read_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = JournalStorage(tmp_path, busy_settings())
    await storage.start()
    for partition in (0, 1):
        await append(await open_alone(storage, TOPIC, partition), batch_of(b"a"))
    await storage.stop()
    broken = tmp_path / "topics" / TOPIC.topic_id / "0"
    read = DiskFiles.read

    def fail(files: DiskFiles, path: Path) -> bytes:
        if path.parent == broken:
            raise OSError(errno.EIO, "simulated")
        return read(files, path)

    monkeypatch.setattr(DiskFiles, "read", fail)
    storage = JournalStorage(tmp_path, busy_settings())
    await storage.start()
    assert (await open_alone(storage, TOPIC, 1)).high_watermark == 1
    with pytest.raises(StorageFenced, match="cannot be opened"):
        await open_alone(storage, TOPIC, 0)
    monkeypatch.undo()
    assert (await open_alone(storage, TOPIC, 0)).high_watermark == 1
    await storage.stop()


async def test_an_interrupted_creation_is_done_again(make_storage: MakeStorage) -> None:
    storage = make_storage()
    folder = storage.path / "topics" / TOPIC.topic_id / "0"  # type: ignore[attr-defined]
    folder.mkdir(parents=True)
    (folder / f"{0:020d}-000000.log").touch()
    await storage.start()
    log = await open_alone(storage, TOPIC, 0)
    assert log.status().detail == ""
    assert (await append(log, batch_of(b"a"))).base_offset == 0
    await storage.stop()


async def test_batches_of_sixteen_mebibytes(make_storage: MakeStorage) -> None:
    storage = make_storage()
    await storage.start()
    log = await open_alone(storage, TOPIC, 0)
    largest = batch_of(b"x" * (16 * 1024 * 1024 - 88))
    assert len(largest) == 16 * 1024 * 1024
    await append(log, largest)
    await append(log, batch_of(b"small"))
    assert (await log.fetch(Offset(0), bytes_max=1)).data[80:] == largest[80:]
    await storage.stop()
