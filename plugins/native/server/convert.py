"""Broker values <-> protobuf, and broker errors -> gRPC statuses. No IO."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, replace
from typing import Final, get_args, get_type_hints

import grpc

from lakemq.broker_core.api import errors
from lakemq.broker_core.api.errors import InvalidRequest, LakeMQError, LogTruncated, NotLeader
from lakemq.broker_core.api.leadership import leadership
from lakemq.broker_core.api.types import (
    Leadership,
    NodeInfo,
    PartitionStatus,
    TopicConfig,
    TopicInfo,
)
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.proto.admin_pb2 import AlterTopicRequest

_STATUS: Final[dict[type[LakeMQError], grpc.StatusCode]] = {
    errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotAuthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.NotAuthorized: grpc.StatusCode.PERMISSION_DENIED,
    errors.UnknownTopic: grpc.StatusCode.NOT_FOUND,
    errors.UnknownPartition: grpc.StatusCode.NOT_FOUND,
    errors.UnknownSchema: grpc.StatusCode.NOT_FOUND,
    errors.UnknownGroup: grpc.StatusCode.NOT_FOUND,
    errors.GroupNotEmpty: grpc.StatusCode.FAILED_PRECONDITION,
    errors.UnknownMember: grpc.StatusCode.FAILED_PRECONDITION,
    errors.MemberFenced: grpc.StatusCode.FAILED_PRECONDITION,
    errors.InstanceInUse: grpc.StatusCode.UNAVAILABLE,
    errors.UnknownTransaction: grpc.StatusCode.NOT_FOUND,
    errors.UnknownSchedule: grpc.StatusCode.NOT_FOUND,
    errors.TransactionAborted: grpc.StatusCode.ABORTED,
    errors.BatchCommitted: grpc.StatusCode.ALREADY_EXISTS,
    errors.StagingFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.TopicExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.OffsetOutOfRange: grpc.StatusCode.OUT_OF_RANGE,
    errors.CorruptLog: grpc.StatusCode.DATA_LOSS,
    errors.StorageFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.NotEnoughReplicas: grpc.StatusCode.UNAVAILABLE,
    errors.LockLost: grpc.StatusCode.FAILED_PRECONDITION,
    errors.NotLeader: grpc.StatusCode.FAILED_PRECONDITION,
    errors.OutOfOrderSequence: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ProducerFenced: grpc.StatusCode.FAILED_PRECONDITION,
    errors.StorageFenced: grpc.StatusCode.FAILED_PRECONDITION,
}


def status_of(error: LakeMQError) -> grpc.StatusCode:
    """The gRPC status code of an error."""
    # The nearest ancestor that has a status: subclasses need no entry of their own.
    for kind in type(error).__mro__:
        if kind in _STATUS:
            return _STATUS[kind]
    return grpc.StatusCode.INTERNAL


def trailers_of(error: LakeMQError) -> tuple[tuple[str, str], ...]:
    """What lets a client rebuild the error: its code, whether to try again, and who leads."""
    told = (("lakemq-error", error.code), ("lakemq-retriable", "1" if error.retriable else "0"))
    if isinstance(error, LogTruncated):
        return (*told, ("lakemq-offset", str(error.offset)))
    if not isinstance(error, NotLeader):
        return told
    return (
        *told,
        ("lakemq-leader", error.leader),
        ("lakemq-leader-address", error.address),
        ("lakemq-leader-epoch", str(error.epoch)),
    )


def error_message(error: LakeMQError) -> pb.Error:
    """An error as protobuf, in answers of streams."""
    message = pb.Error(code=error.code, message=str(error), retriable=error.retriable)
    if isinstance(error, NotLeader):
        message.leader, message.leader_address = error.leader, error.address
        message.leader_epoch = error.epoch
    if isinstance(error, LogTruncated):
        message.offset = error.offset
    return message


def native_addresses(nodes: Iterable[NodeInfo]) -> dict[str, str]:
    """Node id -> `host:port` of its native listener; empty where it has none."""
    return {each.node_id: each.addresses.get("native", "") for each in nodes}


def other_addresses(node_id: str, nodes: Iterable[NodeInfo], named: Iterable[str]) -> list[str]:
    """Native addresses of those nodes that are named, but for `node_id`."""
    addresses = native_addresses(nodes)
    return sorted({addresses.get(node, "") for node in named if node != node_id} - {""})


def topic_message(
    info: TopicInfo, statuses: list[PartitionStatus], addresses: Mapping[str, str] | None = None
) -> pb.Topic:
    """`addresses`: of native listeners, by node id."""
    return pb.Topic(
        name=info.name,
        topic_id=info.topic_id,
        revision=info.revision,
        config={
            name: "none" if value is None else str(value)
            for name, value in asdict(info.config).items()
        },
        partitions=[
            _partition_message(each, leadership(info, each.partition), addresses or {})
            for each in statuses
        ],
    )


def _partition_message(
    status: PartitionStatus, leadership: Leadership, addresses: Mapping[str, str]
) -> pb.Partition:
    return pb.Partition(
        partition=status.partition,
        state=status.state,
        log_start_offset=status.log_start_offset,
        high_watermark=status.high_watermark,
        log_end_offset=status.log_end_offset,
        size_bytes=status.size_bytes,
        segments=status.segments,
        detail=status.detail,
        leader=leadership.leader or "",
        leader_epoch=leadership.epoch,
        leader_address=addresses.get(leadership.leader or "", ""),
        replicas=leadership.replicas,
        in_sync=leadership.in_sync,
        eligible=leadership.eligible,
        target=leadership.target,
        min_in_sync=leadership.min_in_sync,
        lags=status.lags,
    )


def check_counts(request: pb.CreateTopicRequest | AlterTopicRequest) -> None:
    """0 is the default of each. Raises InvalidRequest that names a negative one."""
    for name in ("partitions", "replication", "min_in_sync"):
        count = getattr(request, name)
        if count < 0:
            raise InvalidRequest(f"{name} is {count}; it takes 1 or more")


def topic_config(texts: Mapping[str, str], base: TopicConfig) -> TopicConfig:
    """`base` with the settings of `texts`. InvalidRequest names what is unknown or wrong."""
    return replace(base, **config_values(texts))  # type: ignore[arg-type]  # names and types are checked


def config_values(texts: Mapping[str, str]) -> dict[str, str | int | None]:
    """Settings of a topic from their texts. InvalidRequest names what is unknown or wrong."""
    hints = get_type_hints(TopicConfig)
    changes: dict[str, str | int | None] = {}
    for name, text in texts.items():
        check_config_name(name)
        endless = type(None) in get_args(hints[name])
        if hints[name] is str:
            changes[name] = text
        elif endless and text in ("none", "-1"):
            changes[name] = None
        elif text.isascii() and text.isdecimal():
            changes[name] = int(text)
        else:
            more = ", or none (-1): without limit" if endless else ""
            raise InvalidRequest(f"config {name} is {text!r}; it takes a whole number{more}")
    return changes


def check_config_name(name: str) -> None:
    """Raises InvalidRequest unless a topic has a setting of that name."""
    known = {field.name for field in fields(TopicConfig)}
    if name not in known:
        raise InvalidRequest(f"config {name!r} is unknown; known: {', '.join(sorted(known))}")
