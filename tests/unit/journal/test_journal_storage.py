"""The journal keeps the storage contract, on a real folder; and what is its own besides."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker_core.api.errors import StartupError, UnknownPartition, UnknownTopic
from broker_core.api.ports import Storage
from broker_core.api.types import Acks, TopicConfig, TopicInfo
from plugins.journal.settings import JournalSettings
from plugins.journal.storage import JournalStorage
from tests.contract.storage_contract import (
    TOPIC,
    MakeStorage,
    StorageContract,
    append,
    batch_of,
    read_all,
)


@pytest.fixture
def make_storage(tmp_path: Path) -> MakeStorage:
    def make() -> Storage:
        return JournalStorage(tmp_path / "journal", JournalSettings(free_bytes_min=0))

    return make


class TestJournal(StorageContract):
    pass


class TestJournalReadingFromDisk(StorageContract):
    """The same with no tail in memory and the smallest segments."""

    @pytest.fixture
    def make_storage(self, tmp_path: Path) -> MakeStorage:
        def make() -> Storage:
            settings = JournalSettings(
                tail_bytes_max=0, index_interval_bytes=1024, free_bytes_min=0
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
        await storage.open_partition(TOPIC, -1)
    await storage.stop()


async def test_segments_of_many_sizes_read_back(make_storage: MakeStorage) -> None:
    storage = make_storage()
    await storage.start()
    topic = TopicInfo("small", "c" * 32, 1, TopicConfig(segment_bytes_max=4096, retention_ms=None))
    log = await storage.open_partition(topic, 0)
    values = [bytes([n % 251]) * (n * 37 % 6000) for n in range(80)]
    await asyncio.gather(*(append(log, batch_of(value)) for value in values))
    await storage.stop()
    storage = make_storage()
    await storage.start()
    log = await storage.open_partition(topic, 0)
    assert log.status().segments > 30
    for bytes_max in (1, 5000, 1 << 20):
        assert [record.value for record in await read_all(log, bytes_max)] == values
    await storage.stop()


async def test_appends_that_wait_when_a_topic_is_deleted_are_told(
    make_storage: MakeStorage,
) -> None:
    storage = make_storage()
    await storage.start()
    log = await storage.open_partition(TOPIC, 0)
    waiting = [append(log, batch_of(b"%d" % n)) for n in range(10)]
    await storage.delete_topic(TOPIC.topic_id)
    for outcome in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(outcome, UnknownTopic)
    await storage.stop()


async def test_changed_config_is_obeyed(make_storage: MakeStorage) -> None:
    storage = make_storage()
    await storage.start()
    log = await storage.open_partition(TOPIC, 0)
    await append(log, batch_of(b"x" * 1000))
    config = TopicConfig(segment_bytes_max=1000)
    await storage.configure_topic(TopicInfo(TOPIC.name, TOPIC.topic_id, 3, config))
    await append(log, batch_of(b"x" * 1000))
    assert log.status().segments == 2
    await storage.stop()


async def test_memory_acks_are_on_disk_after_stop(make_storage: MakeStorage) -> None:
    storage = make_storage()
    await storage.start()
    log = await storage.open_partition(TOPIC, 0)
    answer = await append(log, batch_of(b"a"), Acks.MEMORY)
    assert answer.acks is Acks.MEMORY
    await storage.stop()
    storage = make_storage()
    await storage.start()
    log = await storage.open_partition(TOPIC, 0)
    assert [record.value for record in await read_all(log)] == [b"a"]
    await storage.stop()
