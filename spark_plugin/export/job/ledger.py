"""The ledger of a routed export: a small table whose commits say how far *all* routes are.

Its rows name the routes that have tables, and by which rule records were routed since when. A
route is in the ledger before it has a table, so a later run knows every table that an earlier one
may have written to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lakemq.spark_plugin.export.tables.file_writer import FileWriter
from lakemq.spark_plugin.export.tables.files import Folder, attempt_folder
from lakemq.spark_plugin.export.tables.table import ExportKey, LakeTable, WrittenFile

if TYPE_CHECKING:
    import pyarrow as pa

ROUTE: Final = "route"
RULE: Final = "rule"


@dataclass(frozen=True)
class LedgerState:
    """What one export's rows of a ledger say."""

    routes: tuple[str, ...] = ()
    """In the order in which they came."""
    rule: str = ""
    """The newest one; empty: there is none yet."""


def ledger_schema() -> pa.Schema:
    """Columns of the ledger."""
    import pyarrow as pa

    return pa.schema(
        [
            ("export", pa.string()),
            ("topic", pa.string()),
            ("attempt", pa.int64()),
            ("kind", pa.string()),
            ("value", pa.string()),
        ]
    )


def read_state(ledger: LakeTable, export_id: str = "", topic: str = "") -> LedgerState:
    """The state of one export of one topic, or of all that share the tables."""
    from pyarrow import dataset

    paths = ledger.data_files()
    if not paths:
        return LedgerState()
    files = dataset.dataset(
        paths,
        ledger_schema(),
        "parquet",
        filesystem=Folder(ledger.location, ledger.storage).filesystem,
    )
    # Files come in no order; the attempt number orders what they say.
    rows = sorted(files.to_table().to_pylist(), key=lambda row: row["attempt"])
    if export_id:
        rows = [row for row in rows if (row["export"], row["topic"]) == (export_id, topic)]
    rules = [row["value"] for row in rows if row["kind"] == RULE]
    routes = dict.fromkeys(row["value"] for row in rows if row["kind"] == ROUTE)
    return LedgerState(tuple(routes), rules[-1] if rules else "")


def write_rows(
    ledger: LakeTable, key: ExportKey, epoch: int, attempt: int, kind: str, values: Sequence[str]
) -> list[WrittenFile]:
    """A file with new rows, which only counts once it is committed as the attempt."""
    import pyarrow as pa

    folder = Folder(ledger.location, ledger.storage)
    attempt_path = attempt_folder(key, epoch, attempt)
    folder.create(attempt_path)
    writer = FileWriter(folder, attempt_path, "routes", ledger.arrow_schema(), 1 << 20)
    rows = [
        {
            "export": key.export_id,
            "topic": key.topic,
            "attempt": attempt,
            "kind": kind,
            "value": value,
        }
        for value in values
    ]
    writer.write(pa.Table.from_pylist(rows, ledger_schema()))
    files = writer.close()
    folder.sync(attempt_path)
    return files
