"""The configuration of nodes: what is in use, and reloads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lakemq.broker_core.api.administration.node import AdministeredNode
from lakemq.broker_core.api.administration.routes import (
    AdminListing,
    AdminRequest,
    AdminRoute,
    Answer,
    AnyRoute,
    ChangeQuery,
    Flag,
    OwnPageQuery,
    expect,
)
from lakemq.broker_core.api.administration.settings import SettingChange, SettingState


class SettingRow(Answer):
    """A setting of a node; secrets are `***`."""

    node: str
    setting: str
    value: Any
    """In use."""
    source: str
    """Where that is from: `default`, `file` or `variable`."""
    written: Any
    """As the file and the variables have it now."""
    written_source: str
    reloadable: bool
    """Whether a reload changes it; else a restart does."""
    pending: str
    """What it waits for to be used as it is written: `reload` or `restart`; empty: nothing."""


class SettingsQuery(OwnPageQuery):
    """Which settings; `q` looks in their names."""

    changed: Flag = False
    """Only those that are used from another source than the defaults, or wait for something."""
    pending: Flag = False
    """Only those that wait for a reload or a restart."""


class ChangeRow(Answer):
    """A setting that has another value."""

    setting: str
    before: Any
    after: Any


class ReloadAnswer(Answer):
    """What a reload did, or would do."""

    node: str
    applied: list[ChangeRow]
    """In use now."""
    restart: list[ChangeRow]
    """Used after the node's next start."""
    warnings: list[str]


class ConfigurationRoutes:
    """`/api/v1/settings` and `/api/v1/nodes/{node}/reload`."""

    def __init__(self, node: AdministeredNode) -> None:
        self._node = node

    def routes(self) -> Sequence[AnyRoute]:
        """The routes."""
        return [
            AdminListing(
                "settings", SettingRow, self._all, self._rows, lambda each: each.setting,
                {"setting": lambda each: each.setting}, keep=_is_wanted, query=SettingsQuery,
                own=True, summary="List settings: in use, as written, and from where.",
            ),
            AdminRoute(
                "POST", "nodes/{node}/reload", self.reload, ReloadAnswer, ChangeQuery,
                owner=lambda request: request.path["node"],
            ),
        ]  # fmt: skip

    async def _all(self, request: AdminRequest) -> Sequence[SettingState]:
        return await self._node.configuration.settings()

    async def _rows(
        self, settings: Sequence[SettingState], request: AdminRequest
    ) -> Sequence[SettingRow]:
        return [
            SettingRow(
                node=self._node.node_id, setting=each.setting, value=each.value,
                source=each.source, written=each.written, written_source=each.written_source,
                reloadable=each.reloadable, pending=each.pending,
            )
            for each in settings
        ]  # fmt: skip

    async def reload(self, request: AdminRequest) -> ReloadAnswer:
        """Have a node read its configuration again. A wrong file changes nothing."""
        dry_run = expect(request.asked, ChangeQuery).dry_run
        done = await self._node.configuration.reload(dry_run=dry_run)
        answer = ReloadAnswer(
            node=self._node.node_id,
            applied=_changes(done.applied),
            restart=_changes(done.restart),
            warnings=list(done.warnings),
        )
        request.notes["before"] = {each.setting: each.before for each in done.applied}
        request.notes["after"] = {each.setting: each.after for each in done.applied}
        return answer


def _changes(changes: Sequence[SettingChange]) -> list[ChangeRow]:
    return [
        ChangeRow(setting=each.setting, before=each.before, after=each.after) for each in changes
    ]


def _is_wanted(state: SettingState, request: AdminRequest) -> bool:
    asked = expect(request.asked, SettingsQuery)
    if asked.pending and not state.pending:
        return False
    return not asked.changed or bool(state.pending) or state.source != "default"
