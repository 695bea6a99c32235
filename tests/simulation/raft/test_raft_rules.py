"""Single rules of the Raft node, each on a small simulated group."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.meta_service.catalog.command_codec import encode_command
from lakemq.meta_service.catalog.commands import Txn
from lakemq.meta_service.catalog.tables import KEYS
from lakemq.meta_service.raft.engine import Peer
from lakemq.meta_service.raft.log.raft_log import LogFailed
from lakemq.meta_service.raft.node import RaftNode
from lakemq.meta_service.raft.state import Message
from lakemq.meta_service.raft.wire_format import BadMessage, decode_message, encode_message
from tests.support.meta.cluster import TIMING, Cluster, Member
from tests.support.meta.disk import MemorySource


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster(11, 3)
    with cluster.running():
        yield cluster


def node_of(member: Member) -> RaftNode:
    assert member.node is not None
    return member.node


def put(key: bytes) -> bytes:
    return encode_command(Txn((), ((key, b"v", 0),)))


def followers(cluster: Cluster) -> list[Member]:
    return [m for m in cluster.members.values() if m is not cluster.leader()]


def submit(member: Member, key: bytes) -> list[str]:
    answers: list[str] = []
    node = node_of(member)
    member.call(lambda: node.submit(put(key), lambda code, result: answers.append(code)))
    return answers


def hear(member: Member, source: str, **message: Any) -> None:
    member.receive(source, encode_message(message))


# ------------------------------------------------------------ elections


def test_a_leader_whose_process_is_dead_is_replaced_at_once(cluster: Cluster) -> None:
    leader = cluster.wait_for_leader()
    cluster.run_for(1.0)
    others = followers(cluster)
    leader.crash()
    for member in others:
        node = node_of(member)
        member.call(lambda node=node: node.peer_refused(leader.name))  # type: ignore[misc] # mypy cannot infer a lambda with a default
    cluster.run_until(lambda: cluster.leader() not in (None, leader), TIMING.election_min_s)


def test_one_that_is_wrong_about_it_changes_nothing(cluster: Cluster) -> None:
    leader = cluster.wait_for_leader()
    cluster.run_for(1.0)
    term = node_of(leader).term
    for member in cluster.members.values():
        node = node_of(member)
        member.call(lambda node=node: node.peer_refused(followers(cluster)[0].name))  # type: ignore[misc] # mypy cannot infer a lambda with a default
    wrong = followers(cluster)[0]
    wrong.call(lambda: node_of(wrong).peer_refused(leader.name))
    cluster.run_for(3.0)
    assert cluster.leader() is leader and node_of(leader).term == term


@pytest.mark.parametrize("seed", range(10))
def test_a_leader_hears_no_majority_when_another_is_elected(seed: int) -> None:
    cluster = Cluster(seed, 3)
    with cluster.running():
        leader = cluster.wait_for_leader()
        cluster.run_for(1.0)
        node = node_of(leader)
        assert node.hears_majority()
        cluster.isolate(leader.name)
        cluster.run_until(lambda: not node.hears_majority(), TIMING.election_min_s + 0.1)
        assert cluster.leader() in (None, leader), "it counted for a leader for too long"
        cluster.run_until(lambda: cluster.leader() not in (None, leader))


def test_a_vote_counts_once_however_often_it_comes() -> None:
    cluster = Cluster(1, 5)
    with cluster.running():
        cluster.wait_for_leader()
        cluster.run_for(1)
        (member,) = [m for m in cluster.members.values() if m.name == "m3"]
        cluster.isolate("m3")
        node = node_of(member)
        node.election_deadline = float("-inf")
        node._transferring = True  # go straight to the election
        member.run(lambda: None)
        assert node.state == 1
        for _ in range(5):
            hear(member, "m1", type="vote_reply", term=node.term, granted=True, pre=False)
        assert not node.is_leader
        hear(member, "m2", type="vote_reply", term=node.term, granted=True, pre=False)
        assert node.is_leader


def test_a_vote_of_a_stranger_does_not_count(cluster: Cluster) -> None:
    cluster.wait_for_leader()
    cluster.run_for(1)
    member = followers(cluster)[0]
    cluster.isolate(member.name)
    node = node_of(member)
    node.election_deadline = float("-inf")
    node._transferring = True
    member.run(lambda: None)
    hear(member, "stranger", type="vote_reply", term=node.term, granted=True, pre=False)
    assert not node.is_leader


def test_a_member_that_was_cut_off_does_not_disturb_when_it_comes_back(cluster: Cluster) -> None:
    """Pre-vote: its term did not rise, and the leader stays."""
    leader = cluster.wait_for_leader()
    cluster.run_for(1)
    term = node_of(leader).term
    away = followers(cluster)[0]
    cluster.isolate(away.name)
    cluster.run_for(20)
    assert node_of(away).term == term
    cluster.network.cut.clear()
    cluster.run_for(5)
    assert cluster.leader() is leader
    assert node_of(leader).term == term


def test_a_leader_cut_off_steps_down_within_a_second(cluster: Cluster) -> None:
    """Check-quorum, and another leads soon after."""
    leader = cluster.wait_for_leader()
    cluster.run_for(1)
    cluster.isolate(leader.name)
    begin = cluster.now
    cluster.run_until(lambda: not node_of(leader).is_leader)
    assert cluster.now - begin < TIMING.leader_fallback_s + 0.2
    cluster.run_until(lambda: cluster.leader() not in (None, leader))
    assert cluster.now - begin < 3.0


def test_a_deaf_leader_steps_down(cluster: Cluster) -> None:
    leader = cluster.wait_for_leader()
    cluster.run_for(1)
    for other in followers(cluster):
        cluster.network.cut.add((other.name, leader.name))
    cluster.run_until(lambda: not node_of(leader).is_leader, 3.0)
    cluster.run_until(lambda: cluster.leader() not in (None, leader), 5.0)


def test_a_partial_partition_does_not_make_leaders_come_and_go(cluster: Cluster) -> None:
    """Leader and one follower do not see each other; the third sees both."""
    leader = cluster.wait_for_leader()
    cluster.run_for(1)
    term = node_of(leader).term
    cut = followers(cluster)[0]
    cluster.network.cut |= {(leader.name, cut.name), (cut.name, leader.name)}
    cluster.run_for(30)
    assert cluster.leader() is leader
    assert node_of(leader).term == term


def test_leadership_is_transferred_on_request(cluster: Cluster) -> None:
    leader = cluster.wait_for_leader()
    cluster.run_for(1)
    target = followers(cluster)[0]
    begin = cluster.now
    leader.call(lambda: node_of(leader).transfer_leadership(target.name))
    cluster.run_until(lambda: cluster.leader() is target)
    assert cluster.now - begin < 0.5, "it must not wait for an election timeout"
    cluster.run_for(1)
    assert not node_of(leader).is_leader


def test_a_command_does_not_spoil_a_transfer(cluster: Cluster) -> None:
    """Taken in between, it would make the target's log too old to be elected."""
    leader = cluster.wait_for_leader()
    cluster.run_for(1)
    target = followers(cluster)[0]
    leader.call(lambda: node_of(leader).transfer_leadership(target.name))
    answers = submit(leader, b"in between")
    leader.run(lambda: None)
    assert answers == ["NO_LEADER"]
    begin = cluster.now
    cluster.run_until(lambda: cluster.leader() is target)
    assert cluster.now - begin < 0.5


