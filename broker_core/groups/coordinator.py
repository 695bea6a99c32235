"""Consumer groups: who reads which partition.

After KIP-848 (assignment by the broker, member epochs, incremental cooperative rebalance) and
KIP-1251 (a commit is checked against the epoch in which its partition was given). What keeps two
members from handling the same record:

- A partition is owned by one member. It becomes free only when the owner says that it has given it
  up, in a heartbeat that shows that it knew it had to (`revision`), or when the owner's session
  ends: `session_timeout_ms` after its last heartbeat was accepted.
- A member hands out records only within `session_timeout_ms` of *sending* a heartbeat that was
  answered, which ends before the coordinator's count does.
- A commit is taken only from the owner, in an epoch that is not older than its ownership.

A coordinator that takes over from another node knows committed offsets, not members. Until
`takeover_until_ms` it gives nothing away; members that come with what they hold go on with it:

- A member's lease is not longer than that time. It began before the former coordinator had to stop,
  so it ends before anything is given to others.
- A member tells in which epochs its partitions were given as long as its lease lasts. It is then
  their only owner: no coordinator since has waited to the end of its time, or it would not last.
  One that was told by a coordinator that is `alone` tells none: the next one may not have waited.
- Epochs begin behind those of all coordinators before (`FIRST_EPOCH_BITS`): commits of members that
  did not come back in time are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from lakemq.broker_core.api.errors import (
    GroupNotEmpty,
    InstanceInUse,
    InvalidRequest,
    MemberFenced,
    Unavailable,
    UnknownMember,
)
from lakemq.broker_core.api.groups.types import NOTHING, Heartbeat
from lakemq.broker_core.api.types import TopicPartition
from lakemq.broker_core.groups.balance import balance

FIRST_EPOCH_BITS: Final = 32
"""Epochs of a coordinator begin at its leader epoch, shifted by so many bits."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What is sent to a member: all the partitions that it may read."""

    epoch: int
    """The member's epoch; its commits carry it."""
    revision: int
    """Grows with every change; members ignore older ones."""
    sequence: int
    """Of the newest heartbeat that was accepted."""
    partitions: Mapping[TopicPartition, int]
    """Partition -> epoch in which it was given. A partition whose epoch changed was another
    member's in between."""


@dataclass(slots=True)
class Member:
    """A member as the coordinator knows it."""

    member_id: str
    instance_id: str
    topics: frozenset[str]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    seen_ms: int
    sequence: int
    epoch: int
    owned: dict[TopicPartition, int] = field(default_factory=dict)
    """Partition -> epoch in which it was given; until it is free again."""
    revoking: dict[TopicPartition, int] = field(default_factory=dict)
    """Those of `owned` that it must give up -> revision that asked for it."""
    revoke_deadline_ms: int = 0
    revision: int = 0
    fenced: bool = False
    """It kept what it had to give up for too long: its heartbeats count no more."""
    away: bool = False
    """A static member that left for a while; its partitions wait for its return."""
    commit_sequence: int = 0
    wanted_ms: int | None = None
    """When another process last asked for this instance id."""

    @property
    def assigned(self) -> dict[TopicPartition, int]:
        """Partitions that it owns."""
        return {at: epoch for at, epoch in self.owned.items() if at not in self.revoking}

    def succeeded_at(self, now_ms: int) -> bool:
        """Whether its session's end leaves a process that waits to take its place."""
        wanted_ms = self.wanted_ms
        waits = wanted_ms is not None and now_ms - wanted_ms < self.session_timeout_ms
        return waits and not self.away

    def assignment(self) -> Assignment:
        """Its assignment as it is sent to it."""
        return Assignment(self.epoch, self.revision, self.sequence, self.assigned)


Tells = dict[str, Assignment]
"""Member id -> the assignment to send to it now."""


