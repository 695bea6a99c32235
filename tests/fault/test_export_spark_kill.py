"""Goal: kill -9 of Spark's driver, an executor's Python and the broker while real tasks write.

Starts several JVMs, so it runs only with LAKEMQ_EXPORT_KILLS=1.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import lakemq
from spark_plugin.export.open_table import open_table
from spark_plugin.export.settings import Target
from tests.support.lake_tables import data_paths, places, read_table
from tests.support.node import NodeProcess

pytestmark = [
    pytest.mark.fault,
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not os.environ.get("LAKEMQ_EXPORT_KILLS"), reason="set LAKEMQ_EXPORT_KILLS=1"
    ),
]
RECORDS = 400_000
"""In each of 2 partitions."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path / "node") as node, lakemq.connect(node.native) as client:
        client.create_topic("t", partitions=2)
        for partition in range(2):
            for first in range(0, RECORDS, 8000):
                values = [b"%0100d" % n for n in range(first, first + 8000)]
                client.send_batch("t", lakemq.Columns(values), partition=partition)
        yield node


def export(node: NodeProcess, target: Target, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "lakemq", "export", "--bootstrap", node.native, "--topic", "t",
         "--to", "delta", "--path", target.path, "--commit-rows", "300000",
         "--master", "local[2,4]", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def wait_for(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "it did not happen in 120 s"
        time.sleep(0.005)


def writing(target: Target) -> set[Path]:
    """Files with something in them that no commit names."""
    if not Path(target.path, "_delta_log").exists():
        return set()
    named = {Path(path) for path in open_table(target, None).data_files()}
    return {path for path in data_paths(target) - named if path.stat().st_size > 1000}


def finish(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate(timeout=240)
    assert process.returncode == 0, said
    return said


def check(target: Target) -> None:
    expected = [(partition, n) for partition in range(2) for n in range(RECORDS)]
    table = read_table(target)
    assert places(table) == expected
    assert all(
        int(value) == offset
        for value, offset in zip(
            table["value"].to_pylist(), table["offset"].to_pylist(), strict=True
        )
    )
    assert data_paths(target) == {Path(each) for each in open_table(target, None).data_files()}


def test_the_driver_is_killed_while_tasks_write(node: NodeProcess, tmp_path: Path) -> None:
    target = Target("delta", str(tmp_path / "table"))
    for _ in range(2):
        process = export(node, target)
        wait_for(lambda: writing(target), process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert writing(target)
    said = finish(export(node, target))
    assert "left behind" in said
    check(target)


def test_an_executors_python_is_killed_while_it_writes(node: NodeProcess, tmp_path: Path) -> None:
    target = Target("delta", str(tmp_path / "table"))
    process = export(node, target)
    wait_for(lambda: writing(target), process)
    workers = [
        child
        for child in psutil.Process(process.pid).children(recursive=True)
        if "pyspark.daemon" in " ".join(child.cmdline())
    ]
    assert workers
    for worker in workers[-2:]:  # forked by the daemon, which comes first
        worker.kill()
    finish(process)
    check(target)


def test_the_broker_is_killed_while_tasks_read(node: NodeProcess, tmp_path: Path) -> None:
    target = Target("delta", str(tmp_path / "table"))
    config = node.config_file.read_text()
    port = node.native.rpartition(":")[2]
    node.config_file.write_text(
        config.replace("[plugins.native]\nport = 0", f"[plugins.native]\nport = {port}")
    )
    process = export(node, target)
    wait_for(lambda: writing(target), process)
    node.kill()
    time.sleep(1)
    node.start()
    finish(process)
    check(target)
