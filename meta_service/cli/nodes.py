"""`lakemq meta nodes|drain|remove-node|rebalance`: the brokers, and who holds what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from lakemq.meta_service.api.control import RebalanceAction
from lakemq.meta_service.api.types import NodeRegistration, Rebalance, TopicDescription
from lakemq.meta_service.cli.calls import (
    DEFAULT,
    Addresses,
    TlsCa,
    TlsCert,
    TlsKey,
    ask,
    credentials_from,
    fail,
    show,
)

if TYPE_CHECKING:
    from lakemq.meta_service.api.client import RemoteClient

MOVES_PRINTED = 50
app = typer.Typer()
Node = Annotated[str, typer.Argument(metavar="NODE", help="A broker's node id.")]


@app.command()
def nodes(
    address: Addresses = DEFAULT, tls_cert: TlsCert = "", tls_key: TlsKey = "", tls_ca: TlsCa = ""
) -> None:
    """The brokers: their state, rack, and what they hold and lead."""

    async def call(
        client: RemoteClient,
    ) -> tuple[Sequence[NodeRegistration], Sequence[TopicDescription]]:
        return await client.nodes(), (await client.topics())[1]

    found, topics = ask(address, credentials_from(tls_cert, tls_key, tls_ca), call)
    partitions = [partition for topic in topics for partition in topic.partitions]
    held = Counter(node for partition in partitions for node in partition.replicas)
    led = Counter(partition.leader for partition in partitions)
    rows = []
    for node in found:
        addresses = ", ".join(f"{name} {at}" for name, at in sorted(node.addresses.items()))
        numbers = (str(held[node.node_id]), str(led[node.node_id]))
        about = (node.version, str(node.broker_epoch), addresses)
        rows.append((node.node_id, node.state, node.rack or "-", *numbers, *about))
    show(("node", "state", "rack", "replicas", "leads", "version", "epoch", "addresses"), rows)


@app.command()
def drain(
    node: Node,
    address: Addresses = DEFAULT,
    tls_cert: TlsCert = "",
    tls_key: TlsKey = "",
    tls_ca: TlsCa = "",
) -> None:
    """Move leadership away from a broker before it stops; a rebalance moves its replicas too.

    It is active again when it registers the next time. A drained broker that holds no replicas and
    falls silent is removed.
    """
    credentials = credentials_from(tls_cert, tls_key, tls_ca)
    ask(address, credentials, lambda client: client.drain_node(node))
    typer.echo(f"{node} drains")


@app.command()
def remove_node(
    node: Node,
    address: Addresses = DEFAULT,
    tls_cert: TlsCert = "",
    tls_key: TlsKey = "",
    tls_ca: TlsCa = "",
) -> None:
    """Remove a broker that is gone for good. Refused while it is alive or holds replicas."""
    credentials = credentials_from(tls_cert, tls_key, tls_ca)
    ask(address, credentials, lambda client: client.remove_node(node))
    typer.echo(f"{node} is removed")


@app.command()
def rebalance(
    plan: Annotated[bool, typer.Option("--plan", help="Only show what would be moved.")] = False,
    stop: Annotated[
        bool, typer.Option("--stop", help="Begin no more moves; those under way go on.")
    ] = False,
    leaving: Annotated[
        list[str] | None,
        typer.Option(metavar="NODE", help="Shall hold no replicas; may be repeated."),
    ] = None,
    at_once: Annotated[
        int, typer.Option(min=1, max=1000, help="Partitions that move at a time.")
    ] = 20,
    address: Addresses = DEFAULT,
    tls_cert: TlsCert = "",
    tls_key: TlsKey = "",
    tls_ca: TlsCa = "",
) -> None:
    """Move replicas so that brokers and racks carry alike, as few as possible.

    Replicas leave brokers that drain. It goes on in the background, and under a new leader, until
    nothing is left to move; call it with --plan to see what is left.
    """
    if plan and stop:
        fail("--plan and --stop exclude each other")
    action: RebalanceAction = "plan" if plan else "stop" if stop else "start"
    credentials = credentials_from(tls_cert, tls_key, tls_ca)
    told = ask(
        address,
        credentials,
        lambda client: client.rebalance(action, leaving=leaving or (), at_once=at_once),
    )
    _print(told)


def _print(told: Rebalance) -> None:
    for move in told.moves[:MOVES_PRINTED]:
        replicas, target = " ".join(move.replicas), " ".join(move.target)
        typer.echo(f"{move.topic}/{move.partition}: {replicas} -> {target}")
    if len(told.moves) > MOVES_PRINTED:
        typer.echo(f"... and {len(told.moves) - MOVES_PRINTED} more")
    copies = sum(len(set(move.target) - set(move.replicas)) for move in told.moves)
    typer.echo(
        f"{len(told.moves)} partitions to move, {copies} replicas to copy; {told.moving} under "
        f"way; {'a rebalance runs' if told.running else 'no rebalance runs'}"
    )
