"""Section `[plugins.amqtt_auth]`."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from lakemq.broker_core.api.settings import PluginSettings, Section


class AmqttPluginSettings(Section):
    """One plugin of amqtt."""

    path: str = Field(pattern=r"^[A-Za-z_][\w.]*\.[A-Za-z_]\w*$")
    """Where its class is, like `amqtt.plugins.authentication.FileAuthPlugin`."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Fields of the class' own `Config`."""


class AmqttAuthSettings(PluginSettings):
    """Authentication and topic plugins written for the amqtt broker. Needs `lakemq[amqtt-auth]`."""

    plugins: list[AmqttPluginSettings] = Field(default_factory=list)
    """The plugins, in the order in which they are asked. One that says no is obeyed; one that says
    nothing leaves it to the next."""
