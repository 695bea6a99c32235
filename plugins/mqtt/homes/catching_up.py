"""Sessions that came from another node get what was committed meanwhile. No IO.

A session that was handed over, or was kept by its home, has got everything up to its positions.
From there to where this node is the journal is read, once for all sessions that came together, and
matched against their subscriptions alone. Like a replay (`routing.history`) it has a cursor for
each partition; when all are where the node is, the subscriptions enter the index, in the same turn:
no record is missed, and none comes twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from lakemq.plugins.mqtt.routing.history import (
    CHUNK_COUNT_MAX,
    Cursor,
    Reading,
    ReplayHub,
    histories_of,
    want,
)
from lakemq.plugins.mqtt.routing.hub import Hub
from lakemq.plugins.mqtt.routing.shared import Group
from lakemq.plugins.mqtt.routing.subscriptions import SubscriptionIndex, Target
from lakemq.plugins.mqtt.state.records import Meta
from lakemq.plugins.mqtt.state.sessions import Positions, Session
from lakemq.plugins.mqtt.wire.messages import Message, Place

_BEHIND_MAX_MS: Final = 60_000
"""A partition may have no leader, or its topic may be another one by now."""


@dataclass(slots=True)
class Coming:
    """A session that came, as it was kept."""

    session: Session
    positions: Positions
    there: set[Place] = field(default_factory=set)
    """What it holds that lies behind its positions."""


class CatchUp(Reading):
    """Some sessions on their way to where the node is. `index` has their subscriptions."""

    def __init__(
        self,
        hub: Hub,
        index: SubscriptionIndex,
        coming: Sequence[Coming],
        done: Callable[[int], None],
        at_least: Positions,
    ) -> None:
        """`done(now_ms)` is called when they are where the node is, and that is at `at_least`."""
        self._hub = hub
        self._index = index
        self._coming = {one.session: one for one in coming}
        self._done = [done]
        self._fresh = False
        """Whether a record is dealt with that has just been committed."""
        self._ahead: Positions = {}
        """What this node has to reach first: one of the sessions may have been further, or an owner
        that is gone may have had publishes stored below it."""
        self._at_least = at_least
        self._until_ms = 0
        super().__init__({key: self._first(key, end) for key, end in hub.positions.items()})

    def _first(self, key: tuple[str, int], end: int) -> int:
        """Where the first of the sessions is in a partition of which the node is at `end`."""
        known = [_start(one.positions, key, end) for one in self._coming.values()]
        self._ahead[key] = max(self._at_least.get(key, 0), max(known, default=end))
        return min(known, default=end)

    def found(self, hub: ReplayHub, key: tuple[str, int], end: int) -> None:
        """The sessions may be behind."""
        self.cursors[key] = Cursor(*key, self._first(key, end))

    def begin(self, now_ms: int) -> None:
        """Ask for the first records."""
        self._until_ms = now_ms + _BEHIND_MAX_MS
        self._hub.histories[self] = None
        for session in self._coming:
            session.coming = self
        want(self._hub, self)
        if behind := self._behind():
            self._hub.on_behind(behind)

    @property
    def room(self) -> int:
        """What waits for a session is bounded by its queue."""
        return CHUNK_COUNT_MAX

    def committed(self, message: Message, now_ms: int) -> None:
        """A record became readable."""
        self._fresh = True
        super().committed(message, now_ms)
        self._fresh = False

    @property
    def behind(self) -> bool:
        """Whether this node is not far enough yet."""
        return bool(self._hub.unheard) or bool(self._behind())

    def _behind(self) -> list[tuple[str, int]]:
        """Partitions in which this node is not far enough yet."""
        ahead = self._ahead
        return [key for key, at in self._hub.positions.items() if at < ahead.get(key, 0)]

    def note(self, message: Message, meta: Meta) -> None:
        """A QoS 2 publish of one of them is in the journal, perhaps."""
        session = self._hub.sessions.get(message.origin or "")
        if session is not None and self._wants(session, message):
            self._hub.note_stored(message, meta, recovering=True)

    def _wants(self, session: Session, message: Message) -> bool:
        """Whether the session had not got the record when it was kept, and is still here."""
        one, place = self._coming.get(session), message.place
        if one is None or place is None or self._hub.sessions.get(session.client_id) is not session:
            return False
        return place.offset >= one.positions.get(place[:2], 0) and place not in one.there

    def deliver(self, message: Message, now_ms: int) -> bool:
        """Deliver to those of the sessions that want it."""
        match = self._index.match(message.topic)
        for target in match.targets:
            self._deliver(target, message, now_ms)
        for group in match.groups:
            self._deliver_shared(group, message, now_ms)
        return bool(match.targets or match.groups)

    def _deliver(self, target: Target, message: Message, now_ms: int) -> None:
        # QoS 0 is not kept for those who are away.
        if (self._fresh or (message.qos and target.qos)) and self._wants(target.session, message):
            self._hub.deliver(target, message, now_ms)

    def _deliver_shared(self, group: Group, message: Message, now_ms: int) -> None:
        if not message.qos or message.place is None:
            return
        members = [one for one in group.members if self._wants(one.session, message)]
        # Who is here since then only had no part in it: it fell to the owner before, perhaps, and
        # that is gone.
        if members and not (self._hub.has_had and self._hub.has_had(group, message.place)):
            self._hub.deliver_shared(group, message, now_ms, members)

    def arrived(self, hub: ReplayHub, now_ms: int) -> None:
        """The sessions are like any others."""
        if self.behind and now_ms < self._until_ms:
            want(self._hub, self)
            return
        self._hub.histories.pop(self, None)
        for session in self._coming:
            session.coming = None
            if self._hub.sessions.get(session.client_id) is not session:
                continue  # it has ended, or went on to another node
            replays = histories_of(session)
            for text, subscription in session.subscriptions.items():
                if text not in replays:
                    self._hub.index.add(subscription)
            session.touch()
        for done in self._done:
            done(now_ms)

    # -- while it lasts

    def then(self, done: Callable[[int], None]) -> None:
        """As `state.sessions.Coming` has it."""
        self._done.append(done)

    @property
    def index(self) -> SubscriptionIndex:
        """Has the subscriptions of its sessions."""
        return self._index

    @property
    def unclean(self) -> bool:
        """As `state.sessions.Coming` has it."""
        return bool(self._at_least)

    def positions_of(self, session: Session) -> Positions:
        """Up to where one of its sessions has got everything by now."""
        started = self._coming[session].positions
        return {key: max(started.get(key, 0), offset) for key, offset in self.positions.items()}


def _start(positions: Positions, key: tuple[str, int], end: int) -> int:
    """Where a session goes on that was at `positions`; a topic that is bound since then has no
    history for it."""
    if key in positions:
        return positions[key]
    return 0 if any(topic == key[0] for topic, _ in positions) else end
