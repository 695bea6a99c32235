"""The configuration of nodes: what is in use, and reloads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from lakemq.broker_core.api.administration.node import AdministeredNode
from lakemq.broker_core.api.administration.routes import (
    AdminListing,
    AdminRequest,
    AdminRoute,
    Answer,
    AnyRoute,
    Body,
    ChangeQuery,
    Flag,
    NoQuery,
    OwnPageQuery,
    PageQuery,
    expect,
)
from lakemq.broker_core.api.administration.settings import (
    DynamicSetting,
    SettingChange,
    SettingState,
)
from lakemq.broker_core.api.errors import UnknownEntry


class SettingRow(Answer):
    """A setting of a node; secrets are `***`."""

    node: str
    setting: str
    value: Any
    """In use."""
    source: str
    """Where that is from: `default`, `file`, `variable`, or the scope of a dynamic setting,
    `cluster` or `node=<id>`."""
    written: Any
    """As the file, the variables and dynamic settings have it now."""
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


class DynamicRow(Answer):
    """A setting that the MetaService keeps for nodes."""

    scope: str
    """`cluster` or `node=<id>`."""
    setting: str
    value: Any
    problem: str = ""
    """Why the node that answers could not use it; empty: it could."""


class DynamicBody(Body):
    """A value for a setting."""

    value: bool | int | float | str = Field(union_mode="left_to_right")
    """As the configuration file would have it."""


class ConfigurationRoutes:
    """`/api/v1/settings`, `/dynamic-settings` and `/nodes/{node}/reload`."""

    def __init__(self, node: AdministeredNode) -> None:
        self._node = node

    def routes(self) -> Sequence[AnyRoute]:
        """The routes."""
        one = "dynamic-settings/{scope}/{setting}"
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
            AdminListing(
                "dynamic-settings", DynamicRow, self._dynamic, self._dynamic_rows,
                lambda each: f"{each.setting} {each.scope}",
                {"setting": lambda each: each.setting, "scope": lambda each: each.scope},
                query=PageQuery,
                summary="List settings that the MetaService keeps for all nodes or for one.",
            ),
            AdminRoute("GET", one, self.kept, DynamicRow, NoQuery, tagged=True),
            AdminRoute("PUT", one, self.set, DynamicRow, ChangeQuery, DynamicBody, tagged=True),
            AdminRoute("DELETE", one, self.unset, DynamicRow, ChangeQuery, tagged=True),
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

    async def _dynamic(self, request: AdminRequest) -> Sequence[DynamicSetting]:
        return await self._node.configuration.dynamic()

    async def _dynamic_rows(
        self, settings: Sequence[DynamicSetting], request: AdminRequest
    ) -> Sequence[DynamicRow]:
        return [
            DynamicRow(
                scope=each.scope, setting=each.setting, value=each.value, problem=each.problem
            )
            for each in settings
        ]

    async def kept(self, request: AdminRequest) -> DynamicRow:
        """Describe a setting that the MetaService keeps for all nodes or for one. Raises
        UnknownEntry."""
        scope, setting = request.path["scope"], request.path["setting"]
        for each in await self._node.configuration.dynamic():
            if (each.scope, each.setting) == (scope, setting):
                return DynamicRow(
                    scope=scope, setting=setting, value=each.value, problem=each.problem
                )
        raise UnknownEntry(f"{setting[:200]} is not set for {scope[:100]}")

    async def _note(self, request: AdminRequest) -> tuple[str, str, object]:
        """(scope, setting, the value that is kept now, which the audit log gets)."""
        scope, setting = request.path["scope"], request.path["setting"]
        kept = await self._node.configuration.dynamic()
        before = [each.value for each in kept if (each.scope, each.setting) == (scope, setting)]
        request.notes["before"] = before[0] if before else None
        return scope, setting, request.notes["before"]

    async def set(self, request: AdminRequest) -> DynamicRow:
        """Set a reloadable setting for all nodes (`cluster`) or one (`node=<id>`), at once. It
        comes before the file."""
        value = expect(request.given, DynamicBody).value
        scope, setting, _ = await self._note(request)
        dry_run = expect(request.asked, ChangeQuery).dry_run
        await self._node.configuration.set(scope, setting, value, dry_run=dry_run)
        request.notes["after"] = value
        return DynamicRow(scope=scope, setting=setting, value=value)

    async def unset(self, request: AdminRequest) -> DynamicRow:
        """Give a setting back to the files of the nodes."""
        scope, setting, value = await self._note(request)
        dry_run = expect(request.asked, ChangeQuery).dry_run
        await self._node.configuration.unset(scope, setting, dry_run=dry_run)
        return DynamicRow(scope=scope, setting=setting, value=value)


def _changes(changes: Sequence[SettingChange]) -> list[ChangeRow]:
    return [
        ChangeRow(setting=each.setting, before=each.before, after=each.after) for each in changes
    ]


def _is_wanted(state: SettingState, request: AdminRequest) -> bool:
    asked = expect(request.asked, SettingsQuery)
    if asked.pending and not state.pending:
        return False
    return not asked.changed or bool(state.pending) or state.source != "default"
