"""Between the messages of `meta.proto` and the values of `types`. No IO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lakemq.meta_service.api.messages import message_of, value_of
from lakemq.meta_service.api.types import (
    KeyValue,
    MetaStatus,
    NodeRegistration,
    PartitionDescription,
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


def topic_message(topic: TopicDescription) -> pb.Topic:
    """A topic with its partitions as a message."""
    partitions = [
        pb.Partition(
            leader=p.leader,
            leader_epoch=p.leader_epoch,
            partition_epoch=p.partition_epoch,
            replicas=p.replicas,
            in_sync=p.in_sync,
            target=p.target,
        )
        for p in topic.partitions
    ]
    return pb.Topic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=partitions,
        config=config_messages(topic.config),
        revision=topic.revision,
        replication=topic.replication,
    )


def topic_of(message: pb.Topic) -> TopicDescription:
    """The topic of a message."""
    partitions = tuple(
        PartitionDescription(
            number,
            p.leader if p.HasField("leader") else None,
            p.leader_epoch,
            p.partition_epoch,
            tuple(p.replicas),
            tuple(p.in_sync),
            tuple(p.target),
        )
        for number, p in enumerate(message.partitions)
    )
    return TopicDescription(
        message.name,
        message.topic_id,
        partitions,
        config_of(message.config),
        message.revision,
        message.replication,
    )


def status_message(status: MetaStatus) -> pb.StatusResponse:
    """The status of a member as a message."""
    detail = {name: str(value) for name, value in status.detail.items()}
    return message_of(pb.StatusResponse, replace(status, detail=detail))


def status_of(message: pb.StatusResponse) -> MetaStatus:
    """The status that a message holds."""
    return value_of(MetaStatus, message)
