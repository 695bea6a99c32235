"""Goal: kill -9 of the export at any step, and of the broker under it, loses and repeats no row."""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest

import lakemq
from tests.support.node.node import NodeProcess, ports_kept
from tests.support.spark.killed_export import POINTS, ends, start, together
from tests.support.spark.lake_tables import FORMATS, data_paths, named_files, read_table, target_in

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]
ALL = bool(os.environ.get("LAKEMQ_EXPORT_KILLS"))
"""Every step for every format, and more rounds."""


def value(partition: int, number: int) -> bytes:
    """Every ninth is no JSON, and each at which a commit, or a task of one, may begin."""
    bad = number % 9 == 4 or number % 100 == 0
    return b"poison %d" % number if bad else b'{"n":%d}' % number


def send(client: lakemq.SyncClient, topic: str, first: int, count: int) -> None:
    for partition in range(2):
        columns = lakemq.Columns([value(partition, n) for n in range(first, first + count)])
        client.send_batch(topic, columns, partition=partition)


def journal_rows(client: lakemq.SyncClient, topic: str) -> list[tuple[int, int, bytes | None]]:
    """(partition, offset, value) of every record in the journal."""
    return sorted(
        (partition, record.offset, record.value)
        for partition in range(2)
        for record in client.consume(topic, partition=partition)
    )


def table_rows(target, decoded: bool) -> list[tuple[int, int, bytes | None]]:
    """(partition, offset, value) of every row, dead letters included, as other libraries read."""
    tables = [read_table(target)] + ([read_table(target.dead_letters(""))] if decoded else [])
    found = []
    for row in (row for table in tables for row in table.to_pylist()):
        if "_meta" in row:
            meta = row["_meta"]
            found.append((meta["partition"], meta["offset"], b'{"n":%d}' % row["n"]))
        else:
            found.append((row["partition"], row["offset"], row["value"]))
    return sorted(found)


def settings(node: NodeProcess, target, **more) -> dict[str, object]:
    return {
        "bootstrap": node.native,
        "topic": "t",
        "target": dataclasses.asdict(target),
        "export_id": "e",
        "format": "json",
        "value_schema": "n bigint",
        "commit_rows": 400,
        "retry_timeout_s": 60.0,
        **more,
    }


@pytest.mark.parametrize("kind", FORMATS)
def test_killed_at_every_step_in_turn(kind: str, tmp_path: Path) -> None:
    points = POINTS if kind == "delta" or ALL else ("in_task", "after_commit")
    target = target_in(tmp_path / "lake", kind)
    with NodeProcess(tmp_path / "node") as node, lakemq.connect(node.native) as client:
        client.create_topic("t", partitions=2)
        sent = 0
        for point in points:
            send(client, "t", sent, 500)  # two commits and a bit, so that a later one can be hit
            sent += 500
            if point == "in_orphans":  # needs a folder to delete
                assert ends(start(settings(node, target), "in_task")) == -signal.SIGKILL
            assert ends(start(settings(node, target), point, 1)) == -signal.SIGKILL, point
            rows = table_rows(target, decoded=True) if point != "before_epoch" else []
            assert len(rows) == len(set(rows)), f"{point}: rows are there twice"
        assert ends(start(settings(node, target))) == 0
        assert table_rows(target, decoded=True) == journal_rows(client, "t")
    left = {path for path in data_paths(target) if "_dlq" not in str(path)}
    assert left == named_files(target), "a file that no commit names is left, or one is missing"


