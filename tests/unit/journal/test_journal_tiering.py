"""Tiering to a folder: copies, transparent reads, both retentions, failures."""

from __future__ import annotations

import asyncio
import errno
import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import google_crc32c
import pytest

from lakemq.broker_core.api.errors import ConfigError, CorruptLog, OffsetOutOfRange, Unavailable
from lakemq.broker_core.api.records.batch import RecordBatch, split
from lakemq.broker_core.api.types import TopicConfig
from lakemq.plugins.journal.maintenance.housekeeping import retain
from lakemq.plugins.journal.segment.files import DiskFiles
from lakemq.plugins.journal.segment.manifest import decode_manifest, encode_manifest
from lakemq.plugins.journal.segment.sums import BLOCK_BYTES
from lakemq.plugins.journal.segment.walk import BadBatch
from lakemq.plugins.journal.settings import JournalSettings
from lakemq.plugins.journal.storage import JournalStorage
from lakemq.plugins.journal.tiering.object_store import (
    FolderStore,
    StoreError,
    name_of,
    open_store,
)
from lakemq.plugins.journal.tiering.uploader import Tier, delete_topic_objects
from lakemq.testing.storage import TOPIC, append, batch_of, open_alone, read_all
from tests.unit.journal.rig import FOLDER, STORE, TOPIC_ID, Rig, until

VALUES = [b"value %02d" % number for number in range(21)]


@pytest.fixture
def rig(loop: asyncio.AbstractEventLoop) -> Rig:
    """Five records to a segment, one to a batch."""
    config = TopicConfig(segment_max_bytes=500)
    rig = Rig(loop, config=config, tail_max_bytes=0, tiers=True)
    for value in VALUES:
        rig.append_durably(value)
        rig.now += 10
    return rig


def tier(rig: Rig) -> Tier:
    assert rig.store is not None
    return Tier(rig.store, rig.log.folder)


def copy_all(rig: Rig) -> int:
    count = 0
    while tier(rig).copy_next(1 << 62):
        count += 1
    return count


def drop_local(rig: Rig, bytes_max: int | None = 0, age_max_ms: int | None = None) -> int:
    end = rig.log.checkpoint_offset()
    return tier(rig).drop_local(
        rig.now, end, bytes_max=bytes_max, age_max_ms=age_max_ms, retention_by="append"
    )


def values(rig: Rig, offset: int = 0) -> list[bytes | None]:
    found: list[bytes | None] = []
    while offset < rig.log.high_watermark:
        result = rig.fetch(offset)
        for position, header in split(result.data):
            batch = RecordBatch(result.data[position : position + header.total_bytes])
            found += batch.values()
        offset = result.next_offset
    return found


def objects(rig: Rig) -> list[str]:
    assert rig.store is not None
    return [name for name in rig.store.names(f"{TOPIC_ID}/") if name.endswith(".log")]


def test_sealed_segments_are_copied_and_the_manifest_tells_where(rig: Rig) -> None:
    assert copy_all(rig) == 4
    manifest = decode_manifest(rig.disk.read(FOLDER / "manifest"))
    for segment in manifest.segments[:-1]:
        place = segment.remote
        assert place is not None and rig.store is not None
        assert place.uri == f"file:///store/{TOPIC_ID}/0/{segment.log_name}"
        data = rig.disk.read(STORE / name_of(rig.store, place.uri))
        assert data == rig.disk.read(FOLDER / segment.log_name)
        assert (place.position, place.size_bytes) == (0, len(data))
        assert place.crc32c == google_crc32c.value(data)
    assert manifest.segments[-1].remote is None
    copy = rig.disk.read(STORE / TOPIC_ID / "0" / "manifest")
    assert copy == rig.disk.read(FOLDER / "manifest")


