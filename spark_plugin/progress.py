"""What the export shows of itself: a bar on a terminal, a line per commit elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from lakemq.spark_plugin.export.decoding.column_types import REST

if TYPE_CHECKING:
    from lakemq.spark_plugin.export.job.report import CommitReport
    from lakemq.spark_plugin.export.maintenance.compaction import Compacted


def progress_bar(console: Console) -> Progress:
    """A line for each topic; nothing where there is no terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}% lag {task.fields[lag]:,} {task.fields[speed]}"),
        TextColumn("{task.fields[last]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )


@contextmanager
def starting_spark(console: Console, bar: Progress) -> Iterator[None]:
    """Say that Spark starts, which takes some seconds: in the bar on a terminal, else a line."""
    if not console.is_terminal:
        console.print("starting Spark", highlight=False)
        yield
        return
    task = bar.add_task("starting Spark", total=None, lag=0, speed="", last="")
    try:
        yield
    finally:
        bar.remove_task(task)


class ExportProgress:
    """Progress of one topic's export, in records."""

    def __init__(self, topic: str, console: Console, bar: Progress | None = None) -> None:
        """`bar`: shown by several topics together, started and stopped by the caller."""
        self._topic = topic
        self._console = console
        self._records = 0
        self._rows = 0
        self._dead = 0
        self._began_s = time.monotonic()
        self._shared = bar is not None
        self._bar = bar or progress_bar(console)
        self._task = self._bar.add_task(topic, total=None, lag=0, speed="", last="")
        if not self._shared:
            self._bar.start()

    def close(self) -> None:
        """Take the bar away."""
        if not self._shared:
            self._bar.stop()

    def cleaned(self, attempts: list[str]) -> None:
        """Print the orphaned folders that the start deleted."""
        for name in attempts:
            self._console.print(f"{self._topic}: deleted orphaned files of attempt {name}")

    def committed(self, report: CommitReport) -> None:
        """Move the bar, and print one line on the commit."""
        self._records += report.records
        self._rows += report.rows
        self._dead += report.dead_letters
        lag = report.lag - report.offset_count
        speed = f"{report.rows / max(1e-9, report.job_s + report.commit_s):,.0f} rows/s"
        self._bar.update(
            self._task,
            completed=self._records,
            total=self._records + lag,
            lag=lag,
            speed=speed,
            last=f"last commit {time.strftime('%H:%M:%S')}",
        )
        dead = f", {report.dead_letters:,} dead letters" if report.dead_letters else ""
        dead += f", {report.rest_rows:,} rows with fields in {REST}" if report.rest_rows else ""
        dead += f", {report.tombstones:,} tombstones" if report.tombstones else ""
        dead += f", {report.skipped_sentence()}" if report.skipped else ""
        queried = report.records != report.rows + report.dead_letters
        rows = f"{report.rows:,} rows" + (f" of {report.records:,} records" if queried else "")
        self._console.print(
            f"{self._topic}: commit {report.attempt}: {rows} in {report.files} files "
            f"({report.size_bytes / 1e6:,.1f} MB), {speed}, lag {lag:,}{dead}",
            highlight=False,
        )

    def compacted(self, done: Compacted) -> None:
        """Print one line on a compaction."""
        self._console.print(
            f"{self._topic}: compacted {done.removed:,} files into {done.added:,}", highlight=False
        )

    def totals(self) -> dict[str, str | int]:
        """What this run has committed: records read, result rows, dead letters."""
        return {
            "topic": self._topic,
            "records": self._records,
            "rows": self._rows,
            "dead_letters": self._dead,
        }

    def finished(self) -> None:
        """Print the totals of a run that has caught up."""
        took_s = time.monotonic() - self._began_s
        dead = f", {self._dead:,} of them dead letters" if self._dead else ""
        queried = self._records != self._rows + self._dead
        rows = f" read, {self._rows:,} result rows," if queried else ""
        self._console.print(
            f"{self._topic}: caught up: {self._records:,} records{rows} in {took_s:,.1f} s{dead}",
            highlight=False,
        )
