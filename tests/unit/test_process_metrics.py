"""Goal: figures of the process and of its disk are those of the system, and follow it."""

from __future__ import annotations

import mmap
import resource
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint

from lakemq.telemetry.process import register_process_metrics


@pytest.fixture
def tell(tmp_path: Path) -> Callable[[str], float]:
    """The sum of a metric now."""
    reader = InMemoryMetricReader()
    register_process_metrics(MeterProvider([reader]).get_meter("process"), tmp_path)

    def told(name: str) -> float:
        data = reader.get_metrics_data()
        assert data is not None
        return sum(
            point.value
            for of_resource in data.resource_metrics
            for scope in of_resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
            if isinstance(point, NumberDataPoint)
        )

    return told


def test_a_thread_is_counted_while_it_runs(tell: Callable[[str], float]) -> None:
    ended, before = threading.Event(), tell("process.thread.count")
    thread = threading.Thread(target=ended.wait, daemon=True)
    thread.start()
    assert tell("process.thread.count") == before + 1
    ended.set()
    thread.join()
    assert tell("process.thread.count") == before


def test_memory_that_is_mapped_is_virtual(tell: Callable[[str], float]) -> None:
    before, size = tell("process.memory.virtual"), 64 * 1024 * 1024
    with mmap.mmap(-1, size):
        assert tell("process.memory.virtual") >= before + size
    assert tell("process.memory.virtual") < before + size


def test_the_limit_of_open_files_is_the_soft_one(tell: Callable[[str], float]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    name = "lakemq.process.file_descriptor.limit"
    assert tell(name) == soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        assert tell(name) == soft - 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_disk_is_the_one_that_holds_the_data(
    tell: Callable[[str], float], tmp_path: Path
) -> None:
    assert tell("system.filesystem.limit") == shutil.disk_usage(tmp_path).total
