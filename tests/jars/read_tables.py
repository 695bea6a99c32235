"""Reads tables with the runtimes of Delta Lake and Iceberg, in a Spark that has their jars.

    python read_tables.py JARS-FOLDER DELTA-PATH ICEBERG-CATALOG-URI WAREHOUSE ICEBERG-TABLE

Runs in an installation of its own, with nothing of LakeMQ. Prints one JSON object.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession


def found(frame: DataFrame) -> dict[str, Any]:
    chosen = frame.selectExpr(
        "_meta.partition AS partition",
        "_meta.offset AS offset",
        "n",
        "room",
        "place.x AS x",
        "CAST(price AS string) AS price",
    )
    return {
        "types": dict(frame.dtypes),
        "rows": [row.asDict() for row in chosen.orderBy("partition", "offset").collect()],
        "skipped": frame.where("_meta.offset >= 8 AND room = 'r1'").count(),
    }


def main(jars: str, delta: str, uri: str, warehouse: str, table: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(map(str, sorted(Path(jars).glob("*.jar")))))
        .config(
            "spark.sql.extensions",
            "io.delta.sql.DeltaSparkSessionExtension,"
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        )
        .config(
            "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
        .config("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
        .config("spark.sql.catalog.lake.type", "jdbc")
        .config("spark.sql.catalog.lake.uri", f"jdbc:{uri}")
        .config("spark.sql.catalog.lake.jdbc.schema-version", "V1")
        .config("spark.sql.catalog.lake.warehouse", warehouse)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    answer = {
        "spark": spark.version,
        "delta": found(spark.read.format("delta").load(delta)),
        "iceberg": found(spark.table(f"lake.{table}")),
        "history": [
            row.operation for row in spark.sql(f"DESCRIBE HISTORY delta.`{delta}`").collect()
        ],
        "snapshots": spark.table(f"lake.{table}.snapshots").count(),
    }
    print("ANSWER " + json.dumps(answer))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