@pytest.mark.parametrize("crash", ["", "kill", "lose_power"])
def test_reads_are_transparent_when_local_files_are_gone(rig: Rig, crash: str) -> None:
    copy_all(rig)
    assert drop_local(rig) == 4
    assert len([name for name in rig.disk.names(FOLDER) if name.endswith(".log")]) == 1
    if crash:
        getattr(rig, crash)()
    assert values(rig) == VALUES
    assert values(rig, 7) == VALUES[7:]
    found = rig.loop.run_until_complete(rig.log.offset_for_timestamp(1_000_000 + 70))
    assert found == 7
    assert rig.log.folder.is_remote(0) and not rig.log.folder.is_remote(20)
    assert rig.log.status().detail == ""
    assert rig.append_durably(b"next").base_offset == 21


def test_local_files_go_by_size_and_age_but_not_before_they_are_copied(rig: Rig) -> None:
    assert drop_local(rig) == 0
    tier(rig).copy_next(1 << 62)
    tier(rig).copy_next(1 << 62)
    assert drop_local(rig, bytes_max=None, age_max_ms=10_000) == 0
    assert drop_local(rig, bytes_max=None, age_max_ms=130) == 1
    assert drop_local(rig) == 1
    assert values(rig) == VALUES


def test_retention_deletes_remote_segments_too(rig: Rig) -> None:
    copy_all(rig)
    drop_local(rig)
    config = TopicConfig(retention_bytes=1200, retention_ms=None)
    assert retain(rig.log.folder, config, rig.now, rig.log.checkpoint_offset()) == 2
    assert len(objects(rig)) == 4
    rig.lose_power()
    assert len(rig.log.folder.manifest.garbage) == 2
    assert tier(rig).sweep() == 2
    assert len(objects(rig)) == 2 and rig.log.folder.manifest.garbage == ()
    with pytest.raises(OffsetOutOfRange):
        rig.fetch(0)
    assert values(rig, 10) == VALUES[10:]


def test_a_store_that_fails_is_retriable_and_harmless(rig: Rig) -> None:
    tier(rig).copy_next(1 << 62)
    drop_local(rig)
    rig.disk.fault = lambda call, path: errno.EIO if STORE in path.parents else 0
    with pytest.raises(StoreError):
        tier(rig).copy_next(1 << 62)
    with pytest.raises(Unavailable, match="object store"):
        rig.fetch(0)
    assert values(rig, 5) == VALUES[5:]
    rig.disk.fault = None
    assert values(rig) == VALUES


def test_a_lost_object_is_reported_with_its_offsets(rig: Rig) -> None:
    copy_all(rig)
    drop_local(rig)
    rig.disk.remove(STORE / objects(rig)[1])
    with pytest.raises(CorruptLog, match=r"offsets 5\.\.9 are gone"):
        rig.fetch(6)
    assert values(rig, 10) == VALUES[10:]


def test_a_damaged_object_is_reported_and_not_served(loop: asyncio.AbstractEventLoop) -> None:
    rig = Rig(loop, config=TopicConfig(segment_max_bytes=70_000), tail_max_bytes=0, tiers=True)
    large = [bytes([number]) * (2 * BLOCK_BYTES) for number in range(5)]
    for value in large:
        rig.append_durably(value)
    assert copy_all(rig) == 2
    drop_local(rig)
    rig.disk.flip_bit(STORE / objects(rig)[0], 90, 1)
    with pytest.raises(CorruptLog, match=r"offsets 0\.\.0 are damaged.*bytes 0\.\.16384 of file:"):
        rig.fetch(0)
    assert values(rig, 1) == large[1:]


def forget_sums(rig: Rig) -> None:
    for name in rig.disk.names(FOLDER):
        if name.endswith(".sums"):
            rig.disk.remove(FOLDER / name)


def swap(rig: Rig, name: str, data: bytes) -> None:
    with closing(rig.disk.create(STORE / name)) as handle:
        handle.write_at(0, [data])


