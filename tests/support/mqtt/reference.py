"""A small reference of what MQTT owes its subscribers: no index, no queue, no packet identifiers,
no bytes. It says which publishes each client must get and how; `test_mqtt_model.py` compares.

Source: MQTT 5.0 sections 3.3.1.3 (retain), 3.3.2.3.3 (expiry), 3.8.3.1 (options), 3.8.4, 4.8.2.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from lakemq.broker_core.api.topic_filters import matches
from lakemq.plugins.mqtt.wire.packets import NO_LOCAL, RETAIN_AS_PUBLISHED

SHARE: Final = "$share/"


@dataclass(slots=True)
class Sent:
    """A publish, as its sender made it."""

    sender: str
    topic: str
    payload: bytes
    qos: int
    retain: bool
    expires_ms: int | None
    number: int

    def remaining_s(self, now_ms: int) -> int | None:
        """The expiry interval that a subscriber is told."""
        return None if self.expires_ms is None else -(-(self.expires_ms - now_ms) // 1000)

    def expired(self, now_ms: int) -> bool:
        return self.expires_ms is not None and now_ms >= self.expires_ms


@dataclass(slots=True)
class Wanted:
    """A subscription."""

    topic_filter: str
    options: int
    identifier: int

    @property
    def qos(self) -> int:
        return self.options & 3


@dataclass(slots=True, eq=False)
class Due:
    """What one client must get once."""

    sent: Sent
    qos: int
    retain: bool
    identifiers: tuple[int, ...]
    late: bool = False
    """It is a retained message, sent because of a subscription."""


@dataclass(slots=True, eq=False)
class SharedDue:
    """What one member of a group must get."""

    group: str
    sent: Sent
    taken_by: str | None = None
    taken_qos: int = 0
    may_be_lost: bool = False
    """There was a moment without a member that could have it."""
    may_come_again: bool = False
    """QoS 1, and who got it left before it had acknowledged it."""


@dataclass(slots=True)
class Peer:
    """A client's session."""

    subscriptions: dict[str, Wanted] = field(default_factory=dict)
    due: list[Due] = field(default_factory=list)
    connected: bool = False
    hears: bool = False
    """Connected, and its socket takes bytes: it gets QoS 0."""


class Reference:
    """The broker."""

    def __init__(self) -> None:
        self.peers: dict[str, Peer] = {}
        self.retained: dict[str, Sent] = {}
        self.shared: list[SharedDue] = []

    # -- what clients do

    def subscribe(self, name: str, text: str, wanted: Wanted, handling: int, now_ms: int) -> None:
        """`handling`: retain handling, 0 to 2."""
        peer = self.peers[name]
        is_new = text not in peer.subscriptions
        peer.subscriptions[text] = wanted
        if text.startswith(SHARE) or handling == 2 or (handling == 1 and not is_new):
            return
        for sent in self.retained.values():
            own = wanted.options & NO_LOCAL and sent.sender == name
            if own or sent.expired(now_ms) or not matches(wanted.topic_filter, sent.topic):
                continue
            self._owe(peer, sent, [wanted], late=True)

    def unsubscribe(self, name: str, text: str) -> None:
        """What is owed already is owed still."""
        del self.peers[name].subscriptions[text]
        self._look_at_groups()

    def publish(self, sent: Sent) -> None:
        if sent.retain:
            self.retained.pop(sent.topic, None)
            if sent.payload:
                self.retained[sent.topic] = sent
        groups: set[str] = set()
        for name, peer in self.peers.items():
            plain = []
            for text, wanted in peer.subscriptions.items():
                if not matches(wanted.topic_filter, sent.topic):
                    continue
                if text.startswith(SHARE):
                    groups.add(text)
                elif not (wanted.options & NO_LOCAL and sent.sender == name):
                    plain.append(wanted)
            if plain:
                self._owe(peer, sent, plain)
        self.shared += [SharedDue(text, sent) for text in sorted(groups) if sent.qos]

    def end(self, name: str, unacknowledged: set[bytes]) -> None:
        """The session is no more. `unacknowledged`: what its client got and did not acknowledge."""
        del self.peers[name]
        for one in self.shared:
            if one.taken_by == name and one.taken_qos == 1 and one.sent.payload in unacknowledged:
                one.may_come_again = True
        self._look_at_groups()

    # -- what they get

    def _owe(self, peer: Peer, sent: Sent, wanted: list[Wanted], *, late: bool = False) -> None:
        qos = min(sent.qos, max(one.qos for one in wanted))
        if not qos and not peer.hears:
            return
        as_published = any(one.options & RETAIN_AS_PUBLISHED for one in wanted)
        named = tuple(sorted(one.identifier for one in wanted if one.identifier))
        peer.due.append(Due(sent, qos, late or (sent.retain and as_published), named, late))

    def members(self, group: str) -> list[str]:
        return [name for name, peer in self.peers.items() if group in peer.subscriptions]

    def _look_at_groups(self) -> None:
        for one in self.shared:
            if not self.members(one.group):
                one.may_be_lost = True
