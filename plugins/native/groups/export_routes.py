"""Exports over the admin API: groups that exports tell their progress to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from lakemq.broker_core.api.administration.routes import (
    EACH,
    AdminListing,
    AdminRequest,
    Answer,
    AnyRoute,
    OwnPageQuery,
)
from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.groups.ports import GroupCoordinators
from lakemq.broker_core.api.groups.types import GroupDescription, GroupOffset
from lakemq.broker_core.api.ports import Broker
from lakemq.plugins.native.groups.routes import topic_offsets
from lakemq.plugins.native.wire.exports import GROUP_PREFIX, ExportReport

_TEXTS_MAX: Final = 3
"""Of the partitions of a topic that are looked at for a report."""


class ExportRow(Answer):
    """An export of one topic, as it told of itself after its last commit."""

    node: str
    """That it is connected to."""
    export_id: str
    topic: str
    table: str
    """Path, URI or name."""
    format: str
    """`delta`, `iceberg` or `parquet`."""
    commit: int
    """How many there were."""
    rows: int
    """Of the last commit, as are the next three."""
    dead_letters: int
    size_bytes: int
    rows_per_s: float
    committed_ms: int
    """When (ms since 1970, UTC)."""
    lag: int | None
    """Records that the table does not have yet; null: no leader tells."""


class _Export(NamedTuple):
    group: str
    topic: str
    offsets: Sequence[GroupOffset]
    report: ExportReport


class ExportRoutes:
    """`/api/v1/exports`. Who may describe the group of an export may see it."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @property
    def _groups(self) -> GroupCoordinators:
        return self._broker.groups

    def routes(self) -> Sequence[AnyRoute]:
        """The list."""
        return [
            AdminListing(
                "exports", ExportRow, self._all, self._rows,
                lambda each: f"{each.group.removeprefix(GROUP_PREFIX)} {each.topic}",
                {
                    "export_id": lambda each: each.group,
                    "topic": lambda each: each.topic,
                    "table": lambda each: each.report.table,
                    "committed_ms": _committed_ms,
                },
                query=OwnPageQuery, need=EACH, own=True, summary="List exports and their lag.",
            )
        ]  # fmt: skip

    async def _all(self, request: AdminRequest) -> Sequence[_Export]:
        found: list[_Export] = []
        for name in self._groups.names():
            if name.startswith(GROUP_PREFIX):
                try:
                    (group,) = self._groups.describe([name], principal=request.principal)
                except LakeMQError:  # not the caller's to see, or deleted meanwhile
                    continue
                found += _exports(group)
        return found

    async def _rows(self, exports: Sequence[_Export], request: AdminRequest) -> Sequence[ExportRow]:
        ends = {each.topic: await _ends(request, each.topic) for each in exports}
        return [self._row(each, ends[each.topic]) for each in exports]

    def _row(self, export: _Export, ends: dict[int, int]) -> ExportRow:
        report = export.report
        lags = [
            max(0, ends[each.partition] - each.committed_offset)
            for each in export.offsets
            if each.partition in ends
        ]
        return ExportRow(
            node=self._broker.node_id,
            export_id=export.group.removeprefix(GROUP_PREFIX),
            topic=export.topic,
            table=report.table,
            format=report.format,
            commit=report.commit,
            rows=report.rows,
            dead_letters=report.dead_letters,
            size_bytes=report.size_bytes,
            rows_per_s=round(1000 * report.rows / max(1, report.took_ms), 1),
            committed_ms=_committed_ms(export),
            lag=sum(lags) if len(lags) == len(export.offsets) else None,
        )


def _exports(group: GroupDescription) -> Iterable[_Export]:
    """One for each topic whose offsets have a report beside them."""
    topics: dict[str, list[GroupOffset]] = {}
    for each in group.offsets:
        if each.committed_offset >= 0:
            topics.setdefault(each.topic, []).append(each)
    for topic, offsets in sorted(topics.items()):
        # An export writes one; others may have written any text to each of many partitions.
        texts = islice((each.metadata for each in offsets if each.metadata), _TEXTS_MAX)
        reports = map(ExportReport.of_text, texts)
        report = next((each for each in reports if each is not None), None)
        if report is not None:
            yield _Export(group.name, topic, offsets, report)


def _committed_ms(export: _Export) -> int:
    return max(each.committed_ms for each in export.offsets)


async def _ends(request: AdminRequest, topic: str) -> dict[int, int]:
    """High watermarks; none where the topic is gone, or the caller may not describe it."""
    try:
        return await topic_offsets(request, topic, "latest")
    except LakeMQError:
        return {}
