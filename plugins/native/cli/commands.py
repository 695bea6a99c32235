"""`lakemq topic`: topics from the command line."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from lakemq.broker_core.api.command_line import (
    BrokerOptions,
    Yes,
    confirm,
    is_json,
    option_groups,
    print_json,
    print_table,
    say,
)
from lakemq.plugins.native.cli.completion import TopicName
from lakemq.plugins.native.cli.connection import client_of
from lakemq.plugins.native.sdk import PartitionOffsets, TopicOffsets

topic = typer.Typer(no_args_is_help=True, help="Create, list, describe, alter, delete topics.")


Replicas = Annotated[
    int | None,
    typer.Option("--replicas", min=1, help="Nodes that each partition is on."),
]
MinInSync = Annotated[
    int | None,
    typer.Option(
        "--min-isr", min=1, help="Replicas that must be in sync to acknowledge as replicated."
    ),
]


@topic.command("create")
@option_groups
def create_topic(
    name: str,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="Default: the broker's.")
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="NAME=VALUE", help="A topic setting; repeatable."),
    ] = None,
    replicas: Replicas = None,
    min_isr: MinInSync = None,
    *,
    broker: BrokerOptions,
) -> None:
    """Create a topic."""
    settings = dict(each.partition("=")[::2] for each in config or ())
    with client_of(broker) as client:
        made = client.create_topic(
            name, partitions, settings, replication=replicas, min_in_sync=min_isr
        )
    count = len(made.partitions)
    said = f"created {made.name} with {count} partition(s), id {made.topic_id}"
    say(said, topic=made.name, partitions=count, id=made.topic_id)


@topic.command("list")
@option_groups
def list_topics(broker: BrokerOptions) -> None:
    """List all topics."""
    with client_of(broker) as client:
        topics = client.topics()
    rows = []
    for each in topics:
        records = sum(one.high_watermark - one.log_start_offset for one in each.partitions)
        size = sum(one.size_bytes for one in each.partitions)
        rows.append((each.name, len(each.partitions), records, size))
    print_table(("topic", "partitions", "records", "bytes"), rows)


@topic.command("describe")
@option_groups
def describe_topic(name: TopicName, *, broker: BrokerOptions) -> None:
    """Show a topic's partitions and settings."""
    with client_of(broker) as client:
        found = client.describe_topic(name)
    if is_json():
        print_json(found)
        return
    typer.echo(f"{found.name}  id {found.topic_id}")
    _print_partitions(found)
    typer.echo("  ".join(f"{key}={value}" for key, value in sorted(found.config.items())))


def _print_partitions(found: TopicOffsets) -> None:
    rows = [_row(each) for each in found.partitions]
    headings: tuple[str, ...] = (
        "partition", "state", "leader", "epoch", *_REPLICAS, *_OFFSETS, "detail",
    )  # fmt: skip
    if not any(len(each.replicas) > 1 for each in found.partitions):
        kept = [place for place, heading in enumerate(headings) if heading not in _REPLICAS]
        rows = [tuple(row[place] for place in kept) for row in rows]
        headings = tuple(headings[place] for place in kept)
    print_table(headings, rows)


_REPLICAS: Final = ("replicas", "in sync", "eligible", "behind")
_OFFSETS: Final = ("log start", "high watermark", "log end", "segments", "bytes")


def _row(each: PartitionOffsets) -> tuple[object, ...]:
    behind = [f"{node}:{lag:,}" for node, lag in sorted(each.lags.items()) if lag]
    return (
        each.partition, each.state, each.leader or None, each.leader_epoch, each.replicas,
        each.in_sync, each.eligible, behind, each.log_start_offset, each.high_watermark,
        each.log_end_offset, each.segments, each.size_bytes, each.detail,
    )  # fmt: skip


@topic.command("delete")
@option_groups
def delete_topic(
    name: TopicName,
    yes: Yes = False,
    *,
    broker: BrokerOptions,
) -> None:
    """Delete a topic and everything in it."""
    if not yes:
        confirm(f"Delete topic {name} and all its records?")
    with client_of(broker) as client:
        client.delete_topic(name)
    say(f"deleted {name}", deleted=name)