def test_a_transfer_that_fails_does_not_stop_the_leader(cluster: Cluster) -> None:
    leader = cluster.wait_for_leader()
    cluster.run_for(1)
    target = followers(cluster)[0]
    cluster.isolate(target.name)
    assert node_of(leader).transfer_leadership(target.name)
    cluster.run_for(TIMING.election_min_s + 0.2)
    answers = submit(leader, b"afterwards")
    cluster.run_until(lambda: answers)
    assert answers == [""]


def test_a_transfer_to_a_member_that_lags_is_refused(cluster: Cluster) -> None:
    leader = cluster.wait_for_leader()
    cluster.run_for(1)
    target = followers(cluster)[0]
    cluster.isolate(target.name)
    submit(leader, b"more")
    cluster.run_for(0.7)
    assert node_of(leader).transfer_leadership(target.name) is False
    assert not node_of(leader).is_handing_over


def test_a_transfer_waits_until_the_heir_has_everything(cluster: Cluster) -> None:
    leader = cluster.wait_for_leader()
    cluster.run_for(1)
    target = followers(cluster)[0]
    answers: list[str] = []
    for number in range(50):
        node_of(leader).submit(put(b"k%d" % number), lambda code, result: answers.append(code))
    assert node_of(leader).transfer_leadership(target.name)
    assert not node_of(target)._transferring
    cluster.run_until(lambda: cluster.leader() is target, 1.0)
    assert answers == [""] * 50


