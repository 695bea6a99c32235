"""Goal: `lakemq export` lands a real node's topics through real Spark tasks, each record once."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from typer.testing import CliRunner

import lakemq
from lakemq.plugins.native.sdk.arrow import arrow_schema
from lakemq.spark_plugin import session
from lakemq.spark_plugin.access import Access
from lakemq.spark_plugin.cli import commands
from lakemq.spark_plugin.errors import DataLossError
from lakemq.spark_plugin.export.job import spark_tasks
from lakemq.spark_plugin.export.job.run import open_exporter
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.export.job.write_task import WriteTask, schema_to_text
from lakemq.spark_plugin.export.tables.target import Target
from lakemq.spark_plugin.source.planning import OffsetRange
from tests.support.spark.lake_tables import FORMATS, data_paths, places, read_table, target_in
from tests.support.spark.session import PYSPARK_WARNINGS, spark_fixture  # noqa: F401 - a fixture

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    *(pytest.mark.filterwarnings(each) for each in PYSPARK_WARNINGS),
]


def send(client, topic, count, first=0):
    for partition in range(2):
        values = [b'{"n":%d,"room":"r%d"}' % (n, partition) for n in range(first, first + count)]
        client.send_batch(topic, lakemq.Columns(values), partition=partition)


def run(spark, settings):
    exporter = open_exporter(spark, settings)
    try:
        exporter.start()
        return sum(report.rows for report in iter(exporter.step, None))
    finally:
        exporter.close()


@pytest.mark.parametrize("kind", FORMATS)
def test_a_topic_lands_once_in_every_format(spark, node, client, kind, tmp_path: Path):
    topic = f"land-{kind}"
    client.create_topic(topic, partitions=2)
    send(client, topic, 500)
    settings = ExportSettings(node.native, topic, target_in(tmp_path, kind), "e", commit_rows=700)
    assert run(spark, settings) == 1000
    send(client, topic, 250, first=500)
    assert run(spark, settings) == 500
    assert run(spark, settings) == 0

    expected = sorted((p, n) for p in range(2) for n in range(750))
    assert places(read_table(settings.target)) == expected
    # DuckDB reads the same files, and knows nothing of us.
    files = [str(path) for path in data_paths(settings.target)]
    rows = duckdb.sql(
        f'SELECT "partition", "offset", decode("value") FROM read_parquet({files}) ORDER BY ALL'
    ).fetchall()
    assert rows == [(p, n, f'{{"n":{n},"room":"r{p}"}}') for p, n in expected]


def test_without_rdds_tasks_run_as_arrow(spark, node, client, tmp_path: Path, monkeypatch):
    """As over Spark Connect; a task's error comes as it was there, too."""
    monkeypatch.setattr(spark_tasks, "context_of", lambda _: None)
    client.create_topic("arrow", partitions=2)
    send(client, "arrow", 50)
    settings = ExportSettings(node.native, "arrow", target_in(tmp_path, "delta"), "e")
    assert run(spark, settings) == 100
    assert places(read_table(settings.target)) == [(p, n) for p in range(2) for n in range(50)]
    schema = schema_to_text(arrow_schema())
    gone = WriteTask(node.native, OffsetRange("arrow", 32 * "0", 0, 0, 50), "", "", schema)
    with pytest.raises(DataLossError, match="arrow-0: offsets 0 to 49 cannot be read"):
        spark_tasks.run_tasks(spark, Access(), [gone])


def test_what_a_task_finds_wrong_is_raised_as_it_was(spark, node, client, tmp_path, monkeypatch):
    client.create_topic("lost", partitions=2)
    send(client, "lost", 10)
    settings = ExportSettings(node.native, "lost", target_in(tmp_path, "delta"), "e")
    exporter = open_exporter(spark, settings)
    exporter.start()
    planned = exporter._plan

    def then_deleted(*arguments):
        ranges = planned(*arguments)
        client.delete_topic("lost")
        return ranges

    monkeypatch.setattr(exporter, "_plan", then_deleted)
    with pytest.raises(DataLossError, match="lost-[01]: offsets 0 to 9 cannot be read"):
        exporter.step()
    exporter.close()


def command(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "lakemq", "export", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", **environment},
    )


