"""The commands that speak the native protocol, for the whole product and for clients."""

from __future__ import annotations

from lakemq.plugins.native.cli.admin import cluster
from lakemq.plugins.native.cli.commands import topic
from lakemq.plugins.native.cli.consume import consume
from lakemq.plugins.native.cli.groups import group
from lakemq.plugins.native.cli.produce import produce
from lakemq.plugins.native.cli.proto import proto
from lakemq.plugins.native.cli.queues import queue
from lakemq.plugins.native.cli.schedules import schedule
from lakemq.plugins.native.cli.schemas import schema
from lakemq.plugins.native.cli.transactions import transaction

COMMANDS: list[tuple[str, object]] = [
    ("topic", topic),
    ("group", group),
    ("queue", queue),
    ("schema", schema),
    ("cluster", cluster),
    ("transaction", transaction),
    ("schedule", schedule),
    ("produce", produce),
    ("consume", consume),
    ("proto", proto),
]
"""Name -> typer.Typer, or a function."""
