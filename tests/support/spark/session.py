"""One small Spark session for all tests that need one. Import `spark_fixture` as `spark`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYSPARK_WARNINGS = (
    # pyspark's gateway leaves its sockets to the garbage collector.
    "ignore:unclosed.*socket:ResourceWarning",
    "ignore:.*socket.socket.*:pytest.PytestUnraisableExceptionWarning",
)


@pytest.fixture(scope="session", name="spark")
def spark_fixture() -> Iterator[SparkSession]:
    """local[2]; the same session in every module that imports this. It ends with the process."""
    from lakemq.spark_plugin.session import open_session

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = open_session("tests", "local[2]")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    yield spark