def until_stopped(*arguments):
    """An export that runs on, until all of its processes get SIGTERM after its second commit, as
    service managers send it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "lakemq", "export", *arguments, "--trigger", "1s"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        start_new_session=True,
    )
    try:
        lines = []
        while not lines or "commit 2: " not in lines[-1]:
            lines.append(process.stdout.readline())
            assert lines[-1], f"ended early: {lines}"
        os.killpg(process.pid, signal.SIGTERM)
        more, errors = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    return process.returncode, "".join(lines) + more, errors


def test_the_command_decodes_json_and_keeps_bad_rows(node, client, tmp_path: Path):
    client.create_topic("air", partitions=2)
    send(client, "air", 100)
    client.send("air", b"poison", key=b"dev", partition=1)
    client.send("air", b'{"n": "many", "room": "r"}', partition=1)
    table = tmp_path / "air"
    arguments = [
        "--bootstrap", node.native, "--topic", "air", "--to", "delta", "--path", str(table),
        "--format", "json", "--schema", "n bigint, room string", "--commit-rows", "150",
        "--master", "local[2]",
    ]  # fmt: skip
    code, said, errors = until_stopped(*arguments)
    assert (code, errors) == (0, ""), said
    assert said.startswith("starting Spark\n")
    assert "2 dead letters" in said

    rows = read_table(Target("delta", str(table)))
    assert places(rows) == sorted((p, n) for p in range(2) for n in range(100))
    assert sorted(zip(rows["room"].to_pylist(), rows["n"].to_pylist(), strict=True)) == sorted(
        (f"r{p}", n) for p in range(2) for n in range(100)
    )
    dead = read_table(Target("delta", f"{table}_dlq")).sort_by("offset").to_pylist()
    assert [(d["partition"], d["offset"], d["value"]) for d in dead] == [
        (1, 100, b"poison"),
        (1, 101, b'{"n": "many", "room": "r"}'),
    ]
    assert [d["error_class"] for d in dead] == ["not_json", "wrong_type"]
    assert dead[1]["error"] == 'n is bigint; "many" is not'
    assert dead[0]["key"] == b"dev"


class Shared:
    """The session of all tests, which a command does not stop."""

    def __init__(self, spark):
        self._spark = spark

    def __getattr__(self, name):
        return getattr(self._spark, name)

    def stop(self):
        pass


def test_the_command_takes_many_topics_a_query_and_bounds(
    spark, node, client, tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(session, "open_session", lambda *_: Shared(spark))
    monkeypatch.setattr(commands, "_stop_on_signals", lambda _: None)
    for name in ("hall.a", "hall.b"):
        client.create_topic(name, partitions=2)
        send(client, name, 50)
    arguments = [
        "--bootstrap", node.native, "--topics-pattern", r"hall\..*", "--to", "delta",
        "--path", str(tmp_path / "{topic}"), "--format", "json",
        "--schema", "n bigint, room string",
        "--sql", "SELECT n, room, _meta FROM records WHERE n % 2 = 0", "--as-of-offset", "40",
        "--metrics", "127.0.0.1:0",
    ]  # fmt: skip
    answer = CliRunner().invoke(commands.export_app, arguments)
    assert answer.exit_code == 0, answer.output
    assert answer.stderr == ""
    assert "status and metrics at port" in answer.stdout
    for name in ("hall.a", "hall.b"):
        assert f"{name}: caught up: 80 records read, 40 result rows" in answer.stdout
        rows = read_table(Target("delta", str(tmp_path / name)))
        assert places(rows) == [(p, n) for p in range(2) for n in range(0, 40, 2)]


def test_what_the_broker_refuses_is_said_before_spark_starts(node, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(session, "open_spark", lambda *_, **__: pytest.fail("Spark was started"))
    monkeypatch.setattr(commands, "_stop_on_signals", lambda _: None)
    arguments = ["--bootstrap", node.native, "--to", "delta", "--path", str(tmp_path / "d")]
    answer = CliRunner().invoke(commands.export_app, [*arguments, "--topic", "nowhere"])
    assert answer.exit_code != 0 and answer.stderr.count("\n") == 1, answer.output
    assert answer.stderr.startswith(f"lakemq: unknown topic nowhere at {node.native}")


def test_a_topic_without_records_needs_no_spark(node, client, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(session, "open_spark", lambda *_, **__: pytest.fail("Spark was started"))
    monkeypatch.setattr(commands, "_stop_on_signals", lambda _: None)
    client.create_topic("empty")
    arguments = ["--bootstrap", node.native, "--to", "delta", "--path", str(tmp_path / "d")]
    answer = CliRunner().invoke(commands.export_app, [*arguments, "--topic", "empty"])
    assert answer.exit_code == 0, answer.output
    assert "empty: caught up: 0 records" in answer.stdout


def test_without_java_the_command_says_what_to_do(node, tmp_path: Path):
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    answer = command(
        "--topic", "air", "--to", "delta", "--path", str(tmp_path), "--bootstrap", node.native,
        PATH=str(bin_folder), JAVA_HOME="",
    )  # fmt: skip
    assert answer.returncode == 1
    assert answer.stderr.startswith("lakemq: Spark needs Java 17 or newer and there is none")
    assert shutil.which("java"), "and the test was not about a machine without Java"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--to", "delta", "--path", "x"], "--topic is missing"),
        (["--topic", "t"], "--to is missing"),
        (["--topic", "t", "--to", "delt"], "takes delta, iceberg, parquet; did you mean delta?"),
        (["--topic", "t", "--to", "delta"], "--to delta needs --path"),
        (["--topic", "t", "--to", "iceberg", "--table", "t"], "needs --table namespace.table"),
        (["--topic", "t", "--to", "delta", "--path", "x", "--trigger", "5"], "--trigger is '5'"),
        (["--topic", "t", "--to", "delta", "--path", "x", "--format", "json"], "needs --schema"),
        (["--topic", "t", "--to", "delta", "--path", "x", "--warehouse", "y"], "for --to iceberg"),
        (["--topic", "t", "--mode", "upset"], "takes append, upsert; did you mean upsert?"),
        (["--topic", "t", "--mode", "upsert"], "--mode upsert needs --key"),
        (["--topic", "t", "--key", "n"], "--key is for --mode upsert"),
    ],
)
def test_wrong_arguments_are_one_sentence(arguments, problem):
    answer = CliRunner().invoke(commands.export_app, arguments)
    assert answer.exit_code == 2
    assert answer.stderr.startswith("lakemq: ") and answer.stderr.count("\n") == 1
    assert problem in answer.stderr
