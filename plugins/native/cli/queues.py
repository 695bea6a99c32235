"""`lakemq queue`: queues from the command line."""

from __future__ import annotations

from typing import Annotated

import typer

from lakemq.broker_core.api.command_line import (
    BrokerOptions,
    ExitCode,
    Yes,
    confirm,
    fail,
    is_json,
    option_groups,
    print_json,
    print_table,
    say,
)
from lakemq.plugins.native.cli.completion import QueueName, topic_names
from lakemq.plugins.native.cli.connection import client_of
from lakemq.plugins.native.sdk import QueueOptions

queue = typer.Typer(no_args_is_help=True, help="List, describe, alter, reset and delete queues.")
Topic = Annotated[
    str,
    typer.Option("--topic", "-t", help="Topic of the queue.", autocompletion=topic_names),
]


@queue.command("list")
@option_groups
def list_queues(broker: BrokerOptions) -> None:
    """List all queues."""
    with client_of(broker) as client:
        found = client.admin.queues()
    rows = []
    for each in found:
        held = sum(part.held for part in each.partitions)
        rows.append((each.group, each.topic, each.consumers, held, each.backlog))
    print_table(("group", "topic", "consumers", "held", "backlog"), rows)


@queue.command("describe")
@option_groups
def describe_queue(group: QueueName, topic: Topic, *, broker: BrokerOptions) -> None:
    """Show a queue's offsets and counts in every partition, and its settings."""
    with client_of(broker) as client:
        queues = client.admin.queues(group, topic)
    if not queues:
        fail(f"there is no queue of group {group} on topic {topic}", ExitCode.UNKNOWN)
    (found,) = queues
    if is_json():
        print_json(found)
        return
    typer.echo(f"{group} on {topic}: {found.consumers} consumer(s)")
    rows = [
        (
            each.partition,
            each.start_offset,
            each.high_watermark,
            each.held,
            each.backlog,
            each.dead_letters,
        )
        for each in found.partitions
    ]
    headings = ("partition", "start", "high watermark", "held", "backlog", "dead letters")
    print_table(headings, rows)
    typer.echo("  ".join(f"{key}={value}" for key, value in sorted(found.settings.items())))


@queue.command("alter")
@option_groups
def alter_queue(
    group: QueueName,
    topic: Topic,
    lock_ms: Annotated[int | None, typer.Option(help="Time for one record (ms).")] = None,
    attempts_max: Annotated[
        int | None,
        typer.Option(help="Deliveries until a record is a dead letter; 0: never."),
    ] = None,
    dead_letter: Annotated[str | None, typer.Option(help="Topic of dead letters.")] = None,
    order: Annotated[str | None, typer.Option(help="none or key.")] = None,
    backoff_ms: Annotated[int | None, typer.Option(help="First pause (ms).")] = None,
    backoff_ms_max: Annotated[int | None, typer.Option(help="Longest pause (ms).")] = None,
    *,
    broker: BrokerOptions,
) -> None:
    """Change settings of a queue, created if absent."""
    settings = QueueOptions()
    for name, value in (
        ("lock_ms", lock_ms),
        ("attempts_max", attempts_max),
        ("dead_letter", dead_letter),
        ("order", order),
        ("backoff_ms", backoff_ms),
        ("backoff_ms_max", backoff_ms_max),
    ):
        if value is not None:
            settings[name] = value  # type: ignore[literal-required]  # names are those above
    with client_of(broker) as client:
        now = client.admin.alter_queue(group, topic, **settings)
    say("  ".join(f"{key}={value}" for key, value in sorted(now.items())), **now)


@queue.command("reset")
@option_groups
def reset_queue(
    group: QueueName,
    topic: Topic,
    to: Annotated[
        str, typer.Option("--to", help="earliest, latest, an offset, or time:MS (since 1970, UTC).")
    ],
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, help="Default: all of them.")
    ] = None,
    *,
    broker: BrokerOptions,
) -> None:
    """Set the start offsets of a queue that has no consumers."""
    with client_of(broker) as client:
        numbers = [each.partition for each in client.describe_topic(topic).partitions]
        chosen = [each for each in numbers if partition in (None, each)]
        if not chosen:
            fail(f"topic {topic} has no partition {partition}", ExitCode.UNKNOWN)
        if to in ("earliest", "latest"):
            offsets = dict.fromkeys(chosen, -1 if to == "earliest" else -2)
        elif to.isdecimal():
            offsets = dict.fromkeys(chosen, int(to))
        elif to.startswith("time:") and to[5:].isdecimal():
            at_time = client.offsets_for_timestamp(topic, int(to[5:]))
            offsets = {number: at_time[number] for number in chosen}
        else:
            fail(f"--to is {to!r}; it takes earliest, latest, an offset or time:MS", ExitCode.USAGE)
        client.admin.reset_queue(group, topic, offsets)
    say(f"{group} on {topic} continues from {to}", group=group, topic=topic, to=to)


@queue.command("delete")
@option_groups
def delete_queue(
    group: QueueName,
    topic: Topic,
    yes: Yes = False,
    *,
    broker: BrokerOptions,
) -> None:
    """Delete a queue that has no consumers. Its topic is not changed."""
    if not yes:
        confirm(f"Delete the queue of {group} on {topic}?")
    with client_of(broker) as client:
        client.admin.delete_queue(group, topic)
    say(f"deleted the queue of {group} on {topic}", group=group, topic=topic, deleted=True)
