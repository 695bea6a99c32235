"""A range of offsets, each record from where it is: object store or broker. Edge: network, clock.

Runs in Spark's tasks: where segments are is asked right before they are read, so that no plan gets
old, and every process reads with its own credentials.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from opentelemetry.metrics import CallbackOptions, Observation, get_meter

from lakemq.plugins.native.sdk import (
    CorruptBatch,
    LakeMQError,
    RecordBatch,
    TieredSegment,
    TieredSegments,
    stored_batches,
)
from lakemq.plugins.native.sdk.consumer.corrupt import TellCorrupt
from lakemq.spark_plugin.errors import ObjectStoreError
from lakemq.spark_plugin.source.object_store import ObjectGone, Read, StoreAway, open_objects
from lakemq.spark_plugin.source.planning import OffsetRange, placed
from lakemq.spark_plugin.tiered_options import Tiered

_log = logging.getLogger("lakemq.spark")
_AWAY_S: Final = 60.0
"""How long a store that could not be reached is not tried again."""

Ask = Callable[[int], TieredSegments]
"""What the broker says of segments from an offset on. Raises LakeMQError."""
OverGrpc = Callable[[OffsetRange], Iterator[RecordBatch]]


@dataclass
class TieredCounters:
    """Of this process."""

    segments: int = 0
    """Read from a store to the end of what was wanted."""
    batches: int = 0
    fallbacks: int = 0
    """Segments that came through the broker because the store would not give them."""


class Stores:
    """The stores that this process reads, and what happened there."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self.counters = TieredCounters()
        self._now_s = now_s
        self._open: dict[tuple[str, Tiered], Read] = {}
        self._away_until_s: dict[tuple[str, Tiered], float] = {}
        self._warned: set[str] = set()
        meter = get_meter("lakemq.spark")
        for name in ("segments", "batches", "fallbacks"):
            meter.create_observable_counter(f"lakemq.spark.tiered.{name}", [self._observed(name)])

    def _observed(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda _: [Observation(getattr(self.counters, name))]

    def reader(self, segment: TieredSegment, tiered: Tiered) -> Callable[[int, int], bytes]:
        """`read(position, size)` of the object that holds the segment. StoreAway, at once while
        the store is known to be away; what it returns raises StoreAway and ObjectGone."""
        url = f"{tiered.url.rstrip('/')}/" if tiered.url else segment.store_url
        place = url, tiered
        if self._now_s() < self._away_until_s.get(place, 0.0) and tiered.mode != "always":
            raise StoreAway("it could not be reached a moment ago")
        if ".." in segment.name.split("/"):
            raise StoreAway(f"{segment.name!r} is no name of an object")
        try:
            if place not in self._open:
                self._open[place] = open_objects(url, tiered)
        except StoreAway:
            self._mark_away(place)
            raise
        read = self._open[place]

        def read_at(position: int, size: int) -> bytes:
            try:
                return read(segment.name, position, size)
            except StoreAway:
                self._mark_away(place)
                raise

        return read_at

    def _mark_away(self, place: tuple[str, Tiered]) -> None:
        self._open.pop(place, None)
        self._away_until_s[place] = self._now_s() + _AWAY_S

    def warn(self, about: str, text: str) -> None:
        """Once for each `about`: thousands of tasks may meet the same trouble."""
        if about not in self._warned:
            self._warned.add(about)
            _log.warning("%s", text)


_stores: list[Stores] = []


def stores() -> Stores:
    """This process's; made when they are first needed."""
    if not _stores:
        _stores.append(Stores())
    return _stores[0]


def read_placed(
    wanted: OffsetRange,
    tiered: Tiered,
    ask: Ask,
    over_grpc: OverGrpc,
    *,
    here: Stores,
    on_corrupt: TellCorrupt,
) -> Iterator[RecordBatch]:
    """Stored batches that touch the range, each once, in order: the same that `over_grpc(wanted)`
    gives. `on_corrupt` is told of those that don't decompress although their object is whole.
    ObjectStoreError when an object can't be read and `tiered` says always."""
    position = wanted.start
    while position < wanted.end:
        rest = wanted._replace(start=position)
        try:
            told = ask(position)
        except LakeMQError as error:
            if tiered.mode == "always" and error.retriable:
                raise
            yield from over_grpc(rest)  # It has patience, and knows what to do about lost records.
            return
        for piece in placed(rest, told):
            if piece.segment is None:
                yield from over_grpc(piece.offsets)
            else:
                yield from _read_piece(
                    piece.offsets, piece.segment, tiered, ask, over_grpc, here, on_corrupt
                )
            position = piece.offsets.end


def _read_piece(
    part: OffsetRange, segment: TieredSegment, tiered: Tiered, ask: Ask, over_grpc: OverGrpc,
    here: Stores, on_corrupt: TellCorrupt,
) -> Iterator[RecordBatch]:  # fmt: skip
    """From the store; from where it fails on through the broker."""
    position = part.start
    url, place = segment.store_url, f"{segment.store_url}{segment.name}"
    try:
        read = here.reader(segment, tiered)
        for batch in stored_batches(read, segment, part.start, part.end, on_corrupt=on_corrupt):
            position = batch.header.last_offset + 1
            here.counters.batches += 1
            yield batch
        here.counters.segments += 1
        return
    except CorruptBatch as error:
        about, why = place, str(error)
    except StoreAway as error:
        about, why = url, f"{place} can't be read from here: {error}"
    except ObjectGone as error:
        if not _still_named(segment, position, ask):
            yield from over_grpc(part._replace(start=position))  # Retention was faster.
            return
        about, why = url, f"{place} can't be read from here: {error}"
    where = f"{part.topic}-{part.partition}, offsets {position} to {part.end - 1}"
    if tiered.mode == "always":
        raise ObjectStoreError(f"{where}: {why} (option tiered is always)")
    here.counters.fallbacks += 1
    here.warn(about, f"{where}: {why}; reading through the broker instead")
    yield from over_grpc(part._replace(start=position))


def _still_named(segment: TieredSegment, position: int, ask: Ask) -> bool:
    """Whether the broker still says that the object is there."""
    try:
        return any(each.name == segment.name for each in ask(position).segments)
    except LakeMQError:
        return False
