"""Which node gives a message that lies in a topic to one of its members of a shared group. No IO.

Every node hears every message of its groups, and all pick the same node, by a hash over the members
that each knows of: who is connected first. Nodes hear of changes one after the other. So for
`OVERLAP_MS` a node goes by what it knew before, too, and what others were to deliver in the last
`KEPT_MS` is looked at again: a message may come to two members then, but not to none. It may come
to none only where a node is later than that: in handling what another has handled, or in hearing
that another has died.
"""

from __future__ import annotations

import math
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from lakemq.plugins.mqtt.interest.frames import Members
from lakemq.plugins.mqtt.interest.own import GroupKey
from lakemq.plugins.mqtt.wire.messages import Message, Place

OVERLAP_MS: Final = 1_000
KEPT_MS: Final = 10_000
"""Longer than it takes to notice that a node is gone."""
KEPT_MAX: Final = 50_000
"""Messages that are kept at most, of all groups."""
KEPT_MAX_BYTES: Final = 64 * 1024 * 1024
_SPREAD: Final = 2_654_435_761
"""crc32 of texts that differ in their last digits differ in few bits."""
BEFORE_MAX: Final = 8
"""Views of one group that count besides the newest at most."""

View = tuple[tuple[str, int], ...]
"""(node, weight), by node."""


class Missed(NamedTuple):
    """A message that this node is to deliver after all."""

    key: GroupKey
    message: Message


class _Kept(NamedTuple):
    """A message that another node was to deliver."""

    at_ms: int
    message: Message
    views: tuple[View, ...]
    """Those that counted then, without nodes that have had no members since."""
    there: frozenset[str]
    """Nodes that have had members since then, connected or not."""


class _Shared:
    """What is known of one group."""

    __slots__ = ("before", "changes", "kept", "since", "there", "view")

    def __init__(self, view: View, there: frozenset[str], changes: int) -> None:
        self.view = view
        self.there = there
        """Nodes with members."""
        self.before: list[tuple[View, int]] = []
        """Earlier views, and until when they count."""
        self.changes = changes
        """Changes that the view knows of."""
        self.kept: deque[_Kept] = deque()
        """The oldest first."""
        self.since: dict[tuple[str, int], int] = {}
        """(topic, partition) -> offset of the first message that came while there were members
        here."""


