"""`lakemq partition`: where replicas are, and moving one partition."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from lakemq.broker_core.api.command_line import (
    AsJson,
    MetaOptions,
    option_groups,
    print_table,
)
from lakemq.cli.meta_access import ask_meta
from lakemq.meta_service.api.partition_health import (
    LEADERLESS,
    MOVING,
    UNDER_MIN_IN_SYNC,
    UNDER_REPLICATED,
    lacks,
)
from lakemq.meta_service.api.types import TopicDescription

partition = typer.Typer(no_args_is_help=True, help="Partitions: list, move, elect a leader.")


@partition.command("list")
@option_groups
def list_partitions(
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", help="Only of this topic; repeatable.")
    ] = None,
    leaderless: Annotated[bool, typer.Option("--leaderless", help="That no node leads.")] = False,
    under_min_in_sync: Annotated[
        bool, typer.Option("--under-min-in-sync", help="With fewer in sync than acks need.")
    ] = False,
    under_replicated: Annotated[
        bool, typer.Option("--under-replicated", help="With fewer in sync than wanted.")
    ] = False,
    moving: Annotated[bool, typer.Option("--moving", help="On their way to other nodes.")] = False,
    as_json: AsJson = False,
    *,
    members: MetaOptions,
) -> None:
    """List partitions and their replicas; with options those alone of which one of them is true."""
    wanted = {
        name
        for name, chosen in (
            (LEADERLESS, leaderless), (UNDER_MIN_IN_SYNC, under_min_in_sync),
            (UNDER_REPLICATED, under_replicated), (MOVING, moving),
        )
        if chosen
    }  # fmt: skip
    _, topics = ask_meta(members, lambda client: client.topics())
    found = [
        each
        for each in _listed([one for one in topics if not topic or one.name in topic])
        if not wanted or wanted & {*each["lacks"]}
    ]
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False))
        return
    rows = [
        (
            f"{each['topic']}/{each['partition']}", each["leader"] or "-",
            str(each["leader_epoch"]), _nodes(each["replicas"]), _nodes(each["in_sync"]),
            _nodes(each["eligible"]), str(each["min_in_sync"]), _nodes(each["target"]),
            ", ".join(each["lacks"]),
        )
        for each in found
    ]  # fmt: skip
    headings = (
        "partition", "leader", "epoch", "replicas", "in sync", "eligible", "min", "target", "lacks"
    )  # fmt: skip
    print_table(headings, rows, numbers=("epoch", "min"))


def _listed(topics: Sequence[TopicDescription]) -> list[dict[str, Any]]:
    return [
        {
            "topic": topic.name,
            "partition": each.partition,
            "leader": each.leader,
            "leader_epoch": each.leader_epoch,
            "replicas": each.replicas,
            "in_sync": each.in_sync,
            "eligible": each.eligible,
            "min_in_sync": each.min_in_sync,
            "target": each.target,
            "lacks": lacks(topic, each),
        }
        for topic in topics
        for each in topic.partitions
    ]


def _nodes(names: Sequence[str]) -> str:
    return " ".join(names) or "-"
