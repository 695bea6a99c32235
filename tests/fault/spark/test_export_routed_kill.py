"""Goal: kill -9 between the commits of two tables of a routed export: each record in one, once."""

from __future__ import annotations

import dataclasses
import os
import signal
from pathlib import Path

import pytest

import lakemq
from tests.support.node.node import NodeProcess
from tests.support.spark.killed_export import ends, start
from tests.support.spark.lake_tables import FORMATS, places, read_table, routed_target_in

ALL = bool(os.environ.get("LAKEMQ_EXPORT_KILLS"))
"""Every format, and every commit of a run."""
pytestmark = [pytest.mark.fault, pytest.mark.timeout(3000 if ALL else 300)]
NAMES = ("a", "b", "c")
KILLS = [("after_commit", 3), ("after_commit", 4), ("in_task", 2), ("before_commit", 5)]
ALL_KILLS = [
    *((point, n) for n in range(1, 10) for point in ("before_commit", "after_commit")),
    *(("in_task", n) for n in range(1, 7)),
    ("in_orphans", 1),
    ("after_tasks", 1),
    ("after_epoch", 1),
    ("after_epoch", 2),
    ("after_epoch", 3),
    ("after_dead_letters", 2),
]


def value(number: int) -> bytes:
    """Every 500 records there is a field that no table has."""
    to = (*NAMES, "../nowhere")[number % 4].encode()
    return b'{"n%d":%d,"to":"%s"}' % (number // 500, number, to)


def send(client: lakemq.SyncClient, first: int) -> None:
    for partition in range(2):
        columns = lakemq.Columns([value(n) for n in range(first, first + 200)])
        client.send_batch("t", columns, partition=partition)


@pytest.mark.parametrize("kind", FORMATS if ALL else ("delta",))
def test_killed_between_tables(kind: str, tmp_path: Path) -> None:
    target = routed_target_in(tmp_path / "lake", kind)
    with NodeProcess(tmp_path / "node") as node, lakemq.connect(node.native) as client:
        settings = {
            "bootstrap": node.native,
            "topic": "t",
            "target": dataclasses.asdict(target),
            "export_id": "e",
            "format": "json",
            "value_schema": "to string",
            "evolve": "add",
            "route_by": "to",
            "commit_rows": 200,
        }
        client.create_topic("t", partitions=2)
        sent = 0
        for point, step in ALL_KILLS if ALL else KILLS:
            send(client, sent)
            sent += 200
            if point == "in_orphans":  # needs a folder to delete
                assert ends(start(settings, "in_task")) == -signal.SIGKILL
            assert ends(start(settings, point, step)) == -signal.SIGKILL, (point, step)
        assert ends(start({**settings, "commit_rows": None})) == 0
    found = {}
    for name in NAMES:
        found[name] = places(read_table(target.of_route(name)))
        rows = read_table(target.of_route(name)).to_pylist()
        assert all(row[f"n{row['_meta']['offset'] // 500}"] is not None for row in rows)
    dead = read_table(target.dead_letters(""))
    assert {**found, "dead": places(dead)} == {
        name: [(p, n) for p in range(2) for n in range(place, sent, 4)]
        for place, name in enumerate((*NAMES, "dead"))
    }