class Sharing:
    """Of one node."""

    def __init__(
        self,
        node_id: str,
        own: Callable[[GroupKey], Members],
        others: Callable[[GroupKey], Mapping[str, Members]],
        strategy: str,
    ) -> None:
        """`own`, `others`: members of a group on this node, and on others. `strategy`: how groups
        pick their members (`routing.shared`); where it goes by topic name or client, so does the
        pick of the node."""
        self._node_id = node_id
        self._own = own
        self._others = others
        self._strategy = strategy
        self._changes = 0
        self._groups: dict[GroupKey, _Shared] = {}
        self._keeping: dict[GroupKey, None] = {}
        """Groups that keep something; they alone are looked at without a message."""
        self._kept_count = self._kept_bytes = 0
        self._missed: list[Missed] = []

    def changed(self, key: GroupKey | None = None) -> None:
        """Members may have come or gone: of that group on this node, or of any group elsewhere."""
        self._changes += 1
        if key in self._groups and not any(self._own(key)):
            self._forget(key)

    def heard(self, key: GroupKey, now_ms: int) -> None:
        """What nodes have told each other of a group has changed: call it for each change, before
        the next one. What was so for a moment alone is a view, too: a node without members then let
        messages pass."""
        if key in self._groups:
            self._changes += 1
            self._refreshed(key, now_ms)

    def takes(self, key: GroupKey, message: Message, now_ms: int) -> bool:
        """Whether this node delivers a message to its members of the group."""
        group = self._refreshed(key, now_ms)
        view, place = group.view, message.place
        assert place is not None
        if place[:2] not in group.since:
            group.since[place[:2]] = place.offset
        if not group.before and all(node == self._node_id for node, _ in view):
            return True
        group.before = [one for one in group.before if now_ms < one[1]]
        views = (view, *(one for one, _ in group.before))
        if any(self._picks(one, key, message) for one in views):
            return True
        self._keeping[key] = None
        self._keep(group, _Kept(now_ms, message, views, group.there))
        return False

    def has_had(self, key: GroupKey, place: Place) -> bool:
        """Whether a message came here while the group had members on this node: they have got it,
        or another node did, or it is kept for one."""
        group = self._groups.get(key)
        return group is not None and place.offset >= group.since.get(place[:2], place.offset + 1)

    def missed(self, now_ms: int) -> list[Missed]:
        """What is to be delivered after all, by what is known now."""
        for key in list(self._keeping):
            group = self._refreshed(key, now_ms)
            while group.kept and now_ms - group.kept[0].at_ms >= KEPT_MS:
                self._drop_oldest(group)
            if not group.kept:
                del self._keeping[key]
        missed, self._missed = self._missed, []
        return missed

    def _refreshed(self, key: GroupKey, now_ms: int) -> _Shared:
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Shared(self._view(key), self._there(key), self._changes)
        elif group.changes != self._changes:
            group.changes = self._changes
            view, old = self._view(key), group.view
            if view != old:
                group.before = [*group.before[1 - BEFORE_MAX :], (old, now_ms + OVERLAP_MS)]
                group.view = view
            there = self._there(key)
            if view != old or there != group.there:
                group.there = there
                self._look_again(key, group, now_ms)
        return group

    def _forget(self, key: GroupKey) -> None:
        group = self._groups.pop(key)
        self._keeping.pop(key, None)
        while group.kept:
            self._drop_oldest(group)

    def _members(self, key: GroupKey) -> dict[str, Members]:
        return {**self._others(key), self._node_id: self._own(key)}

    def _there(self, key: GroupKey) -> frozenset[str]:
        return frozenset(node for node, members in self._members(key).items() if any(members))

    def _view(self, key: GroupKey) -> View:
        members = self._members(key)
        connected = {node: one.connected for node, one in members.items() if one.connected}
        away = {node: one.others for node, one in members.items() if one.others}
        return tuple(sorted((connected or away).items()))

    def _look_again(self, key: GroupKey, group: _Shared, now_ms: int) -> None:
        """Messages of the last moments, and older ones of a node without members, may be ours now.
        What fell to such a node falls to another one that has had members since it came, of those
        that it might have fallen to if there is one: who loses them forgets what it kept."""
        kept, group.kept = group.kept, deque()
        for one in kept:
            self._kept_count -= 1
            self._kept_bytes -= one.message.size_bytes
            there = one.there & group.there
            views = tuple(_left(view, group.there, there) for view in one.views)
            recent = (group.view,) if now_ms - one.at_ms < OVERLAP_MS else ()
            if any(self._picks(view, key, one.message) for view in (*views, *recent)):
                self._missed.append(Missed(key, one.message))
            else:
                self._keep(group, one._replace(views=views, there=there))

    def _picks(self, view: View, key: GroupKey, message: Message) -> bool:
        return _pick(view, self._text(key, message)) == self._node_id

    def _text(self, key: GroupKey, message: Message) -> str:
        place = message.place
        if self._strategy == "hash_topic":
            what = message.topic
        elif self._strategy == "hash_client":
            what = message.origin or ""
        elif self._strategy == "sticky":
            what = ""
        else:
            assert place is not None
            what = f"{place.topic}/{place.partition}/{place.offset}"
        return "\0".join((*key, what))

    def _keep(self, group: _Shared, one: _Kept) -> None:
        if self._kept_count >= KEPT_MAX or self._kept_bytes >= KEPT_MAX_BYTES:
            if not group.kept:
                return
            self._drop_oldest(group)
        group.kept.append(one)
        self._kept_count += 1
        self._kept_bytes += one.message.size_bytes

    def _drop_oldest(self, group: _Shared) -> None:
        self._kept_count -= 1
        self._kept_bytes -= group.kept.popleft().message.size_bytes


def _left(view: View, there: frozenset[str], since: frozenset[str]) -> View:
    """A view without nodes that are not `there` any more; if that leaves none, all nodes that have
    had members `since` the message came."""
    found = tuple(each for each in view if each[0] in there)
    return found or tuple((node, 1) for node in sorted(since))


def _pick(view: View, what: str) -> str:
    """The node that a message falls to, each by its weight; empty: there is none. By rendezvous
    hashing: where a weight changes, no message goes from one of the other nodes to another."""
    best, found = -1.0, ""
    for node, weight in view:
        share = (zlib.crc32(f"{node}\0{what}".encode()) * _SPREAD % 2**32 + 0.5) / 2**32
        score = -weight / math.log(share)
        if score > best:
            best, found = score, node
    return found
