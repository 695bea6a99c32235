"""The admin API as a plugin: hooks only."""

from __future__ import annotations

from lakemq.broker_core.api.administration.node import AdministeredNode
from lakemq.broker_core.api.hooks import hookimpl
from lakemq.broker_core.api.ports import Commands, Listener, PluginContext
from lakemq.broker_core.api.settings import PluginSettings
from lakemq.plugins.admin.config import AdminSettings


@hookimpl
def register_settings() -> type[PluginSettings]:
    """The settings of `[plugins.admin]`."""
    return AdminSettings


@hookimpl
def register_admin(context: PluginContext, node: AdministeredNode) -> Listener:
    """The HTTP listener; not started yet."""
    # Imported here: aiohttp is not loaded for a command that needs no listener.
    from lakemq.plugins.admin.listener import AdminListener

    assert isinstance(context.settings, AdminSettings)
    # Operators and Prometheus ask the first process, which asks the others.
    further = context.process is not None and context.process.number > 1
    return AdminListener(node, context.settings, answers_peers_only=further)


@hookimpl
def register_commands() -> Commands:
    """`lakemq audit`, `lakemq dashboard`, `lakemq key`, and commands of `lakemq config`."""
    from lakemq.plugins.admin.cli.audit import audit
    from lakemq.plugins.admin.cli.configuration import configuration
    from lakemq.plugins.admin.cli.keys import key
    from lakemq.plugins.admin.dashboard.command import dashboard

    return [("audit", audit), ("config", configuration), ("dashboard", dashboard), ("key", key)]
