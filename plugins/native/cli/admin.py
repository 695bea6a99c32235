"""`lakemq topic alter|add-partitions|delete-records` and `lakemq cluster`."""

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
from lakemq.plugins.native.cli.commands import MinInSync, Replicas, topic
from lakemq.plugins.native.cli.completion import TopicName
from lakemq.plugins.native.cli.connection import client_of
from lakemq.plugins.native.sdk import SyncClient, TopicOffsets

cluster = typer.Typer()
"""Commands of the group that `lakemq.cli` has under this name."""


@cluster.callback()
def _cluster() -> None:
    """So that one command alone still has its name."""


@topic.command("alter")
@option_groups
def alter_topic(
    name: TopicName,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="NAME=VALUE", help="A topic setting; repeatable."),
    ] = None,
    reset: Annotated[
        list[str] | None,
        typer.Option("--reset", metavar="NAME", help="Back to the broker's default; repeatable."),
    ] = None,
    replicas: Replicas = None,
    min_isr: MinInSync = None,
    *,
    broker: BrokerOptions,
) -> None:
    """Change settings of a topic; the others stay. Replicas come and go in the background."""
    settings = dict(each.partition("=")[::2] for each in config or ())
    if not (settings or reset or replicas or min_isr):
        fail("nothing to change: give --config, --reset, --replicas or --min-isr", ExitCode.USAGE)
    with client_of(broker) as client:
        found = client.admin.alter_topic(
            name, settings, reset=reset or (), replication=replicas, min_in_sync=min_isr
        )
    counts = {"replicas": replicas, "min-isr": min_isr}
    now: dict[str, object] = {name: count for name, count in counts.items() if count is not None}
    now |= {each: found.config[each] for each in sorted({*settings, *(reset or ())})}
    say("\n".join(f"{name}: {option}={value}" for option, value in now.items()), topic=name, **now)


@topic.command("add-partitions")
@option_groups
def add_partitions(
    name: TopicName,
    partitions: Annotated[int, typer.Argument(min=1, help="How many there shall be in all.")],
    *,
    broker: BrokerOptions,
) -> None:
    """Let a topic have more partitions. Keys may then go to other ones than before."""
    with client_of(broker) as client:
        found = client.admin.add_partitions(name, partitions)
    count = len(found.partitions)
    say(f"{name} has {count} partition(s)", topic=name, partitions=count)


@topic.command("delete-records")
@option_groups
def delete_records(
    name: TopicName,
    before: Annotated[
        str,
        typer.Option(
            "--before", help="First offset to keep; latest: none; time:MS (since 1970, UTC)."
        ),
    ],
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, help="Default: all of them.")
    ] = None,
    yes: Yes = False,
    *,
    broker: BrokerOptions,
) -> None:
    """Delete the oldest records of a topic."""
    with client_of(broker) as client:
        wanted = _wanted(client, client.describe_topic(name), partition, before)
        if not yes:
            confirm(f"Delete records of {name} before {wanted}?")
        starts = client.admin.delete_records(name, wanted)
    lines = (f"{name}-{number} starts at offset {at:,}" for number, at in sorted(starts.items()))
    say("\n".join(lines), topic=name, log_start_offsets=starts)


def _wanted(
    client: SyncClient, found: TopicOffsets, partition: int | None, before: str
) -> dict[int, int]:
    """Partition -> first offset to keep."""
    chosen = [each for each in found.partitions if partition in (None, each.partition)]
    if not chosen:
        fail(f"topic {found.name} has no partition {partition}", ExitCode.UNKNOWN)
    if before == "latest":
        return {each.partition: each.high_watermark for each in chosen}
    if before.startswith("time:") and before[5:].isdecimal():
        at_time = client.offsets_for_timestamp(found.name, int(before[5:]))
        return {each.partition: at_time[each.partition] for each in chosen}
    if not before.isdecimal():
        fail(f"--before is {before!r}; it takes an offset, latest or time:MS", ExitCode.USAGE)
    if partition is None and len(chosen) > 1:
        fail("--before with an offset needs --partition: offsets of partitions have nothing in "
             "common", ExitCode.USAGE)  # fmt: skip
    return {each.partition: int(before) for each in chosen}


@cluster.command("describe")
@option_groups
def describe_cluster(broker: BrokerOptions) -> None:
    """Show the cluster's nodes, its MetaService, and the plugins of the node that answers."""
    with client_of(broker) as client:
        found = client.admin.describe_cluster()
    if is_json():
        print_json(found)
        return
    typer.echo(
        f"cluster {found.cluster_id}, catalog revision {found.revision:,}; MetaService: "
        f"{', '.join(found.meta_members) or '-'}, leader {found.meta_leader or '-'}"
    )
    nodes = []
    for each in found.nodes:
        addresses = "  ".join(f"{name}={at}" for name, at in sorted(each.addresses.items()))
        nodes.append((each.node_id, each.state, each.version, each.rack or "-", addresses))
    print_table(("node", "state", "version", "rack", "addresses"), nodes)
    plugins = [
        (plugin.name, plugin.version, plugin.distribution, "on" if plugin.enabled else "off")
        for plugin in found.plugins
    ]
    print_table((f"plugin of {found.node_id}", "version", "from", "state"), plugins)
