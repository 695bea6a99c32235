"""`lakemq bridge`: what bridges do, as their node's metrics tell it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import typer

from lakemq.broker_core.api.admin_client import ask_admin
from lakemq.broker_core.api.command_line import AdminOptions, is_json, option_groups, print_table

bridge = typer.Typer(no_args_is_help=True, help="Bridges to remote MQTT brokers.")

_LINE: Final = re.compile(
    r'^lakemq_bridge_([a-z_]+?)(?:_total)?\{[^}]*?\blink="([^"]*)"[^}]*\} (\S+)$'
)
_COLUMNS: Final = (
    "connected", "lag", "inflight", "forwarded", "received", "repeated", "refused", "lost",
    "connects", "failures",
)  # fmt: skip


@bridge.callback()
def _group() -> None:
    """Bridges to remote MQTT brokers."""


@bridge.command("status")
@option_groups
def status(node: AdminOptions) -> None:
    """Show every link of a node: whether it is connected, its lag, and record counts."""
    text = ask_admin(node, "metrics").decode()
    links: dict[str, dict[str, int]] = {}
    for name, link, value in read_metrics(text):
        links.setdefault(link, {})[name] = value
    if not links and not is_json():
        typer.echo("this node has no bridges")
        return
    rows = [
        (link, bool(values.get("connected")), *(values.get(name, 0) for name in _COLUMNS[1:]))
        for link, values in sorted(links.items())
    ]
    print_table(("link", *_COLUMNS), rows)


def read_metrics(text: str) -> Iterator[tuple[str, str, int]]:
    """(name, link, value) of every bridge metric in Prometheus' text format."""
    for line in text.splitlines():
        found = _LINE.match(line)
        if found is not None:
            yield found[1], found[2], int(float(found[3]))
