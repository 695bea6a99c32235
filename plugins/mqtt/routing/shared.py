"""Shared subscriptions: who of a group gets the next publish.

Source: MQTT 5.0 section 4.8.2. Strategies are those that EMQX and RobustMQ users know.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

from lakemq.plugins.mqtt.state.sessions import Subscription
from lakemq.plugins.mqtt.wire.messages import Message


class Group:
    """The members of one share name and filter."""

    __slots__ = ("cursor", "members", "name", "topic_filter")

    def __init__(self, name: str, topic_filter: str = "") -> None:
        self.name = name
        self.topic_filter = topic_filter
        self.members: list[Subscription] = []
        self.cursor = 0
        """Counts picks; strategies use it as they like."""

    def add(self, subscription: Subscription) -> int:
        """Add or replace; returns by how many the group grew."""
        for place, member in enumerate(self.members):
            if member.session is subscription.session:
                self.members[place] = subscription
                return 0
        self.members.append(subscription)
        return 1

    def remove(self, subscription: Subscription) -> None:
        """Remove the member of the subscription's session, if it is one."""
        self.members = [one for one in self.members if one.session is not subscription.session]

    def keepers(self) -> list[Subscription]:
        """Members that get publishes at QoS 1 or 2, so that a publish given to one of them is not
        lost."""
        return [one for one in self.members if one.options & 3]

    def pick(
        self,
        message: Message | None,
        strategy: Strategy,
        members: list[Subscription] | None = None,
    ) -> Subscription | None:
        """The member (one of `members` where given) that gets `message`: one that is connected if
        there is any, else one whose session keeps it; None when no member can take it."""
        members = self.members if members is None else members
        if not members:
            return None
        chosen = members[strategy(self, members, message) % len(members)]
        if chosen.session.connection is not None:
            return chosen
        # Built only when the first choice is away: as a rule all members are connected.
        online = [one for one in members if one.session.connection is not None]
        if online:
            return online[strategy(self, online, message) % len(online)]
        return chosen


Strategy = Callable[[Group, list[Subscription], Message | None], int]
"""Index (modulo the number of members) of the one that gets the message."""


def _round_robin(group: Group, members: list[Subscription], message: Message | None) -> int:
    group.cursor += 1
    return group.cursor - 1


def _spread(group: Group, members: list[Subscription], message: Message | None) -> int:
    """Like random, from a counter: a hash scatters it, so no order of arrival is favoured."""
    group.cursor += 1
    return zlib.crc32(group.cursor.to_bytes(8, "little"))


def _sticky(group: Group, members: list[Subscription], message: Message | None) -> int:
    # The oldest member that is connected (`pick`), until it leaves.
    return 0


def _hash_client(group: Group, members: list[Subscription], message: Message | None) -> int:
    return zlib.crc32((message.origin or "").encode()) if message is not None else 0


def _hash_topic(group: Group, members: list[Subscription], message: Message | None) -> int:
    return zlib.crc32(message.topic.encode()) if message is not None else 0


def _least_inflight(group: Group, members: list[Subscription], message: Message | None) -> int:
    loads = [member.session.outbound.load for member in members]
    lightest = min(loads)
    ties = [place for place, load in enumerate(loads) if load == lightest]
    group.cursor += 1
    return ties[group.cursor % len(ties)]


STRATEGIES: Final[dict[str, Strategy]] = {
    "round_robin": _round_robin,
    "random": _spread,
    "sticky": _sticky,
    "hash_client": _hash_client,
    "hash_topic": _hash_topic,
    "least_inflight": _least_inflight,
}
