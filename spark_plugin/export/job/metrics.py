"""Metrics of exports for OpenTelemetry, read when they are collected.

Instruments are made at the global meter provider, which `opentelemetry-instrument` or the program
sets up; without one they cost nothing. `service.server` is a provider with a page of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from lakemq.spark_plugin.export.job.report import CommitReport

PREFIX: Final = "lakemq.export"


@dataclass
class ExportMetrics:
    """Numbers of one export of one topic since this process runs it."""

    topic: str
    export_id: str
    rows: int = 0
    bytes: int = 0
    """Of data files."""
    commits: int = 0
    dead_letters: int = 0
    rest_rows: int = 0
    """Rows with fields in `_rest`."""
    tombstones: int = 0
    """Records without a value, which delete rows of an upsert."""
    skipped: int = 0
    """Offsets in batches that are corrupt inside."""
    failures: int = 0
    lag: int = 0
    """Offsets that the topic holds and the table does not."""
    job_s: float = 0.0
    commit_s: float = 0.0
    last_commit_s: float = 0.0
    """Time of the last commit (s since 1970); 0: there was none."""
    error: str = ""
    """Why the last try failed; empty since one did not."""

    def committed(self, report: CommitReport) -> None:
        """Add what one commit did to the totals; the lag is what was left after it."""
        self.rows += report.rows
        self.bytes += report.size_bytes
        self.commits += 1
        self.dead_letters += report.dead_letters
        self.rest_rows += report.rest_rows
        self.tombstones += report.tombstones
        self.skipped += report.skipped_count
        self.lag = report.lag - report.offset_count
        self.job_s += report.job_s
        self.commit_s += report.commit_s
        self.last_commit_s = time.time_ns() / 1e9


_COUNTERS: Final[tuple[tuple[str, str, str], ...]] = (
    ("rows", "{row}", "Rows that landed."),
    ("bytes", "By", "Size of the data files that landed."),
    ("commits", "{commit}", "Commits of the table."),
    ("dead_letters", "{record}", "Records that did not decode."),
    ("rest_rows", "{row}", "Rows with fields that have no column of their own."),
    ("tombstones", "{record}", "Records without a value, which delete rows of an upsert."),
    ("skipped", "{offset}", "Offsets skipped because their batch is corrupt."),
    ("failures", "{failure}", "Commits that failed and were tried again."),
    ("job_s", "s", "Time that Spark jobs took."),
    ("commit_s", "s", "Time that commits took."),
)
_GAUGES: Final[tuple[tuple[str, str, str], ...]] = (
    ("lag", "{offset}", "Offsets that the topic holds and the table does not."),
    ("last_commit_s", "s", "Time of the last commit since 1970."),
)


def observe(exports: Sequence[ExportMetrics], meter: Meter) -> None:
    """Make the instruments; `exports` may grow later."""
    for name, unit, description in _COUNTERS:
        meter.create_observable_counter(
            _public(name), [_callback(exports, name)], unit=unit, description=description
        )
    for name, unit, description in _GAUGES:
        meter.create_observable_gauge(
            _public(name), [_callback(exports, name)], unit=unit, description=description
        )


def _public(name: str) -> str:
    """`job_s` -> `lakemq.export.job`: the unit is said elsewhere."""
    return f"{PREFIX}.{name.removesuffix('_s')}"


def _callback(
    exports: Sequence[ExportMetrics], name: str
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def read(_: CallbackOptions) -> Iterable[Observation]:
        return [
            Observation(getattr(each, name), {"topic": each.topic, "export": each.export_id})
            for each in exports
        ]

    return read
