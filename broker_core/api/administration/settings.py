"""The configuration of a running node, for operators: what it uses, and reloads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Pending = Literal["", "reload", "restart"]
"""What a setting waits for to be used as it is written now; empty: it is used."""


@dataclass(frozen=True, slots=True)
class SettingState:
    """One setting of a node. Values are for JSON, secrets in them `***`."""

    setting: str
    """Like `topics.retention_ms` or `plugins.mqtt.slow_ms`."""
    value: Any
    """In use."""
    source: str
    """Where that is from: `default`, `file` or `variable`."""
    written: Any
    """As the file and the variables have it now."""
    written_source: str
    reloadable: bool
    pending: Pending


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A setting that differs from what the node uses; secrets are `***`."""

    setting: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What a reload did, or would do."""

    applied: Sequence[SettingChange]
    """In use now."""
    restart: Sequence[SettingChange]
    """Used after the next start."""
    warnings: Sequence[str]
    """About settings that are valid and have no effect."""


class NodeConfiguration(Protocol):
    """Of one node."""

    def restart_pending(self) -> Sequence[str]:
        """Settings that the last reload found changed and that need a restart."""

    async def settings(self) -> Sequence[SettingState]:
        """All settings; the file is read, and not used. Raises ConfigError."""

    async def reload(self, *, dry_run: bool = False) -> Reloaded:
        """Read the file and use what can be used at once. Raises ConfigError or PluginError, and
        the node goes on with what it has."""
