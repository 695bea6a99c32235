"""Runs the exports of one job: one topic, or all that match a pattern.

Topics are exported side by side, each by one thread at a time. What fails for one topic, also at
its start, does not stop the others; with a trigger it is retried, else it is reported at the end.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lakemq.plugins.native.sdk import LakeMQError
from lakemq.spark_plugin.errors import ExportFenced, OptionError, SparkPluginError
from lakemq.spark_plugin.export.job.metrics import ExportMetrics
from lakemq.spark_plugin.export.job.report import CommitReport
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.export.routing.topics import (
    check_distinct,
    have_conflicts,
    matching,
    settings_of,
    tables_of,
)
from lakemq.spark_plugin.source.broker_reader import client_of, retrying

if TYPE_CHECKING:
    from lakemq.spark_plugin.export.job.exporter import Exporter
    from lakemq.spark_plugin.progress import ExportProgress

_log = logging.getLogger("lakemq.spark")


@dataclass
class Running:
    """One topic's export."""

    settings: ExportSettings
    exporter: Exporter
    progress: ExportProgress
    metrics: ExportMetrics
    done: bool = False
    """Caught up, and there is no trigger; or it can't go on."""
    more: bool = False
    """The last commit did not take everything."""
    failure: Exception | None = None


@dataclass
class Job:
    """All exports of this process."""

    settings: ExportSettings
    open: Callable[[ExportSettings], Exporter]
    progress: Callable[[str], ExportProgress]
    """Shows one topic's progress."""
    pattern: str = ""
    """Of topics; empty: the one topic of the settings."""
    threads: int = 2
    is_known: Callable[[ExportSettings], bool] = lambda _: False
    """Whether the export has written the table: of two topics for one table, it keeps it."""
    tell: Callable[[ExportSettings, CommitReport], None] = lambda settings, report: None
    """Called after each commit, for who watches from elsewhere."""
    metrics: list[ExportMetrics] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    left_out: dict[str, Exception] = field(default_factory=dict)
    """Topic of the pattern -> why its export could not start."""
    _running: dict[str, Running] = field(default_factory=dict)

    def run(self) -> None:
        """Until everything is caught up, or `stop` is set, which lets commits under way finish.
        Raises what went wrong with the first topic that failed for good."""
        try:
            with ThreadPoolExecutor(self.threads) as pool:
                while not self.stop.is_set():
                    self._find_topics()
                    waiting = [each for each in self._running.values() if not each.done]
                    list(pool.map(self._step, waiting))
                    if self.settings.trigger_s is None:
                        if all(each.done for each in waiting):
                            break
                    elif not any(each.more for each in waiting):
                        self.stop.wait(self.settings.trigger_s)
        finally:
            for each in self._running.values():
                each.exporter.close()
                each.progress.close()
        failures = [each.failure for each in self._running.values() if each.failure]
        failures += self.left_out.values()
        if failures:
            raise failures[0]

    def _find_topics(self) -> None:
        """Start exports of topics that are not exported yet."""
        settings = self.settings
        if not self.pattern:
            if not self._running:
                self._start(settings)
            return
        client = client_of(settings.bootstrap, settings.access)
        topics = retrying(client.topics, settings.retry_timeout_s)
        names = [each.name for each in topics if not each.is_internal]
        matched = matching(self.pattern, names)
        if not matched and not self._running and settings.trigger_s is None:
            raise OptionError(f"no topic at {settings.bootstrap} matches {self.pattern}")
        once = settings.trigger_s is None
        new = [
            settings_of(settings, name)
            for name in matched
            if name not in self._running and not (once and name in self.left_out)
        ]
        if have_conflicts(new):  # any client may create a topic: it must not get another's table
            new.sort(key=lambda each: not self.is_known(each))
        taken = {
            table: name
            for name, each in self._running.items()
            for table in tables_of(each.settings)
        }
        for its in new:
            self._join(its, taken)

    def _join(self, its: ExportSettings, taken: dict[str, str]) -> None:
        """Start the export of one of several topics, or leave it out."""
        try:
            check_distinct(taken, its)
            taken |= dict.fromkeys(tables_of(its), its.topic)
            self._start(its)
        except (SparkPluginError, LakeMQError) as error:
            if str(self.left_out.get(its.topic)) != str(error):
                _log.error("%s: %s", its.topic, error)
            if its.topic not in self.left_out:
                self.metrics.append(ExportMetrics(its.topic, its.export_id))
            self.left_out[its.topic] = error
            self._metrics_of(its.topic).failures += 1
            self._metrics_of(its.topic).error = str(error)
        else:
            self.left_out.pop(its.topic, None)

    def _metrics_of(self, topic: str) -> ExportMetrics:
        return next(each for each in self.metrics if each.topic == topic)

    def _start(self, settings: ExportSettings) -> None:
        exporter = self.open(settings)
        progress = self.progress(settings.topic)
        try:
            progress.cleaned(exporter.start())
        except BaseException:
            exporter.close()
            progress.close()
            raise
        if settings.topic in self.left_out:  # it could not start before
            numbers = self._metrics_of(settings.topic)
        else:
            numbers = ExportMetrics(settings.topic, settings.export_id)
            self.metrics.append(numbers)
        self._running[settings.topic] = Running(settings, exporter, progress, numbers)

    def _step(self, running: Running) -> None:
        """One commit of one topic."""
        try:
            report = running.exporter.step()
            running.metrics.error = ""
            running.more = report is not None and report.more
            if report is not None:
                running.metrics.committed(report)
                running.progress.committed(report)
                self.tell(running.settings, report)
                if compacted := running.exporter.compact():
                    running.progress.compacted(compacted)
            elif self.settings.trigger_s is None:
                running.done = True
                running.progress.finished()
        except (SparkPluginError, LakeMQError) as error:
            self._failed(running, error)

    def _failed(self, running: Running, error: Exception) -> None:
        running.more = False
        if self.stop.is_set() and not isinstance(error, ExportFenced):
            # Who stops a service may end Spark's processes with it: nothing was committed.
            _log.warning(
                "%s: stopped, and a commit was given up: %s", running.settings.topic, error
            )
            return
        running.metrics.failures += 1
        running.metrics.error = str(error)
        if not self.pattern:
            raise error
        if self.settings.trigger_s is None or isinstance(error, ExportFenced):
            running.done, running.failure = True, error
        _log.error("%s: %s", running.settings.topic, error)
