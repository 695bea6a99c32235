"""What each node writes into the topic of retained messages, and what it takes from it, so that all
nodes end with the same. No IO.

A retained message of a bound topic is known by its record there, its *source*. Of two with sources
in one partition the greater offset counts, whatever their order in the topic of retained messages;
of all others the one that comes last there. Who leads the source's partition writes at once; a node
that only heard the record writes too when none has for `WAIT_MS`: the leader may be dead. So an
older message may come behind a newer one: a node that sees that has the newer one written again,
since compaction keeps the last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from lakemq.broker_core.api.limits.user_shares import Owner
from lakemq.plugins.mqtt.routing.retained import Retained
from lakemq.plugins.mqtt.wire.messages import Message, Place

WAIT_MS: Final = 2_000

Leads = Callable[[Place], bool]
"""Whether this node leads the partition of a place."""


class Entry(NamedTuple):
    """What is retained under a name, to be written."""

    topic: str
    message: Message | None
    """None: nothing is."""
    owner: Owner | None
    source: Place | None


class Agreement:
    """Of one node, whose messages are in `retained`."""

    def __init__(self, retained: Retained) -> None:
        self._retained = retained
        self._ours: dict[str, None] = {}
        """Names to be written by this node."""
        self._theirs: dict[str, int] = {}
        """Names that another node is to write, and until when it has time; the oldest first."""
        self._writing: set[str] = set()
        """Names in the append that is under way, but for those that were read since."""

    @property
    def next_ms(self) -> int | None:
        """When `due` gives something, unless others write it before; None: nothing waits."""
        if self._ours or self._retained.changes:
            return 0
        return next(iter(self._theirs.values()), None)

    def due(self, now_ms: int, leads: Leads, *, complete: bool = False) -> list[Entry]:
        """What this node is to write now, as it is now; `written` or `failed` must follow before
        the next call. `complete`: all from partitions that it leads, so that their records need
        not be looked at again when this is written."""
        deleted = self._retained.deleted
        for name in self._retained.take_changes():
            if name in deleted:
                self._is_up_to_us(name)
            else:
                self._assign(name, now_ms, leads)
        deleted.clear()
        while self._theirs:
            name = next(iter(self._theirs))
            if self._theirs[name] > now_ms:
                break
            self._is_up_to_us(name)
        for name in list(self._theirs) if complete else ():
            source = self._retained.source_of(name)
            if source is None or leads(source):
                self._is_up_to_us(name)
        names, self._ours = self._ours, {}
        self._writing = set(names)
        return [self._entry(name) for name in names]

    def _is_up_to_us(self, name: str) -> None:
        self._theirs.pop(name, None)
        self._ours[name] = None

    def _assign(self, name: str, now_ms: int, leads: Leads) -> None:
        source = self._retained.source_of(name)
        self._theirs.pop(name, None)
        if source is None or name in self._ours or leads(source):
            self._ours[name] = None
        else:
            self._theirs[name] = now_ms + WAIT_MS

    def _entry(self, name: str) -> Entry:
        kept = self._retained
        return Entry(name, kept.get(name), kept.owner_of(name), kept.source_of(name))

    def written(self) -> None:
        """What `due` gave is in the topic."""
        self._writing = set()

    def failed(self) -> None:
        """It may not be."""
        for name in self._writing:
            self._is_up_to_us(name)
        self._writing = set()

    def read(self, entry: Entry, now_ms: int, leads: Leads) -> None:
        """The next one of the topic."""
        name = entry.topic
        known = self._retained.source_of(name)
        if known is None or entry.source is None or known[:2] != entry.source[:2]:
            # What is to be written will come behind it.
            if not self.waits(name):
                self._take(entry)
        elif entry.source.offset > known.offset or self._agrees(entry, known):
            self._take(entry)
        elif not self.is_open(name):
            self._assign(name, now_ms, leads)

    def _agrees(self, entry: Entry, known: Place) -> bool:
        """Whether it is what is held, or the word of an operator who has deleted that."""
        if entry.source != known:
            return False
        return entry.message is None or self._retained.get(entry.topic) is not None

    def waits(self, name: str) -> bool:
        """Whether what is retained under the name here is still to be written."""
        return name in self._ours or name in self._theirs or name in self._retained.changes

    def is_open(self, name: str) -> bool:
        """`waits`, or it is being written."""
        return self.waits(name) or name in self._writing

    def _take(self, entry: Entry) -> None:
        for names in (self._theirs, self._ours):
            names.pop(entry.topic, None)
        self._writing.discard(entry.topic)
        self._retained.adopt(entry.topic, entry.message, entry.owner, entry.source)
