"""Moving replicas: a partition gets a target, new replicas catch up, then the others go.

While a partition moves, its replicas are those that are in sync and those of the target; nothing in
sync is given up before the whole target is. A move is redirected by giving it another target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from lakemq.meta_service.api.errors import InvalidArgument
from lakemq.meta_service.api.types import (
    CLUSTER_LEVEL,
    PartitionDescription,
    TopicDescription,
    is_brokers_own,
)
from lakemq.meta_service.catalog.command_codec import (
    Command,
    check_hex,
    check_integer,
    check_items,
    check_list,
    check_name,
    command,
)
from lakemq.meta_service.catalog.control_commands import ACTIVE, REPLICAS_MAX, TOPICS_MAX
from lakemq.meta_service.catalog.draft import Draft
from lakemq.meta_service.catalog.entries import check_flag
from lakemq.meta_service.catalog.nodes import all_nodes, holds_replicas
from lakemq.meta_service.catalog.pages.rows import PageEdits, page_id
from lakemq.meta_service.catalog.tables import pack, unpack
from lakemq.meta_service.catalog.topics import count_replicas, find_topic, save_topic, topic_key

LEVEL: Final = 2
REBALANCE_KEY: Final = b"\x00rebalance"
"""There while replicas shall be moved: `[nodes that shall hold none, moves at once]`."""
LEAVING_MAX: Final = 1000

Move = tuple[str, str, int, int, tuple[str, ...]]
"""(topic, topic id, partition, partition epoch, target: preferred leader first)."""


@command("move+")
@dataclass(frozen=True, slots=True)
class StartMoves(Command):
    """Give partitions a target. Compare-and-set on each partition's epoch."""

    level: ClassVar[int] = LEVEL

    moves: tuple[Move, ...]

    def check(self) -> None:
        """Raises InvalidArgument that names the field."""
        check_list(self.moves, "moves")
        if len(self.moves) > TOPICS_MAX:
            raise InvalidArgument(f"moves: at most {TOPICS_MAX} at once")
        for move in self.moves:
            topic, topic_id, partition, epoch, target = check_items(move, "move", 5)
            check_name(topic, "move.topic")
            check_hex(topic_id, "move.topic_id")
            check_integer(partition, "move.partition", 0, 2**31)
            check_integer(epoch, "move.partition_epoch", 0, 2**62)
            check_list(target, "move.target")
            if not 0 < len(target) <= REPLICAS_MAX:
                raise InvalidArgument(f"move.target: must name 1 to {REPLICAS_MAX} nodes")
            for name in target:
                check_name(name, "move.target")
            if len(set(target)) < len(target):
                raise InvalidArgument("move.target: names a node twice")


@command("move=")
@dataclass(frozen=True, slots=True)
class FinishMoves(Command):
    """Let partitions whose whole target is in sync go over to it."""

    level: ClassVar[int] = LEVEL

    topics: tuple[str, ...]

    def check(self) -> None:
        """Raises InvalidArgument that names the field."""
        check_list(self.topics, "topics")
        if len(self.topics) > TOPICS_MAX:
            raise InvalidArgument(f"topics: at most {TOPICS_MAX} at once")
        for name in self.topics:
            check_name(name, "topics")


@command("rebalance")
@dataclass(frozen=True, slots=True)
class SetRebalance(Command):
    """Ask the controller to move replicas until there is nothing to move, or to stop that."""

    level: ClassVar[int] = LEVEL

    wanted: bool
    leaving: tuple[str, ...]
    """Nodes that shall hold no replicas, beside those that drain."""
    at_once: int
    """Partitions that move at a time."""

    def check(self) -> None:
        """Raises InvalidArgument that names the field."""
        check_flag(self.wanted, "wanted")
        check_list(self.leaving, "leaving")
        if len(self.leaving) > LEAVING_MAX:
            raise InvalidArgument(f"leaving: at most {LEAVING_MAX} nodes")
        for name in self.leaving:
            check_name(name, "leaving")
        check_integer(self.at_once, "at_once", 1, 1000)


# ------------------------------------------------------------ rules


def begin_move(partition: PartitionDescription, target: tuple[str, ...]) -> PartitionDescription:
    """On its way to the target; at its end already where the target needs no new replica."""
    # Replicas of an earlier target that never came in sync go: the move was redirected.
    members = {*partition.in_sync, *partition.eligible}
    kept = tuple(n for n in partition.replicas if n in members or n in target)
    new = tuple(n for n in target if n not in kept)
    moving = replace(
        partition,
        replicas=(*kept, *new),
        target=target,
        partition_epoch=partition.partition_epoch + 1,
    )
    same = set(target) == set(partition.replicas)
    return replace(moving, replicas=target, target=()) if same else moving


def relocate(
    partition: PartitionDescription, target: tuple[str, ...], states: Mapping[str, str]
) -> PartitionDescription:
    """At the target at once, nothing copied: of a topic that every node has a copy of its own."""
    able = [node for node in target if states.get(node) == ACTIVE]
    leader = partition.leader if partition.leader in able else next(iter(able), None)
    return replace(
        partition,
        leader=leader,
        leader_epoch=partition.leader_epoch + (leader != partition.leader),
        partition_epoch=partition.partition_epoch + 1,
        replicas=target,
        in_sync=target,
        target=(),
        eligible=(),
    )


