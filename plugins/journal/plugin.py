"""The journal's hooks."""

from __future__ import annotations

from typing import cast

from broker_core.api.hooks import hookimpl
from broker_core.api.ports import Commands, PluginContext, Storage
from broker_core.api.settings import PluginSettings
from plugins.journal.commands import journal_app
from plugins.journal.metrics import register_metrics
from plugins.journal.settings import JournalSettings
from plugins.journal.storage import JournalStorage


@hookimpl
def register_settings() -> type[PluginSettings]:
    return JournalSettings


@hookimpl
def register_storage(context: PluginContext) -> Storage:
    storage = JournalStorage(context.data_dir, cast(JournalSettings, context.settings))
    register_metrics(context.meter, storage)
    return storage


@hookimpl
def register_commands() -> Commands:
    return [("journal", journal_app)]
