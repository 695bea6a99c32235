"""Filters that Spark pushes down -> less to read.

Spark applies every filter again, so what is taken here only has to leave no wanted record out.
Spark translates no filter on an array, so there is none on headers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from lakemq.spark_plugin.source.planning import OffsetRange

_MAX: Final = (1 << 63) - 1
_AT_LEAST: Final = ("GreaterThan", "GreaterThanOrEqual")
_AT_MOST: Final = ("LessThan", "LessThanOrEqual")


@dataclass(frozen=True)
class Pushed:
    """What all filters together leave to be read."""

    partitions: frozenset[int] | None = None
    """None: all."""
    start: int = 0
    end: int = _MAX
    """Offsets [start, end)."""
    since_ms: int | None = None
    """No older records, as far as offsets tell."""
    keys: frozenset[bytes] | None = None
    """Only records with one of these keys; None: any."""

    @property
    def nothing(self) -> bool:
        """Whether no record can be wanted."""
        return self.start >= self.end or self.partitions == frozenset() or self.keys == frozenset()


def pushed(filters: Iterable[Any]) -> Pushed:
    """pyspark's filters (`pyspark.sql.datasource.Filter`), all of which hold."""
    found = Pushed()
    for each in filters:
        name = type(each).__name__
        path: tuple[str, ...] = getattr(each, "attribute", ())
        value = getattr(each, "value", None)
        # A null on the right side matches nothing or, with `<=>`, null: left to Spark.
        if len(path) == 1 and value is not None:
            found = _narrowed(found, name, path[0], value)
    return found


def _narrowed(found: Pushed, name: str, column: str, value: Any) -> Pushed:
    if column == "offset":
        return _offsets(found, name, value)
    if column == "partition":
        return _partitions(found, name, value)
    if column == "timestamp" and name in (*_AT_LEAST, "EqualTo", "EqualNullSafe"):
        return _times(found, value)
    if column == "key":
        keys = _chosen(name, value)
        if keys is not None and all(isinstance(key, bytes | bytearray) for key in keys):
            wanted = frozenset(bytes(key) for key in keys)
            return replace(found, keys=wanted if found.keys is None else found.keys & wanted)
    return found


def _chosen(name: str, value: Any) -> list[Any] | None:
    """Values that the column may have; None: the filter does not say."""
    if name in ("EqualTo", "EqualNullSafe"):
        return [value]
    return [each for each in value if each is not None] if name == "In" else None


def _offsets(found: Pushed, name: str, value: Any) -> Pushed:
    if name in _AT_LEAST:
        return replace(found, start=max(found.start, value + (name == "GreaterThan")))
    if name in _AT_MOST:
        return replace(found, end=min(found.end, value + (name == "LessThanOrEqual")))
    chosen = _chosen(name, value)
    if chosen is None:
        return found
    if not chosen:
        # `IN ()`, or only nulls: no offset can match.
        return replace(found, end=0)
    start, end = max(found.start, min(chosen)), min(found.end, max(chosen) + 1)
    return replace(found, start=start, end=end)


def _partitions(found: Pushed, name: str, value: Any) -> Pushed:
    chosen = _chosen(name, value)
    if chosen is None:
        return found
    wanted = frozenset(chosen)
    return replace(
        found, partitions=wanted if found.partitions is None else found.partitions & wanted
    )


def _times(found: Pushed, value: Any) -> Pushed:
    # A time without a zone depends on the session's: not narrowed, Spark filters.
    if not isinstance(value, datetime) or value.tzinfo is None:
        return found
    since_ms = int(value.timestamp() * 1000) - 1  # floats are not exact to the ms
    if since_ms < 0:
        return found
    return replace(found, since_ms=max(since_ms, found.since_ms or 0))


def narrow(ranges: Iterable[OffsetRange], wanted: Pushed) -> list[OffsetRange]:
    """The parts of the ranges that may hold wanted records, as far as offsets tell."""
    if wanted.nothing:
        return []
    kept = []
    for each in ranges:
        start, end = max(each.start, wanted.start), min(each.end, wanted.end)
        chosen = wanted.partitions is None or each.partition in wanted.partitions
        if chosen and start < end:
            kept.append(each._replace(start=start, end=end))
    return kept


def without_older(
    ranges: Iterable[OffsetRange], first: dict[str, dict[int, int]]
) -> list[OffsetRange]:
    """`first`: topic -> partition -> first offset that is not too old."""
    kept = []
    for each in ranges:
        start = max(each.start, first.get(each.topic, {}).get(each.partition, 0))
        if start < each.end:
            kept.append(each._replace(start=start))
    return kept
