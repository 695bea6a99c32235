"""The ways in which stock pysyncobj 0.3.17 loses acknowledged entries, and that they are gone.

Each loss is shown twice: on stock pysyncobj, so that the test is known to see it, and on ours.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pysyncobj
import pytest
from pysyncobj import journal as stock_journal
from pysyncobj import syncobj as stock_engine
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from lakemq.meta_service.catalog.command_codec import encode_command
from lakemq.meta_service.catalog.commands import Txn
from lakemq.meta_service.catalog.tables import KEYS
from lakemq.meta_service.raft.log.log_format import Entry
from lakemq.meta_service.raft.log.raft_log import RaftLog
from tests.support.meta.cluster import Cluster, Member
from tests.support.meta.disk import MemoryDisk, PowerCut


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Time for stock pysyncobj, turned by hand."""
    now = [1000.0]
    monkeypatch.setattr(stock_engine, "monotonicTime", lambda: now[0])

    def turn(seconds: float) -> None:
        now[0] += seconds

    return turn


# ------------------------------------------------------------ 1: compaction in place


class _Died(Exception):
    pass


# Stock pysyncobj leaves the files of its journal open.
leaves_files_open = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@leaves_files_open
def test_loss_1_stock_compaction_in_place_loses_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = stock_journal.FileJournal(str(tmp_path / "journal"))
    for index in range(1, 1001):
        journal.add(b"\x00command", index, 1)
    added = itertools.count()
    add = stock_journal.FileJournal.add

    def dying_add(self: Any, command: bytes, index: int, term: int) -> None:
        if next(added) == 300:
            raise _Died
        add(self, command, index, term)

    monkeypatch.setattr(stock_journal.FileJournal, "add", dying_add)
    with pytest.raises(_Died):
        journal.deleteEntriesTo(10)
    monkeypatch.undo()
    after = stock_journal.FileJournal(str(tmp_path / "journal"))
    assert len(after) < 990, "stock no longer loses entries here: is the hardening still needed?"


@pytest.mark.parametrize("step", range(1, 7))
def test_loss_1_ours_survives_a_death_at_any_step_of_compaction(step: int) -> None:
    disk = MemoryDisk()
    log = RaftLog(disk)
    for index in range(2, 1001):
        log.add(b"\x00command", index, 1)
    log.sync()
    disk.cut_at = disk.steps + step
    with pytest.raises(PowerCut):
        log.compact_to(10)
        disk.step()
    disk.lose_power(random.Random(step))
    after = RaftLog(disk)
    assert after.first_index in (1, 10)
    assert after[-990:] == [Entry(b"\x00command", index, 1) for index in range(11, 1001)]


# ------------------------------------------------------------ 2: truncation without a dump


class _StockCounter(pysyncobj.SyncObj):  # type: ignore[misc] # pysyncobj has no types
    def __init__(self, path: Path) -> None:
        conf = pysyncobj.SyncObjConf(
            autoTick=False, journalFile=str(path), logCompactionMinEntries=100
        )
        super().__init__("a", [], conf, nodeClass=Node, transportClass=_FifoTransport)
        self.total = 0

    @pysyncobj.replicated
    def add(self) -> int:
        self.total += 1
        return self.total


@leaves_files_open
def test_loss_2_stock_truncates_its_journal_without_a_durable_dump(
    tmp_path: Path, clock: Callable[[float], None]
) -> None:
    def run(counter: _StockCounter, ticks: int) -> None:
        for _ in range(ticks):
            clock(0.5)
            counter.doTick()

    counter = _StockCounter(tmp_path / "journal")
    run(counter, 10)
    acked: list[int] = []
    for _ in range(250):
        counter.add(callback=lambda result, error: acked.append(error))
        run(counter, 2)
    assert acked == [0] * 250
    counter.destroy()
    after = _StockCounter(tmp_path / "journal")
    run(after, 20)
    assert after._isLeader()
    assert after.total < 250, "stock no longer loses entries here: is the hardening still needed?"
    after.destroy()


def _put(number: int) -> bytes:
    return encode_command(Txn((), ((b"key%d" % number, b"x" * 50, 0),)))


def _submit(member: Member, count: int, acked: list[str], first: int = 0) -> None:
    node = member.node
    assert node is not None
    for number in range(first, first + count):
        submit = partial(node.submit, _put(number), lambda code, result: acked.append(code))
        member.call(submit)


def _stored(member: Member) -> int:
    return sum(1 for key in member.store.rows if key.startswith(KEYS + b"key"))


def test_loss_2_ours_shortens_the_log_only_behind_what_is_durable() -> None:
    cluster = Cluster(2, 1)
    with cluster.running():
        (member,) = cluster.members.values()
        cluster.wait_for_leader()
        acked: list[str] = []
        for batch in range(25):
            _submit(member, 10, acked, first=batch * 10)
            cluster.run_for(0.5)
        assert acked == [""] * 250
        assert member.node is not None and member.node.log.first_index > 1, "nothing was compacted"
        member.crash()
        member.start()
        cluster.wait_for_leader()
        cluster.run_for(1.0)
        assert _stored(member) == 250


# ------------------------------------------------------------ 3: truncation without conflict


