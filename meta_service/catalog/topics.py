"""Topics in the catalog, and who serves their partitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lakemq.meta_service.api.errors import AlreadyExists, InvalidArgument, NotFound
from lakemq.meta_service.api.types import PartitionDescription, TopicDescription
from lakemq.meta_service.catalog.commands import (
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    GrowTopic,
    PlaceTopic,
)
from lakemq.meta_service.catalog.draft import Draft
from lakemq.meta_service.catalog.nodes import candidates, place
from lakemq.meta_service.catalog.tables import (
    KEYS,
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
    """The value of a topic's row; fields of later feature levels only where they say something."""
    partitions = [
        [p.leader, p.leader_epoch, p.partition_epoch, p.replicas, p.in_sync]
        + ([p.target] if p.target else [])
        for p in topic.partitions
    ]
    fields = [topic.topic_id, dict(sorted(topic.config.items())), partitions]
    return pack([*fields, topic.replication] if topic.replication else fields)


def decode_topic(key: bytes, value: bytes, revision: int) -> TopicDescription:
    """`revision`: the row's `mod_revision`."""
    fields: Any = unpack(value)
    topic_id, config, partitions, *replication = fields
    return TopicDescription(
        key[len(TOPIC_PREFIX) :].decode(),
        topic_id,
        tuple(PartitionDescription(n, *p) for n, p in enumerate(partitions)),
        config,
        revision,
        *replication,
    )


def find_topic(draft: Draft, name: str) -> TopicDescription:
    """Raises NotFound."""
    row = draft.row(topic_key(name))
    if row is None:
        raise NotFound(f"topic {name!r} does not exist")
    return decode_topic(topic_key(name), row.value, row.mod_revision)


def create_topic(draft: Draft, command: CreateTopic) -> Any:
    """The topic's row value."""
    if draft.row(topic_key(command.name)) is not None:
        raise AlreadyExists(f"topic {command.name!r} exists already")
    avoid = command.avoid if isinstance(command, PlaceTopic) else ()
    partitions = _new_partitions(draft, 0, command.partitions, command.replication, avoid)
    # Members below level 2 could not read a row that holds it.
    replication = command.replication if draft.state.feature_level > 1 else 0
    topic = TopicDescription(
        command.name, command.topic_id, partitions, command.config, 0, replication
    )
    return save_topic(draft, topic)


def alter_topic(draft: Draft, command: AlterTopic) -> Any:
    """The topic's row value."""
    topic = find_topic(draft, command.name)
    if command.config is not None:
        topic = replace(topic, config=command.config)
    if command.partitions is not None:
        avoid = command.avoid if isinstance(command, GrowTopic) else ()
        topic = replace(topic, partitions=_grown(draft, topic, command.partitions, avoid))
    return save_topic(draft, topic)


def delete_topic(draft: Draft, command: DeleteTopic) -> Any:
    """The topic id that is gone."""
    topic = find_topic(draft, command.name)
    count_replicas(draft, topic.partitions, -1)
    draft.delete_row(topic_key(command.name))
    return topic.topic_id


def adopt_orphans(draft: Draft) -> None:
    """Place partitions that were made while no node was registered."""
    for key, data in list(draft.scan(KEYS + TOPIC_PREFIX)):
        row = decode_row(data)
        topic = decode_topic(key[len(KEYS) :], row.value, row.mod_revision)
        if all(partition.replicas for partition in topic.partitions):
            continue
        homes = iter(_new_partitions(draft, 0, len(topic.partitions), topic.replication or 1))
        partitions = tuple(
            old
            if old.replicas
            else replace(new, partition=old.partition, partition_epoch=old.partition_epoch + 1)
            for old, new in zip(topic.partitions, homes, strict=True)
        )
        save_topic(draft, replace(topic, partitions=partitions))


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
    return topic.partitions + _new_partitions(draft, have, partitions - have, replication, avoid)


def _new_partitions(
    draft: Draft, first: int, count: int, replication: int, avoid: Sequence[str] = ()
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
        PartitionDescription(first + n, replicas[0] if replicas else None, 0, 0, replicas, replicas)
        for n, replicas in enumerate(place(nodes, loads, count, replication))
    )
    count_replicas(draft, partitions, 1)
    return partitions


def count_replicas(draft: Draft, partitions: Sequence[PartitionDescription], sign: int) -> None:
    """Replicas come to (1) or go from (-1) the nodes of these partitions."""
    counts: dict[str, int] = {}
    for partition in partitions:
        for node_id in partition.replicas:
            counts[node_id] = counts.get(node_id, 0) + sign
    for node_id, change in counts.items():
        key = REPLICA_COUNTS + node_id.encode()
        # Not below zero: the number is stored unsigned, and a node's count is deleted with the
        # node.
        draft.set(key, encode_number(max(0, decode_number(draft.get(key)) + change)))


def save_topic(draft: Draft, topic: TopicDescription) -> bytes:
    """Put the topic's row and return its value, which answers the command."""
    value = encode_topic(topic)
    draft.put_row(topic_key(topic.name), value)
    return value
