"""The partitions of one replication stream by small numbers, said once (fetch sessions, KIP-227).

A follower numbers what it wants of a leader; both ends keep a table. A number stands for a
partition in one leader epoch and is not used again on its stream, so what was sent under an old one
can't be taken for the new one's.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from lakemq.broker_core.replication.types import Ask

SLOTS_MAX: Final = 100_000
"""Open at a time on one stream."""
_NUMBER_MAX: Final = 2**32 - 1


class SlotKey(NamedTuple):
    """What a slot stands for."""

    topic_id: str
    partition: int
    epoch: int
    """Leader epoch under which it was opened."""


class FollowerSlots:
    """The follower's end of a stream: it numbers, and remembers what it said."""

    def __init__(self) -> None:
        self._next = 1
        self._keys: dict[int, SlotKey] = {}
        self._numbers: dict[tuple[str, int], int] = {}
        self._told: dict[int, Ask] = {}

    def open(self, key: SlotKey) -> int:
        """The number of a new slot. Raises ValueError when the partition has one, or when too many
        are open or were opened: begin another stream."""
        place = key.topic_id, key.partition
        if place in self._numbers:
            raise ValueError(f"partition {key.partition} of {key.topic_id} has a slot already")
        if len(self._keys) >= SLOTS_MAX or self._next > _NUMBER_MAX:
            raise ValueError(f"{len(self._keys)} slots are open; {SLOTS_MAX} is the most")
        number = self._next
        self._next += 1
        self._keys[number] = key
        self._numbers[place] = number
        return number

    def close(self, topic_id: str, partition: int) -> int | None:
        """The number of the partition's slot, free from now on; None: it has none."""
        number = self._numbers.pop((topic_id, partition), None)
        if number is not None:
            del self._keys[number]
            self._told.pop(number, None)
        return number

    def key(self, number: int) -> SlotKey | None:
        """What the slot stands for; None: it was closed, and what came for it is dropped."""
        return self._keys.get(number)

    def number(self, topic_id: str, partition: int) -> int | None:
        """The partition's slot; None: it has none."""
        return self._numbers.get((topic_id, partition))

    def changed(self, number: int, ask: Ask) -> bool:
        """Whether the leader has not been told that yet; it counts as told from now on."""
        if self._told.get(number) == ask:
            return False
        self._told[number] = ask
        return True


class LeaderSlots:
    """The leader's end of a stream. Its errors end the stream."""

    def __init__(self) -> None:
        self._keys: dict[int, SlotKey] = {}
        self._numbers: dict[tuple[str, int], int] = {}
        self._last = 0

    def open(self, number: int, key: SlotKey) -> int | None:
        """The slot that the partition had until now, which is closed; None: it had none.

        Raises ValueError for a number that is not above all earlier ones, or when too many are
        open."""
        if not self._last < number <= _NUMBER_MAX:
            raise ValueError(f"slot {number}: numbers ascend, the last one was {self._last}")
        if len(self._keys) >= SLOTS_MAX:
            raise ValueError(f"slot {number}: {SLOTS_MAX} slots are open, which is the most")
        place = key[:2]
        # One message names what is opened before what is closed, so this one comes first.
        before = self._numbers.get(place)
        if before is not None:
            self.close(before)
        self._last = number
        self._keys[number] = key
        self._numbers[place] = number
        return before

    def close(self, number: int) -> SlotKey | None:
        """What the slot stood for; None: it was not open."""
        key = self._keys.pop(number, None)
        if key is not None:
            del self._numbers[key[:2]]
        return key

    def key(self, number: int) -> SlotKey | None:
        """What the slot stands for; None: it is not open."""
        return self._keys.get(number)

    def __len__(self) -> int:
        return len(self._keys)
