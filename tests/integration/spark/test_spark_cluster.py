"""Goal: source and export on a Spark cluster: executors in JVMs of their own, started by a master.

`local-cluster` starts them on this machine. It needs SPARK_HOME, or the one in pip's pyspark, and
about a minute, so it runs only with LAKEMQ_SPARK_CLUSTER=1.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import lakemq
from lakemq.spark_plugin.export.tables.target import Target
from tests.support.node.node import NodeProcess
from tests.support.spark.lake_tables import places, read_table

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        not os.environ.get("LAKEMQ_SPARK_CLUSTER"), reason="set LAKEMQ_SPARK_CLUSTER=1"
    ),
]
MASTER = "local-cluster[2,1,1024]"
READ = """
import os, sys
from lakemq.spark_plugin.session import open_session
spark = open_session("cluster", "{master}")
frame = spark.read.format("lakemq").option("bootstrap", "{native}").option("subscribe", "t").load()
hosts = frame.rdd.mapPartitions(lambda rows: [(os.getppid(), sum(1 for _ in rows))]).collect()
print("parents", len({{parent for parent, _ in hosts}}), "rows", sum(rows for _, rows in hosts))
spark.stop()
"""


def test_source_and_export_run_in_executors(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "node") as node, lakemq.connect(node.native) as client:
        client.create_topic("t", partitions=2)
        for partition in range(2):
            values = [b"%0100d" % n for n in range(100_000)]
            client.send_batch("t", lakemq.Columns(values), partition=partition)
        script = READ.format(master=MASTER, native=node.native)
        read = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=180, check=False
        )
        assert "parents 2 rows 200000" in read.stdout, read.stderr[-3000:]
        table = Target("delta", str(tmp_path / "table"))
        export = subprocess.run(
            [sys.executable, "-m", "lakemq", "export", "--bootstrap", node.native, "--topic", "t",
             "--to", "delta", "--path", table.path, "--master", MASTER],
            capture_output=True, text=True, timeout=180, check=False,
        )  # fmt: skip
        assert export.returncode == 0, export.stderr[-3000:]
        assert "caught up: 200,000 records" in export.stdout
    assert places(read_table(table)) == [(p, n) for p in range(2) for n in range(100_000)]
