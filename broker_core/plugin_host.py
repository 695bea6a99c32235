"""Entry points -> validated plugins. pluggy does the hooks; a plugin is found by its entry point,
is on when its section says so, and is checked before anything of it runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import Distribution, entry_points
from typing import Any, Final, Protocol

import pluggy

from lakemq.broker_core.api.errors import ConfigError, PluginError
from lakemq.broker_core.api.hooks import ENTRY_POINT_GROUP, PROJECT, PluginHooks
from lakemq.broker_core.api.settings import PluginSettings, Reconfigurable
from lakemq.broker_core.configuration.config import ConfigSource, joined

BUILT_IN: Final = ("journal", "mqtt", "native", "bridge", "admin", "ledger")
"""Plugins that are on without a section."""
HOOKS: Final = tuple(name for name in vars(PluginHooks) if not name.startswith("_"))


class PluginPoint(Protocol):
    """Where a plugin is found: an entry point, or what stands in for one."""

    @property
    def name(self) -> str:
        """Of the plugin, as in its section of the configuration."""

    @property
    def dist(self) -> Distribution | None:
        """The distribution that brings it; None: it is not installed as one."""

    def load(self) -> Any:
        """Import the module with the hooks."""


@dataclass(frozen=True)
class LoadedPlugin:
    """A plugin as `lakemq plugin list` shows it."""

    name: str
    version: str
    distribution: str
    enabled: bool
    hooks: tuple[str, ...] = ()
    """Hooks that it implements."""
    settings: PluginSettings = field(default_factory=PluginSettings)
    error: str = ""
    """Why it failed; it is not used then."""


class PluginHost:
    """Holds the plugins of one process."""

    def __init__(self, source: ConfigSource, points: Iterable[PluginPoint] | None = None) -> None:
        self._source = source
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(PluginHooks)
        found = entry_points(group=ENTRY_POINT_GROUP) if points is None else points
        self._points: dict[str, PluginPoint] = {point.name: point for point in found}
        self.plugins: list[LoadedPlugin] = []
        self._distributions: dict[Distribution | None, tuple[str, str]] = {None: ("?", "?")}
        """(version, name): each look parses all of what describes a distribution."""
        self._reconfigurable: dict[str, list[Reconfigurable]] = {}

    def again(self, source: ConfigSource) -> PluginHost:
        """A host of the same plugins, for another configuration; nothing is loaded yet."""
        return PluginHost(source, self._points.values())

    def point(self, name: str) -> PluginPoint:
        """Where a plugin is found."""
        return self._points[name]

    def module(self, name: str) -> object:
        """The module with a plugin's hooks, which is loaded."""
        return self._manager.get_plugin(name)

    def load_one(self, name: str) -> LoadedPlugin:
        """Import, register and configure one plugin, also where it is off. Raises ConfigError,
        PluginError."""
        plugin = self._load(replace(self._describe(name), enabled=True))
        self.plugins.append(plugin)
        return replace(plugin, enabled=self._describe(name).enabled)

    def adopt(self, other: PluginHost, point: PluginPoint) -> None:
        """Have the one plugin of another host, found at `point`, in place of the one of its
        name."""
        (plugin,) = other.plugins
        name = plugin.name
        self._manager.unregister(name=name)
        self._manager.register(other._manager.get_plugin(name), name)
        self._points[name] = point
        self._reconfigurable[name] = other._reconfigurable.get(name, [])
        self.plugins = [plugin if each.name == name else each for each in self.plugins]

    def reconfigurable(self, plugin: str) -> Sequence[Reconfigurable]:
        """What hooks of the plugin have returned and takes settings while it runs."""
        return self._reconfigurable.get(plugin, ())

    def take(self, name: str, settings: PluginSettings) -> None:
        """Note that the plugin has these settings from now on."""
        self.plugins = [
            replace(each, settings=settings) if each.name == name else each for each in self.plugins
        ]

    def _keep(self, plugin: str, found: object) -> None:
        # A class is asked for by the type of the port, and is no object that could take settings.
        if isinstance(found, Reconfigurable) and not inspect.isclass(found):
            self._reconfigurable.setdefault(plugin, []).append(found)

    def load(self, *, strict: bool = True, disabled_too: bool = False) -> None:
        """Import, register and configure. `strict`: the first failure raises ConfigError or
        PluginError; else it is kept in the plugin's `error`. `disabled_too`: look at plugins that
        are off as well, to tell what they would register.
        """
        if strict and (unknown := self.unknown_sections()):
            raise joined(unknown)
        # A fixed order, whatever order the entry points are found in: interceptors run in it.
        for name in sorted(self._points, key=lambda each: (each not in BUILT_IN, each)):
            plugin = self._describe(name)
            if plugin.enabled or disabled_too:
                try:
                    plugin = self._load(plugin)
                except (ConfigError, PluginError) as error:
                    if strict:
                        raise
                    plugin = replace(plugin, error=str(error))
            self.plugins.append(plugin)

    def unknown_sections(self) -> list[ConfigError]:
        """Sections for plugins that are not installed; those that are, are named."""
        errors: list[ConfigError] = []
        written = self._source.data.get("plugins", {})
        if not isinstance(written, Mapping):
            return errors  # reported before
        for name in written:
            if name not in self._points:
                known = ", ".join(sorted(self._points))
                errors.append(
                    self._source.error(
                        ("plugins", name),
                        f"no plugin of that name is installed; installed: {known}",
                    )
                )
        return errors

    def _describe(self, name: str) -> LoadedPlugin:
        point = self._points[name]
        path = ("plugins", name)
        enabled = name in BUILT_IN or self._source.has(path)
        if self._source.has(path):
            section = self._source.data.get("plugins", {}).get(name, {})
            if isinstance(section, Mapping):
                enabled = bool(section.get("enabled", True))
        variable = f"LAKEMQ_PLUGINS__{name.upper().replace('-', '_')}__ENABLED"
        if variable in self._source.variables:
            enabled = self._source.variables[variable].lower() == "true"
        distribution = point.dist
        if distribution is not None and distribution not in self._distributions:
            self._distributions[distribution] = distribution.version, distribution.name
        return LoadedPlugin(name, *self._distributions[distribution], enabled)

    def _load(self, plugin: LoadedPlugin) -> LoadedPlugin:
        name = plugin.name
        try:
            module = self._points[name].load()
        except Exception as error:  # importing a plugin may raise anything
            raise PluginError(f"plugin {name}: {type(error).__name__}: {error}") from error
        try:
            self._manager.register(module, name)
            self._manager.check_pending()
        except pluggy.PluginValidationError as error:
            if self._manager.is_registered(module):
                self._manager.unregister(module)
            raise PluginError(f"plugin {name}: {_first_sentence(error)}") from None
        callers = self._manager.get_hookcallers(module) or []
        hooks = tuple(sorted(caller.name for caller in callers))
        model = self._call(name, "register_settings") or PluginSettings
        if not (inspect.isclass(model) and issubclass(model, PluginSettings)):
            raise PluginError(f"plugin {name}: register_settings must return a PluginSettings")
        settings = self._source.section(("plugins", name), model)
        # Looked at to be listed; none of its hooks may be called.
        if not plugin.enabled:
            self._manager.unregister(module)
        return replace(plugin, hooks=hooks, settings=settings)

    def _call(self, plugin: str, hook: str, **arguments: object) -> Any:
        """Call one plugin's implementation of a hook; None when it has none."""
        caller = getattr(self._manager.hook, hook)
        for implementation in caller.get_hookimpls():
            if implementation.plugin_name == plugin:
                # Only the arguments that it names, as pluggy does: hooks may gain arguments without
                # breaking plugins.
                values = [arguments[name] for name in implementation.argnames]
                return implementation.function(*values)
        return None

    def collect(
        self, hook: str, arguments: Callable[[LoadedPlugin], dict[str, object]]
    ) -> list[tuple[LoadedPlugin, Any]]:
        """Call a hook of every enabled plugin: (plugin, what it returned), Nones left out.

        Other errors than LakeMQError become PluginError with the plugin's name.
        """
        found = []
        for plugin in self.enabled():
            if hook not in plugin.hooks:
                continue
            try:
                value = self._call(plugin.name, hook, **arguments(plugin))
            except PluginError:
                raise
            except Exception as error:  # a plugin may raise anything
                raise PluginError(
                    f"plugin {plugin.name}: {hook}: {type(error).__name__}: {error}"
                ) from error
            if value is not None:
                self._keep(plugin.name, value)
                found.append((plugin, value))
        return found

    def collect_each(
        self, hook: str, arguments: Callable[[LoadedPlugin], dict[str, object]], kind: type
    ) -> list[tuple[LoadedPlugin, Any]]:
        """The same for a hook that returns several objects, all of the runtime-checkable port
        `kind`: (plugin, object)."""
        found = []
        for plugin, group in self.collect(hook, arguments):
            where = f"plugin {plugin.name}: {hook}"
            if isinstance(group, str) or not isinstance(group, Iterable):
                raise PluginError(f"{where}: it returned {_shown(group)}; it must return a list")
            try:
                objects = list(group)
            except Exception as error:  # so may its generator
                raise PluginError(f"{where}: {type(error).__name__}: {error}") from error
            for each in objects:
                if not isinstance(each, kind) or inspect.isclass(each):
                    raise PluginError(f"{where}: {_shown(each)} is no {kind.__name__}")
                self._keep(plugin.name, each)
                found.append((plugin, each))
        return found

    def enabled(self) -> Sequence[LoadedPlugin]:
        """The plugins that are on and did not fail to load, in their order."""
        return [plugin for plugin in self.plugins if plugin.enabled and not plugin.error]

    def settings_models(self) -> dict[str, type[PluginSettings]]:
        """Plugin name -> the class of its section, for the documentation."""
        return {plugin.name: type(plugin.settings) for plugin in self.plugins}


def _shown(found: object) -> str:
    text = repr(found)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _first_sentence(error: Exception) -> str:
    """pluggy's message in one line."""
    return " ".join(str(error).split())
