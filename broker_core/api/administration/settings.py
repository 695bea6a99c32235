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
    """Where that is from: `default`, `file`, `variable`, or the scope of a dynamic setting,
    `cluster` or `node=<id>`."""
    written: Any
    """As the file, the variables and dynamic settings have it now."""
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


@dataclass(frozen=True, slots=True)
class DynamicSetting:
    """A setting that the MetaService keeps for nodes."""

    scope: str
    """`cluster` or `node=<id>`."""
    setting: str
    value: Any
    problem: str = ""
    """Why this node does not use it, were it meant for this one; empty: it can."""


class NodeConfiguration(Protocol):
    """Of one node."""

    def restart_pending(self) -> Sequence[str]:
        """Settings that the last reload found changed and that need a restart."""

    async def settings(self) -> Sequence[SettingState]:
        """All settings; the file is read, and not used. Raises ConfigError."""

    async def reload(self, *, dry_run: bool = False) -> Reloaded:
        """Read the file and use what can be used at once. Raises ConfigError or PluginError, and
        the node goes on with what it has."""

    async def dynamic(self) -> Sequence[DynamicSetting]:
        """All that the MetaService keeps, of all scopes. Raises Unavailable."""

    async def set(self, scope: str, setting: str, value: Any, *, dry_run: bool = False) -> None:
        """Keep a setting for all nodes or for one, which use it at once. Raises InvalidRequest:
        it is unknown here, needs a restart, or has a wrong value; OutcomeUnknown, Unavailable."""

    async def unset(self, scope: str, setting: str, *, dry_run: bool = False) -> None:
        """Keep it no more. Raises UnknownEntry, OutcomeUnknown, Unavailable."""
