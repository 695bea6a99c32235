"""The native protocol as a plugin: hooks only."""

from __future__ import annotations

from collections.abc import Iterable

from lakemq.broker_core.api.hooks import hookimpl
from lakemq.broker_core.api.ports import Broker, Commands, Listener, PluginContext
from lakemq.broker_core.api.settings import PluginSettings
from lakemq.plugins.native.config import NativeSettings


@hookimpl
def register_settings() -> type[PluginSettings]:
    """The settings of `[plugins.native]`."""
    return NativeSettings


@hookimpl
def register_listeners(context: PluginContext, broker: Broker) -> Iterable[Listener]:
    """The gRPC listener; not started yet."""
    # Imported here: gRPC is not loaded for a command that needs no listener.
    from lakemq.plugins.native.listener import NativeListener

    assert isinstance(context.settings, NativeSettings)
    return [
        NativeListener(broker, context.settings, context.meter, context.traces, context.process)
    ]


@hookimpl
def register_commands() -> Commands:
    """`lakemq topic`, `group`, `queue` and the other commands that talk to a broker."""
    from lakemq.plugins.native.cli.command_list import COMMANDS

    return COMMANDS
