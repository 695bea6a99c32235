"""Goal: an export of a replicated topic has each record once, though leaders are killed and the
export dies at its worst moments.

Method: three real nodes, a producer that goes on, and exports in processes of their own; no JVM, as
what is tested are the steps between partitions and table. `LAKEMQ_FAULT_ROUNDS` is how many leaders
are killed.
"""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakemq.testing import Cluster
from tests.support.cluster.load import Load
from tests.support.cluster.topics import leader, made, until_in_sync
from tests.support.spark.killed_export import ends, start
from tests.support.spark.lake_tables import read_table, target_in

pytestmark = [pytest.mark.fault, pytest.mark.timeout(900)]
ROUNDS = int(os.environ.get("LAKEMQ_FAULT_ROUNDS", "1"))
POINTS = ("in_task", "after_commit", "after_tasks", "before_commit")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    config = "[cluster]\nreplica_lag_max_ms = 1500\n"
    with Cluster(tmp_path / "cluster", config=config, links=False) as cluster:
        yield cluster


def test_leaders_are_killed_while_a_topic_is_exported(cluster: Cluster, tmp_path: Path) -> None:
    topic = made(cluster, "exported", 2)
    target = target_in(tmp_path / "lake", "delta")
    settings = {
        "bootstrap": ",".join(cluster.bootstrap),
        "topic": topic,
        "target": dataclasses.asdict(target),
        "export_id": "e",
        "commit_rows": 100,
        "retry_timeout_s": 60.0,
        "take_over": True,
    }
    load = Load(cluster, topic)
    load.start()
    for number in range(ROUNDS):
        load.until_acked(600)
        process = start(settings, POINTS[number % len(POINTS)], 2)
        name = leader(cluster, topic)
        cluster.kill(name)
        assert ends(process) == -signal.SIGKILL
        load.until_acked(100)
        cluster.start_node(name)
        until_in_sync(cluster, topic)
    load.stop()
    assert ends(start({**settings, "commit_rows": None})) == 0
    cluster.assert_no_loss()
    stored = {place.partition: records for place, records in cluster.stored(topic).items()}
    expected = [(number, seen.offset) for number in sorted(stored) for seen in stored[number]]
    rows = read_table(target).to_pylist()
    assert sorted((row["partition"], row["offset"]) for row in rows) == expected
    values = {(number, each.offset): each.value for number in stored for each in stored[number]}
    assert all(row["value"] == values[row["partition"], row["offset"]] for row in rows)
    print(f"{len(rows)} rows, each once; {ROUNDS} leaders killed")
