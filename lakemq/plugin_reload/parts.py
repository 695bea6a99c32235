"""What hooks of plugins have returned: a node's parts that are a plugin's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from opentelemetry.metrics import Meter

from lakemq.broker_core.api.ports import Interceptor, Listener, Mechanism
from lakemq.broker_core.plugin_host import LoadedPlugin, PluginHost
from lakemq.plugin_reload.meter import PluginMeter

KINDS: Final[Mapping[str, type | None]] = {
    "register_mechanisms": Mechanism,
    "register_authenticator": None,
    "register_authorizer": None,
    "register_interceptors": Interceptor,
    "register_listeners": Listener,
}
"""Hook -> the port of each thing that it returns; None: it returns one thing. Those whose parts a
running node can replace."""
Arguments = Callable[[str, Meter, LoadedPlugin], dict[str, object]]
"""Of (hook, the plugin's meter, plugin): what the hook is called with."""
Parts = Mapping[str, list[Any]]
"""Hook -> what one plugin returned."""


class PluginParts:
    """By hook, in the order in which plugins are listed."""

    def __init__(
        self, host: PluginHost, arguments: Arguments, meter: Callable[[str], Meter]
    ) -> None:
        """`meter`: the one of a name."""
        self._host = host
        self._arguments = arguments
        self._meter = meter
        self._meters: dict[str, PluginMeter] = {}
        self._found: dict[str, list[tuple[LoadedPlugin, Any]]] = {}

    def meter(self, plugin: str) -> PluginMeter:
        """The one of a plugin's code in use."""
        if plugin not in self._meters:
            self._meters[plugin] = PluginMeter(self._meter(f"plugins.{plugin}"))
        return self._meters[plugin]

    def collect(self, hook: str) -> list[tuple[LoadedPlugin, Any]]:
        """Call a hook of all plugins, and keep what they return. Raises PluginError."""
        self._found[hook] = self._collected(self._host, hook, self.meter)
        return self._found[hook]

    def of(self, hook: str) -> list[tuple[str, Any]]:
        """(plugin, part), of a hook that was called."""
        return [(plugin.name, part) for plugin, part in self._found.get(hook, ())]

    def of_plugin(self, hook: str, name: str) -> list[Any]:
        """Those of one plugin."""
        return [part for plugin, part in self.of(hook) if plugin == name]

    def made_by(self, host: PluginHost, meter: PluginMeter) -> Parts:
        """What the hooks that this node has called return for the one plugin of another host, which
        gets `meter`. Raises PluginError, ConfigError."""
        return {
            hook: [part for _, part in self._collected(host, hook, lambda name: meter)]
            for hook in self._found
        }

    def replace(self, plugin: LoadedPlugin, parts: Parts, meter: PluginMeter) -> None:
        """Have these in place of those of the same plugin."""
        order = {each.name: place for place, each in enumerate(self._host.plugins)}
        for hook, found in self._found.items():
            others = [pair for pair in found if pair[0].name != plugin.name]
            own = [(plugin, part) for part in parts[hook]]
            # A stable sort: parts of one plugin stay in the order in which it gave them.
            self._found[hook] = sorted([*others, *own], key=lambda pair: order[pair[0].name])
        self._meters[plugin.name] = meter
        meter.use()

    def _collected(
        self, host: PluginHost, hook: str, meter: Callable[[str], Meter]
    ) -> list[tuple[LoadedPlugin, Any]]:
        def arguments(plugin: LoadedPlugin) -> dict[str, object]:
            return self._arguments(hook, meter(plugin.name), plugin)

        kind = KINDS[hook]
        each = partial(host.collect_each, kind=kind) if kind is not None else host.collect
        return each(hook, arguments)
