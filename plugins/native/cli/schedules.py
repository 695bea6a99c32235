"""`lakemq schedule`: scheduled records from the command line."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from lakemq.broker_core.api.command_line import BrokerOptions, option_groups, print_table, say
from lakemq.plugins.native.cli.completion import topic_names
from lakemq.plugins.native.cli.connection import client_of

schedule = typer.Typer(no_args_is_help=True, help="List and cancel scheduled records.")


@schedule.command("list")
@option_groups
def list_waiting(
    topic: Annotated[
        str, typer.Option("--topic", help="Only of this topic.", autocompletion=topic_names)
    ] = "",
    count_max: Annotated[int, typer.Option("--count", "-n", min=1, max=10_000)] = 100,
    *,
    broker: BrokerOptions,
) -> None:
    """List scheduled records, the next due first."""
    with client_of(broker) as client:
        found = client.schedules.waiting(topic, count_max=count_max)
    rows = []
    for each in found:
        due = datetime.fromtimestamp(each.deliver_at_ms / 1000, UTC)
        rows.append(
            (
                f"{due:%Y-%m-%d %H:%M:%S}",
                each.topic,
                each.partition,
                each.records,
                each.schedule_id,
            )
        )
    print_table(("due (UTC)", "topic", "partition", "records", "id"), rows)


@schedule.command("cancel")
@option_groups
def cancel(
    schedule_id: Annotated[str, typer.Argument(metavar="ID")],
    *,
    broker: BrokerOptions,
) -> None:
    """Cancel scheduled records: they are not delivered."""
    with client_of(broker) as client:
        client.schedules.cancel(schedule_id)
    say(f"{schedule_id} is cancelled", cancelled=schedule_id)
