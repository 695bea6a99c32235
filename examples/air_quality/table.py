"""The questions asked of the Delta table, in Spark SQL. Values are decimals, as in the CSV."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from deltalake import DeltaTable

from examples.air_quality.readings import Figures, Reading
from lakemq.spark_plugin.session import open_session

# What a record holds: the MQTT topic name as key, the device's JSON as value. FAILFAST: a payload
# that is no reading is an error, not a missing value.
READINGS: Final = """
SELECT substring_index(CAST(key AS STRING), '/', -1) AS sensor, reading.time, reading.value
FROM (SELECT key, from_json(CAST(value AS STRING), 'time STRING, value DECIMAL(9, 4)',
                            map('mode', 'FAILFAST')) AS reading
      FROM air)
"""
FIGURES: Final = """
SELECT sensor, count(*) AS readings, count_if(value = -200) AS missing,
       min(nullif(value, -200)) AS minimum, max(nullif(value, -200)) AS maximum,
       sum(nullif(value, -200)) AS total
FROM readings GROUP BY sensor
"""
WEEK: Final = """
SELECT sensor, time, nullif(value, -200) AS value
FROM readings
WHERE time >= '{start}' AND time < '{end}' AND sensor IN ({sensors})
ORDER BY time
"""


Series = list[tuple[datetime, Decimal | None]]
"""Times and values; None where a reading is missing."""


class AirTable:
    """A Delta table that `lakemq export` wrote, opened with a local Spark.

    Spark reads the Parquet files of the table's current snapshot; which files those are is what
    the Delta log says, read by delta-rs. So no Spark package has to be downloaded.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._spark: Any = None

    def __enter__(self) -> Self:
        table = DeltaTable(self._path)
        self.version = table.version()
        self.files = table.file_uris()
        self._spark = open_session("air quality", "local[2]")
        self._spark.conf.set("spark.sql.shuffle.partitions", "2")
        self._spark.read.parquet(*self.files).createOrReplaceTempView("air")
        self._spark.sql(READINGS).createOrReplaceTempView("readings")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._spark.stop()

    def figures(self) -> dict[str, Figures]:
        """The figures of every sensor."""
        return {
            row.sensor: Figures(row.readings, row.missing, row.minimum, row.maximum, row.total)
            for row in self._spark.sql(FIGURES).collect()
        }

    def readings(self) -> list[Reading]:
        """All readings, in no order."""
        rows = self._spark.sql("SELECT sensor, time, value FROM readings").toArrow().to_pydict()
        return [*map(Reading, rows["sensor"], rows["time"], rows["value"])]

    def series(self, sensors: Sequence[str], start: str, end: str) -> dict[str, Series]:
        """Sensor -> (time, value or None) of the days from `start` to before `end` (ISO dates)."""
        names = ", ".join(f"'{sensor}'" for sensor in sensors)
        found: dict[str, Series] = {sensor: [] for sensor in sensors}
        query = WEEK.format(start=start, end=end, sensors=names)
        for row in self._spark.sql(query).collect():
            found[row.sensor].append((datetime.fromisoformat(row.time), row.value))
        return found
