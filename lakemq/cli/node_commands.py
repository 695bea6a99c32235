"""`lakemq node`: who is in the cluster, and how a node leaves it."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from lakemq.broker_core.administration.reports import node_reports
from lakemq.broker_core.api.command_line import (
    MetaOptions,
    Yes,
    confirm,
    duration,
    option_groups,
    print_table,
    progress,
    say,
)
from lakemq.cli.cluster_commands import AtOnce
from lakemq.cli.completion import node_ids
from lakemq.cli.meta_access import ask_meta, credentials_of, run_meta
from lakemq.meta_service.api.errors import InvalidArgument, NotFound
from lakemq.meta_service.api.types import (
    NodeLoad,
    NodeRegistration,
    TopicDescription,
    is_brokers_own,
)

if TYPE_CHECKING:
    from lakemq.meta_service.api.remote.client import RemoteClient

_PAUSE_S: Final = 0.5
"""Between two looks at a decommission."""
_SHOWN_MAX: Final = 5
"""Partitions that are named in an error."""
_MOVES_MAX: Final = 1000
"""Of one call."""
_FIGURES: Final = (
    ("disk", "disk_used_ratio", ".2f"),
    ("connections", "connections", ",.0f"),
    ("behind", "replica_lag_records", ",.0f"),
)
"""Columns of heartbeats' figures: (name, figure, format)."""
node = typer.Typer(no_args_is_help=True, help="Nodes: list, drain, decommission, remove.")
Node = Annotated[str, typer.Argument(metavar="NODE", help="A node id.", autocompletion=node_ids)]


@node.command("list")
@option_groups
def list_nodes(members: MetaOptions) -> None:
    """List nodes: state, roles, partitions that they lead, replicas, what heartbeats say.

    Behind: the most records that a replica on the node lacks of those that its leader has
    committed. Up: how long its process has been running. What the leader of the MetaService has
    not heard is shown as -.
    """

    async def ask(client: RemoteClient) -> list[dict[str, Any]]:
        nodes, (_, topics) = await client.nodes(), await client.topics()
        loads = {load.node_id: load for load in (await client.loads()).nodes}
        return _listed(nodes, topics, loads)

    found = ask_meta(members, ask)
    rows = [
        (
            each["node"], each["state"], "+".join(each["roles"]) or None, each["rack"] or None,
            each["leads"], each["replicas"],
            *(_shown(each["figures"].get(figure), form) for _, figure, form in _FIGURES),
            duration(each["figures"].get("uptime_s")), _shown(each["silent_s"], ".1f", " s"),
            each["version"] or None, each["broker_epoch"],
            ", ".join(f"{name} {at}" for name, at in sorted(each["addresses"].items())),
        )
        for each in found
    ]  # fmt: skip
    figures = (name for name, _, _ in _FIGURES)
    numbers = ("leads", "replicas", *figures, "up", "heartbeat")
    head = ("node", "state", "roles", "rack", *numbers, "version", "epoch", "addresses")
    print_table(head, rows, data=found)


def _listed(
    nodes: Sequence[NodeRegistration],
    topics: Sequence[TopicDescription],
    loads: Mapping[str, NodeLoad],
) -> list[dict[str, Any]]:
    partitions = [partition for topic in topics for partition in topic.partitions]
    held = Counter(node for partition in partitions for node in partition.replicas)
    led = Counter(partition.leader for partition in partitions)
    return [asdict(each) for each in node_reports(nodes, loads, led, held)]


def _shown(value: float | None, form: str, unit: str = "") -> str:
    return "-" if value is None else f"{value:{form}}{unit}"


@node.command()
@option_groups
def drain(name: Node, *, members: MetaOptions) -> None:
    """Move leadership away from a node, and place no new partitions there.

    It takes part again after `lakemq node undrain`, or when it registers the next time. A rebalance
    moves its replicas too; a drained node that holds none and falls silent is removed.
    """
    ask_meta(members, lambda client: client.drain_node(name))
    say(f"draining {name}", node=name, state="draining")


@node.command()
@option_groups
def undrain(name: Node, *, members: MetaOptions) -> None:
    """Let a node that drains take leaderships and replicas again.

    Replicas that have moved stay where they are; `lakemq cluster rebalance` gives it its share.
    """
    ask_meta(members, lambda client: client.undrain_node(name))
    say(f"{name} is active", node=name, state="active")


@node.command()
@option_groups
def remove(name: Node, *, members: MetaOptions) -> None:
    """Remove a node that is gone for good. Refused while it is alive or holds replicas."""
    ask_meta(members, lambda client: client.remove_node(name))
    say(f"removed {name}", node=name, removed=True)


