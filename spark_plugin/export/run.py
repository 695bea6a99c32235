"""Puts an exporter together: table, Spark, tasks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from spark_plugin.export.exporter import Exporter
from spark_plugin.export.fused_source import run_tasks
from spark_plugin.export.open_table import open_table
from spark_plugin.export.settings import ExportSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def open_exporter(spark: SparkSession, settings: ExportSettings) -> Exporter:
    """An exporter whose tasks run in Spark's executors."""
    from plugins.native.sdk.arrow import arrow_schema

    table = open_table(settings.target, arrow_schema())
    return Exporter(
        settings, table, partial(run_tasks, spark),
        parallelism=spark.sparkContext.defaultParallelism,
    )  # fmt: skip
