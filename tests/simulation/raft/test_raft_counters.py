"""Goal: what a member of the group tells of itself is what has happened to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lakemq.meta_service.catalog.command_codec import encode_command
from lakemq.meta_service.catalog.commands import Txn
from lakemq.meta_service.raft.node import RaftNode
from tests.support.meta.cluster import Cluster, Member


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster(11, 3)
    with cluster.running():
        cluster.wait_for_leader()
        cluster.run_for(1)
        yield cluster


def node_of(member: Member) -> RaftNode:
    assert member.node is not None
    return member.node


def submit(member: Member, key: bytes) -> list[str]:
    answers: list[str] = []
    command = encode_command(Txn((), ((key, b"v", 0),)))
    member.call(lambda: node_of(member).submit(command, lambda code, _: answers.append(code)))
    return answers


def test_elections_and_terms(cluster: Cluster) -> None:
    first = cluster.wait_for_leader()
    term = node_of(first).term
    first.pause()
    cluster.run_until(lambda: cluster.leader() not in (None, first))
    second = cluster.wait_for_leader()
    assert node_of(second).elections >= 1
    assert node_of(second).term > term
    first.resume()
    cluster.run_for(2)
    assert not node_of(first).is_leader
    assert node_of(first).term == node_of(second).term


def test_commands_wait_while_there_is_no_majority(cluster: Cluster) -> None:
    leader = cluster.wait_for_leader()
    cluster.isolate(leader.name)
    submit(leader, b"a")
    submit(leader, b"b")
    leader.run(lambda: None)
    assert node_of(leader).waiting == 2
    cluster.heal()
    cluster.run_for(2)
    assert node_of(leader).waiting == 0


def test_reads_that_come_together_share_a_round(cluster: Cluster) -> None:
    leader = cluster.wait_for_leader()
    before, answers = node_of(leader).rounds, []
    for _ in range(5):
        leader.call(lambda: node_of(leader).read_barrier(lambda code, _: answers.append(code)))
    cluster.run_until(lambda: len(answers) == 5)
    assert answers == [""] * 5
    assert 1 <= node_of(leader).rounds - before <= 2


def test_a_snapshot_is_sent_and_installed(cluster: Cluster) -> None:
    leader = cluster.wait_for_leader()
    away = next(each for each in cluster.members.values() if each is not leader)
    away.wipe()
    for number in range(20):
        submit(leader, b"k%d" % number)
    cluster.run_for(1)
    leader.run(node_of(leader).snapshots.begin)
    cluster.run_until(lambda: node_of(leader).log.first_index > 1)
    away.start()
    cluster.run_until(lambda: node_of(away).snapshots_installed and not node_of(leader)._sending)
    assert node_of(leader).snapshots_sent == 1
    assert node_of(away).snapshots_installed == 1
