"""Goal: a soak tells growth apart from warming up, and a road's commits from its rows."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks.soak import per_hour, tell_growth


def test_growth_is_told_per_hour_and_without_the_warm_up() -> None:
    rows = [{"minutes": float(n), "memory_MB": 100.0 if n < 3 else 200.0} for n in range(30)]
    assert per_hour(rows, "memory_MB") == pytest.approx(0.0)
    grown = [{"minutes": float(n), "memory_MB": 100.0 + n} for n in range(30)]
    assert per_hour(grown, "memory_MB") == pytest.approx(60.0)


def test_one_row_has_no_growth() -> None:
    assert per_hour([{"minutes": 1.0, "memory_MB": 7.0}], "memory_MB") == 0.0


def test_lines_that_grew_most_come_first() -> None:
    said: list[str] = []
    tell_growth({"a.py:1": 5_000, "b.py:2": 0}, {"a.py:1": 4_000, "b.py:2": 9_000}, said.append)
    assert said[0].startswith("Python holds 0.0 MB, +8 kB")
    assert said[1].endswith("b.py:2") and "+9.0 kB" in said[1]


def test_a_row_is_as_late_as_the_commit_that_brought_it(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    from benchmarks.works.spark import rows_of

    sent = datetime(2026, 1, 1, tzinfo=UTC)
    parquet.write_table(pyarrow.table({"timestamp": [sent]}), tmp_path / "part.parquet")
    log = tmp_path / "_delta_log"
    log.mkdir()
    lines = [json.dumps({"metaData": {}}), json.dumps({"add": {"path": "part.parquet"}})]
    (log / "0.json").write_text("\n".join(lines))
    (log / "1.json").write_text(json.dumps({"commitInfo": {}}))
    os.utime(log / "0.json", (sent.timestamp() + 2, sent.timestamp() + 2))
    assert rows_of(log) == [(sent.timestamp() + 2, [sent.timestamp()])]
    assert rows_of(tmp_path / "missing") == []
