"""Sequence numbers of an idempotent producer, and the waits between its retries."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Final

from lakemq.broker_core.api.backoff import Backoff
from lakemq.broker_core.api.records.batch import ProducerStamp

_SEQUENCE_LIMIT: Final = 2**31
"""Sequence numbers wrap to 0 here, as in Kafka (KIP-98)."""
_rng: Final = random.Random()


class SequenceNumbers:
    """Next sequence number per partition. A number is used up only when its batch was taken."""

    def __init__(self, producer_id: int, epoch: int = 0) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self._next: dict[tuple[str, int], int] = {}
        self._restarts: dict[str, int] = {}

    def next(self, topic: str, partition: int) -> ProducerStamp:
        """Identity for the next batch of that partition."""
        sequence = self._next.get((topic, partition), 0)
        return ProducerStamp(self.producer_id, self.epoch_of(topic), sequence)

    def epoch_of(self, topic: str) -> int:
        """Producer epoch of batches for that topic."""
        return self.epoch + self._restarts.get(topic, 0)

    def restart(self, topic: str) -> None:
        """Begin at 0 again, as its partitions know nothing of us, or may have what we know nothing
        of. A higher epoch keeps what they may have taken from passing for what comes now."""
        self._restarts[topic] = self._restarts.get(topic, 0) + 1
        for place in [place for place in self._next if place[0] == topic]:
            del self._next[place]

    def advance(self, topic: str, partition: int, records: int) -> None:
        """The broker has appended a batch of that many records."""
        place = (topic, partition)
        # Advanced only by an append that was acknowledged, never on sending: a batch that is
        # refused hands its number to the next one.
        self._next[place] = (self._next.get(place, 0) + records) % _SEQUENCE_LIMIT


def backoff_s(
    first_ms: int = 50, max_ms: int = 1_000, rng: Callable[[], float] = _rng.random
) -> Iterator[float]:
    """Waits before retries (s), doubling up to `max_ms` with jitter, without end."""
    backoff = Backoff(first_ms, max_ms, rng)
    while True:
        yield backoff.next_s()
