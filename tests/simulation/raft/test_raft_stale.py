"""What comes late, from another term or from a member that does not vote, says nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lakemq.meta_service.raft.engine import CANDIDATE, FOLLOWER, LEADER, Peer
from lakemq.meta_service.raft.node import RaftNode
from lakemq.meta_service.raft.state import APPLIED, NOT_LEADER, Message
from tests.simulation.raft.test_raft_rules import followers, hear, node_of, submit
from tests.support.meta.cluster import Cluster, Member


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three members, and m3 that may join."""
    cluster = Cluster(21, 3, spare=1)
    with cluster.running():
        yield cluster


def voters_but(cluster: Cluster, leader: Member) -> list[Member]:
    return [member for member in followers(cluster) if member.name in cluster.first_voters]


def cut_off_all(cluster: Cluster) -> tuple[Member, RaftNode, Member]:
    """The leader, its node and a follower, once nobody hears anybody."""
    leader = cluster.wait_for_leader()
    cluster.run_for(1)
    for name in cluster.members:
        cluster.isolate(name)
    return leader, node_of(leader), voters_but(cluster, leader)[0]


def campaign(member: Member) -> RaftNode:
    node = node_of(member)
    node.election_deadline = float("-inf")
    node._transferring = True  # go straight to the election
    member.run(lambda: None)
    assert node.state == CANDIDATE
    return node


# ------------------------------------------------------------ learners


def test_a_learner_confirms_no_read(cluster: Cluster) -> None:
    leader = cluster.wait_for_leader()
    cluster.run_for(1)
    node = node_of(leader)
    leader.run(lambda: node.add_learner("m3", "here"))
    cluster.run_for(1)
    for other in voters_but(cluster, leader):
        cluster.isolate(other.name)
    before = node._round_seen[Peer("m3")]
    answers: list[str] = []
    leader.call(lambda: node.read_barrier(lambda code, _: answers.append(code)))
    cluster.run_for(0.3)
    assert node._round_seen[Peer("m3")] > before, "the learner answers the round"
    assert APPLIED not in answers
    cluster.run_until(lambda: answers)
    assert answers == [NOT_LEADER]


def test_a_learner_does_not_count_for_a_member_that_recovers(cluster: Cluster) -> None:
    """The entry that outlives what was forgotten has to be on a majority of voters."""
    leader = cluster.wait_for_leader()
    cluster.run_for(1)
    node = node_of(leader)
    leader.run(lambda: node.add_learner("m3", "here"))
    cluster.run_for(1)
    asking, away = voters_but(cluster, leader)
    cluster.isolate(away.name)
    asking.wipe()
    asking.start()
    cluster.run_for(0.5)  # the leader still leads: it has heard from `away` a moment ago
    assert node.match_index[Peer("m3")] == node.log.last_index
    assert node_of(asking)._has_forgotten
    cluster.network.cut.clear()
    cluster.run_until(lambda: not node_of(asking).log.is_new)


# ------------------------------------------------------------ acknowledgements


def test_a_late_acknowledgement_takes_nothing_back(cluster: Cluster) -> None:
    leader, node, other = cut_off_all(cluster)
    peer = Peer(other.name)
    acknowledged = node.match_index[peer]
    for number in range(5):
        submit(leader, b"k%d" % number)
    leader.run(lambda: None)
    assert node.next_index[peer] == node.log.last_index + 1 > acknowledged + 5
    told = {"type": "append_reply", "term": node.term, "ok": True}
    sent: list[Message] = []
    node.post = lambda peer, message: sent.append(message)  # type: ignore[method-assign]
    hear(leader, other.name, **told, index=acknowledged, round=0)
    assert not any(message["entries"] for message in sent), "it is under way already"
    hear(leader, other.name, **told, index=acknowledged + 3, round=7)
    hear(leader, other.name, **told, index=acknowledged + 1, round=3)
    assert node.match_index[peer] == acknowledged + 3
    assert node._round_seen[peer] == 7


# ------------------------------------------------------------ votes


def test_a_vote_for_an_earlier_candidacy_does_not_count(cluster: Cluster) -> None:
    _, _, member = cut_off_all(cluster)
    node = campaign(member)
    told = {"type": "vote_reply", "granted": True, "pre": False}
    hear(member, "m0" if member.name != "m0" else "m1", **told, term=node.term - 1)
    assert node.state == CANDIDATE
    hear(member, "m0" if member.name != "m0" else "m1", **told, term=node.term)
    assert node.state == LEADER


def test_a_vote_that_comes_when_the_candidate_has_given_up_does_not_count(
    cluster: Cluster,
) -> None:
    leader, _, member = cut_off_all(cluster)
    node = campaign(member)
    member.run(lambda: node.become_follower(node.term, Peer(leader.name)))
    hear(member, leader.name, type="vote_reply", granted=True, pre=False, term=node.term)
    assert node.state == FOLLOWER


@pytest.mark.parametrize("ahead", [0, 2])
def test_an_answer_to_another_pre_vote_begins_no_election(cluster: Cluster, ahead: int) -> None:
    leader, _, member = cut_off_all(cluster)
    node = node_of(member)
    node.election_deadline = float("-inf")
    member.run(lambda: None)  # it asks who would vote
    term = node.term
    hear(member, leader.name, type="vote_reply", granted=True, pre=True, term=term + ahead)
    assert (node.term, node.state) == (term, FOLLOWER)
    hear(member, leader.name, type="vote_reply", granted=True, pre=True, term=term + 1)
    assert (node.term, node.state) == (term + 1, CANDIDATE)


# ------------------------------------------------------------ leaders of other terms


def test_entries_of_an_earlier_leader_are_not_taken(cluster: Cluster) -> None:
    leader, _, member = cut_off_all(cluster)
    node = node_of(member)
    term, last, following = node.term, node.log.last_index, node.leader
    member.run(lambda: node.become_follower(term + 3, None))
    hear(
        member,
        leader.name,
        type="append",
        term=term,
        prev_index=last,
        prev_term=node.log.term_at(last),
        entries=[(b"\x00late", last + 1, term)],
        commit=last + 1,
        round=0,
    )
    assert (node.log.last_index, node.term, node.leader) == (last, term + 3, None)
    assert following is not None


def test_only_the_leader_of_the_term_hands_over(cluster: Cluster) -> None:
    leader, _, member = cut_off_all(cluster)
    node = node_of(member)
    (third,) = (other for other in voters_but(cluster, leader) if other is not member)
    hear(member, leader.name, type="timeout_now", term=node.term - 1)
    hear(member, third.name, type="timeout_now", term=node.term)
    assert node.state == FOLLOWER
    hear(member, leader.name, type="timeout_now", term=node.term)
    assert node.state == CANDIDATE
