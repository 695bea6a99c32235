"""What an export says of its commits."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from lakemq.spark_plugin.export.job.report import CommitReport
from lakemq.spark_plugin.export.job.runs import Run
from lakemq.spark_plugin.progress import ExportProgress, progress_bar, starting_spark


def said(**of_report) -> list[str]:
    """The lines of one commit and the end."""
    out = io.StringIO()
    console = Console(file=out, width=400)
    shown = ExportProgress("t", console)
    numbers = {
        "attempt": 3, "rows": 20, "records": 20, "files": 1, "size_bytes": 10, "offsets": {0: 20},
        "lag": 20, "dead_letters": 0, "job_s": 1.0, "commit_s": 0.0, "offset_count": 20,
    }  # fmt: skip
    shown.committed(CommitReport(**{**numbers, **of_report}))
    shown.finished()
    shown.close()
    return out.getvalue().splitlines()


@pytest.mark.parametrize(
    ("report", "commit", "end"),
    [
        ({}, "t: commit 3: 20 rows in 1 files", "t: caught up: 20 records in"),
        ({"rows": 15, "dead_letters": 5}, "t: commit 3: 15 rows in", "t: caught up: 20 records in"),
        (
            {"rows": 542, "records": 19_735},
            "t: commit 3: 542 rows of 19,735 records in",
            "t: caught up: 19,735 records read, 542 result rows, in",
        ),
    ],
    ids=["plain", "dead letters", "query"],
)
def test_records_read_and_result_rows_are_told_apart(report, commit, end):
    first, last = said(**report)
    assert first.startswith(commit)
    assert last.startswith(end)


def test_offsets_of_corrupt_batches_are_named():
    first, _ = said(skipped={0: [Run(3, 5)], 2: [Run(7, 8)]})
    assert first.endswith(
        "lag 0, 3 offsets skipped in corrupt batches (partition 0: 3 to 4; partition 2: 7)"
    )


def test_tombstones_are_counted():
    first, _ = said(tombstones=3)
    assert first.endswith("lag 0, 3 tombstones")


@pytest.mark.parametrize("terminal", [True, False])
def test_start_of_spark_is_said_at_once(terminal):
    out = io.StringIO()
    console = Console(file=out, width=400, force_terminal=terminal)
    bar = progress_bar(console)
    with bar, starting_spark(console, bar):
        bar.refresh()
        assert "starting Spark" in out.getvalue()
    assert bar.tasks == []
