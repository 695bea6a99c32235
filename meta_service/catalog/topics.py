"""Topics in the catalog, and who serves their partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from lakemq.meta_service.api.errors import AlreadyExists, InvalidArgument, NotFound
from lakemq.meta_service.api.types import (
    CLUSTER_LEVEL,
    PartitionDescription,
    TopicDescription,
)
from lakemq.meta_service.catalog.commands import (
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    GrowTopic,
    PlaceTopic,
)
from lakemq.meta_service.catalog.draft import Draft
from lakemq.meta_service.catalog.nodes import candidates, place
from lakemq.meta_service.catalog.pages.cluster import cluster_of
from lakemq.meta_service.catalog.pages.commands import (
    AlterReplicatedTopic,
    CreateReplicatedTopic,
    PageTopics,
)
from lakemq.meta_service.catalog.pages.rows import (
    NO_NODE,
    PAGE_PARTITIONS,
    Page,
    encode_partition,
    page_id,
    page_ids,
    pages_of,
    read_page,
    save_page,
)
from lakemq.meta_service.catalog.tables import (
    KEYS,
    PAGING_KEY,
    REPLICA_COUNTS,
    TOPIC_PREFIX,
    decode_number,
    decode_row,
    encode_number,
    pack,
    unpack,
)


def topic_key(name: str) -> bytes:
    """The topic's key in the KV space."""
    return TOPIC_PREFIX + name.encode()


def encode_topic(topic: TopicDescription) -> bytes:
    """A topic with all its partitions: its row below level 4, and what commands answer. Fields of
    later feature levels only where they say something."""
    fields = [
        topic.topic_id,
        dict(sorted(topic.config.items())),
        [encode_partition(each) for each in topic.partitions],
    ]
    more = [topic.replication, topic.min_in_sync]
    if topic.min_in_sync == 1:
        more.pop()
    return pack(fields + more if topic.replication else fields)


def encode_head(topic: TopicDescription) -> bytes:
    """The value of a topic's row from level 4 on: its partitions are in pages."""
    config = dict(sorted(topic.config.items()))
    count = len(topic.partitions)
    return pack([topic.topic_id, config, count, topic.replication, topic.min_in_sync])


def decode_topic(
    key: bytes,
    value: bytes,
    revision: int,
    find_page: Callable[[bytes], tuple[Page, int] | None] | None = None,
) -> TopicDescription:
    """`revision`: the row's `mod_revision`. `find_page(page id)`: (page, `mod_revision` of its
    row), for rows whose partitions are in pages; without it they are left out."""
    fields: Any = unpack(value)
    topic_id, config, partitions, *more = fields
    found: list[PartitionDescription] = []
    if not isinstance(partitions, int):
        found = [PartitionDescription(n, *p) for n, p in enumerate(partitions)]
    elif find_page is not None:
        for page in page_ids(topic_id, partitions):
            row = find_page(page)
            if row is not None:
                found += row[0].partitions
                revision = max(revision, row[1])
    name = key[len(TOPIC_PREFIX) :].decode()
    return TopicDescription(name, topic_id, tuple(found), config, revision, *more)


def partitions_in(value: bytes) -> int | None:
    """How many partitions the topic has, from its row; None: they are in the row itself."""
    count = unpack(value)[2]
    return count if isinstance(count, int) else None


def topic_head(draft: Draft, name: str) -> TopicDescription:
    """What a topic's own row says: from level 4 on, all but its partitions. Raises NotFound."""
    row = draft.row(topic_key(name))
    if row is None:
        raise NotFound(f"topic {name!r} does not exist")
    return decode_topic(topic_key(name), row.value, row.mod_revision)


def find_topic(draft: Draft, name: str) -> TopicDescription:
    """With all its partitions, wherever they are. Raises NotFound."""
    row = draft.row(topic_key(name))
    if row is None:
        raise NotFound(f"topic {name!r} does not exist")

    def find_page(page: bytes) -> tuple[Page, int] | None:
        found = read_page(draft, page)
        return (found, 0) if found is not None else None

    return decode_topic(topic_key(name), row.value, row.mod_revision, find_page)


