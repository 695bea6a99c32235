"""Webhooks as a plugin: hooks only."""

from __future__ import annotations

from collections.abc import Iterable

from lakemq.broker_core.api.hooks import hookimpl
from lakemq.broker_core.api.ports import Broker, Listener, PluginContext
from lakemq.broker_core.api.settings import PluginSettings
from lakemq.plugins.webhook.config import WebhookSettings


@hookimpl
def register_settings() -> type[PluginSettings]:
    """The section `[plugins.webhook]`."""
    return WebhookSettings


@hookimpl
def register_listeners(context: PluginContext, broker: Broker) -> Iterable[Listener]:
    """The webhooks of this node. Raises ConfigError: an environment variable is missing."""
    settings = context.settings
    assert isinstance(settings, WebhookSettings)
    if not settings.hooks:
        return []
    # Here: an HTTP client is among the dearest imports.
    from lakemq.plugins.webhook.listener import WebhookService

    return [WebhookService(broker, settings, context.meter)]
