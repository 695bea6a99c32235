"""`lakemq queue`: queues from the command line."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from lakemq.plugins.native.cli.commands import Bootstrap, client_of, fail
from lakemq.plugins.native.sdk import QueueOptions

queue = typer.Typer(no_args_is_help=True, help="List, describe, alter, reset and delete queues.")
Topic = Annotated[str, typer.Option("--topic", "-t", help="Whose queue.")]


@queue.command("list")
def list_queues(bootstrap: Bootstrap = "127.0.0.1:9700") -> None:
    """List all queues."""
    with client_of(bootstrap) as client:
        found = client.admin.queues()
    table = _table("group", "topic", "consumers", "held", "backlog")
    for each in found:
        held = sum(part.held for part in each.partitions)
        table.add_row(each.group, each.topic, str(each.consumers), f"{held:,}", f"{each.backlog:,}")
    Console().print(table)


@queue.command("describe")
def describe_queue(group: str, topic: Topic, bootstrap: Bootstrap = "127.0.0.1:9700") -> None:
    """Show the offsets of a queue in every partition, and its settings."""
    with client_of(bootstrap) as client:
        queues = client.admin.queues(group, topic)
    if not queues:
        fail(f"there is no queue of group {group} on topic {topic}")
    (found,) = queues
    console = Console()
    console.print(f"{group} on {topic}: {found.consumers} consumer(s)")
    table = _table("partition", "start", "high watermark", "held", "backlog", "dead letters")
    for each in found.partitions:
        table.add_row(
            str(each.partition), f"{each.start_offset:,}", f"{each.high_watermark:,}",
            f"{each.held:,}", f"{each.backlog:,}", f"{each.dead_letters:,}",
        )  # fmt: skip
    console.print(table)
    settings = "  ".join(f"{key}={value}" for key, value in sorted(found.settings.items()))
    console.print(settings, soft_wrap=True, highlight=False)


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("group", "topic") else "right")
    return table


@queue.command("alter")
def alter_queue(
    group: str,
    topic: Topic,
    lock_ms: Annotated[int | None, typer.Option(help="Time for one record (ms).")] = None,
    attempts_max: Annotated[
        int | None, typer.Option(help="Failures until a record is a dead letter; 0: never is.")
    ] = None,
    dead_letter: Annotated[str | None, typer.Option(help="Topic of dead letters.")] = None,
    order: Annotated[str | None, typer.Option(help="none or key.")] = None,
    backoff_ms: Annotated[int | None, typer.Option(help="First pause (ms).")] = None,
    backoff_ms_max: Annotated[int | None, typer.Option(help="Longest pause (ms).")] = None,
    bootstrap: Bootstrap = "127.0.0.1:9700",
) -> None:
    """Change settings of a queue, or create it."""
    settings = QueueOptions()
    for name, value in (
        ("lock_ms", lock_ms), ("attempts_max", attempts_max), ("dead_letter", dead_letter),
        ("order", order), ("backoff_ms", backoff_ms), ("backoff_ms_max", backoff_ms_max),
    ):  # fmt: skip
        if value is not None:
            settings[name] = value  # type: ignore[literal-required]  # names are those above
    with client_of(bootstrap) as client:
        now = client.admin.alter_queue(group, topic, **settings)
    typer.echo("  ".join(f"{key}={value}" for key, value in sorted(now.items())))


@queue.command("reset")
def reset_queue(
    group: str,
    topic: Topic,
    to: Annotated[
        str, typer.Option("--to", help="earliest, latest, an offset, or time:MS (since 1970, UTC).")
    ],
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, help="Default: all of them.")
    ] = None,
    bootstrap: Bootstrap = "127.0.0.1:9700",
) -> None:
    """Let a queue without consumers continue from another offset."""
    with client_of(bootstrap) as client:
        numbers = [each.partition for each in client.describe_topic(topic).partitions]
        chosen = [each for each in numbers if partition in (None, each)]
        if not chosen:
            fail(f"topic {topic} has no partition {partition}")
        if to in ("earliest", "latest"):
            offsets = dict.fromkeys(chosen, -1 if to == "earliest" else -2)
        elif to.isdecimal():
            offsets = dict.fromkeys(chosen, int(to))
        elif to.startswith("time:") and to[5:].isdecimal():
            at_time = client.offsets_for_timestamp(topic, int(to[5:]))
            offsets = {number: at_time[number] for number in chosen}
        else:
            fail(f"--to is {to!r}; it takes earliest, latest, an offset or time:MS")
        client.admin.reset_queue(group, topic, offsets)
    typer.echo(f"{group} on {topic} continues from {to}")


@queue.command("delete")
def delete_queue(
    group: str,
    topic: Topic,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = "127.0.0.1:9700",
) -> None:
    """Delete a queue without consumers. Its topic is not changed."""
    if not yes:
        typer.confirm(f"Delete the queue of {group} on {topic}?", abort=True)
    with client_of(bootstrap) as client:
        client.admin.delete_queue(group, topic)
    typer.echo(f"deleted the queue of {group} on {topic}")
