"""The native protocol as a plugin: hooks only."""

from __future__ import annotations

from collections.abc import Iterable

from broker_core.api.hooks import hookimpl
from broker_core.api.ports import Broker, Commands, Listener, PluginContext
from broker_core.api.settings import PluginSettings
from plugins.native.config import NativeSettings


@hookimpl
def register_settings() -> type[PluginSettings]:
    return NativeSettings


@hookimpl
def register_listeners(context: PluginContext, broker: Broker) -> Iterable[Listener]:
    from plugins.native.server import NativeListener

    assert isinstance(context.settings, NativeSettings)
    return [NativeListener(broker, context.settings, context.meter)]


@hookimpl
def register_commands() -> Commands:
    from plugins.native.admin_commands import cluster
    from plugins.native.commands import consume, produce, topic
    from plugins.native.group_commands import group
    from plugins.native.queue_commands import queue
    from plugins.native.schedule_commands import schedule
    from plugins.native.schema_commands import schema
    from plugins.native.transaction_commands import transaction

    return [
        ("topic", topic), ("group", group), ("queue", queue), ("schema", schema),
        ("cluster", cluster), ("transaction", transaction), ("schedule", schedule),
        ("produce", produce), ("consume", consume),
    ]  # fmt: skip