@pytest.mark.parametrize("forget", [False, True])
def test_a_segment_of_another_partition_is_not_served(
    rig: Rig, loop: asyncio.AbstractEventLoop, forget: bool
) -> None:
    """The same offsets, sizes and times: only the values tell whose it is."""
    other = Rig(loop, config=rig.config, tail_max_bytes=0, tiers=True)
    for value in VALUES:
        other.append_durably(value.swapcase())
        other.now += 10
    for each in (rig, other):
        copy_all(each)
        drop_local(each)
    name = objects(rig)[1]
    theirs = other.disk.read(STORE / name)
    assert len(theirs) == len(rig.disk.read(STORE / name))
    swap(rig, name, theirs)
    if forget:
        forget_sums(rig)
    with pytest.raises(CorruptLog, match=rf"5-000000.*offsets 5\.\.9 are gone.*{name} is not the"):
        rig.fetch(6)
    with pytest.raises(CorruptLog, match=f"{name} is not the object that was stored"):
        rig.loop.run_until_complete(rig.log.offset_for_timestamp(1_000_070))
    assert values(rig, 10) == VALUES[10:]
    swap(rig, name, theirs[:100])
    with pytest.raises(CorruptLog, match=f"{name} is not the object that was stored: .*bytes"):
        rig.fetch(6)


def test_sums_are_made_again_when_they_are_lost_or_wrong(rig: Rig) -> None:
    copy_all(rig)
    drop_local(rig)
    path = FOLDER / rig.log.folder.manifest.segments[0].sums_name
    right = rig.disk.read(path)
    rig.disk.flip_bit(path, 35, 1)
    assert values(rig) == VALUES and rig.disk.read(path) == right
    forget_sums(rig)
    rig.kill()
    assert values(rig) == VALUES and rig.disk.read(path) == right


def test_sums_go_with_their_segment(rig: Rig) -> None:
    copy_all(rig)
    drop_local(rig)
    config = TopicConfig(retention_bytes=1200, retention_ms=None)
    assert retain(rig.log.folder, config, rig.now, rig.log.checkpoint_offset()) == 2
    assert len([name for name in rig.disk.names(FOLDER) if name.endswith(".sums")]) == 2


def test_a_manifest_of_another_partition_in_the_store_is_not_taken(rig: Rig) -> None:
    copy_all(rig)
    drop_local(rig, bytes_max=1000)
    path = f"{TOPIC_ID}/0/manifest"
    theirs = replace(decode_manifest(rig.disk.read(STORE / path)), partition=1)
    swap(rig, path, encode_manifest(theirs))
    rig.disk.remove(FOLDER / "manifest")
    assert "is of partition 1" in rig.kill().status().detail
    assert rig.log.log_start_offset > 0


def test_a_copy_that_differs_is_not_believed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    put = FolderStore.put

    def bad_put(store: FolderStore, name: str, chunks: object) -> None:
        data = bytearray(b"".join(chunks))  # type: ignore[call-overload]
        data[50] ^= 1
        put(store, name, iter([bytes(data)]))

    monkeypatch.setattr(FolderStore, "put", bad_put)
    with pytest.raises(StoreError, match="differs"):
        tier(rig).copy_next(1 << 62)
    assert all(segment.remote is None for segment in rig.log.folder.manifest.segments)


def test_a_damaged_segment_is_not_copied(rig: Rig) -> None:
    rig.disk.flip_bit(rig.segment_path(0), 90, 1)
    with pytest.raises(BadBatch):
        tier(rig).copy_next(1 << 62)
    assert objects(rig) == []


def test_a_lost_manifest_is_completed_from_its_copy(rig: Rig) -> None:
    copy_all(rig)
    drop_local(rig, bytes_max=1000)
    assert rig.log.folder.is_remote(0) and not rig.log.folder.is_remote(19)
    rig.disk.remove(FOLDER / "manifest")
    assert "manifest is missing" in rig.kill().status().detail
    assert values(rig) == VALUES


def test_without_a_store_remote_segments_are_unavailable(rig: Rig) -> None:
    copy_all(rig)
    drop_local(rig)
    rig.store = None
    rig.kill()
    with pytest.raises(Unavailable, match="none is configured"):
        rig.fetch(0)
    assert values(rig, 20) == VALUES[20:]


def test_topic_objects_are_deleted(rig: Rig) -> None:
    copy_all(rig)
    assert rig.store is not None
    assert delete_topic_objects(rig.store, TOPIC_ID) == 5
    assert delete_topic_objects(rig.store, TOPIC_ID) == 0


