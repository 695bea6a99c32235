"""Section `[plugins.line]`."""

from __future__ import annotations

from pydantic import Field

from lakemq.broker_core.api.settings import PluginSettings, Port


class LineSettings(PluginSettings):
    """The line protocol."""

    host: str = "127.0.0.1"
    """Address to bind to."""
    port: Port = 9710
    """TCP port."""
    topics: list[str] = Field(default_factory=list)
    """Topics that line clients may write; empty: all."""
    line_max_bytes: int = Field(default=64 * 1024, ge=64, le=16 * 1024 * 1024)
    """Longest line that a client may send (bytes); a longer one ends the connection."""
    requests_in_flight_max: int = Field(default=1000, ge=1)
    """Unanswered requests that one connection may have; no more is read from it until then."""
