"""Values of queues <-> protobuf. No IO."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from lakemq.broker_core.api.queues.types import QueueDelivery, QueueDescription, QueueSettings
from lakemq.plugins.native.proto import queues_pb2 as pb


def given_settings(message: pb.QueueSettings) -> dict[str, Any]:
    """The settings that are present, by name."""
    return {field.name: value for field, value in message.ListFields()}


def settings_message(settings: QueueSettings) -> pb.QueueSettings:
    """Settings as protobuf."""
    return pb.QueueSettings(**asdict(settings))


def delivery_message(delivery: QueueDelivery) -> pb.QueueResponse:
    """Records for a consumer."""
    return pb.QueueResponse(
        delivery=pb.QueueDelivery(
            partition=delivery.partition,
            batch=delivery.batch,
            attempts=delivery.attempts,
            lock_ms=delivery.lock_ms,
        )
    )


def queue_message(queue: QueueDescription) -> pb.Queue:
    """State of a queue as protobuf."""
    return pb.Queue(
        group=queue.group,
        topic=queue.topic,
        settings=settings_message(queue.settings),
        consumers=queue.consumers,
        partitions=[
            pb.QueuePartitionState(
                partition=each.partition,
                start_offset=each.start_offset,
                high_watermark=each.high_watermark,
                held=each.held,
                backlog=each.backlog,
                dead_letters=each.dead_letters,
            )
            for each in queue.partitions
        ],
    )