@pytest.mark.parametrize("url", ["folder", "nonsense://x", "s3://"])
def test_a_wrong_url_is_a_config_error(url: str) -> None:
    with pytest.raises(ConfigError, match="tiering_url"):
        open_store(DiskFiles(), url, {})


async def test_deleted_topic_leaves_nothing_in_the_store(tmp_path: Path) -> None:
    """Through the storage engine and its background work, on real folders."""
    settings = JournalSettings(
        tiering_url=(tmp_path / "store").as_uri(), tiering_local_bytes=0,
        maintenance_interval_ms=100, free_min_bytes=0,
    )  # fmt: skip
    storage = JournalStorage(tmp_path / "journal", settings)
    await storage.start()
    topic = type(TOPIC)("t", TOPIC.topic_id, 1, TopicConfig(segment_max_bytes=500))
    log = await open_alone(storage, topic, 0)
    for _ in range(12):
        data = batch_of(b"x" * 100, times=[2_000_000_000_000])
        await append(log, data)
    folder = tmp_path / "journal" / "topics" / topic.topic_id / "0"
    await until(lambda: len(list(folder.glob("*.log"))) == 1)
    assert len(await read_all(log)) == 12
    stored = tmp_path / "store" / topic.topic_id
    copy = json.loads((stored / "0" / "manifest").read_text().partition("\n")[2])
    assert [segment["local"] for segment in copy["segments"]][-2:] == [False, True]
    await storage.delete_topic(topic.topic_id)
    deleted = tmp_path / "journal" / "deleted"
    await until(lambda: not list(stored.rglob("*.log")) and not list(deleted.iterdir()))
    await storage.stop()


async def test_internal_topics_stay_local(tmp_path: Path) -> None:
    """What the broker alone may read is not for those who may read the object store."""
    settings = JournalSettings(
        tiering_url=(tmp_path / "store").as_uri(), tiering_local_bytes=0,
        maintenance_interval_ms=100, free_min_bytes=0,
    )  # fmt: skip
    storage = JournalStorage(tmp_path / "journal", settings)
    await storage.start()
    own, users = "0" * 31 + "1", "0" * 31 + "2"
    for name, topic_id in (("_lakemq_staged", own), ("t", users)):
        topic = type(TOPIC)(name, topic_id, 1, TopicConfig(segment_max_bytes=500))
        log = await open_alone(storage, topic, 0)
        for _ in range(12):
            await append(log, batch_of(b"x" * 100, times=[2_000_000_000_000]))
    folder = tmp_path / "journal" / "topics"
    await until(lambda: len(list((folder / users / "0").glob("*.log"))) == 1)
    assert not list((tmp_path / "store").rglob(f"{own}/**/*.log"))
    assert len(list((folder / own / "0").glob("*.log"))) > 1
    await storage.stop()


# ------------------------------------------------------------ replicas


def forget_copies(rig: Rig) -> None:
    """What another replica has, which has stored nothing itself: the same segments."""
    folder = rig.log.folder
    with folder.changing:
        for segment in folder.manifest.segments:
            if segment.remote is not None:
                rig.disk.remove(folder.path / segment.sums_name)
        whole = (replace(each, remote=None) for each in folder.manifest.segments)
        folder.commit(folder.manifest.with_segments(*whole))


def follower(rig: Rig) -> Tier:
    assert rig.store is not None
    return Tier(rig.store, rig.log.folder, leads=False)


def stored_bytes(rig: Rig) -> dict[str, bytes]:
    assert rig.store is not None
    return {name: rig.store.read_all(name) for name in rig.store.names(f"{TOPIC_ID}/")}


@pytest.mark.parametrize("crash", ["", "kill", "lose_power"])
def test_a_replica_adopts_what_its_leader_stored_and_writes_nothing(rig: Rig, crash: str) -> None:
    copy_all(rig)
    before, there = rig.log.folder.manifest, stored_bytes(rig)
    forget_copies(rig)
    assert follower(rig).adopt(1 << 62) == 4
    if crash:
        getattr(rig, crash)()
    assert rig.log.folder.manifest.segments[:-1] == before.segments[:-1]
    end = rig.log.checkpoint_offset()
    follower(rig).drop_local(rig.now, end, bytes_max=0, age_max_ms=None, retention_by="append")
    assert values(rig) == VALUES
    assert stored_bytes(rig) == there
    assert follower(rig).adopt(1 << 62) == 0


