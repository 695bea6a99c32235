"""Section `[plugins.native]`."""

from __future__ import annotations

from pydantic import Field

from broker_core.api.settings import PluginSettings, Port


class NativeSettings(PluginSettings):
    """The native gRPC protocol."""

    host: str = "127.0.0.1"
    """Address to bind to."""
    port: Port = 9700
    """TCP port."""
    message_bytes_max: int = Field(default=17 * 1024 * 1024, ge=1024 * 1024, le=288 * 1024 * 1024)
    """Largest message taken from a client; leave room for a topic's `batch_bytes_max` (bytes)."""
    streams_per_connection_max: int = Field(default=256, ge=1)
    """Calls that one connection may have open at a time."""
    produce_bytes_in_flight_max: int = Field(default=64 * 1024 * 1024, ge=1024 * 1024)
    """Un-acknowledged bytes that one produce stream may have; the broker reads no more of the
    stream until some are acknowledged."""
    fetch_bytes_max: int = Field(default=8 * 1024 * 1024, ge=64 * 1024, le=256 * 1024 * 1024)
    """Most bytes of record batches in one fetch answer; a larger single batch is still sent."""
    fetch_wait_ms: int = Field(default=1000, ge=1, le=60_000)
    """How long a following fetch waits at the high watermark before it looks around (ms)."""