class ConsumerGroup:
    """One group. Methods return the assignments to send to its members."""

    def __init__(self, name: str, epoch: int = 0, takeover_until_ms: int | None = None) -> None:
        """`epoch`: behind which its epochs begin. `takeover_until_ms`: until when members of a
        former coordinator may come back; None: there was none."""
        self.name = name
        self.first_epoch = epoch
        self.epoch = epoch
        """Raised by every change of members, subscriptions or partitions."""
        self._takeover_until_ms = takeover_until_ms
        self.members: dict[str, Member] = {}
        self._came_back: set[str] = set()
        """Members of the former coordinator that did, while they may."""
        self.rebalances = 0
        # Members ignore older ones, and may have those of a former coordinator.
        self._revision = epoch
        self._target: dict[str, frozenset[TopicPartition]] = {}
        self._partitions: dict[str, int] = {}

    @property
    def topics(self) -> frozenset[str]:
        """Topics that any member subscribes to."""
        return frozenset().union(*(member.topics for member in self.members.values()))

    @property
    def state(self) -> str:
        """`empty`, `rebalancing` or `stable`."""
        if not self.members:
            return "empty"
        settled = all(
            member.owned.keys() == self._target.get(name) and not member.revoking
            for name, member in self.members.items()
        )
        return "stable" if settled else "rebalancing"

    def takes_over(self, now_ms: int) -> bool:
        """Whether members of a former coordinator may still come back."""
        return self._takeover_until_ms is not None and now_ms < self._takeover_until_ms

    def may_have(self, member_id: str, now_ms: int) -> bool:
        """Whether such a member is known, or may come back."""
        return member_id in self.members or self.takes_over(now_ms)

    # -- events

    def heartbeat(self, beat: Heartbeat, partitions: Mapping[str, int], now_ms: int) -> Tells:
        """`partitions`: counts of the topics in `beat` that are there. Raises UnknownMember,
        MemberFenced, InstanceInUse."""
        member = self.members.get(beat.member_id)
        if member is None:
            if self._may_come_back(beat, now_ms):
                return self._come_back(beat, partitions, now_ms)
            return self._join(beat, partitions, now_ms)
        if member.fenced or member.away:
            raise MemberFenced(
                f"member {beat.member_id} of group {self.name} did not give up its partitions "
                f"within {member.rebalance_timeout_ms} ms"
                if member.fenced
                else f"member {beat.member_id} has left group {self.name}"
            )
        # Overtaken on its way: what it says about `holds` is out of date.
        if beat.sequence <= member.sequence:
            return {}
        member.sequence = beat.sequence
        member.seen_ms = now_ms
        # That a partition is missing in `holds` says that it was given up only if the member had
        # seen the assignment that asks for it: before, it may not have begun with it yet (KIP-848).
        given_up = [
            place
            for place, revision in member.revoking.items()
            if beat.revision >= revision and place not in beat.holds
        ]
        for place in given_up:
            del member.owned[place], member.revoking[place]
        tells: Tells = {}
        if beat.topics != member.topics:
            member.topics = beat.topics
            self._partitions.update(partitions)
            tells = self._rebalance(now_ms)
        elif given_up:
            tells = self._reconcile(now_ms)
        return {**tells, member.member_id: member.assignment()}

    def leave(self, member_id: str, now_ms: int, *, away: bool = False) -> Tells:
        """The member hands out nothing any more. `away`: a static member that means to return."""
        member = self.members.get(member_id)
        if member is None:
            return {}
        # KIP-345: only a static member can be recognized when it returns.
        if away and member.instance_id and not member.fenced:
            return self._set_away(member, now_ms)
        del self.members[member_id]
        return self._rebalance(now_ms)

    def partitions_are(self, partitions: Mapping[str, int], now_ms: int) -> Tells:
        """Topics came, grew or went. `partitions`: topic -> count of all that are there."""
        known = {topic: partitions[topic] for topic in self.topics if topic in partitions}
        if known == self._partitions:
            return {}
        self._partitions = known
        return self._rebalance(now_ms)

    def tick(self, now_ms: int) -> Tells:
        """End sessions whose time is over; fence members that do not give up partitions."""
        tells: Tells = {}
        if self._takeover_until_ms is not None and not self.takes_over(now_ms):
            self._takeover_until_ms = None
            self._came_back.clear()
            tells = self._reconcile(now_ms)
        gone = False
        for member in list(self.members.values()):
            if now_ms >= member.seen_ms + member.session_timeout_ms:
                if member.succeeded_at(now_ms):
                    tells |= self._set_away(member, now_ms)
                else:
                    del self.members[member.member_id]
                    gone = True
            elif member.revoking and now_ms >= member.revoke_deadline_ms:
                # Its partitions stay its own until its session ends: it may be handing out the
                # others right now, and learns of it only from its next heartbeat.
                member.fenced = True
        return tells | self._rebalance(now_ms) if gone else tells

    def stalled(self, gap_ms: int, now_ms: int) -> None:
        """The coordinator itself stood still: heartbeats could not be received in that time."""
        for member in self.members.values():
            # As if the pause had not been: sessions end for silence of members, not of the node.
            member.seen_ms = min(now_ms, member.seen_ms + gap_ms)
            member.revoke_deadline_ms += gap_ms

    def check_settled(self, now_ms: int) -> None:
        """Raises Unavailable while members of a former coordinator may come back."""
        if self.takes_over(now_ms):
            assert self._takeover_until_ms is not None
            raise Unavailable(
                f"the coordinator of group {self.name} has just taken over, and waits "
                f"{self._takeover_until_ms - now_ms} ms more for its members; try again then"
            )

    def check_commit(
        self,
        member_id: str,
        epoch: int,
        sequence: int,
        partitions: Iterable[TopicPartition],
        now_ms: int,
    ) -> None:
        """Raises UnknownMember, MemberFenced or GroupNotEmpty unless the commit may be taken, and
        Unavailable where that shows only when members have come back.

        `sequence` grows with every commit of a member: one that was overtaken on its way must
        not undo a later one.
        """
        if not member_id:
            if self.members:
                raise GroupNotEmpty(
                    f"group {self.name} has {len(self.members)} member(s); only they commit"
                )
            self.check_settled(now_ms)
            return
        member = self.members.get(member_id)
        if member is None:
            self.check_settled(now_ms)
            if epoch < self.first_epoch:
                raise MemberFenced(
                    f"member {member_id} of group {self.name} is of epoch {epoch}, and did not "
                    f"come to the coordinator of epoch {self.first_epoch} in time"
                )
        if member is None or member.away:
            raise UnknownMember(f"group {self.name} has no member {member_id}")
        for place in partitions:
            # An epoch before the partition was given is that of an earlier ownership; the member
            # may have moved on to newer ones since it read the records (KIP-1251).
            given = member.owned.get(place)
            if given is None or not given <= epoch <= member.epoch:
                raise MemberFenced(
                    f"member {member_id} in epoch {epoch} does not own {place.topic}-"
                    f"{place.partition} of group {self.name}"
                )
        if sequence <= member.commit_sequence:
            raise MemberFenced(
                f"commit {sequence} of member {member_id} came behind {member.commit_sequence}"
            )
        # Only now: a commit that is refused has not overtaken another.
        member.commit_sequence = sequence

    def withdraw(self, places: frozenset[TopicPartition], but: str) -> None:
        """Members other than `but` that own one of these lose them, and have to rejoin: they
        began to read from an offset that did not hold."""
        for member in self.members.values():
            wrong = places & member.owned.keys()
            if wrong and member.member_id != but:
                for place in wrong:
                    del member.owned[place]
                    member.revoking.pop(place, None)
                member.fenced = True

    # -- decisions

    def _join(self, beat: Heartbeat, partitions: Mapping[str, int], now_ms: int) -> Tells:
        if not beat.joining:
            raise UnknownMember(f"group {self.name} has no member {beat.member_id}")
        member = self._member(beat, now_ms)
        old = self._instance(beat.instance_id)
        if old is None:
            self.members[member.member_id] = member
        else:
            self._succeed(old, member, now_ms)
        if old is None or old.topics != member.topics:
            self._partitions.update(partitions)
            tells = self._rebalance(now_ms)
        else:
            tells = self._reconcile(now_ms)
        return {**tells, member.member_id: member.assignment()}

    def _may_come_back(self, beat: Heartbeat, now_ms: int) -> bool:
        """Whether it is a member of a former coordinator that holds something. Once: a commit of
        the first time may be on its way still, behind a later one."""
        known = self._instance(beat.instance_id) is not None or beat.member_id in self._came_back
        return self.takes_over(now_ms) and bool(beat.claims) and not (beat.joining or known)

    def _come_back(self, beat: Heartbeat, partitions: Mapping[str, int], now_ms: int) -> Tells:
        """It keeps what it holds, under the epochs in which that was given, so that it goes on
        where it is."""
        owned = {place for member in self.members.values() for place in member.owned}
        kept = {
            place: epoch
            for place, epoch in beat.claims.items()
            if place not in owned
            and 0 < epoch <= self.first_epoch
            and place.topic in beat.topics
            and 0 <= place.partition < partitions.get(place.topic, 0)
        }
        member = self.members[beat.member_id] = self._member(beat, now_ms)
        member.owned = kept
        self._came_back.add(beat.member_id)
        self._partitions.update(partitions)
        tells = self._rebalance(now_ms)
        return {**tells, member.member_id: member.assignment()}

    def _member(self, beat: Heartbeat, now_ms: int) -> Member:
        """Who sent the heartbeat; it owns nothing yet."""
        return Member(
            beat.member_id,
            beat.instance_id,
            beat.topics,
            beat.session_timeout_ms,
            beat.rebalance_timeout_ms,
            now_ms,
            beat.sequence,
            self.epoch,
        )

    def _instance(self, instance_id: str) -> Member | None:
        if not instance_id:
            return None
        return next((m for m in self.members.values() if m.instance_id == instance_id), None)

    def _succeed(self, old: Member, new: Member, now_ms: int) -> None:
        """A static member is back: it has what it had, and no other member is disturbed."""
        if not old.away:
            old.wanted_ms = now_ms
            raise InstanceInUse(
                f"instance {old.instance_id} of group {self.name} is in use by member "
                f"{old.member_id}; it is free when that one leaves or its session ends"
            )
        # KIP-345: the process that is back has an id of its own; commits under the old are refused.
        del self.members[old.member_id]
        new.owned = dict.fromkeys(old.owned, self.epoch)
        self._revision += 1
        new.revision = self._revision
        self.members[new.member_id] = new
        self._target[new.member_id] = self._target.pop(old.member_id, NOTHING)

    def _set_away(self, member: Member, now_ms: int) -> Tells:
        """It holds nothing now; what it need not give up is kept for its return."""
        member.away, member.fenced = True, False
        member.seen_ms = now_ms
        # What it had to give up is free at once: a process that has left hands out nothing.
        for place in member.revoking:
            del member.owned[place]
        member.revoking.clear()
        return self._reconcile(now_ms)

    def _rebalance(self, now_ms: int) -> Tells:
        """A new target for everybody."""
        self.epoch += 1
        self.rebalances += 1
        self._partitions = {
            topic: count for topic, count in self._partitions.items() if topic in self.topics
        }
        self._target = balance(
            {name: member.topics for name, member in self.members.items()},
            self._partitions,
            {name: frozenset(member.owned) for name, member in self.members.items()},
        )
        return self._reconcile(now_ms)

    def _reconcile(self, now_ms: int) -> Tells:
        """One step from what members own to the target: ask for what must go, give what is free."""
        self._revision += 1
        before = {name: (m.epoch, m.assigned) for name, m in self.members.items()}
        for name, member in self.members.items():
            self._revoke(member, member.assigned.keys() - self._target[name], now_ms)
        owned = {place for member in self.members.values() for place in member.owned}
        for name, member in self.members.items():
            # KIP-848: a member reaches the new epoch, and gets what is free, only when it has given
            # up what it has to.
            if member.revoking or member.fenced or member.away:
                continue
            member.epoch = self.epoch
            # Members that have not come back yet may hold what no member owns here.
            if self.takes_over(now_ms):
                continue
            # Nothing that another member still owns is given, whatever the target says: no two
            # members handle the same record.
            for place in sorted(self._target[name] - owned):
                member.owned[place] = self.epoch
                owned.add(place)
        tells = {}
        for name, member in self.members.items():
            if (member.epoch, member.assigned) != before[name] or not member.revision:
                member.revision = self._revision
                tells[name] = member.assignment()
        return tells

    def _revoke(self, member: Member, places: Collection[TopicPartition], now_ms: int) -> None:
        if places and member.away:
            for place in places:  # no member owns them, none is given them
                del member.owned[place]
        elif places:
            # One deadline for all: being asked for more meanwhile gives no more time.
            if not member.revoking:
                member.revoke_deadline_ms = now_ms + member.rebalance_timeout_ms
            member.revoking.update(dict.fromkeys(places, self._revision))