def create_topic(draft: Draft, command: CreateTopic) -> Any:
    """The whole topic, see `encode_topic`."""
    if draft.row(topic_key(command.name)) is not None:
        raise AlreadyExists(f"topic {command.name!r} exists already")
    avoid = command.avoid if isinstance(command, PlaceTopic) else ()
    minimum = command.min_in_sync if isinstance(command, CreateReplicatedTopic) else 1
    partitions = _new_partitions(
        draft, 0, command.partitions, command.replication, avoid, minimum=minimum
    )
    # Members below level 2 could not read a row that holds it.
    replication = command.replication if draft.state.feature_level > 1 else 0
    topic = TopicDescription(
        command.name, command.topic_id, partitions, command.config, 0, replication, minimum
    )
    return save_topic(draft, topic, None)


def alter_topic(draft: Draft, command: AlterTopic) -> Any:
    """The whole topic, see `encode_topic`."""
    before = topic = find_topic(draft, command.name)
    if command.config is not None:
        topic = replace(topic, config=command.config)
    if isinstance(command, AlterReplicatedTopic):
        topic = _with_replication(topic, command.replication, command.min_in_sync)
    if command.partitions is not None:
        avoid = command.avoid if isinstance(command, GrowTopic) else ()
        topic = replace(topic, partitions=_grown(draft, topic, command.partitions, avoid))
    if draft.state.feature_level >= CLUSTER_LEVEL:
        # In the same command: no leader uses an in-sync set under another minimum than it was
        # judged by.
        topic = cluster_of(draft).settle_topic(topic)
    return save_topic(draft, topic, before)


def _with_replication(
    topic: TopicDescription, replication: int | None, minimum: int | None
) -> TopicDescription:
    """The replicas themselves come and go as a move, see `control.mover`."""
    topic = replace(
        topic,
        replication=topic.replication if replication is None else replication,
        min_in_sync=topic.min_in_sync if minimum is None else minimum,
    )
    if topic.min_in_sync > max(1, topic.replication):
        raise InvalidArgument(
            f"min_in_sync: {topic.min_in_sync} is more than the {topic.replication} replicas of "
            f"topic {topic.name!r}"
        )
    partitions = tuple(
        p
        if p.min_in_sync == topic.min_in_sync
        else replace(p, min_in_sync=topic.min_in_sync, partition_epoch=p.partition_epoch + 1)
        for p in topic.partitions
    )
    return replace(topic, partitions=partitions)


def delete_topic(draft: Draft, command: DeleteTopic) -> Any:
    """The topic id that is gone."""
    topic = find_topic(draft, command.name)
    if _is_paged(draft, topic.name):
        for page, old in _in_pages(topic).items():
            save_page(draft, page, old, None)
    else:
        count_replicas(draft, topic.partitions, -1)
    draft.delete_row(topic_key(command.name))
    return topic.topic_id


def adopt_orphans(draft: Draft) -> None:
    """Place partitions that were made while no node was registered."""
    for topic in _with_orphans(draft):
        if all(partition.replicas for partition in topic.partitions):
            continue
        homes = iter(
            _new_partitions(
                draft,
                0,
                len(topic.partitions),
                topic.replication or 1,
                minimum=topic.min_in_sync,
            )
        )
        partitions = tuple(
            old
            if old.replicas
            else replace(new, partition=old.partition, partition_epoch=old.partition_epoch + 1)
            for old, new in zip(topic.partitions, homes, strict=True)
        )
        save_topic(draft, replace(topic, partitions=partitions), topic)


def _with_orphans(draft: Draft) -> list[TopicDescription]:
    """Topics that may have partitions without a node."""
    pages = [read_page(draft, page) for page in pages_of(draft, NO_NODE)]
    names = dict.fromkeys(page.topic for page in pages if page is not None)
    if not is_paging_done(draft):
        for key, data in draft.scan(KEYS + TOPIC_PREFIX):
            if partitions_in(decode_row(data).value) is None:
                names[key[len(KEYS + TOPIC_PREFIX) :].decode()] = None
    return [find_topic(draft, name) for name in names]


def page_topics(draft: Draft, command: PageTopics) -> Any:
    """Whether all topics are in pages now."""
    done, last = _paging(draft)
    if done:
        return True
    start, left = (topic_key(last) if last else b""), command.partitions
    for key, data in draft.scan(KEYS + TOPIC_PREFIX):
        if key[len(KEYS) :] <= start:
            continue
        # One at least, however large it is.
        if left <= 0:
            draft.set(PAGING_KEY, pack(last))
            return False
        last = key[len(KEYS + TOPIC_PREFIX) :].decode()
        if partitions_in(decode_row(data).value) is None:
            topic = find_topic(draft, last)
            save_topic(draft, topic, topic)
            left -= len(topic.partitions)
    draft.set(PAGING_KEY, pack(None))
    return True


