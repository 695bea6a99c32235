"""`lakemq meta nodes|drain|remove-node|rebalance`: the brokers and their replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from lakemq.broker_core.api.command_line import MetaOptions, fail, option_groups, print_table
from lakemq.cli.meta_access import ask_meta
from lakemq.meta_service.api.remote.control_calls import RebalanceAction
from lakemq.meta_service.api.types import NodeRegistration, Rebalance, TopicDescription

if TYPE_CHECKING:
    from lakemq.meta_service.api.remote.client import RemoteClient

MOVES_PRINTED = 50
app = typer.Typer()
Node = Annotated[str, typer.Argument(metavar="NODE", help="A broker's node id.")]


@app.command("nodes")
@option_groups
def list_nodes(members: MetaOptions) -> None:
    """List brokers: state, rack, numbers of replicas and of partitions they lead."""

    async def call(
        client: RemoteClient,
    ) -> tuple[Sequence[NodeRegistration], Sequence[TopicDescription]]:
        return await client.nodes(), (await client.topics())[1]

    found, topics = ask_meta(members, call)
    partitions = [partition for topic in topics for partition in topic.partitions]
    held = Counter(node for partition in partitions for node in partition.replicas)
    led = Counter(partition.leader for partition in partitions)
    rows = []
    for node in found:
        addresses = ", ".join(f"{name} {at}" for name, at in sorted(node.addresses.items()))
        numbers = (str(held[node.node_id]), str(led[node.node_id]))
        about = (node.version, str(node.broker_epoch), addresses)
        rows.append((node.node_id, node.state, node.rack or "-", *numbers, *about))
    headings = ("node", "state", "rack", "replicas", "leads", "version", "epoch", "addresses")
    print_table(headings, rows)


@app.command()
@option_groups
def drain(
    node: Node,
    *,
    members: MetaOptions,
) -> None:
    """Move leadership away from a broker before it stops; a rebalance moves its replicas too.

    It is active again when it registers the next time. A drained broker that holds no replicas and
    falls silent is removed.
    """
    ask_meta(members, lambda client: client.drain_node(node))
    typer.echo(f"draining {node}")


@app.command()
@option_groups
def remove_node(
    node: Node,
    *,
    members: MetaOptions,
) -> None:
    """Remove a broker that is gone for good. Refused while it is alive or holds replicas."""
    ask_meta(members, lambda client: client.remove_node(node))
    typer.echo(f"removed {node}")


@app.command()
@option_groups
def rebalance(
    plan: Annotated[bool, typer.Option("--plan", help="Only show what would be moved.")] = False,
    stop: Annotated[
        bool, typer.Option("--stop", help="Start no more moves; running ones are finished.")
    ] = False,
    leaving: Annotated[
        list[str] | None,
        typer.Option(metavar="NODE", help="Move all replicas off this node; repeatable."),
    ] = None,
    at_once: Annotated[
        int, typer.Option(min=1, max=1000, help="Partitions that move at a time.")
    ] = 20,
    *,
    members: MetaOptions,
) -> None:
    """Move as few replicas as needed to balance brokers and racks.

    Replicas are moved off draining brokers. The rebalance runs in the background, also after a
    change of leader, until no moves are left; --plan shows them.
    """
    if plan and stop:
        fail("--plan and --stop exclude each other")
    action: RebalanceAction = "plan" if plan else "stop" if stop else "start"
    found = ask_meta(
        members,
        lambda client: client.rebalance(action, leaving=leaving or (), at_once=at_once),
    )
    _print(found)


def _print(found: Rebalance) -> None:
    for move in found.moves[:MOVES_PRINTED]:
        replicas, target = " ".join(move.replicas), " ".join(move.target)
        typer.echo(f"{move.topic}/{move.partition}: {replicas} -> {target}")
    if len(found.moves) > MOVES_PRINTED:
        typer.echo(f"... and {len(found.moves) - MOVES_PRINTED} more")
    copies = sum(len(set(move.target) - set(move.replicas)) for move in found.moves)
    typer.echo(
        f"{len(found.moves)} partitions to move, {copies} replicas to copy; {found.moving} in "
        f"progress; {'rebalance running' if found.running else 'no rebalance running'}"
    )
