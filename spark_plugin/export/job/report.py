"""What a commit of an export did, and whether its tasks covered every offset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lakemq.spark_plugin.errors import ExportError
from lakemq.spark_plugin.export.decoding.births import KnownBirths
from lakemq.spark_plugin.export.job.runs import Run, describe, merge, size
from lakemq.spark_plugin.export.job.task_results import (
    BirthsSeen,
    DataFile,
    DeadLetterFile,
    RangeRead,
    RestFields,
    SkippedOffsets,
    TaskResult,
    Tombstones,
)
from lakemq.spark_plugin.source.planning import OffsetRange


@dataclass(frozen=True)
class CommitReport:
    """One commit, for people and metrics. Times in seconds, sizes in bytes."""

    attempt: int
    rows: int
    files: int
    size_bytes: int
    offsets: Mapping[int, int]
    """Next offsets after the commit."""
    lag: int
    """Offsets that were not exported yet when the commit was planned."""
    dead_letters: int
    job_s: float
    commit_s: float
    records: int
    """Records read, dead letters included; a query (`--sql`) makes other rows of them."""
    offset_count: int
    """Offsets that the commit moved forward by."""
    skipped: Mapping[int, Sequence[Run]] = field(default_factory=dict)
    """Partition -> offsets (normal) in corrupt batches, which were skipped."""

    rest_rows: int = 0
    """Rows with fields that have no column of their own, but are in `_rest`."""
    tombstones: int = 0
    """Records without a value, which delete rows of an upsert."""

    @property
    def more(self) -> bool:
        """Whether more was there than one commit takes."""
        return self.lag > self.offset_count

    @property
    def skipped_count(self) -> int:
        """Offsets in corrupt batches, over all partitions."""
        return sum(map(size, self.skipped.values()))

    def skipped_sentence(self) -> str:
        """`12 offsets skipped in corrupt batches (partition 0: 5 to 14, 20 to 21)`; or empty."""
        if not self.skipped:
            return ""
        where = "; ".join(
            f"partition {partition}: {describe(runs)}" for partition, runs in self.skipped.items()
        )
        return f"{self.skipped_count:,} offsets skipped in corrupt batches ({where})"


def skipped_of(results: Sequence[TaskResult]) -> dict[int, list[Run]]:
    """Partition -> offsets (normal) that tasks skipped because a batch was corrupt."""
    found: dict[int, list[Run]] = {}
    for result in results:
        if isinstance(result, SkippedOffsets):
            found.setdefault(result.partition, []).append(Run(result.start, result.end))
    return {partition: merge(runs)[0] for partition, runs in sorted(found.items())}


def rest_of_results(results: Sequence[TaskResult]) -> tuple[int, list[str]]:
    """Rows with something in `_rest`, and the names of its fields."""
    found = [result for result in results if isinstance(result, RestFields)]
    names = dict.fromkeys(name for each in found for name in each.names)
    return sum(each.rows for each in found), list(names)


def tombstones_of(results: Sequence[TaskResult]) -> int:
    """Records without a value that tasks of an upsert read."""
    return sum(result.count for result in results if isinstance(result, Tombstones))


def records_read(results: Sequence[TaskResult]) -> int:
    """Rows that tasks read: one for each record, except in Sparkplug B."""
    return sum(result.rows for result in results if isinstance(result, RangeRead))


Births = Mapping[tuple[str, int], KnownBirths]
"""Topic id and partition -> what is known of births of Sparkplug B."""


def births_after(
    before: Births, ranges: Sequence[OffsetRange], results: Sequence[TaskResult]
) -> Births:
    """What is known when a commit of these ranges has landed."""
    found = dict(before)
    for each in ranges:
        place = (each.topic_id, each.partition)
        seen = [
            (one.low, one.offsets)
            for one in results
            if isinstance(one, BirthsSeen) and one.partition == each.partition
        ]
        if seen:
            known = before.get(place, KnownBirths(each.end, each.end, {}))
            found[place] = known.with_seen(each.end, seen)
    return found


def check_complete(ranges: Sequence[OffsetRange], results: Sequence[TaskResult]) -> None:
    """ExportError unless the results cover every range exactly once and files hold all rows."""
    for wanted in ranges:
        offset = wanted.start
        done = [
            result
            for result in results
            if isinstance(result, RangeRead) and result.partition == wanted.partition
        ]
        for result in sorted(done, key=lambda each: each.start):
            # A gap: the offset stays where it is, and the check below fails.
            if result.start != offset:
                break
            offset = result.end
        if offset != wanted.end:
            raise ExportError(
                f"{wanted.topic}-{wanted.partition}: tasks covered offsets up to {offset}, "
                f"not {wanted.end}"
            )
    read = records_read(results)
    kept = sum(
        result.file.rows for result in results if isinstance(result, DataFile | DeadLetterFile)
    )
    # Counted at both ends: a writer that drops rows is found before the commit.
    if read != kept:
        raise ExportError(f"{read} records were read, {kept} written")
