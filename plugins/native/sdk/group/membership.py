"""A member's side of a consumer group: what it may hand out, and what it says.

The coordinator's side, and why no record is handled by two members, is in
`broker_core/groups/coordinator.py`.
Times are milliseconds of a clock that never goes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from lakemq.broker_core.api.types import TopicPartition

_LEASE_SHARE: Final = 0.95
"""Of the session time-out, so that two clocks may differ by 5 %."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A partition as the coordinator gave it."""

    epoch: int
    """In which it was given; another one means that others had it in between."""
    committed: int
    """Committed offset; -1: none."""


@dataclass(frozen=True, slots=True)
class Beat:
    """What a heartbeat says of this member's state."""

    member_id: str
    sequence: int
    joining: bool
    revision: int
    holds: frozenset[TopicPartition]
    claims: Mapping[TopicPartition, int]
    """Those of `holds` that are this member's to go on with, and in which epochs they were given;
    empty once its lease is over."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What the reader has to do between two records, in this order."""

    lost: frozenset[TopicPartition]
    """Others may have them already: drop them, commit nothing."""
    revoked: frozenset[TopicPartition]
    """Still this member's: commit if wanted, then call `released`."""
    assigned: Mapping[TopicPartition, Grant]

    def __bool__(self) -> bool:
        return bool(self.lost or self.revoked or self.assigned)


class Membership:
    """The state of one member. `member_id` is new for every joining."""

    def __init__(self, member_id: str, session_timeout_ms: float) -> None:
        self.member_id = member_id
        self.epoch = 0
        self.version = 0
        """Changes whenever what may be handed out may have changed."""
        self.lease_until_ms = 0.0
        """Nothing is handed out from then on, unless a heartbeat is answered before."""
        self.abandoned: list[str] = []
        """Earlier ids of ours that the coordinator may still know: leave with them."""
        self._lease_ms = session_timeout_ms * _LEASE_SHARE
        self._joined = False
        self._confirmed = False
        self._sequence = 0
        self._answered = 0
        """The newest heartbeat that was answered."""
        self._revision = 0
        self._alone = False
        """No coordinator after this one waits for its members."""
        self._sent_ms: dict[int, float] = {}
        self._given: dict[TopicPartition, Grant] = {}
        self._held: dict[TopicPartition, Grant] = {}
        self._lost: set[TopicPartition] = set()

    @property
    def held(self) -> Mapping[TopicPartition, Grant]:
        """What the reader has taken and not given up."""
        return self._held

    @property
    def joined(self) -> bool:
        """Whether the coordinator has accepted this member."""
        return self._joined

    def beat(self, now_ms: float) -> Beat:
        """The next heartbeat, to be sent now."""
        self._sequence += 1
        self._sent_ms[self._sequence] = now_ms
        claims = {
            place: grant.epoch
            for place, grant in self._held.items()
            if now_ms < self.lease_until_ms and self._given.get(place) == grant
        }
        # It may be another one's by now: a coordinator that is alone is started again and gives it
        # away at once, before there is a second node that takes over from it.
        if self._alone:
            claims = {}
        return Beat(
            self.member_id, self._sequence, not self._joined, self._revision,
            frozenset(self._held), claims,
        )  # fmt: skip

    def limit_lease(self, limit_ms: int) -> None:
        """Leases are not longer than this, whatever the session: a new coordinator waits no longer
        for members of the former one."""
        self._lease_ms = min(self._lease_ms, limit_ms * _LEASE_SHARE)

    def unanswered_ms(self, now_ms: float) -> float:
        """How long the oldest heartbeat that is not answered has been waiting."""
        waiting = (at for number, at in self._sent_ms.items() if number > self._answered)
        return now_ms - min(waiting, default=now_ms)

    def told(
        self,
        member_id: str,
        epoch: int,
        revision: int,
        sequence: int,
        given: Mapping[TopicPartition, Grant],
        alone: bool = False,
    ) -> None:
        """The coordinator's answer to heartbeat `sequence`, or its word in between. `alone`: none
        after it waits for its members."""
        if member_id != self.member_id:
            return
        self._answered = max(self._answered, sequence)
        if sequence in self._sent_ms:
            # Counted from when the heartbeat was sent, not from its answer: the coordinator's clock
            # for this member started no earlier than that.
            self.lease_until_ms = max(self.lease_until_ms, self._sent_ms[sequence] + self._lease_ms)
            # This answer covers the earlier ones; their own answers, if they come, tell nothing
            # new.
            for older in [each for each in self._sent_ms if each < sequence]:
                del self._sent_ms[older]
            if not self._confirmed:
                self._confirmed = True
                self.version += 1
        # Assignments never go back.
        if revision < self._revision:
            return
        self.version += revision > self._revision
        self._joined = True
        self._alone = alone
        self._revision = revision
        self.epoch = epoch
        self._given = dict(given)
        for place, grant in list(self._held.items()):
            now = given.get(place)
            # Given again under another epoch: in between another member may have had it, so the
            # position here is out of date.
            if now is not None and now.epoch != grant.epoch:
                del self._held[place]
                self._lost.add(place)

    def expelled(self, member_id: str, new_member_id: str, *, known: bool) -> None:
        """The coordinator does not take `member_id` (any more): rejoin. `known`: it may still
        count partitions as ours."""
        if member_id != self.member_id:
            return
        if known:
            self.abandoned.append(member_id)
        # The session has ended: others may have all of them by now, so nothing is revoked in order
        # and nothing committed.
        self._lost |= self._held.keys()
        self._held.clear()
        self._given = {}
        # Sequence numbers restart below: entries of the old id would be taken for heartbeats of the
        # new one.
        self._sent_ms.clear()
        self.version += 1
        self._joined = self._confirmed = False
        self._revision = self._sequence = self._answered = self.epoch = 0
        self.lease_until_ms = 0.0
        self.member_id = new_member_id

    def disconnected(self) -> None:
        """The stream broke: hand out nothing until the coordinator has answered again."""
        self._confirmed = False
        self.version += 1
        self._sent_ms.clear()

    def changes(self) -> Changes:
        """What the reader has not done yet."""
        revoked = frozenset(self._held.keys() - self._given.keys())
        assigned = {at: grant for at, grant in self._given.items() if at not in self._held}
        return Changes(frozenset(self._lost), revoked, assigned)

    def dropped(self) -> None:
        """The reader has dropped what was lost."""
        self._lost.clear()

    def released(self, places: Iterable[TopicPartition]) -> None:
        """The reader has given up these of `changes().revoked`."""
        for place in places:
            if place not in self._given:
                self._held.pop(place, None)

    def taken(self, assigned: Mapping[TopicPartition, Grant]) -> None:
        """The reader has taken these of `changes().assigned`."""
        for place, grant in assigned.items():
            if self._given.get(place) == grant:
                self._held[place] = grant

    def may_hand_out(self, place: TopicPartition, now_ms: float) -> bool:
        """Whether a record of `place` may go to the application at this moment."""
        # The guarantee that no record is handled by two members: the lease ends here before it ends
        # at the coordinator.
        if not self._confirmed or now_ms >= self.lease_until_ms or self._lost:
            return False
        held, given = self._held.get(place), self._given.get(place)
        return held is not None and given is not None and held.epoch == given.epoch
