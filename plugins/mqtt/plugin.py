"""Hooks of the MQTT plugin: settings, listeners, and users by certificate."""

from __future__ import annotations

from collections.abc import Iterable

from broker_core.api.errors import NotAuthenticated, PluginError
from broker_core.api.hooks import hookimpl
from broker_core.api.ports import Authenticator, Broker, Listener, PluginContext
from broker_core.api.settings import PluginSettings
from broker_core.api.types import Credentials, Principal
from plugins.mqtt.config import MqttSettings
from plugins.mqtt.engine import MqttEngine
from plugins.mqtt.metrics import register_metrics
from plugins.mqtt.server import MqttListener
from plugins.mqtt.tls import common_name


@hookimpl
def register_settings() -> type[PluginSettings]:
    return MqttSettings


@hookimpl
def register_listeners(context: PluginContext, broker: Broker) -> Iterable[Listener]:
    settings = context.settings
    if not isinstance(settings, MqttSettings):
        raise PluginError(f"plugin {context.name}: settings are {type(settings).__name__}")
    engine = MqttEngine(settings, broker)
    register_metrics(context.meter, engine.hub)
    return [MqttListener(each, engine) for each in settings.all_listeners()]


@hookimpl
def register_authenticator(context: PluginContext) -> Authenticator:
    return CertificateAuthenticator()


class CertificateAuthenticator:
    """A client that showed a verified certificate is the user of its common name."""

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        subject = credentials.certificate_subject
        if credentials.protocol != "mqtt" or subject is None:
            return None
        name = common_name(subject)
        if not name:
            raise NotAuthenticated(f"certificate {subject} has no common name")
        return Principal(name, attributes={"certificate_subject": subject})