def is_paging_done(draft: Draft) -> bool:
    """Whether no topic is left whose partitions are in its own row."""
    return _paging(draft)[0]


def _paging(draft: Draft) -> tuple[bool, str]:
    """(whether it is done, the last topic that was looked at)."""
    data = draft.get(PAGING_KEY)
    last = unpack(data) if data is not None else ""
    return last is None, last or ""


def _grown(
    draft: Draft, topic: TopicDescription, partitions: int, avoid: Sequence[str]
) -> tuple[PartitionDescription, ...]:
    have = len(topic.partitions)
    if partitions < have:
        raise InvalidArgument(
            f"partitions: topic {topic.name!r} has {have}, and they can only grow"
        )
    # Topics of level 1 have no replication in their row: as many as their partitions have.
    had = max((len(p.target or p.replicas) for p in topic.partitions), default=1)
    replication = topic.replication or had or 1
    more = partitions - have
    return topic.partitions + _new_partitions(
        draft, have, more, replication, avoid, minimum=topic.min_in_sync
    )


def _new_partitions(
    draft: Draft,
    first: int,
    count: int,
    replication: int,
    avoid: Sequence[str] = (),
    *,
    minimum: int = 1,
) -> tuple[PartitionDescription, ...]:
    """On nodes of `avoid` only where there are too few others."""
    nodes = candidates(draft)
    rather = [node for node in nodes if node.node_id not in avoid]
    nodes = rather if len(rather) >= replication else nodes
    loads = {
        node.node_id: decode_number(draft.get(REPLICA_COUNTS + node.node_id.encode()))
        for node in nodes
    }
    partitions = tuple(
        PartitionDescription(
            first + n,
            replicas[0] if replicas else None,
            0,
            0,
            replicas,
            replicas,
            min_in_sync=minimum,
        )
        for n, replicas in enumerate(place(nodes, loads, count, replication))
    )
    if draft.state.feature_level >= CLUSTER_LEVEL:
        # A node that is not alive leads nothing, new or old.
        return cluster_of(draft).settle_new(partitions)
    count_replicas(draft, partitions, 1)
    return partitions


def count_replicas(draft: Draft, partitions: Sequence[PartitionDescription], sign: int) -> None:
    """Replicas come to (1) or go from (-1) the nodes of these partitions, which are in no page."""
    counts: dict[str, int] = {}
    for partition in partitions:
        for node_id in partition.replicas:
            counts[node_id] = counts.get(node_id, 0) + sign
    for node_id, change in counts.items():
        key = REPLICA_COUNTS + node_id.encode()
        # Not below zero: the number is stored unsigned, and a node's count is deleted with the
        # node.
        draft.set(key, encode_number(max(0, decode_number(draft.get(key)) + change)))


def save_topic(draft: Draft, topic: TopicDescription, before: TopicDescription | None) -> bytes:
    """Put what has changed; the whole topic, which answers the command (see `encode_topic`).

    `before`: as `find_topic` gave it; None: it is new. From level 4 on a topic whose partitions are
    still in its row moves to pages.
    """
    whole = encode_topic(topic)
    if draft.state.feature_level < CLUSTER_LEVEL:
        draft.put_row(topic_key(topic.name), whole)
        return whole
    old: dict[bytes, Page] = {}
    if before is not None and _is_paged(draft, topic.name):
        old = _in_pages(before)
    elif before is not None:
        count_replicas(draft, before.partitions, -1)
    row, head = draft.row(topic_key(topic.name)), encode_head(topic)
    if row is None or row.value != head:
        draft.put_row(topic_key(topic.name), head)
    for page, new in _in_pages(topic).items():
        if old.get(page) != new:
            save_page(draft, page, old.get(page), new)
    return whole


def _is_paged(draft: Draft, name: str) -> bool:
    row = draft.row(topic_key(name))
    return row is not None and partitions_in(row.value) is not None


def _in_pages(topic: TopicDescription) -> dict[bytes, Page]:
    """The topic's pages by id."""
    starts = range(0, len(topic.partitions), PAGE_PARTITIONS)
    return {
        page_id(topic.topic_id, first): Page(
            topic.name, topic.partitions[first : first + PAGE_PARTITIONS]
        )
        for first in starts
    }
