"""Goal: what a task answers reaches the driver as it was."""

from __future__ import annotations

from typing import get_args

import msgpack
import pytest

from lakemq.spark_plugin.export.job.task_results import (
    BirthsSeen,
    DataFile,
    DeadLetterFile,
    NewFields,
    NewRoutes,
    RangeRead,
    RestFields,
    SkippedOffsets,
    TaskResult,
    Tombstones,
    TracedRecords,
    from_bytes,
    to_bytes,
)
from lakemq.spark_plugin.export.tables.table import WrittenFile

FILE = WrittenFile("a/b-0.parquet", 3, 1 << 40, b"PAR1\x00\xff", ("2026-11-22", None))
RESULTS: list[TaskResult] = [
    DataFile(FILE),
    DataFile(FILE._replace(partition_values=()), "route"),
    DeadLetterFile(FILE),
    NewFields(1, 1 << 40, "a bigint, `ü b` string", "r"),
    NewRoutes(2, 7, ("a", "b")),
    RestFields(5, ("x y",)),
    SkippedOffsets(0, 3, 1 << 62),
    Tombstones(4),
    BirthsSeen(2, 1 << 40, {"plant/edge": 7, "plant/edge/ü": 1 << 62}),
    TracedRecords(("00-a-b-01", "x")),
    RangeRead(0, 0, 1 << 62, 9),
]


@pytest.mark.parametrize("result", RESULTS, ids=repr)
def test_a_result_travels(result: TaskResult) -> None:
    assert from_bytes(to_bytes(result)) == result


def test_every_kind_is_tried() -> None:
    assert {type(each) for each in RESULTS} == set(get_args(TaskResult))


def test_a_kind_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="unknown task result 'other'"):
        from_bytes(msgpack.packb(("other", 1)))
