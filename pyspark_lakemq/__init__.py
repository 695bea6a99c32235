"""The door that Spark knocks at: it imports every top-level module `pyspark_*` and takes its
`DefaultSource`. Kept light, because Spark imports it in every session that looks up a format."""

from lakemq.spark_plugin.source.source import LakeMQSource as DefaultSource

__all__ = ["DefaultSource"]