def test_a_vote_is_remembered_over_a_crash(cluster: Cluster) -> None:
    """Else two members could lead one term."""
    cluster.wait_for_leader()
    cluster.run_for(1)
    for member in cluster.members.values():
        member.pause()
    voter = cluster.members["m0"]
    voter.resume()
    node = node_of(voter)
    term, last = node.term + 5, (node.log.last_index, node.log.last_term)
    cluster.run_for(2)

    def ask(candidate: str) -> list[Message]:
        sent: list[Message] = []
        node_of(voter).post = lambda peer, message: sent.append(message)  # type: ignore[method-assign]
        hear(
            voter, candidate, type="vote", term=term, pre=False, transfer=True,
            last_index=last[0], last_term=last[1],
        )  # fmt: skip
        cluster.run_for(0.1)
        return [message for message in sent if message["type"] == "vote_reply"]

    assert [told["granted"] for told in ask("m1")] == [True]
    voter.crash()
    voter.start()
    assert node_of(voter).term == term
    assert [told["granted"] for told in ask("m2")] == [False]
    assert [told["granted"] for told in ask("m1")] == [True]


# ------------------------------------------------------------ replication


def test_a_forged_acknowledgement_is_not_believed(cluster: Cluster) -> None:
    leader = cluster.wait_for_leader()
    cluster.run_for(1)
    node = node_of(leader)
    peer = followers(cluster)[0].name
    commit = node.commit_index
    hear(leader, peer, type="append_reply", term=node.term, ok=True, index=9999, round=0)
    assert node.match_index[Peer(peer)] < 9999
    assert node.commit_index == commit


def test_an_acknowledgement_of_another_term_is_dropped(cluster: Cluster) -> None:
    leader = cluster.wait_for_leader()
    cluster.run_for(1)
    node = node_of(leader)
    for other in followers(cluster):
        cluster.isolate(other.name)
    submit(leader, b"waiting")
    commit = node.commit_index
    for other in followers(cluster):
        hear(
            leader,
            other.name,
            type="append_reply",
            term=node.term - 1,
            ok=True,
            index=node.log.last_index,
            round=0,
        )
    leader.run(lambda: None)
    assert node.commit_index == commit


def test_the_commit_index_is_clamped_to_what_the_message_proves(cluster: Cluster) -> None:
    """A follower's own tail may be another leader's: a heartbeat does not vouch for it."""
    leader = cluster.wait_for_leader()
    cluster.run_for(1)
    member = followers(cluster)[0]
    node = node_of(member)
    for other in cluster.members:
        cluster.isolate(other)
    last = node.log.last_index
    node.log.add(b"\x00uncommitted", last + 1, node.term)
    hear(
        member,
        leader.name,
        type="append",
        term=node.term,
        prev_index=last,
        prev_term=node.log.term_at(last),
        entries=[],
        commit=last + 1,
        round=0,
    )
    assert node.commit_index == last


def test_a_late_acknowledgement_does_not_rewind_what_was_sent(cluster: Cluster) -> None:
    leader = cluster.wait_for_leader()
    cluster.run_for(1)
    node = node_of(leader)
    peer = followers(cluster)[0]
    for number in range(5):
        submit(leader, b"k%d" % number)
    cluster.run_for(1)
    before = node.next_index[Peer(peer.name)]
    hear(leader, peer.name, type="append_reply", term=node.term, ok=True, index=3, round=0)
    assert node.next_index[Peer(peer.name)] >= before


def test_a_leader_that_contradicts_what_is_committed_stops_the_member(cluster: Cluster) -> None:
    leader = cluster.wait_for_leader()
    cluster.run_for(1)
    node = node_of(followers(cluster)[0])
    message = {
        "type": "append",
        "term": node.term + 5,
        "prev_index": 1,
        "prev_term": 0,
        "entries": [(b"\x00lie", 2, node.term + 5)],
        "commit": 2,
        "round": 0,
    }
    with pytest.raises(LogFailed, match="contradicts entry 2"):
        node.on_message(leader.name, decode_message(encode_message(message)))


def test_a_follower_that_reconnects_gets_no_snapshot_that_it_does_not_need(
    cluster: Cluster,
) -> None:
    """Before its first acknowledgement the leader knows nothing of its log."""
    leader = cluster.wait_for_leader()
    cluster.run_for(1)
    node = node_of(leader)
    member = followers(cluster)[0]
    begun: list[bool] = []
    node.snapshots.begin = lambda: bool(begun.append(True))  # type: ignore[method-assign]
    node.match_index[Peer(member.name)] = 0
    leader.run(lambda: node.peer_connected(member.name))
    submit(leader, b"more")
    cluster.run_for(1)
    assert begun == []
    assert node.match_index[Peer(member.name)] == node.log.last_index


