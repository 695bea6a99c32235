"""Goal: what one consumer group decides, step by step (KIP-848, KIP-1251)."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.broker_core.api.errors import (
    GroupNotEmpty,
    InstanceInUse,
    InvalidRequest,
    MemberFenced,
    Unavailable,
    UnknownMember,
)
from lakemq.broker_core.api.groups.types import Heartbeat
from lakemq.broker_core.api.types import TopicPartition
from lakemq.broker_core.groups.balance import balance
from lakemq.broker_core.groups.coordinator import (
    Assignment,
    ConsumerGroup,
    GroupCoordinator,
    Tells,
)

FOUR = {"t": 4}


def places(*numbers: int, topic: str = "t") -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, number) for number in numbers)


class Talk:
    """Sends the heartbeats of several members and remembers what each was told."""

    def __init__(self, group: ConsumerGroup | None = None) -> None:
        self.group = group or ConsumerGroup("g")
        self.now_ms = 0
        self.told: dict[str, Assignment] = {}
        self._sequence = 0

    def beat(self, member: str, **more: object) -> None:
        self._sequence += 1
        seen = self.told.get(member)
        values: dict[str, object] = {
            "joining": seen is None,
            "topics": frozenset({"t"}),
            "holds": frozenset(seen.partitions) if seen else frozenset(),
            "revision": seen.revision if seen else 0,
            **more,
        }
        values = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 60_000, **values}
        beat = Heartbeat(member, self._sequence, **values)  # type: ignore[arg-type]
        self.take(self.group.heartbeat(beat, FOUR, self.now_ms))

    def take(self, tells: Tells) -> None:
        self.told.update(tells)

    def has(self, member: str) -> frozenset[TopicPartition]:
        return frozenset(self.told[member].partitions)


def test_a_partition_goes_to_its_new_owner_only_when_the_old_one_gave_it_up() -> None:
    talk = Talk()
    talk.beat("a")
    assert talk.has("a") == places(0, 1, 2, 3)
    before = talk.told["a"]
    talk.beat("b")
    assert talk.has("a") == places(0, 1) and talk.has("b") == places()
    talk.beat("a", holds=places(0, 1, 2, 3))
    assert talk.has("b") == places()
    talk.beat("a", holds=places(0, 1), revision=before.revision)
    assert talk.has("b") == places(), "said before it knew"
    talk.beat("a", holds=places(0, 1, 3))
    assert talk.has("b") == places(2)
    talk.beat("a")
    assert talk.has("b") == places(2, 3)
    assert talk.group.state == "stable"


def test_others_go_on_while_one_gives_up() -> None:
    talk = Talk()
    talk.beat("a")
    talk.beat("b")
    assert talk.has("a") == places(0, 1)
    talk.group.check_commit("a", 1, 1, places(0, 1, 2, 3), talk.now_ms)


def test_a_session_ends_and_its_partitions_go_on() -> None:
    talk = Talk()
    talk.beat("a")
    talk.beat("b")
    talk.now_ms = 9_999
    talk.beat("b")
    talk.take(talk.group.tick(9_999))
    assert talk.has("b") == places()
    talk.take(talk.group.tick(10_000))
    assert talk.has("b") == places(0, 1, 2, 3)
    with pytest.raises(UnknownMember):
        talk.beat("a")


def test_who_does_not_give_up_is_fenced_and_keeps_its_partitions_until_its_session_ends() -> None:
    talk = Talk()
    talk.beat("a", rebalance_timeout_ms=1000)
    talk.beat("b")
    talk.now_ms = 900
    talk.beat("a", holds=places(0, 1, 2, 3))
    talk.group.tick(1000)
    with pytest.raises(MemberFenced, match="did not give up"):
        talk.beat("a", holds=places(0, 1))
    assert talk.has("b") == places()
    talk.now_ms = 5000
    talk.beat("b")
    talk.take(talk.group.tick(10_900))
    assert talk.has("b") == places(0, 1, 2, 3)


def test_commits_are_fenced_by_owner_epoch_and_order() -> None:
    talk = Talk()
    talk.beat("a")
    check = partial(talk.group.check_commit, now_ms=0)
    check("a", 1, 1, places(0, 3))
    with pytest.raises(MemberFenced, match="behind"):
        check("a", 1, 1, places(0))
    with pytest.raises(MemberFenced, match="epoch 2"):
        check("a", 2, 2, places(0))
    with pytest.raises(MemberFenced, match="epoch 0"):
        check("a", 0, 2, places(0))
    with pytest.raises(UnknownMember):
        check("b", 1, 1, places(0))
    with pytest.raises(GroupNotEmpty):
        check("", 0, 0, places(0))
    talk.beat("b")
    check("a", 1, 3, places(2))
    talk.beat("a")
    with pytest.raises(MemberFenced, match="t-2"):
        check("a", 1, 4, places(2))
    check("a", 1, 4, places(0))
    with pytest.raises(MemberFenced):
        check("b", 1, 1, places(2))
    check("b", talk.told["b"].epoch, 1, places(2))


def test_a_static_member_comes_back_to_what_it_had() -> None:
    talk = Talk()
    talk.beat("a", instance_id="one")
    talk.beat("b", instance_id="two")
    talk.beat("a", instance_id="one")
    had, epoch = talk.has("a"), talk.group.epoch
    with pytest.raises(InstanceInUse, match="member a"):
        talk.beat("a2", instance_id="one")
    talk.group.leave("a", talk.now_ms, away=True)
    assert talk.has("b") == places(2, 3)
    with pytest.raises(UnknownMember):
        talk.group.check_commit("a", 1, 9, places(0), talk.now_ms)
    talk.beat("a2", instance_id="one")
    assert (talk.has("a2"), talk.group.epoch) == (had, epoch)


def test_a_static_member_that_died_is_succeeded_without_a_rebalance() -> None:
    talk = Talk()
    talk.beat("a", instance_id="one")
    talk.beat("b")
    talk.beat("a", instance_id="one")
    epoch = talk.group.epoch
    talk.now_ms = 6000
    talk.beat("b")
    with pytest.raises(InstanceInUse):
        talk.beat("a2", instance_id="one")
    talk.take(talk.group.tick(10_000))
    assert talk.has("b") == places(2, 3)
    talk.now_ms = 10_100
    talk.beat("a2", instance_id="one")
    assert (talk.has("a2"), talk.group.epoch) == (places(0, 1), epoch)


def test_a_static_member_that_stays_away_loses_its_partitions() -> None:
    talk = Talk()
    talk.beat("a", instance_id="one")
    talk.beat("b")
    talk.group.leave("a", 0, away=True)
    talk.now_ms = 9000
    talk.beat("b")
    talk.take(talk.group.tick(10_000))
    assert talk.has("b") == places(0, 1, 2, 3)


def test_partitions_that_come_are_given() -> None:
    talk = Talk()
    talk.beat("a")
    talk.take(talk.group.partitions_are({"t": 6, "other": 1}, 0))
    assert talk.has("a") == places(0, 1, 2, 3, 4, 5)
    assert talk.group.partitions_are({"t": 6}, 0) == {}
    talk.take(talk.group.partitions_are({}, 0))
    assert talk.has("a") == places()


def test_a_coordinator_that_stood_still_ends_no_session() -> None:
    coordinator = GroupCoordinator(groups_max=1, members_max=1)
    talk = Talk(coordinator.group("g"))
    coordinator.tick(FOUR, 0)
    talk.beat("a")
    coordinator.tick(FOUR, 200)
    coordinator.tick(FOUR, 60_000)
    talk.now_ms = 60_001
    talk.beat("a")
    coordinator.tick(FOUR, 61_000)
    assert list(talk.group.members) == ["a"]
    for now_ms in range(62_000, 72_000, 1000):
        coordinator.tick(FOUR, now_ms)
    assert not talk.group.members


def test_groups_and_members_are_bounded() -> None:
    coordinator = GroupCoordinator(groups_max=1, members_max=1)
    group = coordinator.group("g")
    assert coordinator.group("g") is group
    with pytest.raises(InvalidRequest, match="1 groups"):
        coordinator.group("h")
    coordinator.heartbeat(group, Heartbeat("a", 1, joining=True), {}, 0)
    with pytest.raises(InvalidRequest, match="1 members"):
        coordinator.heartbeat(group, Heartbeat("b", 1, joining=True), {}, 0)


def test_epochs_go_on_behind_those_of_stored_commits() -> None:
    talk = Talk(GroupCoordinator(groups_max=1, members_max=1).group("g", 41))
    talk.beat("a")
    assert talk.told["a"].epoch == 42


_NAMES = st.sampled_from("abc")


@given(
    topics_of=st.dictionaries(st.sampled_from("vwxyz"), st.frozensets(_NAMES), min_size=1),
    partitions=st.dictionaries(_NAMES, st.integers(1, 7)),
    holders=st.lists(st.sampled_from("vwxyz"), max_size=21),
)
def test_balance(
    topics_of: dict[str, frozenset[str]], partitions: dict[str, int], holders: list[str]
) -> None:
    everything = [TopicPartition(name, n) for name in sorted(partitions) for n in range(8)]
    held: dict[str, frozenset[TopicPartition]] = {}
    for holder, place in zip(holders, everything, strict=False):
        held[holder] = held.get(holder, frozenset()) | {place}
    shares = balance(topics_of, partitions, held)
    given_out = sorted(place for share in shares.values() for place in share)
    assert given_out == [
        place
        for place in everything
        if place.partition < partitions[place.topic]
        and any(place.topic in topics for topics in topics_of.values())
    ]
    for member, share in shares.items():
        assert {place.topic for place in share} <= topics_of[member]
        for other, theirs in shares.items():
            if any(place.topic in topics_of[other] for place in share):
                assert len(share) - len(theirs) <= 1
    assert balance(topics_of, partitions, shares) == shares


def test_whoever_began_at_an_offset_that_did_not_hold_is_put_out() -> None:
    talk = Talk()
    talk.beat("a")
    talk.beat("b")
    talk.beat("a")
    assert (talk.has("a"), talk.has("b")) == (places(0, 1), places(2, 3))
    talk.group.withdraw(places(0, 2), "a")
    epoch = talk.told["b"].epoch
    talk.group.check_commit("a", talk.told["a"].epoch, 1, places(0), talk.now_ms)
    with pytest.raises(MemberFenced):
        talk.group.check_commit("b", epoch, 1, places(2), talk.now_ms)
    with pytest.raises(MemberFenced):
        talk.beat("b")
    talk.take(talk.group.leave("b", 0))
    talk.beat("a")
    assert talk.has("a") == places(0, 1, 2, 3)


def test_time_in_which_the_coordinator_stood_still_does_not_count() -> None:
    talk = Talk()
    talk.beat("a", rebalance_timeout_ms=1000)
    talk.now_ms = 5_900
    talk.beat("b")
    talk.group.stalled(5_000, 6_000)
    silent = {name: member.seen_ms for name, member in talk.group.members.items()}
    assert silent == {"a": 5_000, "b": 6_000}, "nobody is seen later than now"
    talk.group.tick(11_899)
    assert not talk.group.members["a"].fenced, "its time to give up went on from there"
    talk.group.tick(11_900)
    assert talk.group.members["a"].fenced
    talk.take(talk.group.tick(15_000))
    assert talk.has("b") == places(0, 1, 2, 3)
    talk.group.tick(15_999)
    assert talk.group.members
    talk.group.tick(16_000)
    assert not talk.group.members


def test_a_static_member_that_leaves_for_good_is_not_waited_for() -> None:
    talk = Talk()
    talk.beat("a", instance_id="one")
    talk.beat("b", instance_id="two")
    talk.take(talk.group.leave("a", 0))
    assert talk.has("b") == places(0, 1, 2, 3)
    assert list(talk.group.members) == ["b"]
    assert talk.group.leave("a", 0) == {}


def test_only_who_joins_becomes_a_member() -> None:
    with pytest.raises(UnknownMember):
        ConsumerGroup("g").heartbeat(Heartbeat("a", 1, topics=frozenset({"t"})), FOUR, 0)


def test_members_of_a_former_coordinator_go_on_with_what_they_hold() -> None:
    talk = Talk(ConsumerGroup("g", 7 << 32, takeover_until_ms=10_000))
    claims = dict.fromkeys(places(0, 1), (6 << 32) + 3)
    with pytest.raises(Unavailable, match="just taken over"):
        talk.group.check_commit("a", 1, 1, places(0), talk.now_ms)
    with pytest.raises(Unavailable, match="just taken over"):
        talk.group.check_settled(talk.now_ms)
    talk.beat("a", joining=False, holds=places(0, 1), claims=claims)
    assert talk.told["a"].partitions == claims
    assert talk.told["a"].epoch > 7 << 32
    talk.group.check_commit("a", (6 << 32) + 4, 1, places(0), talk.now_ms)
    # One that joins gets nothing that a member which is still on its way may hold.
    talk.beat("b")
    assert talk.has("b") == frozenset()
    with pytest.raises(UnknownMember):
        talk.beat("c", joining=False, claims={})
    talk.now_ms = 9_999
    talk.beat("a")
    talk.beat("b")
    talk.take(talk.group.tick(talk.now_ms))
    assert talk.has("b") == frozenset()
    talk.now_ms = 10_000
    talk.take(talk.group.tick(talk.now_ms))
    assert talk.has("b") == places(2, 3)
    assert talk.told["a"].partitions == claims


def test_whoever_comes_back_too_late_is_fenced() -> None:
    talk = Talk(ConsumerGroup("g", 7 << 32, takeover_until_ms=10_000))
    talk.now_ms = 10_000
    claims = dict.fromkeys(places(0), (6 << 32) + 3)
    with pytest.raises(UnknownMember):
        talk.beat("a", joining=False, holds=places(0), claims=claims)
    with pytest.raises(MemberFenced, match="in time"):
        talk.group.check_commit("a", (6 << 32) + 3, 1, places(0), talk.now_ms)


def test_what_one_has_brought_back_no_other_can_claim() -> None:
    talk = Talk(ConsumerGroup("g", 7 << 32, takeover_until_ms=10_000))
    talk.beat("a", joining=False, claims=dict.fromkeys(places(0), 6 << 32))
    talk.beat("b", joining=False, claims=dict.fromkeys(places(0, 1, 9), 6 << 32))
    assert (talk.has("a"), talk.has("b")) == (places(0), places(1))


def test_one_comes_back_once() -> None:
    talk = Talk(ConsumerGroup("g", 7 << 32, takeover_until_ms=10_000))
    claims = dict.fromkeys(places(0), (6 << 32) + 3)
    talk.beat("a", joining=False, claims=claims)
    talk.group.check_commit("a", (6 << 32) + 4, 3, places(0), talk.now_ms)
    talk.group.leave("a", talk.now_ms)
    # A second time it would not be known that this commit was overtaken.
    with pytest.raises(UnknownMember):
        talk.beat("a", joining=False, claims=claims)
    with pytest.raises(Unavailable):
        talk.group.check_commit("a", (6 << 32) + 4, 2, places(0), talk.now_ms)
