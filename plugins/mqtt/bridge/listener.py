"""Starts and stops the bridges of a node."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

from lakemq.broker_core.api.administration.routes import AnyRoute
from lakemq.broker_core.api.errors import ConfigError
from lakemq.broker_core.api.ports import Broker, PluginContext
from lakemq.plugins.mqtt.bridge.config import BridgeSettings, LinkSettings
from lakemq.plugins.mqtt.bridge.link import tls_context
from lakemq.plugins.mqtt.bridge.metrics import BridgeRoutes, register_metrics
from lakemq.plugins.mqtt.bridge.owner import BridgeOwner, ConfiguredLink
from lakemq.plugins.mqtt.bridge.runner import Bridge


class BridgeService:
    """Implements the `Listener` port: the node starts and stops it like one, though it connects to
    others instead of listening."""

    name = "bridge"

    def __init__(self, broker: Broker, settings: BridgeSettings, context: PluginContext) -> None:
        self._node_id = broker.node_id
        links = [
            ConfiguredLink(each, _password(each), tls_context(each)) for each in settings.links
        ]
        self._owner = BridgeOwner(broker, links, random.Random().random)
        register_metrics(context.meter, self._bridges)

    def _bridges(self) -> Sequence[Bridge]:
        return self._owner.bridges

    async def start(self) -> None:
        """Begin to run the links that are this node's, in the background."""
        self._owner.start()

    def addresses(self) -> Sequence[str]:
        """None: a bridge connects to others."""
        return []

    def admin_routes(self) -> Sequence[AnyRoute]:
        """What operators see of the links."""
        return BridgeRoutes(self._node_id, self._bridges).routes()

    async def stop(self) -> None:
        """Disconnect all bridges; their states are persisted."""
        await self._owner.stop()


def _password(link: LinkSettings) -> str:
    if not link.password_env:
        return ""
    try:
        return os.environ[link.password_env]
    except KeyError:
        raise ConfigError(
            f"plugin bridge: link {link.name}: environment variable {link.password_env} "
            "(password_env) is not set"
        ) from None
