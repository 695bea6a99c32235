"""`lakemq schedule`: records that wait for their time, from the command line."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from lakemq.plugins.native.cli.commands import Bootstrap, client_of

schedule = typer.Typer(no_args_is_help=True, help="List and cancel records that appear later.")


@schedule.command("list")
def list_waiting(
    topic: Annotated[str, typer.Option("--topic", help="Only of this topic.")] = "",
    count_max: Annotated[int, typer.Option("--count", "-n", min=1, max=10_000)] = 100,
    bootstrap: Bootstrap = "127.0.0.1:9700",
) -> None:
    """List what waits, next first."""
    with client_of(bootstrap) as client:
        found = client.schedules.waiting(topic, count_max=count_max)
    table = Table(box=None, pad_edge=False)
    for heading in ("due (UTC)", "topic", "partition", "records", "id"):
        numbers = heading in ("partition", "records")
        table.add_column(heading, justify="right" if numbers else "left", overflow="fold")
    for each in found:
        due = datetime.fromtimestamp(each.deliver_at_ms / 1000, UTC)
        table.add_row(
            f"{due:%Y-%m-%d %H:%M:%S}", each.topic, str(each.partition), f"{each.records:,}",
            each.schedule_id,
        )  # fmt: skip
    Console().print(table)


@schedule.command("cancel")
def cancel(
    schedule_id: Annotated[str, typer.Argument(metavar="ID")],
    bootstrap: Bootstrap = "127.0.0.1:9700",
) -> None:
    """Forget records that wait: they never appear."""
    with client_of(bootstrap) as client:
        client.schedules.cancel(schedule_id)
    typer.echo(f"{schedule_id} is cancelled")