@pytest.mark.parametrize("kind", ("delta", "iceberg") if ALL else ("delta",))
def test_upsert_killed_at_every_step_in_turn(kind: str, tmp_path: Path) -> None:
    """The table is the last value of each key, with tombstones, whenever the export died."""
    few = ("after_rewrite",)
    more = ("after_commit", "in_task", "after_tasks", "after_dead_letters")
    points = (*few, *more, "before_commit") if ALL else few
    target = target_in(tmp_path / "lake", kind)
    with NodeProcess(tmp_path / "node") as node, lakemq.connect(node.native) as client:
        client.create_topic("t", partitions=2)
        wanted = settings(node, target, upsert_key="key", value_schema="k string, n bigint")
        last: dict[bytes, bytes | None] = {}
        for number, point in enumerate(points):
            for partition in range(2):
                records = changes(partition, number)
                last |= dict(records)
                columns = lakemq.Columns([v for _, v in records], [k for k, _ in records])
                client.send_batch("t", columns, partition=partition)
            assert ends(start(wanted, point, 2)) == -signal.SIGKILL, point
        assert ends(start(wanted)) == 0
        rows = [(row["_meta"]["key"], row["n"]) for row in read_table(target).to_pylist()]
    kept = {key: int(value.split(b":")[-1][:-1]) for key, value in last.items() if value}
    assert len(rows) == len(kept), "a key is there twice, or missing"
    assert dict(rows) == kept


def changes(partition: int, round_number: int) -> list[tuple[bytes, bytes | None]]:
    """500 records of 60 keys, of which some die."""
    chance = random.Random(10 * round_number + partition)
    found: list[tuple[bytes, bytes | None]] = []
    for number in range(500):
        key = f"{partition}-{chance.randrange(60)}"
        value = f'{{"k":"{key}","n":{1000 * round_number + number}}}'.encode()
        found.append((key.encode(), value if chance.random() < 0.8 else None))
    return found


def test_broker_and_export_killed_again_and_again(tmp_path: Path) -> None:
    """A producer writes on while broker and export die at random; the seed is printed."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    target = target_in(tmp_path / "lake", "delta")
    node = NodeProcess(tmp_path / "node", ports_kept("native")).start()
    with lakemq.connect(node.native) as client:
        client.create_topic("t", partitions=2)
        stop = threading.Event()
        producer = threading.Thread(target=_produce, args=(node.native, stop))
        producer.start()
        try:
            for _ in range(10 if ALL else 2):
                process = start(settings(node, target, commit_rows=200, take_over=True))
                time.sleep(chance.uniform(0.5, 1.5))
                node.kill()
                node.start()
                time.sleep(chance.uniform(0.0, 1.0))
                process.kill()
                ends(process)
        finally:
            stop.set()
            producer.join()
        assert ends(start(settings(node, target, commit_rows=None, take_over=True))) == 0
        rows = journal_rows(client, "t")
        assert len(rows) > 500
        assert table_rows(target, decoded=True) == rows
    node.stop()


@pytest.mark.parametrize("kind", FORMATS if ALL else ("delta",))
def test_processes_that_start_at_the_same_moment(kind: str, tmp_path: Path) -> None:
    """All of them look at the table before the first one commits; one goes on, and with it all rows
    land once."""
    target = target_in(tmp_path / "lake", kind)
    with NodeProcess(tmp_path / "node") as node, lakemq.connect(node.native) as client:
        client.create_topic("t", partitions=2)
        wanted = settings(node, target, take_over=True)
        assert ends(start(wanted)) == 0
        for number in range(8 if ALL else 1):
            send(client, "t", 500 * number, 500)
            processes = [start(wanted, "together") for _ in range(3)]
            together(processes)
            codes = [ends(each) for each in processes]
            assert 0 in codes, "every process gave up"
            assert table_rows(target, decoded=True) == journal_rows(client, "t")
        assert ends(start(settings(node, target))) == 0
        assert table_rows(target, decoded=True) == journal_rows(client, "t")


def _produce(native: str, stop: threading.Event) -> None:
    """Write until told to stop; a broker that is away is waited for (the client tries again)."""
    with lakemq.connect(native, timeout_s=60) as client:
        sent = 0
        while not stop.is_set():
            send(client, "t", sent, 50)
            sent += 50
            time.sleep(0.02)
