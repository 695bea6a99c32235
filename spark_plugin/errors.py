"""Errors of spark_plugin: reasons that a user can act on."""

from __future__ import annotations


class SparkPluginError(Exception):
    """Root of these errors."""


class OptionError(SparkPluginError):
    """An option or a command's argument is wrong; names it, and the nearest valid one."""

    code = "OPTION"


class OffsetsError(SparkPluginError):
    """Offsets of the user or a checkpoint are invalid."""


class DataLossError(SparkPluginError):
    """Records that should be read are gone; names topic, partition and offsets."""


class TopicRecreated(DataLossError):
    """The topic was deleted and created again since it was read last."""


class ObjectStoreError(SparkPluginError):
    """An object of a tiered segment cannot be read although option `tiered` is `always`."""


class MissingDependency(SparkPluginError):
    """Java or an optional package is missing; says how to install it."""


class ExportError(SparkPluginError):
    """An export cannot continue."""


class ExportRunning(ExportError):
    """Another process runs the same export."""


class ExportFenced(ExportError):
    """Another process has taken over this export."""


class TableError(SparkPluginError):
    """The table does not fit the export, or cannot be changed as the export needs it."""


class NoTable(TableError):
    """There is no table."""
