"""Tells the broker what exports commit, for those who watch them (`native.wire.exports`).

An export needs nothing of it: where telling fails, the export goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from lakemq.plugins.native.sdk import LakeMQError, SyncClient, TopicPartition
from lakemq.plugins.native.wire.exports import ExportReport, export_group
from lakemq.spark_plugin.access import Access
from lakemq.spark_plugin.export.job.report import CommitReport
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.source.broker_reader import client_of

_log = logging.getLogger("lakemq.spark")


class BrokerReports:
    """Of all exports of this process."""

    def __init__(self, client: Callable[[str, Access], SyncClient] = client_of) -> None:
        """`client`: of the broker at an address."""
        self._client = client
        self._failed: set[str] = set()

    def committed(self, settings: ExportSettings, report: CommitReport) -> None:
        """After a commit. The first failure of each topic is logged; the next commit tries
        again."""
        told = ExportReport(
            table=settings.target.table or settings.target.path,
            format=settings.target.format,
            commit=report.attempt,
            rows=report.rows,
            dead_letters=report.dead_letters,
            size_bytes=report.size_bytes,
            took_ms=round(1000 * (report.job_s + report.commit_s)),
        )
        group = export_group(settings.export_id)
        places = {
            TopicPartition(settings.topic, partition): offset
            for partition, offset in sorted(report.offsets.items())
        }
        first = next(iter(places))
        try:
            client = self._client(settings.bootstrap, settings.access)
            # The text goes with one partition: with each of a thousand it would be a megabyte.
            client.reset_offsets(group, {first: places.pop(first)}, metadata=told.to_text())
            if places:
                client.reset_offsets(group, places)
        except LakeMQError as error:
            if settings.topic not in self._failed:
                _log.warning("%s: the broker does not list this export: %s", settings.topic, error)
            self._failed.add(settings.topic)
