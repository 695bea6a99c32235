"""Metrics of streaming queries, by Spark's `StreamingQueryListener`."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from opentelemetry.metrics import CallbackOptions, Observation, get_meter
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from lakemq.spark_plugin.notebook.lag import Lag, lag_of


class LagListener(StreamingQueryListener):
    """Lag of every streaming query by partition, as `lag` and as OpenTelemetry's gauge
    `lakemq.spark.lag` (attributes `query`, `topic`, `partition`) at the global meter provider.

        spark.streams.addListener(LagListener())
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lags: dict[str, tuple[str, Lag]] = {}
        get_meter("lakemq.spark").create_observable_gauge(
            "lakemq.spark.lag",
            [self._observe],
            unit="{record}",
            description="Records that a topic holds and a streaming query has not read.",
        )

    @property
    def lag(self) -> dict[str, Lag]:
        """Name of the query (else its id) -> lag by (topic, partition), after its last batch."""
        with self._lock:
            return dict(self._lags.values())

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing is known before the first batch."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Take the offsets of a batch."""
        progress = event.progress
        lag = lag_of((each.endOffset, each.latestOffset) for each in progress.sources)
        with self._lock:
            self._lags[str(progress.id)] = (progress.name or str(progress.id), lag)

    def onQueryIdle(self, event: object) -> None:
        """A query without new records stays where it was."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Forget the query."""
        with self._lock:
            self._lags.pop(str(event.id), None)

    def _observe(self, _: CallbackOptions) -> Iterable[Observation]:
        return [
            Observation(value, {"query": query, "topic": topic, "partition": partition})
            for query, lag in self.lag.items()
            for (topic, partition), value in lag.items()
        ]
