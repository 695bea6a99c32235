"""The line protocol as a plugin: hooks only. LakeMQ calls them once, when it starts."""

from __future__ import annotations

from collections.abc import Iterable

from lakemq.broker_core.api.hooks import hookimpl
from lakemq.broker_core.api.ports import (
    Authenticator,
    Authorizer,
    Broker,
    Interceptor,
    Listener,
    PluginContext,
)
from lakemq.broker_core.api.settings import PluginSettings
from lakemq_line.access import LineAuthenticator, LineAuthorizer
from lakemq_line.origin import OriginHeader
from lakemq_line.settings import LineSettings


@hookimpl
def register_settings() -> type[PluginSettings]:
    return LineSettings


@hookimpl
def register_listeners(context: PluginContext, broker: Broker) -> Iterable[Listener]:
    from lakemq_line.server import LineListener

    return [LineListener(broker, _settings(context), context.meter)]


@hookimpl
def register_authenticator() -> Authenticator:
    return LineAuthenticator()


@hookimpl
def register_authorizer(context: PluginContext) -> Authorizer:
    return LineAuthorizer(_settings(context).topics)


@hookimpl
def register_interceptors() -> Iterable[Interceptor]:
    return [OriginHeader()]


def _settings(context: PluginContext) -> LineSettings:
    assert isinstance(context.settings, LineSettings)
    return context.settings
