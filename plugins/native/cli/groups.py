"""`lakemq group`: consumer groups from the command line."""

from __future__ import annotations

from dataclasses import asdict
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
from lakemq.plugins.native.cli.completion import GroupName, topic_names
from lakemq.plugins.native.cli.connection import client_of
from lakemq.plugins.native.sdk import GroupDescription, SyncClient, TopicPartition

group = typer.Typer(no_args_is_help=True, help="List, describe, reset and delete consumer groups.")


@group.command("list")
@option_groups
def list_groups(broker: BrokerOptions) -> None:
    """List all consumer groups."""
    with client_of(broker) as client:
        found = client.groups()
    rows = [(each.name, each.state, len(each.members), each.lag) for each in found]
    print_table(("group", "state", "members", "lag"), rows)


@group.command("describe")
@option_groups
def describe_group(name: GroupName, *, broker: BrokerOptions) -> None:
    """Show a group's members, and its committed offset in every partition."""
    with client_of(broker) as client:
        found = client.describe_group(name)
    if is_json():
        print_json({**asdict(found), "lag": found.lag})
        return
    typer.echo(f"{found.name}  {found.state}, epoch {found.epoch}, {len(found.members)} member(s)")
    _print_offsets(found)


def _print_offsets(found: GroupDescription) -> None:
    owners = {at: member for member in found.members for at in member.partitions}
    rows = []
    for each in found.offsets:
        owner = owners.get(TopicPartition(each.topic, each.partition))
        rows.append(
            (
                each.topic,
                each.partition,
                None if each.committed_offset < 0 else each.committed_offset,
                None if each.high_watermark < 0 else each.high_watermark,
                None if each.high_watermark < 0 else each.lag,
                "" if owner is None else owner.instance_id or owner.member_id,
            )
        )
    print_table(("topic", "partition", "committed", "high watermark", "lag", "member"), rows)


@group.command("reset-offsets")
@option_groups
def reset_offsets(
    name: GroupName,
    topic: Annotated[
        str,
        typer.Option(
            "--topic", "-t", help="Topic whose offsets are set.", autocompletion=topic_names
        ),
    ],
    to: Annotated[
        str, typer.Option("--to", help="earliest, latest, an offset, or time:MS (since 1970, UTC).")
    ],
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, help="Default: all of them.")
    ] = None,
    *,
    broker: BrokerOptions,
) -> None:
    """Set the committed offsets of a group that has no members."""
    with client_of(broker) as client:
        offsets = _resolved(client, topic, partition, to)
        client.reset_offsets(name, offsets)
    lines = (
        f"{name}: {at.topic}-{at.partition} committed offset is {offset:,}"
        for at, offset in offsets.items()
    )
    committed = {at.partition: offset for at, offset in offsets.items()}
    say("\n".join(lines), group=name, topic=topic, committed_offsets=committed)


def _resolved(
    client: SyncClient, topic: str, partition: int | None, to: str
) -> dict[TopicPartition, int]:
    """What `to` means for every partition asked for."""
    found = client.describe_topic(topic).partitions
    chosen = [each for each in found if partition in (None, each.partition)]
    if not chosen:
        fail(f"topic {topic} has no partition {partition}", ExitCode.UNKNOWN)
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
        fail(f"--to is {to!r}; it takes earliest, latest, an offset or time:MS", ExitCode.USAGE)
    return {TopicPartition(topic, number): offset for number, offset in offsets.items()}


@group.command("delete")
@option_groups
def delete_group(
    name: GroupName,
    yes: Yes = False,
    *,
    broker: BrokerOptions,
) -> None:
    """Delete a group that has no members, and its committed offsets."""
    if not yes:
        confirm(f"Delete group {name} and its committed offsets?")
    with client_of(broker) as client:
        client.delete_group(name)
    say(f"deleted group {name}", deleted=name)
