"""Tables of every format for tests of the export, and readers that know nothing of the export."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pyarrow as pa
from pyarrow import dataset

from lakemq.spark_plugin.export.tables.open_table import open_table
from lakemq.spark_plugin.export.tables.target import Target

FORMATS = ("delta", "iceberg", "parquet")


def target_in(folder: Path, kind: str) -> Target:
    """A table in an empty folder."""
    if kind == "iceberg":
        catalog = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"file://{folder}/warehouse",
        }
        (folder / "warehouse").mkdir(parents=True, exist_ok=True)
        return Target("iceberg", table="lake.t", catalog=catalog)
    return Target(kind, path=str(folder / kind))  # type: ignore[arg-type]


def read_table(target: Target) -> pa.Table:
    """All rows, as the format's own library reads them; plain Parquet by its manifests."""
    if target.format == "delta":
        from deltalake import DeltaTable

        return DeltaTable(target.path).to_pyarrow_table()
    if target.format == "iceberg":
        from pyiceberg.catalog import load_catalog

        with load_catalog("default", **target.catalog) as catalog:
            return catalog.load_table(target.table).scan().to_arrow()
    files: dict[str, None] = {}
    schema = pa.schema([])
    for path in sorted((Path(target.path) / "_manifest").glob("*.json")):
        manifest = json.loads(path.read_text())
        files |= {each["path"]: None for each in manifest["files"]}
        for removed in manifest.get("removed", []):
            del files[removed]
        if "schema" in manifest:
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(manifest["schema"])))
    paths = [str(Path(target.path) / path) for path in files]
    return dataset.dataset(paths, schema=schema, format="parquet").to_table()


def places(table: pa.Table) -> list[tuple[int, int]]:
    """(partition, offset) of every row, sorted; decoded rows have them in `_meta`."""
    if "_meta" in table.schema.names:
        meta = table.column("_meta").combine_chunks()
        partition, offset = meta.field("partition"), meta.field("offset")
    else:
        partition, offset = table.column("partition"), table.column("offset")
    return sorted(zip(partition.to_pylist(), offset.to_pylist(), strict=True))


def data_paths(target: Target) -> set[Path]:
    """All Parquet data files that lie in the table's folder, committed or not."""
    root = Path(target.path) if target.path else Path(target.catalog["warehouse"][7:])
    return {path for path in root.rglob("lakemq-*/**/*.parquet")}


def named_files(target: Target) -> set[Path]:
    """Files that the table's current state names."""
    return {Path(path) for path in open_table(target, None).data_files()}


def routed_target_in(folder: Path, kind: str) -> Target:
    """Tables of routes in an empty folder."""
    one = target_in(folder, kind)
    if kind == "iceberg":
        return Target("iceberg", table="lake.t_{route}", catalog=one.catalog)
    return Target(one.format, path=f"{one.path}/{{route}}")
