"""`lakemq group`: consumer groups from the command line."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from lakemq.plugins.native.cli.commands import Bootstrap, client_of, fail
from lakemq.plugins.native.sdk import GroupDescription, SyncClient, TopicPartition

group = typer.Typer(no_args_is_help=True, help="List, describe, reset and delete consumer groups.")


@group.command("list")
def list_groups(bootstrap: Bootstrap = "127.0.0.1:9700") -> None:
    """List all consumer groups."""
    with client_of(bootstrap) as client:
        found = client.groups()
    table = _table("group", "state", "members", "lag")
    for each in found:
        table.add_row(each.name, each.state, str(len(each.members)), f"{each.lag:,}")
    Console().print(table)


@group.command("describe")
def describe_group(name: str, bootstrap: Bootstrap = "127.0.0.1:9700") -> None:
    """Show a group's members, and where it stands in every partition."""
    with client_of(bootstrap) as client:
        found = client.describe_group(name)
    console = Console()
    console.print(
        f"{found.name}  {found.state}, epoch {found.epoch}, {len(found.members)} member(s)"
    )
    console.print(_offsets_of(found), soft_wrap=True)


def _offsets_of(found: GroupDescription) -> Table:
    owners = {at: member for member in found.members for at in member.partitions}
    table = _table("topic", "partition", "committed", "high watermark", "lag", "member")
    for each in found.offsets:
        owner = owners.get(TopicPartition(each.topic, each.partition))
        table.add_row(
            each.topic,
            str(each.partition),
            "-" if each.committed_offset < 0 else f"{each.committed_offset:,}",
            "-" if each.high_watermark < 0 else f"{each.high_watermark:,}",
            "-" if each.high_watermark < 0 else f"{each.lag:,}",
            "" if owner is None else owner.instance_id or owner.member_id,
        )
    return table


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        words = heading in ("group", "state", "topic", "member")
        table.add_column(heading, justify="left" if words else "right")
    return table


@group.command("reset-offsets")
def reset_offsets(
    name: str,
    topic: Annotated[str, typer.Option("--topic", "-t", help="Whose offsets.")],
    to: Annotated[
        str, typer.Option("--to", help="earliest, latest, an offset, or time:MS (since 1970, UTC).")
    ],
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, help="Default: all of them.")
    ] = None,
    bootstrap: Bootstrap = "127.0.0.1:9700",
) -> None:
    """Let a group without members go on from elsewhere."""
    with client_of(bootstrap) as client:
        offsets = _resolved(client, topic, partition, to)
        client.reset_offsets(name, offsets)
    for at, offset in offsets.items():
        typer.echo(f"{name}: {at.topic}-{at.partition} goes on from offset {offset:,}")


def _resolved(
    client: SyncClient, topic: str, partition: int | None, to: str
) -> dict[TopicPartition, int]:
    """What `to` means for every partition asked for."""
    found = client.describe_topic(topic).partitions
    chosen = [each for each in found if partition in (None, each.partition)]
    if not chosen:
        fail(f"topic {topic} has no partition {partition}")
    if to == "earliest":
        offsets = {each.partition: each.log_start_offset for each in chosen}
    elif to == "latest":
        offsets = {each.partition: each.high_watermark for each in chosen}
    elif to.isdecimal():
        offsets = {each.partition: int(to) for each in chosen}
    elif to.startswith("time:") and to[5:].isdecimal():
        at_time = client.offsets_for_timestamp(topic, int(to[5:]))
        offsets = {each.partition: at_time[each.partition] for each in chosen}
    else:
        fail(f"--to is {to!r}; it takes earliest, latest, an offset or time:MS")
    return {TopicPartition(topic, number): offset for number, offset in offsets.items()}


@group.command("delete")
def delete_group(
    name: str,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = "127.0.0.1:9700",
) -> None:
    """Forget a group without members, and its offsets."""
    if not yes:
        typer.confirm(f"Forget group {name} and its offsets?", abort=True)
    with client_of(bootstrap) as client:
        client.delete_group(name)
    typer.echo(f"deleted {name}")
