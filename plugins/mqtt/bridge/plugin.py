"""Bridges as a plugin: hooks only."""

from __future__ import annotations

from collections.abc import Iterable

from lakemq.broker_core.api.errors import PluginError
from lakemq.broker_core.api.hooks import hookimpl
from lakemq.broker_core.api.ports import Broker, Commands, Listener, PluginContext
from lakemq.broker_core.api.settings import PluginSettings
from lakemq.plugins.mqtt.bridge.config import BridgeSettings
from lakemq.plugins.mqtt.bridge.metrics import Unlinked


@hookimpl
def register_settings() -> type[PluginSettings]:
    """The section `[plugins.bridge]`."""
    return BridgeSettings


@hookimpl
def register_listeners(context: PluginContext, broker: Broker) -> Iterable[Listener]:
    """The bridges of this node; without links, what tells those of others. Raises PluginError when
    amqtt is not installed."""
    settings = context.settings
    assert isinstance(settings, BridgeSettings)
    if not settings.links:
        return [Unlinked(broker.node_id)]
    try:
        # Imported here: amqtt is an extra, and only nodes with links need it.
        from lakemq.plugins.mqtt.bridge.listener import BridgeService
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "amqtt":
            raise
        raise PluginError(
            "plugin bridge: links need amqtt, which is not installed: pip install 'lakemq[bridge]'"
        ) from None
    return [BridgeService(broker, settings, context)]


@hookimpl
def register_commands() -> Commands:
    """The group `lakemq bridge`."""
    from lakemq.plugins.mqtt.bridge.commands import bridge

    return [("bridge", bridge)]
