"""A streaming query from a topic into Parquet files, in a process of its own.

    python -m tests.support.spark.streamed_source BOOTSTRAP TOPIC FOLDER

It takes what is there in batches of 60 records, writes `partition`, `offset` and `value` of each to
FOLDER/rows, and ends. Its checkpoint is FOLDER/checkpoint.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq

BATCH = 60


def main(bootstrap: str, topic: str, folder: str) -> None:
    from lakemq.spark_plugin.session import open_session

    # local[2,4]: a task may fail three times.
    spark = open_session("streamed source", "local[2,4]")
    query = (
        spark.readStream.format("lakemq")
        .option("bootstrap", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(BATCH))
        .load()
        .select("partition", "offset", "value")
        .writeStream.format("parquet")
        .option("path", f"{folder}/rows")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


def start(*arguments: str) -> subprocess.Popen[str]:
    """As its own process; what it says comes on stdout."""
    return subprocess.Popen(
        [sys.executable, "-m", __name__, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def batches(folder: Path) -> int:
    """How many batches are committed."""
    return sum(each.name.isdigit() for each in (folder / "checkpoint/commits").glob("*"))


def rows(folder: Path) -> list[tuple[int, int, bytes]]:
    """(partition, offset, value) of each row in files that batches have committed, sorted."""
    paths: set[str] = set()
    for log in (folder / "rows/_spark_metadata").glob("[0-9]*"):
        # The first line is a version; every tenth log has what those before it have.
        paths |= {json.loads(line)["path"] for line in log.read_text().splitlines()[1:]}
    found: list[tuple[int, int, bytes]] = []
    for path in paths:
        table = pq.read_table(path.removeprefix("file://"), partitioning=None)
        found += zip(*(table[name].to_pylist() for name in table.column_names), strict=True)
    return sorted(found)


if __name__ == "__main__":
    main(*sys.argv[1:])
