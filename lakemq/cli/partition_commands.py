"""`lakemq partition`: where replicas are, and moving one partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from lakemq.broker_core.administration.partition_changes import (
    PartitionNow,
    changed,
    check_move,
)
from lakemq.broker_core.administration.unclean import unclean_leader
from lakemq.broker_core.api.command_line import (
    ExitCode,
    MetaOptions,
    fail,
    option_groups,
    print_table,
    say,
)
from lakemq.cli.completion import node_ids, partitions, topic_names
from lakemq.cli.meta_access import ask_meta
from lakemq.meta_service.api.errors import CompareFailed, NotFound
from lakemq.meta_service.api.partition_health import (
    LEADERLESS,
    MOVING,
    UNDER_MIN_IN_SYNC,
    UNDER_REPLICATED,
    lacks,
)
from lakemq.meta_service.api.types import ReplicaEnd, TopicDescription

if TYPE_CHECKING:
    from lakemq.meta_service.api.remote.client import RemoteClient

partition = typer.Typer(no_args_is_help=True, help="Partitions: list, move, elect a leader.")


@partition.command("list")
@option_groups
def list_partitions(
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", "-t", help="Only of this topic; repeatable.", autocompletion=topic_names
        ),
    ] = None,
    leaderless: Annotated[bool, typer.Option("--leaderless", help="That no node leads.")] = False,
    under_min_in_sync: Annotated[
        bool, typer.Option("--under-min-in-sync", help="With fewer in sync than acks need.")
    ] = False,
    under_replicated: Annotated[
        bool, typer.Option("--under-replicated", help="With fewer in sync than wanted.")
    ] = False,
    moving: Annotated[bool, typer.Option("--moving", help="On their way to other nodes.")] = False,
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
    rows = [
        (
            f"{each['topic']}/{each['partition']}", each["leader"], each["leader_epoch"],
            each["replicas"], each["in_sync"], each["eligible"], each["min_in_sync"],
            each["target"],
            ", ".join(each["lacks"]),
        )
        for each in found
    ]  # fmt: skip
    headings = (
        "partition", "leader", "epoch", "replicas", "in sync", "eligible", "min", "target", "lacks"
    )  # fmt: skip
    print_table(headings, rows, data=found)


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


# ------------------------------------------------------------ one partition


class Place(NamedTuple):
    """One partition."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"


def _place(text: str) -> Place:
    """Raises typer.BadParameter."""
    topic, _, number = text.rpartition("/")
    if not (topic and number.isascii() and number.isdecimal()):
        raise typer.BadParameter(f"{text!r} is no TOPIC/NUMBER, such as readings/3")
    return Place(topic, int(number))


Partition = Annotated[
    Place,
    typer.Argument(
        metavar="TOPIC/NUMBER", parser=_place, help="Such as readings/3.", autocompletion=partitions
    ),
]


@partition.command()
@option_groups
def move(
    place: Partition,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="NODES",
            help="By commas, the preferred leader first.",
            autocompletion=node_ids,
        ),
    ],
    *,
    members: MetaOptions,
) -> None:
    """Move a partition to other nodes. Its replicas there are copied in the background, and the old
    ones go when all new ones are in sync; `partition list --moving` shows it until then."""
    target = tuple(name for name in to.split(",") if name)

    async def ask(client: RemoteClient) -> PartitionNow:
        found = await _described(client, place)
        check_move(found, target)
        begun = await client.move([(*place, found.partition_epoch, target)])
        if not begun:
            raise CompareFailed(changed(found))
        return found

    before = ask_meta(members, ask)
    say(
        f"moving {place}: {' '.join(before.replicas)} -> {' '.join(target)}",
        **place._asdict(),
        replicas=before.replicas,
        target=target,
    )


@partition.command()
@option_groups
def elect(
    place: Partition,
    unclean: Annotated[
        bool,
        typer.Option("--unclean", help="A replica that lacks acknowledged records may lead."),
    ] = False,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="NODE",
            help="With --unclean: the replica that leads.",
            autocompletion=node_ids,
        ),
    ] = "",
    *,
    members: MetaOptions,
) -> None:
    """Give a partition's leadership to its preferred replica, the first one, if that is in sync.

    With --unclean: to the replica with the most records of those that are alive, when none that has
    all acknowledged ones is. What it lacks is lost for good, so the partition's name must be typed
    in again.
    """
    if not unclean:
        if to:
            wrong = "--to belongs to --unclean; lakemq partition move changes the preferred replica"
            fail(wrong, ExitCode.USAGE)
        leader = ask_meta(members, lambda client: _elect(client, place))
        say(f"{place} is led by {leader or 'no node'}", **place._asdict(), leader=leader)
        return
    found, node, ends = ask_meta(members, lambda client: _candidate(client, place, to))
    for name, end in ends.items():
        typer.echo(
            f"{name} has offsets {end.start}..{end.end - 1}, the last of leader epoch "
            f"{end.last_epoch}",
            err=True,
        )
    what = f"at offset {ends[node].end}" if node in ends else "with what it has"
    typer.echo(
        f"{place} has no leader. With {node} as its leader it goes on {what}; "
        "acknowledged records that only other replicas have are lost.",
        err=True,
    )
    if typer.prompt("Type the partition's name to go on", err=True) != str(place):
        fail("that is not its name: nothing was changed")
    epoch = ask_meta(
        members,
        lambda client: client.elect_unclean(
            place.topic, place.number, partition_epoch=found.partition_epoch, node_id=node
        ),
    )
    said = f"{place} is led by {node} in leader epoch {epoch}"
    say(said, **place._asdict(), leader=node, leader_epoch=epoch)


async def _elect(client: RemoteClient, place: Place) -> str | None:
    await client.elect_preferred(*place)
    return (await _described(client, place)).leader


async def _candidate(
    client: RemoteClient, place: Place, to: str
) -> tuple[PartitionNow, str, dict[str, ReplicaEnd]]:
    """(the partition, the replica that shall lead it, where replicas end). Raises InvalidRequest,
    NotFound."""
    found = await _described(client, place)
    node, ends = await unclean_leader(client, found, to)
    return found, node, ends


async def _described(client: RemoteClient, place: Place) -> PartitionNow:
    """Raises NotFound."""
    _, topics = await client.topics()
    topic = next((each for each in topics if each.name == place.topic), None)
    if topic is None:
        raise NotFound(f"topic {place.topic!r} does not exist")
    if place.number >= len(topic.partitions):
        raise NotFound(f"topic {topic.name!r} has no partition {place.number}")
    held = topic.partitions[place.number]
    return PartitionNow(
        *place, topic.topic_id, held.leader, held.replicas, held.partition_epoch, topic.replication
    )
