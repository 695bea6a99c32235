"""Goal: the tables of docs/schema-drift.md are true, row by row, in every format of table."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lakemq.spark_plugin.errors import TableError
from lakemq.spark_plugin.export.decoding.column_types import META, REST
from lakemq.spark_plugin.export.job.run import make_exporter
from lakemq.spark_plugin.export.job.settings import ExportSettings
from tests.support.spark.lake_tables import FORMATS, named_files, read_table, target_in
from tests.unit.spark_plugin.decoding.test_export_evolution import run_here

PAGE = Path(__file__).parents[4] / "docs" / "schema-drift.md"
EVOLVE = ("strict", "add", "widen")
SCHEMA = (
    "gone string, old double, small int, short float, money decimal(5,2), whole int, mixed bigint, "
    "text string, price double, at timestamp, day date, in struct<x: int>"
)
CASES: dict[str, tuple[tuple[str, object], ...]] = {
    "a field less": (("gone", None),),
    "a field under a new name: the old column": (("old", ...),),
    "a field under a new name: the new one": (("new_name", 2.5),),
    "a new field, also within": (("fresh", 7), ("in.y", "deep"), ("list", [{"z": 1}])),
    "a new field that is null": (("e1", None), ("e2", {}), ("e3", [])),
    "a field that can't be a column": (
        ("a b", 1), ("a.b", "x"), ("", 3), ("GONE", 4), ("n" * 129, 5), ("_meta", 6),
    ),
    "a new field with a whole number": (("huge", 2**70),),
    "a longer whole number": (("small", 2**40), ("short", 1e300), ("money", 123456.5)),
    "`60.5` for a column": (("whole", 60.5),),
    "text for a number": (("mixed", "text"), ("text", 5), ("mixed", {"x": 1}), ("text", {"x": 1})),
    "a whole number for a double": (("price", 3),),
    "an invalid time": (("at", "yesterday"), ("day", "2026-13-45")),
    "not a JSON object": (
        ("", b"[1]"), ("", b"\xff"), ("", b"{"), ("", b"null"), ("", b'{"small":1,"small":2}'),
    ),
}  # fmt: skip
"""Begin of a row -> fields that one record each has; as bytes the whole value. `...`: absent."""


def page_rows(section: str) -> list[list[str]]:
    """Cells of the rows of the first table of a section."""
    text = PAGE.read_text().partition(f"## {section}\n")[2]
    table = re.search(r"^\|.*?\n\n", text, re.DOTALL | re.MULTILINE)
    assert table is not None
    lines = table[0].strip().splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def value_of(field: str, value: object) -> bytes | None:
    if isinstance(value, bytes):
        return None if value == b"null" else value
    if value is ...:
        return b"{}"
    outer, dot, inner = field.partition(".")
    return json.dumps({outer: {inner: value}} if outer == "in" and dot else {field: value}).encode()


def export(target, evolve: str, schema: str, export_id: str = "e", **more: str) -> None:
    given = ExportSettings(
        "memory", "t", target, export_id, format="json", value_schema=schema, evolve=evolve, **more
    )
    exporter = make_exporter(given, run_here)
    exporter.start()
    try:
        while exporter.step():
            pass
    finally:
        exporter.close()


@pytest.mark.parametrize("evolve", EVOLVE)
@pytest.mark.parametrize("form", FORMATS)
def test_records_that_differ(memory, tmp_path, form: str, evolve: str) -> None:
    target = target_in(tmp_path, form)
    memory.create_topic("t", 1)
    memory.append_values("t", 0, b'{"small":1}')
    export(target, evolve, SCHEMA)
    before = {field.name: field.type for field in read_table(target).schema}
    files = named_files(target)
    records = [(row, *each) for row, fields in CASES.items() for each in fields]
    memory.append_values("t", 0, *(value_of(field, value) for _, field, value in records))
    export(target, evolve, SCHEMA)

    table = read_table(target)
    rows = {row[META]["offset"]: row for row in table.to_pylist()}
    dead = set(read_table(target.dead_letters(""))["offset"].to_pylist())
    assert sorted([*rows, *dead]) == list(range(len(records) + 1)), "each record is in one place"
    rewritten = form == "delta" and evolve == "widen"
    assert named_files(target) & files == (set() if rewritten else files)
    after = {field.name: field.type for field in table.schema}
    told = page_rows("When records differ")
    assert len(told) == len(CASES)
    for row, *cells in told:
        (begin,) = (case for case in CASES if row.startswith(case))
        for offset, (case, field, value) in enumerate(records, 1):
            if case == begin:
                found = outcome(rows.get(offset), field, value, before, after)
                assert found == cells[EVOLVE.index(evolve)], (row, field, value)


def outcome(row, field: str, value, before, after) -> str:
    """What became of a field, in the words of the page."""
    if row is None:
        return "dead letter"
    if field in json.loads(row.get(REST) or "{}"):
        return "in `_rest`"
    if field == "in.y":
        return "a column" if (row["in"] or {}).get("y") == value else "ignored"
    if field not in after or field == META:
        return "ignored"
    if field not in before:
        double = type(value) is int and str(after[field]) == "double"
        assert row[field] == value
        return "a column, `double`" if double else "a column"
    if row[field] is None:
        return "null"
    assert float(row[field]) == value
    return "written" if before[field] == after[field] else "a wider column"


STARTS = {
    "a column more": ("n int", "n int, s string", b'{"n":2,"s":"x"}', {"n": 2, "s": "x"}),
    "a column less": ("n int, s string", "n int", b'{"n":2,"s":"x"}', {"n": 2, "s": "x"}),
    "a wider type": ("n int", "n bigint", b'{"n":1099511627776}', {"n": 2**40}),
    "a narrower type": ("n bigint", "n int", b'{"n":2}', {"n": 2}),
    "another type": ("n string", "n int", b'{"n":2}', {}),
}


@pytest.mark.parametrize("form", ["delta", "parquet"])
def test_columns_that_the_export_starts_with(memory, tmp_path, form: str) -> None:
    """Iceberg too: `test_a_schema_that_grew_between_runs`; what is refused is decided for all."""
    told = page_rows("When the export starts with other columns")
    assert [row[0].partition(":")[0] for row in told] == list(STARTS)
    for row, *cells in told:
        first, second, value, wanted = STARTS[row.partition(":")[0]]
        for evolve, cell in zip(EVOLVE, cells, strict=True):
            folder = tmp_path / f"{row[:12]}-{evolve}".replace(" ", "-")
            target = target_in(folder, form)
            if "t" in memory._ids:
                memory.delete_topic("t")
            memory.create_topic("t", 1)
            memory.append_values("t", 0, b"{}")
            export(target, "strict", first)
            memory.append_values("t", 0, value)
            if cell == "refused":
                with pytest.raises(TableError, match=f"table .*{form}: |table .*{form} was made"):
                    export(target, evolve, second)
                assert len(read_table(target)) == 1
                continue
            export(target, evolve, second)
            (found,) = (each for each in read_table(target).to_pylist() if each[META]["offset"])
            del found[META]
            assert found == wanted, (row, evolve)


def test_an_upsert_behind_a_live_one_brings_old_values_back(memory, tmp_path) -> None:
    """So the page says: fill a new table."""
    target = target_in(tmp_path, "delta")
    memory.create_topic("t", 1)
    memory.append_values("t", 0, b'{"k":1,"n":1}', b'{"k":1,"n":2}')
    export(target, "strict", "k int, n int", export_id="live", upsert_key="k", start="1")
    export(target, "strict", "k int, n int", export_id="history", upsert_key="k", as_of="1")
    assert read_table(target)["n"].to_pylist() == [1]
