"""A member whose disk was replaced promises nothing before a leader outlived what it forgot."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lakemq.meta_service.raft.engine import Peer
from lakemq.meta_service.raft.membership import Refused
from tests.simulation.raft.test_raft_rules import followers, hear, node_of, submit
from tests.simulation.test_meta_simulation import run
from tests.support.meta.cluster import Cluster, Member
from tests.support.seeds import seeds


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster(12, 3)
    with cluster.running():
        yield cluster


def settled(cluster: Cluster) -> Member:
    leader = cluster.wait_for_leader()
    cluster.run_for(1)
    return leader


def replace_disk(member: Member) -> None:
    member.wipe()
    member.start()


def test_a_replaced_disk_at_once_commits_nothing_for_a_leader_that_is_none_any_more(
    cluster: Cluster,
) -> None:
    """m0 was cut off, m1 and m2 went on to a newer term. m2 forgets it and meets only m0."""
    old = settled(cluster)
    one, other = followers(cluster)
    one.pause()  # it does not hear that the old leader is to be followed
    cluster.isolate(old.name)
    node_of(other)._heard_leader = float("-inf")
    term = node_of(old).term + 1
    other.run(lambda: node_of(other).become_follower(term, None))
    hear(
        other,
        one.name,
        type="vote",
        term=term,
        pre=False,
        transfer=True,
        last_index=node_of(other).log.last_index,
        last_term=node_of(other).log.last_term,
    )
    assert node_of(other).voted_for == one.name
    answers = submit(old, b"stale")
    cluster.run_for(0.1)
    replace_disk(other)
    cluster.network.cut.clear()
    cluster.isolate(one.name)
    before = node_of(old).commit_index
    assert node_of(old).is_leader
    cluster.run_for(2)
    assert node_of(old).commit_index == before and answers != [""]
    assert node_of(other)._has_forgotten and node_of(other).log.last_term == 0
    assert not node_of(old).is_leader, "it heard of no majority"


def test_it_learns_the_term_keeps_it_and_votes_no_more_in_it(cluster: Cluster) -> None:
    leader = settled(cluster)
    member, other = followers(cluster)
    replace_disk(member)
    cluster.run_until(lambda: not node_of(member)._has_forgotten)
    node, term = node_of(member), node_of(leader).term
    assert (node.term, node.voted_for) == (term, member.name)
    assert (node.log.getCurrentTerm(), node.log.getVotedForNodeId()) == (term, member.name)
    cluster.run_until(lambda: not node.log.is_new)
    assert node.log.last_index >= node._settles_at > 0
    answers = submit(leader, b"after")
    other.crash()
    cluster.run_until(lambda: answers)
    assert answers == [""], "it counts again"


def test_it_does_not_recover_while_the_leader_has_no_majority_without_it(cluster: Cluster) -> None:
    settled(cluster)
    member, other = followers(cluster)
    other.crash()
    replace_disk(member)
    cluster.run_for(5)
    assert node_of(member)._has_forgotten
    other.start()
    cluster.run_until(lambda: not node_of(member).log.is_new)


def test_a_crash_in_the_middle_begins_the_recovery_again(cluster: Cluster) -> None:
    leader = settled(cluster)
    for number in range(200):
        submit(leader, b"k%d" % number)
    cluster.run_for(1)
    member = followers(cluster)[0]
    replace_disk(member)
    for _ in range(5):
        cluster.run_until(lambda: not node_of(member)._has_forgotten)
        nonce = node_of(member)._nonce
        if not node_of(member).log.is_new:
            break
        member.crash()
        member.start()
        assert node_of(member)._has_forgotten and node_of(member)._nonce != nonce
    cluster.run_until(lambda: not node_of(member).log.is_new)
    cluster.run_for(1)
    assert member.store.rows == leader.store.rows


def test_an_answer_to_an_earlier_question_or_of_an_older_term_says_nothing(
    cluster: Cluster,
) -> None:
    leader = settled(cluster)
    member = followers(cluster)[0]
    member.wipe()
    cluster.isolate(member.name)
    member.start()
    node, term = node_of(member), node_of(leader).term
    cluster.network.cut.clear()
    node.term = term + 3
    hear(member, leader.name, type="recovered", term=term, nonce=node._nonce, index=5)
    hear(member, leader.name, type="recovered", term=term + 4, nonce=node._nonce + 1, index=5)
    assert node._has_forgotten


def test_it_takes_no_snapshot_before(cluster: Cluster) -> None:
    """Having one counts like having the entries."""
    leader = settled(cluster)
    member = followers(cluster)[0]
    member.wipe()
    cluster.isolate(member.name)
    member.start()
    node, term = node_of(member), node_of(leader).term
    hear(
        member,
        leader.name,
        type="snapshot",
        term=term,
        index=50,
        index_term=term,
        size=100,
        position=0,
        data=b"x" * 10,
    )
    assert node.term == term and node._receiving is None


def test_it_votes_for_no_empty_log_once_it_knows_that_there_are_entries(cluster: Cluster) -> None:
    settled(cluster)
    member, other = followers(cluster)
    replace_disk(member)
    cluster.run_until(lambda: not node_of(member)._has_forgotten)
    node = node_of(member)
    assert node.log.is_new
    assert not node._may_campaign
    assert not node._has_newer_log({"last_term": 0, "last_index": 1})


def test_a_learner_that_acknowledged_nothing_is_not_promoted() -> None:
    """It would count, and promise nothing: a group of two would stand still for good."""
    cluster = Cluster(8, 1, spare=1)
    with cluster.running():
        leader = settled(cluster)
        cluster.isolate("m1")
        node = node_of(leader)
        leader.run(lambda: node.add_learner("m1", "here"))
        cluster.run_for(0.3)
        with pytest.raises(Refused, match="acknowledged nothing"):
            node.promote("m1")
        cluster.network.cut.clear()
        cluster.run_for(1)
        leader.run(lambda: node.promote("m1"))
        cluster.run_until(lambda: node.commit_index == node.log.last_index)
        assert node_of(cluster.members["m1"]).can_vote


def test_what_an_earlier_life_acknowledged_does_not_count_after_the_question(
    cluster: Cluster,
) -> None:
    leader = settled(cluster)
    member = followers(cluster)[0]
    node, peer = node_of(leader), Peer(member.name)
    seen = node._round
    replace_disk(member)
    cluster.isolate(member.name)
    cluster.run_for(0.2)
    hear(leader, member.name, type="recover", term=node.term, nonce=7)
    hear(
        leader,
        member.name,
        type="append_reply",
        term=node.term,
        ok=True,
        index=node.log.last_index,
        round=seen,
    )
    assert node.match_index[peer] == 0


def test_the_leader_counts_the_majority_without_the_one_that_asks() -> None:
    """Of five, two down: with the asker three are a majority, but it must not count itself."""
    cluster = Cluster(4, 5)
    with cluster.running():
        leader = settled(cluster)
        member, *others = followers(cluster)
        for other in others[:2]:
            other.crash()
        replace_disk(member)
        cluster.run_for(3)
        assert node_of(member)._has_forgotten
        others[0].start()
        cluster.run_until(lambda: not node_of(member).log.is_new)
        assert leader.node is not None


def test_one_of_two_recovers_from_the_other() -> None:
    cluster = Cluster(3, 2)
    with cluster.running():
        settled(cluster)
        (member,) = followers(cluster)
        replace_disk(member)
        cluster.run_until(lambda: not node_of(member).log.is_new)


def test_two_of_three_with_empty_disks_found_a_group_and_the_third_follows(
    cluster: Cluster,
) -> None:
    third = cluster.members["m2"]
    third.crash()
    third.wipe()
    leader = settled(cluster)
    answers = submit(leader, b"begun")
    cluster.run_until(lambda: answers)
    third.start()
    cluster.run_until(lambda: not node_of(third).log.is_new)


def test_a_learner_recovers_without_the_voters_that_are_down() -> None:
    """Else a group that grows in place of a dead member could lack a majority for good."""
    cluster = Cluster(6, 3, spare=1)
    with cluster.running():
        leader = settled(cluster)
        followers(cluster)[0].crash()
        node = node_of(leader)
        leader.run(lambda: node.add_learner("m3", "here"))
        spare = cluster.members["m3"]
        cluster.run_until(lambda: not node_of(spare).log.is_new)
        cluster.run_for(1)
        leader.run(lambda: node.promote("m3"))
        cluster.run_until(lambda: node.commit_index == node.log.last_index)
        assert node_of(spare).can_vote


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("seed", seeds(120, divisor=4))
def test_every_promise_holds_when_disks_forget_newer_leaders(seed: int, size: int) -> None:
    run(40_000 + seed, size, forgetting=True)
