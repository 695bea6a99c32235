"""What the other nodes want, as they have told it. No IO.

It is soft state of a node's link: what is not known yet, or too much to tell, counts as everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from lakemq.broker_core.api.cluster.channels import Peer
from lakemq.plugins.mqtt.interest.frames import Kind, Members, Said
from lakemq.plugins.mqtt.interest.hashes import Hasher, HashSet
from lakemq.plugins.mqtt.interest.own import HASHED_MAX, WILDCARDS_MAX, GroupKey
from lakemq.plugins.mqtt.routing.subscriptions import SHAPES_MAX, Shape, candidates, shape_of

_MATCHES_MAX: Final = 65_536
_GROUPS_MAX: Final = 200_000
_NAME_CHARS_MAX: Final = 1024


class _Node:
    """What one node has told."""

    __slots__ = (
        "complete", "everything", "groups", "hashes", "number", "overfull", "peer", "texts",
    )  # fmt: skip

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.complete = self.everything = False
        self.overfull = False
        """It said more than is kept of any node."""
        self.number = 0
        self.hashes = HashSet()
        self.texts: set[str] = set()
        self.groups: dict[GroupKey, Members] = {}

    @property
    def wide(self) -> bool:
        """Whether it may want anything."""
        return not self.complete or self.everything or self.overfull


class OthersInterest:
    """All nodes but this one."""

    def __init__(self, hasher: Hasher) -> None:
        self._hasher = hasher
        self._nodes: dict[str, _Node] = {}
        self._texts: dict[str, set[str]] = {}
        """Filter with wildcards -> nodes that want it."""
        self._shapes: dict[Shape, int] = {}
        self._matches: dict[str, tuple[str, ...]] = {}
        self.on_group: Callable[[GroupKey], None] = lambda key: None
        """Called after each change of a group's members, before the next one of it."""

    def begun(self, peer: Peer) -> None:
        """A link of the node has begun: nothing that it said before counts."""
        self._forget(peer.node_id)
        self._nodes[peer.node_id] = _Node(peer)

    def ended(self, peer: Peer) -> None:
        """Its link has ended."""
        node = self._nodes.get(peer.node_id)
        if node is not None and node.peer == peer:
            self._forget(peer.node_id)

    def _forget(self, node_id: str) -> None:
        node = self._nodes.pop(node_id, None)
        if node is not None:
            self._drop(node_id, node)
            self._matches.clear()
            self._forget_groups(node)

    def _drop(self, node_id: str, node: _Node) -> None:
        for text in node.texts:
            self._remove_text(node_id, text)
        node.texts.clear()

    def _forget_groups(self, node: _Node) -> None:
        groups, node.groups = node.groups, {}
        for key in groups:
            self.on_group(key)

    def said(self, peer: Peer, said: Said) -> None:
        """A message of the node."""
        node = self._nodes.get(peer.node_id)
        if node is None or node.peer != peer:
            return
        self._matches.clear()
        if said.kind is Kind.WHOLE:
            self._drop(peer.node_id, node)
            node.hashes = HashSet()
            node.complete = node.overfull = False
            self._forget_groups(node)
        elif said.kind is Kind.DELTA and (not node.complete or said.number != node.number + 1):
            node.complete = False  # until it tells all again
            return
        self._apply(peer.node_id, node, said)
        if said.complete:
            node.number, node.complete = said.number, True
            node.everything = said.everything

    def _apply(self, node_id: str, node: _Node, said: Said) -> None:
        node.overfull = node.overfull or (
            len(node.texts) > 2 * WILDCARDS_MAX
            or len(node.hashes) > 2 * HASHED_MAX
            or len(node.groups) > _GROUPS_MAX
        )
        if node.overfull:
            return
        for entry in said.removed:
            node.hashes.discard(entry)
        node.hashes.update(said.added)
        for text in said.texts_removed:
            if text in node.texts:
                node.texts.discard(text)
                self._remove_text(node_id, text)
        for text in said.texts_added:
            self._add_text(node_id, node, text)
        for name, text, members in said.groups:
            if any(members):
                node.groups[name, text] = members
            else:
                node.groups.pop((name, text), None)
            self.on_group((name, text))

    def _add_text(self, node_id: str, node: _Node, text: str) -> None:
        shape = shape_of(text)
        if shape is None or text in node.texts:
            return
        nodes = self._texts.get(text)
        if nodes is None:
            if shape not in self._shapes and len(self._shapes) >= SHAPES_MAX:
                node.overfull = True  # each shape costs a look-up for each name
                return
            nodes = self._texts[text] = set()
            self._shapes[shape] = self._shapes.get(shape, 0) + 1
        nodes.add(node_id)
        node.texts.add(text)

    def _remove_text(self, node_id: str, text: str) -> None:
        nodes = self._texts[text]
        nodes.discard(node_id)
        if nodes:
            return
        del self._texts[text]
        shape = shape_of(text)
        assert shape is not None
        self._shapes[shape] -= 1
        if not self._shapes[shape]:
            del self._shapes[shape]

    # -- what is asked

    def who(self, name: str) -> tuple[str, ...]:
        """Nodes that may want a topic name."""
        found = self._matches.get(name)
        if found is None:
            found = tuple(self._find(name))
            if len(name) <= _NAME_CHARS_MAX:
                if len(self._matches) >= _MATCHES_MAX:
                    self._matches.clear()
                self._matches[name] = found
        return found

    def _find(self, name: str) -> list[str]:
        wanting: set[str] = set()
        for text in candidates(name, self._shapes):
            wanting |= self._texts.get(text, frozenset())
        entry = self._hasher(name)
        return [
            node_id
            for node_id, node in self._nodes.items()
            if node.wide or node_id in wanting or entry in node.hashes
        ]

    def wants(self, peer: Peer, number: int, names: Iterable[str]) -> bool:
        """Whether a node may want one of these names, by what it had told up to `number`. True,
        too, where that is not known here."""
        node = self._nodes.get(peer.node_id)
        if node is None or node.peer != peer or node.wide or node.number < number:
            return True
        return any(peer.node_id in self.who(name) for name in names)

    def groups(self, key: GroupKey) -> Mapping[str, Members]:
        """Node -> how many members of a shared group it has. Nodes are missing that have none, and
        those that have not told everything yet (`unknown`)."""
        return {
            node_id: node.groups[key] for node_id, node in self._nodes.items() if key in node.groups
        }

    def unknown(self) -> list[str]:
        """Nodes that have not told everything yet."""
        return [node_id for node_id, node in self._nodes.items() if not node.complete]

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Node -> hashes and filters with wildcards that are known of it."""
        return {one: (len(node.hashes), len(node.texts)) for one, node in self._nodes.items()}
