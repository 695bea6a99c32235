"""What was sent beside what the table holds. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from examples.air_quality.readings import Figures, Reading


class Comparison(NamedTuple):
    """Readings that were sent, against readings that are stored."""

    sent: int
    once: int
    """Stored exactly once, as sent."""
    lost: list[Reading]
    """Sent and not stored."""
    doubled: list[Reading]
    """Sent once and stored more often, one entry a surplus copy."""
    strangers: list[Reading]
    """Stored and never sent."""

    @property
    def exact(self) -> bool:
        return self.once == self.sent and not (self.lost or self.doubled or self.strangers)


def compare(sent: Iterable[Reading], stored: Iterable[Reading]) -> Comparison:
    """Compare as multisets: order does not matter, how often does."""
    wanted, found = Counter(sent), Counter(stored)
    surplus = list((found - wanted).elements())
    return Comparison(
        sent=wanted.total(),
        once=sum(1 for reading, count in wanted.items() if count == found[reading] == 1),
        lost=list((wanted - found).elements()),
        doubled=[reading for reading in surplus if reading in wanted],
        strangers=[reading for reading in surplus if reading not in wanted],
    )


def disagreements(
    expected: Mapping[str, Figures], answered: Mapping[str, Figures]
) -> set[tuple[str, str]]:
    """(sensor, field of Figures) that differ; every field of a sensor that only one side has."""
    found = set()
    for sensor in expected.keys() | answered.keys():
        one, other = expected.get(sensor), answered.get(sensor)
        for field in Figures._fields:
            if one is None or other is None or getattr(one, field) != getattr(other, field):
                found.add((sensor, field))
    return found
