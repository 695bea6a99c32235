"""`lakemq bridge`: what bridges do, as their node's metrics tell it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Final
from urllib.error import URLError
from urllib.request import urlopen

import typer
from rich.console import Console
from rich.table import Table

bridge = typer.Typer(no_args_is_help=True, help="Bridges to remote MQTT brokers.")

_LINE: Final = re.compile(r'^bridge_([a-z_]+?)(?:_total)?\{[^}]*?\blink="([^"]*)"[^}]*\} (\S+)$')
_COLUMNS: Final = (
    "connected", "lag", "inflight", "forwarded", "received", "repeated", "refused", "lost",
    "connects", "failures",
)  # fmt: skip
_ANSWER_MAX_BYTES: Final = 64 * 1024 * 1024


@bridge.callback()
def _group() -> None:
    """Bridges to remote MQTT brokers."""


@bridge.command("status")
def status(
    admin: Annotated[
        str,
        typer.Option(envvar="LAKEMQ_ADMIN", metavar="HOST:PORT", help="The node's HTTP admin."),
    ] = "127.0.0.1:9703",
) -> None:
    """Show every link of a node: whether it stands, how far it is behind, what crossed."""
    try:
        with urlopen(f"http://{admin}/metrics", timeout=10) as answer:
            text = answer.read(_ANSWER_MAX_BYTES).decode()
    except (URLError, OSError, ValueError) as error:
        typer.echo(f"lakemq: {admin}: {error}", err=True)
        raise typer.Exit(1) from None
    links: dict[str, dict[str, int]] = {}
    for name, link, value in read_metrics(text):
        links.setdefault(link, {})[name] = value
    if not links:
        typer.echo("this node has no bridges")
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("link")
    for heading in _COLUMNS:
        table.add_column(heading, justify="right")
    for link, values in sorted(links.items()):
        stands = "yes" if values.get("connected") else "no"
        numbers = [f"{values.get(name, 0):,}" for name in _COLUMNS[1:]]
        table.add_row(link, stands, *numbers)
    Console().print(table)


def read_metrics(text: str) -> Iterator[tuple[str, str, int]]:
    """(name, link, value) of every bridge metric in Prometheus' text format."""
    for line in text.splitlines():
        found = _LINE.match(line)
        if found is not None:
            yield found[1], found[2], int(float(found[3]))
