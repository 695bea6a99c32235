"""Who is in the group changes while everything else goes wrong too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lakemq.meta_service.raft.engine import Peer
from lakemq.meta_service.raft.membership import Group, Refused
from lakemq.meta_service.raft.node import RaftNode
from tests.simulation.raft.test_raft_rules import node_of, submit
from tests.support.meta.clients import Client
from tests.support.meta.cluster import Cluster, Member
from tests.support.meta.nemesis import Nemesis, alike, check_histories
from tests.support.seeds import seeds


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three members, and m3 and m4 that may join."""
    cluster = Cluster(5, 3, spare=2)
    with cluster.running():
        yield cluster


def led(cluster: Cluster) -> RaftNode:
    leader = node_of(cluster.wait_for_leader())
    cluster.run_until(lambda: leader.commit_index >= (leader.noop_index or 0))
    return leader


def do(cluster: Cluster, change: object) -> None:
    """A change, as the Raft thread makes it, and the time for it to be committed."""
    assert callable(change)
    leader = cluster.wait_for_leader()
    leader.run(change)
    cluster.run_for(1.0)


def test_a_leader_is_alone_until_another_member_joins() -> None:
    """Then heartbeats are due, so its thread must not wait for long (`RaftThread`)."""
    cluster = Cluster(5, 1, spare=1)
    with cluster.running():
        leader = led(cluster)
        assert leader.leads_alone
        do(cluster, lambda: leader.add_learner("m1", "here"))
        assert not leader.leads_alone
        do(cluster, lambda: leader.promote("m1"))
        assert not leader.leads_alone


def test_a_spare_member_never_campaigns(cluster: Cluster) -> None:
    led(cluster)
    cluster.run_for(10)
    spare = node_of(cluster.members["m3"])
    assert (spare.term, spare.elections, spare.can_vote) == (0, 0, False)


def test_a_member_is_added_as_a_learner_and_promoted(cluster: Cluster) -> None:
    leader = led(cluster)
    for number in range(30):
        submit(cluster.wait_for_leader(), b"k%d" % number)
    cluster.run_for(1.0)
    do(cluster, lambda: leader.add_learner("m3", "here"))
    spare = cluster.members["m3"]
    assert leader.majority == 2, "a learner does not count"
    assert spare.store.rows == cluster.wait_for_leader().store.rows
    assert not node_of(spare).can_vote
    do(cluster, lambda: leader.promote("m3"))
    assert leader.majority == 3
    for member in cluster.members.values():
        if member.name != "m4":
            assert set(node_of(member).group.voters) == {"m0", "m1", "m2", "m3"}
            assert node_of(member).can_vote


def test_a_learner_far_behind_cannot_be_promoted(cluster: Cluster) -> None:
    leader = led(cluster)
    cluster.isolate("m3")
    do(cluster, lambda: leader.add_learner("m3", "here"))
    for number in range(150):
        submit(cluster.wait_for_leader(), b"k%d" % number)
    cluster.run_for(1.0)
    with pytest.raises(Refused, match="lacks"):
        leader.promote("m3")


def test_a_removed_member_does_not_count_and_does_not_disturb(cluster: Cluster) -> None:
    leader = led(cluster)
    gone = next(name for name in ("m0", "m1", "m2") if name != leader.member_id)
    do(cluster, lambda: leader.remove_member(gone))
    term = leader.term
    cluster.run_for(20)
    assert leader.is_leader and leader.term == term
    cluster.members[gone].crash()
    assert leader.majority == 2
    answers = submit(cluster.wait_for_leader(), b"still")
    cluster.run_until(lambda: answers)
    assert answers == [""]


def test_the_leader_cannot_be_removed(cluster: Cluster) -> None:
    leader = led(cluster)
    with pytest.raises(Refused, match="transfer"):
        leader.remove_member(leader.member_id)


def test_two_changes_at_once_are_refused(cluster: Cluster) -> None:
    """Stock pysyncobj takes both: its guard is never set."""
    leader = led(cluster)
    for name in cluster.members:
        cluster.isolate(name)
    leader.add_learner("m3", "here")
    with pytest.raises(Refused, match="not committed yet"):
        leader.add_learner("m4", "here")


def test_a_new_leader_changes_nothing_before_it_has_committed_something(cluster: Cluster) -> None:
    """The flaw of the thesis' first single-server algorithm (raft-dev, July 2015)."""
    leader = cluster.members[led(cluster).member_id]
    cluster.isolate(leader.name)
    heirs = [m for m in cluster.members.values() if m.name in cluster.first_voters]
    heirs.remove(leader)
    target = cluster.run_until(lambda: cluster.leader() in heirs and cluster.leader())
    node = node_of(target)
    assert node.commit_index < (node.noop_index or 0)
    with pytest.raises(Refused, match="own term"):
        node.add_learner("m3", "here")


def test_a_change_counts_from_the_log_after_a_restart(cluster: Cluster) -> None:
    """Appended and durable, but not committed when the member died."""
    leader = cluster.members[led(cluster).member_id]
    cluster.run_for(1.0)
    for name in cluster.members:
        cluster.isolate(name)
    node = node_of(leader)
    node.add_learner("m3", "here")
    node.log.sync()
    leader.crash()
    leader.start()
    again = node_of(leader)
    assert again.applied_index < again.log.last_index
    assert "m3" in again.group.learners