def test_a_voter_whose_disk_was_replaced_elects_nobody_without_what_it_acknowledged(
    cluster: Cluster,
) -> None:
    """m0 leads, its write is on m0 and m1. m1 loses its disk, m0 dies: m2 has never seen it."""
    leader = cluster.wait_for_leader()
    cluster.run_for(1)
    kept, behind = followers(cluster)
    cluster.isolate(behind.name)
    answers = submit(leader, b"precious")
    cluster.run_until(lambda: answers)
    assert answers == [""]
    leader.crash()
    kept.wipe()
    cluster.network.cut.clear()
    kept.start()
    cluster.run_for(10)
    assert cluster.leader() is None
    assert node_of(kept).log.is_new
    leader.start()
    cluster.wait_for_leader()
    cluster.run_for(2)
    assert not node_of(kept).log.is_new
    assert any(b"precious" in entry.command for entry in node_of(kept).log[:])
    leader.crash()
    again = cluster.run_until(lambda: cluster.leader() not in (None, leader) and cluster.leader())
    assert any(b"precious" in entry.command for entry in node_of(again).log[:])


def test_a_new_member_that_has_a_part_of_the_log_does_not_campaign(cluster: Cluster) -> None:
    cluster.wait_for_leader()
    cluster.run_for(1)
    member = followers(cluster)[0]
    member.wipe()
    cluster.isolate(member.name)
    member.start()
    cluster.run_for(2.5)
    node = node_of(member)
    node.log.add(b"\x01", 2, node.term + 1)
    cluster.isolate(member.name)
    assert not node._may_campaign
    term = node.term
    cluster.run_for(5)
    assert (node.term, node.elections) == (term, 0)


def test_a_leader_that_stops_closes_the_snapshots_that_it_sends(cluster: Cluster) -> None:
    leader = cluster.wait_for_leader()
    cluster.run_for(1)
    node = node_of(leader)
    closed: list[bool] = []
    source = MemorySource(5, 1, b"x" * 10_000)
    source.close = lambda: closed.append(True)  # type: ignore[method-assign]
    node.snapshots.open_newest = lambda: source  # type: ignore[method-assign]
    node._send_snapshot(Peer(followers(cluster)[0].name), cluster.now)
    node.stop()
    assert closed == [True]


def test_a_snapshot_that_ends_before_the_log_is_closed_unsent(cluster: Cluster) -> None:
    leader = cluster.wait_for_leader()
    cluster.run_for(1)
    node = node_of(leader)
    closed: list[bool] = []
    source = MemorySource(node.log.first_index - 1, 1, b"x")
    source.close = lambda: closed.append(True)  # type: ignore[method-assign]
    node.snapshots.open_newest = lambda: source  # type: ignore[method-assign]
    node._send_snapshot(Peer(followers(cluster)[0].name), cluster.now)
    assert closed == [True] and not node._sending


def test_followers_learn_of_a_commit_without_waiting_for_a_heartbeat(cluster: Cluster) -> None:
    leader = cluster.wait_for_leader()
    cluster.run_for(1)
    answers = submit(leader, b"news")
    cluster.run_until(lambda: answers)
    begin = cluster.now
    cluster.run_until(
        lambda: all(KEYS + b"news" in member.store.rows for member in followers(cluster))
    )
    assert cluster.now - begin < 0.03


# ------------------------------------------------------------ calls


def test_a_follower_refuses_definitely(cluster: Cluster) -> None:
    cluster.wait_for_leader()
    cluster.run_for(1)
    member = followers(cluster)[0]
    answers = submit(member, b"y")
    member.run(lambda: None)
    assert answers == ["NOT_LEADER"]


def test_pending_calls_fail_as_unknown_when_the_leader_steps_down(cluster: Cluster) -> None:
    leader = cluster.wait_for_leader()
    cluster.run_for(1)
    cluster.isolate(leader.name)
    answers = submit(leader, b"pending")
    cluster.run_until(lambda: answers, 3.0)
    assert answers == ["OUTCOME_UNKNOWN"]


