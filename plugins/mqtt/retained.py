"""Retained messages: the last one of each topic name, found by filter. Pure.

Source: MQTT 5.0 section 3.3.1.3.
"""

from __future__ import annotations

from collections.abc import Iterator

from plugins.mqtt.messages import Message


class _Node:
    __slots__ = ("children", "message")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.message: Message | None = None


class Retained:
    """Retained messages by topic name, as a tree of levels; bounded in count and bytes."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self.count = 0
        self.size_bytes = 0
        self.refused = 0
        """Messages not kept because a bound was reached."""
        self.changes: dict[str, Message | None] = {}
        """What changed since `take_changes`; None: forgotten. Grows only where `tracking`."""
        self.tracking = False
        """`$SYS` is never tracked: it is made anew."""
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._root = _Node()

    def take_changes(self) -> dict[str, Message | None]:
        """Topic name -> what is retained now, for all that changed since the last call."""
        changes, self.changes = self.changes, {}
        return changes

    def get(self, topic: str) -> Message | None:
        node: _Node | None = self._root
        for level in topic.split("/"):
            node = node.children.get(level) if node is not None else None
        return node.message if node is not None else None

    def has_room_for(self, message: Message) -> bool:
        """Whether `put` would keep it."""
        old = self.get(message.topic)
        count = self.count + (old is None)
        size = self.size_bytes + message.size_bytes - (old.size_bytes if old else 0)
        return not message.payload or (count <= self._count_max and size <= self._bytes_max)

    def put(self, message: Message) -> bool:
        """Keep the message, or with an empty payload forget the topic [MQTT-3.3.1-6]
        [MQTT-3.3.1-7]. False: refused, a bound was reached; the older one is kept."""
        if not message.payload:
            self.forget(message.topic)
            return True
        if not self.has_room_for(message):
            self.refused += 1
            return False
        node = self._root
        for level in message.topic.split("/"):
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Node()
            node = child
        if node.message is None:
            self.count += 1
        else:
            self.size_bytes -= node.message.size_bytes
        self.size_bytes += message.size_bytes
        node.message = message
        self._note(message.topic, message)
        return True

    def forget(self, topic: str) -> None:
        path: list[tuple[_Node, str]] = []
        node = self._root
        for level in topic.split("/"):
            child = node.children.get(level)
            if child is None:
                return
            path.append((node, level))
            node = child
        if node.message is not None:
            self.count -= 1
            self.size_bytes -= node.message.size_bytes
            node.message = None
            self._note(topic, None)
        for parent, level in reversed(path):  # empty branches go, up to the first used one
            child = parent.children[level]
            if child.children or child.message is not None:
                break
            del parent.children[level]

    def _note(self, topic: str, message: Message | None) -> None:
        if self.tracking and not topic.startswith("$SYS/"):
            self.changes[topic] = message

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
            if level == "#":
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

    def drop_expired(self, now_ms: int) -> None:
        gone = [
            message.topic
            for message in self._everything()
            if message.expires_ms is not None and message.expired(now_ms)
        ]
        for topic in gone:
            self.forget(topic)

    def _everything(self) -> Iterator[Message]:
        stack = [self._root]
        while stack:
            node = stack.pop()
            if node.message is not None:
                yield node.message
            stack += node.children.values()