def test_a_follower_refuses_changes(cluster: Cluster) -> None:
    leader = led(cluster)
    other = next(m for m in cluster.members.values() if m.name != leader.member_id)
    with pytest.raises(Refused):
        node_of(other).add_learner("m3", "here")


def test_a_change_that_was_never_committed_is_taken_back(cluster: Cluster) -> None:
    leader = led(cluster)
    cluster.run_for(1.0)
    old = cluster.members[leader.member_id]
    cluster.isolate(old.name)
    leader.add_learner("m3", "here")
    assert "m3" in leader.group.learners
    cluster.run_until(lambda: cluster.leader() not in (None, old))
    submit(cluster.wait_for_leader(), b"other")
    cluster.run_for(1.0)
    cluster.network.cut.clear()
    cluster.run_for(2.0)
    assert "m3" not in node_of(old).group.learners
    assert Peer("m3") not in node_of(old).next_index


def test_the_group_survives_compaction_and_a_restart(cluster: Cluster) -> None:
    leader = led(cluster)
    do(cluster, lambda: leader.add_learner("m3", "here"))
    do(cluster, lambda: leader.promote("m3"))
    for number in range(300):
        submit(cluster.wait_for_leader(), b"k%d" % number)
        cluster.run_for(0.02)
    cluster.run_for(2.0)
    assert leader.log.first_index > 10, "nothing was compacted"
    for member in cluster.members.values():
        member.crash()
        member.start()
    cluster.wait_for_leader()
    cluster.run_for(2.0)
    for name in ("m0", "m1", "m2", "m3"):
        assert set(node_of(cluster.members[name]).group.voters) == {"m0", "m1", "m2", "m3"}


def test_a_change_that_lacks_a_living_majority_is_refused(cluster: Cluster) -> None:
    """With one of three down, removing another would leave two of whom one is down: for ever."""
    leader = led(cluster)
    dead, alive = [name for name in ("m0", "m1", "m2") if name != leader.member_id]
    cluster.members[dead].crash()
    cluster.run_for(1.5)
    with pytest.raises(Refused, match="only 1 of the 2 voters"):
        leader.remove_member(alive)
    do(cluster, lambda: leader.remove_member(dead))
    assert leader.commit_index == leader.log.last_index
    with pytest.raises(Refused, match="only 1 of the 2"):
        cluster.isolate(alive)
        cluster.run_for(0.6)
        assert leader.is_leader
        leader.add_learner("m3", "here")


def test_a_snapshot_keeps_the_changes_that_the_log_holds_behind_it(cluster: Cluster) -> None:
    """The log has entries behind the snapshot: a change among them goes on counting."""
    leader = led(cluster)
    cluster.run_for(1.0)
    for name in cluster.members:
        cluster.isolate(name)
    submit(cluster.members[leader.member_id], b"between")
    before = leader.log.last_index
    leader.add_learner("m3", "here")
    leader._restart_from(Group({"m0": "", "m1": ""}, {}), before)
    assert leader.group.learners == {"m3": "here"}
    leader._take_back(before + 1)
    assert leader.group == Group({"m0": "", "m1": ""}, {})
    leader.log.sync()
    leader.log.reset(before + 5, leader.term)
    leader._restart_from(Group({"m0": "a", "m4": "b"}, {}), before + 5)
    assert leader.group == Group({"m0": "a", "m4": "b"}, {})


def _change_something(cluster: Cluster) -> None:
    """Whatever the leader takes: adding, promoting, removing."""
    leader = cluster.leader()
    if leader is None:
        return
    rng = cluster.rng
    name = rng.choice(list(cluster.members))

    def change(member: Member = leader) -> None:
        node = member.node
        if node is None:
            return
        try:
            if name in node.group.learners and rng.random() < 0.7:
                node.promote(name)
            elif name in node.group.voters or name in node.group.learners:
                any_is_new = any(cluster.members[voter].is_new for voter in node.group.voters)
                if len(node.group.voters) > (3 if any_is_new else 2):
                    node.remove_member(name)
            else:
                node.add_learner(name, "here")
        except Refused:
            pass

    leader.call(change)


def _change_in_vain(cluster: Cluster) -> None:
    """A leader is cut off and changes the group at once: the next leader knows nothing of it."""
    leader = cluster.leader()
    if leader is not None and not leader.paused:
        cluster.isolate(leader.name)
        _change_something(cluster)
        cluster.at(cluster.rng.uniform(1.0, 2.5), cluster.network.cut.clear)


@pytest.mark.parametrize("seed", seeds(60))
def test_every_promise_holds_while_the_group_changes(seed: int) -> None:
    cluster = Cluster(30_000 + seed, 3, spare=2)
    with cluster.running():
        change = [lambda: _change_something(cluster)] * 2
        nemesis = Nemesis(cluster, [*change, lambda: _change_in_vain(cluster)])
        clients = [Client(cluster, n, keys=2, deduplicates=n % 2 == 0) for n in range(4)]
        for client in clients:
            client.start()
        nemesis.start()
        cluster.run_for(8.0)
        nemesis.stopping = True
        for client in clients:
            client.stopping = True
        cluster.heal()
        cluster.run_until(lambda: all(client.idle for client in clients), 40.0)
        cluster.run_until(lambda: alike(cluster), 40.0)
        check_histories(cluster, clients)
