"""Goal: whatever dies or runs twice while a stream writes to a topic, each row is there once.

Starts several JVMs, so it runs only with LAKEMQ_EXPORT_KILLS=1.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import lakemq
from tests.support.node.node import NodeProcess
from tests.support.spark import killed_sink

pytestmark = [
    pytest.mark.fault,
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not os.environ.get("LAKEMQ_EXPORT_KILLS"), reason="set LAKEMQ_EXPORT_KILLS=1"
    ),
]
KILLING = ("in_task", "before_commit", "after_commit")
COUNT = 200


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("sink-kill")) as node:
        yield node


def ends(*arguments: str) -> tuple[int, str]:
    """(exit code, what it said) of the query's process, which ends before this does."""
    process = killed_sink.start(*arguments)
    try:
        told, _ = process.communicate(timeout=400)
    finally:
        process.kill()
        process.wait()
    return process.returncode, told


@pytest.mark.parametrize("point", killed_sink.POINTS[1:])
def test_each_row_is_there_once(node: NodeProcess, tmp_path: Path, point: str) -> None:
    source, topic = f"{point}-in", f"{point}-out"
    with lakemq.connect(node.native, timeout_s=10) as client:
        client.create_topic(source, partitions=2)
        client.create_topic(topic, partitions=3)
        for partition in range(2):
            values = [b"%d" % (2 * n + partition) for n in range(COUNT // 2)]
            client.send_batch(source, lakemq.Columns(values, values), partition=partition)
        given = (node.native, source, topic, str(tmp_path / "checkpoint"))
        code, told = ends(*given, point, "1")
        if point in KILLING:
            assert code != 0, told
            reached = sorted(int(record.value or b"-1") for record in client.consume(topic))
            assert len(reached) == len(set(reached)) == (120 if point == "after_commit" else 60)
            code, told = ends(*given, "none", "-1")
            assert code == 0, told
        else:
            assert code == 0, told
            if point == "retry":
                assert "this attempt staged everything" in told, "and the retry was one"
        values = sorted(int(record.value or b"-1") for record in client.consume(topic))
        assert values == list(range(COUNT))