def end_move(partition: PartitionDescription, states: Mapping[str, str]) -> PartitionDescription:
    """At its target if all of that is in sync and can lead; else the same partition."""
    target = partition.target
    if not target or not set(target) <= set(partition.in_sync):
        return partition
    leader = partition.leader
    if leader not in target:
        leader = next((node for node in target if states.get(node) == ACTIVE), None)
        if leader is None:
            return partition  # no replica of the target could lead: stay on the old ones
    return replace(
        partition,
        leader=leader,
        # A leader of the target goes on in its epoch, so that its producers notice nothing.
        leader_epoch=partition.leader_epoch + (leader != partition.leader),
        partition_epoch=partition.partition_epoch + 1,
        replicas=target,
        in_sync=target,
        eligible=(),
        target=(),
    )


# ------------------------------------------------------------ handlers


def start_moves(draft: Draft, command: StartMoves) -> Any:
    """[[topic, partition], ...] of the moves begun; those whose epoch has passed are left out.

    Raises InvalidArgument when a target names a node that is not registered, or whose roles let it
    hold no replicas.
    """
    paged = draft.state.feature_level >= CLUSTER_LEVEL
    known = {
        node.node_id: node.state for node in all_nodes(draft) if not paged or holds_replicas(node)
    }
    for move in command.moves:
        if unknown := set(move[4]) - known.keys():
            raise InvalidArgument(
                f"move.target: {', '.join(sorted(unknown))} is not registered, or holds no replicas"
            )
    return _start_in_pages(draft, command, known) if paged else _start_in_rows(draft, command)


def _start_in_pages(draft: Draft, command: StartMoves, states: Mapping[str, str]) -> Any:
    edits, begun = PageEdits(draft), []
    for name, topic_id, number, partition_epoch, target in command.moves:
        page = edits.page(page_id(topic_id, number))
        old = edits.find(topic_id, number)
        # The topic was deleted since the plan was made, and perhaps created again.
        if page is None or page.topic != name or old is None:
            continue
        if old.partition_epoch == partition_epoch:
            own = is_brokers_own(name)
            edits.put(topic_id, relocate(old, target, states) if own else begin_move(old, target))
            begun.append([name, number])
    edits.save()
    return begun


def _start_in_rows(draft: Draft, command: StartMoves) -> Any:
    by_topic: dict[str, dict[int, Move]] = {}
    for move in command.moves:
        by_topic.setdefault(move[0], {})[move[2]] = move
    begun = []
    for name, moves in by_topic.items():

        def moved(old: PartitionDescription, moves: dict[int, Move] = moves) -> Any:
            move = moves.get(old.partition)
            if move is None or move[3] != old.partition_epoch:
                return old
            return begin_move(old, move[4])

        topic_id = next(iter(moves.values()))[1]
        begun += [[name, number] for number in _change(draft, name, topic_id, moved)]
    return begun


def finish_moves(draft: Draft, command: FinishMoves) -> Any:
    """[[topic, partition], ...] of the moves that came to their end."""
    states = {node.node_id: node.state for node in all_nodes(draft)}
    return [
        [name, number]
        for name in command.topics
        for number in _change(draft, name, None, lambda old: end_move(old, states))
    ]


def _change(
    draft: Draft,
    name: str,
    topic_id: str | None,
    change: Callable[[PartitionDescription], PartitionDescription],
) -> list[int]:
    """Numbers of the partitions that changed. None if the topic is gone."""
    if draft.row(topic_key(name)) is None:
        return []
    topic: TopicDescription = find_topic(draft, name)
    # The topic was deleted and created again since the plan was made.
    if topic_id not in (None, topic.topic_id):
        return []
    partitions = tuple(change(old) for old in topic.partitions)
    pairs = list(zip(topic.partitions, partitions, strict=True))
    changed = [old.partition for old, new in pairs if new is not old]
    if changed and draft.state.feature_level < CLUSTER_LEVEL:
        count_replicas(draft, [old for old, new in pairs if new is not old], -1)
        count_replicas(draft, [new for old, new in pairs if new is not old], 1)
    if changed:
        save_topic(draft, replace(topic, partitions=partitions), topic)
    return changed


def set_rebalance(draft: Draft, command: SetRebalance) -> Any:
    """None. It is kept as a row, so that the next controller goes on (see `control.mover`)."""
    if command.wanted:
        draft.put_row(REBALANCE_KEY, pack([command.leaving, command.at_once]))
    else:
        draft.delete_row(REBALANCE_KEY)
    return None


def decode_rebalance(value: bytes) -> tuple[tuple[str, ...], int]:
    """(nodes that shall hold no replicas, moves at once)."""
    fields: Any = unpack(value)
    leaving, at_once = fields
    return leaving, at_once
