"""What the export shows of itself: a bar on a terminal, a line per commit elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from spark_plugin.export.compaction import Compacted
    from spark_plugin.export.report import CommitReport


class ExportProgress:
    """Progress of one run, in records. Context manager."""

    def __init__(self, topic: str, console: Console) -> None:
        self._topic = topic
        self._console = console
        self._rows = 0
        self._dead = 0
        self._began_s = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}% lag {task.fields[lag]:,} {task.fields[speed]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task(topic, total=None, lag=0, speed="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def committed(self, report: CommitReport) -> None:
        self._rows += report.rows + report.dead_letters
        self._dead += report.dead_letters
        lag = report.lag - report.offset_count
        speed = f"{report.rows / max(1e-9, report.job_s + report.commit_s):,.0f} rows/s"
        self._bar.update(
            self._task, completed=self._rows, total=self._rows + lag, lag=lag, speed=speed
        )
        dead = f", {report.dead_letters:,} dead letters" if report.dead_letters else ""
        self._console.print(
            f"{self._topic}: commit {report.attempt}: {report.rows:,} rows in {report.files} files "
            f"({report.size_bytes / 1e6:,.1f} MB), {speed}, lag {lag:,}{dead}",
            highlight=False,
        )

    def compacted(self, done: Compacted) -> None:
        self._console.print(
            f"{self._topic}: compacted {done.removed:,} files into {done.added:,}", highlight=False
        )

    def finished(self) -> None:
        took_s = time.monotonic() - self._began_s
        dead = f", {self._dead:,} of them dead letters" if self._dead else ""
        self._console.print(
            f"{self._topic}: caught up: {self._rows:,} records in {took_s:,.1f} s{dead}",
            highlight=False,
        )
