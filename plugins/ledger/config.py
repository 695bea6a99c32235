"""Settings of the ledger."""

from __future__ import annotations

from pydantic import Field

from lakemq.broker_core.api.settings import PluginSettings, Reloadable


class LedgerSettings(PluginSettings):
    """`[plugins.ledger]`. Topics ask for a ledger by their setting `ledger`."""

    look_ms: Reloadable[int] = Field(default=500, ge=10, le=60_000)
    """How often new records of such topics are counted (ms)."""
    checkpoint_ms: Reloadable[int] = Field(default=10_000, ge=10, le=3_600_000)
    """How often the counts are stored (ms); after a crash what came since is counted again from the
    journal."""
    devices_max: int = Field(default=10_000, ge=1, le=1_000_000)
    """Devices of a partition that are known at a time, about 1 kB of memory each; the one that was
    silent longest is forgotten, and counted as evicted."""
