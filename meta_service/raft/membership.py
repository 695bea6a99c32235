"""Changing who is in the group: one voter at a time, learners first (Ongaro's thesis §4.1, §4.2.1).

A configuration is a log entry that holds the whole group and counts from the moment it is appended;
one that is truncated is taken back. A change is refused while the one before is not committed, and
until the leader has committed an entry of its own term (the flaw found in 2015 in the thesis).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgpack

from lakemq.meta_service.raft.engine import CLOCK, MEMBERSHIP, peer_named
from lakemq.meta_service.raft.log.log_format import Entry
from lakemq.meta_service.raft.state import EngineState

_MEMBERSHIP_BYTE = bytes([MEMBERSHIP])
LAG_MAX = 100
"""Most entries that a learner may lack when it becomes a voter."""
HEARTBEATS_MISSED_MAX = 5
"""Heartbeats that a member may have missed and still count for a change."""
MEMBERS_MAX = 15


class Group(NamedTuple):
    """A configuration: member id -> address, in the order of ids."""

    voters: dict[str, str]
    learners: dict[str, str]


class Refused(ValueError):
    """A change that cannot be made now; the message says why."""


def encode_group(group: Group) -> bytes:
    """The configuration as MessagePack, members sorted so that the bytes do not depend on dict
    order."""
    data: bytes = msgpack.packb([sorted(group.voters.items()), sorted(group.learners.items())])
    return data


def decode_group(data: bytes) -> Group:
    """The configuration from the bytes that `encode_group` made; trusted, as they come from the
    log."""
    voters, learners = msgpack.unpackb(data, use_list=False, raw=False)
    return Group(dict(voters), dict(learners))


class Membership(EngineState):
    """The part of a Raft node that knows who is in the group."""

    def _init_membership(self, base: Group, log_entries: list[Entry]) -> None:
        """`base`: as of the state machine; what the log holds behind it comes on top."""
        self._groups: list[tuple[int, Group]] = [(0, base)]
        for entry in log_entries:
            self._note_entry(entry.command, entry.log_index)

    @property
    def group(self) -> Group:
        """The configuration that counts now, committed or not (thesis §4.1)."""
        return self._groups[-1][1]

    @property
    def can_vote(self) -> bool:
        """Whether this member is a voter of the configuration that counts."""
        return self.member_id in self.group.voters

    def _note_entry(self, command: bytes, index: int) -> bool:
        """Take over a configuration that was appended; whether it was one."""
        if command[:1] != _MEMBERSHIP_BYTE:
            return False
        # It counts from here on, before it is committed: the majority for its own commit is already
        # that of the new group (thesis §4.1).
        self._groups.append((index, decode_group(command[1:])))
        return True

    def _take_back(self, index: int) -> None:
        """Entries from an index on were truncated."""
        if self._groups[-1][0] >= index:
            self._groups = [pair for pair in self._groups if pair[0] < index]
            self._use_group()

    def _restart_from(self, group: Group | None, index: int) -> None:
        """A snapshot that ends at `index` took the place of the state; its group is the base.

        None: up to there the group was never changed. What the log still holds behind the snapshot
        goes on counting.
        """
        behind = [pair for pair in self._groups if index < pair[0] <= self.log.last_index]
        base = self._groups[0][1] if group is None else group
        self._groups = [(0, base), *behind]
        self._use_group()

    def _forget_groups_below(self, index: int) -> None:
        """Everything up to `index` is applied: no truncation goes back behind it."""
        while len(self._groups) > 1 and self._groups[1][0] <= index:
            del self._groups[0]

    def _use_group(self) -> None:
        """Make pysyncobj's sets those of the configuration."""
        group = self.group
        self.voters = {peer_named(name) for name in group.voters if name != self.member_id}
        self.learners = {peer_named(name) for name in group.learners if name != self.member_id}
        known = self.voters | self.learners
        for peer in known - set(self.next_index):
            # Optimistic, as a new leader is (§5.3): a mismatch is answered with the index to go on
            # from.
            self.next_index[peer] = self.log.last_index + 1
            self.match_index[peer] = 0
            # As if heard just now: check-quorum must not depose the leader before a new member had
            # a chance to answer.
            self.response_time[peer] = CLOCK()
        for peer in set(self.next_index) - known:
            del self.next_index[peer]
            self.match_index.pop(peer, None)
            self.response_time.pop(peer, None)
            self._forget_peer(peer)
        addresses = {**group.voters, **group.learners}
        addresses.pop(self.member_id, None)
        if group.voters:  # else it joins, and the leader has not sent it the members yet
            self.wire.set_peers(addresses)

    def _forget_peer(self, peer: Any) -> None:
        """A member left the group."""

    # ------------------------------------------------------------ changes, on the leader

    def add_learner(self, name: str, address: str) -> None:
        """It gets the log and does not vote. Raises Refused."""
        group = self.group
        if name in group.voters or group.learners.get(name) == address:
            raise Refused(f"{name} is a member already")
        if len(group.voters) + len(group.learners) >= MEMBERS_MAX:
            raise Refused(f"a group has at most {MEMBERS_MAX} members")
        self._change(Group(group.voters, {**group.learners, name: address}))

    def promote(self, name: str) -> None:
        """Let a learner vote, once it has nearly everything. Raises Refused."""
        group = self.group
        if name not in group.learners:
            raise Refused(f"{name} is not a learner")
        lag = self._lag(peer_named(name))
        # Else the group could commit nothing while the new voter, whose vote the majority may need,
        # still catches up (thesis §4.2.1).
        if lag > LAG_MAX:
            raise Refused(f"{name} still lacks {lag} entries")
        # A short log makes the lag small for a member that was never reached.
        if self.is_leader and not self.match_index.get(peer_named(name)):
            raise Refused(f"{name} has acknowledged nothing yet")
        learners = {other: where for other, where in group.learners.items() if other != name}
        self._change(Group({**group.voters, name: group.learners[name]}, learners))

    def remove_member(self, name: str) -> None:
        """Raises Refused. The leader cannot be removed: transfer leadership first."""
        group = self.group
        if name == self.member_id:
            raise Refused(f"{name} leads: transfer the leadership first")
        if name not in group.voters and name not in group.learners:
            raise Refused(f"{name} is not a member")
        self._change(
            Group(
                {other: where for other, where in group.voters.items() if other != name},
                {other: where for other, where in group.learners.items() if other != name},
            )
        )

    @property
    def group_index(self) -> int:
        """Log index of the configuration that counts; 0: the one that was set up."""
        return self._groups[-1][0]

    def _refuse_without_majority(self, group: Group) -> None:
        """A group whose majority is down could never commit the change, nor take it back."""
        # Of the group as it would be: the change needs its majority to be committed.
        sound = sum(self._is_sound(name) for name in group.voters)
        if sound <= len(group.voters) // 2:
            raise Refused(
                f"only {sound} of the {len(group.voters)} voters that there would be answer and "
                "have nearly everything"
            )

    def _is_sound(self, name: str) -> bool:
        peer = peer_named(name)
        return name == self.member_id or (self._answers(peer) and self._lag(peer) <= LAG_MAX)

    def _answers(self, peer: Any) -> bool:
        silent_s = CLOCK() - self.response_time.get(peer, float("-inf"))
        silent_max_s = HEARTBEATS_MISSED_MAX * self.timing.heartbeat_s
        return peer in self.connected and silent_s < silent_max_s

    def _lag(self, peer: Any) -> int:
        """Entries that it is not known to have."""
        return self.log.last_index - self.match_index.get(peer, 0)

    def _change(self, group: Group) -> None:
        if not self.is_leader:
            raise Refused("this member is not the leader")
        # The flaw of 2015: without it, two leaders in turn may each append a change to a different
        # base, and their majorities need not overlap.
        if self.commit_index < (self.noop_index or 0):
            raise Refused("the leader has not committed an entry of its own term yet")
        # One voter at a time: majorities of neighbouring configurations overlap only then (thesis
        # §4.1).
        if self.group_index > self.commit_index:
            raise Refused("the change before this one is not committed yet")
        self._refuse_without_majority(group)
        index = self.log.last_index + 1
        command = _MEMBERSHIP_BYTE + encode_group(group)
        # The log first, then the sets: appends of this tick go to the new member too.
        self.log.add(command, index, self.term)
        self._note_entry(command, index)
        self._use_group()
