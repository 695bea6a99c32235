"""Sections of the TOML file that belong to the broker core."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from broker_core.api.settings import Port, Section


class NodeSettings(Section):
    """This node."""

    id: str = Field(default="node-1", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")
    """Name of this node in the cluster: letters, digits, `.`, `_`, `-`; never changed later."""
    data_dir: str = "lakemq-data"
    """Folder that holds everything this node stores. Created if absent; one process at a time."""
    host: str = "127.0.0.1"
    """Address that listeners bind to where their own section names none."""
    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    """How much the node says on standard error."""


class TopicSettings(Section):
    """Defaults for topics created without these settings."""

    partitions: int = Field(default=1, ge=1, le=10_000)
    """Number of partitions."""
    segment_bytes_max: int = Field(default=256 * 1024 * 1024, ge=4096)
    """Size at which a segment is rolled (bytes)."""
    segment_age_ms_max: int = Field(default=24 * 60 * 60 * 1000, ge=1000)
    """Age at which a segment is rolled (ms)."""
    retention_bytes: int = Field(default=-1, ge=-1)
    """Size up to which a partition is kept (bytes); -1: without limit."""
    retention_ms: int = Field(default=7 * 24 * 60 * 60 * 1000, ge=-1)
    """Age up to which records are kept (ms); -1: for ever."""
    cleanup: Literal["delete", "compact", "compact,delete"] = "delete"
    """`delete` obeys retention; `compact` keeps the latest value of every key."""
    tombstone_retention_ms: int = Field(default=24 * 60 * 60 * 1000, ge=0)
    """How long a record with a null value outlives compaction (ms)."""
    compression: Literal["producer", "none", "lz4", "zstd"] = "producer"
    """Compression of stored batches; `producer`: as they come."""
    batch_bytes_max: int = Field(default=16 * 1024 * 1024, ge=1024, le=256 * 1024 * 1024)
    """Largest record batch accepted (bytes)."""


class AdminSettings(Section):
    """HTTP admin: health, metrics, topics."""

    enabled: bool = True
    """Whether the HTTP admin listens."""
    host: str = ""
    """Address to bind to; empty: `node.host`."""
    port: Port = 9703
    """TCP port."""


class TelemetrySettings(Section):
    """OpenTelemetry."""

    prometheus: bool = True
    """Whether the HTTP admin serves `/metrics` in Prometheus' text format."""
