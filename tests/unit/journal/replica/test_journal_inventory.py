"""Goal: a replica that this disk held and has no longer, or that it can't vouch for, is told apart
from one that is new; what is deleted is gone and told no more."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from lakemq.broker_core.api.errors import Unavailable
from lakemq.broker_core.api.records.batch import read_header
from lakemq.broker_core.api.types import Acks, TopicConfig, TopicInfo
from lakemq.plugins.journal.inventory import Inventory, decode_inventory
from lakemq.plugins.journal.settings import JournalSettings
from lakemq.plugins.journal.storage import JournalStorage
from lakemq.testing.storage import append, batch_of, open_alone, read_all
from tests.unit.journal.simulated_disk import SimulatedDisk

TOPIC = TopicInfo("t", "a" * 32, 3, TopicConfig(retention_ms=None))
OTHER = TopicInfo("o", "b" * 32, 1, TopicConfig(retention_ms=None))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "journal"


async def started(folder: Path) -> JournalStorage:
    storage = JournalStorage(folder, JournalSettings(free_min_bytes=0))
    await storage.start()
    return storage


async def filled(folder: Path) -> None:
    storage = await started(folder)
    for topic, partition in ((TOPIC, 0), (TOPIC, 1), (OTHER, 0)):
        log = await open_alone(storage, topic, partition)
        for value in (b"a", b"b", b"c"):
            await append(log, batch_of(value))
    assert not storage.disowned()
    await storage.stop()


async def test_a_missing_folder_is_told_until_it_is_there_again(folder: Path) -> None:
    await filled(folder)
    shutil.rmtree(folder / "topics" / TOPIC.topic_id / "1")
    for _ in range(2):
        storage = await started(folder)
        (lost,) = storage.disowned()
        assert (lost.topic_id, lost.partition, lost.missing) == (TOPIC.topic_id, 1, True)
        assert await storage.stored_partitions() == {(TOPIC.topic_id, 0), (OTHER.topic_id, 0)}
        await storage.stop()
    storage = await started(folder)
    log = await storage.open_partition(TOPIC, 1)
    assert log.log_end_offset == 0
    assert (TOPIC.topic_id, 1) in await storage.stored_partitions()
    await storage.stop()
    storage = await started(folder)
    assert not storage.disowned()
    await storage.stop()


async def test_an_emptied_folder_is_missing_too(folder: Path) -> None:
    await filled(folder)
    for path in (folder / "topics" / TOPIC.topic_id / "0").iterdir():
        path.unlink()
    storage = await started(folder)
    assert [(each.partition, each.missing) for each in storage.disowned()] == [(0, True)]
    await storage.stop()


async def test_damage_is_told_and_stays_as_it_is(folder: Path) -> None:
    """A log shorter than its checkpoint says is fenced; a whole batch behind a torn one was cut."""
    await filled(folder)
    first = folder / "topics" / TOPIC.topic_id / "0"
    second = folder / "topics" / TOPIC.topic_id / "1"
    (log,) = first.glob("*.log")
    log.write_bytes(log.read_bytes()[:-1])
    (second / "checkpoint").unlink()
    (log,) = second.glob("*.log")
    data = bytearray(log.read_bytes())
    data[read_header(bytes(data)).total_bytes + 85] ^= 1
    log.write_bytes(data)
    storage = await started(folder)
    told = {each.partition: (each.reason, each.missing) for each in storage.disowned()}
    assert "were durable" in told[0][0] and "behind the tear" in told[1][0]
    assert not any(missing for _, missing in told.values()) and len(told) == 2
    opened = await storage.open_partition(TOPIC, 0)
    assert opened.status().state == "fenced"
    await storage.delete_partition(TOPIC.topic_id, 0)
    again = await storage.open_partition(TOPIC, 0)
    assert (again.status().state, again.log_end_offset) == ("online", 0)
    await storage.stop()


async def test_a_deleted_replica_is_gone_and_the_others_stay(folder: Path) -> None:
    await filled(folder)
    storage = await started(folder)
    log = await open_alone(storage, TOPIC, 0)
    await storage.delete_partition(TOPIC.topic_id, 0)
    await storage.delete_partition(TOPIC.topic_id, 2)  # which it never held
    with pytest.raises(Unavailable):
        await log.append(batch_of(b"x"), read_header(batch_of(b"x")), Acks.LEADER)
    assert not (folder / "topics" / TOPIC.topic_id / "0").exists()
    assert not list((folder / "deleted").iterdir())
    assert await storage.stored_partitions() == {(TOPIC.topic_id, 1), (OTHER.topic_id, 0)}
    assert len(await read_all(await open_alone(storage, TOPIC, 1))) == 3
    await storage.delete_topic(TOPIC.topic_id)
    assert await storage.stored_partitions() == {(OTHER.topic_id, 0)}
    await storage.stop()
    storage = await started(folder)
    assert not storage.disowned()
    assert await storage.stored_partitions() == {(OTHER.topic_id, 0)}
    await storage.stop()


async def test_a_journal_without_inventory_gets_one(folder: Path) -> None:
    await filled(folder)
    (folder / "inventory").unlink()
    storage = await started(folder)
    assert not storage.disowned()
    await storage.stop()
    keys, _, _ = decode_inventory((folder / "inventory").read_bytes())
    assert keys == {(TOPIC.topic_id, 0), (TOPIC.topic_id, 1), (OTHER.topic_id, 0)}


@pytest.mark.parametrize("seed", range(40))
def test_what_was_added_is_there_after_a_crash(seed: int) -> None:
    """Every `add` and `remove` that returned counts; the one under way may."""
    rng = random.Random(seed)
    disk, path = SimulatedDisk(rng), Path("/journal")
    disk.make_folder(path)
    disk.sync_folder(Path("/"))
    held: set[tuple[str, int]] = set()
    for _ in range(4):
        inventory = Inventory(disk, path)
        inventory.load(held)
        assert inventory.partitions() == held
        for _ in range(rng.randrange(8)):
            key = ("t", rng.randrange(5))
            if rng.random() < 0.7:
                inventory.add(key)
                held.add(key)
            else:
                inventory.remove([key])
                held.discard(key)
        if rng.random() < 0.5:
            disk.fault = lambda call, file: 5 if call == "sync" else 0
            with pytest.raises(OSError):
                inventory.add(("t", 99))
        disk.lose_power()
        reread = Inventory(disk, path)
        missing = reread.load(())
        assert missing - {("t", 99)} == held
        reread.remove([("t", 99)])


def test_damaged_lines_are_left_out_and_the_file_is_kept_short() -> None:
    rng = random.Random(1)
    disk, path = SimulatedDisk(rng), Path("/journal")
    disk.make_folder(path)
    inventory = Inventory(disk, path)
    inventory.load(())
    for number in range(3):
        inventory.add(("t", number))
    data = disk.read(path / "inventory")
    assert decode_inventory(data)[0] == {("t", 0), ("t", 1), ("t", 2)}
    assert decode_inventory(data[:-1])[0] == {("t", 0), ("t", 1)}
    flipped = data.replace(b"+ t 1", b"+ t 7")
    assert decode_inventory(flipped)[0] == {("t", 0), ("t", 2)}
    assert decode_inventory(b"something else\n") == (set(), 0, 0)
    for _ in range(1100):
        inventory.remove([("t", 0)])
        inventory.add(("t", 0))
    again = Inventory(disk, path)
    assert again.load([("t", 0), ("t", 1)]) == {("t", 2)}
    assert len(disk.read(path / "inventory")) < 200
