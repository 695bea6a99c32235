"""Readings above a limit become MQTT messages: Spark reads them from topic `mqtt`, and writes the
alerts back to it, where MQTT clients get them under the topic name that is their key.

    python -m examples.alerts [--bootstrap HOST:PORT] [--checkpoint ./alerts] [--limit 30] [--once]

Readings come as `air/<room>` with values like `{"celsius": 31.5}`; alerts go to `alerts/<room>`.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame

from lakemq.spark_plugin.session import open_session

READINGS = (
    "CAST(key AS string) AS name",
    "from_json(CAST(value AS string), 'celsius double').celsius AS celsius",
)
ALERTS = (
    "concat('alerts/', substring_index(name, '/', -1)) AS key",
    "to_json(named_struct('celsius', celsius)) AS value",
)


def alerts(records: DataFrame, limit: float) -> DataFrame:
    """Rows to write for the readings above the limit."""
    readings = records.selectExpr(*READINGS).where("name LIKE 'air/%'")
    return readings.where(f"celsius > {limit}").selectExpr(*ALERTS)


def main() -> None:
    parser = argparse.ArgumentParser(description="Readings above a limit become MQTT messages.")
    parser.add_argument("--bootstrap", default="127.0.0.1:9700")
    parser.add_argument("--checkpoint", default="./alerts")
    parser.add_argument("--limit", type=float, default=30.0)
    parser.add_argument("--once", action="store_true", help="what is there, then end")
    given = parser.parse_args()
    spark = open_session("alerts")
    records = (
        spark.readStream.format("lakemq")
        .option("bootstrap", given.bootstrap)
        .option("subscribe", "mqtt")
        .option("startingOffsets", "earliest")
        .load()
    )
    writer = (
        alerts(records, given.limit)
        .writeStream.format("lakemq")
        .option("bootstrap", given.bootstrap)
        .option("topic", "mqtt")
        .option("checkpointLocation", given.checkpoint)
    )
    every = {"availableNow": True} if given.once else {"processingTime": "1 second"}
    writer.trigger(**every).start().awaitTermination()


if __name__ == "__main__":
    main()
