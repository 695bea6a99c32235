"""Starts and stops all bridges of a node."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

from lakemq.broker_core.api.administration.routes import AnyRoute
from lakemq.broker_core.api.errors import ConfigError, LakeMQError, StartupError
from lakemq.broker_core.api.ports import Broker, PluginContext
from lakemq.plugins.mqtt.bridge.config import BridgeSettings, LinkSettings
from lakemq.plugins.mqtt.bridge.link import tls_context
from lakemq.plugins.mqtt.bridge.metrics import BridgeRoutes, register_metrics
from lakemq.plugins.mqtt.bridge.runner import Bridge
from lakemq.plugins.mqtt.bridge.state_log import StateLog


class BridgeService:
    """Implements the `Listener` port: the node starts and stops it like one, though it connects to
    others instead of listening."""

    name = "bridge"

    def __init__(self, broker: Broker, settings: BridgeSettings, context: PluginContext) -> None:
        self._node_id = broker.node_id
        self._states = StateLog(broker)
        rng = random.Random().random
        self.bridges = [
            Bridge(
                link,
                broker,
                self._states,
                password=_password(link),
                tls=tls_context(link),
                rng=rng,
            )
            for link in settings.links
        ]
        register_metrics(context.meter, self.bridges)

    async def start(self) -> None:
        """Read the persisted states and start all bridges. Raises StartupError."""
        try:
            kept = await self._states.read()
            for bridge in self.bridges:
                await bridge.start(kept.get(bridge.settings.name))
        except LakeMQError as error:
            raise StartupError(f"bridge: {error}") from error

    def addresses(self) -> Sequence[str]:
        """None: a bridge connects to others."""
        return []

    def admin_routes(self) -> Sequence[AnyRoute]:
        """What operators see of the links."""
        return BridgeRoutes(self._node_id, self.bridges).routes()

    async def stop(self) -> None:
        """Disconnect all bridges; their states are persisted."""
        for bridge in self.bridges:
            await bridge.stop()


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
