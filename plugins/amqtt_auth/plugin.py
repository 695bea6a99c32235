"""The adapter as a plugin: hooks only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakemq.broker_core.api.errors import PluginError
from lakemq.broker_core.api.hooks import hookimpl
from lakemq.broker_core.api.ports import Authenticator, Authorizer, PluginContext
from lakemq.broker_core.api.settings import PluginSettings
from lakemq.plugins.amqtt_auth.config import AmqttAuthSettings

if TYPE_CHECKING:
    from lakemq.plugins.amqtt_auth.adapter import Loaded


@hookimpl
def register_settings() -> type[PluginSettings]:
    """The settings of `[plugins.amqtt_auth]`."""
    return AmqttAuthSettings


@hookimpl
def register_authenticator(context: PluginContext) -> Authenticator | None:
    """The authentication plugins of amqtt; None: none is configured. Raises PluginError."""
    loaded = _loaded(context)
    if loaded is None or not loaded.authenticators:
        return None
    from lakemq.plugins.amqtt_auth.adapter import AmqttAuthenticator

    return AmqttAuthenticator(loaded.authenticators)


@hookimpl
def register_authorizer(context: PluginContext) -> Authorizer | None:
    """The topic plugins of amqtt; None: none is configured. Raises PluginError."""
    loaded = _loaded(context)
    if loaded is None or not loaded.topic_plugins:
        return None
    from lakemq.plugins.amqtt_auth.adapter import AmqttAuthorizer

    return AmqttAuthorizer(loaded.topic_plugins)


def _loaded(context: PluginContext) -> Loaded | None:
    settings = context.settings
    assert isinstance(settings, AmqttAuthSettings)
    if not settings.plugins:
        return None
    try:
        from lakemq.plugins.amqtt_auth.adapter import load
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("amqtt", "dacite"):
            raise
        raise PluginError(
            "plugin amqtt_auth: amqtt is not installed: pip install 'lakemq[amqtt-auth]'"
        ) from None
    return load(settings.plugins)
