"""Planning of reads: options and what the journal holds -> offsets -> input partitions.

A *view* is what the broker says a topic holds at one moment. Offsets may have gaps (compaction), so
the number of offsets in a range is only an upper bound of its records.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from lakemq.spark_plugin.errors import DataLossError, OffsetsError, OptionError, TopicRecreated
from lakemq.spark_plugin.source.offsets import EARLIEST, LATEST, Cursor, TopicCursor
from lakemq.spark_plugin.source.options import Boundary, ReadOptions

if TYPE_CHECKING:
    from lakemq.plugins.native.sdk import TieredSegment, TieredSegments


class PartitionView(NamedTuple):
    """What one partition holds. Readers see offsets in [log_start, high_watermark)."""

    log_start: int
    high_watermark: int
    size_bytes: int = 0

    @property
    def record_bytes(self) -> float:
        """Mean size of a stored record (bytes), 1 at least."""
        return max(1.0, self.size_bytes / max(1, self.high_watermark - self.log_start))


class TopicView(NamedTuple):
    """A topic as the broker describes it."""

    topic_id: str
    partitions: Mapping[int, PartitionView]


View = Mapping[str, TopicView]
"""Topic name -> what it holds."""


class OffsetRange(NamedTuple):
    """Offsets [start, end) of one partition: the unit that one Spark task reads."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int


class Piece(NamedTuple):
    """A part of a range, and the tiered segment that holds it; None: the broker gives it."""

    offsets: OffsetRange
    segment: TieredSegment | None


@dataclass(frozen=True)
class Repaired:
    """A cursor that the journal can serve, and what is lost on the way there."""

    cursor: Cursor
    losses: tuple[str, ...] = ()


def select_topics(options: ReadOptions, view: View) -> dict[str, TopicView]:
    """The part of `view` that the options ask for. OptionError for a topic or partition that is not
    there; a pattern may match nothing yet."""
    if options.topic_pattern is not None:
        pattern = re.compile(options.topic_pattern)
        return {name: topic for name, topic in view.items() if pattern.fullmatch(name)}
    wanted = options.topics or tuple(options.assignment)
    for name in wanted:
        if name not in view:
            raise OptionError(f"unknown topic {name} at {options.bootstrap}")
    chosen = {name: view[name] for name in wanted}
    for name, partitions in options.assignment.items():
        missing = partitions - chosen[name].partitions.keys()
        if missing:
            raise OptionError(
                f"option assign: topic {name} has no partition {min(missing)}; it has "
                f"{len(chosen[name].partitions)}"
            )
        kept = {p: each for p, each in chosen[name].partitions.items() if p in partitions}
        chosen[name] = TopicView(chosen[name].topic_id, kept)
    return chosen


def earliest(view: View) -> dict[str, TopicCursor]:
    """The log starts of all partitions."""
    return {
        name: TopicCursor(topic.topic_id, {p: v.log_start for p, v in topic.partitions.items()})
        for name, topic in view.items()
    }


def latest(view: View) -> dict[str, TopicCursor]:
    """The high watermarks of all partitions."""
    return {
        name: TopicCursor(
            topic.topic_id, {p: v.high_watermark for p, v in topic.partitions.items()}
        )
        for name, topic in view.items()
    }


def resolve(
    boundary: Boundary,
    side: str,
    default: Cursor,
    view: View,
    by_time: Mapping[str, dict[int, int]],
) -> dict[str, TopicCursor]:
    """Offsets of a boundary of the user. `side` is `starting` or `ending`; `by_time` holds, for
    boundaries by timestamp, topic -> partition -> first offset not older.

    Partitions that the user does not name get the default. OffsetsError for one that is not there.
    """
    if boundary.everywhere is not None:
        return dict(earliest(view) if boundary.everywhere == "earliest" else latest(view))
    named: Mapping[str, Mapping[int, int]] = by_time if boundary.by_timestamp else boundary.offsets
    option = f"{side}OffsetsByTimestamp" if boundary.by_timestamp else f"{side}Offsets"
    for name, offsets in named.items():
        known = view[name].partitions if name in view else {}
        for partition in offsets:
            if partition not in known:
                raise OffsetsError(f"option {option}: {name}-{partition} is not read or not there")
    found = {}
    for name, topic in view.items():
        offsets = dict(default[name].offsets)
        for partition, offset in named.get(name, {}).items():
            held = topic.partitions[partition]
            marks = {LATEST: held.high_watermark, EARLIEST: held.log_start}
            offsets[partition] = marks.get(offset, offset)
        found[name] = TopicCursor(topic.topic_id, offsets)
    return found


