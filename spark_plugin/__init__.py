"""Spark meets LakeMQ: a PySpark source and the export to Delta Lake, Iceberg and Parquet.

Importing this package imports no pyspark; `register` and the source do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make `format("lakemq")` known to a session. Not needed where the package is installed: Spark
    then finds it by itself, through `pyspark_lakemq`. Needed after `spark-submit --py-files`."""
    from lakemq.spark_plugin.source.source import LakeMQSource

    spark.dataSource.register(LakeMQSource)
