"""Corrupt batches: skipped by readers, counted and logged.

The broker checks batches when they are appended; older versions may have accepted corrupt ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from opentelemetry.metrics import Observation, get_meter

from lakemq.plugins.native.sdk import CorruptBatch
from lakemq.spark_plugin.export.job.runs import Run
from lakemq.spark_plugin.source.planning import OffsetRange

OnSkipped = Callable[[Run], None]
"""Called with offsets that a reader skipped."""

_log = logging.getLogger("lakemq.spark")
_SEEN_MAX: Final = 10_000


class SkippedBatches:
    """Of this process; each batch is logged once, however often it is read."""

    def __init__(self) -> None:
        self.count = 0
        self._seen: set[tuple[str, int, int]] = set()
        get_meter("lakemq.spark").create_observable_counter(
            "lakemq.spark.corrupt_batches", [lambda _: [Observation(self.count)]]
        )

    def record(self, wanted: OffsetRange, span: Run, error: CorruptBatch) -> None:
        """Count a batch and log a warning, unless it was seen before."""
        key = (wanted.topic_id, wanted.partition, span.start)
        if key in self._seen:
            return
        if len(self._seen) >= _SEEN_MAX:
            self._seen.clear()
        self._seen.add(key)
        self.count += 1
        _log.warning(
            "%s-%d: offsets %d to %d are in a corrupt batch and are skipped: %s",
            wanted.topic,
            wanted.partition,
            span.start,
            span.end - 1,
            error,
        )


_skipped: list[SkippedBatches] = []


def skipped_batches() -> SkippedBatches:
    """Those of this process; created when the first one is met."""
    if not _skipped:
        _skipped.append(SkippedBatches())
    return _skipped[0]


def span_of(first: int, last: int, wanted: OffsetRange) -> Run:
    """The offsets of a batch that are within a range; compaction may have removed some of them."""
    return Run(max(first, wanted.start), min(last + 1, wanted.end))
