"""Settings and states of queues <-> protobuf. No IO."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from lakemq.plugins.native.proto import queues_pb2 as pb
from lakemq.plugins.native.queues.queue import RunningQueue
from lakemq.plugins.native.queues.settings import QueueSettings


def given_settings(message: pb.QueueSettings) -> dict[str, Any]:
    """The settings that are present, by name."""
    return {field.name: value for field, value in message.ListFields()}


def settings_message(settings: QueueSettings) -> pb.QueueSettings:
    """Settings as protobuf."""
    return pb.QueueSettings(**asdict(settings))


def queue_message(queue: RunningQueue) -> pb.Queue:
    """State of a queue as protobuf."""
    return pb.Queue(
        group=queue.group,
        topic=queue.topic.name,
        settings=settings_message(queue.settings),
        consumers=len(queue.consumers),
        partitions=[
            pb.QueuePartitionState(
                partition=number,
                start_offset=partition.state.start,
                high_watermark=partition.log.high_watermark,
                held=partition.state.held,
                backlog=partition.state.backlog(partition.log.high_watermark),
                dead_letters=len(partition.state.exhausted(1_000_000)),
            )
            for number, partition in sorted(queue.partitions.items())
        ],
    )
