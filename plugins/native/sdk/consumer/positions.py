"""Where the application of a consumer stands: what it has handled, and what it has in hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from lakemq.broker_core.api.types import TopicPartition
from lakemq.plugins.native.sdk.types import ConsumerRecord


class Span(NamedTuple):
    """Records of `place` from offset `first` on; `end`: where to go on when they are handled."""

    place: TopicPartition
    first: int
    end: int


class Positions:
    """Offsets of one consumer. `in_hand` is what the application was given last: handled as soon
    as it comes back for more, or commits."""

    __slots__ = ("at", "began", "in_hand", "last")

    def __init__(self) -> None:
        self.at: dict[TopicPartition, int] = {}
        """Offset of the next record that is not handled."""
        self.began: dict[TopicPartition, int] = {}
        """Where we began to read, or what was committed since."""
        self.in_hand: ConsumerRecord | tuple[Span, ...] | None = None
        self.last = Span(TopicPartition("", -1), -1, -1)
        """The last record of the newest chunk, and where to go on behind it."""

    def take(self, place: TopicPartition, first: int) -> None:
        """Read a partition from `first` on."""
        self.at[place] = self.began[place] = first

    def drop(self, places: Iterable[TopicPartition]) -> None:
        """These partitions are read no more."""
        for place in places:
            self.at.pop(place, None)
            self.began.pop(place, None)

    def came_back(self) -> None:
        """The application is done with what it had."""
        for place, _, end in self._spans():
            if place in self.at:
                self.at[place] = end
        self.in_hand = None

    def give_back(self) -> None:
        """The application failed with what it had: that was not handled, what came before was."""
        # Backwards: of several spans of a partition the first one counts.
        for place, first, _ in reversed(self._spans()):
            if place in self.at:
                self.at[place] = first
        self.in_hand = None

    def now(self) -> dict[TopicPartition, int]:
        """Partition -> offset of the next record, what is in hand counted as handled."""
        found = dict(self.at)
        found.update((place, end) for place, _, end in self._spans() if place in found)
        return found

    def next_of(self, place: TopicPartition) -> int:
        """As `now`, of one partition."""
        ends = [span.end for span in self._spans() if span.place == place]
        return ends[-1] if ends else self.at[place]

    def seek(self, place: TopicPartition, offset: int) -> None:
        """Go on there; what is in hand of other partitions stays in hand."""
        self.in_hand = tuple(span for span in self._spans() if span.place != place)
        self.at[place] = offset

    def rewind(self) -> None:
        """Go back to where was committed last, or where each partition was begun."""
        # Else the next `came_back` would move the position behind the record in hand.
        self.in_hand = None
        self.at.update(self.began)

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """These are on the broker's disk."""
        for place, offset in offsets.items():
            if place in self.at:
                self.began[place] = offset

    def _spans(self) -> tuple[Span, ...]:
        in_hand = self.in_hand
        if in_hand is None:
            return ()
        if not isinstance(in_hand, ConsumerRecord):
            return in_hand
        place, offset = TopicPartition(in_hand.topic, in_hand.partition), in_hand.offset
        # Behind the last record of a chunk the position jumps over what was filtered out, compacted
        # away or corrupt: else those would be fetched again.
        if (place, offset) == self.last[:2]:
            return (self.last,)
        return (Span(place, offset, offset + 1),)
