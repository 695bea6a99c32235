"""The journal's hooks."""

from __future__ import annotations

from typing import cast

from lakemq.broker_core.api.hooks import hookimpl
from lakemq.broker_core.api.ports import Commands, PluginContext, Storage
from lakemq.broker_core.api.settings import PluginSettings
from lakemq.plugins.journal.metrics import register_metrics
from lakemq.plugins.journal.settings import JournalSettings
from lakemq.plugins.journal.storage import JournalStorage


@hookimpl
def register_settings() -> type[PluginSettings]:
    """The settings of `[plugins.journal]`."""
    return JournalSettings


@hookimpl
def register_storage(context: PluginContext) -> Storage:
    """The storage engine below the plugin's data folder, with its metrics; not started yet."""
    storage = JournalStorage(context.data_dir, cast(JournalSettings, context.settings))
    register_metrics(context.meter, storage)
    return storage


@hookimpl
def register_commands() -> Commands:
    """`lakemq journal`: verify, dump and stats."""
    from lakemq.plugins.journal.tools.commands import journal_app

    return [("journal", journal_app)]
