"""Between the messages of `meta.proto` and the values of `types`. No IO."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace

from lakemq.meta_service.api.messages import message_of, value_of
from lakemq.meta_service.api.types import (
    InSyncChange,
    KeyValue,
    MetaStatus,
    NodeRegistration,
    PartitionDescription,
    PartitionsChange,
    TopicChange,
    TopicDescription,
)
from lakemq.meta_service.proto import meta_pb2 as pb

ConfigMapping = Mapping[str, str | int | None]


def key_value_message(kv: KeyValue) -> pb.KeyValue:
    """A key and its row as a message."""
    return pb.KeyValue(
        key=kv.key,
        value=kv.value,
        create_revision=kv.create_revision,
        mod_revision=kv.mod_revision,
        version=kv.version,
    )


def key_value_of(message: pb.KeyValue) -> KeyValue:
    """The key and row of a message."""
    return KeyValue(
        message.key,
        message.value,
        message.create_revision,
        message.mod_revision,
        message.version,
    )


def node_message(node: NodeRegistration) -> pb.Node:
    """A registration as a message."""
    return message_of(pb.Node, node)


def register_request(
    node: NodeRegistration, disowned: Sequence[tuple[str, int]]
) -> pb.RegisterNodeRequest:
    """A request to register a node. `disowned`: (topic id, partition) of each such replica."""
    replicas = [
        pb.Replica(topic_id=bytes.fromhex(topic_id), partition=partition)
        for topic_id, partition in disowned
    ]
    return pb.RegisterNodeRequest(node=node_message(node), disowned=replicas)


def node_of(message: pb.Node) -> NodeRegistration:
    """The registration of a message."""
    return value_of(NodeRegistration, message)


def setting_message(value: str | int | None) -> pb.Setting:
    """A value of a topic's configuration as a message."""
    if value is None:
        return pb.Setting()
    return pb.Setting(text=value) if isinstance(value, str) else pb.Setting(number=value)


def config_messages(config: ConfigMapping) -> dict[str, pb.Setting]:
    """A topic's configuration as messages, by name."""
    return {name: setting_message(value) for name, value in config.items()}


def config_of(messages: Mapping[str, pb.Setting]) -> dict[str, str | int | None]:
    """The configuration that messages hold."""
    config: dict[str, str | int | None] = {}
    for name, setting in messages.items():
        which = setting.WhichOneof("value")
        if which is None:
            config[name] = None
        else:
            config[name] = setting.text if which == "text" else setting.number
    return config


def create_request(
    name: str, partitions: int, config: ConfigMapping, replication: int, min_in_sync: int
) -> pb.CreateTopicRequest:
    """A request for a new topic."""
    return pb.CreateTopicRequest(
        name=name,
        # Drawn here and not by the catalog, which must do the same on every member; a retry repeats
        # it.
        topic_id=uuid.uuid4().hex,
        partitions=max(0, partitions),
        replication=max(0, replication),
        min_in_sync=max(0, min_in_sync),
        config=config_messages(config),
    )


def alter_request(
    name: str,
    partitions: int | None,
    config: ConfigMapping | None,
    replication: int | None,
    min_in_sync: int | None,
) -> pb.AlterTopicRequest:
    """A request to change a topic; None: leave it as it is."""
    request = pb.AlterTopicRequest(
        name=name, partitions=partitions, replication=replication, min_in_sync=min_in_sync
    )
    if config is not None:
        request.config.CopyFrom(pb.Config(settings=config_messages(config)))
    return request


def partition_message(partition: PartitionDescription) -> pb.Partition:
    """A partition as a message."""
    return message_of(pb.Partition, partition, number=partition.partition)


def partition_of(number: int, message: pb.Partition) -> PartitionDescription:
    """The partition of a message; `number`: its own."""
    found = value_of(PartitionDescription, message, partition=number)
    return found if found.min_in_sync else replace(found, min_in_sync=1)


def topic_message(topic: TopicDescription) -> pb.Topic:
    """A topic with its partitions as a message."""
    return pb.Topic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=map(partition_message, topic.partitions),
        config=config_messages(topic.config),
        revision=topic.revision,
        replication=topic.replication,
        min_in_sync=topic.min_in_sync,
    )


def topic_of(message: pb.Topic) -> TopicDescription:
    """The topic of a message."""
    return TopicDescription(
        message.name,
        message.topic_id,
        tuple(partition_of(number, each) for number, each in enumerate(message.partitions)),
        config_of(message.config),
        message.revision,
        message.replication,
        message.min_in_sync or 1,
    )


def change_message(change: TopicChange | PartitionsChange, *, last: bool) -> pb.TopicChange:
    """A change of a topic as a message. `last`: of its revision."""
    if isinstance(change, TopicChange):
        topic = topic_message(change.topic) if change.topic is not None else None
        return pb.TopicChange(revision=change.revision, name=change.name, topic=topic, last=last)
    return pb.TopicChange(
        revision=change.revision,
        name=change.name,
        topic_id=change.topic_id,
        changed=map(partition_message, change.partitions),
        last=last,
    )


def change_of(message: pb.TopicChange) -> TopicChange | PartitionsChange:
    """The change of a message that names a topic."""
    if message.changed:
        partitions = tuple(partition_of(each.number, each) for each in message.changed)
        return PartitionsChange(message.revision, message.name, message.topic_id, partitions)
    topic = topic_of(message.topic) if message.HasField("topic") else None
    return TopicChange(message.revision, message.name, topic)


def in_sync_message(change: InSyncChange) -> pb.InSyncChange:
    """A leader's wish as a message."""
    return pb.InSyncChange(
        topic_id=bytes.fromhex(change.topic_id),
        partition=change.partition,
        leader_epoch=change.leader_epoch,
        partition_epoch=change.partition_epoch,
        in_sync=[
            pb.Member(node_id=node, broker_epoch=epoch) for node, epoch in change.in_sync.items()
        ],
    )


def status_message(status: MetaStatus) -> pb.StatusResponse:
    """The status of a member as a message."""
    detail = {name: str(value) for name, value in status.detail.items()}
    return message_of(pb.StatusResponse, replace(status, detail=detail))


def status_of(message: pb.StatusResponse) -> MetaStatus:
    """The status that a message holds."""
    return value_of(MetaStatus, message)
