"""Takes new code of a plugin into a running node, or leaves everything as it is.

The new code is imported and started beside the old one; both are swapped in one turn of the event
loop, and then the old one is stopped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Final, NamedTuple

from lakemq.broker_core.api.administration.node import ReloadedPlugin
from lakemq.broker_core.api.administration.routes import Administered
from lakemq.broker_core.api.errors import LakeMQError, PluginError, UnknownEntry
from lakemq.broker_core.api.ports import Listener
from lakemq.broker_core.configuration.config import ConfigSource
from lakemq.broker_core.plugin_host import LoadedPlugin, PluginHost, PluginPoint
from lakemq.plugin_reload.fresh_code import FreshCode, installed_now, own_package
from lakemq.plugin_reload.meter import PluginMeter
from lakemq.plugin_reload.parts import Parts, PluginParts
from lakemq.reloading import Reloads

_log: Final = logging.getLogger(__name__)
WITHIN_S: Final = 30.0
"""How long a worker of a plugin may take to start or to stop."""
_FIXED: Final = {"register_storage": "is a storage engine", "register_admin": "serves operators"}
"""Hooks whose parts hold what a node can't be without."""


class _New(NamedTuple):
    """Code that was imported and checked, and is not in use yet."""

    code: FreshCode
    host: PluginHost
    plugin: LoadedPlugin
    point: PluginPoint


class PluginReloads:
    """Of one node. Lives on the event loop; code is imported in a thread."""

    def __init__(
        self,
        host: PluginHost,
        parts: PluginParts,
        configuration: Reloads,
        listeners: list[Listener],
        use: Callable[[str], None],
    ) -> None:
        """`listeners`: those that have started, of which a plugin's are replaced. `use` puts other
        `parts` into use, of the plugin that it is given, without a pause."""
        self._host = host
        self._parts = parts
        self._configuration = configuration
        self._listeners = listeners
        self._use = use
        self._running: set[asyncio.Task[ReloadedPlugin]] = set()

    async def reload(self, name: str, *, dry_run: bool = False) -> ReloadedPlugin:
        """See `AdministeredNode.reload_plugin`."""
        # Who asked may go away meanwhile; a swap is carried out to its end.
        task = asyncio.create_task(self._in_turn(name, dry_run))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def stop(self) -> None:
        """End what is going on."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _in_turn(self, name: str, dry_run: bool) -> ReloadedPlugin:
        try:
            # A reload of the configuration may not come between: it changes the same settings.
            async with self._configuration.turn:
                try:
                    return await self._reloaded(name, dry_run)
                except SystemExit as error:  # a plugin's hook that exits must not end the node
                    raise PluginError(f"plugin {name}: SystemExit: {error}") from error
        except LakeMQError as error:
            if not dry_run:
                _log.error("plugin %s was not reloaded, nothing changes: %s", name[:100], error)
            raise

    async def _reloaded(self, name: str, dry_run: bool) -> ReloadedPlugin:
        old = self._old(name)
        source = await self._configuration.written()
        new = await asyncio.to_thread(self._import, name, source)
        answer = ReloadedPlugin(name, old.version, new.plugin.version, new.plugin.hooks)
        if dry_run:
            new.code.restore()
            return answer
        meter = self._parts.meter(name).renewed()
        async with AsyncExitStack() as undo:
            undo.callback(new.code.restore)
            parts = self._parts.made_by(new.host, meter)
            for listener in parts.get("register_listeners", ()):
                await _started(name, listener)
                undo.push_async_callback(_stopped, name, listener)
                _check_replaceable(name, (), [listener])
            undo.pop_all()
        gone = self._swap(new, parts, meter, source)
        for listener in reversed(gone):
            await _stopped(name, listener)
        _log.info("plugin %s was reloaded: %s, was %s", name, answer.version, answer.before)
        return answer

    # -- what there is

    def _old(self, name: str) -> LoadedPlugin:
        """Raises UnknownEntry, PluginError: only a restart takes new code."""
        enabled = {each.name: each for each in self._host.enabled()}
        if name not in enabled:
            on = ", ".join(sorted(enabled))
            raise UnknownEntry(f"no plugin {name[:100]!r} is on; on: {on}")
        package = own_package(name, self._host.point(name))
        for other in enabled.keys() - {name}:
            if package == self._package(other):
                raise PluginError(
                    f"plugin {name}: plugin {other} is in package {package} too: only a restart "
                    "takes new code"
                )
        _check_replaceable(
            name, enabled[name].hooks, self._parts.of_plugin("register_listeners", name)
        )
        return enabled[name]

    def _package(self, name: str) -> str:
        try:
            return own_package(name, self._host.point(name))
        except PluginError:
            return ""  # not imported again either

    # -- the new code

    def _import(self, name: str, source: ConfigSource) -> _New:
        """In a thread. Raises ConfigError, PluginError, with the old modules where they were."""
        known = self._host.point(name)
        package = own_package(name, known)
        point = installed_now(name, known)
        code = FreshCode(package)
        try:
            host = PluginHost(source, [point])
            plugin = host.load_one(name)
            if not plugin.enabled:
                raise PluginError(f"plugin {name} is off in {source.file}: a restart ends it")
            _check_replaceable(name, plugin.hooks, ())
        except BaseException as error:
            code.restore()
            if isinstance(error, LakeMQError):
                raise
            # Also of a module that exits, which must not end the node.
            raise PluginError(f"plugin {name}: {type(error).__name__}: {error}") from error
        return _New(code, host, plugin, point)

    def _swap(
        self, new: _New, parts: Parts, meter: PluginMeter, source: ConfigSource
    ) -> Sequence[Listener]:
        """Without a pause: every record and every login meets the old code or the new one. The
        listeners that are to be stopped."""
        name = new.plugin.name
        gone = self._parts.of_plugin("register_listeners", name)
        self._host.adopt(new.host, new.point)
        self._parts.replace(new.plugin, parts, meter)
        kept = [each for each in self._listeners if not any(each is old for old in gone)]
        self._listeners[:] = [*kept, *parts.get("register_listeners", [])]
        self._configuration.took(new.plugin, source)
        self._use(name)
        return gone


def _check_replaceable(name: str, hooks: Sequence[str], listeners: Sequence[Listener]) -> None:
    for hook in hooks:
        if hook in _FIXED:
            raise PluginError(
                f"plugin {name} {_FIXED[hook]} ({hook}): only a restart takes new code"
            )
    for listener in listeners:
        if found := list(listener.addresses()):
            what = f"has clients at {', '.join(found)}"
        elif isinstance(listener, Administered):
            what = "has routes in the admin API"
        else:
            continue
        raise PluginError(
            f"plugin {name}: its listener {listener.name} {what}: only a restart takes new code"
        )


async def _started(name: str, listener: Listener) -> None:
    where = f"plugin {name}: listener {listener.name}"
    try:
        async with asyncio.timeout(WITHIN_S) as limit:
            await listener.start()
    except LakeMQError:
        raise
    except Exception as error:  # code of a plugin
        if limit.expired():
            raise PluginError(f"{where}: it did not start in {WITHIN_S:.0f} s") from None
        raise PluginError(f"{where}: {type(error).__name__}: {error}") from error


async def _stopped(name: str, listener: Listener) -> None:
    """A worker that does not stop is logged and left: its successor runs."""
    try:
        async with asyncio.timeout(WITHIN_S):
            await listener.stop()
    except Exception as error:  # code of a plugin
        _log.error(
            "plugin %s: listener %s did not stop: %s: %s",
            name, listener.name, type(error).__name__, error,
        )  # fmt: skip