@node.command()
@option_groups
def decommission(
    name: Node, at_once: AtOnce = 20, yes: Yes = False, *, members: MetaOptions
) -> None:
    """Move everything off a node, alive or dead, and let it leave the cluster.

    It is drained, its replicas move to other nodes, it leaves the MetaService's group. Ends with
    exit code 0 when that is done: then it may be stopped. Ctrl-C ends only the waiting, moves go on
    in the background; `lakemq node undrain` ends the decommission.

    Some internal topics (those of the ledger) are each node's own and are not copied. If the node
    leads some of them, their leadership goes to other nodes after a confirmation: what they hold
    stays behind.
    """
    ask_meta(members, lambda client: _empty(client, name, at_once))
    own = ask_meta(members, lambda client: _held(client, name, internal=True))
    if own and not yes:
        confirm(
            f"{name} leads {len(own)} partitions of internal topics ({_some(own)}), which are not "
            "copied: queues, transactions and scheduled records in them stay behind. Go on?"
        )
    if own:
        ask_meta(members, lambda client: _give_away(client, name))
    status = ask_meta(members, lambda client: client.status())
    if name in status.members:
        from lakemq.meta_service.api import operations

        credentials = credentials_of(members)
        run_meta(lambda: operations.remove_member(members.address, name, credentials))
        progress(f"{name} has left the MetaService's group")
    if ask_meta(members, lambda client: _stays(client, name)):
        say(f"{name} holds nothing: stop it, and it is removed", node=name, removed=False)
    else:
        say(f"removed {name}", node=name, removed=True)


async def _empty(client: RemoteClient, name: str, at_once: int) -> None:
    """Until the node holds no replica. Raises NotFound, InvalidArgument."""
    found = await _find(client, name)
    if found is None:
        raise NotFound(f"node {name!r} is not registered")
    await client.rebalance("start", leaving=[name], at_once=at_once)
    epoch, last = 0, -1
    while found is not None:
        if found.state == "active":
            # A node that restarts has another epoch; it would get new partitions again.
            if found.broker_epoch == epoch:
                raise InvalidArgument(f"node {name!r} was undrained: the decommission is over")
            epoch = found.broker_epoch
            await client.drain_node(name)
        # Asked before its replicas are counted: if both say so, nothing more will move.
        running = (await client.rebalance()).running
        held = await _held(client, name, internal=False)
        if len(held) != last:
            progress(f"{name}: {len(held)} replicas left")
        if not held:
            return
        # Nothing moves until it is back: no other node has anything to copy.
        if found.state == "fenced" and await _only_there(client, name) == held:
            raise InvalidArgument(
                f"{len(held)} partitions have no replica in sync but that of {name!r} "
                f"({_some(held)}), which does not run. Start it and repeat this, or delete the "
                "topics; where another replica is alive, `lakemq partition elect --unclean` lets "
                "it lead, without what it lacks"
            )
        if not running:
            raise InvalidArgument(
                f"{len(held)} replicas of {name!r} have nowhere to go ({_some(held)}): no other "
                "active node with room lacks them. Add a node and repeat this, or undrain the node"
            )
        last = len(held)
        await asyncio.sleep(_PAUSE_S)
        found = await _find(client, name)


async def _find(client: RemoteClient, name: str) -> NodeRegistration | None:
    """None: it is not registered, as a node that has drained and was stopped."""
    return next((each for each in await client.nodes() if each.node_id == name), None)


async def _held(client: RemoteClient, name: str, *, internal: bool) -> list[str]:
    """Partitions of which the node holds a replica, as `topic/number`."""
    _, topics = await client.topics()
    return [
        f"{topic.name}/{partition.partition}"
        for topic in topics
        for partition in topic.partitions
        if name in partition.replicas and is_brokers_own(topic.name) == internal
    ]


async def _only_there(client: RemoteClient, name: str) -> list[str]:
    """Those of them, but internal ones, of which no other node has all records."""
    _, topics = await client.topics()
    return [
        f"{topic.name}/{partition.partition}"
        for topic in topics
        for partition in topic.partitions
        if {*partition.in_sync, *partition.eligible} == {name} and not is_brokers_own(topic.name)
    ]


async def _give_away(client: RemoteClient, name: str) -> None:
    """Partitions of internal topics go to other active nodes, by turns. Raises InvalidArgument."""
    others = sorted(
        node.node_id
        for node in await client.nodes()
        if node.state == "active" and node.node_id != name
    )
    if not others:
        raise InvalidArgument("no other node is active")
    turns = itertools.cycle(others)
    _, topics = await client.topics()
    moves = [
        (topic.name, partition.partition, partition.partition_epoch, (next(turns),))
        for topic in topics
        for partition in topic.partitions
        if name in partition.replicas and is_brokers_own(topic.name)
    ]
    for start in range(0, len(moves), _MOVES_MAX):
        await client.move(moves[start : start + _MOVES_MAX])


def _some(names: Sequence[str]) -> str:
    more = ", ..." if len(names) > _SHOWN_MAX else ""
    return ", ".join(names[:_SHOWN_MAX]) + more


async def _stays(client: RemoteClient, name: str) -> bool:
    """Whether the node is alive, and so stays registered; one that is not is removed."""
    found = await _find(client, name)
    if found is not None and found.state == "fenced":
        await client.remove_node(name)
        return False
    return found is not None
