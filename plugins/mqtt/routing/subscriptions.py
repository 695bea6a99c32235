"""Who wants which topic name: an index of topic filters, and matches by topic name.

A filter with wildcards is found by its *shape*: how many levels it has, where its `+` stand and
whether it ends in `#`. For every shape in use, a topic name has exactly one filter text that would
match it, so a match is one dictionary look-up per shape. A million filters of a few shapes cost a
dictionary entry each, and matching does not depend on their number. Shapes are bounded by
`shapes_max`, since clients choose them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from lakemq.plugins.mqtt.routing.shared import Group
from lakemq.plugins.mqtt.state.sessions import Session, Subscription
from lakemq.plugins.mqtt.wire.packets import NO_LOCAL, RETAIN_AS_PUBLISHED
from lakemq.plugins.mqtt.wire.topics import REMEMBERED_CHARS_MAX

SHAPES_MAX: Final = 1024
MATCHES_MAX: Final = 65_536
SHARED_MATCHES_MAX: Final = 4096
"""Matches that are shared by names, each with up to `shapes_max` filters."""

Shape = tuple[int, tuple[int, ...], bool]
"""Levels (without `#`), places of `+`, and whether `#` follows."""


class Target:
    """What one session gets of one topic name: its overlapping subscriptions taken together."""

    __slots__ = ("identifiers", "no_local", "own", "qos", "retain_as_published", "session")

    def __init__(self, session: Session, options: int, identifiers: tuple[int, ...]) -> None:
        """`options`: those of SUBSCRIBE, in one byte."""
        self.session = session
        self.qos = options & 0x03
        self.retain_as_published = bool(options & RETAIN_AS_PUBLISHED)
        self.no_local = bool(options & NO_LOCAL)
        self.identifiers = identifiers
        self.own: Target | None = None if self.no_local else self
        """What it gets of its own publishes."""

    def merge(self, other: Target) -> None:
        """Deliver once, at the highest QoS, with all identifiers [MQTT-3.3.4-2] [MQTT-3.3.4-4]."""
        own = self.own
        if other.no_local:
            if own is self:  # what it is so far stays what it gets of its own
                own = Target(self.session, self.qos, self.identifiers)
                own.retain_as_published = self.retain_as_published
        elif own is None:
            own = other
        elif own is not self:
            own.merge(other)
        self.qos = max(self.qos, other.qos)
        self.retain_as_published |= other.retain_as_published
        self.identifiers += other.identifiers
        self.no_local |= other.no_local
        self.own = own


class Match:
    """All sessions and groups that get a topic name."""

    __slots__ = ("groups", "targets")

    def __init__(self, targets: list[Target], groups: list[Group]) -> None:
        self.targets = targets
        self.groups = groups


class _Members:
    """All subscriptions to one filter, once there is more than a single plain one."""

    __slots__ = ("groups", "plain")

    def __init__(self) -> None:
        self.plain: dict[object, Subscription] = {}
        self.groups: dict[str, Group] = {}


def shape_of(topic_filter: str) -> Shape | None:
    """The filter's shape; None when it has no wildcard."""
    if "+" not in topic_filter and not topic_filter.endswith("#"):
        return None
    levels = topic_filter.split("/")
    deep = levels[-1] == "#"
    if deep:
        levels.pop()
    places = tuple(place for place, level in enumerate(levels) if level == "+")
    return len(levels), places, deep


def candidates(name: str, shapes: Iterable[Shape]) -> Iterator[str]:
    """The filter texts of these shapes that match `name`."""
    yield name
    levels = name.split("/")
    hidden = name.startswith("$")  # [MQTT-4.7.2-1]
    for size, places, deep in shapes:
        if size > len(levels) or (not deep and size != len(levels)):
            continue
        # Wildcards at the first level do not match names that begin with `$`.
        if hidden and (places[:1] == (0,) or not size):
            continue
        pattern = levels[:size]
        for place in places:
            pattern[place] = "+"
        if deep:
            pattern.append("#")
        yield "/".join(pattern)


