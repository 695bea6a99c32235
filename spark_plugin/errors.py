"""Errors of spark_plugin.

SparkPluginError
├── OptionError           an option or a CLI argument is wrong: names it, and the nearest right one
├── OffsetsError          offsets given by the user or a checkpoint can't be read
├── DataLossError         records that should be read are gone: names topic, partition, offsets
│   └── TopicRecreated    the topic was deleted and created anew since it was read last
├── ObjectStoreError      an object of a tiered segment can't be read, and it must be: names it
├── MissingDependency     Java or an optional package is absent: says how to install it
├── ExportError           the export can't go on
│   ├── ExportRunning     another process runs the same export
│   └── ExportFenced      another process has taken over this export
└── TableError            the table is not what this export would write to
"""

from __future__ import annotations


class SparkPluginError(Exception):
    """Root of what spark_plugin raises for reasons that its user can act on."""


class OptionError(SparkPluginError):
    pass


class OffsetsError(SparkPluginError):
    pass


class DataLossError(SparkPluginError):
    pass


class TopicRecreated(DataLossError):
    pass


class ObjectStoreError(SparkPluginError):
    pass


class MissingDependency(SparkPluginError):
    pass


class ExportError(SparkPluginError):
    pass


class ExportRunning(ExportError):
    pass


class ExportFenced(ExportError):
    pass


class TableError(SparkPluginError):
    pass


class NoTable(TableError):
    pass
