"""The ledger as a plugin: hooks only."""

from __future__ import annotations

from collections.abc import Iterable

from lakemq.broker_core.api.hooks import hookimpl
from lakemq.broker_core.api.ports import Broker, Commands, Listener, PluginContext
from lakemq.broker_core.api.settings import PluginSettings
from lakemq.plugins.ledger.config import LedgerSettings


@hookimpl
def register_settings() -> type[PluginSettings]:
    """The section `[plugins.ledger]`."""
    return LedgerSettings


@hookimpl
def register_listeners(context: PluginContext, broker: Broker) -> Iterable[Listener]:
    """What keeps the ledgers of this node."""
    from lakemq.plugins.ledger.listener import LedgerService

    assert isinstance(context.settings, LedgerSettings)
    return [LedgerService(broker, context.settings, context.meter)]


@hookimpl
def register_commands() -> Commands:
    """`lakemq ledger`."""
    from lakemq.plugins.ledger.cli import ledger

    return [("ledger", ledger)]