class GroupCoordinator:
    """All groups whose coordinator is this node."""

    STALL_MS: Final = 2_000
    """A pause between ticks that is longer than this is the node's own."""

    def __init__(self, *, groups_max: int, members_max: int) -> None:
        self.groups: dict[str, ConsumerGroup] = {}
        self.groups_max = groups_max
        self.members_max = members_max
        self._ticked_ms: int | None = None

    def group(
        self, name: str, first_epoch: int = 0, takeover_until_ms: int | None = None
    ) -> ConsumerGroup:
        """The group, made if absent, as `ConsumerGroup` is. Raises InvalidRequest: too many
        groups."""
        found = self.groups.get(name)
        if found is None:
            if len(self.groups) >= self.groups_max:
                raise InvalidRequest(f"there are {len(self.groups)} groups; no more are taken")
            found = self.groups[name] = ConsumerGroup(name, first_epoch, takeover_until_ms)
        return found

    def heartbeat(
        self, group: ConsumerGroup, beat: Heartbeat, partitions: Mapping[str, int], now_ms: int
    ) -> Tells:
        """`ConsumerGroup.heartbeat`; InvalidRequest too when the group is full."""
        if beat.member_id not in group.members and len(group.members) >= self.members_max:
            raise InvalidRequest(f"group {group.name} has {len(group.members)} members, the most")
        return group.heartbeat(beat, partitions, now_ms)

    def tick(
        self,
        partitions: Mapping[str, int],
        now_ms: int,
        serves: Callable[[str], bool] = lambda name: True,
    ) -> dict[str, Tells]:
        """Group -> the assignments to send, now that time has passed. `partitions` as in
        `ConsumerGroup.partitions_are`. `serves`: whether this node may act for a group; time stands
        still for others."""
        gap_ms = 0 if self._ticked_ms is None else now_ms - self._ticked_ms
        self._ticked_ms = now_ms
        found: dict[str, Tells] = {}
        for name, group in self.groups.items():
            serving = serves(name)
            if gap_ms > self.STALL_MS or not serving:
                group.stalled(gap_ms, now_ms)
            if not serving:
                continue
            tells = {**group.tick(now_ms), **group.partitions_are(partitions, now_ms)}
            if tells:
                found[name] = {each: tell for each, tell in tells.items() if each in group.members}
        return found