def check_timestamps_found(
    start: Cursor, view: View, named: Mapping[str, Iterable[int]], when: str
) -> None:
    """OffsetsError if a starting timestamp is later than the newest record of a partition."""
    for name, partitions in named.items():
        for partition in partitions:
            if start[name].offsets[partition] >= view[name].partitions[partition].high_watermark:
                raise OffsetsError(
                    f"{name}-{partition} holds no record as young as {when}; set "
                    "startingOffsetsByTimestampStrategy to latest to start at its end"
                )


def check_reached(boundary: Cursor, side: str, view: View) -> None:
    """OffsetsError if a user's boundary names an offset that the journal has not reached."""
    for name, topic in boundary.items():
        for partition, offset in topic.offsets.items():
            ends_at = view[name].partitions[partition].high_watermark
            if offset > ends_at:
                raise OffsetsError(
                    f"option {side}Offsets: {name}-{partition} ends at offset {ends_at}; {offset} "
                    "is not there yet"
                )


def repair(cursor: Cursor, view: View, fail_on_data_loss: bool) -> Repaired:
    """Hold a cursor of before against what the journal holds now.

    New topics and partitions start at their oldest record. What is gone (a deleted or re-created
    topic, records under the log start, a journal that ends before the cursor) is a DataLossError,
    or with `fail_on_data_loss` off a sentence in `losses` and a cursor past the gap.
    """
    # Topics and partitions that the cursor does not know begin at their log start: no record
    # between two batches is missed.
    repaired, losses = earliest(view), []
    for name, before in cursor.items():
        now = view.get(name)
        if now is None:
            losses.append(f"topic {name} is gone")
            if fail_on_data_loss:
                raise DataLossError(_advise(losses[-1]))
            continue
        if now.topic_id != before.topic_id:
            losses.append(
                f"topic {name} was deleted and created again (id {before.topic_id} became "
                f"{now.topic_id})"
            )
            if fail_on_data_loss:
                raise TopicRecreated(_advise(losses[-1]))
            continue
        offsets = dict(repaired[name].offsets)
        for partition, offset in before.offsets.items():
            offsets[partition], loss = _repair_partition(name, partition, offset, now)
            losses += loss
            if loss and fail_on_data_loss:
                raise DataLossError(_advise(loss[0]))
        repaired[name] = TopicCursor(now.topic_id, offsets)
    return Repaired(repaired, tuple(losses))


def _repair_partition(
    name: str, partition: int, offset: int, now: TopicView
) -> tuple[int, list[str]]:
    held = now.partitions.get(partition)
    if held is None:
        return offset, [f"{name}-{partition} is gone"]
    if offset < held.log_start:
        return held.log_start, [
            f"{name}-{partition}: offsets {offset} to {held.log_start - 1} are gone, the log now "
            f"starts at {held.log_start}"
        ]
    if offset > held.high_watermark:
        return held.high_watermark, [
            f"{name}-{partition} ends at offset {held.high_watermark}, before offset {offset} that "
            "was reached earlier: the journal lost records"
        ]
    return offset, []


def _advise(loss: str) -> str:
    return (
        f"{loss}. Set failOnDataLoss to false (export: --no-fail-on-data-loss) to go on with what "
        "is there"
    )


def available(start: Cursor, end: Cursor) -> int:
    """Offsets between two cursors of the same topics: the most records that there may be."""
    return sum(
        max(0, end[name].offsets[partition] - offset)
        for name, topic in start.items()
        for partition, offset in topic.offsets.items()
        if name in end and partition in end[name].offsets
    )


def available_bytes(start: Cursor, end: Cursor, view: View) -> float:
    """About how many bytes are between two cursors."""
    return sum(
        max(0, end[name].offsets[partition] - offset)
        * view[name].partitions[partition].record_bytes
        for name, topic in start.items()
        for partition, offset in topic.offsets.items()
        if name in end and partition in end[name].offsets and partition in view[name].partitions
    )


