"""Retained messages: the last one of each topic name, found by filter.

Source: MQTT 5.0 section 3.3.1.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from lakemq.broker_core.api.limits.user_shares import Owner, UserShares
from lakemq.broker_core.api.scheduling.due_queue import DueQueue
from lakemq.plugins.mqtt.routing.shares import Holdings
from lakemq.plugins.mqtt.wire.messages import Message, Place

CLEARED_MAX: Final = 10_000
"""Names without a message whose last record is remembered; the oldest are forgotten beyond."""
EXPIRED_AT_ONCE: Final = 1000
"""Messages that are forgotten in one turn of the event loop."""
AWAITED_MS: int = 60_000  # not `Final`: simulations change it, in compiled modules too
"""How long room is held for a message that is being stored."""


class _Node:
    __slots__ = ("children", "message", "owner", "source")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.message: Message | None = None
        self.owner: Owner | None = None
        """Whose share the message is of."""
        self.source: Place | None = None
        """The record that it came with; None: it lies in no topic, or that is not known."""


class _Awaited(NamedTuple):
    """Messages of one topic name that are being stored: they take the place of one."""

    owner: Owner
    size_bytes: int
    """Of the largest."""
    until_ms: int
    messages: int = 1


class _Expiring(NamedTuple):
    """A topic name whose message expires."""

    key: str
    due_ms: int
    size_bytes: int = 0


class Retained:
    """Retained messages by topic name, as a tree of levels; bounded in count and bytes."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self.count = 0
        self.size_bytes = 0
        self.revision = 0
        """Grows when a message is replaced or forgotten, or one comes."""
        self.refused = 0
        """Messages not kept because a bound was reached."""
        self.changes: dict[str, Message | None] = {}
        """What changed since `take_changes`; None: forgotten. Grows only where `tracking`."""
        self.tracking = False
        """`$SYS` is never tracked: it is rebuilt."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when `changes` is no longer empty."""
        self.deleted: set[str] = set()
        """Names of `changes` that no record has cleared: no other node knows of that."""
        self._cleared: dict[str, Place] = {}
        """Names that have no message any more, and the record that cleared them."""
        self.shares = UserShares()
        self._held, self._held_bytes = Holdings(), Holdings()
        self._awaited: dict[str, _Awaited] = {}
        """By topic name; the oldest first."""
        self._awaited_count = self._awaited_bytes = 0
        self.count_max = count_max
        self.bytes_max = bytes_max
        self._root = _Node()
        self._expiring: DueQueue[_Expiring] = DueQueue()

    def take_changes(self) -> dict[str, Message | None]:
        """Topic name -> what is retained now, for all that changed since the last call."""
        changes, self.changes = self.changes, {}
        return changes

    def get(self, topic: str) -> Message | None:
        """The message retained under a topic name, expired or not; None: none is."""
        node = self._find(topic)
        return node.message if node is not None else None

    def owner_of(self, topic: str) -> Owner | None:
        """Whose share the topic's message counts in; None: no user's."""
        node = self._find(topic)
        return node.owner if node is not None else None

    def source_of(self, topic: str) -> Place | None:
        """The record of a bound topic by which the name's message came or went, if one is known."""
        node = self._find(topic)
        if node is not None and node.message is not None:
            return node.source
        return self._cleared.get(topic)

    def is_behind(self, topic: str, place: Place | None) -> bool:
        """Whether the record at `place` came before what is known of the name, or is that."""
        known = self.source_of(topic)
        return (
            place is not None
            and known is not None
            and known[:2] == place[:2]
            and place.offset <= known.offset
        )

    def forget_sources(self, bound_topic: str) -> None:
        """The topic was deleted: offsets of another one of its name tell nothing about it."""
        stack = [self._root]
        while stack:
            node = stack.pop()
            if node.source is not None and node.source.topic == bound_topic:
                node.source = None
            stack += node.children.values()
        self._cleared = {
            name: place for name, place in self._cleared.items() if place.topic != bound_topic
        }

    def _find(self, topic: str) -> _Node | None:
        node: _Node | None = self._root
        for level in topic.split("/"):
            node = node.children.get(level) if node is not None else None
        return node

    def has_room(self, topic: str, size_bytes: int, owner: Owner | None = None) -> bool:
        """Whether a message of that size can be kept, as one of the owner's."""
        node = self._find(topic)
        old = node.message if node is not None else None
        more, more_bytes = int(old is None), size_bytes - (old.size_bytes if old else 0)
        count, size = self.count + self._awaited_count, self.size_bytes + self._awaited_bytes
        if count + more > self.count_max or size + more_bytes > self.bytes_max:
            return False
        if owner is None:
            return True
        # It takes the place of another owner's message: all of it counts in this one's share.
        if node is None or node.owner != owner:
            more, more_bytes = 1, size_bytes
        count, size = self._held.of(owner) + more, self._held_bytes.of(owner) + more_bytes
        most = self.shares.most
        return count <= most(self.count_max, owner) and size <= most(self.bytes_max, owner)

    def let_in(self, topic: str, size_bytes: int, owner: Owner, now_ms: int) -> bool:
        """Whether there is room for a message that is being stored and will be `put` then. Room is
        held for it, for AWAITED_MS at most, since it may never be stored."""
        while self._awaited:
            oldest, one = next(iter(self._awaited.items()))
            if now_ms < one.until_ms:
                break
            self._release(oldest)
        # Several publishes to one name end as one message, so room is held for the largest alone.
        others = self._release(topic)
        if not self.has_room(topic, size_bytes, owner):
            self.refused += 1
            if others is not None:
                self._await(topic, others)
            return False
        messages = 1
        if others is not None:
            messages, size_bytes = others.messages + 1, max(others.size_bytes, size_bytes)
        self._await(topic, _Awaited(owner, size_bytes, now_ms + AWAITED_MS, messages))
        return True

    def _await(self, topic: str, one: _Awaited) -> None:
        self._awaited[topic] = one
        self._count_awaited(one, 1)

    def _release(self, topic: str) -> _Awaited | None:
        one = self._awaited.pop(topic, None)
        if one is not None:
            self._count_awaited(one, -1)
        return one

    def _arrived(self, topic: str) -> None:
        """One of the topic's messages is stored; room stays held while others are not."""
        one = self._release(topic)
        if one is not None and one.messages > 1:
            self._await(topic, one._replace(messages=one.messages - 1))

    def _count_awaited(self, one: _Awaited, sign: int) -> None:
        self._awaited_count += sign
        self._awaited_bytes += sign * one.size_bytes
        self._held.add(one.owner, sign)
        self._held_bytes.add(one.owner, sign * one.size_bytes)

    def put(self, message: Message, owner: Owner | None = None, *, let_in: bool = False) -> bool:
        """Keep the message, or with an empty payload forget the topic [MQTT-3.3.1-6]
        [MQTT-3.3.1-7]. False: refused, a bound was reached; the older one is kept. `let_in`: there
        was room when it was published, so it is kept whatever came meanwhile. What came with an
        older record than the known one changes nothing."""
        if message.payload:
            self._arrived(message.topic)
        if self.is_behind(message.topic, message.place):
            return True
        if not message.payload:
            self.forget(message.topic, message.place)
            return True
        if not let_in and not self.has_room(message.topic, message.size_bytes, owner):
            self.refused += 1
            return False
        self._hold(message, owner, message.place)
        self._note(message.topic, message)
        return True

    def adopt(
        self, topic: str, message: Message | None, owner: Owner | None, source: Place | None
    ) -> None:
        """Hold what was kept before, or by another node, though the bounds be lower by now. None:
        nothing is retained under the name. It need not be kept again."""
        self.changes.pop(topic, None)
        if message is not None:
            self._hold(message, owner, source)
        else:
            self._remove(topic, source)

    def _hold(self, message: Message, owner: Owner | None, source: Place | None) -> None:
        self.revision += 1
        node = self._root
        for level in message.topic.split("/"):
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Node()
            node = child
        if node.message is not None:
            self._count_message(node, node.message, -1)
        node.message, node.owner, node.source = message, owner, source
        self._count_message(node, message, 1)
        self._cleared.pop(message.topic, None)
        if message.expires_ms is not None:
            expiring = _Expiring(message.topic, message.expires_ms)
            self._expiring.add(expiring)
            self._expiring.schedule(expiring)
        else:
            self._expiring.remove(message.topic)

    def forget(self, topic: str, place: Place | None = None) -> None:
        """Remove a topic name's message, if it has one. `place`: of the record that says so."""
        if self._remove(topic, place):
            self._note(topic, None)
            if place is None and topic in self.changes:
                self.deleted.add(topic)

    def _remove(self, topic: str, place: Place | None) -> bool:
        """Remove the message, if there is one, and branches left empty."""
        source = place or self.source_of(topic)
        if source is not None:
            self._cleared.pop(topic, None)
            self._cleared[topic] = source
            if len(self._cleared) > CLEARED_MAX:
                del self._cleared[next(iter(self._cleared))]
        self._expiring.remove(topic)
        path: list[tuple[_Node, str]] = []
        node = self._root
        for level in topic.split("/"):
            child = node.children.get(level)
            if child is None:
                return False
            path.append((node, level))
            node = child
        had = node.message is not None
        self.revision += had
        if node.message is not None:
            self._count_message(node, node.message, -1)
            node.message = node.owner = node.source = None
        for parent, level in reversed(path):  # empty branches go, up to the first used one
            child = parent.children[level]
            if child.children or child.message is not None:
                break
            del parent.children[level]
        return had

    def _count_message(self, node: _Node, message: Message, sign: int) -> None:
        self.count += sign
        self.size_bytes += sign * message.size_bytes
        self._held.add(node.owner, sign)
        self._held_bytes.add(node.owner, sign * message.size_bytes)

    def _note(self, topic: str, message: Message | None) -> None:
        if self.tracking and not topic.startswith("$SYS/"):
            first = not self.changes
            self.changes[topic] = message
            if first:
                self.on_change()

    def match(self, topic_filter: str, now_ms: int) -> Iterator[Message]:
        """Messages whose topic name the filter matches, expired ones left out."""
        pattern = topic_filter.split("/")
        stack: list[tuple[_Node, int]] = [(self._root, 0)]
        while stack:
            node, depth = stack.pop()
            if depth == len(pattern):
                if node.message is not None and not node.message.expired(now_ms):
                    yield node.message
                continue
            level = pattern[depth]
            if level == "#":  # `a/#` matches `a`, too (4.7.1.2)
                yield from self._all_under(node, depth == 0, now_ms)
            elif level == "+":
                stack += [
                    (child, depth + 1)
                    for name, child in node.children.items()
                    if depth or not name.startswith("$")
                ]
            elif level in node.children:
                stack.append((node.children[level], depth + 1))

    def _all_under(self, top: _Node, is_root: bool, now_ms: int) -> Iterator[Message]:
        """Every message at and under `top`; under the root without `$`-names [MQTT-4.7.2-1]."""
        if top.message is not None and not top.message.expired(now_ms):
            yield top.message
        stack = [
            child for name, child in top.children.items() if not is_root or not name.startswith("$")
        ]
        while stack:
            node = stack.pop()
            if node.message is not None and not node.message.expired(now_ms):
                yield node.message
            stack += node.children.values()

    def drop_expired(self, now_ms: int, *, alone: bool) -> bool:
        """Forget messages whose expiry interval is over (3.3.1.3), `EXPIRED_AT_ONCE` at most;
        whether there may be more. `alone`: no other node holds what is retained here."""
        due = self._expiring.take(now_ms, EXPIRED_AT_ONCE)
        for topic, *_ in due:
            source = self.source_of(topic)
            had = self._remove(topic, source)
            # One that lies in no topic may have been replaced elsewhere, and nothing would tell
            # that from what is said of the older one: each node forgets it by itself.
            if had and (alone or source is not None):
                self._note(topic, None)
        return len(due) == EXPIRED_AT_ONCE

    def everything(self) -> Iterator[Message]:
        """All messages, expired ones and those of `$SYS` too."""
        stack = [self._root]
        while stack:
            node = stack.pop()
            if node.message is not None:
                yield node.message
            stack += node.children.values()
