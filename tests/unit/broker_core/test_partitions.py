"""Goal: one door to partition logs: a node opens what the catalog assigns to it, refuses what other
nodes lead with their address and epoch, and nothing of the program goes around that door."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lakemq.broker_core.api.errors import NotLeader, StaleEpoch, UnknownPartition, UnknownTopic
from lakemq.broker_core.api.records.batch import encode
from lakemq.broker_core.api.types import (
    Acks,
    Columns,
    Disowned,
    Leadership,
    PartitionStatus,
    TopicConfig,
    TopicInfo,
)
from lakemq.broker_core.partitions import Partitions
from lakemq.broker_core.replication.assignments import Assignments
from lakemq.broker_core.replication.lease import Lease
from lakemq.meta_service.api.types import ReplicaEnd
from lakemq.plugins.journal.settings import JournalSettings
from lakemq.plugins.journal.storage import JournalStorage
from lakemq.testing.storage import append, batch_of
from tests.support.replication.nodes import TestCluster, assignments_of

ME, OTHER = Leadership("me", 3, ("me",)), Leadership("other", 7, ("other",))
REPLICA = Leadership("other", 2, ("other", "me"))
NOBODY, LOST = Leadership(None, 4, ("me",)), Leadership(None, 4, ("other",))


class StubLog:
    def __init__(self, topic: TopicInfo, partition: int) -> None:
        self.topic, self.partition = topic.name, partition
        self.taps: list[Any] = []

    def status(self) -> PartitionStatus:
        return PartitionStatus(self.partition, "online", 1, 2, 3, 4, 5)

    def tap(self, tap: Any) -> Any:
        self.taps.append(tap)
        return lambda: self.taps.remove(tap)


class StubStorage:
    """Notes what it is asked."""

    name = "stub"

    def __init__(self) -> None:
        self.opened: list[tuple[str, int]] = []
        self.deleted: list[str] = []
        self.configured: list[TopicInfo] = []
        self.stored = {"a" * 32, "b" * 32}
        self.replicas: set[tuple[str, int]] = set()
        self.damaged: list[Disowned] = []

    async def open_partition(self, topic: TopicInfo, partition: int) -> Any:
        self.opened.append((topic.name, partition))
        return StubLog(topic, partition)

    async def configure_topic(self, topic: TopicInfo) -> None:
        self.configured.append(topic)

    async def delete_topic(self, topic_id: str) -> None:
        self.deleted.append(topic_id)

    async def stored_topic_ids(self) -> set[str]:
        return self.stored

    async def stored_partitions(self) -> set[tuple[str, int]]:
        return self.replicas

    def is_full(self) -> bool:
        return False

    def disowned(self) -> list[Disowned]:
        return self.damaged

    async def delete_partition(self, topic_id: str, partition: int) -> None:
        self.deleted.append(f"{topic_id[0]}/{partition}")


def topic(*leaders: Leadership, name: str = "t", config: TopicConfig | None = None) -> TopicInfo:
    count = len(leaders)
    return TopicInfo(name, "a" * 32, count, config or TopicConfig(), 1, leaders)


@pytest.fixture
def storage() -> StubStorage:
    return StubStorage()


@pytest.fixture
async def nodes() -> AsyncIterator[TestCluster]:
    nodes = TestCluster(["me", "other"])
    yield nodes
    await nodes.stop()


@pytest.fixture
async def assignments(nodes: TestCluster) -> Assignments:
    return assignments_of(nodes.nodes["me"])


@pytest.fixture
async def partitions(storage: StubStorage, assignments: Assignments) -> Partitions:
    addresses = {"other": "10.0.0.7:7420"}
    return Partitions(
        "me", storage, assignments, lambda node: addresses.get(node, ""),  # type: ignore[arg-type]
    )  # fmt: skip


async def test_only_what_the_catalog_assigns_is_opened(
    partitions: Partitions, storage: StubStorage
) -> None:
    await partitions.assign(topic(ME, OTHER, REPLICA, NOBODY, LOST))
    assert storage.opened == [("t", 0), ("t", 2), ("t", 3)]
    assert [partitions.serves(partitions.topic("t"), each) for each in range(5)] == [
        True, False, False, True, False,
    ]  # fmt: skip


async def test_a_partition_of_another_node_is_refused_with_address_and_epoch(
    partitions: Partitions,
) -> None:
    await partitions.assign(topic(ME, OTHER, REPLICA, LOST))
    assert partitions.log("t", 0) is partitions.log("t", 0, 3)
    for number, epoch in ((1, 7), (2, 2)):
        with pytest.raises(NotLeader, match=rf"partition {number} of t is led by other") as told:
            partitions.log("t", number)
        assert type(told.value) is NotLeader
        assert (told.value.leader, told.value.address) == ("other", "10.0.0.7:7420")
        assert told.value.epoch == epoch
    with pytest.raises(NotLeader, match="has no leader") as told:
        partitions.log("t", 3)
    assert (told.value.leader, told.value.address, told.value.epoch) == ("", "", 4)


async def test_a_replica_that_is_being_given_up_answers_that_others_lead(
    partitions: Partitions, storage: StubStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleting, go_on = asyncio.Event(), asyncio.Event()

    async def delete(topic_id: str, partition: int) -> None:
        deleting.set()
        await go_on.wait()

    await partitions.assign(topic(ME))
    monkeypatch.setattr(storage, "delete_partition", delete)
    moving = asyncio.create_task(partitions.assign(topic(OTHER)))
    await deleting.wait()
    with pytest.raises(NotLeader):
        partitions.log("t", 0)
    assert not partitions.serves(partitions.topic("t"), 0)
    assert partitions.status("t", 0).state == "remote"
    go_on.set()
    await moving
    with pytest.raises(NotLeader, match="is led by other"):
        partitions.log("t", 0)


@pytest.mark.parametrize(("known", "why"), [(2, "has ended"), (9, "is not known here yet")])
async def test_another_epoch_than_the_clients_is_stale(
    partitions: Partitions, known: int, why: str
) -> None:
    await partitions.assign(topic(ME))
    with pytest.raises(StaleEpoch, match=f"leader epoch {known} {why}") as told:
        partitions.log("t", 0, known)
    assert (told.value.leader, told.value.epoch) == ("me", 3)


async def test_a_partition_that_moves_is_refused_from_then_on(partitions: Partitions) -> None:
    await partitions.assign(topic(ME, OTHER))
    log = partitions.log("t", 0)
    await partitions.assign(topic(OTHER, ME))
    with pytest.raises(NotLeader):
        partitions.log("t", 0)
    assert partitions.log("t", 1) is not log


async def test_each_node_has_its_own_copy_of_an_internal_topic(partitions: Partitions) -> None:
    await partitions.assign(topic(OTHER, ME, name="__mqtt_sessions"))
    assert partitions.log("__mqtt_sessions", 0, 99) is not None
    with pytest.raises(NotLeader, match=r"partition 0 of __mqtt_sessions \(home of x\)") as told:
        partitions.check_leads("__mqtt_sessions", 0, "home of x")
    assert told.value.address == "10.0.0.7:7420"
    partitions.check_leads("__mqtt_sessions", 1, "home of x")


async def test_the_status_of_another_nodes_partition_names_its_leader(
    partitions: Partitions,
) -> None:
    await partitions.assign(topic(ME, REPLICA, LOST))
    assert partitions.status("t", 0).state == "online"
    assert (partitions.status("t", 1).state, partitions.status("t", 1).detail) == (
        "remote", "led by other",
    )  # fmt: skip
    assert partitions.status("t", 2).detail == "no node leads it"


async def test_what_is_unknown_is_named(partitions: Partitions) -> None:
    await partitions.assign(topic(ME, OTHER))
    for number in (-1, 2):
        with pytest.raises(UnknownPartition, match=f"partition {number}: topic t has 0 to 1"):
            partitions.log("t", number)
    with pytest.raises(UnknownTopic, match="'u'"):
        partitions.log("u", 0)


async def test_taps_hear_the_logs_of_this_node_also_later_ones(partitions: Partitions) -> None:
    remove = partitions.tap("t", print)
    await partitions.assign(topic(ME, OTHER))
    await partitions.assign(topic(ME, ME))
    logs: list[Any] = [partitions.log("t", 0), partitions.log("t", 1)]
    assert [log.taps for log in logs] == [[print], [print]]
    remove()
    assert [log.taps for log in logs] == [[], []]


async def test_a_deleted_topic_is_closed_and_a_changed_config_obeyed(
    partitions: Partitions, storage: StubStorage
) -> None:
    await partitions.assign(topic(ME))
    changed = topic(ME, config=TopicConfig(retention_ms=5))
    await partitions.assign(changed)
    assert storage.configured == [changed]
    await partitions.close(changed)
    assert partitions.find("t") is None and partitions.topics() == []
    await partitions.delete_all_but({"b" * 32})
    assert storage.deleted == ["a" * 32]


async def test_a_replica_that_moved_away_is_deleted_once_another_node_leads(
    partitions: Partitions, storage: StubStorage
) -> None:
    await partitions.assign(topic(ME, REPLICA))
    await partitions.assign(topic(LOST, LOST))
    assert storage.deleted == []
    await partitions.assign(topic(OTHER, OTHER))
    assert storage.deleted == ["a/0", "a/1"]
    # Should it come back, it is opened as if it were new.
    await partitions.assign(topic(REPLICA, OTHER))
    assert storage.opened == [("t", 0), ("t", 1), ("t", 0)]


def test_nothing_else_opens_a_partition() -> None:
    root = Path(__file__).parents[3]
    folders = ("lakemq", "broker_core", "meta_service", "plugins", "spark_plugin")
    found = {
        str(file.relative_to(root))
        for folder in folders
        for file in (root / folder).rglob("*.py")
        if re.search(r"\.open_partition\(", file.read_text())
    }
    shipped = {name.removeprefix("lakemq/") for name in found}
    assert shipped - {"testing/storage.py", "testing/replica.py"} == {"broker_core/partitions.py"}


async def test_a_log_is_led_in_the_catalogs_epoch_where_this_node_serves_it(
    tmp_path: Path, assignments: Assignments
) -> None:
    """An epoch never falls, also where the catalog was restored from an older one."""
    storage = JournalStorage(tmp_path / "journal", JournalSettings(free_min_bytes=0))
    await storage.start()
    partitions = Partitions("me", storage, assignments)
    for epoch, stamped in ((3, 3), (8, 8), (2, 8)):
        await partitions.assign(topic(ME._replace(epoch=epoch), REPLICA))
        log = await storage.open_partition(partitions.topic("t"), 0)
        await append(log, batch_of(b"x"))
        assert log.last_epoch() == stamped
    other = await storage.open_partition(partitions.topic("t"), 1)
    with pytest.raises(NotLeader):
        await append(other, batch_of(b"x"))
    await storage.stop()


SHARED = Leadership("me", 5, ("me", "other"), ("me", "other"), 1, (), 1)


async def test_a_replicated_partition_is_served_by_an_active_registration_alone(
    tmp_path: Path, assignments: Assignments
) -> None:
    storage = JournalStorage(tmp_path / "journal", JournalSettings(free_min_bytes=0))
    await storage.start()
    partitions = Partitions("me", storage, assignments)
    await partitions.assign(topic(SHARED))
    # The catalog's row may have been meant for an earlier process.
    assert not partitions.serves(partitions.topic("t"), 0)
    with pytest.raises(NotLeader, match="t/0: me has not begun to lead it") as told:
        partitions.log("t", 0)
    assert (told.value.leader, told.value.address) == ("", "")
    assignments.activated()
    await partitions.assign(topic(SHARED))
    log: Any = partitions.log("t", 0)
    assert partitions.serves(partitions.topic("t"), 0)
    appended = append(log, batch_of(b"x"), Acks.MEMORY)
    await asyncio.sleep(0.05)
    assert not appended.done()  # `other` has not got it
    assert partitions.status("t", 0).lags == {}
    assignments.registered()
    assert not partitions.serves(partitions.topic("t"), 0)
    assert isinstance(appended.exception(), NotLeader)
    await storage.stop()


async def test_who_watches_is_told_what_is_served(tmp_path: Path, nodes: TestCluster) -> None:
    lease = Lease()
    assignments = assignments_of(nodes.nodes["me"], lease)
    now_s = asyncio.get_running_loop().time
    storage = JournalStorage(tmp_path / "journal", JournalSettings(free_min_bytes=0))
    await storage.start()
    partitions = Partitions("me", storage, assignments)
    told: list[bool] = []
    unwatch = partitions.watch_serving(
        lambda: told.append(
            partitions.find("t") is not None and partitions.serves(partitions.topic("t"), 0)
        )
    )
    await partitions.assign(topic(SHARED))
    assignments.activated()
    lease.sent(1, now_s())
    lease.answered(1)
    await partitions.assign(topic(SHARED))
    assert told[-1]
    nodes.nodes["me"].replication.on_tick()
    before = len(told)
    await partitions.assign(topic(SHARED))
    assert len(told) == before
    lease.end()
    nodes.nodes["me"].replication.on_tick()
    assert not told[-1]
    lease.sent(2, now_s())
    lease.answered(2)
    nodes.nodes["me"].replication.on_tick()
    assert told[-1]
    nodes.nodes["me"].replication.give_up_all()
    assert not told[-1]
    unwatch()
    before = len(told)
    assignments.registered()
    assert len(told) == before
    await storage.stop()


async def test_a_topic_may_ask_for_less_than_all_replicas(
    tmp_path: Path, assignments: Assignments
) -> None:
    storage = JournalStorage(tmp_path / "journal", JournalSettings(free_min_bytes=0))
    await storage.start()
    partitions = Partitions("me", storage, assignments)
    assignments.activated()
    await partitions.assign(topic(SHARED, config=TopicConfig(acks_min="leader")))
    log: Any = partitions.log("t", 0)
    result = await append(log, batch_of(b"x"), Acks.MEMORY)
    assert (result.acks, log.high_watermark) == (Acks.LEADER, 0)
    await storage.stop()


async def test_a_topic_may_ask_for_more_than_its_producers(
    tmp_path: Path, assignments: Assignments
) -> None:
    """Also where there is one replica."""
    storage = JournalStorage(tmp_path / "journal", JournalSettings(free_min_bytes=0))
    await storage.start()
    partitions = Partitions("me", storage, assignments)
    await partitions.assign(topic(ME, config=TopicConfig(acks_min="leader")))
    log: Any = partitions.log("t", 0)
    appended = append(log, batch_of(b"x"), Acks.MEMORY)
    assert not appended.done(), "it is not on the disk yet"
    assert (await appended).acks is Acks.LEADER
    await storage.stop()


async def test_without_a_lease_nothing_is_served(tmp_path: Path, nodes: TestCluster) -> None:
    storage = JournalStorage(tmp_path / "journal", JournalSettings(free_min_bytes=0))
    await storage.start()
    lease = Lease()
    assignments = assignments_of(nodes.nodes["me"], lease)
    partitions = Partitions("me", storage, assignments)
    assignments.activated()
    await partitions.assign(topic(SHARED, ME))
    with pytest.raises(NotLeader, match="it has lost the MetaService"):
        partitions.log("t", 0)
    assert partitions.log("t", 1) is not None  # no other node could lead it
    lease.sent(1, asyncio.get_running_loop().time())
    lease.answered(1)
    assert partitions.log("t", 0) is not None
    await storage.stop()


async def test_when_the_lease_ends_who_waits_is_told(tmp_path: Path, nodes: TestCluster) -> None:
    """Else a producer would wait at a node that was cut off, while another leads."""
    storage = JournalStorage(tmp_path / "journal", JournalSettings(free_min_bytes=0))
    await storage.start()
    lease, replication = Lease(60), nodes.nodes["me"].replication
    lease.sent(1, asyncio.get_running_loop().time())
    lease.answered(1)
    assignments = assignments_of(nodes.nodes["me"], lease)
    partitions = Partitions("me", storage, assignments)
    assignments.activated()
    await partitions.assign(topic(SHARED))
    log: Any = partitions.log("t", 0)
    appended = append(log, batch_of(b"x"))
    replication.on_tick()
    await asyncio.sleep(0.05)
    assert not appended.done()
    lease.end()
    replication.on_tick()
    with pytest.raises(NotLeader):
        await asyncio.wait_for(appended, 5)
    assert log.log_end_offset == 1  # it may be committed yet
    lease.sent(2, asyncio.get_running_loop().time())
    lease.answered(2)
    assert partitions.log("t", 0) is log  # in the same epoch, as no other was elected
    again = append(log, batch_of(b"y"))
    await asyncio.sleep(0.05)
    assert not again.done() and log.log_end_offset == 2
    await storage.stop()


async def test_of_replicas_that_other_nodes_have_damage_is_told(
    partitions: Partitions, storage: StubStorage, assignments: Assignments
) -> None:
    storage.damaged = [
        Disowned(id, number, "its folder is missing", missing=True)
        for id, number in (("a" * 32, 0), ("a" * 32, 1), ("f" * 32, 0))
    ]
    await partitions.assign(topic(ME, SHARED))
    assert partitions.disowned() == [("a" * 32, 1)]
    # Nor is it opened before the catalog knows: it would be empty, and pass for whole.
    assert storage.opened == [("t", 0)]
    assert partitions.readable_end("t", 1) is None
    with pytest.raises(NotLeader, match="t/1: me has not begun to lead it"):
        partitions.log("t", 1)
    assignments.activated()
    await partitions.assign(topic(ME, SHARED))
    assert storage.opened == [("t", 0), ("t", 1)]


async def test_a_damaged_replica_is_copied_again_once_another_has_everything(
    partitions: Partitions, storage: StubStorage, assignments: Assignments
) -> None:
    whole = Leadership("other", 5, ("other", "me"), ("other",), 2)
    nobody = Leadership(None, 4, ("other", "me"), (), 1, ("other",))
    counted = Leadership("other", 5, ("other", "me"), ("other", "me"), 2)
    behind = Leadership("other", 5, ("other", "me"), ("other",), 3)
    storage.damaged = [Disowned("a" * 32, n, "it is torn", missing=False) for n in range(3)]
    # The catalog has not been told yet, or what it said is older than that.
    await partitions.assign(topic(whole, nobody, counted))
    assert (storage.opened, storage.deleted) == ([], [])
    assignments.activated()
    await partitions.assign(topic(whole, nobody, counted))
    # What no other replica stands for is kept: it may be the best that is left.
    assert storage.deleted == ["a/0"]
    assert storage.opened == [("t", 0), ("t", 1), ("t", 2)]
    await partitions.assign(topic(whole, whole, behind))
    # Nor is one deleted that counted meanwhile, or was copied again before.
    assert storage.deleted == ["a/0", "a/1"]
    assert storage.opened[3:] == [("t", 1)]
    await partitions.assign(topic(behind, behind, behind))
    assert len(storage.deleted) == 2


async def test_what_moved_away_while_the_node_was_down_is_deleted(
    partitions: Partitions, storage: StubStorage, assignments: Assignments
) -> None:
    storage.replicas = {("a" * 32, number) for number in range(6)} | {("f" * 32, 0)}
    away = Leadership("other", 7, ("other", "third"), ("other",))
    moving = away._replace(target=("me", "other"))
    await partitions.assign(topic(away, LOST, moving, REPLICA, ME))
    await partitions.assign(
        TopicInfo("__groups", "b" * 32, 1, leaders=(away,))  # of which each node has its own
    )
    storage.replicas.add(("b" * 32, 0))
    # Before the registration counts, the catalog may not know yet what this disk holds.
    await partitions.delete_moved_away()
    assert storage.deleted == []
    assignments.activated()
    await partitions.delete_moved_away()
    assert storage.deleted == ["a/0"]


async def test_what_moved_away_is_kept_until_another_node_leads(
    partitions: Partitions, storage: StubStorage, assignments: Assignments
) -> None:
    storage.replicas = {("a" * 32, number) for number in range(3)}
    away = Leadership("other", 7, ("other", "third"), ("other",))
    await partitions.assign(topic(LOST, LOST, LOST))
    assignments.activated()
    await partitions.delete_moved_away()
    assert storage.deleted == []
    await partitions.assign(topic(away, LOST, REPLICA))
    assert storage.deleted == ["a/0"]
    # One that came back meanwhile is what it is now: a replica that is open.
    assert storage.opened == [("t", 2)]
    assignments.registered()
    await partitions.assign(topic(away, away, REPLICA))
    assert storage.deleted == ["a/0"], "the catalog may be older than this registration"
    assignments.activated()
    await partitions.assign(topic(away, away, REPLICA))
    assert storage.deleted == ["a/0", "a/1"]


async def test_where_replicas_without_a_leader_end_is_told(
    tmp_path: Path, assignments: Assignments
) -> None:
    storage = JournalStorage(tmp_path, JournalSettings(free_min_bytes=0))
    await storage.start()
    partitions = Partitions("me", storage, assignments)
    nobody = Leadership(None, 4, ("other", "me"), (), 1, ("other",))
    led = Leadership("other", 4, ("other", "me"), ("other",), 1)
    await partitions.assign(topic(nobody, led, nobody, NOBODY))
    for number in (0, 1):
        log: Any = partitions.replica("t", number)
        await log.append_replica(encode(Columns([b"a", b"b"]), now_ms=1, leader_epoch=2))
    assert partitions.leaderless() == [
        ReplicaEnd("a" * 32, 0, 2, 0, 2), ReplicaEnd("a" * 32, 2, -1, 0, 0)
    ]  # fmt: skip
    await partitions.assign(topic(led, led, led, NOBODY))
    assert partitions.leaderless() == []
    await storage.stop()
