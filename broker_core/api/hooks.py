"""Hooks of the plugin host (pluggy). They are called at startup, and when a plugin's new code is
taken; after that the broker calls the returned objects directly. `docs/plugins.md` describes each
with an example.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pluggy

from lakemq.broker_core.api.administration.node import AdministeredNode
from lakemq.broker_core.api.ports import (
    Authenticator,
    Authorizer,
    Broker,
    Commands,
    Interceptor,
    Listener,
    Mechanism,
    PluginContext,
    Storage,
)
from lakemq.broker_core.api.settings import PluginSettings

PROJECT: Final = "lakemq"
ENTRY_POINT_GROUP: Final = "lakemq.plugins"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class PluginHooks:
    """The hook specifications."""

    @hookspec
    def register_settings(self) -> type[PluginSettings]:  # type: ignore[empty-body]
        """The class that describes the plugin's section of the TOML file."""

    @hookspec
    def register_storage(self, context: PluginContext) -> Storage:  # type: ignore[empty-body]
        """A storage engine. Exactly one enabled plugin must give one."""

    @hookspec
    def register_listeners(  # type: ignore[empty-body]
        self, context: PluginContext, broker: Broker
    ) -> Iterable[Listener]:
        """Listeners of a protocol. They are started when the broker is open, in order."""

    @hookspec
    def register_authenticator(self, context: PluginContext) -> Authenticator:  # type: ignore[empty-body]
        """An authenticator, asked before the built-in one."""

    @hookspec
    def register_mechanisms(  # type: ignore[empty-body]
        self, context: PluginContext
    ) -> Iterable[Mechanism]:
        """Ways to authenticate in several steps; the first of a name counts."""

    @hookspec
    def register_authorizer(self, context: PluginContext) -> Authorizer:  # type: ignore[empty-body]
        """An authorizer, asked before the built-in one."""

    @hookspec
    def register_interceptors(  # type: ignore[empty-body]
        self, context: PluginContext
    ) -> Iterable[Interceptor]:
        """Interceptors, run in the order in which plugins are listed."""

    @hookspec
    def register_admin(  # type: ignore[empty-body]
        self, context: PluginContext, node: AdministeredNode
    ) -> Listener:
        """A listener for operators. It is started last, on nodes without a broker too."""

    @hookspec
    def register_commands(self) -> Commands:  # type: ignore[empty-body]
        """Sub-commands of the `lakemq` command."""
