"""Reads a range of offsets, each record from the object store or the broker.

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
from lakemq.plugins.native.sdk.consumer.corrupt import CorruptCallback
from lakemq.spark_plugin.errors import ObjectStoreError
from lakemq.spark_plugin.source.object_store import (
    ObjectNotFound,
    Read,
    StoreUnavailable,
    open_objects,
)
from lakemq.spark_plugin.source.planning import OffsetRange, placed
from lakemq.spark_plugin.tiered_options import Tiered

_log = logging.getLogger("lakemq.spark")
_UNAVAILABLE_S: Final = 60.0
"""Pause before a store that could not be reached is tried again."""

FindSegments = Callable[[int], TieredSegments]
"""The tiered segments from an offset on, as the broker lists them. Raises LakeMQError."""
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
        self._unavailable_until_s: dict[tuple[str, Tiered], float] = {}
        self._warned: set[str] = set()
        meter = get_meter("lakemq.spark")
        for name in ("segments", "batches", "fallbacks"):
            meter.create_observable_counter(f"lakemq.spark.tiered.{name}", [self._observed(name)])

    def _observed(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda _: [Observation(getattr(self.counters, name))]

    def reader(self, segment: TieredSegment, tiered: Tiered) -> Callable[[int, int], bytes]:
        """`read(position, size)` of the object that holds the segment; raises ObjectNotFound and
        StoreUnavailable. StoreUnavailable at once while the store is known to be so."""
        url = f"{tiered.url.rstrip('/')}/" if tiered.url else segment.store_url
        key = url, tiered
        if self._now_s() < self._unavailable_until_s.get(key, 0.0) and tiered.mode != "always":
            raise StoreUnavailable("it could not be reached a moment ago")
        # The name comes from the broker: it must not lead out of the store's prefix with this
        # process's credentials.
        if ".." in segment.name.split("/"):
            raise StoreUnavailable(f"{segment.name!r} is not a valid object name")
        try:
            if key not in self._open:
                self._open[key] = open_objects(url, tiered)
        except StoreUnavailable:
            self._mark_unavailable(key)
            raise
        read = self._open[key]

        def read_at(position: int, size: int) -> bytes:
            try:
                return read(segment.name, position, size)
            except StoreUnavailable:
                self._mark_unavailable(key)
                raise

        return read_at

    def _mark_unavailable(self, key: tuple[str, Tiered]) -> None:
        # Opened again later, with credentials that may have been renewed.
        self._open.pop(key, None)
        self._unavailable_until_s[key] = self._now_s() + _UNAVAILABLE_S

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
    find_segments: FindSegments,
    over_grpc: OverGrpc,
    *,
    here: Stores,
    on_corrupt: CorruptCallback,
) -> Iterator[RecordBatch]:
    """Stored batches that touch the range, each once, in order: the same that `over_grpc(wanted)`
    gives. `on_corrupt` is called with those that do not decompress although their object is whole.
    ObjectStoreError when an object can't be read and `tiered` says always."""
    offset = wanted.start
    while offset < wanted.end:
        rest = wanted._replace(start=offset)
        try:
            found = find_segments(offset)
        except LakeMQError as error:
            # `always` promises not to load the broker; an error that stays is raised by the read
            # itself.
            if tiered.mode == "always" and error.retriable:
                raise
            yield from over_grpc(rest)  # It retries, and handles lost records.
            return
        for piece in placed(rest, found):
            if piece.segment is None:
                yield from over_grpc(piece.offsets)
            else:
                yield from _read_piece(
                    piece.offsets, piece.segment, tiered, find_segments, over_grpc, here, on_corrupt
                )
            # Past the piece, also where it held fewer records: compacted segments have gaps.
            offset = piece.offsets.end


def _read_piece(
    part: OffsetRange,
    segment: TieredSegment,
    tiered: Tiered,
    find_segments: FindSegments,
    over_grpc: OverGrpc,
    here: Stores,
    on_corrupt: CorruptCallback,
) -> Iterator[RecordBatch]:
    """From the store; from where it fails on through the broker."""
    offset = part.start
    url, name = segment.store_url, f"{segment.store_url}{segment.name}"
    try:
        read = here.reader(segment, tiered)
        for batch in stored_batches(read, segment, part.start, part.end, on_corrupt=on_corrupt):
            # Before the yield: after a failure the broker is asked from here on, so no batch comes
            # twice.
            offset = batch.header.last_offset + 1
            here.counters.batches += 1
            yield batch
        here.counters.segments += 1
        return
    except CorruptBatch as error:
        # The object is damaged, or not the one that the broker means: the broker may still have the
        # records.
        about, why = name, str(error)
    except StoreUnavailable as error:
        about, why = url, f"{name} cannot be read: {error}"
    except ObjectNotFound as error:
        if not _still_listed(segment, offset, find_segments):
            yield from over_grpc(part._replace(start=offset))  # Retention was faster.
            return
        about, why = url, f"{name} cannot be read: {error}"
    where = f"{part.topic}-{part.partition}, offsets {offset} to {part.end - 1}"
    if tiered.mode == "always":
        raise ObjectStoreError(f"{where}: {why} (option tiered is always)")
    here.counters.fallbacks += 1
    here.warn(about, f"{where}: {why}; reading through the broker instead")
    yield from over_grpc(part._replace(start=offset))


def _still_listed(segment: TieredSegment, offset: int, find_segments: FindSegments) -> bool:
    """Whether the broker still lists the object."""
    try:
        return any(each.name == segment.name for each in find_segments(offset).segments)
    except LakeMQError:
        return False