def test_a_new_leader_copies_only_what_the_old_one_had_not(rig: Rig) -> None:
    tier(rig).copy_next(1 << 62)
    forget_copies(rig)
    new = tier(rig)
    assert new.adopt(1 << 62) == 1
    assert new.copy_next(1 << 62)
    assert len(objects(rig)) == 2


def test_nothing_is_adopted_that_may_still_be_cut(rig: Rig) -> None:
    copy_all(rig)
    forget_copies(rig)
    second = rig.log.folder.manifest.segments[1]
    assert follower(rig).adopt(second.next_offset - 1) == 1


@pytest.mark.parametrize("harm", ["bytes", "end", "size", "place"])
def test_other_bytes_are_neither_adopted_nor_written_over(rig: Rig, harm: str) -> None:
    copy_all(rig)
    assert rig.store is not None
    first = rig.log.folder.manifest.segments[0]
    assert first.remote is not None
    name = name_of(rig.store, first.remote.uri)
    place, segment = first.remote, first
    if harm == "bytes":
        place = replace(place, crc32c=place.crc32c ^ 1)
    elif harm == "end":
        data = rig.store.read_all(name)
        rig.store.put(name, iter([data[:-1] + bytes([data[-1] ^ 1])]))
    elif harm == "size":
        segment = replace(first, size_bytes=first.size_bytes + 1)
    else:
        place = replace(place, uri=place.uri.replace("/0/", "/1/"))
    others = rig.log.folder.manifest.segments[1:]
    stored = rig.log.folder.manifest.with_segments(replace(segment, remote=place), *others)
    manifest_name = f"{TOPIC_ID}/0/manifest"
    rig.store.put(manifest_name, iter([encode_manifest(stored)]))
    before = stored_bytes(rig)
    forget_copies(rig)
    new = tier(rig)
    assert new.adopt(1 << 62) == 3
    assert not new.copy_next(1 << 62), "replicas read what is there"
    assert values(rig) == VALUES
    after = stored_bytes(rig)
    assert {each: after[each] for each in after if each != manifest_name} == {
        each: before[each] for each in before if each != manifest_name
    }


@pytest.mark.parametrize("harm", ["missing", "short"])
def test_an_object_that_is_gone_is_copied_again(rig: Rig, harm: str) -> None:
    copy_all(rig)
    assert rig.store is not None
    there = stored_bytes(rig)
    name = objects(rig)[0]
    rig.store.delete(name)
    if harm == "short":
        rig.store.put(name, iter([there[name][:-1]]))
    forget_copies(rig)
    assert follower(rig).adopt(1 << 62) == 3
    new = tier(rig)
    assert new.adopt(1 << 62) == 0
    assert new.copy_next(1 << 62) and not new.copy_next(1 << 62)
    assert stored_bytes(rig) == there


@pytest.mark.parametrize("data", [b"", b"nonsense", b"LMQM 2 00000000\n{}"])
def test_a_manifest_in_the_store_that_cannot_be_read_is_said(rig: Rig, data: bytes) -> None:
    copy_all(rig)
    forget_copies(rig)
    assert rig.store is not None
    rig.store.put(f"{TOPIC_ID}/0/manifest", iter([data]))
    with pytest.raises(StoreError, match="manifest"):
        follower(rig).adopt(1 << 62)
    new = tier(rig)
    assert new.adopt(1 << 62) == 0
    assert new.copy_next(1 << 62), "a leader writes it again"


def test_an_object_that_was_given_up_and_stored_again_stays(rig: Rig) -> None:
    copy_all(rig)
    first = rig.log.folder.manifest.segments[0]
    assert first.remote is not None
    folder = rig.log.folder
    with folder.changing:
        folder.commit(replace(folder.manifest, garbage=(first.remote.uri,)))
    assert tier(rig).sweep() == 1
    assert folder.manifest.garbage == ()
    assert len(objects(rig)) == 4
    assert values(rig) == VALUES
