"""What the commands of level 4 do to partitions."""

from __future__ import annotations

from typing import Any

from lakemq.meta_service.api.errors import CompareFailed, InvalidArgument, NotFound
from lakemq.meta_service.api.types import (
    DONE,
    INELIGIBLE,
    STALE,
    UNKNOWN,
    PartitionDescription,
)
from lakemq.meta_service.catalog.control_commands import ACTIVE
from lakemq.meta_service.catalog.draft import Draft
from lakemq.meta_service.catalog.moves import end_move
from lakemq.meta_service.catalog.pages.cluster import Cluster, cluster_of
from lakemq.meta_service.catalog.pages.commands import (
    ChangeInSyncMany,
    ElectUnclean,
    FinishMovesInPages,
    InSyncWish,
    Resign,
    SettlePages,
)
from lakemq.meta_service.catalog.pages.rows import PageEdits, page_id, topic_id_of
from lakemq.meta_service.catalog.partitions import elected_unclean, is_unclean, with_in_sync
from lakemq.meta_service.catalog.topics import topic_head


class _Unclean:
    """Which topics ask for unclean elections, each looked up once."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._known: dict[str, bool] = {}

    def __getitem__(self, topic: str) -> bool:
        if topic not in self._known:
            self._known[topic] = is_unclean(topic_head(self._draft, topic).config)
        return self._known[topic]


def settle_pages(draft: Draft, command: SettlePages) -> Any:
    """Number of partitions that changed."""
    cluster, unclean = cluster_of(draft, command.avoid), _Unclean(draft)
    edits, changed = PageEdits(draft), 0
    for page in command.pages:
        found = edits.page(page)
        if found is None:
            continue  # deleted meanwhile
        for new in cluster.settle_page(
            page, found, unclean=unclean[found.topic], preferred=command.preferred
        ):
            edits.put(topic_id_of(page), new)
            changed += 1
    edits.save()
    return changed


# ------------------------------------------------------------ in-sync sets


def change_in_sync_many(draft: Draft, command: ChangeInSyncMany) -> Any:
    """[[code, partition epoch, in sync, leader, leader epoch], ...]: what holds now, in the order
    of the changes.

    The partitions are settled in the same command: a draining leader gives way to who has joined.
    """
    cluster, unclean, edits = cluster_of(draft), _Unclean(draft), PageEdits(draft)
    sender = cluster.nodes.get(command.node_id)
    # A process that was started again leads nothing, though the controller may not have come to
    # this partition yet.
    leads = sender is not None and (sender.broker_epoch, sender.admitted) == (
        command.broker_epoch,
        True,
    )
    answers: list[list[object]] = []
    for change in command.changes:
        topic_id = change[0].hex()
        old = edits.find(topic_id, change[1])
        if old is None:
            answers.append([UNKNOWN, 0, (), None, 0])
            continue
        code = _refusal(cluster, command.node_id, leads, old, change)
        now = old
        if not code:
            page = edits.page(page_id(topic_id, old.partition))
            assert page is not None
            now = with_in_sync(old, [node for node, _ in change[4]])
            now = cluster.settle(topic_id, now, unclean=unclean[page.topic])
            edits.put(topic_id, now)
        answers.append(
            [code or DONE, now.partition_epoch, now.in_sync, now.leader, now.leader_epoch]
        )
    edits.save()
    return answers


def _refusal(
    cluster: Cluster, sender: str, leads: bool, old: PartitionDescription, change: InSyncWish
) -> str:
    """Why the change is not made; empty: it is."""
    _, _, leader_epoch, partition_epoch, members = change
    given = (sender, leader_epoch, partition_epoch)
    if not leads or given != (old.leader, old.leader_epoch, old.partition_epoch):
        return STALE
    wanted = dict(members)
    joining = [node for node in wanted if node not in old.in_sync]
    if sender not in wanted or not set(wanted) <= set(old.replicas):
        return INELIGIBLE
    # Of members that stay nothing is asked: what they have they had. One that is fenced goes when
    # the partition is settled.
    return "" if all(cluster.may_join(node, wanted[node]) for node in joining) else INELIGIBLE


# ------------------------------------------------------------ leaders


def resign(draft: Draft, command: Resign) -> Any:
    """Number of partitions that it led. Raises CompareFailed when it has registered again."""
    cluster, unclean = cluster_of(draft, command.avoid), _Unclean(draft)
    edits, ended = PageEdits(draft), 0
    node = cluster.nodes.get(command.node_id)
    if node is None or node.broker_epoch != command.broker_epoch:
        raise CompareFailed(
            f"node {command.node_id!r} has no registration of broker epoch {command.broker_epoch}"
        )
    for topic, number, leader_epoch in command.partitions:
        topic_id = topic.hex()
        old = edits.find(topic_id, number)
        if old is None or (old.leader, old.leader_epoch) != (node.node_id, leader_epoch):
            continue
        page = edits.page(page_id(topic_id, number))
        assert page is not None
        new = cluster.settle(topic_id, old, unclean=unclean[page.topic], resigned=node.node_id)
        edits.put(topic_id, new)
        ended += 1
    edits.save()
    return ended


def elect_unclean(draft: Draft, command: ElectUnclean) -> Any:
    """The new leader epoch.

    Raises NotFound, CompareFailed when the partition has changed or has a leader, InvalidArgument
    when the node can't lead it.
    """
    topic_id, edits = topic_head(draft, command.topic).topic_id, PageEdits(draft)
    old = edits.find(topic_id, command.partition)
    where = f"partition {command.partition} of {command.topic!r}"
    if old is None:
        raise NotFound(f"{where} does not exist")
    if old.leader is not None:
        raise CompareFailed(f"{where} is led by {old.leader!r}: an unclean election is not needed")
    if old.partition_epoch != command.partition_epoch:
        raise CompareFailed(
            f"{where} is in partition epoch {old.partition_epoch}, not {command.partition_epoch}"
        )
    node = cluster_of(draft).nodes.get(command.node_id)
    if command.node_id not in old.replicas or node is None or node.state != ACTIVE:
        raise InvalidArgument(f"node: {command.node_id!r} is no active replica of {where}")
    new = elected_unclean(old, command.node_id)
    edits.put(topic_id, new)
    edits.save()
    return new.leader_epoch


def finish_moves_in_pages(draft: Draft, command: FinishMovesInPages) -> Any:
    """[[topic, partition], ...] of the moves that came to their end."""
    edits, done = PageEdits(draft), []
    states = {name: node.state for name, node in cluster_of(draft).nodes.items()}
    for page in command.pages:
        found = edits.page(page)
        for old in found.partitions if found is not None else ():
            new = end_move(old, states)
            if found is not None and new is not old:
                edits.put(topic_id_of(page), new)
                done.append([found.topic, old.partition])
    edits.save()
    return done
