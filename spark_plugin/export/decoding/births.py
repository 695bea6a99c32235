"""Which birth a Sparkplug message follows: what the journal holds before it says so, nothing else.

Source: Eclipse Sparkplug 3.0.0, chapter 5 (a session of an edge node begins with its NBIRTH, and
each device is born again behind that) and chapter 6 (aliases). All of an edge node's messages must
lie in one partition. A task knows the births of its own range; where others are it is told
(`KnownBirths`), or it looks for them backwards, until the oldest record.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from lakemq.broker_core.api.schemas.sparkplug import (
    UNBORN,
    Birth,
    birth_of,
    payload_of,
    place_of,
)

BIRTHS: Final = ("NBIRTH", "DBIRTH")
PLACES_MAX: Final = 100_000
"""Edge nodes and devices of a partition whose births the driver remembers; beyond, tasks look for
them again."""
_LOOK_BACK: Final = 20_000
"""Offsets of the first look backwards; each further one is four times as long."""

_HELD_MAX_BYTES: Final = 64 * 1024 * 1024
"""Of births that one look found; those beyond are read again when a message follows them."""
_NAME_CHARACTERS: Final = 64
"""A longer name of a metric counts for several in the cache."""


class StoredBirth(NamedTuple):
    """A birth message in the journal."""

    offset: int
    topic_name: bytes
    value: bytes


class BirthReader(Protocol):
    """Reads births of one partition from the journal."""

    def log_start(self) -> int:
        """The oldest offset that is left."""

    def births(self, start: int, end: int) -> Iterable[StoredBirth]:
        """Those in [start, end), in order."""


@dataclass(frozen=True, slots=True)
class KnownBirths:
    """The newest births of a partition before `end`: all of those at or above `low`."""

    low: int
    end: int
    offsets: Mapping[str, int]
    """Edge node `group/node` or device `group/node/device` -> offset."""

    def with_seen(self, end: int, seen: Iterable[tuple[int, Mapping[str, int]]]) -> KnownBirths:
        """Together with what tasks know that have read everything before `end`: (`low`, `offsets`)
        of each. Nothing, where that would be too much."""
        found, low = dict(self.offsets), self.low
        for its_low, offsets in seen:
            low = min(low, its_low)
            for place, offset in offsets.items():
                found[place] = max(offset, found.get(place, -1))
        if len(found) > PLACES_MAX:
            return KnownBirths(end, end, {})
        return KnownBirths(low, end, found)


class BirthCache:
    """What births tell, by where they lie; bounded by their metrics and the length of their names.
    The least used ones go."""

    def __init__(self, metrics_max: int = 500_000) -> None:
        self._metrics_max = metrics_max
        self._metrics = 0
        self._births: OrderedDict[tuple[object, int], Birth] = OrderedDict()

    def get(self, partition: object, offset: int) -> Birth | None:
        """None: it is not here any more."""
        found = self._births.get((partition, offset))
        if found is not None:
            self._births.move_to_end((partition, offset))
        return found

    def put(self, partition: object, offset: int, birth: Birth) -> None:
        """Keep it. It is not changed: an offset is given once."""
        if (partition, offset) in self._births:
            return
        self._births[partition, offset] = birth
        self._metrics += _size(birth)
        while self._metrics > self._metrics_max and len(self._births) > 1:
            self._metrics -= _size(self._births.popitem(last=False)[1])


def _size(birth: Birth) -> int:
    names = (*birth.names.values(), *birth.datatypes)
    return 1 + sum(1 + len(name) // _NAME_CHARACTERS for name in names)


@dataclass
class BirthLog:
    """The births of one partition, as a reader of its records from `start` on comes by."""

    reader: BirthReader
    start: int
    known: KnownBirths | None
    partition: object
    """What tells it from others in the cache."""
    cache: BirthCache
    offsets: dict[str, int] = field(default_factory=dict)
    """Edge node or device -> where its newest birth is, as far as that is known."""
    low: int = 0
    """From where on all births are known."""

    def __post_init__(self) -> None:
        known = self.known
        if known is None or known.end > self.start:
            known = KnownBirths(self.start, self.start, {})
        self.low, self.offsets = known.low, dict(known.offsets)
        self._unseen = known.end, self.start
        self._look_back = _LOOK_BACK
        self._log_start: int | None = None

    def note(self, address: Mapping[str, Any], offset: int, birth: Birth) -> None:
        """A birth has come by. `address`: of `place_of`."""
        place = _place(address)
        if place is not None:
            self.cache.put(self.partition, offset, birth)
            self.offsets[place] = offset

    def find(self, address: Mapping[str, Any]) -> Birth:
        """The birth that a message follows that comes by now; `UNBORN`: there is none."""
        node = f"{address.get('group_id')}/{address.get('edge_node_id')}"
        own = f"{node}/{address['device_id']}" if "device_id" in address else node
        self._see_before_start()
        while True:
            found, session = self.offsets.get(own, -1), self.offsets.get(node, -1)
            if found >= 0 and session <= found:
                return self._birth_at(found)
            # Born before its edge node was: of a session that is over.
            if session >= 0 or not self._look_further_back():
                return UNBORN

    def _see_before_start(self) -> None:
        """Births between what is known and the records that come by: another task had them."""
        start, end = self._unseen
        self._unseen = end, end
        if start < end:
            for place, offset in self._newest(start, end).items():
                self.offsets[place] = max(offset, self.offsets.get(place, -1))

    def _look_further_back(self) -> bool:
        """False: there is nothing older."""
        start = max(self._oldest(), self.low - self._look_back)
        if start >= self.low:
            return False
        for place, offset in self._newest(start, self.low).items():
            self.offsets.setdefault(place, offset)
        self.low = start
        self._look_back *= 4
        return True

    def _newest(self, start: int, end: int) -> dict[str, int]:
        offsets: dict[str, int] = {}
        held: dict[str, bytes] = {}
        left = _HELD_MAX_BYTES
        for each in self.reader.births(start, end):
            place = _place(place_of(each.topic_name))
            if place is None:
                continue
            offsets[place] = each.offset
            left += len(held.pop(place, b""))
            if len(each.value) <= left:
                held[place] = each.value
                left -= len(each.value)
        for place, value in held.items():
            self.cache.put(self.partition, offsets[place], birth_in(value))
        return offsets

    def _birth_at(self, offset: int) -> Birth:
        birth = self.cache.get(self.partition, offset)
        if birth is None:
            stored = self._stored(offset)
            birth = UNBORN if stored is None else birth_in(stored.value)
            self.cache.put(self.partition, offset, birth)
        return birth

    def _stored(self, offset: int) -> StoredBirth | None:
        """None: retention has deleted it."""
        there: Iterator[StoredBirth] = iter(())
        if offset >= self._oldest():
            there = iter(self.reader.births(offset, offset + 1))
        return next(there, None)

    def _oldest(self) -> int:
        if self._log_start is None:
            self._log_start = self.reader.log_start()
        return self._log_start


def birth_in(value: bytes) -> Birth:
    """What a stored birth tells; nothing, where it can't be read: an older one counts no more."""
    try:
        return birth_of(payload_of(value))
    except Exception:  # parsers raise whatever they stumble over
        return UNBORN


def _place(address: Mapping[str, Any]) -> str | None:
    """Whose birth a message of this address is; None: it is none."""
    kind, device = address.get("message_type"), address.get("device_id")
    if (
        kind not in BIRTHS
        or (kind == "DBIRTH") == (device is None)
        or "edge_node_id" not in address
    ):
        return None
    place = f"{address['group_id']}/{address['edge_node_id']}"
    return place if device is None else f"{place}/{device}"
