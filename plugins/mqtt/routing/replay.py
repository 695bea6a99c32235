"""From what was kept back to a hub as it was: sessions, then the records behind them.

Sessions come from their records; each knows up to which offset it had got everything. The records
of the bound topics behind that are matched again, as if they came just now: so queues, retained
messages and QoS 2 publishes that were stored but not released are what they were. What a client had
acknowledged since its session was kept last is delivered to it again (QoS 1).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lakemq.plugins.mqtt.routing.history import History
from lakemq.plugins.mqtt.routing.shared import Group
from lakemq.plugins.mqtt.routing.subscriptions import Target
from lakemq.plugins.mqtt.state.records import Meta
from lakemq.plugins.mqtt.state.sessions import Beside, Index, Positions, Session, Subscription
from lakemq.plugins.mqtt.state.snapshots import SessionState
from lakemq.plugins.mqtt.wire.messages import Message, Place
from lakemq.plugins.mqtt.wire.reasons import MqttError
from lakemq.plugins.mqtt.wire.topics import EXCLUSIVE, REPLAY, Address

if TYPE_CHECKING:
    from lakemq.plugins.mqtt.routing.hub import Hub


class Replay:
    """One recovery. Feed it `record` in offset order per partition, then `finish`."""

    def __init__(
        self, hub: Hub, states: Iterable[SessionState], retained_from: Positions | None
    ) -> None:
        self._hub = hub
        self._retained_from = retained_from
        """Up to where retained messages were kept; None: that is not known yet."""
        self._positions: dict[Session, Positions] = {}
        self.left_out: list[tuple[str, str]] = []
        """Client id, and what of its session is not taken up again."""
        self._there: dict[Session, set[Place]] = {}
        """What sessions hold that were kept without the rest of their queue."""
        self._new_topics: set[str] = set()
        for state in states:
            self.restore(state)

    def restore(self, state: SessionState) -> None:
        """Have a session as it was kept, but for subscriptions that are none (any more)."""
        session = restored(self._hub, state, self._hub.index, self.left_out)
        self._positions[session] = state.positions
        if state.cut:
            self._there[session] = held_places(state)

    def start_of(self, topic: str, partition: int, high_watermark: int) -> int:
        """First offset of a partition that is needed again."""
        known = list(self._positions.values())
        if self._retained_from is not None:
            known.append(self._retained_from)
        key = (topic, partition)
        if not any(name == topic for positions in known for name, _ in positions):
            self._new_topics.add(topic)  # bound since now: it has no history
            return high_watermark
        # The earliest that any session needs; each skips by `_wants` what it has already got.
        return min(positions.get(key, 0) for positions in known)

    def record(self, message: Message, meta: Meta, now_ms: int) -> None:
        """Match one record again."""
        place = message.place
        assert place is not None
        hub, key = self._hub, (place.topic, place.partition)
        # Below it, retained messages were kept with what came later: an older record must not undo
        # that.
        if message.retain and place.offset >= (self._retained_from or {}).get(key, 0):
            hub.retain(message)
        session = hub.sessions.get(message.origin or "")
        if session is not None and self._wants(session, place):
            hub.note_stored(message, meta, recovering=True)
        match = hub.index.match(message.topic)
        for target in match.targets:
            self._deliver(target, message, now_ms)
        for group in match.groups:
            self._deliver_shared(group, message, now_ms)
        hub.positions[key] = place.offset + 1
        hub.delivered += 1

    def _wants(self, session: Session, place: Place) -> bool:
        """Whether the session had not got the record when it was kept."""
        positions = self._positions.get(session)
        if positions is None or place.offset < positions.get(place[:2], 0):
            return False
        return not self._there or place not in self._there.get(session, ())

    def _deliver(self, target: Target, message: Message, now_ms: int) -> None:
        # QoS 0 is not kept for those who are away.
        if message.qos and target.qos and self._wants(target.session, _place(message)):
            self._hub.deliver(target, message, now_ms)

    def _deliver_shared(self, group: Group, message: Message, now_ms: int) -> None:
        members = [one for one in group.members if self._wants(one.session, _place(message))]
        if message.qos and members:
            self._hub.deliver_shared(group, message, now_ms, members)

    def finish(self, now_ms: int) -> None:
        """Everything was fed: clients that were connected have lost their connections now."""
        for session in self._positions:
            if self._hub.sessions.get(session.client_id) is session:
                self._hub.session_table.resettle(session, now_ms)


def _place(message: Message) -> Place:
    assert message.place is not None
    return message.place


def held_places(state: SessionState) -> set[Place]:
    """Where the messages lie that a session holds."""
    kept = [*state.queue, *(one for _, one in state.inflight)]
    return {one.place for one in kept if one.place is not None}


def restored(
    hub: Hub, state: SessionState, index: Index, left_out: list[tuple[str, str]]
) -> Session:
    """The session in the hub, as it was kept, its subscriptions in `index`, but for those that are
    none (any more), which are put into `left_out` with its client id."""
    addresses: dict[str, Address] = {}
    for text, _, _ in state.subscriptions:
        try:
            addresses[text] = hub.address(text)
        except MqttError as error:
            left_out.append((state.client_id, f"subscription to {text:.100}: {error}"))
            continue
        topic_filter = addresses[text].topic_filter
        if text.startswith(EXCLUSIVE) and hub.exclusive.is_anothers(state.client_id, topic_filter):
            del addresses[text]
            left_out.append(
                (state.client_id, f"subscription to {text:.100}: another client has it")
            )
    topics = {binding.topic for binding in hub.bindings}
    principal = hub.same_principal(state.principal)
    session = Session(state.client_id, principal, hub.delivery, hub.ledger, state.incarnation)
    session.expiry_s = state.expiry_s
    session.ends_ms = state.ends_ms
    session.will, session.will_due_ms = state.will, state.will_due_ms
    session.incoming.update(state.incoming)
    session.released = state.released
    session.taken = session.former = state.taken
    session.outbound.restore(state.inflight, state.queue)
    histories: dict[str, History] = {}
    for text, options, identifier in state.subscriptions:
        if text not in addresses:
            continue
        kind = Beside if text.startswith((EXCLUSIVE, REPLAY)) else Subscription
        subscription = kind(session, addresses[text], options, identifier)
        hub.note_subscription(session, text, subscription)
        if text in state.histories:
            start, positions = state.histories[text]
            bound = {key: offset for key, offset in positions.items() if key[0] in topics}
            histories[text] = History(subscription, start, bound)
            continue
        index.add(subscription)
        if text.startswith(EXCLUSIVE):
            hub.exclusive.hold(session, subscription.address.topic_filter, text)
    session.histories = dict(histories) or None
    hub.session_table.add(session)
    if hub.ledger is not None:
        hub.ledger.ages[state.client_id] = 0
    return session
