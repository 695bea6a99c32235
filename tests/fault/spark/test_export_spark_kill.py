"""Goal: kill -9 of Spark's driver, an executor's Python and the broker while real tasks write, into
one table or routed into several, in every format.

Starts several JVMs, so it runs only with LAKEMQ_EXPORT_KILLS=1.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

import lakemq
from lakemq.spark_plugin.errors import NoTable
from lakemq.spark_plugin.export.job.run import all_targets
from lakemq.spark_plugin.export.tables.open_table import open_table
from lakemq.spark_plugin.export.tables.target import Target
from tests.support.node.node import NodeProcess, ports_kept
from tests.support.spark.lake_tables import (
    FORMATS,
    data_paths,
    places,
    read_table,
    routed_target_in,
    target_in,
)

pytestmark = [
    pytest.mark.fault,
    pytest.mark.spark,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not os.environ.get("LAKEMQ_EXPORT_KILLS"), reason="set LAKEMQ_EXPORT_KILLS=1"
    ),
]
RECORDS = 400_000
"""In each of 2 partitions."""
ROUTES = 3
_started: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def _none_is_left() -> Iterator[None]:
    """A test that fails leaves no export behind."""
    yield
    while _started:
        process = _started.pop()
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture(params=["one delta", *(f"routed {kind}" for kind in FORMATS)])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    many, kind = request.param.split()
    return (routed_target_in if many == "routed" else target_in)(tmp_path / "lake", kind)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with (
        NodeProcess(tmp_path / "node", ports_kept("native")) as node,
        lakemq.connect(node.native) as client,
    ):
        client.create_topic("t", partitions=2)
        for partition in range(2):
            for first in range(0, RECORDS, 8000):
                values = [b"%0100d" % n for n in range(first, first + 8000)]
                keys = [b"key-%d" % (n % ROUTES) for n in range(first, first + 8000)]
                client.send_batch("t", lakemq.Columns(values, keys), partition=partition)
        yield node


def export(node: NodeProcess, target: Target) -> subprocess.Popen[str]:
    where = ["--path", target.path]
    if target.format == "iceberg":
        catalog = target.catalog
        where = ["--table", target.table, "--catalog-uri", catalog["uri"]]
        where += ["--warehouse", catalog["warehouse"]]
    routing = ["--route-by", "key"] if target.is_routed else []
    process = subprocess.Popen(
        [sys.executable, "-m", "lakemq", "export", "--bootstrap", node.native, "--topic", "t",
         "--to", target.format, *where, "--commit-rows", "300000", "--master", "local[2,4]",
         *routing],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    _started.append(process)
    return process


def wait_for(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "it did not happen in 300 s"
        time.sleep(0.02)


def files_of(target: Target) -> tuple[set[Path], set[Path]]:
    """Data files that lie in the folders of all tables, and those that tables name."""
    top = replace(target, path=target.path.replace("{route}", ""))
    named: set[Path] = set()
    with contextlib.suppress(NoTable):
        for each in all_targets(target):
            with contextlib.suppress(NoTable):
                named |= {Path(path) for path in open_table(each, None).data_files()}
    return data_paths(top), named


def strays_of(target: Target) -> set[Path]:
    """Files of lost attempts that an export has noted, for a later one to delete."""
    top = Path(target.path.replace("{route}", "") or target.catalog["warehouse"][7:])
    notes = {each: json.loads(each.read_text()) for each in top.rglob("lakemq-*/**/*.strays")}
    return {each.with_suffix("") / name for each, names in notes.items() for name in names}


def writing(target: Target) -> set[Path]:
    """Files with something in them that no commit names."""
    there, named = files_of(target)
    return {path for path in there - named if path.exists() and path.stat().st_size > 5000}


def finish(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate(timeout=900)
    assert process.returncode == 0, said
    return said


def check(target: Target) -> None:
    names = [f"key-{n}" for n in range(ROUTES)] if target.is_routed else [""]
    if target.format == "iceberg":
        names = [name.replace("-", "_") for name in names]
    for number, name in enumerate(names):
        table = read_table(target.of_route(name))
        mine = range(number, RECORDS, len(names))
        assert places(table) == [(partition, n) for partition in range(2) for n in mine]
        values, offsets = table["value"].to_pylist(), table["offset"].to_pylist()
        assert [int(value) for value in values] == offsets
    there, named = files_of(target)
    assert there == named | strays_of(target)


def test_the_driver_is_killed_while_tasks_write(node: NodeProcess, target: Target) -> None:
    for _ in range(2):
        process = export(node, target)
        wait_for(lambda: writing(target), process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert writing(target)
    said = finish(export(node, target))
    assert "deleted orphaned files" in said
    check(target)


def python_workers(pid: int) -> list[psutil.Process]:
    """Those that live; others end while we look."""
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # also of a zombie
            if "pyspark.daemon" in " ".join(child.cmdline()):
                found.append(child)
    return found


def test_an_executors_python_is_killed_while_it_writes(node: NodeProcess, target: Target) -> None:
    process = export(node, target)
    wait_for(lambda: writing(target), process)
    workers = python_workers(process.pid)
    assert workers
    for worker in workers[-2:]:  # forked by the daemon, which comes first
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.kill()
    finish(process)
    check(target)


def test_the_broker_is_killed_while_tasks_read(node: NodeProcess, target: Target) -> None:
    process = export(node, target)
    wait_for(lambda: writing(target), process)
    node.kill()
    time.sleep(1)
    node.start()
    finish(process)
    check(target)
