"""How far exports are: what a table says of itself, and what exports have told the broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from lakemq.plugins.native.sdk import GroupDescription, GroupOffset
from lakemq.plugins.native.wire.exports import GROUP_PREFIX, ExportReport
from lakemq.spark_plugin.export.tables.table import Progress
from lakemq.spark_plugin.source.planning import PartitionView

_TEXTS_MAX: Final = 3
"""Of the partitions of a topic that are looked at for a report."""


@dataclass(frozen=True)
class PartitionStatus:
    """One partition of an exported topic."""

    partition: int
    next_offset: int
    """First offset that the table does not have."""
    log_start: int
    high_watermark: int
    lag: int
    """Offsets that are in the journal and not in the table."""


@dataclass(frozen=True)
class ExportStatus:
    """An export of a topic, as its table has it."""

    export_id: str
    topic: str
    table: str
    format: str
    commit: int
    """How many there were."""
    lag: int
    partitions: list[PartitionStatus]


@dataclass(frozen=True)
class ReportedExport:
    """An export of a topic, as it told the broker after its last commit."""

    export_id: str
    topic: str
    table: str
    format: str
    commit: int
    rows: int
    """Of the last commit, as are the dead letters."""
    dead_letters: int
    committed_ms: int
    """When (ms since 1970, UTC)."""
    lag: int | None
    """None: the topic is gone, or its leaders do not tell."""


def partition_statuses(
    progress: Progress, partitions: Mapping[int, PartitionView]
) -> list[PartitionStatus]:
    """The table's offsets beside the journal's."""
    found = []
    for number, held in sorted(partitions.items()):
        at = progress.offsets.get(number, 0)
        lag = max(0, held.high_watermark - max(at, held.log_start))
        found.append(PartitionStatus(number, at, held.log_start, held.high_watermark, lag))
    return found


def reported_exports(
    groups: Iterable[GroupDescription], ends: Mapping[str, Mapping[int, int]]
) -> list[ReportedExport]:
    """Exports among consumer groups, by id and topic. `ends`: topic -> partition -> high watermark,
    of those that are known."""
    found = []
    for group in groups:
        topics: dict[str, list[GroupOffset]] = {}
        for each in group.offsets if group.name.startswith(GROUP_PREFIX) else ():
            if each.committed_offset >= 0:
                topics.setdefault(each.topic, []).append(each)
        for topic, offsets in sorted(topics.items()):
            report = _report_of(offsets)
            if report is not None:
                export_id = group.name.removeprefix(GROUP_PREFIX)
                lag = _lag(offsets, ends.get(topic, {}))
                found.append(_reported(export_id, topic, offsets, report, lag))
    return found


def _report_of(offsets: Iterable[GroupOffset]) -> ExportReport | None:
    # An export writes one; others may have written any text to each of many partitions.
    texts = islice((each.metadata for each in offsets if each.metadata), _TEXTS_MAX)
    reports = map(ExportReport.of_text, texts)
    return next((each for each in reports if each is not None), None)


def _lag(offsets: Iterable[GroupOffset], ends: Mapping[int, int]) -> int | None:
    lag = 0
    for each in offsets:
        if each.partition not in ends:
            return None
        lag += max(0, ends[each.partition] - each.committed_offset)
    return lag


def _reported(
    export_id: str,
    topic: str,
    offsets: Iterable[GroupOffset],
    report: ExportReport,
    lag: int | None,
) -> ReportedExport:
    return ReportedExport(
        export_id=export_id,
        topic=topic,
        table=report.table,
        format=report.format,
        commit=report.commit,
        rows=report.rows,
        dead_letters=report.dead_letters,
        committed_ms=max(each.committed_ms for each in offsets),
        lag=lag,
    )
