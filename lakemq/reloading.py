"""Takes a changed configuration into a running node, all that it can take or nothing."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple

from opentelemetry.metrics import CallbackOptions, Meter, Observation
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from lakemq.broker_core.api.administration.settings import (
    DynamicSetting,
    Pending,
    Reloaded,
    SettingChange,
    SettingState,
)
from lakemq.broker_core.api.errors import (
    ConfigError,
    InvalidRequest,
    LakeMQError,
    PluginError,
    Unavailable,
)
from lakemq.broker_core.api.settings import can_reload, is_reloadable
from lakemq.broker_core.configuration.changes import Change, Merge, masked, merged
from lakemq.broker_core.configuration.config import (
    CLUSTER,
    SECTIONS,
    Config,
    ConfigSource,
    Kept,
    load_source,
)
from lakemq.broker_core.configuration.config_words import nearest
from lakemq.broker_core.plugin_host import LoadedPlugin, PluginHost
from lakemq.config_checks import check_together
from lakemq.dynamic_settings import DynamicSettings

_log: Final = logging.getLogger(__name__)
_NODE_SCOPE: Final = re.compile(r"node=[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class _Written(NamedTuple):
    """A configuration that was read and checked, and is not used yet."""

    config: Config
    plugins: PluginHost
    warnings: list[str]


class _Plan(NamedTuple):
    """What is to be done to use it; nothing of it can fail."""

    config: Config
    plugins: dict[str, Any]
    """Name -> section."""
    steps: list[Callable[[], None]]
    changes: list[Change]


class Reloads:
    """Implements `NodeConfiguration`. Lives on the event loop; files are read in a thread."""

    def __init__(
        self, config: Config, plugins: PluginHost, use: Callable[[Config, Config], None]
    ) -> None:
        """`use(before, after)`: puts the sections that are no plugin's into use."""
        self.config = config
        self._plugins = plugins
        self._use = use
        self._source = config.source
        """What was read last."""
        self.turn = asyncio.Lock()
        """Held while settings change, or what takes them."""
        self._pending: list[str] = []
        self._sources: dict[str, str] = {}
        """Where settings that are in use are from, as far as reloads changed that."""
        self._done = self._failed = 0
        self._kept: list[Kept] = []
        self._complaints: set[str] = set()
        """Why dynamic settings are not used, as it was logged."""
        self.store: DynamicSettings | None = None
        """None: not started yet."""

    def restart_pending(self) -> Sequence[str]:
        """See `NodeConfiguration`."""
        return self._pending

    async def reload(self, *, dry_run: bool = False) -> Reloaded:
        """See `NodeConfiguration`. One at a time."""
        async with self.turn:
            return await self._taken(self._source.again, dry_run=dry_run)

    async def use_dynamic(self, kept: Sequence[Kept]) -> None:
        """Use these dynamic settings, with the file as it was read last. What can't be used is
        left out, logged and shown; it raises nothing."""
        async with self.turn:
            if list(kept) == self._kept:
                return
            self._kept = list(kept)
            # What is wrong is in the log, and the node goes on as it was.
            with suppress(LakeMQError):
                await self._taken(lambda: self._source)

    async def written(self) -> ConfigSource:
        """What the file, variables and dynamic settings say now. Raises ConfigError."""
        return self._with_dynamic(await asyncio.to_thread(self._source.again))

    def took(self, plugin: LoadedPlugin, source: ConfigSource) -> None:
        """Note that a plugin runs with its section of `source`, all of it."""
        path = ("plugins", plugin.name)
        for field in type(plugin.settings).model_fields:
            self._sources[".".join((*path, field))] = source.origin(path, field)
        own = f"plugins.{plugin.name}."
        self._pending = [each for each in self._pending if not each.startswith(own)]
        # The rest of the file waits for a reload of the configuration.
        data, now = self._source.data, source.data.get("plugins", {})
        sections = {**data.get("plugins", {}), plugin.name: now.get(plugin.name, {})}
        self._source = replace(self._source, data={**data, "plugins": sections})

    async def _taken(
        self, source: Callable[[], ConfigSource], *, dry_run: bool = False
    ) -> Reloaded:
        try:
            written = await asyncio.to_thread(lambda: self._read(source()))
            plan = self._plan(written)
        except LakeMQError as error:
            if not dry_run:
                self._failed += 1
                _log.error("the configuration was not reloaded, nothing changes: %s", error)
            raise
        found = self._told(plan, written)
        if not dry_run:
            self._carry_out(plan, written)
            self._report(found)
        return found

    def _read(self, source: ConfigSource) -> _Written:
        """Everything that a start checks before it opens anything. Raises ConfigError,
        PluginError."""
        config = load_source(self._with_dynamic(source))
        plugins = self._plugins.again(config.source)
        plugins.load()
        return _Written(config, plugins, check_together(config, plugins.enabled()))

    # -- dynamic settings

    def _with_dynamic(self, source: ConfigSource) -> ConfigSource:
        """With those of this node that can be used; what is set for it alone comes last."""
        own = f"node={self.config.node.id}"
        for scope in (CLUSTER, own):
            for kept in self._kept:
                if kept.scope == scope and not self._why_not(kept, source):
                    source = replace(source, kept=(*source.kept, kept))
        return source

    def _why_not(self, kept: Kept, source: ConfigSource) -> str:
        """Why a dynamic setting can't be used beside the rest; empty: it can."""
        path, name = kept.path()
        model = self._model(path)
        if model is None:
            return f"{kept.setting}: there is no such section on node {self.config.node.id}"
        if name not in model.model_fields:
            return f"{kept.setting}: unknown setting{nearest(name, list(model.model_fields))}"
        if not self._is_dynamic(path, model.model_fields[name]):
            return f"{kept.setting}: only the file says it, it cannot be set for {kept.scope}"
        try:
            replace(source, kept=(*source.kept, kept)).section(path, model)
        except ConfigError as error:
            return str(error)
        return ""

    def _model(self, path: tuple[str, ...]) -> type[BaseModel] | None:
        if len(path) == 1:
            return SECTIONS.get(path[0])
        if len(path) == 2 and path[0] == "plugins":
            for plugin in self._plugins.enabled():
                if plugin.name == path[1]:
                    return type(plugin.settings)
        return None

    def _is_dynamic(self, path: tuple[str, ...], info: FieldInfo) -> bool:
        """Single values that a reload changes. Not those of `[security]`: who may change a
        setting must not be who may do everything."""
        takes = len(path) == 1 or bool(self._plugins.reconfigurable(path[1]))
        value = info.get_default(call_default_factory=True)
        single = isinstance(value, str | int | float)
        return takes and single and is_reloadable(info) and path != ("security",)

    def _store(self) -> DynamicSettings:
        if self.store is None:
            raise Unavailable("the node is not ready yet: try again")
        return self.store

    async def dynamic(self) -> Sequence[DynamicSetting]:
        """See `NodeConfiguration`."""
        return [
            DynamicSetting(each.scope, each.setting, each.value, self._why_not(each, self._source))
            for each in await self._store().all()
        ]

    async def set(self, scope: str, setting: str, value: Any, *, dry_run: bool = False) -> None:
        """See `NodeConfiguration`."""
        kept = Kept(scope, setting, value)
        if scope != CLUSTER and not _NODE_SCOPE.fullmatch(scope):
            raise InvalidRequest(f"scope {scope!r} is neither cluster nor node=<id>")
        if complaint := self._why_not(kept, self._source):
            raise InvalidRequest(complaint)
        if not dry_run:
            await self._store().put(kept)

    async def unset(self, scope: str, setting: str, *, dry_run: bool = False) -> None:
        """See `NodeConfiguration`."""
        if not dry_run:
            await self._store().delete(scope, setting)

    # -- reloads

    def _plan(self, written: _Written) -> _Plan:
        """Raises ConfigError, PluginError: a part of the node does not agree."""
        core = {
            name: merged(name, getattr(self.config, name), getattr(written.config, name))
            for name in SECTIONS
        }
        changes = [change for merge in core.values() for change in merge.changes]
        sections: dict[str, Any] = {}
        steps: list[Callable[[], None]] = []
        found = {each.name: each for each in written.plugins.plugins}
        for plugin in self._plugins.plugins:
            wanted = found[plugin.name]
            if plugin.enabled != wanted.enabled:
                name = f"plugins.{plugin.name}.enabled"
                changes.append(Change(name, plugin.enabled, wanted.enabled, restart=True))
            elif plugin.enabled:
                merge, prepared = self._agreed(plugin, wanted)
                changes += merge.changes
                sections[plugin.name] = merge.section
                steps += prepared
        config = replace(self.config, **{name: merge.section for name, merge in core.items()})
        return _Plan(config, sections, steps, changes)

    def _agreed(
        self, plugin: LoadedPlugin, wanted: LoadedPlugin
    ) -> tuple[Merge, list[Callable[[], None]]]:
        """A plugin's settings, and what puts them into use."""
        parts = self._plugins.reconfigurable(plugin.name)
        name = f"plugins.{plugin.name}"
        merge = merged(name, plugin.settings, wanted.settings, takes=bool(parts))
        if merge.section == plugin.settings:
            return merge, []
        try:
            return merge, [part.reconfigure(merge.section) for part in parts]
        except LakeMQError:
            raise
        except Exception as error:  # code of a plugin
            raise PluginError(
                f"plugin {plugin.name}: reconfigure: {type(error).__name__}: {error}"
            ) from error

    def _carry_out(self, plan: _Plan, written: _Written) -> None:
        """Without a pause: no client sees half of it."""
        before = self.config
        for state in self._states(written):
            if state.pending != "restart":
                self._sources[state.setting] = state.written_source
        self._use(before, plan.config)
        self.config = plan.config
        for step in plan.steps:
            try:
                step()
            except Exception:  # code of a plugin, which had agreed
                _log.exception("a plugin did not take its settings, restart the node")
        for name, section in plan.plugins.items():
            self._plugins.take(name, section)
        self._source = replace(written.config.source, kept=())
        self._complain()
        self._pending = [each.setting for each in plan.changes if each.restart]
        self._done += 1

    def _told(self, plan: _Plan, written: _Written) -> Reloaded:
        states = {state.setting: state for state in self._states(written)}

        def told(change: Change) -> SettingChange:
            state = states[change.setting]
            return SettingChange(change.setting, state.value, state.written)

        return Reloaded(
            [told(each) for each in plan.changes if not each.restart],
            [told(each) for each in plan.changes if each.restart],
            written.warnings,
        )

    def _report(self, found: Reloaded) -> None:
        _log.info("reloaded: %s", _listed(found.applied) or "nothing has changed")
        if found.restart:
            _log.warning("these need a restart: %s", _listed(found.restart))
        for warning in found.warnings:
            _log.warning("%s", warning)

    def _complain(self) -> None:
        """Log once what is kept for this node and can't be used."""
        mine = (CLUSTER, f"node={self.config.node.id}")
        mine_now = [kept for kept in self._kept if kept.scope in mine]
        found = {why for kept in mine_now if (why := self._why_not(kept, self._source))}
        for why in sorted(found - self._complaints):
            _log.warning("ignoring a dynamic setting: %s", why)
        self._complaints = found

    # -- what there is

    async def settings(self) -> Sequence[SettingState]:
        """See `NodeConfiguration`."""
        return self._states(await asyncio.to_thread(lambda: self._read(self._source.again())))

    def _states(self, written: _Written) -> list[SettingState]:
        found = []
        for name in SECTIONS:
            running, wanted = getattr(self.config, name), getattr(written.config, name)
            found += self._section((name,), running, wanted, written.config.source)
        after = {each.name: each for each in written.plugins.plugins}
        for plugin in self._plugins.plugins:
            wanted = after[plugin.name]
            if plugin.enabled != wanted.enabled:
                path, source = ("plugins", plugin.name), written.config.source
                found.append(
                    SettingState(
                        f"plugins.{plugin.name}.enabled", plugin.enabled,
                        self.config.source.origin(path, "enabled"), wanted.enabled,
                        source.origin(path, "enabled"), reloadable=False, pending="restart",
                    )
                )  # fmt: skip
            elif plugin.enabled:
                takes = bool(self._plugins.reconfigurable(plugin.name))
                found += self._section(
                    ("plugins", plugin.name), plugin.settings, wanted.settings,
                    written.config.source, takes=takes,
                )  # fmt: skip
        return found

    def _section(
        self,
        path: tuple[str, ...],
        running: BaseModel,
        wanted: BaseModel,
        source: ConfigSource,
        *,
        takes: bool = True,
    ) -> list[SettingState]:
        shown, shown_wanted = masked(running), masked(wanted)
        found = []
        for field, info in type(running).model_fields.items():
            name = ".".join((*path, field))
            before, after = getattr(running, field), getattr(wanted, field)
            reloadable = takes and can_reload(info, before, after)
            pending: Pending = ""
            if before != after:
                pending = "reload" if reloadable else "restart"
            used = self._sources.get(name) or self.config.source.origin(path, field)
            found.append(
                SettingState(
                    name, shown[field], used, shown_wanted[field], source.origin(path, field),
                    reloadable, pending,
                )
            )  # fmt: skip
        return found

    def observe(self, meter: Meter) -> None:
        """Make the numbers metrics, read when asked."""

        def reloads(_: CallbackOptions) -> Iterable[Observation]:
            yield Observation(self._done, {"outcome": "done"})
            yield Observation(self._failed, {"outcome": "failed"})

        def pending(_: CallbackOptions) -> Iterable[Observation]:
            yield Observation(len(self._pending))

        meter.create_observable_counter(
            "lakemq.node.config.reloads", [reloads], "{reload}", "Reloads of the configuration."
        )
        meter.create_observable_gauge(
            "lakemq.node.config.restart_pending",
            [pending],
            "{setting}",
            "Settings that have changed and need a restart, as of the last reload.",
        )


def _listed(changes: Sequence[SettingChange]) -> str:
    return ", ".join(f"{each.setting} = {each.after!r}, was {each.before!r}" for each in changes)