class SubscriptionIndex:
    """Filters -> subscriptions, and a cache of matches by topic name."""

    def __init__(self, shapes_max: int = SHAPES_MAX, matches_max: int = MATCHES_MAX) -> None:
        self.count = 0
        """Subscriptions in the index."""
        self._filters: dict[str, Subscription | _Members] = {}
        self._shapes: dict[Shape, int] = {}
        """How many filters have each shape."""
        self._matches: dict[str, Match] = {}
        self._shared_matches: dict[tuple[str, ...], Match] = {}
        """By the filters with wildcards that match, where no filter is the very name."""
        self.on_filter: Callable[[str, bool], None] | None = None
        """Called with a filter that has its first subscription, or (False) has lost its last."""
        self.on_group: Callable[[str, str], None] | None = None
        """Called with share name and filter of a group whose members have changed."""
        self.shapes_max = shapes_max
        self._matches_max = matches_max

    def __len__(self) -> int:
        return len(self._filters)

    def knows(self, shape: Shape) -> bool:
        """Whether some filter has that shape."""
        return shape in self._shapes

    def has_room_for(self, topic_filter: str) -> bool:
        """Whether the filter can be added without more shapes than `shapes_max`."""
        shape = shape_of(topic_filter)
        return shape is None or shape in self._shapes or len(self._shapes) < self.shapes_max

    def add(self, subscription: Subscription) -> None:
        """Add or, for the same session and address, replace."""
        text, group = subscription.address
        present = self._filters.get(text)
        if present is None:
            self._count_shape(text, 1)
            if group is None:  # as a rule; `_Members` would cost two dicts for each filter
                self._filters[text] = subscription
                self._changed(text, 1)
                return
        if isinstance(present, _Members):
            members = present
        else:
            members = self._filters[text] = _Members()
            if present is not None:
                members.plain[present.key] = present
        if group is None:
            before = len(members.plain)
            members.plain[subscription.key] = subscription
            self._changed(text, len(members.plain) - before)
        else:
            if group not in members.groups:
                members.groups[group] = Group(group, text)
            self._changed(text, members.groups[group].add(subscription))
            if self.on_group is not None:
                self.on_group(group, text)

    def remove(self, subscription: Subscription) -> None:
        """Remove what `add` put in."""
        text, group = subscription.address
        members = self._filters[text]
        if not isinstance(members, _Members):
            del self._filters[text]
        else:
            if group is None:
                del members.plain[subscription.key]
            else:
                members.groups[group].remove(subscription)
                if not members.groups[group].members:
                    del members.groups[group]
                if self.on_group is not None:
                    self.on_group(group, text)
            if members.plain or members.groups:
                self._changed(text, -1)
                return
            del self._filters[text]
        self._count_shape(text, -1)
        self._changed(text, -1)

    def match(self, name: str) -> Match:
        """All that get `name`; remembered until a subscription changes it."""
        found = self._matches.get(name)
        if found is None:
            found = self._find(name)
            if len(name) <= REMEMBERED_CHARS_MAX:
                if len(self._matches) >= self._matches_max:
                    self._matches.clear()
                self._matches[name] = found
        return found

    def filters(self) -> list[str]:
        """All filters that have a subscription."""
        return list(self._filters)

    def group_keys(self) -> list[tuple[str, str]]:
        """Share name and filter of all shared groups."""
        return [
            (name, text)
            for text, members in self._filters.items()
            if isinstance(members, _Members)
            for name in members.groups
        ]

    def group(self, name: str, text: str) -> Group | None:
        """The members of a shared group."""
        members = self._filters.get(text)
        return members.groups.get(name) if isinstance(members, _Members) else None

    def group_changed(self, session: Session) -> None:
        """A session has connected or left: so have its memberships."""
        if self.on_group is not None:
            for subscription in session.subscriptions.values():
                text, group = subscription.address
                if group is not None:
                    self.on_group(group, text)

    def _count_shape(self, text: str, change: int) -> None:
        if self.on_filter is not None:
            self.on_filter(text, change > 0)
        shape = shape_of(text)
        if shape is None:
            return
        count = self._shapes.get(shape, 0) + change
        if count:
            self._shapes[shape] = count
        else:
            del self._shapes[shape]

    def _changed(self, text: str, change: int) -> None:
        self.count += change
        if shape_of(text) is None:
            self._matches.pop(text, None)
        else:
            # The cache is by name: which of its names a wildcard filter matches is not known.
            self._matches.clear()
            self._shared_matches.clear()

    def _find(self, name: str) -> Match:
        filters = self._filters
        found = tuple(text for text in candidates(name, self._shapes) if text in filters)
        if name in filters:
            return self._match_of(found)
        match = self._shared_matches.get(found)
        if match is None:
            if len(self._shared_matches) >= SHARED_MATCHES_MAX:
                self._shared_matches.clear()
            match = self._shared_matches[found] = self._match_of(found)
        return match

    def _match_of(self, filters: tuple[str, ...]) -> Match:
        targets: dict[Session, Target] = {}
        groups: list[Group] = []
        for text in filters:
            members = self._filters[text]
            if isinstance(members, Subscription):
                _merge(targets, members)
                continue
            for subscription in members.plain.values():
                _merge(targets, subscription)
            groups += members.groups.values()
        return Match(list(targets.values()), groups)


def _merge(targets: dict[Session, Target], subscription: Subscription) -> None:
    identifiers = (subscription.identifier,) if subscription.identifier else ()
    new = Target(subscription.session, subscription.options, identifiers)
    present = targets.setdefault(subscription.session, new)
    if present is not new:
        present.merge(new)
