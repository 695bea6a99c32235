"""What was acknowledged beside what is stored. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from examples.air_quality.readings import Reading, payload, topic_name


class Stored(NamedTuple):
    """A record as a reader sees it: the MQTT topic name is its key."""

    key: bytes | None
    value: bytes | None


class Count(NamedTuple):
    """Readings, counted one by one."""

    acknowledged: int
    stored: int
    lost: int
    """Acknowledged, and not there."""
    twice: int
    """There more than once: copies beyond the first."""
    sent_again: int
    """Of those: copies of readings that were under way when the node was killed. Their devices
    could not know whether they had been stored; QoS 1 is at least once."""
    unknown: int
    """Records that no device has sent."""

    @property
    def whole(self) -> bool:
        """Nothing lost, nothing added, and twice only what was sent again."""
        return not (self.lost or self.unknown or self.twice > self.sent_again)


def record_of(reading: Reading) -> Stored:
    """Where a reading ends up."""
    return Stored(topic_name(reading.sensor).encode(), payload(reading))


def count(
    acknowledged: Iterable[Reading], under_way: Iterable[Reading], stored: Iterable[Stored]
) -> Count:
    """`under_way`: sent and not acknowledged when the node was killed."""
    acked = Counter(map(record_of, acknowledged))
    again = set(map(record_of, under_way))
    there = Counter(stored)
    twice = {record: copies - acked[record] for record, copies in there.items() if acked[record]}
    extra = {record: copies for record, copies in twice.items() if copies > 0}
    return Count(
        acknowledged=acked.total(),
        stored=there.total(),
        lost=sum((acked - there).values()),
        twice=sum(extra.values()),
        sent_again=sum(copies for record, copies in extra.items() if record in again),
        unknown=sum(copies for record, copies in there.items() if not acked[record]),
    )
