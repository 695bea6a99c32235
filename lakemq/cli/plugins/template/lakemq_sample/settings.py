"""Section `[plugins.sample]`."""

from __future__ import annotations

from pydantic import Field

from lakemq.broker_core.api.settings import PluginSettings


class SampleSettings(PluginSettings):
    """Refuses large records."""

    value_max_bytes: int = Field(default=64 * 1024, ge=1)
    """Longest value of a record (bytes)."""
