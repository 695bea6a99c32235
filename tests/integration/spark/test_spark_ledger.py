"""Goal: the ledger's topic exported by Spark to Delta says what `lakemq ledger` says, and the query
of docs/ledger.md finds in it which devices lack something."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
import typer
from typer.testing import CliRunner

import lakemq
from lakemq.plugins.ledger.cli import ledger
from lakemq.spark_plugin.access import Access
from lakemq.spark_plugin.export.job.run import open_exporter
from lakemq.spark_plugin.export.job.settings import ExportSettings
from tests.support.node.node import PORTS_FREE, NodeProcess
from tests.support.node.users import USERS_ONLY, add_user, login
from tests.support.spark.lake_tables import read_table, target_in
from tests.support.spark.session import PYSPARK_WARNINGS, spark_fixture  # noqa: F401 - a fixture

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    *(pytest.mark.filterwarnings(each) for each in PYSPARK_WARNINGS),
]
SETTINGS = "[plugins.ledger]\nlook_ms = 20\ncheckpoint_ms = 100\n"
PAGE = (Path(__file__).parents[3] / "docs/ledger.md").read_text()
SCHEMA = re.findall(r"--topic __ledger .* --schema '([^']+)'", PAGE)[0]
QUERY = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)[0]
COLUMNS = [each.split()[0] for each in SCHEMA.split(", ")]
WAIT_S = 60
FIRST = {"good": [1, 2, 3], "skips": [1, 2, 7], "repeats": [1, 1, 2]}
THEN = {"good": [4, 5], "skips": [9, 4], "repeats": [2, 3], "new": [5, 7]}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    folder = tmp_path / "node"
    folder.mkdir()
    add_user(folder, "root")
    with NodeProcess(folder, PORTS_FREE + SETTINGS + USERS_ONLY.format(folder=folder)) as started:
        yield started


def told(node: NodeProcess) -> list[dict[str, Any]]:
    """By `lakemq ledger`, the columns of the table alone."""
    app = typer.Typer()
    app.command()(ledger)
    where = ["--admin", node.addresses["admin"], "--username", "root", "--json"]
    env = {"LAKEMQ_PASSWORD": login("root")["password"]}
    run = CliRunner().invoke(app, ["air", *where], env=env)
    assert run.exit_code == 0, run.output
    rows = [{"kind": "device", **row} for row in json.loads(run.stdout)]
    return sorted(({name: row[name] for name in COLUMNS} for row in rows), key=place)


def place(row: dict[str, Any]) -> tuple[int, str]:
    return row["partition"], row["device"]


def exported(spark: Any, settings: ExportSettings) -> list[dict[str, Any]]:
    """The newest row of each device in the table, which is brought up to date."""
    exporter = open_exporter(spark, settings)
    try:
        exporter.start()
        while exporter.step():
            pass
    finally:
        exporter.close()
    newest: dict[tuple[int, str], dict[str, Any]] = {}
    rows = read_table(settings.target).to_pylist()
    for row in sorted(rows, key=lambda row: row["_meta"]["offset"]):
        if row["kind"] == "device":
            newest[place(row)] = {name: row[name] for name in COLUMNS}
    return sorted(newest.values(), key=place)


def test_the_table_says_what_the_command_says(spark: Any, node: NodeProcess, tmp_path: Path):
    target = target_in(tmp_path, "delta")
    settings = ExportSettings(
        node.native, "__ledger", target, "ledger", format="json", value_schema=SCHEMA,
        access=Access(**login("root")),
    )  # fmt: skip
    with lakemq.connect(node.native, timeout_s=20, **login("root")) as client:
        client.create_topic("air", partitions=2)
        client.admin.alter_topic("air", config={"ledger": "sequence=$.n"})
        records = 0
        for part in (FIRST, THEN):
            for device, numbers in part.items():
                for number in numbers:
                    client.send("air", b'{"n":%d}' % number, key=device.encode())
                    records += 1
            ends_s = time.monotonic() + WAIT_S
            while True:
                found, expected = exported(spark, settings), told(node)
                if found == expected and sum(row["records"] for row in found) == records:
                    break
                assert time.monotonic() < ends_s, f"{found} is not {expected}"
    counts = {row["device"]: (row["missing"], row["late"], row["duplicates"]) for row in found}
    assert counts == {"good": (0, 0, 0), "skips": (4, 1, 0), "repeats": (0, 0, 2), "new": (1, 0, 0)}

    lake = read_table(target)  # as DuckDB reads it
    assert len(lake) > len(found), "there is a row for each checkpoint"
    query = re.sub(r"delta\.`[^`]*`", "lake", QUERY)
    assert "max_by" in query and duckdb.sql(query).fetchall() == [
        ("air", "skips", 4, 0), ("air", "new", 1, 0)
    ]  # fmt: skip