class _FifoTransport(Transport):  # type: ignore[misc] # pysyncobj has no types
    """Keeps what is sent until it is delivered by hand, in order."""

    def __init__(self, sync_obj: Any, self_node: Any, others: Any) -> None:
        super().__init__(sync_obj, self_node, others)
        self.out: list[tuple[str, dict[str, Any]]] = []

    @property
    def ready(self) -> bool:
        return True

    def send(self, node: Any, message: dict[str, Any]) -> bool:
        self.out.append((node.id, message))
        return True

    def destroy(self) -> None:
        pass


class _StockMember(pysyncobj.SyncObj):  # type: ignore[misc] # pysyncobj has no types
    def __init__(self, name: str, path: Path) -> None:
        conf = pysyncobj.SyncObjConf(
            autoTick=False,
            raftMinTimeout=0.04,
            raftMaxTimeout=0.05,
            appendEntriesPeriod=0.01,
            connectionTimeout=1,
            journalFile=str(path / name),
            appendEntriesBatchSizeBytes=8,
        )
        others = [other for other in "LAB" if other != name]
        super().__init__(name, others, conf, nodeClass=Node, transportClass=_FifoTransport)
        self.total = 0

    @pysyncobj.replicated
    def add(self) -> int:
        self.total += 1
        return self.total


class _StockGroup:
    """Three stock members whose links are worked by hand."""

    def __init__(self, path: Path, clock: Callable[[float], None]) -> None:
        self.members = {name: _StockMember(name, path) for name in "LAB"}
        self.wires = {name: self.members[name]._SyncObj__transport for name in "LAB"}
        self._clock = clock
        for name, other in itertools.permutations("LAB", 2):
            self.wires[name]._onNodeConnected(Node(other))

    def deliver(self, source: str, target: str, count: int = 10**9) -> None:
        """The first messages of one link, in order."""
        left = []
        for to, message in self.wires[source].out:
            if to == target and count > 0:
                count -= 1
                self.wires[target]._onMessageReceived(Node(source), message)
            else:
                left.append((to, message))
        self.wires[source].out = left

    def drop(self, source: str, target: str) -> None:
        out = self.wires[source].out
        self.wires[source].out = [pair for pair in out if pair[0] != target]

    def tick(self, name: str) -> None:
        self._clock(0.011)
        self.members[name].doTick()

    def elect(self, name: str, voters: str) -> None:
        self.members[name]._SyncObj__raftElectionDeadline = 0
        self.members[name].doTick()
        for _ in range(8):
            for voter in voters:
                self.deliver(name, voter)
                self.members[voter]._SyncObj__raftElectionDeadline = 1e9
                self.deliver(voter, name)
                self.members[voter].doTick()
            self.tick(name)


@leaves_files_open
def test_loss_3_stock_drops_acknowledged_entries_on_a_duplicate_batch(
    tmp_path: Path, clock: Callable[[float], None]
) -> None:
    group = _StockGroup(tmp_path, clock)
    members, wires = group.members, group.wires
    deliver, drop, tick, elect = group.deliver, group.drop, group.tick, group.elect
    elect("L", "AB")
    assert members["L"]._isLeader()
    acked: list[int] = []
    for _ in range(6):
        members["L"].add(callback=lambda result, error: acked.append(error))
    tick("L")
    tick("L")
    drop("L", "A")  # the entries are lost with a connection
    drop("L", "B")
    tick("L")
    tick("L")  # two heartbeats find A behind
    drop("L", "B")  # from here on B is cut off
    deliver("L", "A")
    deliver("A", "L", 1)
    tick("L")  # the entries in small batches
    deliver("A", "L", 1)
    tick("L")  # and once more
    starts = [message["prevLogIdx"] for to, message in wires["L"].out if to == "A"]
    first_copy = starts.index(starts[0], 1)
    deliver("L", "A", first_copy)
    deliver("A", "L")
    tick("L")
    drop("L", "B")
    assert acked == [0] * 6, "the leader must have acknowledged all six"
    deliver("L", "A", 1)  # the first batch of the second copy; then the leader dies
    wires["A"].out.clear()
    wires["B"].out.clear()
    elect("A", "B")
    assert members["A"]._isLeader()
    assert members["A"].total < 6, "stock no longer loses entries here: is it still needed?"
    for member in members.values():
        member.destroy()


def test_loss_3_ours_keeps_matching_entries_on_a_duplicate_batch() -> None:
    """The same schedule: a late copy of an early batch reaches the only other holder."""
    cluster = Cluster(3, 3)
    copies: list[bytes] = []
    with cluster.running():
        leader = cluster.wait_for_leader()
        cluster.run_for(1.0)
        follower, cut_off = (m for m in cluster.members.values() if m is not leader)
        cluster.isolate(cut_off.name)
        send = cluster.network.send

        def record(source: str, target: str, data: bytes) -> None:
            if (source, target) == (leader.name, follower.name) and b"key0" in data:
                copies.append(data)
            send(source, target, data)

        cluster.network.send = record  # type: ignore[method-assign]
        acked: list[str] = []
        _submit(leader, 1, acked)
        cluster.run_for(0.2)
        _submit(leader, 5, acked, first=1)
        cluster.run_for(0.5)
        assert acked == [""] * 6
        assert copies, "no batch to repeat"
        last = follower.node.log.last_index if follower.node else 0
        for data in copies * 2:
            follower.receive(leader.name, data)
        assert follower.node is not None and follower.node.log.last_index == last
        leader.crash()
        cluster.network.cut.clear()
        cluster.run_until(lambda: cluster.leader() not in (None, leader))
        cluster.run_for(1.0)
        assert _stored(follower) == _stored(cut_off) == 6
