"""What this node's subscriptions want, and what to say of it to which node. No IO.

Filters without wildcards are told as hashes, others as text. A node is told everything at first,
a part at a time, and changes from then on; both are numbered by the state that they complete.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from lakemq.plugins.mqtt.interest.frames import (
    GROUPS_MAX,
    HASHES_MAX,
    TARGET_BYTES,
    TEXTS_MAX,
    Kind,
    Members,
    Said,
    encode,
    nothing,
)
from lakemq.plugins.mqtt.interest.hashes import Hasher, HashSet
from lakemq.plugins.mqtt.routing.subscriptions import shape_of

WILDCARDS_MAX: Final = 100_000
HASHED_MAX: Final = 4_000_000
"""With more filters than these a node tells that it may want everything: that costs bytes, and
loses nothing."""
SCAN_A_TURN: Final = 5_000
"""Filters that are looked at at a time when a node finds that it is not alone any more."""
_BEHIND_MAX: Final = 256
"""Changes that wait while a node is told everything; with more it is told from the start."""

GroupKey = tuple[str, str]
"""Share name and filter."""


class OwnInterest:
    """The filters of this node, each once, however many subscriptions share it."""

    def __init__(self, hasher: Hasher, count: Callable[[GroupKey], Members]) -> None:
        """`count`: how many members a group has now."""
        self.number = 0
        """Of the state that has been told, or is being told."""
        self.grown = 0
        """Number of the state in which something was wanted that was not before."""
        self._hasher = hasher
        self._count = count
        self._hashes = HashSet()
        self._again: dict[int, int] = {}
        """Hash -> filters beyond the first that have it."""
        self._texts: dict[str, None] = {}
        self._groups: dict[GroupKey, Members] = {}
        self._waiting: dict[str, None] = {}
        """Filters that were there before the node looked."""
        self._added: dict[int | str, None] = {}
        self._removed: dict[int | str, None] = {}
        self._dirty: dict[GroupKey, None] = {}
        self._emptied: set[GroupKey] = set()
        """Of the dirty ones, those that have had no members since they were told."""
        self._everything = False
        self._peers: dict[str, _Peer] = {}

    # -- what subscriptions do

    def begin(self, filters: Iterable[str], groups: Iterable[GroupKey]) -> None:
        """These were there before; `scan` looks at the filters."""
        self._waiting = dict.fromkeys(filters)
        self._dirty = dict.fromkeys(groups)

    def scan(self) -> bool:
        """Look at some of them; whether there are more."""
        for _ in range(min(SCAN_A_TURN, len(self._waiting))):
            self.added(self._waiting.popitem()[0])
        return bool(self._waiting)

    def added(self, topic_filter: str) -> None:
        """The first subscription to a filter."""
        if shape_of(topic_filter) is not None:
            self._texts[topic_filter] = None
            self._note(topic_filter, self._added, self._removed)
            return
        entry = self._hasher(topic_filter)
        if self._hashes.add(entry):
            self._note(entry, self._added, self._removed)
        else:
            self._again[entry] = self._again.get(entry, 0) + 1

    def removed(self, topic_filter: str) -> None:
        """The last subscription to a filter is gone."""
        if topic_filter in self._waiting:
            del self._waiting[topic_filter]
            return
        if shape_of(topic_filter) is not None:
            del self._texts[topic_filter]
            self._note(topic_filter, self._removed, self._added)
            return
        entry = self._hasher(topic_filter)
        if entry not in self._again:
            self._hashes.discard(entry)
            self._note(entry, self._removed, self._added)
        elif self._again[entry] == 1:
            del self._again[entry]
        else:
            self._again[entry] -= 1

    def group_changed(self, key: GroupKey) -> None:
        """A member has come, gone, connected or left."""
        self._dirty[key] = None

    def group_emptied(self, key: GroupKey) -> None:
        """The last member has gone. That is told though others have come by then: without members
        this node lets messages pass."""
        self._dirty[key] = None
        self._emptied.add(key)

    def _note(
        self, what: int | str, here: dict[int | str, None], there: dict[int | str, None]
    ) -> None:
        # Both may be told in one message, and are applied in the order in which they stand in it:
        # what was removed and added again is told as added.
        there.pop(what, None)
        here[what] = None
        if here is self._added:
            self.grown = self.number + 1

    @property
    def changed(self) -> bool:
        """Whether there is something that has not been told."""
        return bool(self._added or self._removed or self._dirty)

    @property
    def filters(self) -> int:
        """How many filters there are."""
        return len(self._hashes) + len(self._texts)

    # -- what is told

    def reachable(self, node: str) -> None:
        """A link to the node has begun: it is told everything."""
        self._peers[node] = _Peer(self._whole(self.number))

    def unreachable(self, node: str) -> None:
        """It is told nothing more."""
        self._peers.pop(node, None)

    def told(self) -> dict[str, bytes]:
        """What each node is to be told now: one message at most. Call `lost` for what can't be
        sent."""
        self._take_changes()
        found: dict[str, bytes] = {}
        for node, peer in self._peers.items():
            if self._waiting:
                continue  # not before there is a whole state
            if len(peer.changes) > _BEHIND_MAX:
                self._peers[node] = peer = _Peer(self._whole(self.number))
            message = peer.take()
            if message is not None:
                found[node] = message
        return found

    @property
    def telling(self) -> bool:
        """Whether `told` has more to say."""
        return self.changed or any(peer.rest or peer.changes for peer in self._peers.values())

    def lost(self, node: str) -> None:
        """A message for the node was dropped: it is told everything again."""
        if node in self._peers:
            self._peers[node] = _Peer(self._whole(self.number))

    def _take_changes(self) -> None:
        if not self.changed or self._waiting:
            return
        # The first of more than fit, the rest next time.
        added, removed = _some(self._added), _some(self._removed)
        groups = self._take_groups()
        self._everything = len(self._texts) > WILDCARDS_MAX or len(self._hashes) > HASHED_MAX
        self.number += 1
        message = encode(
            Said(
                Kind.DELTA, self.number, True, _hashes_of(added), _hashes_of(removed),
                _texts_of(added), _texts_of(removed), groups, self._everything,
            )
        )  # fmt: skip
        if self._added:
            self.grown = self.number + 1
        for peer in self._peers.values():
            peer.changes.append(message)

    def _take_groups(self) -> list[tuple[str, str, Members]]:
        rows: list[tuple[str, str, Members]] = []
        for key in _first(self._dirty, GROUPS_MAX // 2):
            told = key in self._groups
            members = self._recount(key)
            if key in self._emptied:
                self._emptied.discard(key)
                if told and any(members):
                    rows.append((*key, Members(0, 0)))
            rows.append((*key, members))
        return rows

    def _recount(self, key: GroupKey) -> Members:
        members = self._count(key)
        if any(members):
            self._groups[key] = members
        else:
            self._groups.pop(key, None)
        return members

    def _whole(self, number: int) -> Iterator[bytes]:
        """Messages of the state that is there when they are taken. Changes behind `number` are told
        again behind them, in their order, so that each ends as it is."""
        kind = Kind.WHOLE
        for said in self._parts():
            yield encode(said._replace(kind=kind, number=number, complete=False))
            kind = Kind.MORE
        yield encode(nothing(kind, number)._replace(everything=self._everything))

    def _parts(self) -> Iterator[Said]:
        empty = nothing(Kind.MORE, 0)
        if self._hashes:
            for part in self._hashes.parts(HASHES_MAX // 2):
                yield empty._replace(added=part)
        # Copies: they change between parts.
        for texts in _pieces(list(self._texts), TEXTS_MAX):
            yield empty._replace(texts_added=texts)
        keys = list(self._groups)
        for start in range(0, len(keys), GROUPS_MAX):
            some = keys[start : start + GROUPS_MAX]
            groups = [(*key, self._groups[key]) for key in some if key in self._groups]
            yield empty._replace(groups=groups)


class _Peer:
    """What one node has not been told."""

    __slots__ = ("changes", "rest", "whole")

    def __init__(self, whole: Iterator[bytes]) -> None:
        self.whole = whole
        self.rest = True
        """Whether it has not been told everything."""
        self.changes: deque[bytes] = deque()

    def take(self) -> bytes | None:
        if self.rest:
            message = next(self.whole, None)
            if message is not None:
                return message
            self.rest = False
        return self.changes.popleft() if self.changes else None


def _first(found: dict[GroupKey, None], count: int) -> list[GroupKey]:
    some = list(found)[:count]
    for one in some:
        del found[one]
    return some


def _some(found: dict[int | str, None]) -> list[int | str]:
    """Take as many as fit into a message."""
    some: list[int | str] = []
    hashes, texts, size = 0, 0, 0
    for one in found:
        if isinstance(one, int):
            hashes += 1
        else:
            texts += 1
            size += len(one.encode())
        if hashes > HASHES_MAX or texts > TEXTS_MAX or (size > TARGET_BYTES and texts > 1):
            break
        some.append(one)
    for one in some:
        del found[one]
    if not found:
        found.clear()  # gives back the room of a storm, which deleting does not
    return some


def _hashes_of(some: list[int | str]) -> array[int]:
    return array("Q", sorted(one for one in some if isinstance(one, int)))


def _texts_of(some: list[int | str]) -> list[str]:
    return [one for one in some if isinstance(one, str)]


def _pieces(texts: list[str], count_max: int) -> Iterator[list[str]]:
    piece: list[str] = []
    size = 0
    for one in texts:
        piece.append(one)
        size += len(one.encode())
        if len(piece) == count_max or size > TARGET_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece
