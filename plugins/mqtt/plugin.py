"""Hooks of the MQTT plugin: settings and listeners."""

from __future__ import annotations

from collections.abc import Iterable

from lakemq.broker_core.api.errors import PluginError
from lakemq.broker_core.api.hooks import hookimpl
from lakemq.broker_core.api.ports import Broker, Commands, Listener, PluginContext
from lakemq.broker_core.api.settings import PluginSettings
from lakemq.plugins.mqtt.config import MqttSettings
from lakemq.plugins.mqtt.ops.metrics import register_metrics
from lakemq.plugins.mqtt.server.engine import MqttEngine
from lakemq.plugins.mqtt.server.tcp import MqttListener


@hookimpl
def register_settings() -> type[PluginSettings]:
    """The section `[plugins.mqtt]`."""
    return MqttSettings


@hookimpl
def register_listeners(context: PluginContext, broker: Broker) -> Iterable[Listener]:
    """One engine, shared by a listener for each configured address."""
    settings = context.settings
    if not isinstance(settings, MqttSettings):
        raise PluginError(f"plugin {context.name}: settings are {type(settings).__name__}")
    engine = MqttEngine(settings, broker)
    if context.traces is not None:
        engine.follow(context.traces)
    register_metrics(context.meter, engine.hub)
    process = context.process
    return [
        MqttListener(each, engine, shares_port=process is not None)
        for each in settings.all_listeners()
        # One process alone can have a unix socket.
        if process is None or process.number == 1 or each.transport != "unix"
    ]


@hookimpl
def register_commands() -> Commands:
    """The group `lakemq mqtt`."""
    from lakemq.plugins.mqtt.ops.commands import mqtt

    return [("mqtt", mqtt)]