def limit(
    start: Cursor, end: Cursor, view: View, *, rows_max: int | None, bytes_max: int | None
) -> dict[str, TopicCursor]:
    """An end no further than the limits: each partition gives in proportion to its lag, so that all
    catch up together, and at least one partition moves."""
    rows, size = available(start, end), available_bytes(start, end, view)
    share = min(
        1.0,
        rows_max / rows if rows_max and rows else 1.0,
        bytes_max / size if bytes_max and size else 1.0,
    )
    if share >= 1.0:
        return dict(end)
    # The minimum of one offset a partition could exceed `rows_max`: the room is given out to the
    # longest lags first.
    room = rows_max or rows
    lags = {
        (name, partition): max(0, stop - start[name].offsets[partition])
        for name, topic in end.items()
        for partition, stop in topic.offsets.items()
    }
    steps = {}
    for partition_key in sorted(
        lags, key=lambda each: (-lags[each], each)
    ):  # the longest lag first
        steps[partition_key] = min(
            lags[partition_key], room, max(1, int(lags[partition_key] * share))
        )
        room -= steps[partition_key]
    return {
        name: TopicCursor(
            topic.topic_id,
            {p: start[name].offsets[p] + steps[name, p] for p in topic.offsets},
        )
        for name, topic in end.items()
    }


def enough(
    rows: int, *, rows_min: int | None, waited_s: float, delay_max_s: float, last_call: bool
) -> bool:
    """Whether a micro-batch of `rows` shall start now, `waited_s` after the last one."""
    return last_call or rows_min is None or rows >= rows_min or waited_s >= delay_max_s


def ranges_between(start: Cursor, end: Cursor, oldest: Cursor) -> list[OffsetRange]:
    """The non-empty ranges between two cursors; partitions that `start` does not know yet begin at
    `oldest`. TopicRecreated if the two name different topic ids."""
    found = []
    for name, topic in sorted(end.items()):
        before = start.get(name) or oldest.get(name) or topic
        if before.topic_id != topic.topic_id:
            raise TopicRecreated(
                f"topic {name} changed its id within a batch ({before.topic_id} to "
                f"{topic.topic_id}): it was deleted and created again"
            )
        new = oldest[name].offsets if name in oldest else {}
        for partition, stop in sorted(topic.offsets.items()):
            first = before.offsets.get(partition, new.get(partition, stop))
            if first < stop:
                found.append(OffsetRange(name, topic.topic_id, partition, first, stop))
    return found


def still_held(end: Cursor, view: View) -> dict[str, TopicCursor]:
    """The part of a planned end whose topics still exist under the same id."""
    return {
        name: topic
        for name, topic in end.items()
        if name in view and view[name].topic_id == topic.topic_id
    }


def split(
    ranges: list[OffsetRange], *, pieces_min: int | None = None, rows_max: int | None = None
) -> list[OffsetRange]:
    """Cut ranges so that there are at least `pieces_min` (if there are offsets for it) and none is
    longer than `rows_max`. Order by partition and offset is kept."""
    total = sum(each.end - each.start for each in ranges)
    if not total:
        return []
    wanted = max(pieces_min or 1, len(ranges))
    pieces = []
    for each in ranges:
        length = each.end - each.start
        count = -(-wanted * length // total) if pieces_min else 1
        if rows_max:
            count = max(count, -(-length // rows_max))
        # No empty pieces.
        count = min(count, length)
        # Integer arithmetic, so that the last cut is exactly the end.
        cuts = [each.start + length * index // count for index in range(count + 1)]
        pieces += [each._replace(start=first, end=last) for first, last in pairwise(cuts)]
    return pieces


def placed(wanted: OffsetRange, tiered: TieredSegments) -> list[Piece]:
    """Split a range by the location of its records. Offsets below the log start, between segments
    and after them are read from the broker; ends early where the broker has more segments."""
    pieces: list[Piece] = []
    offset = wanted.start
    if offset < tiered.log_start_offset:  # Objects may still hold what was deleted.
        offset = min(wanted.end, tiered.log_start_offset)
        pieces.append(Piece(wanted._replace(end=offset), None))
    for segment in tiered.segments:
        first, last = max(offset, segment.base_offset), min(wanted.end, segment.next_offset)
        if first >= last:
            continue
        if offset < first:
            pieces.append(Piece(wanted._replace(start=offset, end=first), None))
        pieces.append(Piece(wanted._replace(start=first, end=last), segment))
        offset = last
    if offset < wanted.end and not (tiered.more and pieces):
        pieces.append(Piece(wanted._replace(start=offset), None))
    return pieces