def test_too_many_waiting_calls_are_refused_definitely() -> None:
    cluster = Cluster(4, 3, replace(TIMING, waiting_max=5))
    with cluster.running():
        leader = cluster.wait_for_leader()
        cluster.run_for(1)
        for other in followers(cluster):
            cluster.isolate(other.name)
        answers = [submit(leader, b"k%d" % number) for number in range(7)]
        leader.run(lambda: None)
        assert [a for a in answers if a] == [["OVERLOADED"], ["OVERLOADED"]]


def test_a_read_waits_for_a_majority(cluster: Cluster) -> None:
    leader = cluster.wait_for_leader()
    cluster.run_for(1)
    cluster.isolate(leader.name)
    answers: list[str] = []
    leader.call(lambda: node_of(leader).read_barrier(lambda code, _: answers.append(code)))
    cluster.run_for(0.5)
    assert answers == []
    cluster.run_until(lambda: answers, 3.0)
    assert answers == ["NOT_LEADER"]


def test_a_read_at_a_new_leader_waits_until_it_knows_what_is_committed(cluster: Cluster) -> None:
    """Ongaro's thesis §6.4, step 1: its target has what the old leader acknowledged, was never told
    that it is committed, and learns that it leads from one that lags before that commits it."""
    leader = cluster.wait_for_leader()
    cluster.run_for(1)
    target, lagging = followers(cluster)
    cluster.isolate(lagging.name)
    answers = submit(leader, b"k")
    cluster.run_until(lambda: answers)
    assert answers == [""]
    assert target.store.get(KEYS + b"k") is None, "it was told of the commit already"
    cluster.network.cut.clear()
    cluster.isolate(leader.name)
    cluster.run_until(lambda: node_of(target).is_leader)
    found: list[tuple[str, bool]] = []
    target.call(
        lambda: node_of(target).read_barrier(
            lambda code, _: found.append((code, target.store.get(KEYS + b"k") is not None))
        )
    )
    cluster.run_until(lambda: found)
    assert found == [("", True)]


def test_the_only_voter_reads_by_itself() -> None:
    """At once when it has applied everything, else once it has; it asks nobody."""
    cluster = Cluster(3, 1)
    with cluster.running():
        leader = cluster.wait_for_leader()
        node = node_of(leader)
        early: list[str] = []
        leader.call(lambda: node.read_barrier(lambda code, _: early.append(code)))
        cluster.run_until(lambda: early, 1.0)
        cluster.run_for(1)
        answers: list[str] = []
        node.read_barrier(lambda code, _: answers.append(code))
        assert (early, answers, node.rounds) == ([""], [""], 0)


def test_reads_that_come_together_share_a_round(cluster: Cluster) -> None:
    leader = cluster.wait_for_leader()
    cluster.run_for(1)
    node = node_of(leader)
    before = node.rounds
    answers: list[str] = []
    for _ in range(200):
        leader.call(lambda: node.read_barrier(lambda code, _: answers.append(code)))
    cluster.run_until(lambda: len(answers) == 200, 3.0)
    assert node.rounds - before <= 3


# ------------------------------------------------------------ what arrives


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgpack.packb([]),
        msgpack.packb({}),
        msgpack.packb({"type": "append"}),
        msgpack.packb({"type": "vote_reply", "term": -1, "granted": True, "pre": False}),
        msgpack.packb({"type": "vote_reply", "term": 1, "granted": 1, "pre": False}),
        msgpack.packb({"type": "vote_reply", "term": 2**63, "granted": True, "pre": False}),
        msgpack.packb({"type": ["vote"], "term": 1}),
        msgpack.packb(
            {
                "type": "append",
                "term": 1,
                "prev_index": 1,
                "prev_term": 0,
                "entries": [[b"", 2, 1]],
                "commit": 0,
                "round": 0,
            }
        ),
        bytes(3 * 1024 * 1024),
    ],
)
def test_bad_messages_are_refused_before_anything_acts_on_them(data: bytes) -> None:
    with pytest.raises(BadMessage):
        decode_message(data)


_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.binary() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
_fields = st.sampled_from(
    ["term", "pre", "index", "entries", "data", "commit", "round", "ok", "prev_index", "nonce"]
)
_kinds = st.sampled_from(["append", "append_reply", "recover", "recovered", "snapshot"]) | _values


@given(_kinds, st.dictionaries(_fields, _values))
def test_any_message_is_read_or_refused(kind: object, fields: dict[str, object]) -> None:
    with contextlib.suppress(BadMessage):
        decode_message(msgpack.packb({"type": kind, **fields}))


@given(st.binary(max_size=100))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(BadMessage):
        decode_message(data)
